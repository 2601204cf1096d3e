//! `setrank eval`.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::bail;
use setrank::data::letor::Labels;
use setrank::eval::{self, Ideal, Metric, report, scores};

use super::compute::ComputeArgs;
use super::metric_args::{MetricArgs, distinct};
use super::scoring::{self, InitialArgs};
use super::source::{self, TextArgs};

/// Arguments of `setrank eval`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    ranking: Ranking,

    /// Judged data: LETOR text files, read as if they were one, or one .sets file
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Metrics: ndcg, err, map, mrr, each also with a cutoff as in ndcg@10, and p@k
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "ndcg@1,ndcg@5,ndcg@10")]
    metrics: Vec<Metric>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Also write the metrics of every query, tab-separated
    #[arg(long, value_name = "FILE")]
    per_query: Option<PathBuf>,

    #[command(flatten)]
    conventions: MetricArgs,

    #[command(flatten)]
    initial: InitialArgs,

    #[command(flatten)]
    text: TextArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

/// What ranks the documents.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct Ranking {
    /// Model folder; given several times, the mean of the models' scores ranks, standardised within each set
    #[arg(long, value_name = "DIR", conflicts_with = "scores")]
    model: Vec<PathBuf>,

    /// File of scores, one a document line, higher = better: nothing is computed
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["device", "kernels", "fuse", "graphs", "max_set_size"]
    )]
    scores: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if args.per_query.as_deref() == Some(Path::new("-")) {
        bail!("--per-query: give a file, stdout is for the metrics");
    }
    if let Some(output) = &args.per_query {
        let inputs = args.ranking.model.iter().chain(&args.ranking.scores);
        source::refuse_to_overwrite(inputs.chain(&args.data).chain(&args.initial.init), output)?;
    }
    let conventions = args.conventions.conventions()?;
    args.compute.set_up()?;
    let (data, scores, kept) = match &args.ranking.scores {
        Some(file) => {
            let mut data = source::open(&args.data, &args.text, Labels::Required)?;
            args.initial.attach(&mut data)?;
            let scores = scores::read(file, &data)?;
            let kept = args.initial.kept(&data)?;
            (data, scores, kept)
        }
        None => {
            let (models, asked) = (&args.ranking.model, args.compute.asked());
            let scored =
                scoring::score(models, &args.data, &args.text, &args.initial, Labels::Required, asked)?;
            (scored.data, scored.scores.into_iter().map(f64::from).collect(), scored.kept)
        }
    };
    if !data.has_judged() {
        bail!("no document is judged: there is nothing to evaluate against (see --label-offset)");
    }
    // Documents that were not reranked stand below the others; only the ideal ranking may leave them out.
    let kept = kept.filter(|_| conventions.ideal == Ideal::List);
    let evaluation = eval::evaluate(&data, &scores, kept.as_deref(), &distinct(args.metrics), &conventions)?;
    if let Some(path) = &args.per_query {
        report::write_per_query(path, &data, &evaluation)?;
    }
    if !data.has_relevant() {
        log::warn!("no document is relevant: no label is above 0 (see --label-offset)");
    }
    let report = report::Report::new(&evaluation, &conventions);
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{} queries\n\n{report}", report.queries)?;
    }
    Ok(())
}
