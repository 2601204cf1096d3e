//! Problems of the row-wise network in one kernel, their exact answers, and what a kernel's answers are held against.

pub mod backward;
pub mod backward_warpgroups;
mod projection;
pub mod warpgroups;

use std::sync::OnceLock;

use half::bf16;
pub use projection::Projected;

use super::{Blocks, FeedForwardShape, Kept, Projection, feed_forward};
use crate::device::{Buffer, DeviceError, Gpu};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::ops::gemm::Aligned;
use crate::ops::layer_norm::{self, DeviceNorm, Norm, NormShape, Saved};
use crate::ops::linear::{self, Activation, DeviceLinear, Layout, Weights};
use crate::ops::values::{narrow, plain_product, wide};
use crate::rng::{Rng, Stream};

/// A network of bf16 rows and weights between two LayerNorms.
#[derive(Debug)]
pub struct Problem {
    /// Sizes.
    pub shape: FeedForwardShape,
    /// By which blocks.
    pub blocks: Blocks,
    /// The LayerNorm before the network.
    pub before: layer_norm::check::Problem,
    /// `[G, C]` and `[C, G]`
    pub weights: [Vec<bf16>; 2],
    /// `[G]` and `[C]`
    pub biases: [Vec<f32>; 2],
    /// γ and β `[C]` of the LayerNorm behind it.
    pub norm: [Vec<f32>; 2],
    /// Whether what backward needs is kept.
    pub keeps: bool,
    /// What is computed of the results besides.
    pub projection: Option<Projected>,
    known: OnceLock<Known>,
}

/// y `[rows, C]`, mean and 1/deviation `[rows]` of the LayerNorm behind and of the one before, the network's rows and fc2's
/// results `[rows, C]` where they are kept, and a projection of y where there is one, laid out as it says.
pub type Answer = Vec<Vec<f64>>;

