//! Problems of the network's backward in one kernel.

use std::sync::OnceLock;

use half::bf16;

use super::super::{Blocks, FeedForwardShape, RowsGradient, feed_forward_backward};
use super::{Answer, NamedResult, OF_WARPS, SHAPES, period};
use crate::device::{Buffer, DeviceError, Gpu};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::ops::gemm::{Aligned, Write};
use crate::ops::layer_norm::check::Backward;
use crate::ops::layer_norm::{self, NormBackward, NormShape};
use crate::ops::linear::check::{InputFinish, Product};
use crate::ops::linear::{self, Activation, DeviceLinear, Layout, LinearShape, PendingInput, Weights};
use crate::ops::partial_sums::PendingSums;
use crate::ops::values::{narrow, plain_product, transposed, wide};
use crate::rng::{Rng, Stream};

/// A network between two LayerNorms, and the gradient behind them.
#[derive(Debug)]
pub struct Problem {
    /// Sizes.
    pub shape: FeedForwardShape,
    /// By which blocks.
    pub blocks: Blocks,
    /// The LayerNorm before the network; its own gradient is not used.
    pub before: layer_norm::check::Problem,
    /// The one behind: of fc2's results, and the network's rows are added.
    pub behind: layer_norm::check::Problem,
    /// A projection of the rows behind, whose input's gradient is added to the gradient there.
    pub projected: Option<linear::check::Problem>,
    /// Whether that is given, or 0 until then.
    pub is_given: bool,
    /// `[G, C]` and `[C, G]`
    pub weights: [Vec<bf16>; 2],
    /// `[G]`
    pub bias: Vec<f32>,
    known: OnceLock<[Vec<Answer>; 2]>,
}

/// The results.
const RESULTS: [NamedResult; 8] = [
    ("inner rows", to_bf16),
    ("their gradient", to_bf16),
    ("dy", to_bf16),
    ("d", to_bf16),
    ("gradient of the scale behind", to_f32),
    ("gradient of the shift behind", to_f32),
    ("gradient of the scale before", to_f32),
    ("gradient of the shift before", to_f32),
];

impl Problem {
    /// Normally distributed numbers, the weights so that results are of about that size too; `period` is that of the rows
    /// that the former LayerNorm adds.
    pub fn random(shape: FeedForwardShape, period: usize, seed: u64) -> Self {
        let FeedForwardShape { rows, width, inner } = shape;
        let mut rng = Rng::new(seed, Stream::Synth, 1);
        let mut normal = |len: usize, scale: f64| -> Vec<bf16> {
            (0..len).map(|_| bf16::from_f64(rng.normal() * scale)).collect()
        };
        let scales = [width, inner].map(|inputs| 1.0 / (inputs as f64).sqrt());
        let weights = scales.map(|scale| normal(shape.weights(), scale));
        let bias = normal(inner, 0.5).into_iter().map(bf16::to_f32).collect();
        let norm = |period, seed| {
            layer_norm::check::Problem::normal(NormShape { rows, width }, Some(period), 1e-5, seed)
        };
        let (before, behind) = (norm(period, seed), norm(rows, seed + 1));
        let (projected, known) = (None, OnceLock::new());
        Problem {
            shape,
            blocks: Blocks::Many,
            before,
            behind,
            projected,
            is_given: true,
            weights,
            bias,
            known,
        }
    }

    /// The same by other blocks.
    pub fn by(self, blocks: Blocks) -> Self {
        Problem { blocks, ..self }
    }

    /// The same with a projection of the rows behind, to so many columns that stand so.
    pub fn with_projection(self, outputs: usize, layout: Layout, is_given: bool) -> Self {
        let FeedForwardShape { rows, width: inputs, .. } = self.shape;
        let (shape, product) = (LinearShape { rows, inputs, outputs }, Product::Input(InputFinish::Added));
        let projected = linear::check::Problem::random(shape, layout, product, outputs as u64);
        Problem { projected: Some(projected), is_given, ..self }
    }

    /// The network's rows `[rows, C]`.
    pub fn rows(&self) -> &[bf16] {
        &self.behind.added
    }

    /// The gradient behind `[rows, C]` before a projection adds to it.
    pub fn given(&self) -> Vec<bf16> {
        if self.is_given { self.behind.dy.clone() } else { vec![bf16::ZERO; self.shape.values()] }
    }

    /// The gradient behind in f64 `[rows, C]`.
    fn exact_gradient(&self) -> Vec<f64> {
        let mut sum = wide(&self.given());
        if let Some(projected) = &self.projected {
            let (weight, mut dx) = (wide(&projected.weight), vec![0.0; sum.len()]);
            let layer = Weights { weight: &weight, bias: &vec![0.0; projected.shape.outputs] };
            let mut buffer = Aligned::default();
            linear::backward_input(&mut dx, Write::Set, &wide(&projected.dy), layer, &mut buffer);
            sum.iter_mut().zip(dx).for_each(|(sum, dx)| *sum += dx);
        }
        sum
    }

