//! Problems of gathering rows on a GPU, and their answers.

use half::bf16;

use super::{RowNumbers, gather_rows};
use crate::device::check::{Checked, Deviation, SEED, deviation, taken, to_bf16, uploaded};
use crate::device::{DeviceError, Gpu, Uploads};
use crate::ops::linear::check::wide;
use crate::rng::{Rng, Stream};

/// What a launch computes.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Columns.
    pub width: usize,
    /// `[any, width]`
    pub from: Vec<bf16>,
    /// `[rows]`
    pub numbers: Vec<i32>,
}

impl Problem {
    /// `rows` of `of` rows of normally distributed numbers; some come more than once, others not at all.
    pub fn random(rows: usize, of: usize, width: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let from = (0..of * width).map(|_| bf16::from_f64(rng.normal())).collect();
        let numbers = (0..rows).map(|_| rng.below(of as u32) as i32).collect();
        Problem { width, from, numbers }
    }

    /// Rows of the matrix.
    pub fn of(&self) -> usize {
        self.from.len() / self.width
    }

    /// `[rows, width]`
    fn exact(&self) -> Vec<f64> {
        let row = |&number: &i32| wide(&self.from[number as usize * self.width..][..self.width]);
        self.numbers.iter().flat_map(row).collect()
    }

    /// How far a kernel's answer is off: not at all, as nothing is computed.
    pub fn deviation(&self, kernel: &[f64]) -> Deviation {
        let exact = self.exact();
        deviation(kernel, &[&exact], &exact, to_bf16)
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Vec<f64>, DeviceError> {
        let (rows, from) = (self.numbers.len(), uploaded(gpu, &self.from)?);
        let package = taken(gpu, RowNumbers::bytes(rows))?;
        let mut uploads = Uploads::default();
        let numbers =
            uploads.send(gpu, package, |package| RowNumbers::new(package, &self.numbers, self.of()))?;
        let mut to = taken(gpu, rows * self.width)?;
        gather_rows(gpu, &mut to, &from, &numbers, self.width)?;
        Ok(wide(&gpu.download(&to)?))
    }
}

/// Rows, rows of the matrix, columns: the last block in part, and the last four steps of columns too.
pub const SIZES: [(usize, usize, usize); 2] = [(70, 9, 320), (33, 50, 448)];

/// Gathers on the device and holds the rows against the matrix.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    SIZES.into_iter().map(|(rows, of, width)| of_problem(gpu, rows, of, width)).collect()
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, n: usize) -> Result<Vec<Checked>, DeviceError> {
    Ok(vec![of_problem(gpu, n, 2 * n, 256)?])
}

fn of_problem(gpu: &Gpu, rows: usize, of: usize, width: usize) -> Result<Checked, DeviceError> {
    let problem = Problem::random(rows, of, width, SEED);
    let found = problem.solve(gpu)?;
    let what = format!("{rows} of {of} rows of {width} values");
    Ok(Checked::new(what, problem.deviation(&found), || (found, problem.exact())))
}
