//! `setrank importance`.

use std::io::{Write, stdout};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use setrank::data::letor::Labels;
use setrank::eval::importance::{Importance, importance, write_svg};
use setrank::eval::report::{describe, figure};
use setrank::eval::{Metric, Summary};

use super::compute::ComputeArgs;
use super::metric_args::MetricArgs;
use super::scoring::{InitialArgs, Models};
use super::source::TextArgs;

/// Arguments of `setrank importance`.
#[derive(clap::Args)]
pub struct Args {
    /// Model folder; given several times, the mean of the models' scores ranks, standardised within each set
    #[arg(long, required = true, value_name = "DIR")]
    model: Vec<PathBuf>,

    /// Judged data that was not trained on: LETOR text files, read as if they were one, or one .sets file
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,

    /// The metric whose drop tells the importance
    #[arg(long, default_value = "ndcg@10")]
    metric: Metric,

    /// How often each feature is permuted
    #[arg(long, value_name = "N", default_value = "5")]
    repeats: NonZeroUsize,

    /// Seed of the permutations
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// Names of the features: a line each in their order, or lines of index, tab and name
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Also draw the most important features as bars
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    conventions: MetricArgs,

    #[command(flatten)]
    initial: InitialArgs,

    #[command(flatten)]
    text: TextArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let conventions = args.conventions.conventions()?;
    args.compute.set_up()?;
    let models = Models::load(&args.model, &args.initial)?;
    let data = models.open(&args.data, &args.text, &args.initial, Labels::Required)?;
    let names = args.names.as_deref().map(read_names).transpose()?;
    let first = data.columns().first_index;
    let name = |feature: u32| match &names {
        None => feature.to_string(),
        Some(names) => names.of(feature, first).unwrap_or_else(|| feature.to_string()),
    };
    let total = 1 + 2 * data.num_features() * args.repeats.get();
    let bar = ProgressBar::new(total as u64).with_style(
        ProgressStyle::with_template("permutation {pos} of {len} {wide_bar} {eta} left")
            .expect("a valid template"),
    );
    let importances = importance(
        &data,
        |data| Ok(models.score(data, |_| {})?.0),
        args.metric,
        &conventions,
        args.repeats.get(),
        args.seed,
        |done| bar.set_position(done as u64),
    )?;
    bar.finish_and_clear();
    let names: Vec<String> = importances.iter().map(|importance| name(importance.feature)).collect();
    if let Some(path) = &args.svg {
        write_svg(path, &importances, &names, &args.metric.to_string())?;
    }
    let mut out = stdout().lock();
    if args.json {
        let features: Vec<serde_json::Value> = importances
            .iter()
            .zip(&names)
            .map(|(Importance { feature, within_set, across_sets }, name)| {
                json!({"feature": feature, "name": name, "within_set": within_set, "across_sets": across_sets})
            })
            .collect();
        let report = json!({
            "metric": args.metric.to_string(),
            "repeats": args.repeats,
            "seed": args.seed,
            "features": features,
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(
        out,
        "Drop of {} without the feature, mean and standard error over queries ({})\n",
        args.metric,
        describe(args.metric, &conventions)
    )?;
    writeln!(out, "{:>17} {:>17}  feature", "within sets", "across sets")?;
    let cell = |summary: &Summary| format!("{} ± {}", figure(summary.mean, 0), figure(summary.std_error, 0));
    for (importance, name) in importances.iter().zip(&names) {
        writeln!(out, "{:>17} {:>17}  {name}", cell(&importance.within_set), cell(&importance.across_sets))?;
    }
    Ok(())
}

/// Names of features.
enum Names {
    /// One a line, in the order of the features.
    InOrder(Vec<String>),
    /// By raw index.
    ByIndex(std::collections::BTreeMap<u32, String>),
}

impl Names {
    /// The name of a feature, where it has one; `first` is the raw index of the first.
    fn of(&self, feature: u32, first: u32) -> Option<String> {
        match self {
            Names::InOrder(names) => names.get((feature - first) as usize).cloned(),
            Names::ByIndex(names) => names.get(&feature).cloned(),
        }
    }
}

/// Reads names: with tabs as lines of index and name, of which further columns and a heading are passed over, else one a
/// line.
fn read_names(path: &Path) -> anyhow::Result<Names> {
    let text = std::fs::read_to_string(path).map_err(|e| setrank::Error::io("read", path, e))?;
    if !text.contains('\t') {
        return Ok(Names::InOrder(text.lines().map(|line| line.trim().to_owned()).collect()));
    }
    let mut names = std::collections::BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut fields = line.split('\t');
        let (index, name) = (fields.next().unwrap_or_default().trim(), fields.next());
        match (index.parse(), name) {
            (Ok(index), Some(name)) => {
                names.insert(index, name.trim().to_owned());
            }
            _ if number == 0 => {}
            _ => bail!("{}:{}: expected a feature index, a tab and a name", path.display(), number + 1),
        }
    }
    Ok(Names::ByIndex(names))
}
