//! Problems of a layer by blocks of few rows, forward and the gradient of its input, and of several layers at once.

use super::{Answer, InputFinish, Problem, Product};
use crate::device::{DeviceError, Gpu};
use crate::ops::check::{Checked, SEED, taken, uploaded};
use crate::ops::linear::{
    Activation, BlockSize, LayerForward, LayerInput, Layout, LinearShape, linear_backward_input_layers,
    linear_forward_layers,
};
use crate::ops::values::{narrow, wide};

/// A layer's forward and the gradient of its input by blocks of both sizes, between them with all that may follow and all layouts, of
/// more steps than are on their way at once.
pub fn problems(rows: usize, seed: u64) -> [Problem; 6] {
    let (narrow, wide) = (Layout::Heads { width: 32 }, Layout::Heads { width: 64 });
    [
        (BlockSize::Few, Product::Forward(Activation::Relu), narrow),
        (BlockSize::Fewest, Product::Forward(Activation::Identity), Layout::Rows),
        (BlockSize::Few, Product::Input(InputFinish::AddedAndMasked), narrow),
        (BlockSize::Fewest, Product::Input(InputFinish::Plain), Layout::Rows),
        (BlockSize::Fewest, Product::Input(InputFinish::Masked), Layout::Rows),
        (BlockSize::Fewest, Product::Input(InputFinish::Added), wide),
    ]
    .map(|(blocks, product, layout)| {
        let (inputs, outputs) = match product {
            Product::Forward(_) => (320, 192),
            _ => (192, 320),
        };
        let shape = LinearShape { rows, inputs, outputs };
        Problem::random(shape, layout, product, seed).by(blocks)
    })
}

/// What follows the layers of [`group`], and how their results stand.
pub const OF_GROUP: (Activation, Layout) = (Activation::Relu, Layout::Heads { width: 64 });

/// Layers of the same sizes, whose forward is one launch.
pub fn group(rows: usize, seed: u64) -> [Problem; 3] {
    let (activation, layout) = OF_GROUP;
    let shape = LinearShape { rows, inputs: 320, outputs: 192 };
    [0, 1, 2].map(|number| Problem::random(shape, layout, Product::Forward(activation), seed + number))
}

/// The answers of a GPU that computes them at once.
fn solve(gpu: &Gpu, problems: &[Problem; 3]) -> Result<Vec<Answer>, DeviceError> {
    let ((activation, layout), shape) = (OF_GROUP, problems[0].shape);
    let layers = problems.iter().map(|problem| {
        let (x, weight, bias) = (&problem.x, &problem.weight, &problem.bias);
        let y = taken(gpu, shape.rows * shape.outputs)?;
        Ok(LayerForward {
            y,
            x: uploaded(gpu, x)?,
            weight: uploaded(gpu, weight)?,
            bias: uploaded(gpu, bias)?,
        })
    });
    let mut layers = layers.collect::<Result<Vec<_>, DeviceError>>()?;
    linear_forward_layers(gpu, &mut layers, layout, activation, shape)?;
    layers.iter().map(|layer| Ok(vec![wide(&gpu.download(&layer.y)?)])).collect()
}

/// How the gradients of the outputs of layers of an [`input_group`] stand, of which there are two.
pub const OF_INPUT_GROUPS: [Layout; 2] = [Layout::Heads { width: 32 }, Layout::Heads { width: 64 }];

/// Layers of the same sizes, the gradients of whose inputs are one launch.
pub fn input_group(rows: usize, layout: Layout, seed: u64) -> [Problem; 3] {
    let shape = LinearShape { rows, inputs: 192, outputs: 320 };
    [0, 1, 2].map(|number| Problem::random(shape, layout, Product::InputAdded, seed + number))
}

/// The gradients of the inputs of layers of the same sizes, by a GPU that computes them at once.
pub(super) fn inputs_on<const LAYERS: usize>(
    gpu: &Gpu,
    problems: [&Problem; LAYERS],
) -> Result<[Answer; LAYERS], DeviceError> {
    let layers = problems.iter().map(|problem| {
        let before: Vec<f32> = narrow(&problem.added);
        let (dx, dy) = (uploaded(gpu, &before)?, uploaded(gpu, &problem.laid_out(&problem.dy))?);
        Ok(LayerInput { dx, dy, weight: uploaded(gpu, &problem.weight)? })
    });
    let mut layers = layers.collect::<Result<Vec<_>, DeviceError>>()?;
    let mut answers = [const { Vec::new() }; LAYERS];
    let Some(&Problem { layout, shape, .. }) = problems.first().copied() else { return Ok(answers) };
    linear_backward_input_layers(gpu, &mut layers, layout, shape)?;
    for (answer, layer) in answers.iter_mut().zip(&layers) {
        *answer = vec![wide(&gpu.download(&layer.dx)?)];
    }
    Ok(answers)
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
    let problems = group(rows, SEED);
    for (problem, found) in problems.iter().zip(solve(gpu, &problems)?) {
        checked.extend(problem.check(&found, "one of several linear layers of few rows"));
    }
    for layout in OF_INPUT_GROUPS {
        let problems = input_group(rows, layout, SEED);
        for (problem, found) in problems.iter().zip(inputs_on(gpu, problems.each_ref())?) {
            checked.extend(problem.check(&found, "one of several linear layers of few rows"));
        }
    }
    Ok(checked)
}
