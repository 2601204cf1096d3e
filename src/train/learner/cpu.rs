//! The numbers of a training step on the processor.

use super::losses::BatchLosses;
use super::{Learner, Objective, Outcome};
use crate::Result;
use crate::data::batch::{Batch, Batcher};
use crate::model::scorer::{self, CpuScorer};
use crate::model::setrank::{Inputs, Keep, SetRank, TrainingStep, Workspace};
use crate::train::average;
use crate::train::optimizer::global_norm;
use crate::train::state::Weights;

/// A model that learns on the processor: its parameters, the optimiser's moments, and every buffer of a step, reused
/// from step to step.
#[derive(Debug)]
pub struct CpuLearner {
    model: SetRank,
    objective: Objective,
    weights: Weights,
    gradients: Vec<f32>,
    workspace: Workspace<f32>,
    losses: BatchLosses,
    norm_partials: Vec<f64>,
    /// Losses of the sets of the step so far.
    of_step: Vec<f64>,
    outcome: Option<Outcome>,
}

impl CpuLearner {
    /// A learner that goes on from `weights`, laid out as the model's table says.
    ///
    /// # Panics
    /// If their lengths do not fit the model.
    pub fn new(model: SetRank, weights: Weights, objective: Objective) -> Self {
        let len = model.layout().len();
        let Weights { parameters, adam, average } = &weights;
        for (name, values) in [
            ("parameters", parameters),
            ("first moments", &adam.first),
            ("second moments", &adam.second),
            ("averages", average.as_ref().unwrap_or(parameters)),
        ] {
            assert_eq!(values.len(), len, "{name} of a model with {len} parameters");
        }
        CpuLearner {
            model,
            objective,
            weights,
            gradients: vec![0.0; len],
            workspace: Workspace::default(),
            losses: BatchLosses::default(),
            norm_partials: Vec::new(),
            of_step: Vec::new(),
            outcome: None,
        }
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
        let CpuLearner { model, weights, gradients, workspace, losses, .. } = self;
        let parameters = &weights.parameters;
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
            let Weights { parameters, adam, average } = &mut self.weights;
            adam.step(parameters, &self.gradients, scale as f32, lr as f32, self.objective.adam);
            if let Some(average) = average {
                average::update(average, parameters, self.objective.ema, adam.step);
            }
        }
        norm
    }
}

impl Learner for CpuLearner {
    fn model(&self) -> &SetRank {
        &self.model
    }

    fn steps(&self) -> u64 {
        self.weights.adam.step
    }

    fn begin(&mut self) -> Result<()> {
        self.begin();
        self.of_step.clear();
        Ok(())
    }

    fn accumulate(&mut self, batch: &Batch, sets_of_step: usize, training: TrainingStep) -> Result<()> {
        self.accumulate(batch, sets_of_step, training);
        self.of_step.extend_from_slice(&self.losses.of_sets);
        Ok(())
    }

    fn finish(&mut self, lr: f64) -> Result<()> {
        let losses = std::mem::take(&mut self.of_step);
        let are_finite = losses.iter().all(|loss| loss.is_finite());
        let gradient_norm = if are_finite { self.finish(lr) } else { f64::NAN };
        self.outcome = Some(Outcome { losses, gradient_norm });
        Ok(())
    }

    fn outcome(&mut self, _wait: bool) -> Result<Option<Outcome>> {
        Ok(self.outcome.take())
    }

    fn snapshot(&mut self) -> Result<&Weights> {
        Ok(&self.weights)
    }

    fn score(&mut self, batcher: &Batcher<'_>) -> Result<Vec<f32>> {
        let mut scorer = CpuScorer::new(&self.model, self.weights.evaluated());
        scorer::score(&mut scorer, batcher, |_| {})
    }
}

/// Runs `work` on a thread of the pool: what it does in parallel is then handed over without going through the
/// pool's queue, which wakes threads late and allocates.
pub fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}
