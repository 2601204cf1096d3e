//! How the row-wise network is launched as one kernel.

use crate::device::abi::{
    FEED_FORWARD_CHUNK, FEED_FORWARD_ROWS, FEED_FORWARD_THREADS, FEED_FORWARD_WIDTH, FeedForward,
    FeedForwardBackward, FeedForwardNorm, FeedForwardProjected, FeedForwardProjection, FeedForwardScale,
};
use crate::device::choice::{Fusion, MatrixKernels};
use crate::device::{DeviceError, Limits, Plan};
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

/// Those of backward.
const BACKWARD_KERNELS: [&str; KERNELS.len()] = [
    "feed_forward_backward_c64",
    "feed_forward_backward_c128",
    "feed_forward_backward_c192",
    "feed_forward_backward_c256",
];

/// Bytes of 128 rows of 64 columns.
const TILE_BYTES: u32 = FEED_FORWARD_ROWS * 64 * 2;

/// Tiles of the inner rows, and at most of a stage of weights.
const INNER_TILES: u32 = FEED_FORWARD_CHUNK / 64;
const STAGE_TILES: u32 = 2;

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

    /// Whether one kernel is faster than one for each product, where it may be: rows are narrow enough to stay on the chip,
    /// and there are blocks for half the multiprocessors.
    pub fn pays(&self, limits: &Limits) -> bool {
        self.may_pay(limits, Self::plan)
    }

    /// The same of backward, which takes more shared memory.
    pub fn backward_pays(&self, limits: &Limits) -> bool {
        self.may_pay(limits, Self::backward_plan)
    }

    fn may_pay(&self, limits: &Limits, plan: fn(&Self, MatrixKernels) -> Option<Plan>) -> bool {
        let enough = |plan: Plan| {
            plan.shared_bytes <= limits.shared_per_block && 2 * plan.grid[0] >= limits.multiprocessors
        };
        limits.fuse >= Fusion::All && self.check().is_ok() && plan(self, limits.matrix()).is_some_and(enough)
    }

    /// Blocks, each of which gives a part of the gradients of LayerNorm's parameters in backward.
    pub fn blocks(&self) -> usize {
        self.rows.div_ceil(FEED_FORWARD_ROWS as usize)
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
    pub fn backward_scratch_len(&self) -> usize {
        4 * self.blocks() * self.width
    }

    /// Values of each of the weights.
    pub fn weights(&self) -> usize {
        self.width * self.inner
    }

    /// Rows, inner rows, and two stages of weights.
    fn shared_bytes(&self) -> u32 {
        let tiles = self.width as u32 / 64;
        (tiles + INNER_TILES + 2 * tiles.min(STAGE_TILES)) * TILE_BYTES
    }

    /// The rows of the gradient besides.
    fn backward_shared_bytes(&self) -> u32 {
        self.shared_bytes() + self.width as u32 / 64 * TILE_BYTES
    }

    /// The launch by these matrix instructions, of a shape that is [`check`](Self::check)ed; `None` where there is no row.
    pub fn plan(&self, matrix: MatrixKernels) -> Option<Plan> {
        match matrix {
            MatrixKernels::Mma => self.launch("feed_forward", KERNELS, self.shared_bytes()),
            MatrixKernels::Wgmma => self.warpgroup_plan(),
        }
    }

    /// The same of backward.
    pub fn backward_plan(&self, matrix: MatrixKernels) -> Option<Plan> {
        match matrix {
            MatrixKernels::Mma => {
                self.launch("feed_forward_backward", BACKWARD_KERNELS, self.backward_shared_bytes())
            }
            MatrixKernels::Wgmma => self.warpgroup_backward_plan(),
        }
    }

    fn launch(
        &self,
        family: &'static str,
        kernels: [&'static str; KERNELS.len()],
        shared_bytes: u32,
    ) -> Option<Plan> {
        (self.rows > 0).then(|| Plan {
            family,
            kernel: kernels[self.width / 64 - 1],
            grid: [self.blocks() as u32, 1, 1],
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

    #[test]
    fn blocks_and_shared_memory() {
        let plan = |rows, width| {
            let shape = FeedForwardShape { rows, width, inner: 1024 };
            shape.check().unwrap();
            let plan = shape.plan(MatrixKernels::Mma).unwrap();
            plan.check(&Limits::SM_80).unwrap();
            (plan.kernel, plan.grid[0], plan.shared_bytes >> 10)
        };
        assert_eq!(plan(1, 64), ("feed_forward_c64", 1, 80));
        assert_eq!(plan(128, 192), ("feed_forward_c192", 1, 144));
        assert_eq!(plan(129, 256), ("feed_forward_c256", 2, 160));
        let none = FeedForwardShape { rows: 0, width: 64, inner: 64 };
        for matrix in [MatrixKernels::Mma, MatrixKernels::Wgmma] {
            assert_eq!((none.plan(matrix), none.backward_plan(matrix)), (None, None));
        }
        // Backward's widest rows need what a card of 9.0 has; two tiles less fit on one of 8.0.
        let backward = |width, limits: &Limits| {
            let shape = FeedForwardShape { rows: 129, width, inner: 1024 };
            let plan = shape.backward_plan(MatrixKernels::Mma).unwrap();
            (plan.kernel, plan.grid[0], plan.shared_bytes >> 10, plan.check(limits).is_ok())
        };
        assert_eq!(backward(256, &Limits::SM_90), ("feed_forward_backward_c256", 2, 224, true));
        assert_eq!(backward(192, &Limits::SM_80), ("feed_forward_backward_c192", 2, 192, false));
        assert_eq!(backward(128, &Limits::SM_80), ("feed_forward_backward_c128", 2, 160, true));
    }

    #[test]
    fn where_it_pays() {
        let pays = |rows, width, limits: &Limits| FeedForwardShape { rows, width, inner: 1024 }.pays(limits);
        assert!(pays(65 * 128 + 1, 256, &Limits::SM_90) && pays(53 * 128 + 1, 256, &Limits::SM_80));
        assert!(!pays(1 << 20, 256, &Limits { fuse: Fusion::Attention, ..Limits::SM_90 }));
        // Too few blocks, rows too wide, too little shared memory.
        assert!(!pays(65 * 128, 256, &Limits::SM_90));
        assert!(!pays(1 << 20, 320, &Limits::SM_90) && !pays(1 << 20, 128, &Limits::SM_89));
        let backward = |rows, width, limits: &Limits| {
            FeedForwardShape { rows, width, inner: 1024 }.backward_pays(limits)
        };
        assert!(backward(1 << 20, 256, &Limits::SM_90) && backward(1 << 20, 128, &Limits::SM_80));
        assert!(!backward(1 << 20, 256, &Limits::SM_80) && !backward(65 * 128, 256, &Limits::SM_90));
        assert!(!backward(1 << 20, 256, &Limits { fuse: Fusion::Attention, ..Limits::SM_90 }));
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
