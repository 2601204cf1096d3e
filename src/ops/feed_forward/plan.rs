//! How the row-wise network is launched as one kernel.

use super::Blocks;
use crate::device::abi::{
    FEED_FORWARD_CHUNK, FEED_FORWARD_THREADS, FEED_FORWARD_WIDTH, FeedForward, FeedForwardBackward,
    FeedForwardNorm, FeedForwardProjected, FeedForwardProjection, FeedForwardScale,
};
use crate::device::{DeviceError, Plan};
use crate::ops::linear::{Activation, Layout, LinearPlan, LinearShape};
use crate::ops::sizes::{MAX_WIDTH, refuse_rows, refuse_width};

/// Rows, and the widths of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedForwardShape {
    /// Rows.
    pub rows: usize,
    /// C: 64, 128, 192 or 256.
    pub width: usize,
    /// G: a multiple of 64.
    pub inner: usize,
}

/// The kernels, by C / 64 − 1.
const KERNELS: [&str; (FEED_FORWARD_WIDTH / 64) as usize] =
    ["feed_forward_c64", "feed_forward_c128", "feed_forward_c192", "feed_forward_c256"];
const FEW_ROWS_KERNELS: [&str; KERNELS.len()] = [
    "feed_forward_few_rows_c64",
    "feed_forward_few_rows_c128",
    "feed_forward_few_rows_c192",
    "feed_forward_few_rows_c256",
];

/// Those of backward.
const BACKWARD_KERNELS: [&str; KERNELS.len()] = [
    "feed_forward_backward_c64",
    "feed_forward_backward_c128",
    "feed_forward_backward_c192",
    "feed_forward_backward_c256",
];
const BACKWARD_FEW_ROWS_KERNELS: [&str; KERNELS.len()] = [
    "feed_forward_backward_few_rows_c64",
    "feed_forward_backward_few_rows_c128",
    "feed_forward_backward_few_rows_c192",
    "feed_forward_backward_few_rows_c256",
];

/// Tiles of the inner rows, and at most of a stage of weights.
const INNER_TILES: u32 = FEED_FORWARD_CHUNK / 64;
const STAGE_TILES: u32 = 2;

/// Bytes of so many rows of 64 columns.
fn tile_bytes(rows: u32) -> u32 {
    rows * 64 * 2
}

