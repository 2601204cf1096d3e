//! ReLU's backward pass and sums of repeated rows on a GPU: the kernels of `kernels/row_sums.cu`.

use half::bf16;

use super::{ReluBackwardPlan, RepeatsPlan};
use crate::device::abi::{ReluBackward, SumRepeats};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};

parameter!(ReluBackward: |self| format!("{} values", self.length));

parameter!(SumRepeats: |self| format!("{} repeats of {} values", self.repeats, self.run));

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

/// What is summed over repeats: the gradients of each set of what all sets share.
#[derive(Clone, Copy, Debug)]
pub struct Repeats<'a> {
    /// `[groups, repeats, run]`: those whose sums are set.
    pub x: &'a Buffer<bf16>,
    /// `[repeats, groups, run]`: those whose sums are added.
    pub y: &'a Buffer<bf16>,
    /// Groups of x: heads.
    pub groups: usize,
    /// Repeats: sets.
    pub repeats: usize,
}

/// Queues out `[groups, run]` = Σ over the repeats of x and into `[groups, run]` += Σ over those of y, each sum in order and
/// in f32; `run` is a multiple of 32.
///
/// # Errors
///
/// As [`relu_backward`].
pub fn sum_repeats(
    gpu: &Gpu,
    out: &mut Buffer<bf16>,
    into: &mut Buffer<f32>,
    Repeats { x, y, groups, repeats }: Repeats<'_>,
) -> Result<(), DeviceError> {
    let run = out.len().checked_div(groups).unwrap_or(0);
    let (sums, terms) = (groups * run, repeats.saturating_mul(groups * run));
    let mut operands = Operands::new(gpu, "sums over repeats");
    operands.writes("out [groups, run]", out, sums)?;
    operands.updates("into [groups, run]", into, sums)?;
    operands.reads("x [groups, repeats, run]", x, terms)?;
    operands.reads("y [repeats, groups, run]", y, terms)?;
    let plan = RepeatsPlan::new(groups, repeats, run)?;
    let Some(launch) = plan.launch() else { return Ok(()) };
    let parameter = SumRepeats {
        x: x.pointer(),
        y: y.pointer(),
        out: out.pointer_mut(),
        into: into.pointer_mut(),
        ..plan.numbers()
    };
    // SAFETY: as in `relu_backward`.
    unsafe { gpu.launch(&launch, &parameter) }
}
