//! Training on a GPU follows training on the processor.

use super::*;
use setrank::ops::check::rounding::to_bf16;
use setrank::train::learner::CpuLearner;
use setrank::train::optimizer::{Adam, global_norm};

/// Losses of `steps` steps on the same batch.
fn losses(learner: &mut dyn Learner, problem: &Problem, steps: u64) -> Vec<f64> {
    let sets = problem.batch.queries.len();
    let mut all = Vec::new();
    for step in 0..steps {
        learner.begin().unwrap();
        learner.accumulate(&problem.batch, sets, TrainingStep { seed: 1, step }).unwrap();
        learner.finish(1e-3).unwrap();
        let outcome = learner.outcome(true).unwrap().unwrap();
        all.push(outcome.losses.iter().sum::<f64>() / sets as f64);
    }
    all
}

fn objective(loss: Loss) -> Objective {
    let adam = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    Objective { loss, clip: 1.0, adam, ema: 0.9 }
}

fn start(problem: &Problem) -> Weights {
    let parameters: Vec<f32> = problem.parameters.iter().map(|&value| value as f32).collect();
    Weights { average: Some(parameters.clone()), ..Weights::new(parameters) }
}

/// Losses of `steps` steps by the model on a tape.
fn plain_losses(problem: &Problem, rounding: Rounding, steps: u64, objective: Objective) -> Vec<f64> {
    let layout = problem.model.layout();
    let mut parameters: Vec<f32> = problem.parameters.iter().map(|&value| value as f32).collect();
    let mut adam = Adam::new(parameters.len());
    let mut all = Vec::new();
    for _ in 0..steps {
        let mut values: Vec<f64> = parameters.iter().map(|&value| f64::from(value)).collect();
        for parameter in layout.parameters() {
            // What products are made of is rounded; the others are read as they are.
            let name = &parameter.name;
            let of_product = parameter.shape.len() == 2
                && !(name.starts_with("ordinal") || name.starts_with("score") || name.ends_with("centers"));
            if of_product && !matches!(rounding, Rounding::Exact) {
                values[parameter.range()].iter_mut().for_each(|value| *value = to_bf16(*value));
            }
        }
        let step = Problem {
            model: problem.model.clone(),
            parameters: values,
            batch: problem.batch.clone(),
            loss: problem.loss,
        };
        let [_, losses, gradients] = step.plain(rounding);
        let gradients: Vec<f32> = gradients.iter().map(|&value| value as f32).collect();
        let norm = global_norm(&gradients, &mut Vec::new());
        adam.step(&mut parameters, &gradients, (objective.clip / norm).min(1.0) as f32, 1e-3, objective.adam);
        all.push(losses.iter().sum::<f64>() / losses.len() as f64);
    }
    all
}

/// The GPU's losses are off from the processor's by at most twice as much as those of plain steps that round alike.
#[test]
fn twenty_steps_follow_the_processor() {
    for (config, loss) in [(imsab(), Loss::LambdaLoss), (config(), Loss::SoftmaxCrossEntropy)] {
        let problem = Problem::draw(config, &[3, 17, 8, 1], loss, Relus::Random, 3);
        let mut cpu = CpuLearner::new(problem.model.clone(), start(&problem), objective(loss));
        let expected = losses(&mut cpu, &problem, 20);
        assert!(expected[19] < 0.8 * expected[0], "the problem is learned: {expected:?}");
        let plain = [Rounding::Nearest, Rounding::Disturbed(1), Rounding::Disturbed(2)]
            .map(|rounding| plain_losses(&problem, rounding, 20, objective(loss)));
        on_gpu(|gpu| {
            let model = problem.model.clone();
            let mut learner = GpuLearner::new(gpu, model, start(&problem), objective(loss)).unwrap();
            let found = losses(&mut learner, &problem, 20);
            let plain = plain.each_ref().map(|losses| &losses[..]);
            let off = deviation(&found, &plain, &expected, to_f32);
            assert!(off.is_allowed(), "{off:?}: {found:?} instead of {expected:?}");
        });
    }
}

/// A run goes on elsewhere from its weights: what the GPU has after some steps, the processor goes on with, and back.
#[test]
fn a_run_goes_on_on_the_other_device() {
    let loss = Loss::SoftmaxCrossEntropy;
    let problem = Problem::draw(imsab(), &[3, 17, 8, 1], loss, Relus::Random, 4);
    on_gpu(|gpu| {
        let model = || problem.model.clone();
        let mut first = GpuLearner::new(gpu, model(), start(&problem), objective(loss)).unwrap();
        let before = losses(&mut first, &problem, 3);
        let weights = first.snapshot().unwrap().clone();
        assert_eq!((weights.adam.step, weights.parameters.len()), (3, problem.parameters.len()));
        drop(first);
        let mut second = CpuLearner::new(model(), weights, objective(loss));
        let between = losses(&mut second, &problem, 3);
        let weights = second.snapshot().unwrap().clone();
        let mut third =
            GpuLearner::new(Gpu::new(0).unwrap(), model(), weights.clone(), objective(loss)).unwrap();
        // Nothing is lost on the way to the GPU and back.
        let back = third.snapshot().unwrap();
        assert_eq!(back.parameters, weights.parameters);
        assert_eq!((&back.adam.first, &back.adam.second), (&weights.adam.first, &weights.adam.second));
        assert_eq!(back.average, weights.average);
        let after = losses(&mut third, &problem, 3);
        let sums = [&before, &between, &after].map(|losses| losses.iter().sum::<f64>());
        assert!(sums[0] > sums[1] && sums[1] > sums[2], "{before:?}, {between:?}, {after:?}");
    });
}

/// The same seed, data and device: the same bits.
#[test]
fn the_same_run_gives_the_same_bits() {
    let loss = Loss::LambdaLoss;
    let config = ModelConfig { dropout: 0.2, ..imsab() };
    let problem = Problem::draw(config, &[3, 40, 8], loss, Relus::Random, 5);
    let run = || {
        let mut weights = None;
        on_gpu(|gpu| {
            let mut learner =
                GpuLearner::new(gpu, problem.model.clone(), start(&problem), objective(loss)).unwrap();
            losses(&mut learner, &problem, 2);
            weights = Some(learner.snapshot().unwrap().clone());
        });
        weights.unwrap()
    };
    let (first, second) = (run(), run());
    assert_eq!(first.parameters, second.parameters);
    assert_eq!(first.average, second.average);
}
