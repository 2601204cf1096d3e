//! Problems of sums of parts on a GPU, their exact answers, and what a kernel's answers are held against.

use super::{SumOfParts, partial_sums};
use crate::device::{DeviceError, Gpu};
use crate::ops::check::rounding::to_f32;
use crate::ops::check::{Checked, Deviation, SEED, deviation, uploaded};
use crate::ops::values::wide;
use crate::rng::{Rng, Stream};

/// A sum of parts.
#[derive(Clone, Debug)]
pub struct Problem {
    count: usize,
    into: Vec<f32>,
    parts: Vec<f32>,
}

impl Problem {
    /// Normally distributed numbers for `count` parts of `length` values.
    pub fn random(length: usize, count: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut take = |len| (0..len).map(|_| rng.normal() as f32).collect();
        Problem { count, into: take(length), parts: take(count * length) }
    }

    /// Parts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What is added to `[length]`.
    pub fn into(&self) -> &[f32] {
        &self.into
    }

    /// `[count, length]`
    pub fn parts(&self) -> &[f32] {
        &self.parts
    }

    /// What a value is the sum of, what is added to first.
    fn terms(&self, at: usize) -> impl DoubleEndedIterator<Item = f32> + Clone {
        let parts = self.parts[at..].iter().step_by(self.into.len()).take(self.count);
        std::iter::once(&self.into[at]).chain(parts).copied()
    }

    /// The answer in f64.
    pub fn exact(&self) -> Vec<f64> {
        (0..self.into.len()).map(|at| self.terms(at).map(f64::from).sum()).collect()
    }

    /// How far a kernel's answer is off, held against sums in f32 in three orders.
    pub fn deviation(&self, kernel: &[f32]) -> Deviation {
        let sums = |sum: fn(&Problem, usize) -> f32| -> Vec<f64> {
            (0..self.into.len()).map(|at| f64::from(sum(self, at))).collect()
        };
        let plain = [
            sums(|problem, at| problem.terms(at).sum()),
            sums(|problem, at| problem.terms(at).rev().sum()),
            sums(|problem, at| {
                let terms = problem.terms(at);
                terms.clone().step_by(2).sum::<f32>() + terms.skip(1).step_by(2).sum::<f32>()
            }),
        ];
        deviation(&wide(kernel), &plain.each_ref().map(|sums| &sums[..]), &self.exact(), to_f32)
    }

    /// What an answer is called, and how far it is off.
    fn check(&self, found: &[f32]) -> Checked {
        let what = format!("sums of {} parts of {} values", self.count, self.into.len());
        Checked::new(what, self.deviation(found), || (wide(found), self.exact()))
    }
}

/// The answers of a GPU to problems that it solves at once.
pub fn solve(gpu: &Gpu, problems: &[Problem]) -> Result<Vec<Vec<f32>>, DeviceError> {
    let sums = problems.iter().map(|problem| {
        let (into, parts) = (uploaded(gpu, &problem.into)?, uploaded(gpu, &problem.parts)?);
        Ok(SumOfParts { into, parts, count: problem.count })
    });
    let mut sums = sums.collect::<Result<Vec<_>, DeviceError>>()?;
    partial_sums(gpu, &mut sums)?;
    sums.iter().map(|sum| gpu.download(&sum.into)).collect()
}

/// Adds up parts on the device and holds the sums against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_parts(gpu, &[(1, 1), (33, 7), (1000, 100)])
}

/// The same for so many parts of as many values.
pub fn run_at(gpu: &Gpu, n: usize) -> Result<Vec<Checked>, DeviceError> {
    of_parts(gpu, &[(n, n)])
}

fn of_parts(gpu: &Gpu, sums: &[(usize, usize)]) -> Result<Vec<Checked>, DeviceError> {
    let problems: Vec<Problem> =
        sums.iter().map(|&(length, count)| Problem::random(length, count, SEED)).collect();
    let found = solve(gpu, &problems)?;
    Ok(problems.iter().zip(&found).map(|(problem, found)| problem.check(found)).collect())
}
