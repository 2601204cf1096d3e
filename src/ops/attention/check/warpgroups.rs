//! Forward by matrix instructions of warpgroups, on a device that has them.

use super::Problem;
use crate::device::check::{Checked, SEED};
use crate::device::{DeviceError, Gpu, choice};
use crate::ops::attention::{Heads, Roles};

/// Runs it on the device and holds it against the CPU: sets that fill chunks of keys and that do not, of several passes, and
/// small ones, which other kernels take.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_sizes(gpu, &[1, 128, 90, 200, 40])
}

/// The same for a set of so many documents, and one that warpgroups take in any case.
pub fn run_at(gpu: &Gpu, documents: usize) -> Result<Vec<Checked>, DeviceError> {
    of_sizes(gpu, &[documents, 100])
}

fn of_sizes(gpu: &Gpu, sizes: &[usize]) -> Result<Vec<Checked>, DeviceError> {
    if choice::check_wgmma(gpu.info()).is_err() {
        return Ok(Vec::new());
    }
    let mut checked = Vec::new();
    for width in [32, 64] {
        for dropout in [0.0, 0.2] {
            let problem = Problem::random(Roles::Documents, sizes, Heads { count: 2, width }, SEED);
            let problem = problem.with_dropout(dropout).with_wgmma();
            checked.extend(problem.hold(gpu, &format!("wgmma, head width {width}, dropout {dropout}"))?);
        }
    }
    Ok(checked)
}
