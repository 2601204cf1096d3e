//! The whole model on a GPU: forward, losses and gradients against f64, and training against the processor's.

mod layouts;
mod plain;
mod tape;
mod training;

use std::collections::BTreeMap;
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;
use setrank::config::{Encoder, Input, ModelConfig, OrdinalAt, OrdinalConfig, OrdinalStart};
use setrank::data::batch::Batch;
use setrank::data::normalize::{Kind, Normalize};
use setrank::device::choice::Fusion;
use setrank::device::{Gpu, Limits};
use setrank::model::gpu::GpuScorer;
use setrank::model::scorer::Scorer;
use setrank::model::setrank::{self as cpu, Keep, SetRank, TrainingStep, Workspace};
use setrank::ops::check::deviation;
use setrank::ops::check::rounding::to_f32;
use setrank::ops::loss::{Loss, Scratch};
use setrank::rng::{Rng, Stream};
use setrank::train::Learner;
use setrank::train::learner::{GpuLearner, Objective};
use setrank::train::optimizer::AdamConfig;
use setrank::train::state::Weights;

use crate::device::{on_gpu, on_gpu_with};
use plain::{Inputs, Plain};
use tape::Rounding;

/// Draws of the errors of rounding: what one allows where results are few, or nearly cancel, is luck.
const ROUNDINGS: [Rounding; 6] = [
    Rounding::Nearest,
    Rounding::Disturbed(1),
    Rounding::Disturbed(2),
    Rounding::Disturbed(3),
    Rounding::Disturbed(4),
    Rounding::Disturbed(5),
];

const TRAINING: TrainingStep = TrainingStep { seed: 5, step: 3 };

/// Narrow, but with every kind of tile in it.
fn config() -> ModelConfig {
    ModelConfig {
        num_features: 9,
        hidden_size: 64,
        num_heads: 2,
        num_blocks: 2,
        ffn_size: 64,
        num_inducing: 5,
        encoder: Encoder::Msab,
        ..ModelConfig::default()
    }
}

fn imsab() -> ModelConfig {
    ModelConfig { encoder: Encoder::Imsab, ..config() }
}

fn rbf(config: ModelConfig) -> ModelConfig {
    let features = config.num_features;
    let (center, scale) = (vec![0.0; features], vec![1.0; features]);
    let normalize = Normalize { kind: Kind::MinMax, center, scale, ..config.normalize.clone() };
    ModelConfig { input: Input::Rbf, rbf_centers: 11, normalize, ..config }
}

fn ordinals(rankings: usize, at: OrdinalAt) -> Option<OrdinalConfig> {
    Some(OrdinalConfig { rankings, n_max: 40, at, start: OrdinalStart::Zero })
}

/// What is in front of a model's ReLUs: near 0 their derivative jumps, by whatever rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relus {
    /// Any numbers.
    Random,
    /// Numbers of both signs, none near 0: no rounding changes which results are 0.
    Decided,
}

/// A batch and parameters away from their trivial initial values, all of which a GPU stores exactly.
struct Problem {
    model: SetRank,
    parameters: Vec<f64>,
    batch: Batch,
    loss: Loss,
}

impl Problem {
    fn draw(config: ModelConfig, sizes: &[usize], loss: Loss, relus: Relus, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let model = SetRank::new(config).unwrap();
        let config = model.config();
        let mut parameters: Vec<f64> = model.layout().init(seed);
        parameters
            .iter_mut()
            .for_each(|value| *value = bf16::from_f64(*value + 0.05 * rng.normal()).to_f64());
        let documents: usize = sizes.iter().sum();
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let feature = |rng: &mut Rng| match config.input {
            Input::Linear => bf16::from_f64(rng.normal()).to_f32(),
            Input::Rbf => bf16::from_f64(rng.uniform()).to_f32(),
        };
        let rankings = config.num_rankings();
        let batch = Batch {
            queries: (0..sizes.len()).collect(),
            offsets,
            rows: (0..documents).collect(),
            features: (0..documents * config.input_size()).map(|_| feature(&mut rng)).collect(),
            feature_dropout: None,
            labels: (0..documents).map(|_| rng.below(5) as f32 - 1.0).collect(),
            ordinals: (0..rankings)
                .map(|_| (0..documents).map(|_| rng.below(41) as i32 - 1).collect())
                .collect(),
        };
        let mut problem = Problem { model, parameters, batch, loss };
        if relus == Relus::Decided {
            problem.parameters = problem.decided();
        }
        problem
    }

