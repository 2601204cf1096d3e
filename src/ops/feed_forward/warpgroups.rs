//! The row-wise network by matrix instructions of warpgroups, where they are asked for: the kernels of
//! `kernels/feed_forward_sm90.cu` and `kernels/feed_forward_backward_sm90.cu`, and how they are launched.

use half::bf16;

use super::FeedForwardShape;
use crate::device::abi::{
    FEED_FORWARD_BACKWARD_SM90_SLOTS, FEED_FORWARD_ROWS, FEED_FORWARD_SM90_BARRIER_BYTES,
    FEED_FORWARD_SM90_BLOCKS, FEED_FORWARD_SM90_CHUNK, FEED_FORWARD_SM90_MULTIPLIERS, FEED_FORWARD_SM90_ROWS,
    FEED_FORWARD_SM90_SLOTS, FEED_FORWARD_SM90_THREADS, FEED_FORWARD_WIDTH, FeedForwardBackwardWgmma,
    FeedForwardWgmma,
};
use crate::device::{Buffer, DeviceError, Gpu, Operands, Parameter, Plan};
use crate::ops::layer_norm::DeviceNorm;
use crate::ops::linear::DeviceLinear;

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
    pub fn warpgroup_plan(&self) -> Option<Plan> {
        let shared_bytes = self.warpgroup_shared_bytes(1, FEED_FORWARD_SM90_SLOTS);
        self.warpgroup_launch("feed_forward_sm90", KERNELS, shared_bytes)
    }

    /// The same of backward.
    pub fn warpgroup_backward_plan(&self) -> Option<Plan> {
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
        let blocks = (self.blocks() as u32).next_multiple_of(FEED_FORWARD_SM90_BLOCKS);
        (self.rows > 0).then(|| Plan {
            family,
            kernel: kernels[self.width / 64 - 1],
            grid: [blocks, 1, 1],
            block: FEED_FORWARD_SM90_THREADS,
            shared_bytes,
        })
    }

    /// The kernel's parameter but for its pointers, which are null, and its tensor maps, which are none yet.
    pub fn warpgroup_numbers(&self, eps: f64) -> FeedForwardWgmma {
        FeedForwardWgmma {
            rows: self.rows as i32,
            inner: self.inner as i32,
            eps: eps as f32,
            ..FeedForwardWgmma::default()
        }
    }

    /// The same of backward.
    pub fn warpgroup_backward_numbers(&self) -> FeedForwardBackwardWgmma {
        FeedForwardBackwardWgmma {
            rows: self.rows as i32,
            inner: self.inner as i32,
            ..FeedForwardBackwardWgmma::default()
        }
    }

    /// Rows of the boxes in which these kernels take weights, fc1's and fc2's.
    pub fn box_rows(&self) -> [u32; 2] {
        [FEED_FORWARD_SM90_CHUNK, self.width as u32].map(|rows| rows / FEED_FORWARD_SM90_BLOCKS)
    }
}

macro_rules! parameter {
    ($name:ty) => {
        // SAFETY: bindgen makes it of the header that the kernels are compiled with.
        unsafe impl cudarc::driver::DeviceRepr for $name {}
        // SAFETY: as above; it has no padding.
        unsafe impl Parameter for $name {
            fn shapes(&self) -> String {
                format!("{} rows and {} inner columns", self.rows, self.inner)
            }
        }
    };
}
parameter!(FeedForwardWgmma);
parameter!(FeedForwardBackwardWgmma);

