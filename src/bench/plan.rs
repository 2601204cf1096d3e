//! What is measured, and the measuring.

use std::time::Instant;

use serde::Serialize;

use super::report::{Measured, Report};
use super::{allocations, machine};
use crate::config::{Input, ModelConfig};
use crate::data::batch::Batch;
use crate::model::flops;
use crate::model::memory::{Activations, fixed};
use crate::model::setrank::{Inputs, Keep, SetRank, TrainingStep, Workspace};
use crate::ops::loss::Loss;
use crate::rng::{Rng, Stream};
use crate::train::config::{DeviceChoice, Preset};
use crate::train::learner::{Objective, in_pool};
use crate::train::state::Weights;
use crate::train::{CpuLearner, TrainConfig};
use crate::{Error, Result};

/// Grades of the made-up labels: 0 to 4.
const GRADES: u32 = 5;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Forward, losses, backward, clipping, Adam: a training step.
    Train,
    /// Forward alone: scores.
    Infer,
}

impl Mode {
    fn keep(self) -> Keep {
        match self {
            Mode::Train => Keep::ForBackward,
            Mode::Infer => Keep::Nothing,
        }
    }
}

/// A benchmark: one batch, the same step again and again.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What a step does.
    pub mode: Mode,
    /// The model; it takes no initial ranking.
    pub config: ModelConfig,
    /// Documents of each set `[B]`, at least 1 each.
    pub sizes: Vec<usize>,
    /// Seed of parameters, features, labels.
    pub seed: u64,
    /// Steps that are timed, at least 1.
    pub steps: usize,
    /// Steps before, in which buffers grow and caches fill; at least 1.
    pub warmup: usize,
    /// Where: never [`DeviceChoice::Auto`].
    pub device: DeviceChoice,
}

