//! Problems of ReLU's backward pass and of sums of repeated rows on a GPU, their exact answers, and what a kernel's
//! answers are held against.

use half::bf16;

use super::{Repeats, relu_backward, sum_repeats};
use crate::device::{DeviceError, Gpu};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::ops::linear;
use crate::ops::values::wide;
use crate::rng::{Rng, Stream};

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// dy, where y is above 0.
    ReluBackward,
    /// Sums that are set, and sums that are added.
    Sums,
}

/// Sizes: ReLU has one group and one repeat.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Groups.
    pub groups: usize,
    /// Repeats of a group.
    pub repeats: usize,
    /// Values of a repeat.
    pub run: usize,
}

/// What a launch computes.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What is computed.
    pub kernel: Kernel,
    /// Sizes.
    pub shape: Shape,
    /// `[groups, repeats, run]`: what is summed, or dy.
    pub x: Vec<bf16>,
    /// `[repeats, groups, run]`: what is summed and added, or ReLU's output.
    pub y: Vec<bf16>,
    /// `[groups, run]`: what is added to, empty for ReLU.
    pub into: Vec<f32>,
}

/// Results, one after the other: dy, or the sums that are set and those that are added.
pub type Answer = Vec<Vec<f64>>;

impl Problem {
    /// Normally distributed numbers; half of ReLU's output is 0, and some of it is what no ReLU leaves.
    pub fn random(kernel: Kernel, shape: Shape, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut normal = |len: usize| -> Vec<f64> { (0..len).map(|_| rng.normal()).collect() };
        let rounded = |values: Vec<f64>| -> Vec<bf16> { values.into_iter().map(bf16::from_f64).collect() };
        let Shape { groups, repeats, run } = shape;
        let terms = groups * repeats * run;
        let (x, y) = (rounded(normal(terms)), normal(terms));
        match kernel {
            Kernel::ReluBackward => {
                let mut y = rounded(y.into_iter().map(|y| y.max(0.0)).collect());
                let odd = [bf16::NAN, -bf16::NAN, bf16::NEG_ONE, bf16::NEG_ZERO, bf16::INFINITY];
                y.iter_mut().step_by(7).zip(odd).for_each(|(y, odd)| *y = odd);
                Problem { kernel, shape, x, y, into: Vec::new() }
            }
            Kernel::Sums => {
                let into = normal(groups * run).into_iter().map(|value| value as f32).collect();
                Problem { kernel, shape, x, y: rounded(y), into }
            }
        }
    }

    /// Names of the results.
    fn names(&self) -> &'static [&'static str] {
        match self.kernel {
            Kernel::ReluBackward => &["dy"],
            Kernel::Sums => &["out", "into"],
        }
    }

    /// The answer in f64.
    fn exact(&self) -> Answer {
        match self.kernel {
            Kernel::ReluBackward => {
                let mut dy = wide(&self.x);
                linear::relu_backward(&mut dy, &wide(&self.y));
                vec![dy]
            }
            Kernel::Sums => {
                let sum = |terms: &[bf16]| wide(terms).iter().sum::<f64>();
                self.sums(sum, |before, terms| f64::from(before) + sum(terms))
            }
        }
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        if self.kernel == Kernel::ReluBackward {
            // There is nothing to round.
            return self.exact();
        }
        let order = draw.order(self.shape.repeats);
        let sum = |terms: &[bf16]| order.iter().fold(0.0f32, |sum, &at| sum + terms[at].to_f32());
        self.sums(|terms| to_bf16(sum(terms).into()), |before, terms| (before + sum(terms)).into())
    }

    /// Each result of its repeats, and of what is there before where it is added.
    fn sums(&self, set: impl Fn(&[bf16]) -> f64, added: impl Fn(f32, &[bf16]) -> f64) -> Answer {
        let Shape { repeats, run, .. } = self.shape;
        let sums = self.into.len();
        let of_x = |at: usize| -> Vec<bf16> {
            let group = &self.x[at / run * repeats * run..];
            group[at % run..].iter().step_by(run).take(repeats).copied().collect()
        };
        let of_y = |at: usize| -> Vec<bf16> { self.y.iter().skip(at).step_by(sums).copied().collect() };
        vec![
            (0..sums).map(|at| set(&of_x(at))).collect(),
            (0..sums).map(|at| added(self.into[at], &of_y(at))).collect(),
        ]
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let exact = self.exact();
        let plain = plain_evaluations(exact[0].len(), |draw| self.plain(draw));
        let of = |(at, &name): (usize, &&'static str)| {
            let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain[at][..]).collect();
            let round = if name == "into" { to_f32 } else { to_bf16 };
            (name, deviation(&kernel[at], &plain, &exact[at], round))
        };
        self.names().iter().enumerate().map(of).collect()
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let Shape { groups, repeats, run } = self.shape;
        let (mut x, y) = (uploaded(gpu, &self.x)?, uploaded(gpu, &self.y)?);
        match self.kernel {
            Kernel::ReluBackward => {
                relu_backward(gpu, &mut x, &y)?;
                Ok(vec![wide(&gpu.download(&x)?)])
            }
            Kernel::Sums => {
                let (mut out, mut into) = (taken(gpu, groups * run)?, uploaded(gpu, &self.into)?);
                sum_repeats(gpu, &mut out, &mut into, Repeats { x: &x, y: &y, groups, repeats })?;
                Ok(vec![wide(&gpu.download(&out)?), wide(&gpu.download(&into)?)])
            }
        }
    }
}

/// A problem for each kernel: more than a block, the last one in part, and more repeats than are loaded at once.
pub const PROBLEMS: [(Kernel, Shape); 2] = [
    (Kernel::ReluBackward, Shape { groups: 1, repeats: 1, run: 2112 }),
    (Kernel::Sums, Shape { groups: 3, repeats: 11, run: 544 }),
];

/// Runs every kernel on the device and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_problems(gpu, PROBLEMS)
}

/// Values that stand for one of the `n`.
const UNIT: usize = 64;

/// The same for so many rows, and repeats.
pub fn run_at(gpu: &Gpu, n: usize) -> Result<Vec<Checked>, DeviceError> {
    let sums = Shape { groups: 1, repeats: n, run: UNIT };
    let relu = Shape { groups: 1, repeats: 1, run: n * UNIT };
    of_problems(gpu, [(Kernel::ReluBackward, relu), (Kernel::Sums, sums)])
}

fn of_problems(gpu: &Gpu, problems: [(Kernel, Shape); 2]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (kernel, shape) in problems {
        let problem = Problem::random(kernel, shape, SEED);
        let found = problem.solve(gpu)?;
        let Shape { groups, repeats, run } = shape;
        let what = match kernel {
            Kernel::ReluBackward => format!("ReLU's backward pass, {run} values"),
            Kernel::Sums => format!("sums over {repeats} repeats, {groups} groups of {run} values"),
        };
        for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
            let answers = || (found[at].clone(), problem.exact().swap_remove(at));
            checked.push(Checked::new(format!("{what}: {result}"), deviation, answers));
        }
    }
    Ok(checked)
}
