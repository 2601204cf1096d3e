//! The row-wise network by matrix instructions of warpgroups, where they are asked for: the kernels of
//! `kernels/feed_forward_sm90.cu` and `kernels/feed_forward_backward_sm90.cu`, and how they are launched.

use half::bf16;

use super::{Blocks, FeedForwardShape};
use crate::device::abi::{
    FEED_FORWARD_BACKWARD_SM90_SLOTS, FEED_FORWARD_ROWS, FEED_FORWARD_SM90_BARRIER_BYTES,
    FEED_FORWARD_SM90_BLOCKS, FEED_FORWARD_SM90_CHUNK, FEED_FORWARD_SM90_MULTIPLIERS, FEED_FORWARD_SM90_ROWS,
    FEED_FORWARD_SM90_SLOTS, FEED_FORWARD_SM90_THREADS, FEED_FORWARD_WIDTH, FeedForward, FeedForwardBackward,
    FeedForwardBackwardWgmma, FeedForwardWgmma,
};
use crate::device::{Buffer, DeviceError, Gpu, Plan, TensorMap, parameter};

/// The kernels, by C / 64 − 1.
const KERNELS: [&str; (FEED_FORWARD_WIDTH / 64) as usize] = [
    "feed_forward_wgmma_c64",
    "feed_forward_wgmma_c128",
    "feed_forward_wgmma_c192",
    "feed_forward_wgmma_c256",
];

/// Those of backward.
const BACKWARD_KERNELS: [&str; KERNELS.len()] = [
    "feed_forward_backward_wgmma_c64",
    "feed_forward_backward_wgmma_c128",
    "feed_forward_backward_wgmma_c192",
    "feed_forward_backward_wgmma_c256",
];

/// Blocks have as many rows as those of warps.
const _: () = assert!(FEED_FORWARD_SM90_MULTIPLIERS * FEED_FORWARD_SM90_ROWS == FEED_FORWARD_ROWS);

impl FeedForwardShape {
    /// The launch by warpgroups, of a shape that is [`check`](Self::check)ed; `None` where there is no row.
    pub(super) fn warpgroup_plan(&self) -> Option<Plan> {
        let shared_bytes = self.warpgroup_shared_bytes(1, FEED_FORWARD_SM90_SLOTS);
        self.warpgroup_launch("feed_forward_sm90", KERNELS, shared_bytes)
    }

    /// The same of backward.
    pub(super) fn warpgroup_backward_plan(&self) -> Option<Plan> {
        let shared_bytes = self.warpgroup_shared_bytes(2, FEED_FORWARD_BACKWARD_SM90_SLOTS);
        self.warpgroup_launch("feed_forward_backward_sm90", BACKWARD_KERNELS, shared_bytes)
    }

    /// As many matrices of rows, and slots of weights with their mbarriers.
    fn warpgroup_shared_bytes(&self, matrices: u32, slots: u32) -> u32 {
        let width = self.width as u32;
        let slot = FEED_FORWARD_SM90_CHUNK * width * 2 + FEED_FORWARD_SM90_BARRIER_BYTES;
        matrices * FEED_FORWARD_ROWS * width * 2 + slots * slot
    }

    /// In whole clusters: of the last, a block may have no rows.
    fn warpgroup_launch(
        &self,
        family: &'static str,
        kernels: [&'static str; KERNELS.len()],
        shared_bytes: u32,
    ) -> Option<Plan> {
        let blocks = (self.count(Blocks::Warpgroups) as u32).next_multiple_of(FEED_FORWARD_SM90_BLOCKS);
        (self.rows > 0).then(|| Plan {
            family,
            kernel: kernels[self.width / 64 - 1],
            grid: [blocks, 1, 1],
            block: FEED_FORWARD_SM90_THREADS,
            shared_bytes,
        })
    }

    /// Rows of the boxes in which these kernels take weights: fc1's, as a projection's, and fc2's.
    pub fn box_rows(&self) -> [u32; 2] {
        [FEED_FORWARD_SM90_CHUNK, self.width as u32].map(|rows| rows / FEED_FORWARD_SM90_BLOCKS)
    }

    /// The tensor maps by which they take fc1's `[G, C]`, fc2's `[C, G]` and a projection's `[P, C]`, zeros where there is none.
    pub(super) fn tensor_maps(
        &self,
        gpu: &Gpu,
        [weight1, weight2]: [&Buffer<bf16>; 2],
        projection: Option<&Buffer<bf16>>,
    ) -> Result<[TensorMap; 3], DeviceError> {
        let ([box1, box2], FeedForwardShape { width, inner, .. }) = (self.box_rows(), *self);
        let of_projection =
            |weight: &Buffer<bf16>| gpu.tensor_map(weight, [weight.len() / width, width], box1);
        Ok([
            gpu.tensor_map(weight1, [inner, width], box1)?,
            gpu.tensor_map(weight2, [width, inner], box2)?,
            projection.map(of_projection).transpose()?.unwrap_or_default(),
        ])
    }
}

macro_rules! network {
    ($name:ident, $network:ty) => {
        impl $name {
            /// Of these tensor maps, and of all that the kernel of warps takes.
            pub fn new([weight1, weight2, projection]: [TensorMap; 3], network: $network) -> Self {
                Self { weight1, weight2, projection, network, ..Self::default() }
            }
        }
        parameter!($name: |self| self.network.shapes());
    };
}
network!(FeedForwardWgmma, FeedForward);
network!(FeedForwardBackwardWgmma, FeedForwardBackward);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;

    #[test]
    fn clusters_and_shared_memory() {
        let asked = Limits { wgmma: true, ..Limits::SM_90 };
        let plan = |rows, width| {
            let plan = FeedForwardShape { rows, width, inner: 1024 }.warpgroup_plan().unwrap();
            plan.check(&asked).unwrap();
            (plan.family, plan.kernel, plan.grid[0], plan.block, plan.shared_bytes)
        };
        let family = "feed_forward_sm90";
        assert_eq!(plan(1, 64), (family, "feed_forward_wgmma_c64", 2, 384, (48 << 10) + 64));
        assert_eq!(plan(128, 192), (family, "feed_forward_wgmma_c192", 2, 384, (144 << 10) + 64));
        assert_eq!(plan(257, 256), (family, "feed_forward_wgmma_c256", 4, 384, (192 << 10) + 64));
        let shape = FeedForwardShape { rows: 64 * 128 + 1, width: 256, inner: 1024 };
        let backward = shape.warpgroup_backward_plan().unwrap();
        backward.check(&asked).unwrap();
        assert_eq!(
            (backward.family, backward.kernel),
            ("feed_forward_backward_sm90", "feed_forward_backward_wgmma_c256")
        );
        assert_eq!((backward.grid[0], backward.block, backward.shared_bytes), (66, 384, (224 << 10) + 48));
        // Clusters are whole, and count.
        let fewer = FeedForwardShape { rows: 64 * 128, ..shape };
        assert_eq!((shape.of_forward(&asked), fewer.of_forward(&asked)), (Some(Blocks::Warpgroups), None));
        assert_eq!(shape.of_backward(&asked), Some(Blocks::Warpgroups));
    }
}
