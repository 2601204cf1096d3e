//! `setrank importance`.

use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::value_parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use setrank::data::letor::Labels;
use setrank::eval::importance::{Importance, MAX_REPEATS, importance, write_svg};
use setrank::eval::report::{describe, figure};
use setrank::eval::{Metric, Summary};

use super::compute::ComputeArgs;
use super::feature_names::FeatureNames;
use super::metric_args::MetricArgs;
use super::scoring::{InitialArgs, Models};
use super::source::{self, TextArgs};

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
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=MAX_REPEATS as i64))]
    repeats: u32,

    /// Seed of the permutations
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// Names of the features: a line each in their order, or lines of index, tab and name, which a line
    /// "index", tab, "name" may head
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
    if let Some(output) = &args.svg {
        let inputs = args.model.iter().chain(&args.names);
        source::refuse_to_overwrite(inputs.chain(&args.data).chain(&args.initial.init), output)?;
    }
    let conventions = args.conventions.conventions()?;
    args.compute.set_up()?;
    let models = Models::load(&args.model, &args.initial, args.compute.asked())?;
    let data = models.open(&args.data, &args.text, &args.initial, Labels::Required)?;
    let columns = data.columns();
    let names = args.names.as_deref().map(|path| FeatureNames::read(path, columns)).transpose()?;
    let name = |feature: u32| {
        let name = names.as_ref().and_then(|names| names.of(feature));
        name.map_or_else(|| feature.to_string(), str::to_owned)
    };
    let total = 1 + 2 * u64::from(columns.count) * u64::from(args.repeats);
    let bar = ProgressBar::new(total).with_style(
        ProgressStyle::with_template("permutation {pos} of {len} {wide_bar} {eta} left")
            .expect("a valid template"),
    );
    let importances = importance(
        &data,
        |data| Ok(models.score(data, |_| {})?.0),
        args.metric,
        &conventions,
        args.repeats as usize,
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
