//! Grids on a GPU and the rows of their documents: the kernels of `kernels/unpad.cu`.

use half::bf16;

use super::{UnpadPlan, UnpadShape};
use crate::data::layout::{Cells, Grid, Occupied};
use crate::device::abi::Unpad;
use crate::device::{Arena, Buffer, DeviceError, Gpu, Operands, parameter};

parameter!(Unpad: |self| format!("{} sets of {} cells with {} features", self.sets, self.n_max, self.features));

/// Which cells are documents, on a GPU.
#[derive(Debug)]
enum DeviceOccupied {
    /// `[B]`
    Lengths(Buffer<i32>),
    /// `[B, ⌈n_max / 32⌉]`, a bit a cell.
    Mask(Buffer<u32>),
}

/// The features of a batch in a grid, on a GPU as they were handed over: padding included.
#[derive(Debug)]
pub struct DeviceGrid {
    /// `[B, n_max, F]`
    features: Buffer<f32>,
    /// `[B + 1]`
    offsets: Buffer<i32>,
    occupied: DeviceOccupied,
    plan: UnpadPlan,
    shape: UnpadShape,
    documents: usize,
}

impl DeviceGrid {
    /// Copies the features of `grid` to the GPU, for rows of `width` columns.
    ///
    /// # Errors
    ///
    /// A grid that is none, as [`Grid::batch`] says, and one that the kernels are not made for; too small an arena, and what
    /// the driver refuses.
    pub fn new(gpu: &Gpu, arena: &mut Arena, grid: &Grid, width: usize) -> Result<Self, DeviceError> {
        let refused = |why: String| DeviceError::Shapes(format!("documents of a grid on a GPU: {why}"));
        let cells = grid.cells().map_err(|error| refused(error.to_string()))?;
        let shape = UnpadShape {
            sets: cells.sets(),
            n_max: grid.n_max,
            features: grid.num_features,
            width,
            masked: matches!(grid.occupied, Occupied::Mask(_)),
        };
        let plan = UnpadPlan::new(shape)?;
        let expected = cells.cells().saturating_mul(grid.num_features);
        if grid.features.len() != expected {
            return Err(refused(format!(
                "{} features are given, but [B, n_max, F] makes {expected}",
                grid.features.len()
            )));
        }
        let documents = cells.documents();
        if i32::try_from(documents).is_err() {
            return Err(refused(format!("{documents} documents, more than kernels count")));
        }
        let mut features = arena.take(expected)?;
        gpu.upload(&mut features, &grid.features)?;
        let mut offsets = arena.take(cells.sets() + 1)?;
        gpu.upload(&mut offsets, &offsets_of(&cells))?;
        let occupied = match &grid.occupied {
            Occupied::Lengths(lengths) => {
                let lengths: Vec<i32> = lengths.iter().map(|&length| length as i32).collect();
                let mut on_gpu = arena.take(lengths.len())?;
                gpu.upload(&mut on_gpu, &lengths)?;
                DeviceOccupied::Lengths(on_gpu)
            }
            Occupied::Mask(mask) => {
                let words = words(mask, grid.n_max);
                let mut on_gpu = arena.take(words.len())?;
                gpu.upload(&mut on_gpu, &words)?;
                DeviceOccupied::Mask(on_gpu)
            }
        };
        Ok(DeviceGrid { features, offsets, occupied, plan, shape, documents })
    }

    /// Bytes of an arena that [`new`](Self::new) takes for `grid`.
    pub fn bytes(grid: &Grid) -> usize {
        let (sets, occupied) = match &grid.occupied {
            Occupied::Lengths(lengths) => (lengths.len(), lengths.len()),
            Occupied::Mask(mask) => {
                let sets = mask.len() / grid.n_max.max(1);
                (sets, sets * grid.n_max.div_ceil(32))
            }
        };
        Arena::bytes_for([grid.features.len(), sets + 1, occupied].map(|values| 4 * values))
    }

    /// N
    pub fn documents(&self) -> usize {
        self.documents
    }
}

/// Where each set's documents begin, and the last's end.
pub(super) fn offsets_of(cells: &Cells) -> Vec<i32> {
    cells.offsets().iter().map(|&offset| offset as i32).collect()
}

/// A bit a cell: each set's `n_max` in words of its own.
pub(super) fn words(mask: &[bool], n_max: usize) -> Vec<u32> {
    let word = |cells: &[bool]| (0..).zip(cells).fold(0, |word, (bit, &is)| word | u32::from(is) << bit);
    mask.chunks(n_max.max(1)).flat_map(|set| set.chunks(32).map(word)).collect()
}

/// Queues rows `[N, width]` = the features of the grid's documents, set by set, rounded to bf16 and 0 from column F on.
/// Padding is not read.
///
/// # Errors
///
/// Another number of rows, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn unpad(gpu: &Gpu, rows: &mut Buffer<bf16>, grid: &DeviceGrid) -> Result<(), DeviceError> {
    let UnpadShape { sets, n_max, features, width, .. } = grid.shape;
    let mut operands = Operands::new(gpu, "documents of a grid");
    operands.reads("grid [B, n_max, F]", &grid.features, sets * n_max * features)?;
    operands.reads("offsets [B + 1]", &grid.offsets, sets + 1)?;
    operands.writes("rows [N, width]", rows, grid.documents * width)?;
    let mut parameter = Unpad {
        grid: grid.features.pointer(),
        offsets: grid.offsets.pointer(),
        rows: rows.pointer_mut(),
        ..grid.plan.numbers()
    };
    match &grid.occupied {
        DeviceOccupied::Lengths(lengths) => {
            operands.reads("lengths [B]", lengths, sets)?;
            parameter.lengths = lengths.pointer();
        }
        DeviceOccupied::Mask(mask) => {
            operands.reads("mask [B, n_max] in bits", mask, sets * n_max.div_ceil(32))?;
            parameter.mask = mask.pointer();
        }
    }
    let Some(launch) = grid.plan.launch() else { return Ok(()) };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, offsets, lengths and mask are of the same cells, and memory
    // that is given back is freed in the stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}
