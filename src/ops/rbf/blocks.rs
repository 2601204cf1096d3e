//! Which blocks compute an rbf input's forward.

use super::RbfShape;
use crate::device::Limits;
use crate::device::abi::{
    RBF_OUTPUTS, RBF_ROWS, RBF_SM90_BLOCKS, RBF_SM90_COLUMNS, RBF_SM90_ROWS, RBF_WIDE_OUTPUTS,
};
use crate::device::choice::MatrixKernels;

/// Rows and outputs of a block's results, forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RbfBlocks {
    /// 128 × 256 by matrix instructions of warpgroups, in pairs one behind the other in rows: in the place of [`Wide`](Self::Wide)
    /// ones, where they are asked for.
    Warpgroups,
    /// 128 × 256: each activation is made least often.
    Wide,
    /// 128 × 128: of any outputs.
    Narrow,
}

impl RbfBlocks {
    /// Those of an rbf input: 128 × 256 where outputs are a multiple of 256 and each multiprocessor has such a block, else 128 × 128.
    pub fn of(shape: RbfShape, limits: &Limits) -> Self {
        let enough = RbfBlocks::Wide.count(shape) >= limits.multiprocessors as usize;
        if !(enough && RbfBlocks::Wide.fit(shape.outputs)) {
            return RbfBlocks::Narrow;
        }
        match limits.matrix() {
            MatrixKernels::Wgmma => RbfBlocks::Warpgroups,
            MatrixKernels::Mma => RbfBlocks::Wide,
        }
    }

    /// Whether so many outputs can be theirs.
    pub fn fit(self, outputs: usize) -> bool {
        self == RbfBlocks::Narrow || outputs.is_multiple_of(RBF_WIDE_OUTPUTS as usize)
    }

    /// How many there are; of the last pair of those by warpgroups one may have no rows.
    pub(super) fn count(self, shape: RbfShape) -> usize {
        let of_rows = shape.rows.div_ceil(RBF_ROWS as usize);
        match self {
            RbfBlocks::Warpgroups => {
                of_rows.next_multiple_of(RBF_SM90_BLOCKS as usize)
                    * shape.outputs.div_ceil(RBF_WIDE_OUTPUTS as usize)
            }
            RbfBlocks::Wide => of_rows * shape.outputs.div_ceil(RBF_WIDE_OUTPUTS as usize),
            RbfBlocks::Narrow => of_rows * shape.outputs.div_ceil(RBF_OUTPUTS as usize),
        }
    }
}

// Warpgroups' blocks are of the same rows and outputs as wide ones.
const _: () = assert!(RBF_SM90_ROWS == RBF_ROWS && RBF_SM90_COLUMNS == RBF_WIDE_OUTPUTS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_where_each_multiprocessor_has_one() {
        let asked = Limits { wgmma: true, ..Limits::SM_90 };
        let of = |rows, outputs| {
            let shape = RbfShape { rows, features: 201, stride: 256, centers: 100, outputs };
            [Limits::SM_90, asked].map(|limits| {
                let blocks = RbfBlocks::of(shape, &limits);
                (blocks, blocks.count(shape))
            })
        };
        assert_eq!(of(33 * 128, 1024), [(RbfBlocks::Wide, 132), (RbfBlocks::Warpgroups, 136)]);
        assert_eq!(of(132 * 128, 256), [(RbfBlocks::Wide, 132), (RbfBlocks::Warpgroups, 132)]);
        assert_eq!(of(32 * 128, 1024), [(RbfBlocks::Narrow, 256); 2]);
        assert_eq!(of(1 << 20, 320), [(RbfBlocks::Narrow, 3 << 13); 2]);
    }
}
