//! Linear layers on a GPU: the kernels of `kernels/linear.cu` and `kernels/linear_*.cu`.

use half::bf16;

use super::{Activation, BlockSize, Layout, LinearPlan, LinearShape, WeightsPlan};
use crate::device::abi::{
    LINEAR_FORWARD_LAYERS, LINEAR_INPUT_LAYERS, LINEAR_LAYERS, LinearBackwardInput, LinearBackwardInputWgmma,
    LinearBackwardWeights, LinearBackwardWeightsWgmma, LinearForward, LinearForwardWgmma, LinearInput,
    LinearInputLayers, LinearLayers, LinearWeights,
};
use crate::device::choice::{self, MatrixKernels};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};
use crate::ops::partial_sums::PendingSums;

parameter!(LinearForward, LinearBackwardInput, LinearInput: |self| {
    format!("{} rows, {} inputs and {} outputs", self.rows, self.inputs, self.outputs)
});

parameter!(LinearLayers, LinearInputLayers: |self| format!("layers of {}", self.layers[0].shapes()));

parameter!(LinearBackwardWeights: |self| {
    let of = |layer: &LinearWeights| {
        format!("{} rows, {} inputs and {} outputs", layer.rows, layer.inputs, layer.outputs)
    };
    self.layers.iter().take(self.count as usize).map(of).collect::<Vec<_>>().join("; ")
});

/// A layer's parameters on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLinear<'a> {
    /// `[out, in]`
    pub weight: &'a Buffer<bf16>,
    /// `[out]`
    pub bias: &'a Buffer<f32>,
}

/// What follows the gradient of a layer's input.
#[derive(Clone, Copy, Debug)]
pub struct InputGradient<'a> {
    /// This `[rows, in]` is added.
    pub added: Option<&'a Buffer<bf16>>,
    /// Then it is 0 where this `[rows, in]` is not above 0: the output of the ReLU before.
    pub mask: Option<&'a Buffer<bf16>>,
}

impl<'a> InputGradient<'a> {
    /// Nothing.
    pub const PLAIN: Self = InputGradient { added: None, mask: None };

    /// This `[rows, in]` is added.
    pub fn added(added: &'a Buffer<bf16>) -> Self {
        InputGradient { added: Some(added), ..Self::PLAIN }
    }

    /// It is 0 where this `[rows, in]` is not above 0.
    pub fn masked(mask: &'a Buffer<bf16>) -> Self {
        InputGradient { mask: Some(mask), ..Self::PLAIN }
    }
}

/// Queues y = activation(x `[rows, in]`·Wᵀ + b), laid out as `y_layout` says.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn linear_forward(
    gpu: &Gpu,
    y: &mut Buffer<bf16>,
    y_layout: Layout,
    x: &Buffer<bf16>,
    layer: DeviceLinear<'_>,
    activation: Activation,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let blocks = BlockSize::of_forward(shape, gpu.limits());
    linear_forward_by(gpu, blocks, y, y_layout, x, layer, activation, shape)
}