impl Plan {
    fn documents(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Operations of a step.
    pub fn flops(&self) -> f64 {
        let flops = flops::of_batch(&self.config, &self.sizes);
        match self.mode {
            Mode::Train => flops.training,
            Mode::Infer => flops.forward,
        }
    }

    /// Bytes that the run needs, about: parameters, gradients and moments, the batch and what is computed of it.
    pub fn bytes(&self, parameters: usize) -> f64 {
        let arrays = match self.mode {
            Mode::Train => 4,
            Mode::Infer => 1,
        };
        let batch = self.documents() as f64 * (self.config.input_size() as f64 + 1.0);
        let values = (arrays * parameters) as f64 + batch;
        if self.device == DeviceChoice::Cuda {
            // All that is computed is on the GPU.
            return values * size_of::<f32>() as f64;
        }
        let activations = Activations::new(&self.config, self.mode.keep());
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        let threads = rayon::current_num_threads();
        values * size_of::<f32>() as f64
            + activations.of_batch(self.documents(), self.sizes.len()) as f64
            + fixed(&self.config, threads, largest) as f64
    }

    /// Measures `rounds` times, at least once, on the threads of the current pool or on the GPU.
    ///
    /// # Errors
    /// Where the plan contradicts itself or the machine has not the memory for it, before anything is computed;
    /// where a loss or gradient stops being finite.
    pub fn run(&self, rounds: usize) -> Result<Report> {
        let mut measured = self.measure()?;
        for _ in 1..rounds {
            measured.add(self.measure()?);
        }
        Ok(Report::new(self, measured))
    }

    /// What [`run`](Self::run) reports on.
    pub(super) fn measure(&self) -> Result<Measured> {
        let model = self.check()?;
        machine::restart_peak_rss();
        if self.device == DeviceChoice::Cuda {
            return self.measure_on_gpu(model);
        }
        let batch = self.batch();
        let parameters = model.layout().init(self.seed);
        let (seconds, allocations_per_step) = match self.mode {
            Mode::Train => self.train(model, parameters, &batch)?,
            Mode::Infer => self.infer(&model, &parameters, &batch)?,
        };
        Ok(Measured { seconds, allocations_per_step, peak_rss_bytes: machine::peak_rss(), gpu: None })
    }

    #[cfg(feature = "cuda")]
    fn measure_on_gpu(&self, model: SetRank) -> Result<Measured> {
        let (objective, lr) = objective();
        super::gpu::measure(self, model, objective, lr)
    }

    #[cfg(not(feature = "cuda"))]
    fn measure_on_gpu(&self, _: SetRank) -> Result<Measured> {
        Err(crate::device::DeviceError::from(crate::device::Unavailable::NotBuilt).into())
    }

    /// The model, if the plan does not contradict itself and fits the memory.
    pub(super) fn check(&self) -> Result<SetRank> {
        for (name, value) in [("steps", self.steps), ("warmup", self.warmup), ("sets", self.sizes.len())] {
            if value == 0 {
                return Err(Error::config(format!("{name} is 0: it must be at least 1")));
            }
        }
        if self.sizes.contains(&0) {
            return Err(Error::config("a set has no document: give each at least 1"));
        }
        if self.config.num_rankings() > 0 {
            return Err(Error::config("a benchmark's batch has no initial ranking: leave `ordinal` out"));
        }
        let model = SetRank::new(self.config.clone())?;
        self.check_memory(machine::available_memory(), model.layout().len())?;
        #[cfg(feature = "cuda")]
        if self.device == DeviceChoice::Cuda {
            super::gpu::check(self, &model)?;
        }
        Ok(model)
    }

    fn check_memory(&self, available: Option<u64>, parameters: usize) -> Result<()> {
        let batch = format!("a batch of {} sets with {} documents", self.sizes.len(), self.documents());
        let advice = "take fewer or smaller sets, or a smaller model";
        machine::check_memory(available, self.bytes(parameters), &batch, advice)
    }

    /// Random features and labels: normal, or uniform in [0, 1) for the rbf input.
    pub(super) fn batch(&self) -> Batch {
        let mut batch = Batch { rows: (0..self.documents()).collect(), ..Batch::default() };
        batch.offsets.push(0);
        for &size in &self.sizes {
            batch.offsets.push(batch.offsets[batch.offsets.len() - 1] + size);
        }
        let mut rng = Rng::new(self.seed, Stream::Benchmark, 1);
        let values = self.documents() * self.config.input_size();
        batch.features = match self.config.input {
            Input::Linear => (0..values).map(|_| rng.normal() as f32).collect(),
            Input::Rbf => (0..values).map(|_| rng.uniform() as f32).collect(),
        };
        batch.labels = (0..self.documents()).map(|_| rng.below(GRADES) as f32).collect();
        batch
    }

    /// Seconds of each timed training step, and allocations a step.
    fn train(&self, model: SetRank, parameters: Vec<f32>, batch: &Batch) -> Result<(Vec<f64>, Option<f64>)> {
        let (objective, lr) = objective();
        let mut learner = CpuLearner::new(model, Weights::new(parameters), objective);
        let (seed, sets) = (self.seed, self.sizes.len());
        self.time(move |step| {
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

    /// Seconds of each timed forward pass, and allocations a pass.
    fn infer(&self, model: &SetRank, parameters: &[f32], batch: &Batch) -> Result<(Vec<f64>, Option<f64>)> {
        let inputs = Inputs { features: &batch.features, offsets: &batch.offsets, ordinals: &batch.ordinals };
        let mut workspace = Workspace::default();
        self.time(move |_| {
            model.forward(&mut workspace, parameters, inputs, Keep::Nothing, None);
            Ok(())
        })
    }

    /// Takes the steps of warm-up and those that count; `step` is told its number.
    fn time(&self, mut step: impl FnMut(u64) -> Result<()> + Send) -> Result<(Vec<f64>, Option<f64>)> {
        let mut seconds = Vec::with_capacity(self.steps);
        in_pool(move || {
            let mut number = 0;
            let mut next = || {
                number += 1;
                step(number - 1)
            };
            (0..self.warmup).try_for_each(|_| next())?;
            let before = allocations::count();
            for _ in 0..self.steps {
                let started = Instant::now();
                next()?;
                seconds.push(started.elapsed().as_secs_f64());
            }
            let count = allocations::count().zip(before).map(|(after, before)| after - before);
            Ok((seconds, count.map(|count| count as f64 / self.steps as f64)))
        })
    }
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
    use crate::config::Encoder;

    fn plan(mode: Mode) -> Plan {
        let config = ModelConfig {
            num_features: 6,
            hidden_size: 8,
            num_heads: 2,
            num_blocks: 1,
            ffn_size: 8,
            num_inducing: 2,
            encoder: Encoder::Imsab,
            ..ModelConfig::default()
        };
        Plan { mode, config, sizes: vec![3, 1, 5], seed: 1, steps: 4, warmup: 1, device: DeviceChoice::Cpu }
    }

    #[test]
    fn a_report_adds_up() {
        for mode in [Mode::Train, Mode::Infer] {
            let report = plan(mode).run(1).unwrap();
            assert!(report.peak_gflops.is_none() && report.share.is_none());
            let report = report.with_peak(Some(10.0));
            assert_eq!((report.docs, report.sets), (9, 3));
            assert!(0.0 < report.min_s && report.min_s <= report.median_s);
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            assert!(close(report.docs_per_s * report.median_s, 9.0));
            assert!(close(report.gflops, report.flops_per_doc * report.docs_per_s / 1e9));
            assert!(close(report.share.unwrap(), report.gflops / 10.0) && report.peak_gflops == Some(10.0));
        }
    }

    #[test]
    fn contradictions_are_errors() {
        let mut plan = plan(Mode::Train);
        let fails = |plan: &Plan, part: &str| {
            let message = plan.run(1).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        fails(&Plan { steps: 0, ..plan.clone() }, "steps");
        fails(&Plan { warmup: 0, ..plan.clone() }, "warmup");
        fails(&Plan { sizes: vec![], ..plan.clone() }, "sets");
        fails(&Plan { sizes: vec![2, 0], ..plan.clone() }, "no document");
        plan.config.ordinal = Some(Default::default());
        fails(&plan, "initial ranking");
    }

    #[test]
    fn a_batch_that_does_not_fit_is_refused_before_it_is_made() {
        let plan = plan(Mode::Train);
        assert!(plan.check_memory(None, 100).is_ok());
        assert!(plan.check_memory(Some(1 << 30), 100).is_ok());
        let message = plan.check_memory(Some(1000), 100).unwrap_err().to_string();
        assert!(message.contains("3 sets with 9 documents"), "{message}");
        let huge = Plan { sizes: vec![1 << 20; 1 << 20], ..plan };
        assert!(huge.run(1).unwrap_err().to_string().contains("GiB"));
    }
}
