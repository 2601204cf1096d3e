//! What a network's results are projected to in the same launch.

use half::bf16;

use crate::ops::check::draw::Draw;
use crate::ops::gemm::Aligned;
use crate::ops::linear::check::laid_out;
use crate::ops::linear::{self, Activation, Layout, LinearShape, Weights};
use crate::ops::values::{narrow, plain_product, wide};
use crate::rng::{Rng, Stream};

/// A layer of a network's results.
#[derive(Clone, Debug)]
pub struct Projected {
    /// How its results stand.
    pub layout: Layout,
    /// What follows it.
    pub activation: Activation,
    /// `[P, C]`
    pub weight: Vec<bf16>,
    /// `[P]`
    pub bias: Vec<f32>,
}

impl Projected {
    /// Normally distributed numbers, so that results are of about that size too.
    pub fn random(shape: LinearShape, layout: Layout, activation: Activation, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 1);
        let mut normal = |len: usize, scale: f64| -> Vec<bf16> {
            (0..len).map(|_| bf16::from_f64(rng.normal() * scale)).collect()
        };
        let weight = normal(shape.outputs * shape.inputs, 1.0 / (shape.inputs as f64).sqrt());
        Projected { layout, activation, weight, bias: narrow(&normal(shape.outputs, 1.0)) }
    }

    /// P
    pub fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// The exact results of y.
    pub(super) fn exact(&self, y: &[f64]) -> Vec<f64> {
        let (weight, bias) = (wide(&self.weight), wide(&self.bias));
        let inputs = weight.len() / bias.len();
        let mut results = vec![0.0; y.len() / inputs * bias.len()];
        let layer = Weights { weight: &weight, bias: &bias };
        linear::forward(&mut results, y, layer, self.activation, &mut Aligned::default());
        laid_out(&results, self.outputs(), self.layout)
    }

    /// Those of y in the kernel's number types, as the draw says.
    pub(super) fn plain(&self, y: &[f64], draw: Draw) -> Vec<f64> {
        let weight = narrow(&self.weight);
        let y: Vec<f32> = y.iter().map(|&value| value as f32).collect();
        let order = draw.order(weight.len() / self.outputs());
        let mut results = plain_product(&y, &weight, &order, draw.sums);
        for row in results.chunks_mut(self.outputs()) {
            for (value, bias) in row.iter_mut().zip(&self.bias) {
                *value += bias;
                *value = if self.activation == Activation::Relu { value.max(0.0) } else { *value };
            }
        }
        let rounded: Vec<f64> = results.into_iter().map(|value| bf16::from_f32(value).to_f64()).collect();
        laid_out(&rounded, self.outputs(), self.layout)
    }
}
