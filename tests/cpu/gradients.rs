//! Gradients in f64 against central differences: of the losses, and of the whole model in every configuration.
//!
//! Rule: |analytic − numeric| ≤ 1e-6·max(|analytic|, |numeric|, 1e-3·‖g‖∞). Where a ReLU's input lies within the
//! step, the difference quotients of different steps disagree with each other: such a draw is drawn again. Quotients
//! that agree with each other but not with the gradient are a failure.

use rayon::prelude::*;
use setrank::config::{Encoder, Input, ModelConfig, OrdinalAt, OrdinalConfig, OrdinalStart};
use setrank::data::normalize::{Kind, Normalize};
use setrank::model::setrank::{Inputs, Keep, SetRank, TrainingStep, Workspace};
use setrank::ops::loss::{Loss, Scratch};
use setrank::rng::{Rng, Stream};

const LOSSES: [Loss; 2] = [Loss::AttentionRank, Loss::SoftmaxCrossEntropy];

/// Steps of the difference quotients (fourth order).
const STEPS: [f64; 3] = [1e-4, 1e-3, 1e-5];

/// Set sizes of the batches: one document, and a few.
const SIZES: [usize; 4] = [1, 4, 2, 7];

#[derive(Debug)]
enum Mismatch {
    Wrong(String),
    Kink,
}

struct Problem {
    model: SetRank,
    params: Vec<f64>,
    features: Vec<f64>,
    offsets: Vec<usize>,
    ordinals: Vec<Vec<i32>>,
    labels: Vec<f32>,
    loss: Loss,
    training: Option<TrainingStep>,
}

