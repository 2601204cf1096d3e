//! Problems of unpadding grids on a GPU, and their answers.

use half::bf16;

use super::device::{offsets_of, words};
use super::{DeviceGrid, UnpadShape, unpad};
use crate::data::layout::{Cells, Grid, Occupied};
use crate::device::{DeviceError, Gpu};
use crate::ops::check::{Checked, Deviation, SEED, taken};
use crate::ops::values::wide;
use crate::rng::{Rng, Stream};

/// What a launch computes.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Features, and which cells are documents.
    pub grid: Grid,
    /// Columns of the rows.
    pub width: usize,
}

impl Problem {
    /// Sets of random sizes, in random cells where they are masked; normally distributed features, and NaN in padding. The
    /// last set fills its cells, the first of several has one document.
    pub fn random(shape: UnpadShape, seed: u64) -> Self {
        let UnpadShape { sets, n_max, features: num_features, width, masked } = shape;
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let lengths: Vec<usize> = (0..sets)
            .map(|set| match set {
                _ if set + 1 == sets => n_max,
                0 => 1,
                _ => 1 + rng.below(n_max as u32) as usize,
            })
            .collect();
        let occupied: Vec<bool> = lengths
            .iter()
            .flat_map(|&length| {
                let mut of_set: Vec<bool> = (0..n_max).map(|cell| cell < length).collect();
                if masked {
                    rng.shuffle(&mut of_set);
                }
                of_set
            })
            .collect();
        let mut features = vec![f32::NAN; sets * n_max * num_features];
        for (of_cell, _) in features.chunks_mut(num_features.max(1)).zip(&occupied).filter(|(_, is)| **is) {
            of_cell.iter_mut().for_each(|feature| *feature = rng.normal() as f32);
        }
        let occupied = if masked { Occupied::Mask(occupied) } else { Occupied::Lengths(lengths) };
        Problem { grid: Grid { occupied, n_max, num_features, features, ..Grid::default() }, width }
    }

    /// Its sizes.
    pub fn shape(&self) -> UnpadShape {
        let Grid { n_max, num_features: features, occupied, .. } = &self.grid;
        let (sets, masked) = match occupied {
            Occupied::Lengths(lengths) => (lengths.len(), false),
            Occupied::Mask(mask) => (mask.len() / n_max, true),
        };
        UnpadShape { sets, n_max: *n_max, features: *features, width: self.width, masked }
    }

    fn cells(&self) -> Cells {
        self.grid.cells().expect("the cells of a problem are some")
    }

    /// Documents.
    pub fn documents(&self) -> usize {
        self.cells().documents()
    }

    /// Where each set's documents begin, and the last's end, as kernels read it.
    pub fn offsets(&self) -> Vec<i32> {
        offsets_of(&self.cells())
    }

    /// Documents of each set, or its mask in bits, as kernels read it.
    pub fn occupied(&self) -> Vec<u32> {
        match &self.grid.occupied {
            Occupied::Lengths(lengths) => lengths.iter().map(|&length| length as u32).collect(),
            Occupied::Mask(mask) => words(mask, self.grid.n_max),
        }
    }

    /// `[N, width]`
    fn exact(&self) -> Vec<f64> {
        let width = self.grid.num_features;
        let mut features = Vec::new();
        self.cells().gather(&mut features, &self.grid.features, width).expect("features of all cells");
        let row = |document: usize| {
            let of_document = features[document * width..][..width].iter().copied();
            of_document.chain(std::iter::repeat(0.0)).take(self.width)
        };
        (0..self.documents()).flat_map(row).map(|value| bf16::from_f32(value).to_f64()).collect()
    }

    /// How far a kernel's answer is off: not at all, as rounding is all that is computed, and of zeros the sign counts.
    pub fn deviation(&self, kernel: &[f64]) -> Deviation {
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let found = if bits(kernel) == bits(&self.exact()) { 0.0 } else { f64::INFINITY };
        Deviation { found, ..Deviation::default() }
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Vec<f64>, DeviceError> {
        let mut arena = gpu.arena("the check of a kernel", DeviceGrid::bytes(&self.grid))?;
        let grid = DeviceGrid::new(gpu, &mut arena, &self.grid, self.width)?;
        let mut rows = taken(gpu, self.documents() * self.width)?;
        unpad(gpu, &mut rows, &grid)?;
        Ok(wide(&gpu.download(&rows)?))
    }
}

/// Cells that fill neither warps nor words, features that fill no step of columns, and more columns than a warp has at once.
pub const SHAPES: [UnpadShape; 2] = {
    let shape = UnpadShape { sets: 5, n_max: 75, features: 390, width: 448, masked: false };
    [shape, UnpadShape { masked: true, ..shape }]
};

/// Unpads grids on the device and holds the rows against the host's.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    SHAPES.into_iter().map(|shape| of_problem(gpu, shape)).collect()
}

/// The same for sets of up to so many documents.
pub fn run_at(gpu: &Gpu, n: usize) -> Result<Vec<Checked>, DeviceError> {
    let shape = UnpadShape { sets: 5, n_max: n, features: 220, width: 256, masked: false };
    Ok(vec![of_problem(gpu, shape)?, of_problem(gpu, UnpadShape { masked: true, ..shape })?])
}

fn of_problem(gpu: &Gpu, shape: UnpadShape) -> Result<Checked, DeviceError> {
    let problem = Problem::random(shape, SEED);
    let found = problem.solve(gpu)?;
    let UnpadShape { sets, n_max, features, masked, .. } = shape;
    let by = if masked { "a mask" } else { "lengths" };
    let what = format!("{sets} sets of {n_max} cells with {features} features, by {by}");
    Ok(Checked::new(what, problem.deviation(&found), || (found, problem.exact())))
}
