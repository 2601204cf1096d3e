//! LayerNorm on a GPU: the kernels of `kernels/layer_norm.cu`.

use half::bf16;

use super::NormShape;
use crate::device::abi::{LayerNormBackward, LayerNormForward};
use crate::device::{Buffer, DeviceError, Gpu, Operands, Parameter};
use crate::ops::partial_sums::PendingSums;

// SAFETY: bindgen makes it of the header that the kernels are compiled with.
unsafe impl cudarc::driver::DeviceRepr for LayerNormForward {}
// SAFETY: as above.
unsafe impl Parameter for LayerNormForward {
    fn shapes(&self) -> String {
        format!("{} rows of {}", self.rows, self.width)
    }
}

// SAFETY: as above.
unsafe impl cudarc::driver::DeviceRepr for LayerNormBackward {}
// SAFETY: as above.
unsafe impl Parameter for LayerNormBackward {
    fn shapes(&self) -> String {
        format!("{} rows of {}", self.rows, self.width)
    }
}

/// Scale and shift `[C]` on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct DeviceNorm<'a> {
    /// γ `[C]`
    pub weight: &'a Buffer<f32>,
    /// β `[C]`
    pub bias: &'a Buffer<f32>,
    /// Added to the variance inside the square root.
    pub eps: f64,
}

/// The rows after which those that are added come again; all of them where nothing is added.
fn period(added: Option<&Buffer<bf16>>, shape: NormShape) -> Result<usize, DeviceError> {
    let NormShape { rows, width } = shape;
    let period = added.map_or(rows, |added| added.len() / width);
    if added.is_some_and(|added| added.len() != period * width)
        || rows > 0 && (period == 0 || !rows.is_multiple_of(period))
    {
        return Err(DeviceError::Shapes(format!(
            "LayerNorm: added [period, C] has {} values; of {rows} rows of {width}, the period divides the rows",
            added.map_or(0, Buffer::len)
        )));
    }
    Ok(period)
}

/// Queues y `[rows, C]` = γ·(x + added − mean)/√(variance + eps) + β and, for backward, statistics `[rows, 2]` = mean and
/// 1/√(variance + eps), of x `[rows, C]` and added `[period, C]`, whose row i % period is added to row i.
///
/// # Errors
///
/// Sizes that do not fit the shape or that the kernels are not made for, buffers that overlap or are of another GPU, and
/// what the driver refuses.
pub fn layer_norm_forward(
    gpu: &Gpu,
    y: &mut Buffer<bf16>,
    statistics: &mut Buffer<f32>,
    x: &Buffer<bf16>,
    added: Option<&Buffer<bf16>>,
    norm: DeviceNorm<'_>,
    shape: NormShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let period = period(added, shape)?;
    let mut operands = Operands::new(gpu, "LayerNorm, forward");
    operands.reads("x [rows, C]", x, shape.values())?;
    if let Some(added) = added {
        operands.reads("added [period, C]", added, period * shape.width)?;
    }
    operands.reads("γ [C]", norm.weight, shape.width)?;
    operands.reads("β [C]", norm.bias, shape.width)?;
    operands.writes("y [rows, C]", y, shape.values())?;
    operands.writes("statistics [rows, 2]", statistics, 2 * shape.rows)?;
    let Some(launch) = shape.forward() else { return Ok(()) };
    let parameter = LayerNormForward {
        x: x.pointer(),
        added: added.map_or(std::ptr::null(), Buffer::pointer),
        weight: norm.weight.pointer(),
        bias: norm.bias.pointer(),
        y: y.pointer_mut(),
        statistics: statistics.pointer_mut(),
        ..shape.forward_numbers(period, norm.eps)
    };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues dx `[rows, C]` = the gradient of x + added, d_weight and d_bias `[C]` += those of γ and β, of dy `[rows, C]` and
/// what forward was given and left, once `sums` are finished, which have room for [`NormShape::scratch_len`] values.
///
/// # Errors
///
/// As [`layer_norm_forward`].
#[expect(clippy::too_many_arguments, reason = "each is a matrix of its own")]
pub fn layer_norm_backward(
    gpu: &Gpu,
    dx: &mut Buffer<bf16>,
    d_weight: &mut Buffer<f32>,
    d_bias: &mut Buffer<f32>,
    dy: &Buffer<bf16>,
    statistics: &Buffer<f32>,
    x: &Buffer<bf16>,
    added: Option<&Buffer<bf16>>,
    norm: DeviceNorm<'_>,
    sums: &mut PendingSums,
    shape: NormShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let period = period(added, shape)?;
    let needed = shape.scratch_len(gpu.limits());
    let mut operands = Operands::new(gpu, "LayerNorm, backward");
    operands.reads("x [rows, C]", x, shape.values())?;
    if let Some(added) = added {
        operands.reads("added [period, C]", added, period * shape.width)?;
    }
    operands.reads("γ [C]", norm.weight, shape.width)?;
    operands.reads("statistics [rows, 2]", statistics, 2 * shape.rows)?;
    operands.reads("dy [rows, C]", dy, shape.values())?;
    operands.writes("dx [rows, C]", dx, shape.values())?;
    operands.updates("dγ [C]", d_weight, shape.width)?;
    operands.updates("dβ [C]", d_bias, shape.width)?;
    let mut parts = sums.room(gpu, needed, 2)?;
    operands.scratch("scratch", &parts, needed)?;
    let Some(launch) = shape.backward() else { return Ok(()) };
    let parameter = LayerNormBackward {
        x: x.pointer(),
        added: added.map_or(std::ptr::null(), Buffer::pointer),
        weight: norm.weight.pointer(),
        statistics: statistics.pointer(),
        dy: dy.pointer(),
        dx: dx.pointer_mut(),
        parts: parts.pointer_mut(),
        ..shape.backward_numbers(period)
    };
    // SAFETY: as in the forward pass; the parts fit into the scratch.
    unsafe { gpu.launch(&launch, &parameter) }?;
    sums.add(d_weight, parts.part(0..needed / 2)?, shape.runs())?;
    sums.add(d_bias, parts.part(needed / 2..needed)?, shape.runs())
}
