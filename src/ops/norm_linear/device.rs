//! LayerNorm and the layer behind it on a GPU as one kernel: those of `kernels/norm_linear.cu`.

use half::bf16;

use super::NormLinearPlan;
use crate::device::abi::NormLinear;
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};
use crate::ops::layer_norm::{self, DeviceNorm, NormShape, layer_norm_forward};
use crate::ops::linear::{Activation, BlockSize, DeviceLinear, Layout, LinearShape, linear_forward};

parameter!(NormLinear: |self| format!("{} rows and {} outputs", self.rows, self.outputs));

/// LayerNorm of a residual sum: what it is of, and where it goes.
#[derive(Debug)]
pub struct NormForward<'a> {
    /// `[rows, C]`: what it gives.
    pub rows: &'a mut Buffer<bf16>,
    /// `[rows, 2]`, for backward.
    pub statistics: &'a mut Buffer<f32>,
    /// `[rows, C]`
    pub x: &'a Buffer<bf16>,
    /// `[period, C]`, whose row i % period is added to row i of x.
    pub added: &'a Buffer<bf16>,
    /// γ, β and eps.
    pub norm: DeviceNorm<'a>,
}

impl NormForward<'_> {
    /// Queues it alone.
    ///
    /// # Errors
    ///
    /// As [`layer_norm_forward`].
    pub fn compute(self, gpu: &Gpu, shape: NormShape) -> Result<(), DeviceError> {
        let NormForward { rows, statistics, x, added, norm } = self;
        layer_norm_forward(gpu, rows, statistics, x, Some(added), norm, shape)
    }
}

/// Queues LayerNorm and y = activation(r·Wᵀ + b) of the rows r that it gives, laid out as `y_layout` says: as one kernel where that
/// may be quicker, with the bits of two.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn norm_linear_forward(
    gpu: &Gpu,
    before: NormForward<'_>,
    y: &mut Buffer<bf16>,
    y_layout: Layout,
    layer: DeviceLinear<'_>,
    activation: Activation,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    if let Some(blocks) = NormLinearPlan::blocks(shape, gpu.limits()) {
        return norm_linear_forward_by(gpu, blocks, before, y, y_layout, layer, activation, shape);
    }
    let NormForward { rows, statistics, x, added, norm } = before;
    let of_norm = NormShape { rows: shape.rows, width: shape.inputs };
    layer_norm_forward(gpu, rows, statistics, x, Some(added), norm, of_norm)?;
    linear_forward(gpu, y, y_layout, rows, layer, activation, shape)
}

/// The same as one kernel by such blocks, [`Few`](BlockSize::Few) or [`Fewest`](BlockSize::Fewest), of rows of at most 256 values.
///
/// # Errors
///
/// As [`norm_linear_forward`].
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn norm_linear_forward_by(
    gpu: &Gpu,
    blocks: BlockSize,
    before: NormForward<'_>,
    y: &mut Buffer<bf16>,
    y_layout: Layout,
    layer: DeviceLinear<'_>,
    activation: Activation,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let plan = NormLinearPlan::new(shape, y_layout)?;
    let LinearShape { rows, inputs: width, outputs } = shape;
    let NormForward { rows: normalized, statistics, x, added, norm } = before;
    let period = layer_norm::period(Some(added), NormShape { rows, width })?;
    let mut operands = Operands::new(gpu, "LayerNorm and a linear layer in one kernel");
    operands.reads("x [rows, C]", x, rows * width)?;
    operands.reads("added [period, C]", added, period * width)?;
    operands.reads("γ [C]", norm.weight, width)?;
    operands.reads("β [C]", norm.bias, width)?;
    operands.reads("W [out, C]", layer.weight, outputs * width)?;
    operands.reads("b [out]", layer.bias, outputs)?;
    operands.writes("LayerNorm's rows [rows, C]", normalized, rows * width)?;
    operands.writes("statistics [rows, 2]", statistics, 2 * rows)?;
    operands.writes("y [rows, out]", y, rows * outputs)?;
    let Some(launch) = plan.launch(blocks)? else { return Ok(()) };
    let parameter = NormLinear {
        x: x.pointer(),
        added: added.pointer(),
        scale: norm.weight.pointer(),
        shift: norm.bias.pointer(),
        statistics: statistics.pointer_mut(),
        normalized: normalized.pointer_mut(),
        weight: layer.weight.pointer(),
        bias: layer.bias.pointer(),
        y: y.pointer_mut(),
        ..plan.numbers(period, norm.eps, activation)
    };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, and memory that is given back is freed in the stream's
    // order.
    unsafe { gpu.launch(&launch, &parameter) }
}
