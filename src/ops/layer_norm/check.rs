//! Problems of LayerNorm on a GPU, their exact answers, and what a kernel's answers are held against.

use half::bf16;

use super::{
    DeviceNorm, Norm, NormBackward, NormShape, Saved, backward, forward, layer_norm_backward,
    layer_norm_forward,
};
use crate::device::{DeviceError, Gpu};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation_of, taken, uploaded};
use crate::ops::partial_sums::PendingSums;
use crate::ops::values::{added, narrow, wide};
use crate::rng::{Rng, Stream};

/// LayerNorm of bf16 rows and its gradients.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Rows and width.
    pub shape: NormShape,
    /// `[rows, C]`
    pub x: Vec<bf16>,
    /// `[period, C]`; empty where nothing is added.
    pub added: Vec<bf16>,
    /// γ `[C]`
    pub weight: Vec<f32>,
    /// β `[C]`
    pub bias: Vec<f32>,
    /// Added to the variance.
    pub eps: f64,
    /// `[rows, C]`
    pub dy: Vec<bf16>,
    /// `[C]`: what the gradient of γ is added to.
    pub d_weight: Vec<f32>,
    /// `[C]`: what the gradient of β is added to.
    pub d_bias: Vec<f32>,
}

/// Answers of the forward pass, right or not.
#[derive(Clone, Debug)]
pub struct Forward {
    /// `[rows, C]`
    pub y: Vec<f64>,
    /// `[rows, 2]`
    pub statistics: Vec<f64>,
}

/// Answers of the backward pass, right or not.
#[derive(Clone, Debug)]
pub struct Backward {
    /// `[rows, C]`
    pub dx: Vec<f64>,
    /// `[C]`
    pub d_weight: Vec<f64>,
    /// `[C]`
    pub d_bias: Vec<f64>,
}

impl Problem {
    /// Normally distributed rows, every tenth of which is of one value, far from 0; `period` is that of what is added.
    pub fn random(shape: NormShape, period: Option<usize>, eps: f64, seed: u64) -> Self {
        let mut problem = Self::normal(shape, period, eps, seed);
        let width = shape.width;
        for row in (1..shape.rows).step_by(10) {
            problem.x[row * width..][..width].fill(bf16::from_f32(37.25));
            if let Some(period) = period {
                problem.added[row % period * width..][..width].fill(bf16::from_f32(0.1));
            }
        }
        problem
    }

    /// The same without rows of one value.
    pub fn normal(shape: NormShape, period: Option<usize>, eps: f64, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut normal = |len| (0..len).map(|_| bf16::from_f64(rng.normal())).collect::<Vec<bf16>>();
        let width = shape.width;
        let (x, dy) = (normal(shape.values()), normal(shape.values()));
        let added = normal(period.unwrap_or(0) * width);
        let weight = normal(width).iter().map(|value| 1.0 + 0.3 * value.to_f32()).collect();
        let [bias, d_weight, d_bias] =
            [0; 3].map(|_| normal(width).iter().map(|value| value.to_f32()).collect());
        Problem { shape, x, added, weight, bias, eps, dy, d_weight, d_bias }
    }

    /// The period of what is added.
    pub fn period(&self) -> usize {
        if self.added.is_empty() { self.shape.rows } else { self.added.len() / self.shape.width }
    }

    /// What is added at a place of x.
    fn added_at(&self, at: usize) -> bf16 {
        if self.added.is_empty() { bf16::ZERO } else { self.added[at % self.added.len()] }
    }

    /// x + added in f64 `[rows, C]`.
    fn sums(&self) -> Vec<f64> {
        self.x.iter().enumerate().map(|(at, x)| x.to_f64() + self.added_at(at).to_f64()).collect()
    }

    /// Whether all values of the row are the same.
    fn is_flat(&self, row: usize) -> bool {
        let value = |column| {
            let at = row * self.shape.width + column;
            (self.x[at], self.added_at(at))
        };
        (1..self.shape.width).all(|column| value(column) == value(0))
    }

    /// The answers in f64, by the CPU's own LayerNorm.
    pub fn exact(&self) -> (Forward, Backward) {
        self.exact_of(&wide(&self.dy))
    }

    /// The same, backward from this gradient `[rows, C]`.
    pub fn exact_of(&self, dy: &[f64]) -> (Forward, Backward) {
        let NormShape { rows, width } = self.shape;
        let (weight, bias) = (wide(&self.weight), wide(&self.bias));
        let norm = Norm { weight: &weight, bias: &bias, eps: self.eps };
        let mut y = self.sums();
        let means: Vec<f64> =
            y.chunks_exact(width).map(|row| row.iter().sum::<f64>() / width as f64).collect();
        let mut saved = Saved::default();
        forward(&mut y, None, &mut saved, norm);
        let statistics = (0..rows).flat_map(|row| [means[row], saved.inverse_std[row]]).collect();
        let mut dx = dy.to_vec();
        let (mut d_weight, mut d_bias) = (wide(&self.d_weight), wide(&self.d_bias));
        backward(&mut dx, &saved, &mut Vec::new(), norm, (&mut d_weight, &mut d_bias));
        (Forward { y, statistics }, Backward { dx, d_weight, d_bias })
    }

