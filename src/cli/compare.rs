//! `setrank compare`.

use std::io::{Write, stdout};
use std::path::PathBuf;

use setrank::data::letor::Labels;
use setrank::eval::comparison::Comparison;
use setrank::eval::{self, Metric, scores};

use super::metric_args::{MetricArgs, distinct};
use super::source::{self, TextArgs};

/// Arguments of `setrank compare`.
#[derive(clap::Args)]
pub struct Args {
    /// Scores of ranking A, the baseline, one a document line
    #[arg(value_name = "A")]
    a: PathBuf,

    /// Scores of ranking B
    #[arg(value_name = "B")]
    b: PathBuf,

    /// Judged data: LETOR text files, read as if they were one, or one .sets file
    #[arg(long, required = true, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Metrics: ndcg, err, map, mrr, each also with a cutoff as in ndcg@10, and p@k
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "ndcg@10")]
    metrics: Vec<Metric>,

    /// Seed of the randomisation test
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    conventions: MetricArgs,

    #[command(flatten)]
    text: TextArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let conventions = args.conventions.conventions()?;
    let data = source::open(&args.data, &args.text, Labels::Required)?;
    let metrics = distinct(args.metrics);
    let evaluate = |file| -> anyhow::Result<eval::Evaluation> {
        Ok(eval::evaluate(&data, &scores::read(file, &data)?, None, &metrics, &conventions)?)
    };
    let comparison = Comparison::new(&evaluate(&args.a)?, &evaluate(&args.b)?, &conventions, args.seed);
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&comparison)?)?;
    } else {
        writeln!(out, "A: {}\nB: {}", args.a.display(), args.b.display())?;
        write!(out, "{} queries\n\n{comparison}", comparison.queries)?;
    }
    Ok(())
}
