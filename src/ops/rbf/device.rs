//! The rbf input on a GPU: the kernels of `kernels/rbf.cu` and `kernels/rbf_sm90.cu`.

use half::bf16;

use super::{RbfBlocks, RbfPlan, RbfShape};
use crate::device::abi::{
    RbfBackwardCenters, RbfBackwardCentersWgmma, RbfBackwardWeights, RbfBackwardWeightsWgmma, RbfForward,
    RbfForwardWgmma,
};
use crate::device::choice::{self, MatrixKernels};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};
use crate::ops::linear::{Activation, DeviceLinear};
use crate::ops::partial_sums::PendingSums;

parameter!(RbfForward, RbfBackwardWeights, RbfBackwardCenters: |self| {
    let Self { rows, columns, per_feature, outputs, .. } = self;
    format!("{rows} rows, {columns} activations, {per_feature} of a feature, and {outputs} outputs")
});

/// An rbf input's parameters on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRbf<'a> {
    /// μ `[F, K]`
    pub centers: &'a Buffer<f32>,
    /// W `[out, width]`, zeros behind F·K, and b.
    pub layer: DeviceLinear<'a>,
}

/// Queues y `[rows, out]` = activation(φ(x `[rows, stride]`)·Wᵀ + b).
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn rbf_forward(
    gpu: &Gpu,
    y: &mut Buffer<bf16>,
    x: &Buffer<bf16>,
    rbf: DeviceRbf<'_>,
    activation: Activation,
    shape: RbfShape,
) -> Result<(), DeviceError> {
    rbf_forward_by(gpu, RbfBlocks::of(shape, gpu.limits()), y, x, rbf, activation, shape)
}