    /// The same of a plain evaluation in the kernel's number types.
    fn plain_gradient(&self, draw: Draw) -> Vec<f32> {
        let mut sum = narrow(&self.given());
        if let Some(projected) = &self.projected {
            let weight = transposed(&narrow(&projected.weight), self.shape.width);
            let order = draw.order(projected.shape.outputs);
            let dx = plain_product(&narrow(&projected.dy), &weight, &order, draw.sums);
            sum.iter_mut().zip(dx).for_each(|(sum, dx)| *sum = bf16::from_f32(*sum + dx).to_f32());
        }
        sum
    }

    /// An answer of a backward pass of each LayerNorm and the inner rows and their gradient.
    fn answer([hidden, d_hidden]: [Vec<f64>; 2], before: Backward, behind: Backward) -> Answer {
        let rows = [hidden, d_hidden, behind.dx, before.dx];
        let gradients = [behind.d_weight, behind.d_bias, before.d_weight, before.d_bias];
        rows.into_iter().chain(gradients).collect()
    }

    /// The answer in f64, by the CPU's own layers.
    fn exact(&self) -> Answer {
        let FeedForwardShape { rows, width, inner } = self.shape;
        let behind = self.behind.exact_of(&self.exact_gradient()).1;
        let dy = &behind.dx;
        let [weight1, weight2] = self.weights.each_ref().map(|values| wide(values));
        let mut buffer = Aligned::default();
        let mut layer = |x: &[f64], weight: &[f64], bias: &[f64], activation| {
            let mut y = vec![0.0; rows * bias.len()];
            linear::forward(&mut y, x, Weights { weight, bias }, activation, &mut buffer);
            y
        };
        let hidden = layer(&wide(self.rows()), &weight1, &wide(&self.bias), Activation::Relu);
        let [of_inner, of_width] = [inner, width].map(|outputs| vec![0.0; outputs]);
        let mut d_hidden = layer(dy, &transposed(&weight2, inner), &of_inner, Activation::Identity);
        d_hidden.iter_mut().zip(&hidden).filter(|(_, h)| **h <= 0.0).for_each(|(d, _)| *d = 0.0);
        let mut dx = layer(&d_hidden, &transposed(&weight1, width), &of_width, Activation::Identity);
        dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy);
        Self::answer([hidden, d_hidden], self.before.exact_of(&dx).1, behind)
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        let FeedForwardShape { width, inner, .. } = self.shape;
        let behind = self.behind.plain_backward(draw, &self.plain_gradient(draw));
        let dy: Vec<f32> = behind.dx.iter().map(|&value| value as f32).collect();
        let [weight1, weight2] = self.weights.each_ref().map(|values| narrow(values));
        let rounded = |value: f32| bf16::from_f32(value).to_f32();
        let product = |a: &[f32], b: &[f32], inputs| plain_product(a, b, &draw.order(inputs), draw.sums);
        let biases = self.bias.iter().cycle();
        let hidden: Vec<f32> = product(&narrow(self.rows()), &weight1, width)
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
        let dx: Vec<f32> = dx.into_iter().zip(&dy).map(|(dx, dy)| rounded(dx + dy)).collect();
        let inner = [wide(&hidden), wide(&d_hidden)];
        Self::answer(inner, self.before.plain_backward(draw, &dx), behind)
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let [exact, plain] = self.known.get_or_init(|| {
            [vec![self.exact()], plain_evaluations(self.shape.rows, |draw| self.plain(draw))]
        });
        let of = |at: usize| {
            let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain[at][..]).collect();
            deviation(&kernel[at], &plain, &exact[0][at], RESULTS[at].1)
        };
        (0..kernel.len()).map(|at| (RESULTS[at].0, of(at))).collect()
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let (shape, blocks) = (self.shape, self.blocks);
        let [weight1, weight2] = self.weights.each_ref().map(|values| uploaded(gpu, values));
        let (weight1, weight2, bias) = (weight1?, weight2?, uploaded(gpu, &self.bias)?);
        let [hidden, d_hidden] = [(); 2].map(|()| taken(gpu, shape.inner_values()));
        let (mut hidden, mut d_hidden) = (hidden?, d_hidden?);
        let (mut d, mut dy) = (uploaded(gpu, &self.behind.dy)?, taken(gpu, shape.values())?);
        let fc1 = DeviceLinear { weight: &weight1, bias: &bias };
        let of_norms = [NormRows::new(gpu, &self.before)?, NormRows::new(gpu, &self.behind)?];
        let before = of_norms[0].backward(gpu, &self.before)?;
        let behind = of_norms[1].backward(gpu, &self.behind)?;
        let projected = self.projected.as_ref().map(|of| {
            let (dy, weight) = (uploaded(gpu, &of.laid_out(&of.dy))?, uploaded(gpu, &of.weight)?);
            Ok::<_, DeviceError>(PendingInput { dy, layout: of.layout, weight, shape: of.shape })
        });
        let projected = projected.transpose()?;
        PendingSums::of(gpu, &taken(gpu, shape.backward_scratch_len(blocks))?, |sums| {
            let gradient = RowsGradient { d: &mut d, is_given: self.is_given, projected: projected.as_ref() };
            let of_inner = [&mut hidden, &mut d_hidden];
            feed_forward_backward(
                gpu, blocks, gradient, &mut dy, of_inner, &before, &behind, fc1, &weight2, sums, shape,
            )
        })?;
        let backward = |dx: &Buffer<bf16>, norm: &NormBackward<'_>| {
            let [d_weight, d_bias] = norm.gradients.each_ref().map(|sum| gpu.download(sum));
            let dx = wide(&gpu.download(dx)?);
            Ok::<_, DeviceError>(Backward { dx, d_weight: wide(&d_weight?), d_bias: wide(&d_bias?) })
        };
        let inner = [wide(&gpu.download(&hidden)?), wide(&gpu.download(&d_hidden)?)];
        Ok(Self::answer(inner, backward(&d, &before)?, backward(&dy, &behind)?))
    }
}

