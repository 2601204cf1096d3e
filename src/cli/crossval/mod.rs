//! `setrank crossval`.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::bail;
use clap::value_parser;
use serde_json::json;
use setrank::eval::report::describe;
use setrank::eval::{Conventions, EmptyQueries, Metric};
use setrank::train::TrainConfig;
use setrank::train::crossval::{Fold, FoldScores, Summary, protocol};

use self::parts::Parts;
use self::runs::{Plan, Run};
use super::metric_args::distinct;
use super::train::flags::Flags;
use super::{compute, train};

mod parts;
mod record;
mod runs;

/// Keys of a training run that cross-validation decides itself.
const DECIDED_HERE: [(&str, &str); 9] = [
    ("train", "the parts are trained on in turn"),
    ("valid", "the parts are validated on in turn"),
    ("query_sizes", "import the text with it first"),
    ("valid_query_sizes", "import the text with it first"),
    ("init", "import the parts with it first, or give --init-feature"),
    ("valid_init", "import the parts with --init first, or give --init-feature"),
    ("from", "a model that has seen the parts already would be measured on what it knows"),
    ("seed", "give --seeds, the number of seeds from 1"),
    ("max_seconds", "what a fold gives is not to depend on the machine; give --epochs or --max-steps"),
];

/// Most seeds of a fold, and most runs side by side.
const MOST: i64 = 1000;

/// Arguments of `setrank crossval`.
#[derive(clap::Args)]
#[command(mut_args(|flag| {
    let is_decided = DECIDED_HERE.iter().any(|&(key, _)| flag.get_id() == key);
    if is_decided { flag.hide(true) } else { flag }
}))]
pub struct Args {
    /// The parts, at least 3, each LETOR text or a .sets file. Fold k trains on the parts from k, validates on the last
    /// but one and tests on the last, counted round: with five, fold 1 trains on 1, 2, 3, validates on 4, tests on 5
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,

    /// Folder for the models and results of all runs; those that it holds already are not done again
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// TOML file with values for any of the flags of a training run; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Replace the runs in the folder
    #[arg(long)]
    overwrite: bool,

    /// Only these folds, such as 1,2 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    folds: Vec<usize>,

    /// Models of each fold: the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=MOST))]
    seeds: u32,

    /// Runs side by side, which share the threads; small models gain from it
    #[arg(long, value_name = "J", default_value_t = 1, value_parser = value_parser!(u32).range(1..=MOST))]
    jobs: u32,

    /// Report validation only, for choosing between configurations: no model is evaluated on its fold's test part;
    /// with --folds, parts that are only tested on are not opened
    #[arg(long)]
    validation_only: bool,

    /// Metrics: ndcg, err, map, mrr, each also with a cutoff as in ndcg@10, and p@k
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "ndcg@1,ndcg@3,ndcg@5,ndcg@10")]
    metrics: Vec<Metric>,

    /// What a query without a relevant document counts as
    #[arg(long, value_name = "AS", default_value = "skip")]
    empty_queries: EmptyQueries,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    flags: Flags,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let layers = train::given_layers(args.config.as_deref(), &args.flags)?;
    for (key, reason) in DECIDED_HERE {
        if layers.iter().any(|layer| layer.contains_key(key)) {
            bail!("`{key}` has no place in a cross-validation: {reason}");
        }
    }
    let config = TrainConfig::from_layers(&layers)?;
    let folds = chosen_folds(args.parts.len(), &args.folds)?;
    compute::set_up(config.threads, config.asked())?;
    let metrics = distinct(args.metrics);
    let conventions =
        Conventions { empty_queries: args.empty_queries, gain: config.gain, ..Conventions::default() };

    if args.output.exists() && !args.output.is_dir() {
        bail!("{} is a file: -o takes a folder", args.output.display());
    }
    let parts = Parts::open(&args.parts, &folds, &config, !args.validation_only)?;
    parts.check(&folds, &config, &metrics, &conventions)?;
    let parts = parts.into_data();
    record::check(&args.output, &config, &args.parts, args.overwrite)?;
    std::fs::create_dir_all(&args.output).map_err(|e| setrank::Error::io("create", &args.output, e))?;
    let _lock = train::lock(&args.output)?;
    record::write(&args.output, &config, &args.parts, args.overwrite)?;

    let seeds = u64::from(args.seeds);
    let plan = Plan {
        config: &config,
        parts: &parts,
        folder: &args.output,
        runs: folds.iter().flat_map(|fold| (1..=seeds).map(move |seed| Run { fold, seed })).collect(),
        test: !args.validation_only,
    };
    let done = runs::all(&plan, args.jobs as usize)?;
    let summary = |test: bool| -> anyhow::Result<Summary> {
        let of_folds = folds.iter().zip(done.chunks(seeds as usize)).map(|(fold, done)| FoldScores {
            fold: fold.number,
            data: parts[if test { fold.test } else { fold.valid }].as_ref().expect("opened"),
            seeds: done.iter().map(|run| if test { &run.test } else { &run.valid }.scores.clone()).collect(),
            kept: if test { &done[0].test } else { &done[0].valid }.kept.clone(),
        });
        Ok(Summary::new(&of_folds.collect::<Vec<_>>(), &metrics, &conventions)?)
    };
    let valid = summary(false)?;
    let test = (!args.validation_only).then(|| summary(true)).transpose()?;
    let seconds: f64 = done.iter().map(|run| run.record.seconds).sum();
    let mut out = stdout().lock();
    if args.json {
        let runs: Vec<&record::Record> = done.iter().map(|run| &run.record).collect();
        let report = json!({
            "empty_queries": conventions.empty_queries,
            "seeds": seeds,
            "seconds": seconds,
            "runs": runs,
            "validation": valid,
            "test": test,
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(
        out,
        "{} folds, {seeds} seed(s), {seconds:.0} s of training; mean ± standard error over queries ({})",
        folds.len(),
        describe(metrics[0], &conventions)
    )?;
    writeln!(out, "\nvalidation\n{valid}")?;
    if let Some(test) = test {
        writeln!(out, "test\n{test}")?;
    }
    Ok(())
}

/// The folds asked for, all unless any is named.
fn chosen_folds(parts: usize, asked: &[usize]) -> anyhow::Result<Vec<Fold>> {
    let folds = protocol::folds(parts)?;
    if let Some(wrong) = asked.iter().find(|&&number| number == 0 || number > folds.len()) {
        bail!("--folds {wrong}: with {parts} parts there are the folds 1 to {}", folds.len());
    }
    Ok(folds.into_iter().filter(|fold| asked.is_empty() || asked.contains(&fold.number)).collect())
}
