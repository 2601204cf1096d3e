//! How documents of grids are copied: which warp looks at which cells.

use crate::data::layout::MAX_CELLS;
use crate::device::abi::{UNPAD_CELLS, UNPAD_THREADS, Unpad};
use crate::device::{DeviceError, Limits, Plan};

/// Warps of a block.
const WARPS: usize = UNPAD_THREADS as usize / 32;

/// The sizes of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpadShape {
    /// B
    pub sets: usize,
    /// Cells of each set.
    pub n_max: usize,
    /// F
    pub features: usize,
    /// Columns of a document's row: 0 from F on.
    pub width: usize,
    /// Whether a mask says which cells are documents, not lengths.
    pub masked: bool,
}

/// The plan of such copies: a pure function of the sizes.
#[derive(Clone, Copy, Debug)]
pub struct UnpadPlan {
    shape: UnpadShape,
}

impl UnpadPlan {
    /// The plan for a grid of this shape.
    ///
    /// Refuses a width that is no multiple of 64 or less than F, more cells a set than [`MAX_CELLS`], and more sets or columns
    /// than 32 bits count.
    pub fn new(shape: UnpadShape) -> Result<Self, DeviceError> {
        const MAX: usize = i32::MAX as usize;
        let UnpadShape { sets, n_max, features, width, .. } = shape;
        // Four steps of 64 columns are looked at together.
        if features > width || width > MAX - 256 || !width.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "documents of a grid on a GPU: rows are a multiple of 64 wide, up to {}, and hold all features, not {width} of \
                 {features}",
                MAX - 256
            )));
        }
        let blocks = sets.saturating_mul(n_max.div_ceil(UNPAD_CELLS as usize)).div_ceil(WARPS);
        if n_max > MAX_CELLS || sets > MAX || blocks > Limits::MAX_GRID_X as usize {
            return Err(DeviceError::Shapes(format!(
                "documents of a grid on a GPU: at most {MAX_CELLS} cells a set, and {} blocks of {WARPS} warps with \
                 {UNPAD_CELLS} cells each, not {sets} sets of {n_max} cells",
                Limits::MAX_GRID_X
            )));
        }
        Ok(UnpadPlan { shape })
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self) -> Unpad {
        let UnpadShape { sets, n_max, features, width, .. } = self.shape;
        Unpad {
            grid: std::ptr::null(),
            offsets: std::ptr::null(),
            lengths: std::ptr::null(),
            mask: std::ptr::null(),
            rows: std::ptr::null_mut(),
            sets: sets as i32,
            n_max: n_max as i32,
            features: features as i32,
            width: width as i32,
        }
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self) -> Option<Plan> {
        let UnpadShape { sets, n_max, width, masked, .. } = self.shape;
        let warps = sets * n_max.div_ceil(UNPAD_CELLS as usize);
        (warps > 0 && width > 0).then_some(Plan {
            family: "unpad",
            kernel: if masked { "unpad_mask" } else { "unpad_lengths" },
            grid: [warps.div_ceil(WARPS) as u32, 1, 1],
            block: UNPAD_THREADS,
            shared_bytes: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: UnpadShape = UnpadShape { sets: 3, n_max: 20, features: 5, width: 64, masked: false };

    #[test]
    fn a_warp_for_eight_cells() {
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            for (sets, n_max, blocks) in [(1, 1, 1), (8, 8, 1), (3, 20, 2), (1 << 16, 1 << 20, 1 << 30)] {
                for (masked, kernel) in [(false, "unpad_lengths"), (true, "unpad_mask")] {
                    let shape = UnpadShape { sets, n_max, masked, ..SHAPE };
                    let plan = UnpadPlan::new(shape).unwrap().launch().unwrap();
                    assert_eq!((plan.kernel, plan.grid, plan.block), (kernel, [blocks, 1, 1], 256));
                    plan.check(&card).unwrap();
                }
            }
        }
    }

    #[test]
    fn nothing_to_do() {
        for shape in [
            UnpadShape { sets: 0, ..SHAPE },
            UnpadShape { n_max: 0, ..SHAPE },
            UnpadShape { features: 0, width: 0, ..SHAPE },
        ] {
            assert_eq!(UnpadPlan::new(shape).unwrap().launch(), None);
        }
    }

    #[test]
    fn bad_shapes() {
        for (shape, says) in [
            (UnpadShape { width: 63, ..SHAPE }, "not 63 of 5"),
            (UnpadShape { features: 65, ..SHAPE }, "not 64 of 65"),
            (UnpadShape { width: (1 << 31) - 128, ..SHAPE }, "a multiple of 64 wide, up to 2147483391"),
            (UnpadShape { n_max: MAX_CELLS + 1, ..SHAPE }, "not 3 sets of 1048577 cells"),
            (UnpadShape { sets: 1 << 31, ..SHAPE }, "not 2147483648 sets of 20 cells"),
            (UnpadShape { sets: 1 << 18, n_max: MAX_CELLS, ..SHAPE }, "2147483647 blocks"),
        ] {
            let error = UnpadPlan::new(shape).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