    /// Its parameters with biases that put a gap among what is in front of each ReLU at 0.
    fn decided(&self) -> Vec<f64> {
        let config = self.model.config();
        let mut plain = Plain::new(config, &self.parameters, Rounding::Exact, self.training()).deciding();
        let Batch { offsets, ordinals, .. } = &self.batch;
        plain.forward(&Inputs { features: &self.features(), offsets, ordinals });
        plain.parameters()
    }

    /// The first draw from `seed` on whose scores are so far apart that rounding changes no rank: a loss by ranks jumps
    /// where it does.
    fn draw_apart(config: &ModelConfig, sizes: &[usize], loss: Loss, seed: u64) -> Self {
        let draw =
            |again: u64| Problem::draw(config.clone(), sizes, loss, Relus::Decided, seed + 100 * again);
        let mut draws = (0..100).map(draw);
        draws.find(Problem::ranks_are_sure).expect("a draw without near ties")
    }

    fn ranks_are_sure(&self) -> bool {
        let ([scores, ..], [rounded, ..]) = (self.exact(), self.plain(Rounding::Nearest));
        let off = scores.iter().zip(&rounded).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
        self.batch.offsets.windows(2).all(|set| {
            let mut of_set = scores[set[0]..set[1]].to_vec();
            of_set.sort_by(f64::total_cmp);
            of_set.windows(2).all(|pair| pair[1] - pair[0] > 4.0 * off)
        })
    }

    fn training(&self) -> Option<TrainingStep> {
        (self.model.config().dropout > 0.0).then_some(TRAINING)
    }

    /// Losses of the sets, and the gradient of their mean by the scores.
    fn losses(&self, scores: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let offsets = &self.batch.offsets;
        let mut d_scores = vec![0.0; scores.len()];
        let mut scratch = Scratch::default();
        let losses: Vec<f64> = offsets
            .windows(2)
            .map(|set| {
                let rows = set[0]..set[1];
                let labels = &self.batch.labels[rows.clone()];
                self.loss.of_set(&mut scratch, &scores[rows.clone()], labels, &mut d_scores[rows])
            })
            .collect();
        d_scores.iter_mut().for_each(|d| *d /= losses.len() as f64);
        (losses, d_scores)
    }

    fn features(&self) -> Vec<f64> {
        self.batch.features.iter().map(|&value| f64::from(value)).collect()
    }

    /// Scores, losses and gradients by the processor, in f64.
    fn exact(&self) -> [Vec<f64>; 3] {
        let features = self.features();
        let Batch { offsets, ordinals, .. } = &self.batch;
        let inputs = cpu::Inputs { features: &features, offsets, ordinals };
        let mut workspace = Workspace::default();
        let mut gradients = vec![0.0; self.parameters.len()];
        let (parameters, training) = (&self.parameters, self.training());
        self.model.forward(&mut workspace, parameters, inputs, Keep::ForBackward, training);
        let scores = workspace.scores().to_vec();
        let (losses, d_scores) = self.losses(&scores);
        self.model.backward(&mut workspace, parameters, &mut gradients, inputs, &d_scores, training);
        [scores, losses, gradients]
    }

    /// The same with what a GPU stores rounded.
    fn plain(&self, rounding: Rounding) -> [Vec<f64>; 3] {
        let mut plain = Plain::new(self.model.config(), &self.parameters, rounding, self.training());
        let Batch { offsets, ordinals, .. } = &self.batch;
        let scores = plain.forward(&Inputs { features: &self.features(), offsets, ordinals });
        let (losses, d_scores) = self.losses(&scores);
        let gradients = plain.backward(&d_scores);
        [scores, losses, gradients]
    }

    fn learner(&self, gpu: Gpu) -> GpuLearner {
        let adam = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
        let objective = Objective { loss: self.loss, clip: 0.0, adam, ema: 0.0 };
        let parameters = self.parameters.iter().map(|&value| value as f32).collect();
        GpuLearner::new(gpu, self.model.clone(), Weights::new(parameters), objective).unwrap()
    }

