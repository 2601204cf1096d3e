//! `setrank import`.

use std::path::PathBuf;

use setrank::data::letor::{self, Counts, Labels};
use setrank::data::{initial, store};

use super::compute::{self, ComputeArgs};
use super::source::{self, Progress, TextArgs};

/// Arguments of `setrank import`.
#[derive(clap::Args)]
pub struct Args {
    /// LETOR text files, read as if they were one; `.gz` and `.zst` are decompressed, `-` is stdin. Or one
    /// .sets file, to be written again with other initial rankings
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,

    /// The .sets file to write
    #[arg(short, long, value_name = "FILE", required_unless_present = "check")]
    output: Option<PathBuf>,

    /// Only read the text, with all warnings and errors, and say how much it holds
    #[arg(long, conflicts_with_all = ["output", "init"])]
    check: bool,

    /// Scores of an initial ranking to store, one a document line, higher = better, NULL = not in the ranking;
    /// may be repeated
    #[arg(long, value_name = "FILE")]
    init: Vec<PathBuf>,

    /// Threads; what is read does not depend on it [default: one a core]
    #[arg(long, value_name = "N", value_parser = compute::thread_count())]
    threads: Option<u16>,

    #[command(flatten)]
    text: TextArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    ComputeArgs { threads: args.threads, ..ComputeArgs::default() }.set_up()?;
    let from_store = source::store_among(&args.inputs)?.is_some();
    let Some(output) = args.output else {
        anyhow::ensure!(!from_store, "--check reads text; a .sets file is checked whenever it is opened");
        return check(&args.inputs, &args.text);
    };
    // A store may be written again in its own place: it is mapped, and replaced as a whole.
    let inputs = if from_store { &[] } else { &args.inputs[..] };
    source::refuse_to_overwrite(inputs.iter().chain(&args.init), &output)?;
    if from_store {
        let mut data = source::open(&args.inputs, &args.text, Labels::Optional)?;
        let sources = initial::InitialSources { files: args.init, features: Vec::new() };
        initial::attach(&mut data, &sources)?;
        store::write(&data, &output)?;
    } else {
        let options = args.text.letor_options(Labels::Optional);
        let progress = Progress::new(&args.inputs).stopping_at_signals();
        letor::import(&args.inputs, &options, &output, &args.init, &|bytes| progress.at(bytes))?;
    }
    Ok(())
}

fn check(inputs: &[PathBuf], text: &TextArgs) -> anyhow::Result<()> {
    let progress = Progress::new(inputs).stopping_at_signals();
    let options = text.letor_options(Labels::Optional);
    let Counts { queries, documents, features } =
        letor::check(inputs, &options, &|bytes| progress.at(bytes))?;
    drop(progress);
    println!("{queries} queries, {documents} documents, {features} features");
    Ok(())
}
