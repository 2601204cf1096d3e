//! The numbers of a training step: forward, losses, backward, clipping, Adam. The trainer decides what a step is
//! taken on; the benchmark takes the same step again and again.

mod cpu;
mod feeding;
#[cfg(feature = "cuda")]
mod gpu;
mod losses;

pub use cpu::{CpuLearner, in_pool};
pub use feeding::Feeding;
#[cfg(feature = "cuda")]
pub use gpu::GpuLearner;

use super::optimizer::AdamConfig;
use super::state::Weights;
use crate::Result;
use crate::data::batch::{Batch, Batcher, Extent};
use crate::device::DeviceError;
use crate::device::choice::{Device, KernelChoice};
use crate::model::setrank::{SetRank, TrainingStep};
use crate::ops::loss::Loss;

/// What is minimised, and how.
#[derive(Clone, Copy, Debug)]
pub struct Objective {
    /// The loss of a set.
    pub loss: Loss,
    /// Largest norm of the gradient; 0 = any.
    pub clip: f64,
    /// Adam's constants.
    pub adam: AdamConfig,
    /// Decay of the running average of the parameters, where one is kept.
    pub ema: f64,
}

/// What came of a step.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Loss of each set, batch after batch.
    pub losses: Vec<f64>,
    /// Norm of the gradient before clipping. Where it or a loss is not finite no step was taken.
    pub gradient_norm: f64,
}

/// A model that learns on some device.
///
/// A step is [`begin`](Self::begin), [`accumulate`](Self::accumulate) once a batch, [`finish`](Self::finish). A device
/// may still be computing when these return: what came of a step is told by [`outcome`](Self::outcome).
pub trait Learner {
    /// The model.
    fn model(&self) -> &SetRank;

    /// Steps begun and finished so far, those of the run's earlier parts included.
    fn steps(&self) -> u64;

    /// Makes ready for batches of `train`, none larger than `largest` in documents or sets, and for scores of `valid`; says
    /// where their features will come from, where that is a question.
    fn prepare(
        &mut self,
        _train: &Batcher<'_>,
        _largest: Extent,
        _valid: Option<&Batcher<'_>>,
    ) -> Result<Option<Feeding>> {
        Ok(None)
    }

    /// Whether a batch of the data that was made ready for has to have its features.
    fn needs_features(&self) -> bool {
        true
    }

    /// Begins a step: no gradient yet.
    fn begin(&mut self) -> Result<()>;

    /// Adds the gradient of the sum of the losses of `batch`, divided by `sets_of_step`.
    fn accumulate(&mut self, batch: &Batch, sets_of_step: usize, training: TrainingStep) -> Result<()>;

    /// Ends a step: clips the gradient and takes Adam's step at learning rate `lr`, unless a loss or the gradient is
    /// not finite.
    fn finish(&mut self, lr: f64) -> Result<()>;

    /// What came of the oldest step that has not been told of; `None` where there is none, or where it is still being
    /// computed and the caller does not `wait`.
    fn outcome(&mut self, wait: bool) -> Result<Option<Outcome>>;

    /// All weights after the last step.
    fn snapshot(&mut self) -> Result<&Weights>;

    /// Scores `[N]` of the batcher's data by the weights that are validated: their average, where one is kept.
    fn score(&mut self, batcher: &Batcher<'_>) -> Result<Vec<f32>>;
}

/// A learner on `device`, which [`choose`](crate::model::device::choose) has found to be there, that goes on from
/// `weights`.
///
/// # Errors
///
/// What keeps a GPU from being used, or from computing this model.
pub fn on(
    device: Device,
    model: SetRank,
    weights: Weights,
    objective: Objective,
) -> Result<Box<dyn Learner>, DeviceError> {
    match device {
        Device::Gpu(kernels) => on_gpu(kernels, model, weights, objective),
        Device::Cpu => Ok(Box::new(CpuLearner::new(model, weights, objective))),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(
    kernels: KernelChoice,
    model: SetRank,
    weights: Weights,
    objective: Objective,
) -> Result<Box<dyn Learner>, DeviceError> {
    let gpu = crate::device::Gpu::first(kernels)?;
    Ok(Box::new(GpuLearner::new(gpu, model, weights, objective)?))
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: KernelChoice, _: SetRank, _: Weights, _: Objective) -> Result<Box<dyn Learner>, DeviceError> {
    Err(crate::device::Unavailable::NotBuilt.into())
}