/// The same by such blocks, [`Wide`](BlockSize::Wide) ones and [`Warpgroups`](BlockSize::Warpgroups) where there is a multiple of
/// 256 outputs; the bits do not depend on it, but for those of the latter.
///
/// # Errors
///
/// As [`linear_forward`].
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn linear_forward_by(
    gpu: &Gpu,
    blocks: BlockSize,
    y: &mut Buffer<bf16>,
    y_layout: Layout,
    x: &Buffer<bf16>,
    layer: DeviceLinear<'_>,
    activation: Activation,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let plan = LinearPlan::new(shape, y_layout)?;
    fits(gpu, blocks, shape.outputs)?;
    let LinearShape { rows, inputs, outputs } = shape;
    let mut operands = Operands::new(gpu, "a linear layer, forward");
    operands.reads("x [N, in]", x, rows * inputs)?;
    operands.reads("W [out, in]", layer.weight, outputs * inputs)?;
    operands.reads("b [out]", layer.bias, outputs)?;
    operands.writes("y [N, out]", y, rows * outputs)?;
    let Some(launch) = plan.forward(blocks) else { return Ok(()) };
    let parameter = LinearForward {
        x: x.pointer(),
        weight: layer.weight.pointer(),
        bias: layer.bias.pointer(),
        y: y.pointer_mut(),
        ..plan.forward_numbers(activation)
    };
    if blocks == BlockSize::Warpgroups {
        let maps = gpu.maps([x, layer.weight], plan.forward_boxes())?;
        // SAFETY: as below, and the maps are of these buffers.
        return unsafe { gpu.launch(&launch, &LinearForwardWgmma::new(maps, parameter)) };
    }
    // SAFETY: the buffers have the kernel's sizes, the output is apart, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// A layer's forward, of several at once.
#[derive(Debug)]
pub struct LayerForward {
    /// `[rows, out]`, as their layout says.
    pub y: Buffer<bf16>,
    /// `[rows, in]`
    pub x: Buffer<bf16>,
    /// `[out, in]`
    pub weight: Buffer<bf16>,
    /// `[out]`
    pub bias: Buffer<f32>,
}

/// Queues y = activation(x·Wᵀ + b) of layers of the same sizes, of few rows each, up to 16 in a launch; the bits are those of
/// [`linear_forward`].
///
/// # Errors
///
/// As [`linear_forward`].
pub fn linear_forward_layers(
    gpu: &Gpu,
    layers: &mut [LayerForward],
    y_layout: Layout,
    activation: Activation,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let plan = LinearPlan::new(shape, y_layout)?;
    let LinearShape { rows, inputs, outputs } = shape;
    for layers in layers.chunks_mut(LINEAR_FORWARD_LAYERS as usize) {
        let mut operands = Operands::new(gpu, "linear layers, forward");
        let mut parameter = plan.layers_numbers(activation);
        for (to, LayerForward { y, x, weight, bias }) in parameter.layers.iter_mut().zip(&mut *layers) {
            operands.reads("x [N, in]", x, rows * inputs)?;
            operands.reads("W [out, in]", weight, outputs * inputs)?;
            operands.reads("b [out]", bias, outputs)?;
            operands.writes("y [N, out]", y, rows * outputs)?;
            (to.x, to.weight, to.bias) = (x.pointer(), weight.pointer(), bias.pointer());
            to.y = y.pointer_mut();
        }
        let Some(launch) = plan.forward_layers(layers.len()) else { return Ok(()) };
        // SAFETY: as in `linear_forward`; there is a layer for each of the grid.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    Ok(())
}

/// Queues dx `[rows, in]` = dy·W, finished as `finish` says; dy is laid out as `dy_layout` says.
///
/// # Errors
///
/// As [`linear_forward`].
pub fn linear_backward_input(
    gpu: &Gpu,
    dx: &mut Buffer<bf16>,
    dy: &Buffer<bf16>,
    dy_layout: Layout,
    weight: &Buffer<bf16>,
    finish: InputGradient<'_>,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let blocks = BlockSize::of_input(shape, gpu.limits());
    linear_backward_input_by(gpu, blocks, dx, dy, dy_layout, weight, finish, shape)
}

/// The same by such blocks, [`Wide`](BlockSize::Wide) ones and [`Warpgroups`](BlockSize::Warpgroups) where there is a multiple of
/// 256 inputs; the bits do not depend on it, but for those of the latter.
///
/// # Errors
///
/// As [`linear_forward`].
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn linear_backward_input_by(
    gpu: &Gpu,
    blocks: BlockSize,
    dx: &mut Buffer<bf16>,
    dy: &Buffer<bf16>,
    dy_layout: Layout,
    weight: &Buffer<bf16>,
    finish: InputGradient<'_>,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let plan = LinearPlan::new(shape, dy_layout)?;
    fits(gpu, blocks, shape.inputs)?;
    let LinearShape { rows, inputs, outputs } = shape;
    let mut operands = Operands::new(gpu, "a linear layer, gradient of the input");
    operands.reads("dy [N, out]", dy, rows * outputs)?;
    operands.reads("W [out, in]", weight, outputs * inputs)?;
    let InputGradient { added, mask } = finish;
    for (name, other) in [("what is added to dx [N, in]", added), ("what masks dx [N, in]", mask)] {
        if let Some(other) = other {
            operands.reads(name, other, rows * inputs)?;
        }
    }
    operands.writes("dx [N, in]", dx, rows * inputs)?;
    let Some(launch) = plan.backward_input(blocks) else { return Ok(()) };
    let parameter = LinearBackwardInput {
        dy: dy.pointer(),
        weight: weight.pointer(),
        added: added.map_or(std::ptr::null(), Buffer::pointer),
        mask: mask.map_or(std::ptr::null(), Buffer::pointer),
        dx: dx.pointer_mut(),
        ..plan.backward_input_numbers()
    };
    if blocks == BlockSize::Warpgroups {
        let maps = gpu.maps([dy, weight], plan.input_boxes())?;
        // SAFETY: as in `linear_forward`.
        return unsafe { gpu.launch(&launch, &LinearBackwardInputWgmma::new(maps, parameter)) };
    }
    // SAFETY: as in `linear_forward`.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// The gradient of a layer's input that is added to others, of several at once.
#[derive(Debug)]
pub struct LayerInput {
    /// `[rows, in]`: added to.
    pub dx: Buffer<f32>,
    /// `[rows, out]`, as their layout says.
    pub dy: Buffer<bf16>,
    /// `[out, in]`
    pub weight: Buffer<bf16>,
}

/// Queues dx `[rows, in]` += dy·W, not rounded, of layers of the same sizes, of few rows each, up to 16 in a launch.
///
/// # Errors
///
/// As [`linear_forward`].
pub fn linear_backward_input_layers(
    gpu: &Gpu,
    layers: &mut [LayerInput],
    dy_layout: Layout,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let plan = LinearPlan::new(shape, dy_layout)?;
    let LinearShape { rows, inputs, outputs } = shape;
    for layers in layers.chunks_mut(LINEAR_INPUT_LAYERS as usize) {
        let mut operands = Operands::new(gpu, "linear layers, gradients of the inputs");
        let mut parameter = plan.input_layers_numbers();
        for (to, LayerInput { dx, dy, weight }) in parameter.layers.iter_mut().zip(&mut *layers) {
            operands.reads("dy [N, out]", dy, rows * outputs)?;
            operands.reads("W [out, in]", weight, outputs * inputs)?;
            operands.updates("dx [N, in]", dx, rows * inputs)?;
            (to.dy, to.weight, to.dx) = (dy.pointer(), weight.pointer(), dx.pointer_mut());
        }
        let Some(launch) = plan.input_layers(layers.len()) else { return Ok(()) };
        // SAFETY: as in `linear_forward_layers`.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    Ok(())
}

/// Refuses blocks that the columns of results do not fill, and those by warpgroups where the card has no such instructions.
fn fits(gpu: &Gpu, blocks: BlockSize, columns: usize) -> Result<(), DeviceError> {
    if blocks == BlockSize::Warpgroups {
        choice::check_wgmma(gpu.info())?;
    }
    if columns.is_multiple_of(blocks.columns() as usize) {
        return Ok(());
    }
    Err(DeviceError::Shapes(format!(
        "a linear layer on a GPU: blocks of {} columns, and {columns} in all",
        blocks.columns()
    )))
}

/// The gradient of a layer's input, dy·W, that is yet to be computed.
#[derive(Debug)]
pub struct PendingInput {
    /// `[rows, out]`, as `layout` says.
    pub dy: Buffer<bf16>,
    /// How dy stands.
    pub layout: Layout,
    /// `[out, in]`
    pub weight: Buffer<bf16>,
    /// Sizes.
    pub shape: LinearShape,
}

impl PendingInput {
    /// Queues it, as [`linear_backward_input`] does.
    ///
    /// # Errors
    ///
    /// As [`linear_forward`].
    pub fn compute(
        &self,
        gpu: &Gpu,
        dx: &mut Buffer<bf16>,
        finish: InputGradient<'_>,
    ) -> Result<(), DeviceError> {
        linear_backward_input(gpu, dx, &self.dy, self.layout, &self.weight, finish, self.shape)
    }
}

/// A layer's gradients of its parameters, and what they are of.
#[derive(Debug)]
pub struct LayerGradients {
    /// dW `[out, in]` and db `[out]`
    pub gradients: [Buffer<f32>; 2],
    /// `[rows, out]`, as `layout` says.
    pub dy: Buffer<bf16>,
    /// How dy stands.
    pub layout: Layout,
    /// `[rows, in]`
    pub x: Buffer<bf16>,
    /// Sizes.
    pub shape: LinearShape,
}

/// Queues dW `[out, in]` += dyᵀ·x and db `[out]` += Σ rows of dy of up to eight layers; sums have room for
/// [`WeightsPlan::scratch_len`] values, and are yet to be finished.
///
/// # Errors
///
/// As [`linear_forward`].
pub fn linear_backward_weights(
    gpu: &Gpu,
    layers: &[LayerGradients],
    sums: &mut PendingSums,
) -> Result<(), DeviceError> {
    linear_backward_weights_by(gpu, gpu.limits().matrix(), layers, sums)
}

/// The same by kernels of these matrix instructions, where there are some for layers of these widths.
///
/// # Errors
///
/// As [`linear_forward`].
pub fn linear_backward_weights_by(
    gpu: &Gpu,
    matrix: MatrixKernels,
    layers: &[LayerGradients],
    sums: &mut PendingSums,
) -> Result<(), DeviceError> {
    let plan = WeightsPlan::new(layers.iter().map(|layer| (layer.shape, layer.layout)))?;
    let mut operands = Operands::new(gpu, "linear layers, gradients of their parameters");
    let scratch = sums.room(gpu, plan.scratch_len(), 2 * layers.len())?;
    operands.scratch("scratch", &scratch, scratch.len())?;
    let by_warpgroups = plan.is_by_warpgroups(matrix);
    if by_warpgroups {
        choice::check_wgmma(gpu.info())?;
    }
    let mut parameter = plan.numbers();
    let mut of_layers = [[[0; 16]; 2]; LINEAR_LAYERS as usize];
    let (mut pending, mut used) = (Vec::with_capacity(2 * layers.len()), 0);
    for (number, layer) in layers.iter().enumerate() {
        let LayerGradients { gradients: [weight, bias], dy, x, .. } = layer;
        let LinearShape { rows, inputs, outputs } = layer.shape;
        operands.reads("dy [N, out]", dy, rows * outputs)?;
        operands.reads("x [N, in]", x, rows * inputs)?;
        operands.updates("dW [out, in]", weight, outputs * inputs)?;
        operands.updates("db [out]", bias, outputs)?;
        let count = plan.parts(number);
        let mut take = |len: usize| {
            used += len;
            scratch.part(used - len..used)
        };
        let (mut weight_parts, mut bias_parts) = (take(count * outputs * inputs)?, take(count * outputs)?);
        // Of no rows there is none, and no block takes it.
        if by_warpgroups && rows > 0 {
            of_layers[number] = gpu.maps([dy, x], plan.boxes(number))?;
        }
        let of_layer = &mut parameter.layers[number];
        (of_layer.dy, of_layer.x) = (dy.pointer(), x.pointer());
        (of_layer.d_weight, of_layer.d_bias) = (weight_parts.pointer_mut(), bias_parts.pointer_mut());
        pending.extend([(weight, weight_parts, count), (bias, bias_parts, count)]);
    }
    let Some(launch) = plan.launch(matrix) else { return Ok(()) };
    // SAFETY: as in `linear_forward`; the parts fill the scratch.
    unsafe {
        if by_warpgroups {
            gpu.launch(&launch, &LinearBackwardWeightsWgmma::new(of_layers, parameter))
        } else {
            gpu.launch(&launch, &parameter)
        }
    }?;
    pending.into_iter().try_for_each(|(into, parts, count)| sums.add(into, parts, count))
}
