//! The `setrank` command.

use std::process::ExitCode;

mod cli;

/// Counts allocations, for `setrank bench`.
#[global_allocator]
static ALLOCATOR: setrank::bench::allocations::Counting = setrank::bench::allocations::Counting;

fn main() -> ExitCode {
    cli::main()
}
