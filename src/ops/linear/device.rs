//! Linear layers on a GPU: the kernels of `kernels/linear.cu`.

use half::bf16;

use super::{Activation, InputFinish, Layout, LinearPlan, LinearShape};
use crate::device::abi::{LinearBackwardInput, LinearBackwardWeights, LinearForward};
use crate::device::{Buffer, DeviceError, Gpu, Operands, Parameter};
use crate::ops::partial_sums::partial_sums;

macro_rules! parameter {
    ($name:ty) => {
        // SAFETY: bindgen makes it of the header that the kernels are compiled with.
        unsafe impl cudarc::driver::DeviceRepr for $name {}
        // SAFETY: as above.
        unsafe impl Parameter for $name {
            fn shapes(&self) -> String {
                format!("{} rows, {} inputs and {} outputs", self.rows, self.inputs, self.outputs)
            }
        }
    };
}
parameter!(LinearForward);
parameter!(LinearBackwardInput);
parameter!(LinearBackwardWeights);

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
pub enum InputGradient<'a> {
    /// Nothing.
    Plain,
    /// This `[rows, in]` is added.
    Added(&'a Buffer<bf16>),
    /// It is 0 where this `[rows, in]` is not above 0: the output of the ReLU before.
    Masked(&'a Buffer<bf16>),
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
    let plan = LinearPlan::new(shape, y_layout)?;
    let LinearShape { rows, inputs, outputs } = shape;
    let mut operands = Operands::new(gpu, "a linear layer, forward");
    operands.reads("x [N, in]", x, rows * inputs)?;
    operands.reads("W [out, in]", layer.weight, outputs * inputs)?;
    operands.reads("b [out]", layer.bias, outputs)?;
    operands.writes("y [N, out]", y, rows * outputs)?;
    let Some(launch) = plan.forward() else { return Ok(()) };
    let parameter = LinearForward {
        x: x.pointer(),
        weight: layer.weight.pointer(),
        bias: layer.bias.pointer(),
        y: y.pointer_mut(),
        ..plan.forward_numbers(activation)
    };
    // SAFETY: the buffers have the kernel's sizes, the output is apart, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
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
    let plan = LinearPlan::new(shape, dy_layout)?;
    let LinearShape { rows, inputs, outputs } = shape;
    let mut operands = Operands::new(gpu, "a linear layer, gradient of the input");
    operands.reads("dy [N, out]", dy, rows * outputs)?;
    operands.reads("W [out, in]", weight, outputs * inputs)?;
    let (finish, other) = match finish {
        InputGradient::Plain => (InputFinish::Plain, None),
        InputGradient::Added(other) => (InputFinish::Added, Some(other)),
        InputGradient::Masked(other) => (InputFinish::Masked, Some(other)),
    };
    if let Some(other) = other {
        operands.reads("what finishes dx [N, in]", other, rows * inputs)?;
    }
    operands.writes("dx [N, in]", dx, rows * inputs)?;
    let Some(launch) = plan.backward_input() else { return Ok(()) };
    let parameter = LinearBackwardInput {
        dy: dy.pointer(),
        weight: weight.pointer(),
        other: other.map_or(std::ptr::null(), Buffer::pointer),
        dx: dx.pointer_mut(),
        ..plan.backward_input_numbers(finish)
    };
    // SAFETY: as in `linear_forward`.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues dW `[out, in]` += dyᵀ·x and db `[out]` += Σ rows of dy; dy is laid out as `dy_layout` says, and scratch holds
/// [`LinearShape::scratch_len`] values or more.
///
/// # Errors
///
/// As [`linear_forward`].
#[expect(clippy::too_many_arguments, reason = "two results, two inputs, and what says how they stand")]
pub fn linear_backward_weights(
    gpu: &Gpu,
    d_weight: &mut Buffer<f32>,
    d_bias: &mut Buffer<f32>,
    dy: &Buffer<bf16>,
    dy_layout: Layout,
    x: &Buffer<bf16>,
    scratch: &mut Buffer<f32>,
    shape: LinearShape,
) -> Result<(), DeviceError> {
    let plan = LinearPlan::new(shape, dy_layout)?;
    let LinearShape { rows, inputs, outputs } = shape;
    let mut operands = Operands::new(gpu, "a linear layer, gradients of its parameters");
    operands.reads("dy [N, out]", dy, rows * outputs)?;
    operands.reads("x [N, in]", x, rows * inputs)?;
    operands.updates("dW [out, in]", d_weight, outputs * inputs)?;
    operands.updates("db [out]", d_bias, outputs)?;
    operands.scratch("scratch", scratch, shape.scratch_len(gpu.limits()))?;
    let Some(launch) = plan.backward_weights() else { return Ok(()) };
    let parts = plan.parts();
    let of_weight = parts * outputs * inputs;
    let mut weight_parts = scratch.part(0..of_weight)?;
    let mut bias_parts = scratch.part(of_weight..of_weight + parts * outputs)?;
    let parameter = LinearBackwardWeights {
        dy: dy.pointer(),
        x: x.pointer(),
        d_weight: weight_parts.pointer_mut(),
        d_bias: bias_parts.pointer_mut(),
        ..plan.backward_weights_numbers()
    };
    // SAFETY: as in `linear_forward`; the parts fill the scratch.
    unsafe { gpu.launch(&launch, &parameter) }?;
    partial_sums(gpu, d_weight, &weight_parts, parts)?;
    partial_sums(gpu, d_bias, &bias_parts, parts)
}