    /// Losses and gradients by a GPU.
    fn of_gpu(&self, gpu: Gpu) -> [Vec<f64>; 2] {
        self.of_learner(&mut self.learner(gpu))
    }

    fn of_learner(&self, learner: &mut GpuLearner) -> [Vec<f64>; 2] {
        learner.begin().unwrap();
        learner.accumulate(&self.batch, self.batch.queries.len(), TRAINING).unwrap();
        let gradients = learner.gradients().unwrap();
        learner.finish(1e-3).unwrap();
        let outcome = learner.outcome(true).unwrap().unwrap();
        [outcome.losses, gradients.into_iter().map(f64::from).collect()]
    }

    /// Parameters of a layer, weight and bias, by its name: results of like size, of which the biases alone are sums
    /// that would be 0 (those of keys, and of the score).
    fn layers(&self) -> BTreeMap<String, Vec<Range<usize>>> {
        let mut layers: BTreeMap<String, Vec<Range<usize>>> = BTreeMap::new();
        for parameter in self.model.layout().parameters() {
            let name = parameter.name.trim_end_matches(".weight").trim_end_matches(".bias");
            layers.entry(name.to_owned()).or_default().push(parameter.range());
        }
        layers
    }

    /// Layers whose gradients have not the same bits.
    fn layers_that_differ(&self, [left, right]: [&[f64]; 2]) -> Vec<String> {
        let differs =
            |ranges: &[Range<usize>]| ranges.iter().any(|range| left[range.clone()] != right[range.clone()]);
        self.layers().into_iter().filter(|(_, ranges)| differs(ranges)).map(|(name, _)| name).collect()
    }

    /// Which of these losses and layers' gradients the rule does not allow, with these draws of rounding.
    fn wrong(&self, [losses, gradients]: &[Vec<f64>; 2], roundings: &[Rounding]) -> Vec<String> {
        let [_, exact_losses, exact] = self.exact();
        let plain: Vec<_> = roundings.par_iter().map(|&rounding| self.plain(rounding)).collect();
        let of_plain: Vec<&[f64]> = plain.iter().map(|[_, losses, _]| &losses[..]).collect();
        let off = deviation(losses, &of_plain, &exact_losses, to_f32);
        let mut wrong: Vec<String> =
            (!off.is_allowed()).then(|| format!("losses: {off:?}")).into_iter().collect();
        for (name, ranges) in self.layers() {
            let of = |values: &[f64]| -> Vec<f64> {
                ranges.iter().flat_map(|range| values[range.clone()].iter().copied()).collect()
            };
            let of_plain: Vec<_> = plain.iter().map(|[.., gradients]| of(gradients)).collect();
            let of_plain: Vec<&[f64]> = of_plain.iter().map(Vec::as_slice).collect();
            let off = deviation(&of(gradients), &of_plain, &of(&exact), to_f32);
            if !off.is_allowed() {
                let largest = of(&exact).iter().fold(0.0f64, |most, d| most.max(d.abs()));
                wrong.push(format!("{name}: {off:?}, largest {largest:.2e}"));
            }
        }
        wrong
    }

    /// Holds a GPU's losses, and the gradient of every layer, against the rule.
    fn check(&self, gpu: Gpu, roundings: &[Rounding]) {
        let wrong = self.wrong(&self.of_gpu(gpu), roundings);
        assert!(wrong.is_empty(), "{:?}, {:?}\n{}", self.loss, self.model.config(), wrong.join("\n"));
    }
}

const LOSSES: [Loss; 4] =
    [Loss::AttentionRank, Loss::SoftmaxCrossEntropy, Loss::LambdaLoss, Loss::ApproxNdcg];

