//! How large a part of a layer's results a block has.

use super::LinearShape;
use crate::device::Limits;
use crate::device::abi::{
    LINEAR_COLUMNS, LINEAR_ROWS, LINEAR_SM90_BLOCKS, LINEAR_SM90_COLUMNS, LINEAR_SM90_ROWS,
    LINEAR_WIDE_COLUMNS, LINEAR_WIDE_ROWS,
};
use crate::device::choice::MatrixKernels;

/// Rows and columns of a block's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// 128 × 256 by matrix instructions of warpgroups, in pairs one behind the other in rows: in the place of [`Wide`](Self::Wide)
    /// ones, where they are asked for.
    Warpgroups,
    /// 128 × 256: operands are asked for least often.
    Wide,
    /// 128 × 64: of any width.
    Many,
    /// 32 × 64, where there would be fewer blocks than multiprocessors.
    Few,
    /// 16 × 64, where there still would.
    Fewest,
}

impl BlockSize {
    /// Rows of a block.
    pub fn rows(self) -> u32 {
        match self {
            BlockSize::Warpgroups => LINEAR_SM90_ROWS,
            BlockSize::Wide => LINEAR_WIDE_ROWS,
            BlockSize::Many => LINEAR_ROWS,
            BlockSize::Few => 32,
            BlockSize::Fewest => 16,
        }
    }

    /// Columns of a block.
    pub fn columns(self) -> u32 {
        match self {
            BlockSize::Warpgroups => LINEAR_SM90_COLUMNS,
            BlockSize::Wide => LINEAR_WIDE_COLUMNS,
            _ => LINEAR_COLUMNS,
        }
    }

    /// Blocks of results `[rows, columns]`; of the last pair of those by warpgroups one may have no rows.
    pub(in crate::ops) fn count(self, rows: usize, columns: usize) -> usize {
        let of_rows = rows.div_ceil(self.rows() as usize);
        let of_rows = match self {
            BlockSize::Warpgroups => of_rows.next_multiple_of(LINEAR_SM90_BLOCKS as usize),
            _ => of_rows,
        };
        of_rows * columns.div_ceil(self.columns() as usize)
    }

    /// Those of a layer's forward: the largest with which each multiprocessor has one, if any have.
    pub fn of_forward(shape: LinearShape, limits: &Limits) -> Self {
        Self::largest(shape.rows, shape.outputs, limits)
    }

    /// Those of the gradient of its input, likewise.
    pub fn of_input(shape: LinearShape, limits: &Limits) -> Self {
        Self::largest(shape.rows, shape.inputs, limits)
    }

    fn largest(rows: usize, columns: usize, limits: &Limits) -> Self {
        let enough = |blocks: &&BlockSize| {
            columns.is_multiple_of(blocks.columns() as usize)
                && blocks.count(rows, columns) >= limits.multiprocessors as usize
        };
        let by_warpgroups = |blocks| match (blocks, limits.matrix()) {
            (BlockSize::Wide, MatrixKernels::Wgmma) => BlockSize::Warpgroups,
            _ => blocks,
        };
        let largest = [BlockSize::Wide, BlockSize::Many, BlockSize::Few].iter().find(enough).copied();
        largest.map_or(BlockSize::Fewest, by_warpgroups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewer_rows_the_smaller_are_blocks() {
        let of = |rows, inputs, outputs| {
            let shape = LinearShape { rows, inputs, outputs };
            [BlockSize::of_forward(shape, &Limits::SM_90), BlockSize::of_input(shape, &Limits::SM_90)]
        };
        // A query of 500 documents: q, k and v, and both layers of its network.
        assert_eq!(of(500, 256, 768), [BlockSize::Few, BlockSize::Fewest]);
        assert_eq!(of(500, 256, 1024), [BlockSize::Few, BlockSize::Fewest]);
        assert_eq!(of(500, 1024, 256), [BlockSize::Fewest, BlockSize::Few]);
        assert_eq!(of(10, 256, 768), [BlockSize::Fewest; 2]);
        assert_eq!(of(0, 64, 64), [BlockSize::Fewest; 2]);
        // 32 sets of 40: the widest layer fills the card.
        assert_eq!(of(1280, 256, 1024), [BlockSize::Many, BlockSize::Few]);
        assert_eq!(of(1280, 1024, 256), [BlockSize::Few, BlockSize::Many]);
        // A large batch, of widths that are multiples of 256 and of others.
        assert_eq!(of(132 * 128, 256, 768), [BlockSize::Wide; 2]);
        assert_eq!(of(132 * 128, 192, 320), [BlockSize::Many; 2]);
        assert_eq!(of(131 * 128, 256, 256), [BlockSize::Many; 2]);
    }

    #[test]
    fn warpgroups_take_what_is_wide_where_they_are_asked_for() {
        let asked = Limits { wgmma: true, ..Limits::SM_90 };
        let of = |rows, inputs, outputs| {
            let shape = LinearShape { rows, inputs, outputs };
            [BlockSize::of_forward(shape, &asked), BlockSize::of_input(shape, &asked)]
        };
        assert_eq!(of(132 * 128, 256, 768), [BlockSize::Warpgroups; 2]);
        assert_eq!(of(132 * 128, 192, 320), [BlockSize::Many; 2]);
        assert_eq!(of(500, 256, 768), [BlockSize::Few, BlockSize::Fewest]);
        // Pairs are whole.
        assert_eq!([1, 256, 257].map(|rows| BlockSize::Warpgroups.count(rows, 512)), [4, 4, 8]);
    }
}
