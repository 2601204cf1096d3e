//! The command line: one file a command; exit code 0, 1 = bad input or failed run, 2 = usage.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// `eprintln!` that does not mind a closed or full stderr: a message is not worth a run.
macro_rules! tell {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}

mod ablate;
mod bench;
mod compare;
mod compute;
mod crossval;
mod demo;
mod devices;
mod eval;
mod export;
mod feature_names;
mod import;
mod importance;
mod info;
mod interrupt;
mod logger;
mod metric_args;
mod rank;
mod scoring;
mod source;
mod split;
mod synth;
mod train;

/// Train, evaluate and serve SetRank, a permutation-invariant ranking model over sets of documents.
#[derive(Parser)]
#[command(name = "setrank", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read LETOR text into a memory-mapped .sets file
    Import(import::Args),
    /// Write a .sets file as LETOR text
    Export(export::Args),
    /// Split a data set in two by query
    Split(split::Args),
    /// Make up a data set with a learnable signal
    Synth(synth::Args),
    /// Describe a data set or a model, or the devices of this machine
    Info(info::Args),
    /// Train a model
    Train(Box<train::Args>),
    /// Train and test on parts in rotating roles, with several seeds
    Crossval(Box<crossval::Args>),
    /// Evaluate a model or a file of scores
    Eval(eval::Args),
    /// Measure what each feature is worth to a model
    Importance(Box<importance::Args>),
    /// Score the documents of every query
    Rank(rank::Args),
    /// Test whether two rankings differ
    Compare(compare::Args),
    /// Measure how fast the model trains or scores on this machine
    Bench(Box<bench::Args>),
    /// Make data, train, evaluate: the whole line in a minute
    Demo(demo::Args),
}

pub fn main() -> ExitCode {
    logger::install();
    let command = Cli::parse().command;
    let outcome = interrupt::listen().and_then(|()| match command {
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::Split(args) => split::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Info(args) => info::run(args),
        Command::Train(args) => train::run(*args),
        Command::Crossval(args) => crossval::run(*args),
        Command::Eval(args) => eval::run(args),
        Command::Importance(args) => importance::run(*args),
        Command::Rank(args) => rank::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Demo(args) => demo::run(args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Errors of files have their names; what has none is the output's.
            let bare = error.is::<std::io::Error>() && error.chain().nth(1).is_none();
            let place = if bare { "cannot write the output: " } else { "" };
            tell!("error: {place}{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether whoever read our output has stopped reading, as `head` does: that is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
