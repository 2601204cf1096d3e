//! How sums of parts are launched.

use crate::device::abi::{PARTIAL_SUMS_COLUMNS, PARTIAL_SUMS_WARPS, PartialSums};
use crate::device::{DeviceError, Limits, Plan};

/// The plan of a sum of parts: a pure function of their length and count.
#[derive(Clone, Copy, Debug)]
pub struct PartialSumsPlan {
    length: usize,
    count: usize,
}

impl PartialSumsPlan {
    /// The plan for `count` parts of `length` values.
    ///
    /// Refuses more values than a grid has columns, and more parts than 32 bits count.
    pub fn new(length: usize, count: usize) -> Result<Self, DeviceError> {
        const MAX_LENGTH: usize = Limits::MAX_GRID_X as usize * PARTIAL_SUMS_COLUMNS as usize;
        const MAX_COUNT: usize = i32::MAX as usize - PARTIAL_SUMS_WARPS as usize;
        if length > MAX_LENGTH || count > MAX_COUNT {
            return Err(DeviceError::Shapes(format!(
                "a sum of parts on a GPU: at most {MAX_COUNT} parts of at most {MAX_LENGTH} values, not {count} of \
                 {length}"
            )));
        }
        Ok(PartialSumsPlan { length, count })
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self) -> PartialSums {
        PartialSums {
            parts: std::ptr::null(),
            into: std::ptr::null_mut(),
            length: self.length as i64,
            count: self.count as i32,
            unused: 0,
        }
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self) -> Option<Plan> {
        let threads = 32 * PARTIAL_SUMS_WARPS.min(self.count as u32);
        (self.length > 0 && self.count > 0).then_some(Plan {
            family: "partial_sums",
            kernel: "partial_sums",
            grid: [self.length.div_ceil(PARTIAL_SUMS_COLUMNS as usize) as u32, 1, 1],
            block: threads,
            shared_bytes: 4 * threads,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warp_for_each_of_up_to_eight_parts() {
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            for (length, count, blocks, threads) in
                [(1, 1, 1, 32), (32, 7, 1, 224), (33, 8, 2, 256), (1 << 36, 1000, (1 << 31) - 1, 256)]
            {
                let plan = PartialSumsPlan::new(length.min((1 << 36) - 32), count).unwrap().launch().unwrap();
                assert_eq!((plan.grid, plan.block), ([blocks, 1, 1], threads));
                plan.check(&card).unwrap();
            }
        }
    }

    #[test]
    fn nothing_to_do() {
        for (length, count) in [(0, 3), (3, 0)] {
            assert_eq!(PartialSumsPlan::new(length, count).unwrap().launch(), None);
        }
    }

    #[test]
    fn bad_shapes() {
        for (length, count) in [(1 << 36, 1), (1, 1 << 31)] {
            let error = PartialSumsPlan::new(length, count).unwrap_err().to_string();
            assert!(error.contains("at most 2147483639 parts of at most 68719476704 values"), "{error}");
        }
    }
}
