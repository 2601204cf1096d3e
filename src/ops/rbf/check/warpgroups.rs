//! Problems of the rbf input by matrix instructions of warpgroups, on a device that has them.

use super::{PRODUCTS, Problem, Product, of_problems};
use crate::device::{DeviceError, Gpu, choice};
use crate::ops::check::{Checked, SEED};
use crate::ops::rbf::{RbfBlocks, RbfShape};

/// Of two blocks of outputs and several of columns, the last of which have less, and more steps than are on their way at once; of
/// pairs of columns that are of two features, and of features that have fewer columns than a lane goes on by.
pub fn problems(rows: usize, product: Product, seed: u64) -> [Problem; 2] {
    [
        RbfShape { rows, features: 7, stride: 64, centers: 47, outputs: 512 },
        RbfShape { rows, features: 90, stride: 128, centers: 3, outputs: 512 },
    ]
    .map(|shape| Problem::random(shape, product, seed).by(RbfBlocks::Warpgroups))
}

/// Runs rbf inputs on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    run_at(gpu, 300)
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    if choice::check_wgmma(gpu.info()).is_err() {
        return Ok(Vec::new());
    }
    let problems = PRODUCTS.into_iter().flat_map(|product| problems(rows, product, SEED));
    of_problems(gpu, problems, "rbf input by wgmma")
}
