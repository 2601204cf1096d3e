//! Scores on a GPU: the kernels of `kernels/score.cu`.

use half::bf16;

use super::{ScorePlan, score_scratch_len};
use crate::device::abi::{ScoreBackward, ScoreForward};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};
use crate::ops::partial_sums::PendingSums;

parameter!(ScoreForward, ScoreBackward: |self| format!("{} rows of {} values", self.rows, self.width));

/// Queues scores `[N]` = x `[N, C]`·weight `[C]` + bias `[1]`.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn score_forward(
    gpu: &Gpu,
    scores: &mut Buffer<f32>,
    x: &Buffer<bf16>,
    weight: &Buffer<f32>,
    bias: &Buffer<f32>,
) -> Result<(), DeviceError> {
    let (rows, width) = (scores.len(), weight.len());
    let plan = ScorePlan::new(rows, width)?;
    let mut operands = Operands::new(gpu, "scores, forward");
    operands.reads("x [N, C]", x, rows * width)?;
    operands.reads("w [C]", weight, width)?;
    operands.reads("b [1]", bias, 1)?;
    operands.writes("scores [N]", scores, rows)?;
    let Some(launch) = plan.forward() else { return Ok(()) };
    let parameter = ScoreForward {
        x: x.pointer(),
        weight: weight.pointer(),
        bias: bias.pointer(),
        scores: scores.pointer_mut(),
        ..plan.forward_numbers()
    };
    // SAFETY: the buffers have the kernel's sizes, the output is apart, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues dx `[N, C]` = d_scores `[N]`·weightᵀ, d_weight `[C]` += Σ d_scores·x `[N, C]` and d_bias `[1]` += Σ d_scores;
/// sums have room for [`score_scratch_len`] values, and are yet to be finished.
///
/// # Errors
///
/// As [`score_forward`].
#[expect(clippy::too_many_arguments, reason = "three results and three inputs")]
pub fn score_backward(
    gpu: &Gpu,
    dx: &mut Buffer<bf16>,
    d_weight: &mut Buffer<f32>,
    d_bias: &mut Buffer<f32>,
    d_scores: &Buffer<f32>,
    x: &Buffer<bf16>,
    weight: &Buffer<f32>,
    sums: &mut PendingSums,
) -> Result<(), DeviceError> {
    let (rows, width) = (d_scores.len(), weight.len());
    let plan = ScorePlan::new(rows, width)?;
    let mut operands = Operands::new(gpu, "scores, gradients");
    operands.reads("d_scores [N]", d_scores, rows)?;
    operands.reads("x [N, C]", x, rows * width)?;
    operands.reads("w [C]", weight, width)?;
    operands.writes("dx [N, C]", dx, rows * width)?;
    operands.updates("dw [C]", d_weight, width)?;
    operands.updates("db [1]", d_bias, 1)?;
    let scratch = sums.room(gpu, score_scratch_len(rows, width), 2)?;
    operands.scratch("scratch", &scratch, score_scratch_len(rows, width))?;
    let Some(launch) = plan.backward() else { return Ok(()) };
    let parts = plan.parts();
    let mut weight_parts = scratch.part(0..parts * width)?;
    let mut bias_parts = scratch.part(parts * width..parts * (width + 1))?;
    let parameter = ScoreBackward {
        d_scores: d_scores.pointer(),
        x: x.pointer(),
        weight: weight.pointer(),
        dx: dx.pointer_mut(),
        d_weight: weight_parts.pointer_mut(),
        d_bias: bias_parts.pointer_mut(),
        ..plan.backward_numbers()
    };
    // SAFETY: as in `score_forward`; the parts fill the scratch.
    unsafe { gpu.launch(&launch, &parameter) }?;
    sums.add(d_weight, weight_parts, parts)?;
    sums.add(d_bias, bias_parts, parts)
}
