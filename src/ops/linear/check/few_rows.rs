//! Problems of a layer's forward by blocks of few rows.

use super::{Problem, Product};
use crate::device::check::{Checked, SEED};
use crate::device::{DeviceError, Gpu};
use crate::ops::linear::{Activation, BlockSize, Layout, LinearShape};

/// Both kernels, each with another activation and layout, of more steps than are on their way at once, the last of which is where results will be.
pub fn problems(rows: usize, seed: u64) -> [Problem; 2] {
    [
        (BlockSize::Few, Activation::Relu, Layout::Heads { width: 32 }, 320),
        (BlockSize::Fewest, Activation::Identity, Layout::Rows, 320),
    ]
    .map(|(blocks, activation, layout, inputs)| {
        let shape = LinearShape { rows, inputs, outputs: 192 };
        Problem::random(shape, layout, Product::Forward(activation), seed).by(blocks)
    })
}

/// Runs layers on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    run_at(gpu, 45)
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for problem in problems(rows, SEED) {
        let what = format!("linear layer by blocks of {} rows", problem.blocks.rows());
        checked.extend(problem.check(&problem.solve(gpu)?, &what));
    }
    Ok(checked)
}
