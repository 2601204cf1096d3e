//! Attention by matrix instructions of warpgroups, on a device that has them.

use super::{BackwardProblem, Problem};
use crate::device::{DeviceError, Gpu, choice};
use crate::ops::attention::{Heads, Roles};
use crate::ops::check::{Checked, SEED};

/// Runs it on the device and holds it against the CPU: sets that fill chunks of keys and that do not, of several passes, and
/// small ones, which other kernels take; in backward fewer, since the CPU takes longest for them.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_sizes(gpu, &[1, 128, 90, 200, 40], &[152, 40], |_, _| true)
}

/// The same for a set of so many documents, and one that warpgroups take in any case; in backward of one kernel for each width
/// of heads.
pub fn run_at(gpu: &Gpu, documents: usize) -> Result<Vec<Checked>, DeviceError> {
    of_sizes(gpu, &[documents, 100], &[documents, 112], |width, dropout| (width == 32) == (dropout > 0.0))
}

/// Backward is of the widths and rates for which `has_backward`.
fn of_sizes(
    gpu: &Gpu,
    forward: &[usize],
    backward: &[usize],
    has_backward: impl Fn(usize, f64) -> bool,
) -> Result<Vec<Checked>, DeviceError> {
    if choice::check_wgmma(gpu.info()).is_err() {
        return Ok(Vec::new());
    }
    let mut checked = Vec::new();
    for width in [32, 64] {
        for dropout in [0.0, 0.2] {
            let problem = |sizes| {
                let problem = Problem::random(Roles::Documents, sizes, Heads { count: 2, width }, SEED);
                problem.with_dropout(dropout).with_wgmma()
            };
            let what = format!("wgmma, head width {width}, dropout {dropout}");
            checked.extend(problem(forward).hold(gpu, &what)?);
            if has_backward(width, dropout) {
                let backward = BackwardProblem::new(problem(backward), width == 64, SEED + 1);
                checked.extend(backward.hold(gpu, &what)?);
            }
        }
    }
    Ok(checked)
}
