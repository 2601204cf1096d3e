//! What a card allows a launch, and which kernels are asked of it.

use super::choice::{Fusion, MatrixKernels};

/// Limits of a card that launch plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of dynamic shared memory that a block may have when it asks for them.
    pub shared_per_block: u32,
    /// Bytes of shared memory that all blocks of a multiprocessor have together.
    pub shared_per_multiprocessor: u32,
    /// Bytes of shared memory that each block needs besides its own.
    pub shared_reserved: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Whether plans take kernels of warpgroups' matrix instructions, `wgmma`, where there are some: they run on compute
    /// capability 9.0 alone.
    pub wgmma: bool,
    /// How much the kernels that plans take fuse.
    pub fuse: Fusion,
}

impl Limits {
    /// Most blocks in x.
    pub const MAX_GRID_X: u32 = i32::MAX as u32;
    /// Most blocks in y, and in z.
    pub const MAX_GRID_YZ: u32 = u16::MAX as u32;
    /// Most threads of a block.
    pub const MAX_BLOCK: u32 = 1024;

    /// A card of compute capability 8.0: A100.
    pub const SM_80: Limits = Limits::new(163, 164, 108);
    /// A card of compute capability 8.9 with little shared memory, as 8.6 and 12.0 have: L4.
    pub const SM_89: Limits = Limits::new(99, 100, 58);
    /// A card of compute capability 9.0: H100.
    pub const SM_90: Limits = Limits::new(227, 228, 132);

    const fn new(block_kib: u32, multiprocessor_kib: u32, multiprocessors: u32) -> Self {
        Limits {
            shared_per_block: block_kib << 10,
            shared_per_multiprocessor: multiprocessor_kib << 10,
            shared_reserved: 1 << 10,
            multiprocessors,
            wgmma: false,
            fuse: Fusion::All,
        }
    }

    /// The matrix instructions of the kernels that plans take where they have a choice.
    pub fn matrix(&self) -> MatrixKernels {
        if self.wgmma { MatrixKernels::Wgmma } else { MatrixKernels::Mma }
    }

    /// Blocks with `bytes` bytes of shared memory each that a multiprocessor holds at once, if nothing else limits them.
    pub fn blocks_by_shared(&self, bytes: u32) -> u32 {
        if bytes > self.shared_per_block {
            return 0;
        }
        self.shared_per_multiprocessor / (bytes + self.shared_reserved).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_bounds_the_blocks() {
        assert_eq!(Limits::SM_90.blocks_by_shared(227 << 10), 1);
        assert_eq!(Limits::SM_90.blocks_by_shared((227 << 10) + 1), 0);
        assert_eq!(Limits::SM_80.blocks_by_shared(64 << 10), 2);
        assert_eq!(Limits::SM_89.blocks_by_shared(49 << 10), 2);
        assert_eq!(Limits::SM_89.blocks_by_shared((49 << 10) + 1), 1);
    }
}
