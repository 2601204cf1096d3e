//! `setrank import`.

use std::path::PathBuf;

use setrank::data::letor::{self, Labels};
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
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

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
    ComputeArgs { threads: args.threads, device: None }.set_up()?;
    if source::store_among(&args.inputs)?.is_some() {
        let mut data = source::open(&args.inputs, &args.text, Labels::Optional)?;
        let sources = initial::InitialSources { files: args.init, features: Vec::new() };
        initial::attach(&mut data, &sources)?;
        store::write(&data, &args.output)?;
    } else {
        source::refuse_same_file(&args.inputs, &args.output)?;
        let options = args.text.letor_options(Labels::Optional);
        let progress = Progress::new(&args.inputs).stopping_at_signals();
        letor::import(&args.inputs, &options, &args.output, &args.init, &|bytes| progress.at(bytes))?;
    }
    Ok(())
}
