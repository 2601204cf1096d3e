//! Checks of a GPU, one a process: a fault poisons the context that it happened in.
//!
//! | file | what |
//! |---|---|
//! | `checks.rs` | the list of all checks |
//! | `micro.rs`, `vectors/` | micro-kernels with fixed vectors |
//! | `families.rs` | each family of kernels, held against the processor |
//! | `step.rs` | a step of training, twice |
//! | `graphs.rs` | steps of training as graphs, and launch by launch |
//! | `counted.rs` | launches for Nsight Compute to count |
//! | `outcome.rs`, `mismatch.rs` | what a check found, as JSON |

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::json;
use setrank::device::Gpu;

mod checks;
mod counted;
mod families;
mod graphs;
mod micro;
mod mismatch;
mod outcome;
mod step;
#[allow(dead_code, reason = "build.rs uses the rest of it")]
mod vectors;

use outcome::Outcome;

/// Checks setrank's kernels on GPU 0, one check a process
#[derive(Parser)]
#[command(name = "setrank-gpu-check", version)]
enum Command {
    /// Print what the driver says of the GPU, as a line of JSON
    Device,
    /// Print the names of all checks, in the order in which they are of use
    List {
        /// The launches instead whose counters are known of the emulator: name, kernel, sizes
        #[arg(long)]
        counted: bool,
    },
    /// Run one check; print what it found as a line of JSON
    Run {
        /// Its name
        name: String,
        /// Sizes for an emulator instead of those of a card
        #[arg(long)]
        small: bool,
    },
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match command {
        Command::Device => {
            let gpu = Gpu::new(0)?;
            let (info, (free, total)) = (gpu.info(), gpu.memory()?);
            let report = json!({
                "name": info.name,
                "compute_capability": format!("{}.{}", info.capability.0, info.capability.1),
                "memory_bytes": total,
                "free_bytes": free,
                "multiprocessors": info.multiprocessors,
                "shared_bytes_per_block": info.shared_per_block,
            });
            writeln!(out, "{report}")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::List { counted } => {
            if counted {
                for counted in counted::ALL {
                    writeln!(out, "{} {} {}", counted.name(), counted.kernel, counted.shape)?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            for check in checks::all() {
                writeln!(out, "{}", check.name)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Run { name, small } => {
            let check = checks::named(&name)?;
            let started = Instant::now();
            let outcome = (check.run)(small).unwrap_or_else(|error| Outcome::Error(format!("{error:#}")));
            let report = outcome.to_json(&name, started.elapsed());
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
            Ok(outcome.exit_code())
        }
    }
}
