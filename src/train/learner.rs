//! The numbers of a training step: forward, losses, backward, clipping, Adam. The trainer decides what a step is
//! taken on; the benchmark takes the same step again and again.

use rayon::prelude::*;

use super::optimizer::{Adam, AdamConfig, global_norm};
use crate::data::batch::Batch;
use crate::model::setrank::{Inputs, Keep, SetRank, TrainingStep, Workspace};
use crate::ops::loss::{Loss, Scratch};

/// What is minimised, and how.
#[derive(Clone, Copy, Debug)]
pub struct Objective {
    /// The loss of a set.
    pub loss: Loss,
    /// Largest norm of the gradient; 0 = any.
    pub clip: f64,
    /// Adam's constants.
    pub adam: AdamConfig,
}

/// A model that learns: its parameters, the optimiser's moments, and every buffer of a step, reused from step to
/// step.
///
/// A step is [`begin`](Self::begin), [`accumulate`](Self::accumulate) once a batch, [`finish`](Self::finish).
#[derive(Debug)]
pub struct Learner {
    model: SetRank,
    objective: Objective,
    parameters: Vec<f32>,
    adam: Adam,
    gradients: Vec<f32>,
    workspace: Workspace<f32>,
    losses: BatchLosses,
    norm_partials: Vec<f64>,
}

impl Learner {
    /// A learner that goes on from `parameters`, laid out as the model's table says, and the moments of `adam`.
    ///
    /// # Panics
    /// If the lengths do not fit the model.
    pub fn new(model: SetRank, parameters: Vec<f32>, adam: Adam, objective: Objective) -> Self {
        let len = model.layout().len();
        for (name, values) in
            [("parameters", &parameters), ("first moments", &adam.first), ("second moments", &adam.second)]
        {
            assert_eq!(values.len(), len, "{name} of a model with {len} parameters");
        }
        Learner {
            model,
            objective,
            parameters,
            adam,
            gradients: vec![0.0; len],
            workspace: Workspace::default(),
            losses: BatchLosses::default(),
            norm_partials: Vec::new(),
        }
    }

    /// The model.
    pub fn model(&self) -> &SetRank {
        &self.model
    }

    /// Parameters after the last step.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Moments after the last step, and the number of steps.
    pub fn adam(&self) -> &Adam {
        &self.adam
    }

    /// Begins a step: no gradient yet.
    pub fn begin(&mut self) {
        self.gradients.fill(0.0);
    }

    /// Adds the gradient of the sum of the losses of `batch`, divided by `sets_of_step`, and tells each set's loss
    /// `[B]`. Where a loss is not finite the gradient is left as it was.
    pub fn accumulate(&mut self, batch: &Batch, sets_of_step: usize, training: TrainingStep) -> &[f64] {
        in_pool(|| self.accumulate_here(batch, sets_of_step, training));
        &self.losses.of_sets
    }

    fn accumulate_here(&mut self, batch: &Batch, sets_of_step: usize, training: TrainingStep) {
        let Learner { model, parameters, gradients, workspace, losses, .. } = self;
        let inputs = Inputs { features: &batch.features, offsets: &batch.offsets, ordinals: &batch.ordinals };
        model.forward(workspace, parameters, inputs, Keep::ForBackward, Some(training));
        losses.compute(self.objective.loss, workspace.scores(), batch, sets_of_step);
        if losses.of_sets.iter().all(|loss| loss.is_finite()) {
            model.backward(workspace, parameters, gradients, inputs, &losses.d_scores, Some(training));
        }
    }

    /// Ends a step: clips the gradient and takes Adam's step at learning rate `lr`. The gradient's norm before
    /// clipping; where it is not finite the parameters are left as they were.
    pub fn finish(&mut self, lr: f64) -> f64 {
        in_pool(|| self.finish_here(lr))
    }

    fn finish_here(&mut self, lr: f64) -> f64 {
        let norm = global_norm(&self.gradients, &mut self.norm_partials);
        if norm.is_finite() {
            let clipped = self.objective.clip > 0.0 && norm > self.objective.clip;
            let scale = if clipped { self.objective.clip / norm } else { 1.0 };
            self.adam.step(
                &mut self.parameters,
                &self.gradients,
                scale as f32,
                lr as f32,
                self.objective.adam,
            );
        }
        norm
    }
}

/// Runs `work` on a thread of the pool: what it does in parallel is then handed over without going through the
/// pool's queue, which wakes threads late and allocates.
pub fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

/// The losses of a batch and their gradient by the scores.
#[derive(Debug, Default)]
struct BatchLosses {
    /// Loss of each set `[B]`.
    of_sets: Vec<f64>,
    /// Gradient of Σ losses / sets of the step by the scores `[N]`.
    d_scores: Vec<f32>,
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
    fn compute(&mut self, loss: Loss, scores: &[f32], batch: &Batch, sets_of_step: usize) {
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
