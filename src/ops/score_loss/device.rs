//! Scores, losses and both gradients in one kernel on a GPU: `kernels/score_loss.cu`.

use half::bf16;

use super::{ScoreLossPlan, score_loss_scratch_len};
use crate::device::abi::ScoreLosses;
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};
use crate::ops::loss::{DeviceLabels, Loss};
use crate::ops::partial_sums::PendingSums;

parameter!(ScoreLosses: |self| format!("sets of up to {} documents, rows of {} values", self.longest, self.width));

/// What [`score_losses`] writes, and adds to.
#[derive(Debug)]
pub struct ScoreLossResults<'a> {
    /// `[N]`
    pub scores: &'a mut Buffer<f32>,
    /// `[B]`
    pub losses: &'a mut Buffer<f32>,
    /// `[N]`: the gradient of the losses' sum by the scores, times the scale.
    pub d_scores: &'a mut Buffer<f32>,
    /// `[N, C]`: the same by x.
    pub dx: &'a mut Buffer<bf16>,
    /// `[C]`: what the same by the weight is added to.
    pub d_weight: &'a mut Buffer<f32>,
    /// `[1]`: what the same by the bias is added to.
    pub d_bias: &'a mut Buffer<f32>,
}

/// Queues what [`score_forward`](crate::ops::score::score_forward), [`set_losses`](crate::ops::loss::set_losses) and
/// [`score_backward`](crate::ops::score::score_backward) do of x `[N, C]`, weight `[C]` and bias `[1]`, with their bits but for
/// the order in which parts of the parameters' gradients are summed; sums have room for [`score_loss_scratch_len`] values, and
/// are yet to be finished.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, sets that are too long for the card's shared memory, and
/// what the driver refuses.
#[expect(clippy::too_many_arguments, reason = "results, three inputs of a layer, and what is learned")]
pub fn score_losses(
    gpu: &Gpu,
    results: ScoreLossResults<'_>,
    x: &Buffer<bf16>,
    weight: &Buffer<f32>,
    bias: &Buffer<f32>,
    labels: &DeviceLabels,
    loss: Loss,
    scale: f32,
    sums: &mut PendingSums,
) -> Result<(), DeviceError> {
    let ScoreLossResults { scores, losses, d_scores, dx, d_weight, d_bias } = results;
    let (sets, width) = (*labels.plan(), weight.len());
    let plan = ScoreLossPlan::new(sets, width)?;
    let launch = plan.launch(loss, gpu.limits())?;
    let (documents, parts) = (sets.documents, sets.sets);
    let mut operands = Operands::new(gpu, "scores, losses and gradients");
    operands.reads("x [N, C]", x, documents * width)?;
    operands.reads("w [C]", weight, width)?;
    operands.reads("b [1]", bias, 1)?;
    labels.note(&mut operands)?;
    operands.writes("scores [N]", scores, documents)?;
    operands.writes("losses [B]", losses, parts)?;
    operands.writes("d_scores [N]", d_scores, documents)?;
    operands.writes("dx [N, C]", dx, documents * width)?;
    operands.updates("dw [C]", d_weight, width)?;
    operands.updates("db [1]", d_bias, 1)?;
    let scratch = sums.room(gpu, score_loss_scratch_len(parts, width), 2)?;
    operands.scratch("scratch", &scratch, score_loss_scratch_len(parts, width))?;
    let Some(launch) = launch else { return Ok(()) };
    let mut weight_parts = scratch.part(0..parts * width)?;
    let mut bias_parts = scratch.part(parts * width..parts * (width + 1))?;
    let parameter = ScoreLosses {
        x: x.pointer(),
        weight: weight.pointer(),
        bias: bias.pointer(),
        labels: labels.labels().pointer(),
        offsets: labels.offsets().pointer(),
        scores: scores.pointer_mut(),
        losses: losses.pointer_mut(),
        d_scores: d_scores.pointer_mut(),
        dx: dx.pointer_mut(),
        d_weight: weight_parts.pointer_mut(),
        d_bias: bias_parts.pointer_mut(),
        ..plan.numbers(loss, scale)
    };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, the offsets lie inside of them, the parts fill the scratch,
    // and memory that is given back is freed in the stream's order.
    unsafe { gpu.launch(&launch, &parameter) }?;
    sums.add(d_weight, weight_parts, parts)?;
    sums.add(d_bias, bias_parts, parts)
}
