//! Which kernel computes a network: how many rows a block has, and by which matrix instructions.

use super::FeedForwardShape;
use crate::device::abi::{FEED_FORWARD_FEW_ROWS, FEED_FORWARD_ROWS};
use crate::device::choice::{Fusion, MatrixKernels};
use crate::device::{Limits, Plan};

/// The blocks of a kernel of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Of 128 rows, by warps.
    Many,
    /// Of 32 rows, by warps, where there would be blocks of 128 for few multiprocessors: weights are asked for four times as
    /// often.
    Few,
    /// Of 128 rows, by matrix instructions of warpgroups.
    Warpgroups,
}

impl Blocks {
    /// Rows of a block.
    pub fn rows(self) -> usize {
        match self {
            Blocks::Many | Blocks::Warpgroups => FEED_FORWARD_ROWS as usize,
            Blocks::Few => FEED_FORWARD_FEW_ROWS as usize,
        }
    }

    /// What messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Blocks::Many => "mma",
            Blocks::Few => "mma of few rows",
            Blocks::Warpgroups => "wgmma",
        }
    }
}

impl FeedForwardShape {
    /// The blocks by which a network is one kernel, where that may be faster than one for each product: rows are narrow enough
    /// to stay on the chip, and there are blocks for enough multiprocessors. By the rates of docs/fusion.md one kernel is about
    /// as fast as apart kernels where blocks of 128 rows are for half of the multiprocessors, or blocks of 32 for a third; more
    /// blocks of 32 than multiprocessors take as long as those of 128.
    pub fn of_forward(&self, limits: &Limits) -> Option<Blocks> {
        self.choose(limits, Self::plan)
    }

    /// The same of backward, which takes more shared memory.
    pub fn of_backward(&self, limits: &Limits) -> Option<Blocks> {
        self.choose(limits, Self::backward_plan)
    }

    fn choose(&self, limits: &Limits, plan: fn(&Self, Blocks) -> Option<Plan>) -> Option<Blocks> {
        if limits.fuse < Fusion::All || self.check().is_err() {
            return None;
        }
        let many = match limits.matrix() {
            MatrixKernels::Mma => Blocks::Many,
            MatrixKernels::Wgmma => Blocks::Warpgroups,
        };
        let of_all = limits.multiprocessors;
        [(many, of_all.div_ceil(2)..=u32::MAX), (Blocks::Few, of_all.div_ceil(3)..=of_all)]
            .into_iter()
            .find_map(|(blocks, enough)| {
                let plan = plan(self, blocks)?;
                let fits = plan.shared_bytes <= limits.shared_per_block && enough.contains(&plan.grid[0]);
                fits.then_some(blocks)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewer_rows_the_smaller_are_blocks() {
        let shape = |rows, width| FeedForwardShape { rows, width, inner: 1024 };
        let of = |rows, limits: &Limits| {
            let shape = shape(rows, 256);
            [shape.of_forward(limits), shape.of_backward(limits)]
        };
        let (many, few) = (Some(Blocks::Many), Some(Blocks::Few));
        assert_eq!(of(65 * 128 + 1, &Limits::SM_90), [many; 2]);
        // More of 32 rows than multiprocessors, and one for each; a third of them, and fewer.
        assert_eq!(of(132 * 32 + 1, &Limits::SM_90), [None; 2]);
        assert_eq!(of(132 * 32, &Limits::SM_90), [few; 2]);
        assert_eq!(of(43 * 32 + 1, &Limits::SM_90), [few; 2]);
        assert_eq!(of(43 * 32, &Limits::SM_90), [None; 2]);
        let wgmma = Limits { wgmma: true, ..Limits::SM_90 };
        assert_eq!(of(65 * 128 + 1, &wgmma), [Some(Blocks::Warpgroups); 2]);
        assert_eq!(of(1760, &wgmma), [few; 2]);
        // Cards of 8.0 have no shared memory for backward of 128 rows so wide, those of 8.9 none for forward of as many either;
        // of 32 rows the former have it for both, the latter for forward.
        assert_eq!(of(53 * 128 + 1, &Limits::SM_80), [many, None]);
        assert_eq!(of(1760, &Limits::SM_80), [few; 2]);
        assert_eq!(of(1 << 20, &Limits::SM_89), [None; 2]);
        assert_eq!(of(1760, &Limits::SM_89), [few, None]);
        let narrow = shape(1 << 20, 128);
        assert_eq!([narrow.of_forward(&Limits::SM_80), narrow.of_backward(&Limits::SM_80)], [many; 2]);
        assert_eq!(shape(1 << 20, 320).of_forward(&Limits::SM_90), None);
        assert_eq!(of(1 << 20, &Limits { fuse: Fusion::Attention, ..Limits::SM_90 }), [None; 2]);
    }
}