/// Queues y `[rows, C]` = LayerNorm(x + f) with f = fc2(ReLU(fc1(x))), and for backward the norm's statistics `[rows, 2]`
/// and, in `output` where there is one, f.
///
/// # Errors
///
/// Sizes that do not fit or that the kernels are not made for, buffers that overlap or are of another GPU, a card without such
/// instructions, and what the driver refuses.
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn feed_forward_by_warpgroups(
    gpu: &Gpu,
    y: &mut Buffer<bf16>,
    output: Option<&mut Buffer<bf16>>,
    statistics: &mut Buffer<f32>,
    x: &Buffer<bf16>,
    [fc1, fc2]: [DeviceLinear<'_>; 2],
    norm: DeviceNorm<'_>,
    shape: FeedForwardShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let FeedForwardShape { rows, width, inner } = shape;
    let mut operands = Operands::new(gpu, "a network by warpgroups");
    operands.reads("x [rows, C]", x, shape.values())?;
    operands.reads("fc1 [G, C]", fc1.weight, shape.weights())?;
    operands.reads("fc1's bias [G]", fc1.bias, inner)?;
    operands.reads("fc2 [C, G]", fc2.weight, shape.weights())?;
    operands.reads("fc2's bias [C]", fc2.bias, width)?;
    operands.reads("γ [C]", norm.weight, width)?;
    operands.reads("β [C]", norm.bias, width)?;
    operands.writes("y [rows, C]", y, shape.values())?;
    operands.writes("statistics [rows, 2]", statistics, 2 * rows)?;
    let output = match output {
        None => std::ptr::null_mut(),
        Some(output) => {
            operands.writes("fc2's results [rows, C]", output, shape.values())?;
            output.pointer_mut()
        }
    };
    let Some(launch) = shape.warpgroup_plan() else { return Ok(()) };
    let [box1, box2] = shape.box_rows();
    let parameter = FeedForwardWgmma {
        weight1: gpu.tensor_map(fc1.weight, [inner, width], box1)?,
        weight2: gpu.tensor_map(fc2.weight, [width, inner], box2)?,
        x: x.pointer(),
        bias1: fc1.bias.pointer(),
        bias2: fc2.bias.pointer(),
        scale: norm.weight.pointer(),
        shift: norm.bias.pointer(),
        output,
        y: y.pointer_mut(),
        statistics: statistics.pointer_mut(),
        ..shape.warpgroup_numbers(norm.eps)
    };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues the network's backward behind its LayerNorm's: of dy `[rows, C]`, the gradient of fc2's results and by the residual of
/// x, the inner rows `[rows, G]` once more, their gradient `[rows, G]` in front of the ReLU, and dx `[rows, C]`.
///
/// # Errors
///
/// As [`feed_forward_by_warpgroups`].
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn feed_forward_backward_by_warpgroups(
    gpu: &Gpu,
    dx: &mut Buffer<bf16>,
    [hidden, d_hidden]: [&mut Buffer<bf16>; 2],
    dy: &Buffer<bf16>,
    x: &Buffer<bf16>,
    fc1: DeviceLinear<'_>,
    weight2: &Buffer<bf16>,
    shape: FeedForwardShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let mut operands = Operands::new(gpu, "backward of a network by warpgroups");
    operands.reads("x [rows, C]", x, shape.values())?;
    operands.reads("dy [rows, C]", dy, shape.values())?;
    operands.reads("fc1 [G, C]", fc1.weight, shape.weights())?;
    operands.reads("fc1's bias [G]", fc1.bias, shape.inner)?;
    operands.reads("fc2 [C, G]", weight2, shape.weights())?;
    operands.writes("inner rows [rows, G]", hidden, shape.inner_values())?;
    operands.writes("their gradient [rows, G]", d_hidden, shape.inner_values())?;
    operands.writes("dx [rows, C]", dx, shape.values())?;
    let Some(launch) = shape.warpgroup_backward_plan() else { return Ok(()) };
    let [box1, box2] = shape.box_rows();
    let parameter = FeedForwardBackwardWgmma {
        weight1: gpu.tensor_map(fc1.weight, [shape.inner, shape.width], box1)?,
        weight2: gpu.tensor_map(weight2, [shape.width, shape.inner], box2)?,
        x: x.pointer(),
        dy: dy.pointer(),
        bias1: fc1.bias.pointer(),
        hidden: hidden.pointer_mut(),
        d_hidden: d_hidden.pointer_mut(),
        dx: dx.pointer_mut(),
        ..shape.warpgroup_backward_numbers()
    };
    // SAFETY: as in `feed_forward_by_warpgroups`.
    unsafe { gpu.launch(&launch, &parameter) }
}

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
        let none = FeedForwardShape { rows: 0, ..shape };
        assert_eq!((none.warpgroup_plan(), none.warpgroup_backward_plan()), (None, None));
        // Clusters are whole, and count.
        assert!(shape.pays(&asked) && !FeedForwardShape { rows: 64 * 128, ..shape }.pays(&asked));
        assert!(shape.backward_pays(&asked));
    }
}
