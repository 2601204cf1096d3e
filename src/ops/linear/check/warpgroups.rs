//! Problems of wide layers by matrix instructions of warpgroups, on a device that has them.

use super::{InputFinish, Problem, Product, gradients_on};
use crate::device::choice::MatrixKernels;
use crate::device::{DeviceError, Gpu, choice};
use crate::ops::check::{Checked, SEED};
use crate::ops::linear::{Activation, BlockSize, Layout, LinearShape};

/// Products of each layout, of two blocks of columns, and of a step more than are on their way at once.
pub fn problems(rows: usize, seed: u64) -> [Problem; 5] {
    let finish = InputFinish::AddedAndMasked;
    [
        (Product::Forward(Activation::Relu), Layout::Heads { width: 32 }, [320, 512]),
        (Product::Forward(Activation::Identity), Layout::Rows, [320, 512]),
        (Product::Input(finish), Layout::Heads { width: 32 }, [512, 320]),
        (Product::Input(finish), Layout::Heads { width: 64 }, [512, 320]),
        (Product::Input(finish), Layout::Rows, [512, 320]),
    ]
    .map(|(product, layout, [inputs, outputs])| {
        let shape = LinearShape { rows, inputs, outputs };
        Problem::random(shape, layout, product, seed).by(BlockSize::Warpgroups)
    })
}

/// Layers whose parameters' gradients one launch computes: of each layout, of blocks that sum up a bias's and of some that do not.
pub fn group(rows: [usize; 3], seed: u64) -> [Problem; 3] {
    let [a, b, c] = rows;
    [
        (LinearShape { rows: a, inputs: 256, outputs: 256 }, Layout::Heads { width: 32 }),
        (LinearShape { rows: b, inputs: 512, outputs: 256 }, Layout::Heads { width: 64 }),
        (LinearShape { rows: c, inputs: 256, outputs: 512 }, Layout::Rows),
    ]
    .map(|(shape, layout)| Problem::random(shape, layout, Product::Weights, seed + shape.inputs as u64))
}

/// Runs layers on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    where_there_are_some(gpu, 300, [300, 1, 70])
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    where_there_are_some(gpu, rows, [rows; 3])
}

fn where_there_are_some(gpu: &Gpu, rows: usize, of_group: [usize; 3]) -> Result<Vec<Checked>, DeviceError> {
    if choice::check_wgmma(gpu.info()).is_err() {
        return Ok(Vec::new());
    }
    let mut checked = Vec::new();
    for problem in problems(rows, SEED) {
        checked.extend(problem.check(&problem.solve(gpu)?, "linear layer by wgmma"));
    }
    let problems = group(of_group, SEED);
    for (problem, found) in problems.iter().zip(gradients_on(gpu, MatrixKernels::Wgmma, problems.each_ref())?)
    {
        checked.extend(problem.check(&found, "one of several linear layers by wgmma"));
    }
    Ok(checked)
}
