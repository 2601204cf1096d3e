//! `setrank synth`.

use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};

use setrank::data::synth::{Generator, Like};
use setrank::files::write_atomically;

/// Arguments of `setrank synth`.
#[derive(clap::Args)]
pub struct Args {
    /// The public data set to resemble in its sizes, labels and features
    #[arg(long)]
    like: Like,

    /// Number of queries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    queries: u32,

    /// Seed; data sets of different seeds are different samples of one distribution
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// File to write: a store if its name ends in .sets, else LETOR text; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Most documents of a query [default: 500; 139 like Yahoo's]
    #[arg(long, value_name = "M")]
    max_docs: Option<usize>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let generator = Generator::new(args.like, args.seed, args.max_docs)?;
    if args.output.extension().is_some_and(|extension| extension == "sets") {
        generator.write_store(args.queries as usize, &args.output)?;
    } else if args.output == Path::new("-") {
        let mut out = BufWriter::with_capacity(1 << 20, stdout().lock());
        generator.write_text(args.queries as usize, &mut out)?;
        out.flush()?;
    } else {
        write_atomically(&args.output, |out| generator.write_text(args.queries as usize, out))?;
    }
    Ok(())
}
