//! [`ParamLayout`], the only table of parameters: names, shapes, places and initial values.
//!
//! Parameters, gradients and moments are one flat array each; initialisation, optimiser, checkpoint and tests
//! iterate over the table, and the model reads through the [`Slot`]s that stand in its typed tree.

use std::ops::Range;

use crate::config::{Encoder, Input, ModelConfig};
use crate::ops::Scalar;
use crate::ops::layer_norm::Norm;
use crate::ops::linear::{WeightGradients, Weights};
use crate::rng::{Rng, Stream};

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// 0.
    Zeros,
    /// 1.
    Ones,
    /// Uniform within ±√(6/(in + out)) (Glorot).
    Glorot,
    /// Uniform in [−1, 1).
    Symmetric,
    /// Normal with this standard deviation.
    Normal(f64),
}

/// One parameter of the model.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in a checkpoint.
    pub name: String,
    /// `[out, in]` of a matrix, `[size]` of a vector.
    pub shape: Vec<usize>,
    /// Where it begins in the flat array.
    pub offset: usize,
    /// How it starts.
    pub init: Init,
}

impl Parameter {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its range in the flat array.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// A place in the flat array, typed by what stands there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot(Range<usize>);

impl Slot {
    /// The values of this slot.
    pub fn of<'a, T>(&self, flat: &'a [T]) -> &'a [T] {
        &flat[self.0.clone()]
    }

    /// The values of this slot, to be written.
    pub fn of_mut<'a, T>(&self, flat: &'a mut [T]) -> &'a mut [T] {
        &mut flat[self.0.clone()]
    }

    /// Where it stands in the flat array.
    pub fn range(&self) -> Range<usize> {
        self.0.clone()
    }
}

/// Weight `[out, in]` and the bias `[out]` right behind it.
#[derive(Clone, Debug)]
pub struct LinearSlots {
    weight: Slot,
    bias: Slot,
}

impl LinearSlots {
    /// The layer's weights.
    pub fn of<'a, T>(&self, flat: &'a [T]) -> Weights<'a, T> {
        Weights { weight: self.weight.of(flat), bias: self.bias.of(flat) }
    }

    /// The layer's gradients.
    pub fn of_mut<'a, T>(&self, flat: &'a mut [T]) -> WeightGradients<'a, T> {
        let (before, bias) = flat.split_at_mut(self.bias.0.start);
        WeightGradients { weight: self.weight.of_mut(before), bias: &mut bias[..self.bias.0.len()] }
    }
}

impl LinearSlots {
    /// Where the weight `[out, in]` and the bias `[out]` stand in the flat array.
    pub fn ranges(&self) -> [Range<usize>; 2] {
        [self.weight.range(), self.bias.range()]
    }

    /// Both as one layer, where the other's weight and bias stand right behind this one's.
    pub fn joined(&self, next: &LinearSlots) -> Option<LinearSlots> {
        let run = |first: &Slot, next: &Slot| {
            (first.0.end == next.0.start).then_some(Slot(first.0.start..next.0.end))
        };
        Some(LinearSlots { weight: run(&self.weight, &next.weight)?, bias: run(&self.bias, &next.bias)? })
    }

    /// The layer's gradients, and those of a slot before it.
    pub fn of_mut_beside<'a, T>(
        &self,
        before: &Slot,
        flat: &'a mut [T],
    ) -> (WeightGradients<'a, T>, &'a mut [T]) {
        let (first, rest) = flat.split_at_mut(self.weight.0.start);
        let (weight, rest) = rest.split_at_mut(self.weight.0.len());
        let bias = &mut rest[self.bias.0.start - self.weight.0.end..][..self.bias.0.len()];
        (WeightGradients { weight, bias }, before.of_mut(first))
    }
}

/// γ `[C]` and β `[C]` right behind it.
#[derive(Clone, Debug)]
pub struct NormSlots {
    weight: Slot,
    bias: Slot,
}

