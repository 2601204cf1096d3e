//! Problems of scores on a GPU, their exact answers, and what a kernel's answers are held against.

use half::bf16;

use super::{ScorePlan, score_backward, score_forward, score_scratch_len};
use crate::device::{DeviceError, Gpu};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::sums::Sums;
use crate::ops::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::ops::gemm::{Aligned, Write};
use crate::ops::linear::{
    Activation, WeightGradients, WeightJob, Weights, backward_input, backward_weights, forward,
};
use crate::ops::partial_sums::PendingSums;
use crate::ops::scratch::PerThread;
use crate::ops::values::{added, plain_product, transposed, wide};
use crate::rng::{Rng, Stream};

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Scores.
    Forward,
    /// Gradients.
    Backward,
}

/// Scores of bf16 rows, or their gradients.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What is computed.
    pub direction: Direction,
    /// `[rows, width]`
    pub x: Vec<bf16>,
    /// `[width]`
    pub weight: Vec<f32>,
    /// `[1]`
    pub bias: Vec<f32>,
    /// `[rows]`
    pub d_scores: Vec<f32>,
    /// `[width]`: what dw is added to.
    pub d_weight: Vec<f32>,
    /// `[1]`: what db is added to.
    pub d_bias: Vec<f32>,
}

/// The scores; or dx, dw and db.
pub type Answer = Vec<Vec<f64>>;

impl Problem {
    /// Normally distributed numbers, the weights so that scores are of about that size too.
    pub fn random(direction: Direction, rows: usize, width: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut normal =
            |len: usize, scale: f64| -> Vec<f64> { (0..len).map(|_| rng.normal() * scale).collect() };
        let narrow = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
        Problem {
            direction,
            x: normal(rows * width, 1.0).into_iter().map(bf16::from_f64).collect(),
            weight: narrow(normal(width, 1.0 / (width as f64).sqrt())),
            bias: narrow(normal(1, 1.0)),
            d_scores: narrow(normal(rows, 1.0)),
            d_weight: narrow(normal(width, 1.0)),
            d_bias: narrow(normal(1, 1.0)),
        }
    }

    /// The launch's plan.
    pub fn plan(&self) -> Result<ScorePlan, DeviceError> {
        ScorePlan::new(self.rows(), self.width())
    }

    /// N
    pub fn rows(&self) -> usize {
        self.d_scores.len()
    }

    /// C
    pub fn width(&self) -> usize {
        self.weight.len()
    }

