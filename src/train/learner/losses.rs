//! The losses of a batch, on the processor.

use rayon::prelude::*;

use crate::data::batch::Batch;
use crate::ops::loss::{Loss, Scratch};

/// The losses of a batch and their gradient by the scores.
#[derive(Debug, Default)]
pub(super) struct BatchLosses {
    /// Loss of each set `[B]`.
    pub of_sets: Vec<f64>,
    /// Gradient of Σ losses / sets of the step by the scores `[N]`.
    pub d_scores: Vec<f32>,
    buffers: Vec<SetBuffers>,
}

/// What the loss of one set is computed in, in the loss's precision.
#[derive(Clone, Debug, Default)]
struct SetBuffers {
    loss: f64,
    /// `[n]`
    scores: Vec<f64>,
    /// `[n]`
    gradient: Vec<f64>,
    scratch: Scratch,
}

impl BatchLosses {
    /// Computes them from the scores `[N]` of `batch`.
    pub fn compute(&mut self, loss: Loss, scores: &[f32], batch: &Batch, sets_of_step: usize) {
        let sets = batch.offsets.len() - 1;
        if self.buffers.len() < sets {
            self.buffers.resize_with(sets, SetBuffers::default);
        }
        let buffers = &mut self.buffers[..sets];
        buffers.par_iter_mut().zip(batch.offsets.par_windows(2)).for_each(|(set, offsets)| {
            let rows = offsets[0]..offsets[1];
            set.scores.clear();
            set.scores.extend(scores[rows.clone()].iter().map(|&score| f64::from(score)));
            set.gradient.resize(rows.len(), 0.0);
            set.loss = loss.of_set(&mut set.scratch, &set.scores, &batch.labels[rows], &mut set.gradient);
        });
        self.of_sets.clear();
        self.d_scores.clear();
        for set in buffers {
            self.of_sets.push(set.loss);
            self.d_scores.extend(set.gradient.iter().map(|&d| d as f32 / sets_of_step as f32));
        }
    }
}