impl NormSlots {
    /// Where γ and β stand in the flat array.
    pub fn ranges(&self) -> [Range<usize>; 2] {
        [self.weight.range(), self.bias.range()]
    }

    /// The norm's parameters.
    pub fn of<'a, T>(&self, flat: &'a [T], eps: f64) -> Norm<'a, T> {
        Norm { weight: self.weight.of(flat), bias: self.bias.of(flat), eps }
    }

    /// The gradients of γ and β.
    pub fn of_mut<'a, T>(&self, flat: &'a mut [T]) -> (&'a mut [T], &'a mut [T]) {
        let (before, bias) = flat.split_at_mut(self.bias.0.start);
        (self.weight.of_mut(before), &mut bias[..self.bias.0.len()])
    }
}

/// Projections to q, k and v. The three weights stand one after the other, then the three biases, so that any
/// run of them is one linear layer.
#[derive(Clone, Debug)]
pub struct ProjectionSlots {
    /// q, k, v as one layer `[3C, C]`.
    pub qkv: LinearSlots,
    /// q alone `[C, C]`.
    pub q: LinearSlots,
    /// k and v as one layer `[2C, C]`.
    pub kv: LinearSlots,
}

/// A feed-forward network and the LayerNorm behind it.
#[derive(Clone, Debug)]
pub struct FfnSlots {
    /// `[G, C]`
    pub fc1: LinearSlots,
    /// `[C, G]`
    pub fc2: LinearSlots,
    /// LayerNorm of network + residual.
    pub norm: NormSlots,
}

impl FfnSlots {
    /// The gradients of fc1 and of fc2.
    pub fn layers_mut<'a, T>(&self, flat: &'a mut [T]) -> (WeightGradients<'a, T>, WeightGradients<'a, T>) {
        let before = Slot(self.fc1.weight.0.start..self.fc1.bias.0.end);
        let (fc2, fc1) = self.fc2.of_mut_beside(&before, flat);
        let (weight, bias) = fc1.split_at_mut(self.fc1.weight.0.len());
        (WeightGradients { weight, bias }, fc2)
    }
}

/// One multi-head attention block.
#[derive(Clone, Debug)]
pub struct MabSlots {
    /// q, k and v.
    pub projections: ProjectionSlots,
    /// LayerNorm of attention + residual.
    pub norm: NormSlots,
    /// Absent in blocks whose network stands outside (`inner_ffn = false`).
    pub ffn: Option<FfnSlots>,
}

/// One block of the encoder.
#[allow(clippy::large_enum_variant)] // a handful of them, never moved about
#[derive(Clone, Debug)]
pub enum BlockSlots {
    /// MAB(X, X)
    Msab(MabSlots),
    /// MAB(X, MAB(I, X)), perhaps with one network behind.
    Imsab {
        /// I `[M, C]`
        inducing: Slot,
        /// MAB(I, X)
        induce: MabSlots,
        /// MAB(X, ·)
        attend: MabSlots,
        /// The network where `inner_ffn = false`.
        ffn: Option<FfnSlots>,
    },
}

/// The input layer.
#[derive(Clone, Debug)]
pub enum InputSlots {
    /// `[C, F]`
    Linear(LinearSlots),
    /// Radial basis functions.
    Rbf {
        /// μ `[F, K]`
        centers: Slot,
        /// `[4C, F·K]`
        fc1: LinearSlots,
        /// Over 4C.
        norm1: NormSlots,
        /// `[C, 4C]`
        fc2: LinearSlots,
        /// Over C.
        norm2: NormSlots,
    },
}

/// All parameters of a model: the flat table and the typed tree.
#[derive(Clone, Debug)]
pub struct ParamLayout {
    parameters: Vec<Parameter>,
    len: usize,
    /// The input layer.
    pub input: InputSlots,
    /// One table `[n_max, C]` a ranking.
    pub ordinals: Vec<Slot>,
    /// The encoder's blocks.
    pub blocks: Vec<BlockSlots>,
    /// `[1, C]`
    pub score: LinearSlots,
}

