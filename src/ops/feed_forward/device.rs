//! The row-wise network on a GPU as one kernel, of `kernels/feed_forward.cu`, and its backward, of
//! `kernels/feed_forward_backward.cu`.

use half::bf16;

use super::FeedForwardShape;
use crate::device::abi::{FeedForward, FeedForwardBackward};
use crate::device::{Buffer, DeviceError, Gpu, Operands, Parameter};
use crate::ops::layer_norm::DeviceNorm;
use crate::ops::linear::DeviceLinear;

// SAFETY: bindgen makes it of the header that the kernels are compiled with.
unsafe impl cudarc::driver::DeviceRepr for FeedForward {}
// SAFETY: as above; it has no padding.
unsafe impl Parameter for FeedForward {
    fn shapes(&self) -> String {
        format!("{} rows and {} inner columns", self.rows, self.inner)
    }
}

// SAFETY: bindgen makes it of the header that the kernels are compiled with.
unsafe impl cudarc::driver::DeviceRepr for FeedForwardBackward {}
// SAFETY: as above; it has no padding.
unsafe impl Parameter for FeedForwardBackward {
    fn shapes(&self) -> String {
        format!("{} rows and {} inner columns", self.rows, self.inner)
    }
}

/// Queues y `[rows, C]` = LayerNorm(x + f) with f = fc2(ReLU(fc1(x))), and for backward the norm's statistics `[rows, 2]`
/// and, in `output` where there is one, f.
///
/// # Errors
///
/// Sizes that do not fit or that the kernels are not made for, buffers that overlap or are of another GPU, a card with too
/// little shared memory, and what the driver refuses.
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn feed_forward(
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
    let mut operands = Operands::new(gpu, "a network in one kernel");
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
    let Some(launch) = shape.plan() else { return Ok(()) };
    let parameter = FeedForward {
        x: x.pointer(),
        weight1: fc1.weight.pointer(),
        bias1: fc1.bias.pointer(),
        weight2: fc2.weight.pointer(),
        bias2: fc2.bias.pointer(),
        scale: norm.weight.pointer(),
        shift: norm.bias.pointer(),
        output,
        y: y.pointer_mut(),
        statistics: statistics.pointer_mut(),
        ..shape.numbers(norm.eps)
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
/// As [`feed_forward`].
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn feed_forward_backward(
    gpu: &Gpu,
    dx: &mut Buffer<bf16>,
    hidden: &mut Buffer<bf16>,
    d_hidden: &mut Buffer<bf16>,
    dy: &Buffer<bf16>,
    x: &Buffer<bf16>,
    fc1: DeviceLinear<'_>,
    weight2: &Buffer<bf16>,
    shape: FeedForwardShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let mut operands = Operands::new(gpu, "backward of a network in one kernel");
    operands.reads("x [rows, C]", x, shape.values())?;
    operands.reads("dy [rows, C]", dy, shape.values())?;
    operands.reads("fc1 [G, C]", fc1.weight, shape.weights())?;
    operands.reads("fc1's bias [G]", fc1.bias, shape.inner)?;
    operands.reads("fc2 [C, G]", weight2, shape.weights())?;
    operands.writes("inner rows [rows, G]", hidden, shape.inner_values())?;
    operands.writes("their gradient [rows, G]", d_hidden, shape.inner_values())?;
    operands.writes("dx [rows, C]", dx, shape.values())?;
    let Some(launch) = shape.backward_plan() else { return Ok(()) };
    let parameter = FeedForwardBackward {
        x: x.pointer(),
        dy: dy.pointer(),
        weight1: fc1.weight.pointer(),
        bias1: fc1.bias.pointer(),
        weight2: weight2.pointer(),
        hidden: hidden.pointer_mut(),
        d_hidden: d_hidden.pointer_mut(),
        dx: dx.pointer_mut(),
        ..shape.backward_numbers()
    };
    // SAFETY: as in `feed_forward`.
    unsafe { gpu.launch(&launch, &parameter) }
}
