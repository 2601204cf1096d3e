//! What is measured.

use serde::Serialize;

use super::hand_over::{HandOver, Layout};
use super::machine;
use super::report::Report;
use super::trial::Trial;
use crate::config::ModelConfig;
use crate::device::choice::Device;
use crate::model::flops;
use crate::model::memory::{Activations, fixed, packed_anew};
use crate::model::setrank::{Keep, SetRank};
use crate::{Error, Result};

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
    /// Where.
    pub device: Device,
    /// How its batch is handed over.
    pub hand_over: HandOver,
}

impl Plan {
    pub(super) fn documents(&self) -> usize {
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

    /// Bytes that the run needs, about: parameters, gradients and moments, packed weights, the batch and what is computed of it.
    pub fn bytes(&self, parameters: usize) -> f64 {
        let arrays = match self.mode {
            Mode::Train => 4,
            Mode::Infer if self.device.is_gpu() => 1,
            // Weights packed once are as many.
            Mode::Infer => 2,
        };
        let grids = match self.hand_over.layout {
            Layout::Ragged => 0,
            _ => self.hand_over.rows(&self.sizes),
        };
        let batch = (self.documents() + grids) as f64 * (self.config.input_size() as f64 + 1.0);
        let values = (arrays * parameters) as f64 + batch;
        if self.device.is_gpu() {
            // All that is computed is on the GPU.
            return values * size_of::<f32>() as f64;
        }
        let activations = Activations::new(&self.config, self.mode.keep());
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        let packed = match self.mode {
            Mode::Train => packed_anew(&self.config),
            Mode::Infer => 0,
        };
        let threads = rayon::current_num_threads();
        values * size_of::<f32>() as f64
            + activations.of_batch(self.documents(), self.sizes.len()) as f64
            + (fixed(&self.config, threads, largest) + packed) as f64
    }

    /// Refuses what [`run`](Self::run) would: a plan that contradicts itself, or that the machine has not the memory for.
    ///
    /// # Errors
    /// See there; what a GPU has no memory for is known when it runs.
    pub fn check(&self) -> Result<()> {
        self.model().map(drop)
    }

    /// Measures `rounds` times, at least once, on the threads of the current pool or on the GPU.
    ///
    /// # Errors
    /// Where the plan contradicts itself or the machine has not the memory for it, before anything is computed;
    /// where a loss or gradient stops being finite.
    pub fn run(&self, rounds: usize) -> Result<Report> {
        let mut trial = Trial::new(self)?;
        let mut measured = trial.measure()?;
        for _ in 1..rounds {
            measured.add(trial.measure()?);
        }
        Ok(Report::new(self, measured))
    }

    /// The model, if the plan does not contradict itself and fits the memory of the machine.
    pub(super) fn model(&self) -> Result<SetRank> {
        for (name, value) in [("steps", self.steps), ("warmup", self.warmup), ("sets", self.sizes.len())] {
            if value == 0 {
                return Err(Error::config(format!("{name} is 0: it must be at least 1")));
            }
        }
        if self.sizes.contains(&0) {
            return Err(Error::config("a set has no document: give each at least 1"));
        }
        self.hand_over.check(&self.sizes)?;
        if self.config.num_rankings() > 0 {
            return Err(Error::config("a benchmark's batch has no initial ranking: leave `ordinal` out"));
        }
        let model = SetRank::new(self.config.clone())?;
        self.check_memory(machine::available_memory(), model.layout().len())?;
        Ok(model)
    }

    fn check_memory(&self, available: Option<u64>, parameters: usize) -> Result<()> {
        let batch = format!("a batch of {} sets with {} documents", self.sizes.len(), self.documents());
        let advice = "take fewer or smaller sets, or a smaller model";
        machine::check_memory(available, self.bytes(parameters), &batch, advice)
    }
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
        Plan {
            mode,
            config,
            sizes: vec![3, 1, 5],
            seed: 1,
            steps: 4,
            warmup: 1,
            device: Device::Cpu,
            hand_over: HandOver::default(),
        }
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
    fn a_padded_step_is_measured_with_its_unpadding() {
        for mode in [Mode::Train, Mode::Infer] {
            for (layout, rows) in [(Layout::Padded, 15), (Layout::Masked, 15), (Layout::Bucketed, 9)] {
                let hand_over = HandOver { layout, pad_to: None };
                let report = Plan { hand_over, ..plan(mode) }.run(2).unwrap();
                assert_eq!((report.docs, report.layout), (9, layout));
                assert_eq!(report.rows_per_doc, f64::from(rows) / 9.0);
                assert!(report.unpadding_s.is_some_and(|seconds| seconds < report.median_s), "{layout:?}");
            }
        }
        let ragged = plan(Mode::Infer).run(1).unwrap();
        assert_eq!((ragged.layout, ragged.rows_per_doc, ragged.unpadding_s), (Layout::Ragged, 1.0, None));
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
        let hand_over = HandOver { layout: Layout::Padded, pad_to: Some(4) };
        fails(&Plan { hand_over, ..plan.clone() }, "the longest set has 5");
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