impl ParamLayout {
    /// The parameters of the model that `config` describes, one after the other.
    pub fn new(config: &ModelConfig) -> Self {
        Self::lay_out(config, 1, false)
    }

    /// The same parameters as kernels read them: each begins at a multiple of `alignment` values, and so many are in a
    /// row of the matrix that reads the features, behind which it is filled up. Both attention blocks of an induced one have
    /// their projections together, so that k and v of the former and q of the latter, which are of the same rows, are one layer.
    pub fn aligned(config: &ModelConfig, alignment: usize) -> Self {
        Self::lay_out(config, alignment, true)
    }

    /// `joins` says whether projections stand together where kernels compute them together.
    fn lay_out(config: &ModelConfig, alignment: usize, joins: bool) -> Self {
        let (c, g) = (config.hidden_size, config.ffn_size);
        let mut table = Table { parameters: Vec::new(), len: 0, alignment };
        let features = config.input_size();
        let filled = |width: usize| width.next_multiple_of(alignment);
        let input = match config.input {
            Input::Linear => InputSlots::Linear(table.linear("input", c, filled(features))),
            Input::Rbf => InputSlots::Rbf {
                centers: table.add("input.centers", &[features, config.rbf_centers], Init::Symmetric),
                fc1: table.linear("input.fc1", 4 * c, filled(features * config.rbf_centers)),
                norm1: table.norm("input.norm1", 4 * c),
                fc2: table.linear("input.fc2", c, 4 * c),
                norm2: table.norm("input.norm2", c),
            },
        };
        let n_max = config.ordinal.map_or(0, |ordinal| ordinal.n_max);
        let ordinals = (0..config.num_rankings())
            .map(|ranking| table.add(format!("ordinal.{ranking}.weight"), &[n_max, c], Init::Normal(0.1)))
            .collect();
        let blocks = (0..config.num_blocks)
            .map(|t| {
                let name = format!("blocks.{t}");
                match config.encoder {
                    Encoder::Msab => BlockSlots::Msab(table.mab(&name, c, Some(g), None)),
                    Encoder::Imsab => {
                        let inner = config.inner_ffn.then_some(g);
                        let points = [config.num_inducing, c];
                        let inducing = table.add(format!("{name}.inducing"), &points, Init::Normal(0.1));
                        let mut both = joins.then(|| table.projection_room(2, c));
                        BlockSlots::Imsab {
                            inducing,
                            induce: table.mab(&format!("{name}.induce"), c, inner, both.as_mut()),
                            attend: table.mab(&format!("{name}.attend"), c, inner, both.as_mut()),
                            ffn: (!config.inner_ffn).then(|| table.ffn(&name, c, g)),
                        }
                    }
                }
            })
            .collect();
        let score = table.linear("score", 1, c);
        let len = table.len.next_multiple_of(alignment);
        ParamLayout { parameters: table.parameters, len, input, ordinals, blocks, score }
    }

    /// Every parameter, in the order in which they were laid out: of [`new`](Self::new) that of the flat array.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Number of values of all parameters, and of what is filled up between them.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no parameter.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Initial parameters under `seed`; each parameter draws from a sequence of its own.
    pub fn init<T: Scalar>(&self, seed: u64) -> Vec<T> {
        let mut flat = vec![T::ZERO; self.len];
        for (index, parameter) in self.parameters.iter().enumerate() {
            let mut rng = Rng::new(seed, Stream::Init, index as u64);
            let limit = (6.0 / parameter.shape.iter().sum::<usize>() as f64).sqrt();
            for value in &mut flat[parameter.range()] {
                *value = T::from_f64(match parameter.init {
                    Init::Zeros => 0.0,
                    Init::Ones => 1.0,
                    Init::Glorot => limit * (2.0 * rng.uniform() - 1.0),
                    Init::Symmetric => 2.0 * rng.uniform() - 1.0,
                    Init::Normal(std) => std * rng.normal(),
                });
            }
        }
        flat
    }
}