/// What a LayerNorm is of, on a GPU.
struct NormRows {
    x: Buffer<bf16>,
    added: Buffer<bf16>,
    statistics: Buffer<f32>,
}

impl NormRows {
    fn new(gpu: &Gpu, norm: &layer_norm::check::Problem) -> Result<Self, DeviceError> {
        let (x, added) = (uploaded(gpu, &norm.x)?, uploaded(gpu, &norm.added)?);
        Ok(NormRows { x, added, statistics: uploaded(gpu, &norm.statistics())? })
    }

    fn backward(
        &self,
        gpu: &Gpu,
        norm: &layer_norm::check::Problem,
    ) -> Result<NormBackward<'_>, DeviceError> {
        let NormRows { x, added, statistics } = self;
        let gradients = [uploaded(gpu, &norm.d_weight)?, uploaded(gpu, &norm.d_bias)?];
        let weight = uploaded(gpu, &norm.weight)?;
        Ok(NormBackward { x, added: Some(added), statistics, weight, gradients })
    }
}

/// Problems of these shapes.
pub fn problems(blocks: Blocks, shapes: [FeedForwardShape; 4], seed: u64) -> [Problem; 4] {
    shapes.map(|shape| Problem::random(shape, period(shape), seed).by(blocks))
}

/// The same with a projection: of one step and of more steps than rows have tiles, with and without a gradient that is given.
pub fn problems_with_projection(blocks: Blocks, shapes: [FeedForwardShape; 4], seed: u64) -> [Problem; 4] {
    with_projection(problems(blocks, shapes, seed))
}

/// Problems of all widths, the widest without a projection.
pub fn but_for_the_widest(blocks: Blocks, shapes: [FeedForwardShape; 4], seed: u64) -> [Problem; 4] {
    let [_, _, _, c256] = problems(blocks, shapes, seed);
    let [c64, c128, c192, _] = problems_with_projection(blocks, shapes, seed);
    [c64, c128, c192, c256]
}

fn with_projection([c64, c128, c192, c256]: [Problem; 4]) -> [Problem; 4] {
    let [narrow, wide] = [32, 64].map(|width| Layout::Heads { width });
    [
        // Its last step's operands stand where LayerNorm's sums come next.
        c64.with_projection(192, Layout::Rows, true),
        c128.with_projection(384, wide, true),
        c192.with_projection(64, narrow, false),
        c256.with_projection(320, narrow, false),
    ]
}

/// Runs networks on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_problems(gpu, OF_WARPS.into_iter().flat_map(|blocks| with_and_without(blocks, SHAPES)))
}

/// With a projection, and without.
pub(super) fn with_and_without(
    blocks: Blocks,
    shapes: [FeedForwardShape; 4],
) -> impl Iterator<Item = Problem> {
    let projected = problems_with_projection(blocks, shapes, SEED);
    problems(blocks, shapes, SEED).into_iter().chain(projected)
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    let by = |blocks| {
        let at = |shape| Problem::random(FeedForwardShape { rows, ..shape }, rows, SEED).by(blocks);
        SHAPES.map(at).into_iter().chain(with_projection(SHAPES.map(at)))
    };
    of_problems(gpu, OF_WARPS.into_iter().flat_map(by))
}

/// Of those whose launch the card can take.
pub(super) fn of_problems(
    gpu: &Gpu,
    problems: impl IntoIterator<Item = Problem>,
) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for problem in problems {
        let Problem { shape, blocks, .. } = problem;
        let launch = shape.backward_plan(blocks).map(|plan| plan.check(gpu.limits()));
        if !matches!(launch, Some(Ok(()))) {
            continue;
        }
        let found = problem.solve(gpu)?;
        for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
            let FeedForwardShape { rows, width, inner } = shape;
            let behind = if problem.projected.is_some() { ", a projection behind" } else { "" };
            let what = format!(
                "network's backward in one kernel by {}, {rows} rows of {width}, {inner} inner columns{behind}: {result}",
                blocks.name()
            );
            let results = || (found[at].clone(), problem.exact().swap_remove(at));
            checked.push(Checked::new(what, deviation, results));
        }
    }
    Ok(checked)
}
