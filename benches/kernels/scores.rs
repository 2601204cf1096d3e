//! The score head and the losses of sets, apart and in one kernel.

use criterion::Criterion;
use setrank::device::DeviceError;
use setrank::ops::loss::{DeviceLabels, Loss, set_losses};
use setrank::ops::partial_sums::PendingSums;
use setrank::ops::score::{score_backward, score_forward, score_scratch_len};
use setrank::ops::score_loss::{ScoreLossResults, score_loss_scratch_len, score_losses};

use crate::card::{Card, HIDDEN, SIZES, offsets};
use crate::memory::Memory;
use crate::timing::Measured;

/// Scores, and the gradients of their rows and parameters.
pub fn head(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows) = (&card.gpu, card.documents);
    Measured::rows("score", "forward", rows).launches(criterion, card, |memory| {
        let (x, weight) = (memory.normals(rows * HIDDEN, 1.0)?, memory.wide_normals(HIDDEN, 0.06)?);
        let (bias, mut scores) = (memory.filled(1, 0.0)?, memory.taken(rows)?);
        Ok(Box::new(move || score_forward(gpu, &mut scores, &x, &weight, &bias)))
    });
    Measured::rows("score", "backward", rows).launches(criterion, card, |memory| {
        let (x, weight) = (memory.normals(rows * HIDDEN, 1.0)?, memory.wide_normals(HIDDEN, 0.06)?);
        let (d_scores, mut dx) = (memory.wide_normals(rows, 1.0)?, memory.taken(rows * HIDDEN)?);
        let (mut d_weight, mut d_bias) = (memory.filled(HIDDEN, 0.0)?, memory.filled(1, 0.0)?);
        let scratch = memory.taken(score_scratch_len(rows, HIDDEN))?;
        Ok(Box::new(move || {
            let sums = &mut PendingSums::new(scratch.alias());
            score_backward(gpu, &mut dx, &mut d_weight, &mut d_bias, &d_scores, &x, &weight, sums)
        }))
    });
}

/// Labels 0 to 4 of so many sets of a size.
fn labels(memory: &mut Memory<'_>, sets: usize, size: usize) -> Result<DeviceLabels, DeviceError> {
    let labels: Vec<f32> = (0..sets * size).map(|row| (row * 7 % 5) as f32).collect();
    let bytes = DeviceLabels::bytes(labels.len(), sets);
    memory.package(bytes, |package| DeviceLabels::new(package, &labels, &offsets(sets, size)))
}

/// Every loss of scores that are there, and the default one with the head around it.
pub fn losses(criterion: &mut Criterion, card: &Card) {
    let gpu = &card.gpu;
    for size in SIZES {
        let sets = card.sets(size);
        let rows = sets * size;
        for loss in Loss::ALL {
            let name = &format!("{loss:?}, sets of {size}");
            Measured::rows("loss", name, rows).launches(criterion, card, |memory| {
                let (labels, scores) = (labels(memory, sets, size)?, memory.wide_normals(rows, 1.0)?);
                let (mut of_sets, mut d_scores) = (memory.taken(sets)?, memory.taken(rows)?);
                Ok(Box::new(move || {
                    set_losses(gpu, &mut of_sets, &mut d_scores, &scores, &labels, loss, 1.0)
                }))
            });
        }
        let (loss, name) = (Loss::default(), &format!("sets of {size}"));
        Measured::rows("score_loss", name, rows).launches(criterion, card, |memory| {
            let (labels, x) = (labels(memory, sets, size)?, memory.normals(rows * HIDDEN, 1.0)?);
            let (weight, bias) = (memory.wide_normals(HIDDEN, 0.06)?, memory.filled(1, 0.0)?);
            let (mut scores, mut d_scores) = (memory.taken(rows)?, memory.taken(rows)?);
            let (mut of_sets, mut dx) = (memory.taken(sets)?, memory.taken(rows * HIDDEN)?);
            let (mut d_weight, mut d_bias) = (memory.filled(HIDDEN, 0.0)?, memory.filled(1, 0.0)?);
            let scratch = memory.taken(score_loss_scratch_len(sets, HIDDEN))?;
            Ok(Box::new(move || {
                let results = ScoreLossResults {
                    scores: &mut scores,
                    losses: &mut of_sets,
                    d_scores: &mut d_scores,
                    dx: &mut dx,
                    d_weight: &mut d_weight,
                    d_bias: &mut d_bias,
                };
                let sums = &mut PendingSums::new(scratch.alias());
                score_losses(gpu, results, &x, &weight, &bias, &labels, loss, 1.0, sums)
            }))
        });
    }
}
