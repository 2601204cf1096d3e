//! `setrank eval`.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use setrank::data::Dataset;
use setrank::data::letor::Labels;
use setrank::eval::{self, Metric, report, scores};

use super::metric_args::MetricArgs;
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
    text: TextArgs,
}

/// What ranks the documents.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Ranking {
    /// Model folder
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    /// File of scores, one a document line, higher = better
    #[arg(long, value_name = "FILE")]
    scores: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let conventions = args.conventions.conventions()?;
    let data = source::open(&args.data, &args.text, Labels::Required)?;
    let (scores, kept) = match (&args.ranking.model, &args.ranking.scores) {
        (Some(model), _) => model_scores(model, &data)?,
        (None, Some(file)) => (scores::read(file, &data)?, None),
        (None, None) => unreachable!("the group is required"),
    };
    let evaluation = eval::evaluate(&data, &scores, kept.as_deref(), &args.metrics, &conventions)?;
    if let Some(path) = &args.per_query {
        report::write_per_query(path, &data, &evaluation)?;
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

/// Scores `[N]` of the documents of `data` by `model`, and which of them it keeps for ranking (all = `None`).
fn model_scores(_model: &Path, _data: &Dataset) -> anyhow::Result<(Vec<f64>, Option<Vec<bool>>)> {
    anyhow::bail!("not there yet")
}
