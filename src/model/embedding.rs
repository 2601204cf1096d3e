//! The input layer: features `[N, F]` → hidden rows `[N, C]`.

use super::layout::InputSlots;
use crate::ops::layer_norm::{self, Saved};
use crate::ops::linear::{self, Activation};
use crate::ops::{Scalar, gemm::Write, rbf};

/// What forward keeps for backward.
#[derive(Clone, Debug, Default)]
pub struct EmbeddingActivations<T> {
    /// ReLU's output: `[N, C]` of the linear input, `[N, 4C]` of the rbf input.
    hidden: Vec<T>,
    norm1: Saved<T>,
    /// `[N, 4C]`
    normalized: Vec<T>,
    norm2: Saved<T>,
}

/// x `[N, C]` = input layer(features `[N, F]`)
pub fn forward<T: Scalar>(
    x: &mut Vec<T>,
    saved: &mut EmbeddingActivations<T>,
    features: &[T],
    num_features: usize,
    slots: &InputSlots,
    params: &[T],
    eps: f64,
) {
    let rows = features.len() / num_features;
    match slots {
        InputSlots::Linear(slots) => {
            let layer = slots.of(params);
            x.resize(rows * layer.bias.len(), T::ZERO);
            linear::forward(x, features, layer, Activation::Relu);
            saved.hidden.clear();
            saved.hidden.extend_from_slice(x);
        }
        InputSlots::Rbf { centers, fc1, norm1, fc2, norm2 } => {
            let centers = centers.of(params);
            let shape = rbf::Shape { features: num_features, centers: centers.len() / num_features };
            let (layer1, layer2) = (fc1.of(params), fc2.of(params));
            saved.hidden.resize(rows * layer1.bias.len(), T::ZERO);
            rbf::forward(&mut saved.hidden, features, centers, layer1, shape);
            saved.hidden.iter_mut().for_each(|h| *h = linear::relu(*h));
            saved.normalized.resize(saved.hidden.len(), T::ZERO);
            layer_norm::forward(
                &mut saved.normalized,
                &mut saved.norm1,
                &saved.hidden,
                None,
                norm1.of(params, eps),
            );
            let mut projected = vec![T::ZERO; rows * layer2.bias.len()];
            linear::forward(&mut projected, &saved.normalized, layer2, Activation::Identity);
            x.resize(projected.len(), T::ZERO);
            layer_norm::forward(x, &mut saved.norm2, &projected, None, norm2.of(params, eps));
        }
    }
}

#[allow(clippy::too_many_arguments)]
/// Gradients of the layer's parameters, added to, from dx `[N, C]`, which is overwritten.
pub fn backward<T: Scalar>(
    dx: &mut [T],
    saved: &EmbeddingActivations<T>,
    features: &[T],
    num_features: usize,
    slots: &InputSlots,
    params: &[T],
    gradients: &mut [T],
    eps: f64,
) {
    match slots {
        InputSlots::Linear(slots) => {
            linear::relu_backward(dx, &saved.hidden);
            linear::backward_weights(slots.of_mut(gradients), dx, features);
        }
        InputSlots::Rbf { centers, fc1, norm1, fc2, norm2 } => {
            let (d_weight, d_bias) = norm2.of_mut(gradients);
            layer_norm::backward(dx, &saved.norm2, norm2.of(params, eps), d_weight, d_bias);
            linear::backward_weights(fc2.of_mut(gradients), dx, &saved.normalized);
            let mut d_hidden = vec![T::ZERO; saved.hidden.len()];
            linear::backward_input(&mut d_hidden, Write::Set, dx, fc2.of(params));
            let (d_weight, d_bias) = norm1.of_mut(gradients);
            layer_norm::backward(&mut d_hidden, &saved.norm1, norm1.of(params, eps), d_weight, d_bias);
            linear::relu_backward(&mut d_hidden, &saved.hidden);
            let shape =
                rbf::Shape { features: num_features, centers: centers.of(params).len() / num_features };
            let mut d_centers = vec![T::ZERO; centers.of(params).len()];
            rbf::backward(
                fc1.of_mut(gradients),
                &mut d_centers,
                &d_hidden,
                features,
                centers.of(params),
                fc1.of(params),
                shape,
            );
            centers.of_mut(gradients).iter_mut().zip(d_centers).for_each(|(sum, d)| *sum += d);
        }
    }
}