/// The table while it is being laid out.
struct Table {
    parameters: Vec<Parameter>,
    len: usize,
    alignment: usize,
}

/// Where weights and biases of projections go that stand together, each behind the last one of its kind.
struct ProjectionRoom {
    weights: usize,
    biases: usize,
}

impl Table {
    fn add(&mut self, name: impl Into<String>, shape: &[usize], init: Init) -> Slot {
        let mut end = self.len;
        let slot = self.add_behind(&mut end, name, shape, init);
        self.len = end;
        slot
    }

    /// Behind `end`, which is that of this parameter then.
    fn add_behind(&mut self, end: &mut usize, name: impl Into<String>, shape: &[usize], init: Init) -> Slot {
        let offset = end.next_multiple_of(self.alignment);
        let parameter = Parameter { name: name.into(), shape: shape.to_vec(), offset, init };
        let slot = Slot(parameter.range());
        *end = slot.0.end;
        self.parameters.push(parameter);
        slot
    }

    /// Room for q, k and v of so many attention blocks.
    fn projection_room(&mut self, blocks: usize, c: usize) -> ProjectionRoom {
        let mut take = |len: usize| {
            let begin = self.len.next_multiple_of(self.alignment);
            self.len = begin + 3 * blocks * len.next_multiple_of(self.alignment);
            begin
        };
        ProjectionRoom { weights: take(c * c), biases: take(c) }
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> LinearSlots {
        LinearSlots {
            weight: self.add(format!("{name}.weight"), &[outputs, inputs], Init::Glorot),
            bias: self.add(format!("{name}.bias"), &[outputs], Init::Zeros),
        }
    }

    fn norm(&mut self, name: &str, width: usize) -> NormSlots {
        NormSlots {
            weight: self.add(format!("{name}.weight"), &[width], Init::Ones),
            bias: self.add(format!("{name}.bias"), &[width], Init::Zeros),
        }
    }

    /// In `room`, or in some of its own.
    fn projections(&mut self, name: &str, c: usize, room: Option<&mut ProjectionRoom>) -> ProjectionSlots {
        let mut own;
        let ProjectionRoom { weights, biases } = match room {
            Some(room) => room,
            None => {
                own = self.projection_room(1, c);
                &mut own
            }
        };
        let [q, k, v] = ["q", "k", "v"]
            .map(|part| self.add_behind(weights, format!("{name}.{part}.weight"), &[c, c], Init::Glorot));
        let [q_bias, k_bias, v_bias] = ["q", "k", "v"]
            .map(|part| self.add_behind(biases, format!("{name}.{part}.bias"), &[c], Init::Zeros));
        let run = |first: &Slot, last: &Slot| Slot(first.0.start..last.0.end);
        ProjectionSlots {
            qkv: LinearSlots { weight: run(&q, &v), bias: run(&q_bias, &v_bias) },
            kv: LinearSlots { weight: run(&k, &v), bias: run(&k_bias, &v_bias) },
            q: LinearSlots { weight: q, bias: q_bias },
        }
    }

    fn ffn(&mut self, name: &str, c: usize, g: usize) -> FfnSlots {
        FfnSlots {
            fc1: self.linear(&format!("{name}.ffn.fc1"), g, c),
            fc2: self.linear(&format!("{name}.ffn.fc2"), c, g),
            norm: self.norm(&format!("{name}.norm2"), c),
        }
    }

    fn mab(
        &mut self,
        name: &str,
        c: usize,
        ffn: Option<usize>,
        projections: Option<&mut ProjectionRoom>,
    ) -> MabSlots {
        MabSlots {
            projections: self.projections(&format!("{name}.attention"), c, projections),
            norm: self.norm(&format!("{name}.norm1"), c),
            ffn: ffn.map(|g| self.ffn(name, c, g)),
        }
    }
}
