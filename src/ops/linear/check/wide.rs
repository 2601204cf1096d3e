//! Problems of layers by large blocks.

use super::{InputFinish, Problem, Product, gradients_on};
use crate::device::choice::MatrixKernels;
use crate::device::{DeviceError, Gpu};
use crate::ops::check::{Checked, SEED};
use crate::ops::linear::{Activation, BlockSize, Layout, LinearShape};

/// Products by each kernel, of two blocks of rows, and two and three steps.
pub fn problems(rows: usize, seed: u64) -> [Problem; 4] {
    let [by_heads, by_rows] = gradients_of_input(rows, InputFinish::AddedAndMasked, seed);
    [
        of(rows, Product::Forward(Activation::Relu), Layout::Heads { width: 32 }, [128, 512], seed),
        of(rows, Product::Forward(Activation::Identity), Layout::Rows, [192, 256], seed),
        by_heads,
        by_rows,
    ]
}

/// Gradients of the input of layers of each layout, finished so.
fn gradients_of_input(rows: usize, finish: InputFinish, seed: u64) -> [Problem; 2] {
    [(Layout::Heads { width: 64 }, [256, 128]), (Layout::Rows, [512, 192])]
        .map(|(layout, widths)| of(rows, Product::Input(finish), layout, widths, seed))
}

fn of(rows: usize, product: Product, layout: Layout, [inputs, outputs]: [usize; 2], seed: u64) -> Problem {
    let shape = LinearShape { rows, inputs, outputs };
    Problem::random(shape, layout, product, seed).by(BlockSize::Wide)
}

/// Layers whose parameters' gradients one launch computes.
pub fn group(rows: [usize; 3], seed: u64) -> [Problem; 3] {
    let [a, b, c] = rows;
    [
        (LinearShape { rows: a, inputs: 128, outputs: 256 }, Layout::Rows),
        (LinearShape { rows: b, inputs: 256, outputs: 256 }, Layout::Heads { width: 32 }),
        (LinearShape { rows: c, inputs: 128, outputs: 512 }, Layout::Heads { width: 64 }),
    ]
    .map(|(shape, layout)| Problem::random(shape, layout, Product::Weights, seed + shape.outputs as u64))
}

/// Runs layers on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_rows(gpu, 150, [300, 1, 70])
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    of_rows(gpu, rows, [rows; 3])
}

fn of_rows(gpu: &Gpu, rows: usize, of_group: [usize; 3]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    let added = gradients_of_input(rows, InputFinish::Added, SEED);
    for problem in problems(rows, SEED).into_iter().chain(added) {
        checked.extend(problem.check(&problem.solve(gpu)?, "wide linear layer"));
    }
    let problems = group(of_group, SEED);
    for (problem, found) in problems.iter().zip(gradients_on(gpu, MatrixKernels::Mma, problems.each_ref())?) {
        checked.extend(problem.check(&found, "one of several wide linear layers"));
    }
    Ok(checked)
}
