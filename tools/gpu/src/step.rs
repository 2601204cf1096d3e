//! A step of training, twice: the same bits.

use serde_json::json;
use setrank::config::{Encoder, ModelConfig};
use setrank::data::batch::Batch;
use setrank::device::Gpu;
use setrank::model::setrank::{SetRank, TrainingStep};
use setrank::ops::loss::Loss;
use setrank::rng::{Rng, Stream};
use setrank::train::Learner;
use setrank::train::learner::{CpuLearner, GpuLearner, Objective, Outcome as StepOutcome};
use setrank::train::optimizer::AdamConfig;
use setrank::train::state::Weights;

use crate::mismatch::Mismatch;
use crate::outcome::Outcome;

const SEED: u64 = 1;

/// How far losses and the gradient's norm may be from the processor's in f32, as a share of the largest. On the emulator
/// bf16 leaves the full-size norm 1.4 % away, and the mean loss 0.02 %.
const CLOSE: f64 = 0.05;

/// What a step leaves, by name: losses, the gradient's norm, the parameters after it.
pub type Results = [(&'static str, Vec<f64>); 3];

/// The model at its full size, or one for an emulator, and documents of the sets.
pub fn problem(encoder: Encoder, small: bool) -> (ModelConfig, &'static [usize]) {
    let config = ModelConfig { num_features: 220, encoder, dropout: 0.1, ..ModelConfig::default() };
    if !small {
        let full = ModelConfig {
            hidden_size: 256,
            num_heads: 8,
            num_blocks: 6,
            ffn_size: 1024,
            num_inducing: 20,
            ..config
        };
        return (full, &[1, 40, 500, 7, 129]);
    }
    let narrow = ModelConfig { hidden_size: 64, num_heads: 2, num_blocks: 1, ffn_size: 64, ..config };
    (ModelConfig { num_features: 9, num_inducing: 4, ..narrow }, &[1, 17])
}

/// A learner of the model on GPU 0.
pub fn learner(gpu: Gpu, model: &SetRank) -> anyhow::Result<GpuLearner> {
    let weights = Weights::new(model.layout().init::<f32>(SEED));
    Ok(GpuLearner::new(gpu, model.clone(), weights, objective())?)
}

fn objective() -> Objective {
    Objective {
        loss: Loss::SoftmaxCrossEntropy,
        clip: 1.0,
        adam: AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
        ema: 0.0,
    }
}

/// Takes the same step with two learners.
pub fn run(encoder: Encoder, small: bool) -> anyhow::Result<Outcome> {
    let (config, sizes) = problem(encoder, small);
    let batch = batch(&config, sizes);
    let model = SetRank::new(config)?;
    let of_gpu = || step(&mut learner(Gpu::new(0)?, &model)?, &batch);
    let (first, second) = (of_gpu()?, of_gpu()?);
    let mut mismatches = differing(&first, &second, "of the same step, the second time, or not finite");
    let weights = Weights::new(model.layout().init::<f32>(SEED));
    let parameters = weights.parameters.len();
    let of_cpu = step(&mut CpuLearner::new(model, weights, objective()), &batch)?;
    // Adam's first step is a sign of the gradient: parameters after it tell little.
    let compared = first.iter().zip(&of_cpu).take(2);
    mismatches.extend(compared.filter_map(|((name, found), (_, expected))| far(name, found, expected)));
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    Ok(Outcome::of(
        mismatches,
        json!({
            "documents": batch.rows.len(),
            "parameters": parameters,
            "loss": mean(&first[0].1),
            "loss_on_the_processor": mean(&of_cpu[0].1),
            "gradient_norm": first[1].1[0],
            "gradient_norm_on_the_processor": of_cpu[1].1[0],
        }),
    ))
}

/// Where what two learners have left has other bits, or is not finite; `what` the second one is, for messages.
pub fn differing(first: &Results, second: &Results, what: &str) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    for ((name, first), (_, second)) in first.iter().zip(second) {
        let differs = |&at: &usize| first[at].to_bits() != second[at].to_bits() || !first[at].is_finite();
        let places: Vec<usize> = (0..first.len()).filter(differs).collect();
        if !places.is_empty() {
            let shown = |values: &[f64]| values.iter().map(|value| format!("{value:e}")).collect();
            mismatches.push(Mismatch {
                what: format!("{name} {what}"),
                seed: Some(SEED),
                places,
                found: shown(second),
                expected: shown(first),
            });
        }
    }
    mismatches
}

/// Where `found` is further from the processor's than bf16 explains.
fn far(name: &str, found: &[f64], expected: &[f64]) -> Option<Mismatch> {
    let largest = expected.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let is_far = |&at: &usize| {
        let off = (found[at] - expected[at]).abs();
        off.is_nan() || off > CLOSE * largest
    };
    let places: Vec<usize> = (0..expected.len()).filter(is_far).collect();
    let shown = |values: &[f64]| values.iter().map(|value| format!("{value:e}")).collect();
    (!places.is_empty()).then(|| Mismatch {
        what: format!("{name} of a step, beside the processor's"),
        seed: Some(SEED),
        places,
        found: shown(found),
        expected: shown(expected),
    })
}

/// A step of a learner.
pub fn step(learner: &mut dyn Learner, batch: &Batch) -> anyhow::Result<Results> {
    learner.begin()?;
    learner.accumulate(batch, batch.queries.len(), TrainingStep { seed: SEED, step: 0 })?;
    learner.finish(1e-3)?;
    let outcome = learner.outcome(true)?;
    let StepOutcome { losses, gradient_norm } =
        outcome.ok_or_else(|| anyhow::anyhow!("the learner gives no result of its step"))?;
    let parameters = learner.snapshot()?.parameters.iter().copied().map(f64::from).collect();
    Ok([("losses", losses), ("norm of the gradient", vec![gradient_norm]), ("parameters", parameters)])
}

/// Normally distributed features, and labels 0 to 4.
pub fn batch(config: &ModelConfig, sizes: &[usize]) -> Batch {
    let mut rng = Rng::new(SEED, Stream::Synth, 0);
    let documents: usize = sizes.iter().sum();
    let mut offsets = vec![0];
    offsets.extend(sizes.iter().scan(0, |end, size| {
        *end += size;
        Some(*end)
    }));
    Batch {
        queries: (0..sizes.len()).collect(),
        offsets,
        rows: (0..documents).collect(),
        features: (0..documents * config.input_size()).map(|_| rng.normal() as f32).collect(),
        feature_dropout: None,
        labels: (0..documents).map(|_| rng.below(5) as f32).collect(),
        ordinals: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_is_told() {
        assert!(far("losses", &[1.01, 40.0], &[1.5, 40.0]).is_none());
        let found = far("losses", &[1.0, 37.0, f64::NAN], &[1.0, 40.0, 1.0]).unwrap();
        assert_eq!((found.places, &found.expected[1][..]), (vec![1, 2], "4e1"));
    }
}