impl Problem {
    /// A batch and parameters away from their trivial initial values.
    fn draw(config: &ModelConfig, loss: Loss, draw: u64) -> Self {
        let model = SetRank::new(config.clone()).unwrap();
        let mut rng = Rng::new(draw, Stream::Synth, 0);
        let mut params: Vec<f64> = model.layout().init(draw);
        params.iter_mut().for_each(|p| *p += 0.1 * rng.normal());
        let documents: usize = SIZES.iter().sum();
        let features = (0..documents * config.input_size()).map(|_| rng.uniform()).collect();
        let offsets = SIZES.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        });
        let ordinals = (0..config.num_rankings())
            .map(|_| (0..documents).map(|_| rng.below(9) as i32 - 1).collect())
            .collect();
        // One set without a relevant document, some documents unjudged.
        let mut labels: Vec<f32> = (0..documents).map(|_| rng.below(4) as f32 - 1.0).collect();
        labels[1..5].fill(0.0);
        labels[7..10].copy_from_slice(&[2.0, 0.0, 1.0]);
        Problem {
            model,
            params,
            features,
            offsets: std::iter::once(0).chain(offsets).collect(),
            ordinals,
            labels,
            loss,
            training: (config.dropout > 0.0).then_some(TrainingStep { seed: draw, step: 3 }),
        }
    }

    fn inputs(&self) -> Inputs<'_, f64> {
        Inputs { features: &self.features, offsets: &self.offsets, ordinals: &self.ordinals }
    }

    fn loss_and_score_gradient(&self, scores: &[f64]) -> (f64, Vec<f64>) {
        let mut d_scores = vec![0.0; scores.len()];
        let mut total = 0.0;
        let mut scratch = Scratch::default();
        for set in self.offsets.windows(2) {
            let rows = set[0]..set[1];
            let (scores, labels) = (&scores[rows.clone()], &self.labels[rows.clone()]);
            total += self.loss.of_set(&mut scratch, scores, labels, &mut d_scores[rows]);
        }
        (total, d_scores)
    }

    fn loss_at(&self, params: &[f64], workspace: &mut Workspace<f64>) -> f64 {
        self.model.forward(workspace, params, self.inputs(), Keep::Nothing, self.training);
        self.loss_and_score_gradient(workspace.scores()).0
    }

    fn gradient(&self) -> Vec<f64> {
        let mut workspace = Workspace::default();
        let mut gradient = vec![0.0; self.params.len()];
        self.model.forward(&mut workspace, &self.params, self.inputs(), Keep::ForBackward, self.training);
        let (_, d_scores) = self.loss_and_score_gradient(workspace.scores());
        self.model.backward(
            &mut workspace,
            &self.params,
            &mut gradient,
            self.inputs(),
            &d_scores,
            self.training,
        );
        gradient
    }

    /// Holds `gradient` against difference quotients.
    fn check(&self, gradient: &[f64]) -> Result<(), Mismatch> {
        let norm = gradient.iter().fold(0.0f64, |max, g| max.max(g.abs()));
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1e-3 * norm);
        let mut workspace = Workspace::default();
        let mut params = self.params.clone();
        for parameter in self.model.layout().parameters() {
            // A few values of each parameter: a walk through it, and its last.
            let range = parameter.range();
            for index in range.clone().step_by(range.len().div_ceil(12)).chain([range.end - 1]) {
                // Fourth-order central difference.
                let mut numeric = |h: f64| {
                    let [up, down, up2, down2] = [h, -h, 2.0 * h, -2.0 * h].map(|step| {
                        params[index] = self.params[index] + step;
                        self.loss_at(&params, &mut workspace)
                    });
                    params[index] = self.params[index];
                    (8.0 * (up - down) - (up2 - down2)) / (12.0 * h)
                };
                let analytic = gradient[index];
                let mut numerics = Vec::new();
                for h in STEPS {
                    numerics.push(numeric(h));
                    if close(analytic, numerics[numerics.len() - 1]) {
                        break;
                    }
                    if numerics.len() == STEPS.len() {
                        let agree = numerics.windows(2).any(|pair| close(pair[0], pair[1]));
                        return Err(if agree {
                            let place = index - range.start;
                            Mismatch::Wrong(format!(
                                "{}[{place}]: {analytic:e}, not {numerics:?}",
                                parameter.name
                            ))
                        } else {
                            Mismatch::Kink
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

fn small(encoder: Encoder, input: Input) -> ModelConfig {
    let features = 3;
    let normalize = Normalize::fit(Kind::MinMax, &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], features, false).unwrap();
    ModelConfig {
        num_features: features,
        hidden_size: 8,
        num_heads: 2,
        num_blocks: 2,
        ffn_size: 12,
        num_inducing: 3,
        rbf_centers: 4,
        encoder,
        input,
        normalize,
        ..ModelConfig::default()
    }
}

fn assert_gradients(name: &str, config: &ModelConfig) {
    for loss in LOSSES {
        let outcome = (1..20).find_map(|draw| {
            let problem = Problem::draw(config, loss, draw);
            match problem.check(&problem.gradient()) {
                Err(Mismatch::Kink) => None,
                Err(Mismatch::Wrong(what)) => Some(Err(what)),
                Ok(()) => Some(Ok(())),
            }
        });
        match outcome {
            Some(Ok(())) => {}
            Some(Err(what)) => panic!("{name}, {loss:?}: {what}"),
            None => panic!("{name}, {loss:?}: every draw met a kink"),
        }
    }
}

/// Every switch in every position, but those of inducing points where there are none.
fn configurations() -> Vec<(String, ModelConfig)> {
    let mut all = Vec::new();
    for (encoder, inner_ffn) in [(Encoder::Msab, true), (Encoder::Imsab, true), (Encoder::Imsab, false)] {
        for input in [Input::Linear, Input::Rbf] {
            for qkv_relu in [false, true] {
                for at in [None, Some(OrdinalAt::Input), Some(OrdinalAt::EveryBlock)] {
                    let ordinal =
                        at.map(|at| OrdinalConfig { rankings: 2, n_max: 8, at, start: OrdinalStart::Zero });
                    let config = ModelConfig { qkv_relu, inner_ffn, ordinal, ..small(encoder, input) };
                    let name = format!("{encoder:?} {input:?} relu {qkv_relu} inner_ffn {inner_ffn} {at:?}");
                    all.push((name, config));
                }
            }
        }
    }
    all
}

#[test]
fn whole_model_in_every_configuration() {
    // From threads of the pool: from another one each of a small model's many loops would wait for one to wake.
    configurations().into_par_iter().for_each(|(name, config)| assert_gradients(&name, &config));
}

#[test]
fn with_dropout() {
    [Encoder::Msab, Encoder::Imsab].into_par_iter().for_each(|encoder| {
        let config = ModelConfig { dropout: 0.3, ..small(encoder, Input::Linear) };
        assert_gradients(&format!("{encoder:?} with dropout"), &config);
    });
}

#[test]
fn a_wrong_gradient_is_noticed() {
    let problem = Problem::draw(&small(Encoder::Imsab, Input::Linear), Loss::SoftmaxCrossEntropy, 1);
    let mut gradient = problem.gradient();
    problem.check(&gradient).unwrap();
    let norm = gradient.iter().fold(0.0f64, |max, g| max.max(g.abs()));
    let last = gradient.len() - 2;
    gradient[last] += 1e-5 * norm.max(gradient[last].abs());
    assert!(matches!(problem.check(&gradient), Err(Mismatch::Wrong(_))));
}