/// The same by such blocks, [`Wide`](RbfBlocks::Wide) ones and [`Warpgroups`](RbfBlocks::Warpgroups) where there is a multiple of
/// 256 outputs; the bits do not depend on it, but for those of the latter.
///
/// # Errors
///
/// As [`rbf_forward`], blocks that the outputs do not fill, and those by warpgroups where the card has no such instructions.
pub(super) fn rbf_forward_by(
    gpu: &Gpu,
    blocks: RbfBlocks,
    y: &mut Buffer<bf16>,
    x: &Buffer<bf16>,
    rbf: DeviceRbf<'_>,
    activation: Activation,
    shape: RbfShape,
) -> Result<(), DeviceError> {
    let plan = RbfPlan::new(shape)?;
    let RbfShape { rows, stride, outputs, .. } = shape;
    if !blocks.fit(outputs) {
        return Err(DeviceError::Shapes(format!(
            "the rbf input by wide blocks: outputs are a multiple of 256, not {outputs}"
        )));
    }
    if blocks == RbfBlocks::Warpgroups {
        choice::check_wgmma(gpu.info())?;
    }
    let mut operands = Operands::new(gpu, "the rbf input, forward");
    operands.reads("x [N, stride]", x, rows * stride)?;
    operands.reads("centres [F, K]", rbf.centers, shape.columns())?;
    operands.reads("W [out, width]", rbf.layer.weight, outputs * shape.width())?;
    operands.reads("b [out]", rbf.layer.bias, outputs)?;
    operands.writes("y [N, out]", y, rows * outputs)?;
    let Some(launch) = plan.forward(blocks) else { return Ok(()) };
    let parameter = RbfForward {
        x: x.pointer(),
        centers: rbf.centers.pointer(),
        weight: rbf.layer.weight.pointer(),
        bias: rbf.layer.bias.pointer(),
        y: y.pointer_mut(),
        ..plan.forward_numbers(activation)
    };
    if blocks == RbfBlocks::Warpgroups {
        let maps = gpu.maps([rbf.layer.weight], plan.forward_boxes())?;
        // SAFETY: as below, and the map is of this buffer.
        return unsafe { gpu.launch(&launch, &RbfForwardWgmma::new(maps, parameter)) };
    }
    // SAFETY: the buffers have the kernel's sizes, the output is apart, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues d_centers `[F, K]`, dW `[out, width]` and db `[out]` += the gradients, given dy `[rows, out]` of what the
/// activation is taken of. Sums have room for [`RbfShape::scratch_len`] values, and are yet to be finished. Behind F·K, dW stays as it is.
///
/// # Errors
///
/// As [`rbf_forward`].
#[expect(clippy::too_many_arguments, reason = "three results, and what they are made of")]
pub fn rbf_backward(
    gpu: &Gpu,
    d_centers: &mut Buffer<f32>,
    d_weight: &mut Buffer<f32>,
    d_bias: &mut Buffer<f32>,
    dy: &Buffer<bf16>,
    x: &Buffer<bf16>,
    rbf: DeviceRbf<'_>,
    sums: &mut PendingSums,
    shape: RbfShape,
) -> Result<(), DeviceError> {
    let matrix = gpu.limits().matrix();
    rbf_backward_by(gpu, matrix, d_centers, d_weight, d_bias, dy, x, rbf, sums, shape)
}

/// The same by kernels of these matrix instructions, where there are some for so many outputs.
///
/// # Errors
///
/// As [`rbf_forward`], and those by warpgroups where the card has no such instructions.
#[expect(clippy::too_many_arguments, reason = "as above")]
pub(super) fn rbf_backward_by(
    gpu: &Gpu,
    matrix: MatrixKernels,
    d_centers: &mut Buffer<f32>,
    d_weight: &mut Buffer<f32>,
    d_bias: &mut Buffer<f32>,
    dy: &Buffer<bf16>,
    x: &Buffer<bf16>,
    rbf: DeviceRbf<'_>,
    sums: &mut PendingSums,
    shape: RbfShape,
) -> Result<(), DeviceError> {
    let plan = RbfPlan::new(shape)?;
    let by_warpgroups = plan.is_by_warpgroups(matrix);
    if by_warpgroups {
        choice::check_wgmma(gpu.info())?;
    }
    let RbfShape { rows, stride, outputs, .. } = shape;
    let (columns, weights) = (shape.columns(), outputs * shape.width());
    let mut operands = Operands::new(gpu, "the rbf input, backward");
    operands.reads("dy [N, out]", dy, rows * outputs)?;
    operands.reads("x [N, stride]", x, rows * stride)?;
    operands.reads("centres [F, K]", rbf.centers, columns)?;
    operands.reads("W [out, width]", rbf.layer.weight, weights)?;
    operands.updates("d_centers [F, K]", d_centers, columns)?;
    operands.updates("dW [out, width]", d_weight, weights)?;
    operands.updates("db [out]", d_bias, outputs)?;
    let scratch = sums.room(gpu, shape.scratch_len(gpu.limits()), 3)?;
    operands.scratch("scratch", &scratch, shape.scratch_len(gpu.limits()))?;
    let (Some(of_weights), Some(of_centers)) = (plan.backward_weights(matrix), plan.backward_centers(matrix))
    else {
        return Ok(());
    };
    let (parts, center_parts) = (plan.weight_parts(), plan.center_parts());
    let ends =
        [parts * weights, parts * (weights + outputs), parts * (weights + outputs) + center_parts * columns];
    let mut weight_parts = scratch.part(0..ends[0])?;
    let mut bias_parts = scratch.part(ends[0]..ends[1])?;
    let mut parts_of_centers = scratch.part(ends[1]..ends[2])?;
    let parameter = RbfBackwardWeights {
        dy: dy.pointer(),
        x: x.pointer(),
        centers: rbf.centers.pointer(),
        d_weight: weight_parts.pointer_mut(),
        d_bias: bias_parts.pointer_mut(),
        ..plan.backward_weights_numbers()
    };
    // SAFETY: as in `rbf_forward`; the parts fill the scratch.
    unsafe {
        if by_warpgroups {
            let maps = gpu.maps([dy], plan.weights_boxes())?;
            gpu.launch(&of_weights, &RbfBackwardWeightsWgmma::new(maps, parameter))
        } else {
            gpu.launch(&of_weights, &parameter)
        }
    }?;
    let parameter = RbfBackwardCenters {
        dy: dy.pointer(),
        x: x.pointer(),
        centers: rbf.centers.pointer(),
        weight: rbf.layer.weight.pointer(),
        d_centers: parts_of_centers.pointer_mut(),
        ..plan.backward_centers_numbers()
    };
    // SAFETY: as above.
    unsafe {
        if by_warpgroups {
            let maps = gpu.maps([dy, rbf.layer.weight], plan.centers_boxes())?;
            gpu.launch(&of_centers, &RbfBackwardCentersWgmma::new(maps, parameter))
        } else {
            gpu.launch(&of_centers, &parameter)
        }
    }?;
    sums.add(d_weight, weight_parts, parts)?;
    sums.add(d_bias, bias_parts, parts)?;
    sums.add(d_centers, parts_of_centers, center_parts)
}
