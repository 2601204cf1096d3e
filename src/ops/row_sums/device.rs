//! ReLU's backward pass and sums of repeated rows on a GPU: the kernels of `kernels/row_sums.cu`.

use half::bf16;

use super::{ReluBackwardPlan, RepeatsPlan};
use crate::device::abi::{AddRepeats, ReluBackward, SumRepeats};
use crate::device::{Buffer, DeviceError, Gpu, Operands, Parameter};

// SAFETY: bindgen makes it of the header that the kernel is compiled with.
unsafe impl cudarc::driver::DeviceRepr for ReluBackward {}
// SAFETY: as above.
unsafe impl Parameter for ReluBackward {
    fn shapes(&self) -> String {
        format!("{} values", self.length)
    }
}

macro_rules! parameter {
    ($name:ty) => {
        // SAFETY: as above.
        unsafe impl cudarc::driver::DeviceRepr for $name {}
        // SAFETY: as above.
        unsafe impl Parameter for $name {
            fn shapes(&self) -> String {
                format!("{} repeats of {} values", self.repeats, self.run)
            }
        }
    };
}
parameter!(SumRepeats);
parameter!(AddRepeats);

/// Queues dy `[len]` = 0 where y `[len]`, ReLU's output, is not above 0, a NaN included; `len` is a multiple of 64.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn relu_backward(gpu: &Gpu, dy: &mut Buffer<bf16>, y: &Buffer<bf16>) -> Result<(), DeviceError> {
    let plan = ReluBackwardPlan::new(dy.len())?;
    let mut operands = Operands::new(gpu, "ReLU's backward pass");
    operands.reads("y [len]", y, dy.len())?;
    operands.updates("dy [len]", dy, dy.len())?;
    let Some(launch) = plan.launch() else { return Ok(()) };
    let parameter = ReluBackward { dy: dy.pointer_mut(), y: y.pointer(), ..plan.numbers() };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues out `[groups, run]` = Σ over the repeats of x `[groups, repeats, run]`, in order; `run` is a multiple of 32.
///
/// # Errors
///
/// As [`relu_backward`].
pub fn sum_repeats(
    gpu: &Gpu,
    out: &mut Buffer<bf16>,
    x: &Buffer<bf16>,
    groups: usize,
    repeats: usize,
) -> Result<(), DeviceError> {
    let run = out.len().checked_div(groups).unwrap_or(0);
    let mut operands = Operands::new(gpu, "a sum over repeats");
    operands.writes("out [groups, run]", out, groups * run)?;
    operands.reads("x [groups, repeats, run]", x, repeats.saturating_mul(groups * run))?;
    let plan = RepeatsPlan::new(groups, repeats, run)?;
    let Some(launch) = plan.sum() else { return Ok(()) };
    let parameter = SumRepeats { x: x.pointer(), out: out.pointer_mut(), ..plan.sum_numbers() };
    // SAFETY: as in `relu_backward`.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues into `[run]` += once `[run]`, then += Σ over the repeats of x `[repeats, run]`, in order; `run` is
/// a multiple of 64.
///
/// # Errors
///
/// As [`relu_backward`].
pub fn add_repeats(
    gpu: &Gpu,
    into: &mut Buffer<f32>,
    once: &Buffer<bf16>,
    x: &Buffer<bf16>,
    repeats: usize,
) -> Result<(), DeviceError> {
    let run = into.len();
    if !run.is_multiple_of(64) {
        return Err(DeviceError::Shapes(format!(
            "a sum over repeats that is added: into [run] has a multiple of 64 values, not {run}"
        )));
    }
    let plan = RepeatsPlan::new(1, repeats, run)?;
    let mut operands = Operands::new(gpu, "a sum over repeats that is added");
    operands.reads("x [repeats, run]", x, repeats.saturating_mul(run))?;
    operands.reads("once [run]", once, run)?;
    operands.updates("into [run]", into, run)?;
    let Some(launch) = plan.add() else { return Ok(()) };
    let parameter =
        AddRepeats { once: once.pointer(), x: x.pointer(), into: into.pointer_mut(), ..plan.add_numbers() };
    // SAFETY: as in `relu_backward`.
    unsafe { gpu.launch(&launch, &parameter) }
}
