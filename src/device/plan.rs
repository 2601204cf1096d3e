//! How a kernel is launched.

use std::fmt;

use super::{DeviceError, Limits};

/// A launch: which kernel, and how many blocks of how many threads with how much shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The file of `kernels/` that holds the kernel.
    pub family: &'static str,
    /// The kernel's name.
    pub kernel: &'static str,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Plan {
    /// Refuses what no launch, or none on such a card, may have.
    pub fn check(&self, limits: &Limits) -> Result<(), DeviceError> {
        let [x, y, z] = self.grid;
        let reason = if x == 0 || y == 0 || z == 0 || self.block == 0 {
            "a launch has at least one block and one thread".to_owned()
        } else if x > Limits::MAX_GRID_X || y > Limits::MAX_GRID_YZ || z > Limits::MAX_GRID_YZ {
            format!("a grid has at most {} × {1} × {1} blocks", Limits::MAX_GRID_X, Limits::MAX_GRID_YZ)
        } else if self.block > Limits::MAX_BLOCK {
            format!("a block has at most {} threads", Limits::MAX_BLOCK)
        } else if self.shared_bytes > limits.shared_per_block {
            format!("a block of this card has at most {} bytes of shared memory", limits.shared_per_block)
        } else {
            return Ok(());
        };
        Err(DeviceError::Plan { plan: *self, reason })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { kernel, grid: [x, y, z], block, shared_bytes, .. } = self;
        write!(
            f,
            "{kernel} ({x} × {y} × {z} blocks of {block} threads, {shared_bytes} bytes of shared memory each)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan =
        Plan { family: "attention", kernel: "k", grid: [1, 1, 1], block: 128, shared_bytes: 64 << 10 };

    #[test]
    fn plans_are_held_against_the_card() {
        PLAN.check(&Limits::SM_89).unwrap();
        Plan { grid: [i32::MAX as u32, 65_535, 65_535], block: 1024, ..PLAN }.check(&Limits::SM_89).unwrap();
        for (plan, limits, reason) in [
            (Plan { grid: [0, 1, 1], ..PLAN }, Limits::SM_90, "at least one block"),
            (Plan { grid: [1, 65_536, 1], ..PLAN }, Limits::SM_90, "2147483647 × 65535 × 65535 blocks"),
            (Plan { grid: [1 << 31, 1, 1], ..PLAN }, Limits::SM_90, "at most 2147483647"),
            (Plan { block: 1025, ..PLAN }, Limits::SM_90, "at most 1024 threads"),
            (Plan { shared_bytes: (163 << 10) + 1, ..PLAN }, Limits::SM_80, "at most 166912 bytes"),
        ] {
            let message = plan.check(&limits).unwrap_err().to_string();
            assert!(message.contains(reason) && message.contains("k ("), "{message}");
        }
    }
}
