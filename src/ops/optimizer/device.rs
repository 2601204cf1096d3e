//! Adam on a GPU: the kernels of `kernels/optimizer.cu`.

use half::bf16;

use super::{AdamStep, OptimizerPlan, gradient_norm_scratch_len};
use crate::device::abi::{AdamUpdate, GradientNorm, GradientSquares, RoundParameters};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};

parameter!(GradientSquares: |self| format!("{} gradients", self.length));
parameter!(GradientNorm: |self| format!("{} parts of the gradients", self.count));
parameter!(AdamUpdate, RoundParameters: |self| format!("{} parameters", self.length));

/// Parameters on a GPU and what Adam keeps beside them: all of one length, a multiple of 64.
#[derive(Debug)]
pub struct DeviceWeights<'a> {
    /// The parameters.
    pub parameters: &'a mut Buffer<f32>,
    /// Their copy in bf16.
    pub rounded: &'a mut Buffer<bf16>,
    /// Adam's first moment.
    pub first: &'a mut Buffer<f32>,
    /// Adam's second moment.
    pub second: &'a mut Buffer<f32>,
    /// Their running average.
    pub average: Option<&'a mut Buffer<f32>>,
}

/// Queues norm `[1]` = √Σ g² of the gradients, a multiple of 64; scratch holds [`gradient_norm_scratch_len`] values or
/// more.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn gradient_norm(
    gpu: &Gpu,
    norm: &mut Buffer<f32>,
    gradients: &Buffer<f32>,
    scratch: &mut Buffer<f32>,
) -> Result<(), DeviceError> {
    let plan = OptimizerPlan::new(gradients.len())?;
    let mut operands = Operands::new(gpu, "the norm of the gradients");
    operands.reads("gradients", gradients, gradients.len())?;
    operands.writes("norm [1]", norm, 1)?;
    operands.scratch("scratch", scratch, gradient_norm_scratch_len(gradients.len()))?;
    if let Some(launch) = plan.squares() {
        let parameter = GradientSquares {
            gradients: gradients.pointer(),
            parts: scratch.pointer_mut(),
            ..plan.squares_numbers()
        };
        // SAFETY: the buffers have the kernel's sizes and are apart, every buffer begins at a multiple of 16 bytes, and
        // memory that is given back is freed in the stream's order.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    let parameter =
        GradientNorm { parts: scratch.pointer(), norm: norm.pointer_mut(), ..plan.norm_numbers() };
    // SAFETY: as above.
    unsafe { gpu.launch(&plan.norm(), &parameter) }
}

/// Queues one step of Adam along −`gradients`, clipped by their `norm` `[1]`, which is read on the device: where it is not
/// finite, nothing at all is changed.
///
/// # Errors
///
/// As [`gradient_norm`]; step 0.
pub fn adam_step(
    gpu: &Gpu,
    weights: DeviceWeights<'_>,
    gradients: &Buffer<f32>,
    norm: &Buffer<f32>,
    step: &AdamStep,
) -> Result<(), DeviceError> {
    let DeviceWeights { parameters, rounded, first, second, mut average } = weights;
    let length = parameters.len();
    let plan = OptimizerPlan::new(length)?;
    let numbers = plan.update_numbers(step, average.is_some())?;
    let mut operands = Operands::new(gpu, "a step of Adam");
    operands.reads("gradients", gradients, length)?;
    operands.reads("norm [1]", norm, 1)?;
    operands.updates("parameters", parameters, length)?;
    operands.writes("their copy in bf16", rounded, length)?;
    operands.updates("first moment", first, length)?;
    operands.updates("second moment", second, length)?;
    if let Some(average) = &average {
        operands.updates("average", average, length)?;
    }
    let Some(launch) = plan.update() else { return Ok(()) };
    let parameter = AdamUpdate {
        gradients: gradients.pointer(),
        norm: norm.pointer(),
        parameters: parameters.pointer_mut(),
        rounded: rounded.pointer_mut(),
        first: first.pointer_mut(),
        second: second.pointer_mut(),
        average: average.as_mut().map_or(std::ptr::null_mut(), |average| average.pointer_mut()),
        ..numbers
    };
    // SAFETY: as in `gradient_norm`.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues rounded = parameters in bf16, of a length that is a multiple of 64.
///
/// # Errors
///
/// As [`gradient_norm`].
pub fn round_parameters(
    gpu: &Gpu,
    rounded: &mut Buffer<bf16>,
    parameters: &Buffer<f32>,
) -> Result<(), DeviceError> {
    let plan = OptimizerPlan::new(parameters.len())?;
    let mut operands = Operands::new(gpu, "parameters rounded to bf16");
    operands.reads("parameters", parameters, parameters.len())?;
    operands.writes("their copy in bf16", rounded, parameters.len())?;
    let Some(launch) = plan.round() else { return Ok(()) };
    let parameter = RoundParameters {
        parameters: parameters.pointer(),
        rounded: rounded.pointer_mut(),
        ..plan.round_numbers()
    };
    // SAFETY: as in `gradient_norm`.
    unsafe { gpu.launch(&launch, &parameter) }
}