impl FeedForwardShape {
    /// Refuses what the kernels are not made for.
    pub fn check(&self) -> Result<(), DeviceError> {
        let launch = "a network in one kernel";
        refuse_rows(launch, self.rows)?;
        refuse_width(launch, "inner columns", self.inner, MAX_WIDTH)?;
        if self.width == 0 || self.width > FEED_FORWARD_WIDTH as usize || !self.width.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "{launch} on a GPU: rows have a multiple of 64 and at most {FEED_FORWARD_WIDTH} columns, not {}",
                self.width
            )));
        }
        Ok(())
    }

    /// How many blocks there are, each of which gives a part of the gradients of LayerNorm's parameters in backward.
    pub fn count(&self, blocks: Blocks) -> usize {
        self.rows.div_ceil(blocks.rows())
    }

    /// Values of x, y and fc2's results.
    pub fn values(&self) -> usize {
        self.rows * self.width
    }

    /// Values of the inner rows.
    pub fn inner_values(&self) -> usize {
        self.rows * self.inner
    }

    /// Values of scratch that backward takes: the blocks' parts of the gradients of both LayerNorms.
    pub fn backward_scratch_len(&self, blocks: Blocks) -> usize {
        4 * self.count(blocks) * self.width
    }

    /// Values of each of the weights.
    pub fn weights(&self) -> usize {
        self.width * self.inner
    }

    /// So many tiles of a block's rows, and two stages of weights.
    fn shared_bytes(&self, tiles: u32, blocks: Blocks) -> u32 {
        let stages = 2 * (self.width as u32 / 64).min(STAGE_TILES);
        tiles * tile_bytes(blocks.rows() as u32) + stages * tile_bytes(FEED_FORWARD_CHUNK)
    }

    /// The launch by these blocks, of a shape that is [`check`](Self::check)ed; `None` where there is no row.
    pub fn plan(&self, blocks: Blocks) -> Option<Plan> {
        let tiles = self.width as u32 / 64 + INNER_TILES;
        let kernels = match blocks {
            Blocks::Many => KERNELS,
            Blocks::Few => FEW_ROWS_KERNELS,
            Blocks::Warpgroups => return self.warpgroup_plan(),
        };
        self.launch("feed_forward", kernels, tiles, blocks)
    }

    /// The same of backward, which has the rows of the gradient besides.
    pub fn backward_plan(&self, blocks: Blocks) -> Option<Plan> {
        let tiles = 2 * (self.width as u32 / 64) + INNER_TILES;
        let kernels = match blocks {
            Blocks::Many => BACKWARD_KERNELS,
            Blocks::Few => BACKWARD_FEW_ROWS_KERNELS,
            Blocks::Warpgroups => return self.warpgroup_backward_plan(),
        };
        self.launch("feed_forward_backward", kernels, tiles, blocks)
    }

    fn launch(
        &self,
        family: &'static str,
        kernels: [&'static str; KERNELS.len()],
        tiles: u32,
        blocks: Blocks,
    ) -> Option<Plan> {
        let shared_bytes = self.shared_bytes(tiles, blocks);
        (self.rows > 0).then(|| Plan {
            family,
            kernel: kernels[self.width / 64 - 1],
            grid: [self.count(blocks) as u32, 1, 1],
            block: FEED_FORWARD_THREADS,
            shared_bytes,
        })
    }

    /// The kernel's parameter but for its pointers, which are null; `period` is that of the rows that the former LayerNorm adds.
    pub fn numbers(&self, period: usize, eps: f64) -> FeedForward {
        let norm = FeedForwardScale {
            scale: std::ptr::null(),
            shift: std::ptr::null(),
            statistics: std::ptr::null_mut(),
        };
        FeedForward {
            x: std::ptr::null(),
            added: std::ptr::null(),
            before: norm,
            weight1: std::ptr::null(),
            bias1: std::ptr::null(),
            weight2: std::ptr::null(),
            bias2: std::ptr::null(),
            behind: norm,
            attended: std::ptr::null_mut(),
            output: std::ptr::null_mut(),
            y: std::ptr::null_mut(),
            projection: FeedForwardProjection {
                weight: std::ptr::null(),
                bias: std::ptr::null(),
                out: std::ptr::null_mut(),
                outputs: 0,
                width: 0,
                relu: 0,
                unused: 0,
            },
            rows: self.rows as i32,
            inner: self.inner as i32,
            period: period as i32,
            eps: eps as f32,
        }
    }

    /// Sizes of a layer of the network's results; refused where it is not one of a multiple of C outputs.
    pub fn projection(&self, outputs: usize) -> Result<LinearShape, DeviceError> {
        let FeedForwardShape { rows, width, .. } = *self;
        if outputs == 0 || !outputs.is_multiple_of(width) {
            return Err(DeviceError::Shapes(format!(
                "a network in one kernel on a GPU: it projects its results of {width} columns to a multiple of them, \
                 not to {outputs}"
            )));
        }
        Ok(LinearShape { rows, inputs: width, outputs })
    }

    /// The same kernel's parameter where it projects its results besides, again but for pointers.
    pub fn projecting(
        &self,
        numbers: FeedForward,
        outputs: usize,
        layout: Layout,
        activation: Activation,
    ) -> Result<FeedForward, DeviceError> {
        let of_layer = LinearPlan::new(self.projection(outputs)?, layout)?.forward_numbers(activation);
        let projection = FeedForwardProjection {
            outputs: of_layer.outputs,
            width: of_layer.width,
            relu: of_layer.relu,
            ..numbers.projection
        };
        Ok(FeedForward { projection, ..numbers })
    }

    /// The same of backward, from a gradient to which no projection adds; `period` is that of the rows that the former
    /// LayerNorm adds.
    pub fn backward_numbers(&self, period: usize) -> FeedForwardBackward {
        let norm = |period| FeedForwardNorm {
            x: std::ptr::null(),
            added: std::ptr::null(),
            weight: std::ptr::null(),
            statistics: std::ptr::null(),
            parts: std::ptr::null_mut(),
            period: period as i32,
            unused: 0,
        };
        let none =
            FeedForwardProjected { d: std::ptr::null(), weight: std::ptr::null(), outputs: 0, width: 0 };
        FeedForwardBackward {
            before: norm(period),
            behind: norm(self.rows),
            weight1: std::ptr::null(),
            bias1: std::ptr::null(),
            weight2: std::ptr::null(),
            d: std::ptr::null_mut(),
            dy: std::ptr::null_mut(),
            hidden: std::ptr::null_mut(),
            d_hidden: std::ptr::null_mut(),
            projected: none,
            rows: self.rows as i32,
            inner: self.inner as i32,
            given: 1,
            unused: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;

    #[test]
    fn blocks_and_shared_memory() {
        let plan = |rows, width, blocks| {
            let shape = FeedForwardShape { rows, width, inner: 1024 };
            shape.check().unwrap();
            let plan = shape.plan(blocks).unwrap();
            plan.check(&Limits::SM_80).unwrap();
            (plan.kernel, plan.grid[0], plan.shared_bytes >> 10)
        };
        assert_eq!(plan(1, 64, Blocks::Many), ("feed_forward_c64", 1, 80));
        assert_eq!(plan(128, 192, Blocks::Many), ("feed_forward_c192", 1, 144));
        assert_eq!(plan(129, 256, Blocks::Many), ("feed_forward_c256", 2, 160));
        assert_eq!(plan(32, 64, Blocks::Few), ("feed_forward_few_rows_c64", 1, 44));
        assert_eq!(plan(129, 256, Blocks::Few), ("feed_forward_few_rows_c256", 5, 88));
        let none = FeedForwardShape { rows: 0, width: 64, inner: 64 };
        for blocks in [Blocks::Many, Blocks::Few, Blocks::Warpgroups] {
            assert_eq!((none.plan(blocks), none.backward_plan(blocks)), (None, None));
        }
        // Backward's widest rows need what a card of 9.0 has; two tiles less fit on one of 8.0.
        let backward = |width, blocks, limits: &Limits| {
            let shape = FeedForwardShape { rows: 129, width, inner: 1024 };
            let plan = shape.backward_plan(blocks).unwrap();
            (plan.kernel, plan.grid[0], plan.shared_bytes >> 10, plan.check(limits).is_ok())
        };
        let many = |width, limits: &Limits| backward(width, Blocks::Many, limits);
        assert_eq!(many(256, &Limits::SM_90), ("feed_forward_backward_c256", 2, 224, true));
        assert_eq!(many(192, &Limits::SM_80), ("feed_forward_backward_c192", 2, 192, false));
        assert_eq!(many(128, &Limits::SM_80), ("feed_forward_backward_c128", 2, 160, true));
        let few = ("feed_forward_backward_few_rows_c256", 5, 104, true);
        assert_eq!(backward(256, Blocks::Few, &Limits::SM_80), few);
    }

    #[test]
    fn bad_shapes() {
        for (rows, width, inner, part) in [
            (1, 320, 64, "a multiple of 64 and at most 256 columns, not 320"),
            (1, 96, 64, "not 96"),
            (1, 0, 64, "not 0"),
            (1, 64, 100, "inner columns are a multiple of 64 up to 1048576, not 100"),
            ((1 << 30) + 1, 64, 64, "at most 1073741824 rows"),
        ] {
            let message = FeedForwardShape { rows, width, inner }.check().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