/// A result, and how it is rounded.
type NamedResult = (&'static str, fn(f64) -> f64);

/// The results.
const RESULTS: [NamedResult; 8] = [
    ("y", to_bf16),
    ("mean", to_f32),
    ("1/deviation", to_f32),
    ("mean before", to_f32),
    ("1/deviation before", to_f32),
    ("the network's rows", to_bf16),
    ("fc2's results", to_bf16),
    ("the projection", to_bf16),
];

#[derive(Debug)]
struct Known {
    exact: Answer,
    plain: Vec<Answer>,
}

impl Problem {
    /// Normally distributed numbers, the weights so that results are of about that size too; `period` is that of the rows that
    /// the former LayerNorm adds.
    pub fn random(shape: FeedForwardShape, period: usize, keeps: bool, seed: u64) -> Self {
        let FeedForwardShape { rows, width, inner } = shape;
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut normal = |len: usize, scale: f64| -> Vec<bf16> {
            (0..len).map(|_| bf16::from_f64(rng.normal() * scale)).collect()
        };
        let single = |values: Vec<bf16>| values.into_iter().map(bf16::to_f32).collect::<Vec<f32>>();
        let weights = [
            normal(inner * width, 1.0 / (width as f64).sqrt()),
            normal(width * inner, 1.0 / (inner as f64).sqrt()),
        ];
        let biases = [single(normal(inner, 1.0)), single(normal(width, 1.0))];
        let scale = single(normal(width, 0.3)).into_iter().map(|value| 1.0 + value).collect();
        let norm = [scale, single(normal(width, 1.0))];
        let of_norm = NormShape { rows, width };
        let before = layer_norm::check::Problem::normal(of_norm, Some(period), 1e-5, seed);
        let (projection, known) = (None, OnceLock::new());
        Problem { shape, blocks: Blocks::Many, before, weights, biases, norm, keeps, projection, known }
    }

    /// The same by other blocks.
    pub fn by(self, blocks: Blocks) -> Self {
        Problem { blocks, ..self }
    }

    /// The same with a projection of its results to `times` as many columns, in heads of `width`.
    pub fn projecting(self, times: usize, width: usize, activation: Activation, seed: u64) -> Self {
        let of_layer = self.shape.projection(times * self.shape.width).expect("a multiple of the columns");
        let layer = Projected::random(of_layer, Layout::Heads { width }, activation, seed);
        Problem { projection: Some(layer), ..self }
    }

    /// Added to the variance by both norms.
    pub fn eps(&self) -> f64 {
        self.before.eps
    }

    /// Parts of statistics `[rows, 2]` of the norm behind and of the one before, the network's rows and fc2's results where
    /// they are kept, and a projection where there is one.
    pub fn answer(
        &self,
        y: Vec<f64>,
        statistics: [&[f64]; 2],
        kept: Option<[Vec<f64>; 2]>,
        projection: Option<Vec<f64>>,
    ) -> Answer {
        let parts = statistics.into_iter().flat_map(|statistics| {
            [0, 1].map(|first| statistics.iter().skip(first).step_by(2).copied().collect())
        });
        let behind = kept.into_iter().flatten().chain(projection);
        std::iter::once(y).chain(parts).chain(behind).collect()
    }

    /// What the results are, and how they are rounded.
    fn results(&self) -> impl Iterator<Item = &'static (&'static str, fn(f64) -> f64)> {
        let is_there = |at: &usize| match at {
            5 | 6 => self.keeps,
            7 => self.projection.is_some(),
            _ => true,
        };
        (0..RESULTS.len()).filter(is_there).map(|at| &RESULTS[at])
    }

    /// The answer in f64, by the CPU's own layers.
    fn exact(&self) -> Answer {
        let FeedForwardShape { rows, width, inner } = self.shape;
        let before = self.before.exact().0;
        let x = before.y;
        let mut buffer = Aligned::default();
        let mut layer = |at: usize, x: &[f64], outputs: usize, activation| {
            let (weight, bias) = (wide(&self.weights[at]), wide(&self.biases[at]));
            let mut y = vec![0.0; rows * outputs];
            linear::forward(&mut y, x, Weights { weight: &weight, bias: &bias }, activation, &mut buffer);
            y
        };
        let hidden = layer(0, &x, inner, Activation::Relu);
        let output = layer(1, &hidden, width, Activation::Identity);
        let mut y: Vec<f64> = x.iter().zip(&output).map(|(x, output)| x + output).collect();
        let means: Vec<f64> =
            y.chunks_exact(width).map(|row| row.iter().sum::<f64>() / width as f64).collect();
        let [weight, bias] = self.norm.each_ref().map(|values| wide(values));
        let mut saved = Saved::default();
        layer_norm::forward(&mut y, None, &mut saved, Norm { weight: &weight, bias: &bias, eps: self.eps() });
        let statistics: Vec<f64> = (0..rows).flat_map(|row| [means[row], saved.inverse_std[row]]).collect();
        let projection = self.projection.as_ref().map(|layer| layer.exact(&y));
        let kept = self.keeps.then_some([x, output]);
        self.answer(y, [&statistics, &before.statistics], kept, projection)
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        let FeedForwardShape { width, inner, .. } = self.shape;
        let before = self.before.plain_forward(draw);
        let x: Vec<f32> = before.y.iter().map(|&value| value as f32).collect();
        let [weight1, weight2] = self.weights.each_ref().map(|values| narrow(values));
        let rounded = |value: f32| bf16::from_f32(value).to_f32();
        let layer = |x: &[f32], weight: &[f32], bias: &[f32], inputs| {
            let mut y = plain_product(x, weight, &draw.order(inputs), draw.sums);
            for y in y.chunks_mut(bias.len()) {
                y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
            y
        };
        let hidden = layer(&x, &weight1, &self.biases[0], width);
        let hidden: Vec<f32> = hidden.into_iter().map(|value| rounded(value.max(0.0))).collect();
        let output: Vec<f32> =
            layer(&hidden, &weight2, &self.biases[1], inner).into_iter().map(rounded).collect();
        let columns = draw.order(width);
        let mean = |row: &[f32]| columns.iter().map(|&column| row[column]).sum::<f32>() / width as f32;
        let (mut y, mut statistics) = (Vec::new(), Vec::new());
        for (x, output) in x.chunks_exact(width).zip(output.chunks_exact(width)) {
            let mut row: Vec<f32> = x.iter().zip(output).map(|(x, output)| x + output).collect();
            let mut middle = 0.0;
            for _ in 0..2 {
                let rest = mean(&row);
                middle += rest;
                row.iter_mut().for_each(|value| *value -= rest);
            }
            let squares: Vec<f32> = row.iter().map(|value| value * value).collect();
            let inverse = 1.0 / (mean(&squares) + self.eps() as f32).sqrt();
            let values = row.iter().zip(&self.norm[0]).zip(&self.norm[1]);
            y.extend(
                values.map(|((value, scale), shift)| to_bf16(f64::from(value * inverse * scale + shift))),
            );
            statistics.extend([middle, inverse].map(f64::from));
        }
        let kept = self.keeps.then(|| [before.y, wide(&output)]);
        let projection = self.projection.as_ref().map(|layer| layer.plain(&y, draw));
        self.answer(y, [&statistics, &before.statistics], kept, projection)
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let known = self.known.get_or_init(|| Known {
            exact: self.exact(),
            plain: plain_evaluations(self.shape.rows, |draw| self.plain(draw)),
        });
        let of = |(at, (name, round)): (usize, &NamedResult)| {
            let plain: Vec<&[f64]> = known.plain.iter().map(|plain| &plain[at][..]).collect();
            (*name, deviation(&kernel[at], &plain, &known.exact[at], round))
        };
        self.results().enumerate().map(of).collect()
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let (shape, blocks) = (self.shape, self.blocks);
        let (x, added) = (uploaded(gpu, &self.before.x)?, uploaded(gpu, &self.before.added)?);
        let [weight1, weight2] = self.weights.each_ref().map(|values| uploaded(gpu, values));
        let [bias1, bias2] = self.biases.each_ref().map(|values| uploaded(gpu, values));
        let layers = [
            DeviceLinear { weight: &weight1?, bias: &bias1? },
            DeviceLinear { weight: &weight2?, bias: &bias2? },
        ];
        let [scale, shift] = self.norm.each_ref().map(|values| uploaded(gpu, values));
        let behind = DeviceNorm { weight: &scale?, bias: &shift?, eps: self.eps() };
        let (scale, shift) = (uploaded(gpu, &self.before.weight)?, uploaded(gpu, &self.before.bias)?);
        let norms = [DeviceNorm { weight: &scale, bias: &shift, eps: self.eps() }, behind];
        let [y, attended, output] = [(); 3].map(|()| taken(gpu, shape.values()));
        let (mut y, mut attended, mut output) = (y?, attended?, output?);
        let [before, behind] = [(); 2].map(|()| taken(gpu, 2 * shape.rows));
        let (mut before, mut behind) = (before?, behind?);
        let mut of_layer = match &self.projection {
            Some(layer) => {
                let out = taken(gpu, shape.rows * layer.outputs())?;
                Some((layer, uploaded(gpu, &layer.weight)?, uploaded(gpu, &layer.bias)?, out))
            }
            None => None,
        };
        let kept = self.keeps.then_some(Kept { attended: &mut attended, output: &mut output });
        let statistics = [&mut before, &mut behind];
        let projection =
            of_layer.as_mut().map(|(Projected { layout, activation, .. }, weight, bias, out)| {
                let layer = DeviceLinear { weight, bias };
                Projection { layer, activation: *activation, layout: *layout, out }
            });
        feed_forward(gpu, blocks, &mut y, kept, statistics, &x, &added, layers, norms, projection, shape)?;
        let rows = |rows: &Buffer<bf16>| Ok::<_, DeviceError>(wide(&gpu.download(rows)?));
        let kept = if self.keeps { Some([rows(&attended)?, rows(&output)?]) } else { None };
        let [behind, before] = [wide(&gpu.download(&behind)?), wide(&gpu.download(&before)?)];
        let projected = of_layer.as_ref().map(|(.., out)| rows(out)).transpose()?;
        Ok(self.answer(rows(&y)?, [&behind, &before], kept, projected))
    }
}

/// More than a block's rows; every width, and inner rows that end in half a chunk.
pub const SHAPES: [FeedForwardShape; 4] = [
    FeedForwardShape { rows: 133, width: 64, inner: 192 },
    FeedForwardShape { rows: 20, width: 128, inner: 128 },
    FeedForwardShape { rows: 20, width: 192, inner: 64 },
    FeedForwardShape { rows: 70, width: 256, inner: 320 },
];

/// Rows after which those come again that the LayerNorm before a network adds: of the narrowest in the middle of a block, and of
/// the next.
fn period(shape: FeedForwardShape) -> usize {
    if shape.width == 64 && shape.rows.is_multiple_of(7) { shape.rows / 7 } else { shape.rows }
}

/// The kernels of warps.
pub(super) const OF_WARPS: [Blocks; 2] = [Blocks::Many, Blocks::Few];

/// Problems of these shapes, every other one of which keeps what backward needs.
pub fn problems(blocks: Blocks, shapes: [FeedForwardShape; 4], seed: u64) -> [Problem; 4] {
    let mut keeps = false;
    shapes.map(|shape| {
        keeps = !keeps;
        Problem::random(shape, period(shape), keeps, seed).by(blocks)
    })
}

/// The same; all but one project their results.
pub fn projecting(blocks: Blocks, shapes: [FeedForwardShape; 4], seed: u64) -> [Problem; 4] {
    let [first, second, third, fourth] = problems(blocks, shapes, seed);
    [
        first.projecting(5, 32, Activation::Relu, seed),
        second,
        third.projecting(2, 64, Activation::Identity, seed),
        fourth.projecting(1, 32, Activation::Identity, seed),
    ]
}

/// Runs networks on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_problems(gpu, OF_WARPS.into_iter().flat_map(|blocks| projecting(blocks, SHAPES, SEED)))
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    let at = |shape, blocks| {
        let problem = Problem::random(FeedForwardShape { rows, ..shape }, rows, true, SEED);
        problem.by(blocks).projecting(3, 64, Activation::Relu, SEED)
    };
    of_problems(gpu, OF_WARPS.into_iter().flat_map(|blocks| SHAPES.map(|shape| at(shape, blocks))))
}

/// Of those whose launch the card can take.
fn of_problems(gpu: &Gpu, problems: impl IntoIterator<Item = Problem>) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for problem in problems {
        let Problem { shape, blocks, .. } = problem;
        let launch = shape.plan(blocks).map(|plan| plan.check(gpu.limits()));
        if !matches!(launch, Some(Ok(()))) {
            continue;
        }
        let found = problem.solve(gpu)?;
        for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
            let FeedForwardShape { rows, width, inner } = shape;
            let what = format!(
                "network in one kernel by {}, {rows} rows of {width}, {inner} inner columns: {result}",
                blocks.name()
            );
            let results = || (found[at].clone(), problem.exact().swap_remove(at));
            checked.push(Checked::new(what, deviation, results));
        }
    }
    Ok(checked)
}
