//! How ReLU's backward pass and sums of repeated rows are launched.

use crate::device::abi::{
    ROW_SUMS_RELU_THREADS, ROW_SUMS_THREADS, ROW_SUMS_VALUES, ReluBackward, SumRepeats,
};
use crate::device::{DeviceError, Limits, Plan};

/// Values of a block of `relu_backward`.
const OF_RELU_BLOCK: usize = (ROW_SUMS_RELU_THREADS * ROW_SUMS_VALUES) as usize;

/// Columns of a block of sums.
const OF_BLOCK: usize = (ROW_SUMS_THREADS * ROW_SUMS_VALUES) as usize;

/// The plan of ReLU's backward pass: a pure function of the number of values.
#[derive(Clone, Copy, Debug)]
pub struct ReluBackwardPlan {
    length: usize,
}

impl ReluBackwardPlan {
    /// The plan for `length` values.
    ///
    /// Refuses a length that is no multiple of 64, and more values than a grid has.
    pub fn new(length: usize) -> Result<Self, DeviceError> {
        const MAX_LENGTH: usize = Limits::MAX_GRID_X as usize * OF_RELU_BLOCK;
        if length > MAX_LENGTH || !length.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "ReLU's backward pass on a GPU: at most {MAX_LENGTH} values, a multiple of 64, not {length}"
            )));
        }
        Ok(ReluBackwardPlan { length })
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self) -> ReluBackward {
        ReluBackward { dy: std::ptr::null_mut(), y: std::ptr::null(), length: self.length as i64 }
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self) -> Option<Plan> {
        (self.length > 0).then_some(Plan {
            family: "row_sums",
            kernel: "relu_backward",
            grid: [self.length.div_ceil(OF_RELU_BLOCK) as u32, 1, 1],
            block: ROW_SUMS_RELU_THREADS,
            shared_bytes: 0,
        })
    }
}

/// The plan of a sum over repeats: a pure function of the sizes.
#[derive(Clone, Copy, Debug)]
pub struct RepeatsPlan {
    groups: usize,
    repeats: usize,
    run: usize,
}

impl RepeatsPlan {
    /// The plan for `groups` of `repeats` of `run` values each.
    ///
    /// Refuses a run that is no multiple of 32, and more groups, repeats or values than a grid or 32 bits have.
    pub fn new(groups: usize, repeats: usize, run: usize) -> Result<Self, DeviceError> {
        const MAX_GROUPS: usize = Limits::MAX_GRID_YZ as usize;
        const MAX_REPEATS: usize = i32::MAX as usize;
        const MAX_RUN: usize = Limits::MAX_GRID_X as usize * OF_BLOCK;
        if groups > MAX_GROUPS || repeats > MAX_REPEATS || run > MAX_RUN || !run.is_multiple_of(32) {
            return Err(DeviceError::Shapes(format!(
                "a sum over repeats on a GPU: at most {MAX_GROUPS} groups of at most {MAX_REPEATS} repeats of at most \
                 {MAX_RUN} values, a multiple of 32, not {groups} of {repeats} of {run}"
            )));
        }
        Ok(RepeatsPlan { groups, repeats, run })
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self) -> SumRepeats {
        SumRepeats {
            x: std::ptr::null(),
            y: std::ptr::null(),
            out: std::ptr::null_mut(),
            into: std::ptr::null_mut(),
            run: self.run as i64,
            repeats: self.repeats as i32,
            unused: 0,
        }
    }

    /// The launch of the sums that are set and of those that are added; `None` where there are none. Those of no repeats are 0.
    pub fn launch(&self) -> Option<Plan> {
        (self.groups > 0 && self.run > 0).then_some(Plan {
            family: "row_sums",
            kernel: "sum_repeats",
            grid: [self.run.div_ceil(OF_BLOCK) as u32, self.groups as u32, 2],
            block: ROW_SUMS_THREADS,
            shared_bytes: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARDS: [Limits; 3] = [Limits::SM_89, Limits::SM_80, Limits::SM_90];

    #[test]
    fn a_thread_for_eight_values() {
        for card in CARDS {
            for (length, blocks) in [(64, 1), (2048, 1), (2112, 2), ((1 << 42) - 2048, (1 << 31) - 1)] {
                let plan = ReluBackwardPlan::new(length).unwrap().launch().unwrap();
                assert_eq!((plan.grid, plan.block, plan.shared_bytes), ([blocks, 1, 1], 256, 0));
                plan.check(&card).unwrap();
            }
        }
    }

    #[test]
    fn a_row_of_blocks_for_each_group() {
        for card in CARDS {
            for (groups, run, blocks) in
                [(1, 32, 1), (8, 512, 1), (65_535, 544, 2), (1, (1 << 40) - 512, (1 << 31) - 1)]
            {
                let launch = RepeatsPlan::new(groups, 3, run).unwrap().launch().unwrap();
                assert_eq!((launch.grid, launch.block), ([blocks, groups as u32, 2], 64));
                assert_eq!((launch.kernel, launch.shared_bytes), ("sum_repeats", 0));
                launch.check(&card).unwrap();
            }
        }
    }

    #[test]
    fn nothing_to_do() {
        assert_eq!(ReluBackwardPlan::new(0).unwrap().launch(), None);
        let plan = |groups, repeats, run| RepeatsPlan::new(groups, repeats, run).unwrap();
        assert_eq!([plan(0, 3, 32).launch(), plan(2, 3, 0).launch()], [None; 2]);
        // Sums of nothing are set.
        assert!(plan(2, 0, 32).launch().is_some());
    }

    #[test]
    fn bad_shapes() {
        for length in [32, 65, 1 << 42] {
            let error = ReluBackwardPlan::new(length).unwrap_err().to_string();
            assert!(error.contains("a multiple of 64, not"), "{error}");
        }
        for (groups, repeats, run) in [(65_536, 1, 32), (1, 1 << 31, 32), (1, 1, 1 << 40), (1, 1, 33)] {
            let error = RepeatsPlan::new(groups, repeats, run).unwrap_err().to_string();
            assert!(error.contains("at most 65535 groups of at most 2147483647 repeats"), "{error}");
        }
    }
}
