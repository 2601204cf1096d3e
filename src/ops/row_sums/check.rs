//! Problems of ReLU's backward pass and of sums of repeated rows on a GPU, their exact answers, and what a kernel's
//! answers are held against.

use half::bf16;

use super::{add_repeats, relu_backward, sum_repeats};
use crate::device::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::device::draw::{Draw, plain_evaluations};
use crate::device::rounding::{to_bf16, to_f32};
use crate::device::{DeviceError, Gpu};
use crate::ops::linear;
use crate::ops::values::wide;
use crate::rng::{Rng, Stream};

/// Which of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// dy, where y is above 0.
    ReluBackward,
    /// Sums that are set.
    Sum,
    /// Sums that are added.
    Add,
}

/// Sizes: ReLU has one group and one repeat, sums that are added have one group.
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
    /// `[run]`: ReLU's output, or what is added once; empty for sums that are set.
    pub y: Vec<bf16>,
    /// `[run]`: what is added to, empty but for that.
    pub into: Vec<f32>,
}

impl Problem {
    /// Normally distributed numbers; half of ReLU's output is 0, and some of it is what no ReLU leaves.
    pub fn random(kernel: Kernel, shape: Shape, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut normal = |len: usize| -> Vec<f64> { (0..len).map(|_| rng.normal()).collect() };
        let Shape { groups, repeats, run } = shape;
        let x = normal(groups * repeats * run).into_iter().map(bf16::from_f64).collect();
        let (mut y, mut into) = (Vec::new(), Vec::new());
        match kernel {
            Kernel::ReluBackward => {
                y = normal(run).into_iter().map(|y| bf16::from_f64(y.max(0.0))).collect();
                let odd = [bf16::NAN, -bf16::NAN, bf16::NEG_ONE, bf16::NEG_ZERO, bf16::INFINITY];
                y.iter_mut().step_by(7).zip(odd).for_each(|(y, odd)| *y = odd);
            }
            Kernel::Sum => {}
            Kernel::Add => {
                y = normal(run).into_iter().map(bf16::from_f64).collect();
                into = normal(run).into_iter().map(|value| value as f32).collect();
            }
        }
        Problem { kernel, shape, x, y, into }
    }

    /// The answer in f64.
    fn exact(&self) -> Vec<f64> {
        match self.kernel {
            Kernel::ReluBackward => {
                let mut dy = wide(&self.x);
                linear::relu_backward(&mut dy, &wide(&self.y));
                dy
            }
            _ => {
                let sum = |terms: &[bf16]| wide(terms).iter().sum::<f64>();
                self.each_sum(|before, once, terms| f64::from(before) + f64::from(once) + sum(terms))
            }
        }
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Vec<f64> {
        if self.kernel == Kernel::ReluBackward {
            // There is nothing to round.
            return self.exact();
        }
        let order = draw.order(self.shape.repeats);
        self.each_sum(|before, once, terms| {
            let sum = order.iter().fold(0.0f32, |sum, &at| sum + terms[at].to_f32());
            self.rounded((before + once + sum).into())
        })
    }

    /// Of what is there before, what is added once, and the repeats of each result; what is not there is 0.
    fn each_sum(&self, sum: impl Fn(f32, f32, &[bf16]) -> f64) -> Vec<f64> {
        let Shape { repeats, run, .. } = self.shape;
        let of_column = |group: &[bf16], at: usize| {
            let terms: Vec<bf16> = group[at..].iter().step_by(run).copied().collect();
            let once = self.y.get(at).map_or(0.0, |once| once.to_f32());
            sum(self.into.get(at).copied().unwrap_or(0.0), once, &terms)
        };
        let groups = self.x.chunks(repeats * run);
        groups.flat_map(|group| (0..run).map(|at| of_column(group, at)).collect::<Vec<_>>()).collect()
    }

    /// To the type that results are stored in.
    fn rounded(&self, value: f64) -> f64 {
        match self.kernel {
            Kernel::Add => to_f32(value),
            _ => to_bf16(value),
        }
    }

    /// How far a kernel's answer is off.
    pub fn deviation(&self, kernel: &[f64]) -> Deviation {
        let exact = self.exact();
        let plain = plain_evaluations(exact.len(), |draw| self.plain(draw));
        let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain[..]).collect();
        deviation(kernel, &plain, &exact, |value| self.rounded(value))
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Vec<f64>, DeviceError> {
        let Shape { groups, repeats, run } = self.shape;
        let mut x = uploaded(gpu, &self.x)?;
        match self.kernel {
            Kernel::ReluBackward => {
                relu_backward(gpu, &mut x, &uploaded(gpu, &self.y)?)?;
                Ok(wide(&gpu.download(&x)?))
            }
            Kernel::Sum => {
                let mut out = taken(gpu, groups * run)?;
                sum_repeats(gpu, &mut out, &x, groups, repeats)?;
                Ok(wide(&gpu.download(&out)?))
            }
            Kernel::Add => {
                let mut into = uploaded(gpu, &self.into)?;
                add_repeats(gpu, &mut into, &uploaded(gpu, &self.y)?, &x, repeats)?;
                Ok(gpu.download(&into)?.into_iter().map(f64::from).collect())
            }
        }
    }
}

/// A problem for each kernel: more than a block, the last one in part, and more repeats than are loaded at once.
pub const PROBLEMS: [(Kernel, Shape); 3] = [
    (Kernel::ReluBackward, Shape { groups: 1, repeats: 1, run: 2112 }),
    (Kernel::Sum, Shape { groups: 3, repeats: 11, run: 544 }),
    (Kernel::Add, Shape { groups: 1, repeats: 19, run: 576 }),
];

/// Runs every kernel on the device and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_problems(gpu, PROBLEMS)
}

/// Values that stand for one of the `n`.
const UNIT: usize = 64;

/// The same for so many rows, and repeats.
pub fn run_at(gpu: &Gpu, n: usize) -> Result<Vec<Checked>, DeviceError> {
    let sum = Shape { groups: 1, repeats: n, run: UNIT };
    let relu = Shape { groups: 1, repeats: 1, run: n * UNIT };
    of_problems(gpu, [(Kernel::ReluBackward, relu), (Kernel::Sum, sum), (Kernel::Add, sum)])
}

fn of_problems(gpu: &Gpu, problems: [(Kernel, Shape); 3]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (kernel, shape) in problems {
        let problem = Problem::random(kernel, shape, SEED);
        let found = problem.solve(gpu)?;
        let Shape { groups, repeats, run } = shape;
        let what = match kernel {
            Kernel::ReluBackward => format!("ReLU's backward pass, {run} values"),
            Kernel::Sum => format!("sums over {repeats} repeats, {groups} groups of {run} values"),
            Kernel::Add => format!("sums over {repeats} repeats of {run} values, added"),
        };
        checked.push(Checked::new(what, problem.deviation(&found), || (found, problem.exact())));
    }
    Ok(checked)
}