    /// The statistics that the backward pass is given `[rows, 2]`.
    pub fn statistics(&self) -> Vec<f32> {
        self.exact().0.statistics.into_iter().map(|value| value as f32).collect()
    }

    /// The answer of a plain evaluation in f32, results rounded as the kernel's are.
    pub(crate) fn plain_forward(&self, draw: Draw) -> Forward {
        let width = self.shape.width;
        let columns = draw.order(width);
        let mean = |row: &[f32]| columns.iter().map(|&column| row[column]).sum::<f32>() / width as f32;
        let mut answer = Forward { y: Vec::new(), statistics: Vec::new() };
        for row in self.sums().chunks_exact(width) {
            let mut row: Vec<f32> = row.iter().map(|&value| value as f32).collect();
            // As the kernel: what is left of the mean is taken away as well.
            let mut middle = 0.0;
            for _ in 0..2 {
                let rest = mean(&row);
                middle += rest;
                row.iter_mut().for_each(|value| *value -= rest);
            }
            let squares: Vec<f32> = row.iter().map(|value| value * value).collect();
            let inverse = 1.0 / (mean(&squares) + self.eps as f32).sqrt();
            let values = row.iter().zip(&self.weight).zip(&self.bias);
            answer.y.extend(values.map(|((value, w), b)| to_bf16(f64::from(value * inverse * w + b))));
            answer.statistics.extend([middle, inverse].map(f64::from));
        }
        answer
    }

    /// As `plain_forward`, backward from this gradient `[rows, C]`.
    pub(crate) fn plain_backward(&self, draw: Draw, dy: &[f32]) -> Backward {
        let NormShape { rows, width } = self.shape;
        let columns = draw.order(width);
        let mean = |row: &[f32]| columns.iter().map(|&column| row[column]).sum::<f32>() / width as f32;
        let (sums, statistics) = (self.sums(), self.statistics());
        let mut dx = vec![0.0; rows * width];
        let (mut d_weight, mut d_bias) = (vec![0.0f32; width], vec![0.0f32; width]);
        for row in draw.order(rows) {
            let [middle, inverse] = [statistics[2 * row], statistics[2 * row + 1]];
            let normalized = |column| (sums[row * width + column] as f32 - middle) * inverse;
            let normalized: Vec<f32> = (0..width).map(normalized).collect();
            let dy = &dy[row * width..][..width];
            let g: Vec<f32> = dy.iter().zip(&self.weight).map(|(dy, w)| dy * w).collect();
            let products: Vec<f32> = g.iter().zip(&normalized).map(|(g, n)| g * n).collect();
            let (mean_g, mean_product) = (mean(&g), mean(&products));
            for column in 0..width {
                d_weight[column] += dy[column] * normalized[column];
                d_bias[column] += dy[column];
                let d = inverse * (g[column] - mean_g - normalized[column] * mean_product);
                dx[row * width + column] = to_bf16(f64::from(d));
            }
        }
        Backward { dx, d_weight: added(&self.d_weight, &d_weight), d_bias: added(&self.d_bias, &d_bias) }
    }

    /// The values of rows `[rows, of each]` that are of one value, or not.
    fn of_rows(&self, values: &[f64], flat: bool) -> Vec<f64> {
        let each = values.len() / self.shape.rows.max(1);
        let rows = (0..self.shape.rows).filter(|&row| self.is_flat(row) == flat);
        rows.flat_map(|row| values[row * each..][..each].iter().copied()).collect()
    }

    /// How far a kernel's y and statistics are off. Rows of one value are held against each other: their deviation is all
    /// of rounding.
    pub fn forward_deviations(&self, kernel: &Forward) -> [Deviation; 3] {
        let exact = self.exact().0;
        let plain = plain_evaluations(self.shape.rows, |draw| self.plain_forward(draw));
        let [mut y, mut mean, mut inverse] = [Deviation::default(); 3];
        for flat in [false, true] {
            let of_rows = |answer: &Forward| self.of_rows(&answer.y, flat);
            y = y.worse(deviation_of(kernel, &plain, &exact, of_rows, to_bf16));
            for (which, worst) in [&mut mean, &mut inverse].into_iter().enumerate() {
                let of_rows = |answer: &Forward| {
                    let both = self.of_rows(&answer.statistics, flat);
                    both.into_iter().skip(which).step_by(2).collect()
                };
                *worst = worst.worse(deviation_of(kernel, &plain, &exact, of_rows, to_f32));
            }
        }
        [y, mean, inverse]
    }