/// Every combination of the model's switches, with losses and dropout in turn; and models that are wide, or have no block.
fn configurations() -> Vec<(ModelConfig, Loss)> {
    let mut all = Vec::new();
    for (base, inner_ffn) in [(config(), true), (imsab(), true), (imsab(), false)] {
        for base in [base.clone(), rbf(base)] {
            for qkv_relu in [false, true] {
                for at in [None, Some(OrdinalAt::Input), Some(OrdinalAt::EveryBlock)] {
                    let number = all.len();
                    let ordinal = at.and_then(|at| ordinals(1 + number % 2, at));
                    let dropout = if number % 5 == 1 { 0.3 } else { 0.0 };
                    let config = ModelConfig { qkv_relu, inner_ffn, ordinal, dropout, ..base.clone() };
                    all.push((config, LOSSES[number % LOSSES.len()]));
                }
            }
        }
    }
    let ordinal = ordinals(1, OrdinalAt::EveryBlock);
    let wide = ModelConfig { hidden_size: 128, ffn_size: 4160, num_blocks: 1, ordinal, ..imsab() };
    let none = ModelConfig { num_blocks: 0, ordinal: ordinals(1, OrdinalAt::Input), ..config() };
    all.extend([(wide, Loss::SoftmaxCrossEntropy), (none, Loss::AttentionRank)]);
    all
}