    /// The answer in f64, by the CPU's own linear layer.
    pub fn exact(&self) -> Answer {
        let (rows, width) = (self.rows(), self.width());
        let x = wide(&self.x);
        let [weight, bias, dy] = [&self.weight, &self.bias, &self.d_scores].map(|values| wide(values));
        let layer = Weights { weight: &weight, bias: &bias };
        let mut buffer = Aligned::default();
        match self.direction {
            Direction::Forward => {
                let mut scores = vec![0.0; rows];
                forward(&mut scores, &x, layer, Activation::Identity, &mut buffer);
                vec![scores]
            }
            Direction::Backward => {
                let mut dx = vec![0.0; rows * width];
                backward_input(&mut dx, Write::Set, &dy, layer, &mut buffer);
                let (mut d_weight, mut d_bias) = (wide(&self.d_weight), wide(&self.d_bias));
                let gradients = WeightGradients { weight: &mut d_weight, bias: &mut d_bias };
                let mut threads = PerThread::default();
                threads.prepare();
                backward_weights([WeightJob { gradients, dy: &dy, x: &x }], &threads);
                vec![dx, d_weight, d_bias]
            }
        }
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        let (rows, width) = (self.rows(), self.width());
        let x: Vec<f32> = self.x.iter().map(|value| value.to_f32()).collect();
        let order = |len| draw.order(len);
        match self.direction {
            Direction::Forward => {
                let mut scores = plain_product(&x, &self.weight, &order(width), Sums::Nearest);
                scores.iter_mut().for_each(|score| *score += self.bias[0]);
                vec![wide(&scores)]
            }
            Direction::Backward => {
                let products = self.d_scores.iter().flat_map(|d| self.weight.iter().map(move |w| d * w));
                let dx = products.map(|dx| bf16::from_f32(dx).to_f64()).collect();
                let order = order(rows);
                let d_weight = plain_product(&self.d_scores, &transposed(&x, width), &order, Sums::Nearest);
                let d_bias = plain_product(&self.d_scores, &vec![1.0; rows], &order, Sums::Nearest);
                vec![dx, added(&self.d_weight, &d_weight), added(&self.d_bias, &d_bias)]
            }
        }
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let exact = self.exact();
        let results = exact.iter().map(Vec::len).min().unwrap_or(0);
        let plain = plain_evaluations(results, |draw| self.plain(draw));
        let of = |at: usize, name| {
            let round = if name == "dx" { to_bf16 } else { to_f32 };
            let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain[at][..]).collect();
            (name, deviation(&kernel[at], &plain, &exact[at], round))
        };
        match self.direction {
            Direction::Forward => vec![of(0, "scores")],
            Direction::Backward => vec![of(0, "dx"), of(1, "dw"), of(2, "db")],
        }
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let (rows, width) = (self.rows(), self.width());
        let (x, weight) = (uploaded(gpu, &self.x)?, uploaded(gpu, &self.weight)?);
        match self.direction {
            Direction::Forward => {
                let (mut scores, bias) = (taken(gpu, rows)?, uploaded(gpu, &self.bias)?);
                score_forward(gpu, &mut scores, &x, &weight, &bias)?;
                Ok(vec![wide(&gpu.download(&scores)?)])
            }
            Direction::Backward => {
                let (mut dx, d_scores) = (taken(gpu, rows * width)?, uploaded(gpu, &self.d_scores)?);
                let mut d_weight = uploaded(gpu, &self.d_weight)?;
                let mut d_bias = uploaded(gpu, &self.d_bias)?;
                PendingSums::of(gpu, &taken(gpu, score_scratch_len(rows, width))?, |sums| {
                    let (d_weight, d_bias) = (&mut d_weight, &mut d_bias);
                    score_backward(gpu, &mut dx, d_weight, d_bias, &d_scores, &x, &weight, sums)
                })?;
                let [d_weight, d_bias] = [gpu.download(&d_weight)?, gpu.download(&d_bias)?];
                Ok(vec![wide(&gpu.download(&dx)?), wide(&d_weight), wide(&d_bias)])
            }
        }
    }
}

/// Computes scores on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, [(37, 64), (300, 320)])
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, [(rows, 64), (rows, 320)])
}

fn of_shapes(gpu: &Gpu, shapes: [(usize, usize); 2]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for (rows, width) in shapes {
            let problem = Problem::random(direction, rows, width, SEED);
            let found = problem.solve(gpu)?;
            for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
                let what = format!("scores, {direction:?}, {rows} rows of {width}: {result}");
                let results = || (found[at].clone(), problem.exact().swap_remove(at));
                checked.push(Checked::new(what, deviation, results));
            }
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_that_replace_what_was_there_are_wrong() {
        let problem = Problem::random(Direction::Backward, 37, 64, 1);
        let right = problem.exact();
        let without = |at: usize, before: &[f32]| -> Vec<f64> {
            right[at].iter().zip(before).map(|(sum, &before)| sum - f64::from(before)).collect()
        };
        let alone = vec![right[0].clone(), without(1, &problem.d_weight), without(2, &problem.d_bias)];
        assert!(problem.deviations(&right).iter().all(|(_, found)| found.is_allowed()));
        assert!(problem.deviations(&alone)[1..].iter().all(|(_, found)| !found.is_allowed()));
    }
}
