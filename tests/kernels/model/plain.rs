//! The model on a tape: as src/model computes it, with what a GPU stores rounded.

use std::collections::HashMap;
use std::ops::Range;

use setrank::config::{Encoder, Input, ModelConfig, OrdinalAt};
use setrank::model::ParamLayout;
use setrank::model::setrank::TrainingStep;
use setrank::ops::dropout::Dropout;

use super::tape::{Id, Rounding, Sets, Tape};

/// A batch, as the model reads it.
pub struct Inputs<'a> {
    pub features: &'a [f64],
    pub offsets: &'a [usize],
    pub ordinals: &'a [Vec<i32>],
}

/// A model on a tape.
pub struct Plain<'a> {
    pub tape: Tape,
    config: &'a ModelConfig,
    parameters: HashMap<String, Id>,
    training: Option<TrainingStep>,
    decides: bool,
}

impl<'a> Plain<'a> {
    /// The model of `config` with `parameters`.
    pub fn new(
        config: &'a ModelConfig,
        parameters: &[f64],
        rounding: Rounding,
        training: Option<TrainingStep>,
    ) -> Self {
        let mut tape = Tape::new(rounding);
        let layout = ParamLayout::new(config);
        let parameters = layout
            .parameters()
            .iter()
            .map(|parameter| {
                let columns = parameter.shape.last().copied().unwrap();
                (parameter.name.clone(), tape.given(columns, parameters[parameter.range()].to_vec()))
            })
            .collect();
        Plain { tape, config, parameters, training, decides: false }
    }

    /// The same, but that its forward pass changes biases: no number in front of a ReLU is near 0.
    pub fn deciding(self) -> Self {
        Plain { decides: true, ..self }
    }

    /// All parameters, one after the other.
    pub fn parameters(&self) -> Vec<f64> {
        self.of_parameters(|id| self.tape.value(id))
    }

    fn parameter(&self, name: &str) -> Id {
        *self.parameters.get(name).unwrap_or_else(|| panic!("there is no parameter {name}"))
    }

    fn linear(&mut self, name: &str, x: Id, relu: bool) -> Id {
        let [weight, bias] = ["weight", "bias"].map(|part| self.parameter(&format!("{name}.{part}")));
        if relu && self.decides {
            self.tape.decide(x, weight, bias);
        }
        self.tape.linear(x, weight, bias, relu, true)
    }

    fn norm(&mut self, name: &str, x: Id, added: Option<Id>) -> Id {
        let [weight, bias] = ["weight", "bias"].map(|part| self.parameter(&format!("{name}.{part}")));
        self.tape.norm(x, added, weight, bias, self.config.layer_norm_eps)
    }

    /// Scores `[N]`.
    pub fn forward(&mut self, inputs: &Inputs<'_>) -> Vec<f64> {
        let config = self.config;
        let mut x = match config.input {
            Input::Linear => {
                let features = self.tape.given(config.input_size(), inputs.features.to_vec());
                self.linear("input", features, true)
            }
            Input::Rbf => {
                let phi = self.tape.phi(inputs.features, self.parameter("input.centers"));
                let hidden = self.linear("input.fc1", phi, true);
                let normalized = self.norm("input.norm1", hidden, None);
                let output = self.linear("input.fc2", normalized, false);
                self.norm("input.norm2", output, None)
            }
        };
        let at = |place| config.ordinal.is_some_and(|ordinal| ordinal.at == place);
        if at(OrdinalAt::Input) {
            x = self.embed(x, inputs);
        }
        for block in 0..config.num_blocks {
            if at(OrdinalAt::EveryBlock) {
                x = self.embed(x, inputs);
            }
            x = self.block(block, x, inputs.offsets);
        }
        let [weight, bias] = ["score.weight", "score.bias"].map(|name| self.parameter(name));
        let scores = self.tape.linear(x, weight, bias, false, false);
        self.tape.value(scores).to_vec()
    }

    /// Gradients of all parameters, one after the other.
    pub fn backward(&mut self, d_scores: &[f64]) -> Vec<f64> {
        self.tape.backward(d_scores);
        self.of_parameters(|id| self.tape.gradient(id))
    }

    fn of_parameters<'b>(&self, values: impl Fn(Id) -> &'b [f64]) -> Vec<f64> {
        let layout = ParamLayout::new(self.config);
        let names = layout.parameters().iter().map(|parameter| &parameter.name);
        names.flat_map(|name| values(self.parameter(name)).to_vec()).collect()
    }

    fn embed(&mut self, x: Id, inputs: &Inputs<'_>) -> Id {
        let tables: Vec<Id> = (0..self.config.num_rankings())
            .map(|ranking| self.parameter(&format!("ordinal.{ranking}.weight")))
            .collect();
        self.tape.embed(x, &tables, inputs.ordinals)
    }

    fn block(&mut self, block: usize, x: Id, offsets: &[usize]) -> Id {
        let config = self.config;
        let name = format!("blocks.{block}");
        let documents: Vec<Range<usize>> = offsets.windows(2).map(|set| set[0]..set[1]).collect();
        if config.encoder == Encoder::Msab {
            let sets = Sets { queries: documents.clone(), keys: documents.clone(), outputs: documents };
            return self.mab(&name, true, [x, x], sets, 2 * block + 1);
        }
        let points = config.num_inducing;
        let of_sets = |first: usize| (first * points)..(first + 1) * points;
        let induced: Vec<Range<usize>> = (0..documents.len()).map(of_sets).collect();
        let inducing = self.parameter(&format!("{name}.inducing"));
        let sets = Sets {
            queries: vec![0..points; documents.len()],
            keys: documents.clone(),
            outputs: induced.clone(),
        };
        let inner = config.inner_ffn;
        let t = self.mab(&format!("{name}.induce"), inner, [inducing, x], sets, 2 * block);
        let sets = Sets { queries: documents.clone(), keys: induced, outputs: documents };
        let out = self.mab(&format!("{name}.attend"), inner, [x, t], sets, 2 * block + 1);
        if inner { out } else { self.network(&name, out) }
    }

    fn mab(&mut self, name: &str, ffn: bool, [a, z]: [Id; 2], sets: Sets, attention: usize) -> Id {
        let relu = self.config.qkv_relu;
        let [q, k, v] = [("q", a), ("k", z), ("v", z)]
            .map(|(part, rows)| self.linear(&format!("{name}.attention.{part}"), rows, relu));
        let dropout =
            self.training.and_then(|step| Dropout::new(self.config.dropout, step.seed, step.step, attention));
        let heads = self.tape.attention([q, k, v], self.config.num_heads, sets, dropout);
        let attended = self.norm(&format!("{name}.norm1"), heads, Some(a));
        if ffn { self.network(name, attended) } else { attended }
    }

    fn network(&mut self, name: &str, x: Id) -> Id {
        let hidden = self.linear(&format!("{name}.ffn.fc1"), x, true);
        let output = self.linear(&format!("{name}.ffn.fc2"), hidden, false);
        self.norm(&format!("{name}.norm2"), output, Some(x))
    }
}
