//! Problems of LayerNorm and the layer behind it in one kernel. The layer's results are held against the exact ones of the rows that
//! the kernel itself has of LayerNorm.

use half::bf16;

use super::{NormForward, NormLinearPlan, norm_linear_forward_by};
use crate::device::{DeviceError, Gpu};
use crate::ops::check::{Checked, Deviation, SEED, taken, uploaded};
use crate::ops::layer_norm::{self, DeviceNorm, NormShape};
use crate::ops::linear::check::{self as linear, Product};
use crate::ops::linear::{Activation, BlockSize, DeviceLinear, Layout, LinearShape};
use crate::ops::values::wide;

/// A LayerNorm, and a layer of its rows.
#[derive(Debug)]
pub struct Problem {
    /// The former.
    pub norm: layer_norm::check::Problem,
    /// The latter; its rows count for nothing.
    pub layer: linear::Problem,
    /// What follows it.
    pub activation: Activation,
}

/// LayerNorm's rows `[rows, C]`, mean and 1/deviation `[rows]`, and y.
pub type Answer = [Vec<f64>; 4];

/// What they are called.
const RESULTS: [&str; 4] = ["LayerNorm's rows", "mean", "1/deviation", "y"];

/// The answer of LayerNorm's rows, statistics `[rows, 2]` and y.
pub fn answer(normalized: Vec<f64>, statistics: &[f64], y: Vec<f64>) -> Answer {
    let [mean, inverse] = [0, 1].map(|first| statistics.iter().skip(first).step_by(2).copied().collect());
    [normalized, mean, inverse, y]
}

impl Problem {
    /// Normally distributed numbers, and some rows of one value; `period` is that of the rows that are added.
    pub fn random(
        shape: LinearShape,
        period: usize,
        (blocks, activation, layout): (BlockSize, Activation, Layout),
        seed: u64,
    ) -> Self {
        let of_norm = NormShape { rows: shape.rows, width: shape.inputs };
        let norm = layer_norm::check::Problem::random(of_norm, Some(period), 1e-8, seed);
        let layer = linear::Problem::random(shape, layout, Product::Forward(activation), seed).by(blocks);
        Problem { norm, layer, activation }
    }

    /// The launch's plan.
    pub fn plan(&self) -> Result<NormLinearPlan, DeviceError> {
        NormLinearPlan::new(self.layer.shape, self.layer.layout)
    }

    /// The layer of LayerNorm's rows as a kernel has them.
    fn layer_of(&self, kernel: &Answer) -> linear::Problem {
        self.layer.of(kernel[0].iter().map(|&value| bf16::from_f64(value)).collect())
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let [normalized, mean, inverse, y] = kernel;
        let statistics = mean.iter().zip(inverse).flat_map(|(&mean, &inverse)| [mean, inverse]).collect();
        let of_norm = layer_norm::check::Forward { y: normalized.clone(), statistics };
        let of_norm = self.norm.forward_deviations(&of_norm);
        let of_layer = self.layer_of(kernel).deviations(&vec![y.clone()]);
        let all = of_norm.into_iter().chain(of_layer.into_iter().map(|(_, deviation)| deviation));
        RESULTS.into_iter().zip(all).collect()
    }

    /// The exact answers that a kernel's results are held against.
    pub fn exact(&self, kernel: &Answer) -> Answer {
        let of_norm = self.norm.exact().0;
        answer(of_norm.y, &of_norm.statistics, self.layer_of(kernel).exact().swap_remove(0))
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let Problem { norm: of_norm, layer: of_layer, activation } = self;
        let LinearShape { rows, inputs, outputs } = of_layer.shape;
        let (x, added) = (uploaded(gpu, &of_norm.x)?, uploaded(gpu, &of_norm.added)?);
        let [scale, shift, bias] =
            [&of_norm.weight, &of_norm.bias, &of_layer.bias].map(|values| uploaded(gpu, values));
        let (scale, shift, bias) = (scale?, shift?, bias?);
        let weight = uploaded(gpu, &of_layer.weight)?;
        let (mut normalized, mut statistics) = (taken(gpu, rows * inputs)?, taken(gpu, 2 * rows)?);
        let mut y = taken(gpu, rows * outputs)?;
        let before = NormForward {
            rows: &mut normalized,
            statistics: &mut statistics,
            x: &x,
            added: &added,
            norm: DeviceNorm { weight: &scale, bias: &shift, eps: of_norm.eps },
        };
        let layer = DeviceLinear { weight: &weight, bias: &bias };
        let (blocks, layout, shape) = (of_layer.blocks, of_layer.layout, of_layer.shape);
        norm_linear_forward_by(gpu, blocks, before, &mut y, layout, layer, *activation, shape)?;
        let statistics = wide(&gpu.download(&statistics)?);
        Ok(answer(wide(&gpu.download(&normalized)?), &statistics, wide(&gpu.download(&y)?)))
    }
}

/// Every kernel, of so many rows: of each width by blocks of both sizes, with all activations and layouts.
pub fn problems(rows: usize, seed: u64) -> Vec<Problem> {
    let kinds = [
        (BlockSize::Fewest, Activation::Identity, Layout::Heads { width: 32 }),
        (BlockSize::Few, Activation::Relu, Layout::Rows),
        (BlockSize::Fewest, Activation::Relu, Layout::Rows),
        (BlockSize::Few, Activation::Identity, Layout::Heads { width: 64 }),
    ];
    let of = |(number, inputs): (usize, usize)| {
        // The rows that are added come again, or are as many.
        let period = if number % 2 == 0 && rows.is_multiple_of(3) { rows / 3 } else { rows };
        let shape = LinearShape { rows, inputs, outputs: 128 };
        [kinds[2 * number % 4], kinds[(2 * number + 1) % 4]]
            .map(|kind| Problem::random(shape, period, kind, seed + number as u64))
    };
    [64, 128, 192, 256].into_iter().enumerate().flat_map(of).collect()
}

/// Runs all on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    run_at(gpu, 45)
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for problem in problems(rows, SEED) {
        let found = problem.solve(gpu)?;
        let exact = problem.exact(&found);
        let (blocks, width) = (problem.layer.blocks.rows(), problem.layer.shape.inputs);
        for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
            let what =
                format!("LayerNorm and a layer, {rows} rows of {width} by blocks of {blocks}: {result}");
            checked.push(Checked::new(what, deviation, || (found[at].clone(), exact[at].clone())));
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::rounding::to_bf16;

    #[test]
    fn a_wrong_result_is_noticed() {
        let problem = &problems(21, 1)[3];
        let mut right = [0, 1, 2, 3].map(|_| vec![0.0; 21 * 128]);
        // What is right of the layer depends on the rows before it.
        for _ in 0..2 {
            right = problem.exact(&right);
            right[0].iter_mut().for_each(|value| *value = to_bf16(*value));
        }
        assert!(problem.deviations(&right).iter().all(|(_, found)| found.is_allowed()));
        for at in 0..right.len() {
            let mut wrong = right.clone();
            let largest = wrong[at].iter().fold(0.0f64, |most, value| most.max(value.abs()));
            wrong[at][0] += 0.05 * largest;
            let (name, found) = problem.deviations(&wrong)[at];
            assert!(!found.is_allowed(), "{name}");
        }
    }
}
