//! Problems of the network's backward in one kernel.

use std::sync::OnceLock;

use half::bf16;

use super::super::{FeedForwardShape, feed_forward_backward};
use super::{Answer, SHAPES};
use crate::device::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::device::draw::{Draw, plain_evaluations};
use crate::device::rounding::to_bf16;
use crate::device::{DeviceError, Gpu};
use crate::ops::gemm::Aligned;
use crate::ops::linear::{self, Activation, DeviceLinear, Weights};
use crate::ops::values::{narrow, plain_product, transposed, wide};
use crate::rng::{Rng, Stream};

/// Rows of bf16, the gradient behind the network, and its weights.
#[derive(Debug)]
pub struct Problem {
    /// Sizes.
    pub shape: FeedForwardShape,
    /// `[rows, C]`
    pub x: Vec<bf16>,
    /// `[rows, C]`
    pub dy: Vec<bf16>,
    /// `[G, C]` and `[C, G]`
    pub weights: [Vec<bf16>; 2],
    /// `[G]`
    pub bias: Vec<f32>,
    known: OnceLock<[Vec<Answer>; 2]>,
}

/// Names of the results.
pub const RESULTS: [&str; 3] = ["inner rows", "their gradient", "dx"];

impl Problem {
    /// Normally distributed numbers, the weights so that results are of about that size too.
    pub fn random(shape: FeedForwardShape, seed: u64) -> Self {
        let FeedForwardShape { width, inner, .. } = shape;
        let mut rng = Rng::new(seed, Stream::Synth, 1);
        let mut normal = |len: usize, scale: f64| -> Vec<bf16> {
            (0..len).map(|_| bf16::from_f64(rng.normal() * scale)).collect()
        };
        let [x, dy] = [(); 2].map(|()| normal(shape.values(), 1.0));
        let scales = [width, inner].map(|inputs| 1.0 / (inputs as f64).sqrt());
        let weights = scales.map(|scale| normal(shape.weights(), scale));
        let bias = normal(inner, 0.5).into_iter().map(bf16::to_f32).collect();
        Problem { shape, x, dy, weights, bias, known: OnceLock::new() }
    }

    /// The answer in f64, by the CPU's own layers.
    fn exact(&self) -> Answer {
        let FeedForwardShape { rows, width, inner } = self.shape;
        let [weight1, weight2] = self.weights.each_ref().map(|values| wide(values));
        let mut buffer = Aligned::default();
        let mut layer = |x: &[f64], weight: &[f64], bias: &[f64], activation| {
            let mut y = vec![0.0; rows * bias.len()];
            linear::forward(&mut y, x, Weights { weight, bias }, activation, &mut buffer);
            y
        };
        let hidden = layer(&wide(&self.x), &weight1, &wide(&self.bias), Activation::Relu);
        let (dy, [of_inner, of_width]) = (wide(&self.dy), [inner, width].map(|outputs| vec![0.0; outputs]));
        let mut d_hidden = layer(&dy, &transposed(&weight2, inner), &of_inner, Activation::Identity);
        d_hidden.iter_mut().zip(&hidden).filter(|(_, h)| **h <= 0.0).for_each(|(d, _)| *d = 0.0);
        let mut dx = layer(&d_hidden, &transposed(&weight1, width), &of_width, Activation::Identity);
        dx.iter_mut().zip(&dy).for_each(|(dx, dy)| *dx += dy);
        vec![hidden, d_hidden, dx]
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        let FeedForwardShape { width, inner, .. } = self.shape;
        let [x, dy] = [&self.x, &self.dy].map(|values| narrow(values));
        let [weight1, weight2] = self.weights.each_ref().map(|values| narrow(values));
        let rounded = |value: f32| bf16::from_f32(value).to_f32();
        let product = |a: &[f32], b: &[f32], inputs| plain_product(a, b, &draw.order(inputs), draw.sums);
        let biases = self.bias.iter().cycle();
        let hidden: Vec<f32> = product(&x, &weight1, width)
            .into_iter()
            .zip(biases)
            .map(|(h, bias)| rounded((h + bias).max(0.0)))
            .collect();
        let d_hidden: Vec<f32> = product(&dy, &transposed(&weight2, inner), width)
            .into_iter()
            .zip(&hidden)
            .map(|(d, &h)| if h > 0.0 { rounded(d) } else { 0.0 })
            .collect();
        let dx = product(&d_hidden, &transposed(&weight1, width), inner);
        let dx = dx.into_iter().zip(&dy).map(|(dx, dy)| to_bf16(f64::from(dx + dy))).collect();
        vec![wide(&hidden), wide(&d_hidden), dx]
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let [exact, plain] = self.known.get_or_init(|| {
            [vec![self.exact()], plain_evaluations(self.shape.rows, |draw| self.plain(draw))]
        });
        let of = |at: usize| {
            let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain[at][..]).collect();
            deviation(&kernel[at], &plain, &exact[0][at], to_bf16)
        };
        (0..kernel.len()).map(|at| (RESULTS[at], of(at))).collect()
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let shape = self.shape;
        let (x, dy) = (uploaded(gpu, &self.x)?, uploaded(gpu, &self.dy)?);
        let [weight1, weight2] = self.weights.each_ref().map(|values| uploaded(gpu, values));
        let (weight1, weight2, bias) = (weight1?, weight2?, uploaded(gpu, &self.bias)?);
        let [hidden, d_hidden] = [(); 2].map(|()| taken(gpu, shape.inner_values()));
        let (mut hidden, mut d_hidden, mut dx) = (hidden?, d_hidden?, taken(gpu, shape.values())?);
        let fc1 = DeviceLinear { weight: &weight1, bias: &bias };
        feed_forward_backward(gpu, &mut dx, &mut hidden, &mut d_hidden, &dy, &x, fc1, &weight2, shape)?;
        [hidden, d_hidden, dx].iter().map(|buffer| Ok(wide(&gpu.download(buffer)?))).collect()
    }
}

/// Runs networks on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, SHAPES)
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, SHAPES.map(|shape| FeedForwardShape { rows, ..shape }))
}

fn of_shapes(gpu: &Gpu, shapes: [FeedForwardShape; 4]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for shape in shapes {
        let launch = shape.backward_plan().map(|plan| plan.check(gpu.limits()));
        if !matches!(launch, Some(Ok(()))) {
            continue;
        }
        let problem = Problem::random(shape, SEED);
        let found = problem.solve(gpu)?;
        for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
            let FeedForwardShape { rows, width, inner } = shape;
            let what = format!(
                "network's backward in one kernel, {rows} rows of {width}, {inner} inner columns: {result}"
            );
            let results = || (found[at].clone(), problem.exact().swap_remove(at));
            checked.push(Checked::new(what, deviation, results));
        }
    }
    Ok(checked)
}
