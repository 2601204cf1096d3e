//! The input layer: features `[N, F]` → hidden rows `[N, C]`.

use super::layout::InputSlots;
use super::mab::Scratch;
use super::setrank::Keep;
use crate::ops::Scalar;
use crate::ops::gemm::{Finish, Write};
use crate::ops::layer_norm::{self, Saved};
use crate::ops::linear::{self, Activation, WeightJob};
use crate::ops::rbf::{self, Rbf};
use crate::ops::rows::{RowsMut, for_tiles};

/// What forward keeps for backward.
#[derive(Clone, Debug, Default)]
pub struct EmbeddingActivations<T> {
    /// ReLU's output: `[N, C]` of the linear input, `[N, 4C]` of the rbf input.
    hidden: Vec<T>,
    norm1: Saved<T>,
    /// `[N, 4C]`
    normalized: Vec<T>,
    norm2: Saved<T>,
    d_hidden: Vec<T>,
    sums: Vec<T>,
}

impl<T: Scalar> EmbeddingActivations<T> {
    /// Bytes held that grow with the batch (sums of tiles are left out).
    pub fn bytes(&self) -> usize {
        let own = [&self.hidden, &self.normalized, &self.d_hidden];
        own.map(|buffer| size_of_val(&**buffer)).iter().sum::<usize>()
            + self.norm1.bytes()
            + self.norm2.bytes()
    }
}

/// The input layer in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<'a, T> {
    /// Its parameters' places.
    pub slots: &'a InputSlots,
    /// All parameters.
    pub params: &'a [T],
    /// `F`
    pub num_features: usize,
    /// LayerNorm's eps.
    pub eps: f64,
}

impl<T: Scalar> Embedding<'_, T> {
    /// x `[N, C]` = input layer(features `[N, F]`)
    pub fn forward(
        &self,
        x: &mut Vec<T>,
        saved: &mut EmbeddingActivations<T>,
        scratch: &mut Scratch<T>,
        features: &[T],
        keep: Keep,
    ) {
        let rows = features.len() / self.num_features;
        let keep = keep == Keep::ForBackward;
        match self.slots {
            InputSlots::Linear(slots) => {
                let layer = slots.of(self.params);
                x.resize(rows * layer.outputs(), T::ZERO);
                let [weight] = scratch.packed.forward([slots], self.params);
                linear::product(x, Write::Set, features, weight, layer.finish(Activation::Relu));
                saved.hidden.clear();
                if keep {
                    // The ordinals are added to x: where ReLU cut is to be known without them.
                    saved.hidden.extend_from_slice(x);
                }
            }
            InputSlots::Rbf { centers, fc1, norm1, fc2, norm2 } => {
                scratch.threads.prepare();
                let (layer1, layer2) = (fc1.of(self.params), fc2.of(self.params));
                let rbf =
                    Rbf { centers: centers.of(self.params), layer: layer1, features: self.num_features };
                saved.hidden.resize(rows * layer1.outputs(), T::ZERO);
                let [weight] = scratch.packed.forward([fc1], self.params);
                rbf::forward(&mut saved.hidden, features, &rbf, weight, Activation::Relu, &scratch.threads);
                saved.normalized.clear();
                saved.normalized.extend_from_slice(&saved.hidden);
                layer_norm::forward(
                    &mut saved.normalized,
                    None,
                    &mut saved.norm1,
                    norm1.of(self.params, self.eps),
                );
                x.resize(rows * layer2.outputs(), T::ZERO);
                let [weight] = scratch.packed.forward([fc2], self.params);
                linear::product(
                    x,
                    Write::Set,
                    &saved.normalized,
                    weight,
                    layer2.finish(Activation::Identity),
                );
                layer_norm::forward(x, None, &mut saved.norm2, norm2.of(self.params, self.eps));
            }
        }
    }

    /// Gradients of the layer's parameters, added to, from dx `[N, C]`, which is overwritten.
    pub fn backward(
        &self,
        dx: &mut [T],
        saved: &mut EmbeddingActivations<T>,
        scratch: &mut Scratch<T>,
        gradients: &mut [T],
        features: &[T],
    ) {
        scratch.threads.prepare();
        let EmbeddingActivations { hidden, norm1: saved1, normalized, norm2: saved2, d_hidden, sums } = saved;
        match self.slots {
            InputSlots::Linear(slots) => {
                relu_backward(dx, hidden);
                let job = WeightJob { gradients: slots.of_mut(gradients), dy: dx, x: features };
                linear::backward_weights([job], &scratch.threads);
            }
            InputSlots::Rbf { centers, fc1, norm1, fc2, norm2 } => {
                let (layer1, layer2) = (fc1.of(self.params), fc2.of(self.params));
                layer_norm::backward(
                    dx,
                    saved2,
                    sums,
                    norm2.of(self.params, self.eps),
                    norm2.of_mut(gradients),
                );
                let job = WeightJob { gradients: fc2.of_mut(gradients), dy: dx, x: normalized };
                linear::backward_weights([job], &scratch.threads);
                d_hidden.resize(hidden.len(), T::ZERO);
                let weight = layer2.pack_backward(&mut scratch.packed.places[0]);
                linear::product(d_hidden, Write::Set, dx, weight, Finish::Plain);
                layer_norm::backward(
                    d_hidden,
                    saved1,
                    sums,
                    norm1.of(self.params, self.eps),
                    norm1.of_mut(gradients),
                );
                relu_backward(d_hidden, hidden);
                let rbf =
                    Rbf { centers: centers.of(self.params), layer: layer1, features: self.num_features };
                let (layer, d_centers) = fc1.of_mut_beside(centers, gradients);
                rbf::backward(layer, d_centers, d_hidden, features, &rbf, &scratch.threads);
            }
        }
    }
}

/// ReLU's derivative, on all threads.
fn relu_backward<T: Scalar>(dy: &mut [T], y: &[T]) {
    const PIECE: usize = 1 << 14;
    for_tiles(0..dy.len(), PIECE, RowsMut::new(dy, 1), &|piece, dy| {
        linear::relu_backward(dy.data, &y[piece])
    });
}
