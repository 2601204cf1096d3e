//! `setrank split`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use setrank::data::letor::Labels;
use setrank::data::subset::{split_queries, write_subset};

use super::source::{self, TextArgs};

/// Arguments of `setrank split`.
#[derive(clap::Args)]
pub struct Args {
    /// A .sets file, or LETOR text
    path: PathBuf,

    /// Share of the queries that goes to PREFIX.valid.sets; the others go to PREFIX.train.sets
    #[arg(long, value_name = "SHARE", default_value_t = 0.125)]
    valid: f64,

    /// Seed of the random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Beginning of the names of both files [default: PATH without its extension]
    #[arg(short, long, value_name = "PREFIX")]
    output: Option<PathBuf>,

    #[command(flatten)]
    text: TextArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let prefix = match args.output {
        Some(prefix) => prefix,
        None if args.path == Path::new("-") => anyhow::bail!("stdin has no name to build on: give -o PREFIX"),
        None => args.path.with_extension(""),
    };
    let [train_path, valid_path] = [".train.sets", ".valid.sets"].map(|side| {
        let mut name = OsString::from(&prefix);
        name.push(side);
        PathBuf::from(name)
    });
    for path in [&train_path, &valid_path] {
        source::refuse_to_overwrite([&args.path], path)?;
    }
    let data = source::open(std::slice::from_ref(&args.path), &args.text, Labels::Optional)?;
    let (train, valid) = split_queries(data.num_queries(), args.valid, args.seed)
        .with_context(|| format!("cannot split {}", args.path.display()))?;
    for (queries, path) in [(train, train_path), (valid, valid_path)] {
        write_subset(&data, &queries, &path)?;
        tell!("{}: {} queries", path.display(), queries.len());
    }
    Ok(())
}
