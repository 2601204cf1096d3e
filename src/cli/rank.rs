//! `setrank rank`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use setrank::data::Dataset;
use setrank::data::initial;
use setrank::data::letor::Labels;
use setrank::files::write_atomically;

use super::compute::ComputeArgs;
use super::scoring::{InitialArgs, Models};
use super::source::{self, TextArgs};

/// Arguments of `setrank rank`.
#[derive(clap::Args)]
pub struct Args {
    /// Model folder; given several times, the mean of the models' scores ranks, standardised within each set
    #[arg(long, required = true, value_name = "DIR")]
    model: Vec<PathBuf>,

    /// Documents to rank: a .sets file or LETOR text files, with or without labels; `-` is stdin
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,

    /// File to write [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// What to write: one score a document in the order of the original file, or a TREC run
    #[arg(long, default_value = "scores")]
    format: Format,

    /// Name of the run in the last column of a TREC run
    #[arg(long, value_name = "NAME", default_value = "setrank", value_parser = run_name)]
    tag: String,

    #[command(flatten)]
    initial: InitialArgs,

    #[command(flatten)]
    text: TextArgs,

    #[command(flatten)]
    compute: ComputeArgs,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// One score a line; reads back to the same 32-bit number.
    Scores,
    /// `qid Q0 docid rank score tag`, best first; docid from the `#docid =` comment, else qid-position.
    Trec,
}

fn run_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("a name without blanks is needed".into());
    }
    Ok(text.to_owned())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    args.compute.set_up()?;
    if let Some(output) = &args.output {
        let inputs = args.model.iter().chain(&args.data).chain(&args.initial.init);
        source::refuse_to_overwrite(inputs, output)?;
    }
    let models = Models::load(&args.model, &args.initial, args.compute.asked())?;
    let data = models.open(&args.data, &args.text, &args.initial, Labels::Optional)?;
    if args.output.is_none() && args.format == Format::Scores {
        let mut out = BufWriter::new(io::stdout().lock());
        if models.stream(&data, |scores| {
            scores.iter().try_for_each(|score| writeln!(out, "{score}"))?;
            out.flush()
        })? {
            return Ok(());
        }
    }
    let scores = models.score_with_progress(&data)?.0;
    let write = |out: &mut dyn Write| match args.format {
        Format::Scores => write_scores(out, &data, &scores),
        Format::Trec => write_trec(out, &data, &scores, &args.tag),
    };
    match &args.output {
        Some(path) => write_atomically(path, write)?,
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(&mut out)?;
            out.flush()?;
        }
    }
    Ok(())
}

fn write_scores(out: &mut dyn Write, data: &Dataset, scores: &[f32]) -> io::Result<()> {
    data.in_original_order(scores).iter().try_for_each(|score| writeln!(out, "{score}"))
}

fn write_trec(out: &mut dyn Write, data: &Dataset, scores: &[f32], tag: &str) -> io::Result<()> {
    for query in data.queries() {
        let scores = &scores[query.rows()];
        for (rank, document) in initial::order(scores).into_iter().enumerate() {
            let id = query.id();
            let score = scores[document];
            let rank = rank + 1;
            match query.document_id(document) {
                "" => writeln!(out, "{id} Q0 {id}-{} {rank} {score} {tag}", document + 1)?,
                name => writeln!(out, "{id} Q0 {name} {rank} {score} {tag}")?,
            }
        }
    }
    Ok(())
}
