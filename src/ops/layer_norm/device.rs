//! LayerNorm on a GPU: the kernels of `kernels/layer_norm.cu`.

use half::bf16;

use super::NormShape;
use crate::device::abi::{LayerNormBackward, LayerNormForward};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};
use crate::ops::partial_sums::PendingSums;

parameter!(LayerNormForward, LayerNormBackward: |self| format!("{} rows of {}", self.rows, self.width));

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
pub(in crate::ops) fn period(added: Option<&Buffer<bf16>>, shape: NormShape) -> Result<usize, DeviceError> {
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

/// What backward of a LayerNorm takes besides the gradient of its rows, and the gradients of parameters that it adds to.
#[derive(Debug)]
pub struct NormBackward<'a> {
    /// `[rows, C]`
    pub x: &'a Buffer<bf16>,
    /// `[period, C]`
    pub added: Option<&'a Buffer<bf16>>,
    /// `[rows, 2]`, of [`layer_norm_forward`].
    pub statistics: &'a Buffer<f32>,
    /// γ `[C]`
    pub weight: Buffer<f32>,
    /// Those of γ and β `[C]`.
    pub gradients: [Buffer<f32>; 2],
}

impl NormBackward<'_> {
    /// Notes what a launch takes of it, and gives the period of what is added.
    pub(in crate::ops) fn note(
        &self,
        operands: &mut Operands<'_>,
        shape: NormShape,
    ) -> Result<usize, DeviceError> {
        let period = period(self.added, shape)?;
        operands.reads("x [rows, C]", self.x, shape.values())?;
        if let Some(added) = self.added {
            operands.reads("added [period, C]", added, period * shape.width)?;
        }
        operands.reads("γ [C]", &self.weight, shape.width)?;
        operands.reads("statistics [rows, 2]", self.statistics, 2 * shape.rows)?;
        let [d_weight, d_bias] = &self.gradients;
        operands.updates("dγ [C]", d_weight, shape.width)?;
        operands.updates("dβ [C]", d_bias, shape.width)?;
        Ok(period)
    }

    /// Has `count` parts of both gradients `[2, count, C]` added to them, once `sums` are finished.
    pub(in crate::ops) fn add(
        &self,
        sums: &mut PendingSums,
        parts: &Buffer<f32>,
        count: usize,
    ) -> Result<(), DeviceError> {
        let [d_weight, d_bias] = &self.gradients;
        let of_each = count * d_weight.len();
        sums.add(d_weight, parts.part(0..of_each)?, count)?;
        sums.add(d_bias, parts.part(of_each..2 * of_each)?, count)
    }
}

/// Queues d `[rows, C]`, the gradient of y, → the gradient of x + added; those of γ and β are added to once `sums` are
/// finished, which have room for [`NormShape::scratch_len`] values.
///
/// # Errors
///
/// As [`layer_norm_forward`].
pub fn layer_norm_backward(
    gpu: &Gpu,
    d: &mut Buffer<bf16>,
    norm: &NormBackward<'_>,
    sums: &mut PendingSums,
    shape: NormShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let needed = shape.scratch_len(gpu.limits());
    let mut operands = Operands::new(gpu, "LayerNorm, backward");
    let period = norm.note(&mut operands, shape)?;
    operands.updates("d [rows, C]", d, shape.values())?;
    let mut parts = sums.room(gpu, needed, 2)?;
    operands.scratch("scratch", &parts, needed)?;
    let Some(launch) = shape.backward() else { return Ok(()) };
    let parameter = LayerNormBackward {
        x: norm.x.pointer(),
        added: norm.added.map_or(std::ptr::null(), Buffer::pointer),
        weight: norm.weight.pointer(),
        statistics: norm.statistics.pointer(),
        d: d.pointer_mut(),
        parts: parts.pointer_mut(),
        ..shape.backward_numbers(period)
    };
    // SAFETY: as in the forward pass; the parts fit into the scratch.
    unsafe { gpu.launch(&launch, &parameter) }?;
    norm.add(sums, &parts, shape.runs())
}