    /// How far a kernel's gradients are off: dx, of γ, of β.
    pub fn backward_deviations(&self, kernel: &Backward) -> [Deviation; 3] {
        let exact = self.exact().1;
        let plain = plain_evaluations(self.shape.width, |draw| self.plain_backward(draw, &narrow(&self.dy)));
        let mut dx = Deviation::default();
        for flat in [false, true] {
            let of_rows = |answer: &Backward| self.of_rows(&answer.dx, flat);
            dx = dx.worse(deviation_of(kernel, &plain, &exact, of_rows, to_bf16));
        }
        [
            dx,
            deviation_of(kernel, &plain, &exact, |answer| answer.d_weight.clone(), to_f32),
            deviation_of(kernel, &plain, &exact, |answer| answer.d_bias.clone(), to_f32),
        ]
    }

    /// The answers of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<(Forward, Backward), DeviceError> {
        let shape = self.shape;
        let x = uploaded(gpu, &self.x)?;
        let added = uploaded(gpu, &self.added)?;
        let added = (!self.added.is_empty()).then_some(&added);
        let (weight, bias) = (uploaded(gpu, &self.weight)?, uploaded(gpu, &self.bias)?);
        let norm = DeviceNorm { weight: &weight, bias: &bias, eps: self.eps };
        let mut y = taken(gpu, shape.values())?;
        let mut statistics = taken(gpu, 2 * shape.rows)?;
        layer_norm_forward(gpu, &mut y, &mut statistics, &x, added, norm, shape)?;
        let forward = Forward { y: wide(&gpu.download(&y)?), statistics: wide(&gpu.download(&statistics)?) };

        let (given, mut d) = (uploaded(gpu, &self.statistics())?, uploaded(gpu, &self.dy)?);
        let gradients = [uploaded(gpu, &self.d_weight)?, uploaded(gpu, &self.d_bias)?];
        let norm = NormBackward { x: &x, added, statistics: &given, weight: weight.alias(), gradients };
        PendingSums::of(gpu, &taken(gpu, shape.scratch_len(gpu.limits()))?, |sums| {
            layer_norm_backward(gpu, &mut d, &norm, sums, shape)
        })?;
        let [d_weight, d_bias] = &norm.gradients;
        let backward = Backward {
            dx: wide(&gpu.download(&d)?),
            d_weight: wide(&gpu.download(d_weight)?),
            d_bias: wide(&gpu.download(d_bias)?),
        };
        Ok((forward, backward))
    }
}

/// Runs LayerNorm on the device and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, [(45, 256, Some(15)), (35, 1024, None)])
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, [(rows, 256, Some(rows)), (rows, 1024, None)])
}

fn of_shapes(gpu: &Gpu, shapes: [(usize, usize, Option<usize>); 2]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (rows, width, period) in shapes {
        let problem = Problem::random(NormShape { rows, width }, period, 1e-8, SEED);
        let found = problem.solve(gpu)?;
        let deviations = [problem.forward_deviations(&found.0), problem.backward_deviations(&found.1)];
        for (result, deviation) in RESULTS.iter().zip(deviations.concat()) {
            let what = format!("LayerNorm, {rows} rows of {width}: {}", result.name);
            let results = || ((result.of)(&found), (result.of)(&problem.exact()));
            checked.push(Checked::new(what, deviation, results));
        }
    }
    Ok(checked)
}

/// A result, and its values in answers.
struct NamedResult {
    name: &'static str,
    of: fn(&(Forward, Backward)) -> Vec<f64>,
}

/// In the order of the deviations, forward's before backward's.
const RESULTS: [NamedResult; 6] = [
    NamedResult { name: "y", of: |(forward, _)| forward.y.clone() },
    NamedResult { name: "mean", of: |(forward, _)| forward.statistics.iter().step_by(2).copied().collect() },
    NamedResult {
        name: "1/deviation",
        of: |(forward, _)| forward.statistics.iter().skip(1).step_by(2).copied().collect(),
    },
    NamedResult { name: "dx", of: |(_, backward)| backward.dx.clone() },
    NamedResult { name: "gradient of scale", of: |(_, backward)| backward.d_weight.clone() },
    NamedResult { name: "gradient of shift", of: |(_, backward)| backward.d_bias.clone() },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_that_replace_what_was_there_are_wrong() {
        let problem = Problem::random(NormShape { rows: 35, width: 64 }, None, 1e-8, 1);
        let (_, mut found) = problem.exact();
        assert!(problem.backward_deviations(&found).iter().all(|found| found.is_allowed()));
        let sums = found.d_weight.iter_mut().chain(&mut found.d_bias);
        for (sum, &before) in sums.zip(problem.d_weight.iter().chain(&problem.d_bias)) {
            *sum -= f64::from(before);
        }
        assert!(problem.backward_deviations(&found)[1..].iter().all(|found| !found.is_allowed()));
    }
}
