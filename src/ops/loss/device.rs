//! The losses of sets on a GPU: the kernels of `kernels/loss.cu`.

use super::{Loss, SetLossesPlan};
use crate::device::abi::SetLosses;
use crate::device::{Arena, Buffer, DeviceError, Gpu, Operands, Package, parameter};

parameter!(SetLosses: |self| format!("sets of up to {} documents", self.longest));

/// A batch's labels and sets on a GPU.
#[derive(Debug)]
pub struct DeviceLabels {
    plan: SetLossesPlan,
    /// `[N]`
    labels: Buffer<f32>,
    /// `[B + 1]`
    offsets: Buffer<i32>,
}

impl DeviceLabels {
    /// Puts labels `[N]`, below 0 for documents that are not judged, and offsets `[B + 1]`, which delimit the sets, into
    /// `package`.
    pub fn new(package: &mut Package<'_>, labels: &[f32], offsets: &[usize]) -> Result<Self, DeviceError> {
        let plan = SetLossesPlan::new(labels.len(), offsets)?;
        let labels = package.put(labels)?;
        // The plan has few enough documents.
        let offsets = package.put_with(offsets.len(), |to| {
            to.iter_mut().zip(offsets).for_each(|(to, &offset)| *to = offset as i32);
        })?;
        Ok(DeviceLabels { plan, labels, offsets })
    }

    /// Bytes of a package that the labels of so many documents and sets take, or of fewer.
    pub fn bytes(documents: usize, sets: usize) -> usize {
        Arena::bytes_for([4 * documents, 4 * (sets + 1)])
    }

    /// The plan.
    pub fn plan(&self) -> &SetLossesPlan {
        &self.plan
    }

    /// The labels `[N]`.
    pub fn labels(&self) -> &Buffer<f32> {
        &self.labels
    }

    /// The offsets `[B + 1]`.
    pub fn offsets(&self) -> &Buffer<i32> {
        &self.offsets
    }

    /// Has a launch read both.
    pub(in crate::ops) fn note(&self, operands: &mut Operands<'_>) -> Result<(), DeviceError> {
        operands.reads("labels [N]", &self.labels, self.plan.documents)?;
        operands.reads("offsets [B + 1]", &self.offsets, self.offsets.len())
    }
}

/// Queues losses `[B]` = the loss of each set, and d_scores `[N]` = the gradient of their sum by the scores `[N]`, times
/// `scale`. All gradients of a set whose loss is not finite are NaN.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, sets that are too long for the card's shared memory
/// (4096 documents never are), and what the driver refuses.
pub fn set_losses(
    gpu: &Gpu,
    losses: &mut Buffer<f32>,
    d_scores: &mut Buffer<f32>,
    scores: &Buffer<f32>,
    labels: &DeviceLabels,
    loss: Loss,
    scale: f32,
) -> Result<(), DeviceError> {
    let plan = &labels.plan;
    let launch = plan.launch(loss, gpu.limits())?;
    let mut operands = Operands::new(gpu, "the losses of sets");
    operands.reads("scores [N]", scores, plan.documents)?;
    labels.note(&mut operands)?;
    operands.writes("losses [B]", losses, plan.sets)?;
    operands.writes("d_scores [N]", d_scores, plan.documents)?;
    let Some(launch) = launch else { return Ok(()) };
    let parameter = SetLosses {
        scores: scores.pointer(),
        labels: labels.labels.pointer(),
        offsets: labels.offsets.pointer(),
        losses: losses.pointer_mut(),
        d_scores: d_scores.pointer_mut(),
        ..plan.numbers(scale)
    };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, the offsets lie inside of them, and memory that is
    // given back is freed in the stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}
