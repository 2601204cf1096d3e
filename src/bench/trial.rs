//! The measuring: the same step of one batch, again and again.

use std::time::Instant;

use rayon::prelude::*;

use super::hand_over::HandedOver;
use super::report::Measured;
use super::{Mode, Plan, allocations, machine};
use crate::config::Input;
use crate::data::batch::Batch;
use crate::model::setrank::{Inputs, Keep, SetRank, TrainingStep, Workspace};
use crate::ops::loss::Loss;
use crate::rng::{Rng, Stream};
use crate::train::config::Preset;
use crate::train::learner::{Objective, in_pool};
use crate::train::state::Weights;
use crate::train::{CpuLearner, TrainConfig};
use crate::{Error, Result};

/// Grades of the made-up labels: 0 to 4.
const GRADES: u32 = 5;

/// A [`Plan`] with what its rounds share.
pub(super) enum Trial<'a> {
    Cpu(Box<CpuTrial<'a>>),
    #[cfg(feature = "cuda")]
    Gpu(Box<super::gpu::GpuTrial<'a>>),
}

impl<'a> Trial<'a> {
    /// # Errors
    /// As [`Plan::run`].
    pub fn new(plan: &'a Plan) -> Result<Self> {
        let model = plan.model()?;
        if plan.device.is_gpu() {
            return Self::on_gpu(plan, model);
        }
        let parameters = model.layout().init(plan.seed);
        let batch = batch(plan);
        let handed_over = HandedOver::new(plan, &batch)?;
        Ok(Trial::Cpu(Box::new(CpuTrial { plan, batch, handed_over, parameters, model })))
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(plan: &'a Plan, model: SetRank) -> Result<Self> {
        let (objective, lr) = objective();
        Ok(Trial::Gpu(Box::new(super::gpu::GpuTrial::new(plan, model, objective, lr)?)))
    }

    #[cfg(not(feature = "cuda"))]
    fn on_gpu(_: &Plan, _: SetRank) -> Result<Self> {
        Err(crate::device::DeviceError::from(crate::device::Unavailable::NotBuilt).into())
    }

    /// Measures once.
    pub fn measure(&mut self) -> Result<Measured> {
        match self {
            Trial::Cpu(trial) => trial.measure(),
            #[cfg(feature = "cuda")]
            Trial::Gpu(trial) => trial.measure(),
        }
    }
}

/// On the threads of the current pool.
pub(super) struct CpuTrial<'a> {
    plan: &'a Plan,
    batch: Batch,
    handed_over: Option<HandedOver>,
    parameters: Vec<f32>,
    model: SetRank,
}

impl CpuTrial<'_> {
    fn measure(&mut self) -> Result<Measured> {
        machine::restart_peak_rss();
        match self.plan.mode {
            Mode::Train => self.train(),
            Mode::Infer => self.infer(),
        }
    }

    fn train(&mut self) -> Result<Measured> {
        let (objective, lr) = objective();
        let weights = Weights::new(self.parameters.clone());
        let mut learner = CpuLearner::new(self.model.clone(), weights, objective);
        let (seed, sets) = (self.plan.seed, self.plan.sizes.len());
        time(self.plan, &mut self.batch, self.handed_over.as_ref(), move |step, batch| {
            learner.begin();
            let training = TrainingStep { seed, step };
            let losses_are_finite =
                learner.accumulate(batch, sets, training).iter().all(|loss| loss.is_finite());
            let norm = learner.finish(lr);
            if losses_are_finite && norm.is_finite() {
                return Ok(());
            }
            Err(not_finite(step))
        })
    }

    fn infer(&mut self) -> Result<Measured> {
        let (model, parameters) = (&self.model, &self.parameters);
        let mut workspace = Workspace::of_same_parameters();
        time(self.plan, &mut self.batch, self.handed_over.as_ref(), move |_, batch| {
            let Batch { features, offsets, ordinals, .. } = batch;
            let inputs = Inputs { features, offsets, ordinals };
            model.forward(&mut workspace, parameters, inputs, Keep::Nothing, None);
            Ok(())
        })
    }
}

