//! How rows are gathered: which threads copy which.

use crate::device::abi::{GATHER_LANES, GATHER_THREADS, GatherRows};
use crate::device::{DeviceError, Limits, Plan};

/// Rows of a block.
const OF_BLOCK: usize = (GATHER_THREADS / GATHER_LANES) as usize;

/// The plan of a gather: a pure function of the sizes.
#[derive(Clone, Copy, Debug)]
pub struct GatherPlan {
    rows: usize,
    width: usize,
}

impl GatherPlan {
    /// The plan for `rows` rows of `width` values.
    ///
    /// Refuses a width that is no multiple of 64, and more rows or columns than 32 bits count.
    pub fn new(rows: usize, width: usize) -> Result<Self, DeviceError> {
        const MAX: usize = i32::MAX as usize;
        // Four steps of 64 columns are looked at together.
        if rows > MAX || width > MAX - 256 || !width.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "gathering rows on a GPU: at most {MAX} rows of at most {} values, a multiple of 64, not {rows} of \
                 {width}",
                MAX - 256
            )));
        }
        Ok(GatherPlan { rows, width })
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self) -> GatherRows {
        GatherRows {
            from: std::ptr::null(),
            index: std::ptr::null(),
            to: std::ptr::null_mut(),
            rows: self.rows as i32,
            width: self.width as i32,
        }
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self) -> Option<Plan> {
        const _: () = assert!(i32::MAX as usize / OF_BLOCK < Limits::MAX_GRID_X as usize);
        (self.rows > 0 && self.width > 0).then_some(Plan {
            family: "gather",
            kernel: "gather_rows",
            grid: [self.rows.div_ceil(OF_BLOCK) as u32, 1, 1],
            block: GATHER_THREADS,
            shared_bytes: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_threads_for_a_row() {
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            for (rows, blocks) in [(1, 1), (32, 1), (33, 2), (i32::MAX as usize, 1 << 26)] {
                let plan = GatherPlan::new(rows, 192).unwrap().launch().unwrap();
                assert_eq!((plan.grid, plan.block, plan.shared_bytes), ([blocks, 1, 1], 256, 0));
                plan.check(&card).unwrap();
            }
        }
    }

    #[test]
    fn nothing_to_do() {
        assert_eq!(GatherPlan::new(0, 64).unwrap().launch(), None);
        assert_eq!(GatherPlan::new(3, 0).unwrap().launch(), None);
    }

    #[test]
    fn bad_shapes() {
        for (rows, width) in [(1, 32), (1, 65), (1 << 31, 64), (1, (1 << 31) - 128)] {
            let error = GatherPlan::new(rows, width).unwrap_err().to_string();
            assert!(error.contains("a multiple of 64, not"), "{error}");
        }
    }
}
