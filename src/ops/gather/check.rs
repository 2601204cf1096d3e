//! Problems of gathering rows on a GPU, and their answers.

use half::bf16;

use super::{DeviceFeatureDropout, RowNumbers, gather_rows};
use crate::data::augment::{Columns, FeatureDropout};
use crate::data::batch::Shuffle;
use crate::device::{DeviceError, Gpu, Uploads};
use crate::ops::check::{Checked, Deviation, SEED, room, taken, uploaded};
use crate::ops::values::wide;
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
    /// `[rows]`, rows of a data set: what `dropout` draws by.
    pub data_rows: Vec<usize>,
    /// Features that become 0.
    pub dropout: Option<FeatureDropout>,
}

/// The size of a problem.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rows that are gathered.
    pub rows: usize,
    /// Rows of the matrix.
    pub of: usize,
    /// Columns.
    pub width: usize,
    /// Columns that are dropped together, where some are.
    pub dropped: Option<Columns>,
}

impl Size {
    /// `rows` of `of` rows of `width` values.
    pub const fn new(rows: usize, of: usize, width: usize) -> Self {
        Size { rows, of, width, dropped: None }
    }

    /// The same, with `num_features` features that are dropped, of which more columns follow from `first_within_set` on.
    pub const fn dropping(self, num_features: usize, first_within_set: usize) -> Self {
        Size { dropped: Some(Columns { num_features, first_within_set }), ..self }
    }
}

impl Problem {
    /// Rows of normally distributed numbers; some come more than once, others not at all. Between a tenth and half of the
    /// features are dropped.
    pub fn random(size: Size, seed: u64) -> Self {
        let Size { rows, of, width, dropped } = size;
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let from = (0..of * width).map(|_| bf16::from_f64(rng.normal())).collect();
        let numbers = (0..rows).map(|_| rng.below(of as u32) as i32).collect();
        let data_rows = (0..rows).map(|_| rng.below(i32::MAX as u32) as usize).collect();
        let dropout = dropped.map(|columns| FeatureDropout {
            rate: 0.1 + 0.4 * rng.uniform(),
            shuffle: Shuffle { seed: seed << 40 | seed, epoch: seed + 2 },
            columns,
        });
        Problem { width, from, numbers, data_rows, dropout }
    }

    /// Rows of the matrix.
    pub fn of(&self) -> usize {
        self.from.len() / self.width
    }

    /// `[rows, width]`
    fn exact(&self) -> Vec<f64> {
        let row = |(&number, &data_row): (&i32, &usize)| {
            let from = &self.from[number as usize * self.width..][..self.width];
            let mut values: Vec<f32> = from.iter().map(|value| value.to_f32()).collect();
            if let Some(dropout) = &self.dropout {
                dropout.apply(data_row, &mut values);
            }
            values.into_iter().map(f64::from)
        };
        self.numbers.iter().zip(&self.data_rows).flat_map(row).collect()
    }

    /// How far a kernel's answer is off: not at all, as nothing is computed, and of zeros the sign counts.
    pub fn deviation(&self, kernel: &[f64]) -> Deviation {
        let exact = self.exact();
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let found = if bits(kernel) == bits(&exact) { 0.0 } else { f64::INFINITY };
        Deviation { found, ..Deviation::default() }
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Vec<f64>, DeviceError> {
        let (rows, from) = (self.numbers.len(), uploaded(gpu, &self.from)?);
        let package = room(gpu, RowNumbers::bytes(rows) + DeviceFeatureDropout::bytes(rows))?;
        let mut uploads = Uploads::default();
        let (numbers, dropout) = uploads.send(gpu, package, |package| {
            let numbers = RowNumbers::new(package, &self.numbers, self.of())?;
            let dropout =
                self.dropout.map(|dropout| DeviceFeatureDropout::new(package, dropout, &self.data_rows));
            Ok((numbers, dropout.transpose()?))
        })?;
        let mut to = taken(gpu, rows * self.width)?;
        gather_rows(gpu, &mut to, &from, &numbers, dropout.as_ref(), self.width)?;
        Ok(wide(&gpu.download(&to)?))
    }
}

/// The last block in part, and the last four steps of columns too; with dropout, more features than the threads of a row
/// draw for at once, and indicators and columns within the set that begin anywhere.
pub const SIZES: [Size; 4] = [
    Size::new(70, 9, 320),
    Size::new(33, 50, 448),
    Size::new(70, 9, 576).dropping(270, 277),
    Size::new(33, 50, 832).dropping(257, 259),
];

/// Gathers on the device and holds the rows against the matrix.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    SIZES.into_iter().map(|size| of_problem(gpu, size)).collect()
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, n: usize) -> Result<Vec<Checked>, DeviceError> {
    let size = Size::new(n, 2 * n, 256);
    Ok(vec![of_problem(gpu, size)?, of_problem(gpu, size.dropping(70, 75))?])
}

fn of_problem(gpu: &Gpu, size: Size) -> Result<Checked, DeviceError> {
    let problem = Problem::random(size, SEED);
    let found = problem.solve(gpu)?;
    let Size { rows, of, width, dropped } = size;
    let dropped = dropped
        .map_or_else(String::new, |columns| format!(", with dropout of {} features", columns.num_features));
    let what = format!("{rows} of {of} rows of {width} values{dropped}");
    Ok(Checked::new(what, problem.deviation(&found), || (found, problem.exact())))
}
