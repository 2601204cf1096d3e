//! Ctrl-C and its kin: a command that can stop by itself is asked to, any other ends here, and no temporary file
//! stays behind either way.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use setrank::files;

/// Exit code of an interrupted command, as shells have it.
const INTERRUPTED: i32 = 130;

/// Set where the command looks at [`ASKED`] and stops by itself.
static COOPERATIVE: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// Listens to signals for the rest of the process.
pub fn listen() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        // Who asks twice does not want to wait.
        if !COOPERATIVE.load(Ordering::Relaxed) || ASKED.swap(true, Ordering::Relaxed) {
            files::remove_temporaries();
            exit(INTERRUPTED);
        }
    })
    .context("cannot listen to Ctrl-C")
}

/// From here on the command looks at the flag that is returned, and stops by itself once it is set.
pub fn cooperate() -> &'static AtomicBool {
    COOPERATIVE.store(true, Ordering::Relaxed);
    &ASKED
}
