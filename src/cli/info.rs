//! `setrank info`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use setrank::data::Dataset;
use setrank::data::letor::Labels;
use setrank::model::SetRank;
use setrank::train::checkpoint;

use super::devices;
use super::source::{self, TextArgs};

/// More distinct labels than this are told as a range.
const LABELS_LISTED: usize = 32;

/// Arguments of `setrank info`.
#[derive(clap::Args)]
pub struct Args {
    /// A .sets file, LETOR text (`-` is stdin), or the folder of a model
    #[arg(required_unless_present = "devices")]
    path: Option<PathBuf>,

    /// List the processor and the GPUs, and which of them `--device auto` takes
    #[arg(long, conflicts_with = "path")]
    devices: bool,

    /// Run the GPU kernels on each GPU and compare them with the CPU
    #[arg(long, requires = "devices")]
    check: bool,

    /// Write one JSON object instead of lines
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    text: TextArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Some(path) = args.path else {
        return devices::run(args.json, args.check);
    };
    let entries = if path.is_dir() {
        describe_model(&path)?
    } else {
        describe_data(&source::open(&[path], &args.text, Labels::Optional)?)
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &entries)?;
        writeln!(out)?;
    } else {
        for (name, value) in &entries {
            writeln!(out, "{}: {}", name.replace('_', " "), Plain(value))?;
        }
    }
    Ok(out.flush()?)
}

/// The entries of a model folder: its configuration, the long arrays of the normalisation left out.
fn describe_model(folder: &Path) -> anyhow::Result<Map<String, Value>> {
    let config = checkpoint::load_config(folder)?;
    let model = SetRank::new(config)?;
    let Value::Object(mut entries) = serde_json::to_value(model.config())? else {
        unreachable!("a configuration is an object");
    };
    entries.insert("normalize".into(), json!(model.config().normalize.kind));
    entries.insert(
        "missing_indicators".into(),
        json!(model.config().input_size() - model.config().num_features),
    );
    let mut described = Map::from_iter([("parameters".to_owned(), json!(model.layout().len()))]);
    described.extend(entries);
    Ok(described)
}

/// The entries of a data set.
fn describe_data(data: &Dataset) -> Map<String, Value> {
    let columns = data.columns();
    let mut entries = Map::new();
    let mut add = |name: &str, value: Value| entries.insert(name.to_owned(), value);
    add("queries", json!(data.num_queries()));
    add("documents", json!(data.num_documents()));
    add("features", json!(data.num_features()));
    add("labels", data.labels().map_or(json!("none"), describe_labels));
    if let Some(labels) = data.labels() {
        add("unjudged", json!(labels.iter().filter(|&&label| label < 0.0).count()));
        let relevant = |rows: std::ops::Range<usize>| labels[rows].iter().any(|&label| label > 0.0);
        let without = data.queries().filter(|query| !relevant(query.rows())).count();
        add("queries_without_relevant", json!(without));
    }
    add("set_sizes", describe_sizes(data));
    let missing = data.features().iter().filter(|value| value.is_nan()).count();
    add("missing_share", json!(missing as f64 / (data.features().len().max(1)) as f64));
    add("absent", json!(columns.absent));
    add("absent_cells", json!(columns.absent_cells));
    add("index_base", json!(columns.first_index));
    add("least_index", json!(columns.least));
    add("largest_index", json!(columns.largest));
    add("initial_rankings", json!(data.num_initial()));
    entries
}

/// Number of documents for each label, or the range of labels where there are many.
fn describe_labels(labels: &[f32]) -> Value {
    let mut sorted: Vec<f32> = labels.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    let groups: Vec<&[f32]> = sorted.chunk_by(|a, b| a == b).collect();
    if groups.len() > LABELS_LISTED {
        let (least, largest) = (sorted[0], sorted[sorted.len() - 1]);
        return json!({ "least": least, "largest": largest, "distinct": groups.len() });
    }
    groups
        .into_iter()
        .map(|group| ((group[0] + 0.0).to_string(), json!(group.len())))
        .collect::<Map<_, _>>()
        .into()
}

fn describe_sizes(data: &Dataset) -> Value {
    let mut sizes: Vec<usize> = data.queries().map(|query| query.len()).collect();
    sizes.sort_unstable();
    let Some((&least, &largest)) = sizes.first().zip(sizes.last()) else {
        return Value::Null;
    };
    let middle = sizes.len() / 2;
    let median = (sizes[middle] + sizes[(sizes.len() - 1) / 2]) as f64 / 2.0;
    let mean = data.num_documents() as f64 / sizes.len() as f64;
    json!({ "min": least, "mean": mean, "median": median, "max": largest })
}

/// A value without the punctuation of JSON.
struct Plain<'a>(&'a Value);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Value::Null => write!(f, "none"),
            Value::String(text) => write!(f, "{text}"),
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(value) if value.abs() < 1e-3 => write!(f, "{value:?}"),
                Some(value) => write!(f, "{}", (value * 1e4).round() / 1e4),
                None => write!(f, "{number}"),
            },
            Value::Object(entries) => {
                for (i, (name, value)) in entries.iter().enumerate() {
                    let separator = if i > 0 { ", " } else { "" };
                    write!(f, "{separator}{name} {}", Plain(value))?;
                }
                Ok(())
            }
            other => write!(f, "{other}"),
        }
    }
}