/// Takes the steps of warm-up and those that count, each on `batch`, of what is handed over where that is not the same;
/// `step` is told its number.
fn time(
    plan: &Plan,
    batch: &mut Batch,
    handed_over: Option<&HandedOver>,
    mut step: impl FnMut(u64, &Batch) -> Result<()> + Send,
) -> Result<Measured> {
    let Plan { steps, warmup, .. } = *plan;
    let (mut seconds, mut unpadding_s) = (Vec::with_capacity(steps), Vec::with_capacity(warmup + steps));
    in_pool(move || {
        let mut number = 0;
        let mut next = |unpadding_s: &mut Vec<f64>| {
            if let Some(handed_over) = handed_over {
                unpadding_s.push(handed_over.unpad(batch)?);
            }
            number += 1;
            step(number - 1, batch)
        };
        (0..warmup).try_for_each(|_| next(&mut unpadding_s))?;
        unpadding_s.clear();
        let before = allocations::count();
        for _ in 0..steps {
            let started = Instant::now();
            next(&mut unpadding_s)?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        let count = allocations::count().zip(before).map(|(after, before)| after - before);
        Ok(Measured {
            seconds,
            unpadding_s,
            allocations_per_step: count.map(|count| count as f64 / steps as f64),
            peak_rss_bytes: machine::peak_rss(),
            gpu: None,
        })
    })
}

/// Random features and labels: normal, or uniform in [0, 1) for the rbf input. Every document draws from a sequence of
/// its own.
pub(super) fn batch(plan: &Plan) -> Batch {
    let documents = plan.documents();
    let mut batch = Batch { rows: (0..documents).collect(), ..Batch::default() };
    batch.offsets.push(0);
    for &size in &plan.sizes {
        batch.offsets.push(batch.offsets[batch.offsets.len() - 1] + size);
    }
    let input_size = plan.config.input_size();
    batch.features.resize(documents * input_size, 0.0);
    batch.labels.resize(documents, 0.0);
    let rows = batch.features.par_chunks_mut(input_size).zip(&mut batch.labels);
    rows.enumerate().for_each(|(document, (features, label))| {
        // Sequence 0 is of the matrices that measure the peak.
        let mut rng = Rng::new(plan.seed, Stream::Benchmark, 1 + document as u64);
        *label = rng.below(GRADES) as f32;
        match plan.config.input {
            Input::Linear => features.fill_with(|| rng.normal() as f32),
            Input::Rbf => features.fill_with(|| rng.uniform() as f32),
        }
    });
    batch
}

/// What a training step minimises, and its learning rate: the loss of the authors' code, which other implementations
/// have, too.
fn objective() -> (Objective, f64) {
    let recommended = TrainConfig::preset(Preset::Default);
    let loss = Loss::SoftmaxCrossEntropy;
    (Objective { loss, clip: recommended.clip, adam: recommended.adam(), ema: 0.0 }, recommended.lr)
}

/// Why a run cannot go on behind step number `step`, from 0.
pub(super) fn not_finite(step: u64) -> Error {
    Error::NonFinite(format!(
        "step {}: a loss or gradient is not finite; try another --seed or a smaller model",
        step + 1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::hand_over::HandOver;
    use crate::config::ModelConfig;
    use crate::device::choice::Device;

    #[test]
    fn a_batch_is_its_seeds_alone() {
        let config = ModelConfig { num_features: 3, hidden_size: 4, num_heads: 1, ..ModelConfig::default() };
        let plan = Plan {
            mode: Mode::Infer,
            config,
            sizes: vec![3, 2],
            seed: 1,
            steps: 1,
            warmup: 1,
            device: Device::Cpu,
            hand_over: HandOver::default(),
        };
        let longer = Plan { sizes: vec![3, 200], ..plan.clone() };
        let other = Plan { seed: 2, ..plan.clone() };
        let [plan, longer, other] = [plan, longer, other].map(|plan| batch(&plan));
        assert_eq!((&plan.offsets[..], plan.features.len(), plan.labels.len()), (&[0, 3, 5][..], 15, 5));
        assert!(longer.features.starts_with(&plan.features) && longer.labels.starts_with(&plan.labels));
        assert_ne!(plan.features, other.features);
        assert!(longer.labels.iter().all(|label| (0.0..GRADES as f32).contains(label)));
    }
}