#[test]
fn gradients_are_right_in_every_configuration() {
    let mut wrong = Vec::new();
    for (number, (config, loss)) in configurations().into_iter().enumerate() {
        let seed = number as u64 + 1;
        let problem = match loss {
            Loss::LambdaLoss => Problem::draw_apart(&config, &[1, 6, 5, 2], loss, seed),
            _ => Problem::draw(config, &[1, 7, 33, 2], loss, Relus::Decided, seed),
        };
        // On one multiprocessor networks are one kernel.
        on_gpu_with((number % 2 == 0).then_some(1), |gpu| {
            let found = problem.wrong(&problem.of_gpu(gpu), &ROUNDINGS);
            wrong.extend(found.into_iter().map(|wrong| format!("{number}, {:?}: {wrong}", problem.loss)));
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Of what fuses less than everything, both encoders, with dropout.
#[test]
fn gradients_are_right_however_much_is_fused() {
    let mut wrong = Vec::new();
    for config in [config(), imsab()] {
        let config = ModelConfig { qkv_relu: true, dropout: 0.3, ..config };
        let problem = Problem::draw(config, &[1, 7, 70, 2], Loss::SoftmaxCrossEntropy, Relus::Decided, 1);
        for fuse in [Fusion::None, Fusion::Flash, Fusion::Attention] {
            // On one multiprocessor networks would be one kernel.
            on_gpu_with(Some(1), |gpu| {
                let found = problem.wrong(&problem.of_gpu(gpu.with_fusion(fuse)), &ROUNDINGS[..3]);
                wrong.extend(found.into_iter().map(|wrong| format!("{fuse:?}: {wrong}")));
            });
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Losses, and the gradients of all layers but the score's own, have the same bits by one kernel for scores, losses and gradients
/// and by three; which it is depends on the sets' sizes and on what is asked for.
#[test]
fn one_kernel_for_scores_and_losses_or_three() {
    for (sizes, pays) in [(&[1, 7, 33, 2][..], true), (&[3, 1, 2], false)] {
        let problem = Problem::draw(config(), sizes, Loss::AttentionRank, Relus::Random, 2);
        let of = |fuse, one_kernel: bool| {
            // Networks are layers on so many multiprocessors.
            on_gpu_with(Some(132), |gpu| {
                let mut learner = problem.learner(gpu.with_fusion(fuse));
                learner.gpu().start_profile();
                let found = problem.of_learner(&mut learner);
                let launched = learner.gpu().end_profile().unwrap();
                let has = |beginning| launched.iter().any(|time| time.kernel.starts_with(beginning));
                assert_eq!(has("score_losses_"), one_kernel, "{sizes:?}, {fuse:?}");
                for kernel in ["score_forward", "set_losses_", "score_backward"] {
                    assert_eq!(has(kernel), !one_kernel, "{sizes:?}, {fuse:?}: {kernel}");
                }
                found
            })
        };
        let (one, apart) = (of(Fusion::All, pays), of(Fusion::Attention, false));
        assert_eq!(one[0], apart[0], "{sizes:?}: losses");
        // Its parts are of sets, or of 128 documents.
        let differ = problem.layers_that_differ([&one[1], &apart[1]]);
        assert!(differ.iter().all(|name| name == "score"), "{sizes:?}: {differ:?}");
    }
}

/// By matrix instructions of warpgroups, both encoders and inputs, of sets that they take and that they do not.
#[test]
fn gradients_are_right_by_warpgroups() {
    let mut wrong = Vec::new();
    for (config, attends) in [(config(), true), (imsab(), false), (rbf(config()), true)] {
        let by_rbf = config.input == Input::Rbf;
        let config = ModelConfig { hidden_size: 256, num_heads: 4, ffn_size: 256, dropout: 0.3, ..config };
        let problem = Problem::draw(config, &[1, 7, 120, 2], Loss::SoftmaxCrossEntropy, Relus::Decided, 1);
        // On one multiprocessor networks are one kernel, and layers are wide.
        on_gpu_with(Some(1), |gpu| {
            let on_one = gpu.limits().multiprocessors == 1;
            // A card of another compute capability has no such kernels.
            let Ok(gpu) = gpu.with_wgmma() else { return };
            let mut learner = problem.learner(gpu);
            learner.gpu().start_profile();
            let found = problem.wrong(&problem.of_learner(&mut learner), &ROUNDINGS[..3]);
            wrong.extend(found.into_iter().map(|wrong| format!("{:?}: {wrong}", problem.loss)));
            let launched = learner.gpu().end_profile().unwrap();
            let has = |beginning| launched.iter().any(|time| time.kernel.starts_with(beginning));
            for kernel in [
                "feed_forward_wgmma_",
                "feed_forward_backward_wgmma_",
                "linear_wgmma_forward",
                "linear_wgmma_backward_input",
            ] {
                assert!(has(kernel) || !on_one, "{kernel}: {launched:?}");
            }
            assert!(has("linear_wgmma_weights") && !has("linear_wide_"), "{launched:?}");
            // The rbf input has some of its own.
            assert!(!has("layer_norm_") || by_rbf || !on_one, "{launched:?}");
            assert!(has("rbf_wgmma_forward") == by_rbf || !on_one, "{launched:?}");
            for kernel in ["rbf_wgmma_backward_weights", "rbf_wgmma_backward_centers"] {
                assert_eq!(has(kernel), by_rbf, "{kernel}: {launched:?}");
            }
            for kernel in ["attention_forward_wgmma_", "attention_backward_wgmma_"] {
                assert_eq!(has(kernel), attends, "{kernel}: {launched:?}");
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ordinals that no document has change nothing, but where they are added before every block its input is projected by a launch of
/// its own, and else by the network of the block before: the same bits.
#[test]
fn projections_have_the_same_bits_wherever_they_are_computed() {
    for (base, inner_ffn) in [(config(), true), (imsab(), true), (imsab(), false)] {
        let [by_the_network, apart] = [OrdinalAt::Input, OrdinalAt::EveryBlock].map(|at| {
            let (num_blocks, ordinal) = (3, ordinals(1, at));
            let config =
                ModelConfig { num_blocks, ordinal, inner_ffn, qkv_relu: true, dropout: 0.3, ..base.clone() };
            let mut problem = Problem::draw(config, &[1, 7, 33, 2], Loss::LambdaLoss, Relus::Random, 1);
            problem.batch.ordinals.iter_mut().for_each(|ranking| ranking.fill(-1));
            let scores = on_gpu_with(Some(1), |gpu| {
                let parameters: Vec<f32> = problem.parameters.iter().map(|&value| value as f32).collect();
                let mut scorer = GpuScorer::new(gpu, problem.model.config(), &parameters).unwrap();
                scorer.begin(&problem.batch).unwrap();
                scorer.finish().unwrap().to_vec()
            });
            on_gpu_with(Some(1), |gpu| {
                let on_one = gpu.limits().multiprocessors == 1;
                let mut learner = problem.learner(gpu);
                learner.gpu().start_profile();
                let results = problem.of_learner(&mut learner);
                let launched = learner.gpu().end_profile().unwrap();
                let layers = ["linear_forward", "linear_few_rows", "linear_wide_forward"];
                let is_layer = |kernel: &str| layers.iter().any(|name| kernel.starts_with(name));
                let of_layers = launched.iter().filter(|time| is_layer(time.kernel));
                ((results, scores), on_one.then(|| of_layers.map(|time| time.launches).sum::<usize>()))
            })
        });
        assert_eq!(by_the_network.0, apart.0, "{:?}, {inner_ffn}", base.encoder);
        // On one multiprocessor networks are one kernel, of all blocks but the last with a projection behind.
        assert_eq!(by_the_network.1.map(|launches| launches + 2), apart.1, "{:?}, {inner_ffn}", base.encoder);
    }
}

/// LayerNorms of few rows have the same bits by kernels of their own as by those of the layers behind them, and so have losses and the
/// gradients of all layers, but the score's: parts of that are of sets, or of 128 documents.
#[test]
fn layer_norms_have_the_same_bits_wherever_they_are_computed() {
    for (base, inner_ffn, at) in [
        (config(), true, OrdinalAt::Input),
        (imsab(), true, OrdinalAt::EveryBlock),
        (imsab(), false, OrdinalAt::Input),
    ] {
        let (num_blocks, ordinal) = (3, ordinals(1, at));
        let config = ModelConfig { num_blocks, ordinal, inner_ffn, qkv_relu: true, dropout: 0.3, ..base };
        let problem = Problem::draw(config, &[1, 7, 33, 2], Loss::LambdaLoss, Relus::Random, 1);
        let [joined, apart] = [Fusion::All, Fusion::Attention].map(|fuse| {
            // Networks are layers on so many multiprocessors.
            on_gpu_with(Some(132), |gpu| {
                let mut learner = problem.learner(gpu.with_fusion(fuse));
                learner.gpu().start_profile();
                let results = problem.of_learner(&mut learner);
                let launched = learner.gpu().end_profile().unwrap();
                let is_joined = launched.iter().any(|time| time.kernel.starts_with("norm_linear_"));
                assert_eq!(is_joined, fuse == Fusion::All, "{launched:?}");
                results
            })
        });
        let encoder = problem.model.config().encoder;
        assert_eq!(joined[0], apart[0], "{encoder:?}, {inner_ffn}: losses");
        let differ = problem.layers_that_differ([&joined[1], &apart[1]]);
        assert!(differ.iter().all(|name| name == "score"), "{encoder:?}, {inner_ffn}: {differ:?}");
    }
}

/// Networks by blocks of few rows have the bits of those of many, on a card that has more multiprocessors than blocks of these, but
/// for the order in which LayerNorms' parts are added up.
#[test]
fn networks_of_few_rows_have_the_bits_of_those_of_many() {
    for base in [config(), imsab()] {
        let config = ModelConfig { dropout: 0.3, ..base };
        let problem = Problem::draw(config, &[1, 7, 33, 2], Loss::SoftmaxCrossEntropy, Relus::Random, 1);
        let [by_many, by_few] = [1, 4].map(|multiprocessors| {
            on_gpu_with(Some(multiprocessors), |gpu| {
                let is_mock = gpu.limits().multiprocessors == multiprocessors;
                let mut learner = problem.learner(gpu);
                learner.gpu().start_profile();
                let results = problem.of_learner(&mut learner);
                let launched = learner.gpu().end_profile().unwrap();
                let has = |beginning| launched.iter().any(|time| time.kernel.starts_with(beginning));
                for kernel in ["feed_forward_few_rows_", "feed_forward_backward_few_rows_"] {
                    assert!(has(kernel) == (multiprocessors == 4) || !is_mock, "{kernel}: {launched:?}");
                }
                results
            })
        });
        let encoder = problem.model.config().encoder;
        assert_eq!(by_few[0], by_many[0], "{encoder:?}: losses");
        let differ = problem.layers_that_differ([&by_few[1], &by_many[1]]);
        assert!(differ.iter().all(|name| name.contains("norm")), "{encoder:?}: {differ:?}");
    }
}

/// The rule is not so wide that a layer's gradient passes that is off by a twentieth.
#[test]
fn a_wrong_gradient_is_noticed() {
    let problem = Problem::draw(config(), &[1, 7, 33, 2], Loss::SoftmaxCrossEntropy, Relus::Decided, 1);
    let [_, losses, gradients] = problem.exact();
    for (name, ranges) in problem.layers() {
        let mut wrong = gradients.clone();
        ranges.into_iter().flatten().for_each(|at| wrong[at] *= 1.05);
        let found = problem.wrong(&[losses.clone(), wrong], &ROUNDINGS);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{name}: ")), "{name}: {found:?}");
    }
}

/// The size that is measured, on the smallest, a usual and the largest set.
#[test]
fn gradients_are_right_at_full_size() {
    let config = ModelConfig { num_features: 220, encoder: Encoder::Msab, ..ModelConfig::default() };
    let ModelConfig { hidden_size, num_heads, num_blocks, ffn_size, .. } = config;
    assert_eq!([hidden_size, num_heads, num_blocks, ffn_size], [256, 8, 6, 1024]);
    let problem = Problem::draw(config, &[1, 40, 500], Loss::AttentionRank, Relus::Random, 1);
    // Few enough for networks in one kernel.
    on_gpu_with(Some(8), |gpu| problem.check(gpu, &ROUNDINGS[..2]));
}

/// Of a set that is several blocks' beside the inducing points.
#[test]
fn gradients_are_right_of_long_sets() {
    let config = ModelConfig { num_blocks: 1, dropout: 0.2, ..imsab() };
    let problem = Problem::draw(config, &[5, 1030], Loss::SoftmaxCrossEntropy, Relus::Random, 1);
    on_gpu(|gpu| problem.check(gpu, &ROUNDINGS));
}

/// The most of everything that costs memory of a block, and features that are filled up.
#[test]
fn gradients_are_right_at_the_limits() {
    let config = ModelConfig {
        num_features: 65,
        hidden_size: 512,
        num_heads: 16,
        num_blocks: 1,
        ffn_size: 64,
        num_inducing: 128,
        encoder: Encoder::Imsab,
        ..ModelConfig::default()
    };
    let problem = Problem::draw(config, &[1, 2], Loss::SoftmaxCrossEntropy, Relus::Random, 1);
    on_gpu(|gpu| problem.check(gpu, &ROUNDINGS[..3]));
}

/// What the kernels are held against is the processor's model, where it does not round.
#[test]
fn the_plain_model_is_the_model() {
    for (number, (config, loss)) in configurations().into_iter().enumerate() {
        let problem = Problem::draw(config, &[1, 4, 2], loss, Relus::Random, number as u64 + 1);
        let (exact, plain) = (problem.exact(), problem.plain(Rounding::Exact));
        for (exact, plain) in exact.iter().zip(&plain) {
            let largest = exact.iter().fold(0.0f64, |most, value| most.max(value.abs()));
            let off = exact.iter().zip(plain).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
            assert!(off <= 1e-10 * largest, "{off:e} of {largest:e}: {:?}", problem.model.config());
        }
    }
}

/// A batch's memory is what the formula says.
#[test]
fn sizes_are_as_the_formula_says() {
    use setrank::data::batch::Extent;
    use setrank::device::Arena;
    use setrank::model::gpu::{Activations, Scratch, sizes};

    on_gpu(|gpu| {
        for (config, _) in configurations() {
            for sizes in [&[1, 7, 33, 2][..], &[1; 5], &[3, 1100]] {
                let extent = Extent::of_sizes(sizes.iter().copied());
                let passes = [Keep::Nothing, Keep::ForBackward].map(|keep| (keep, Fusion::None));
                for (keep, fuse) in passes.into_iter().chain([(Keep::ForBackward, Fusion::All)]) {
                    let limits = Limits { fuse, ..*gpu.limits() };
                    let bytes = sizes::activations(&config, extent, keep, &limits);
                    let mut arena = gpu.arena("activations", bytes).unwrap();
                    Activations::new(&mut arena, &config, extent, keep, &limits).unwrap();
                    assert!(is_full(&mut arena), "{extent:?}, {keep:?}, {fuse:?}, {config:?}");
                }
                let bytes = sizes::scratch(&config, extent, gpu.limits());
                let mut arena = gpu.arena("scratch", bytes).unwrap();
                Scratch::new(&mut arena, &config, extent, gpu.limits()).unwrap();
                assert!(is_full(&mut arena), "{extent:?}, {config:?}");
            }
        }
        fn is_full(arena: &mut Arena) -> bool {
            arena.take::<f32>(1).is_err()
        }
    });
}
