//! The input layer: features `[N, F]` → hidden rows `[N, C]`.

use half::bf16;

use super::activations::EmbeddingActivations;
use super::flow::Flow;
use super::mab::{Backward, Pass};
use super::sizes;
use crate::config::ModelConfig;
use crate::device::{Buffer, DeviceError};
use crate::model::layout::{InputSlots, LinearSlots};
use crate::ops::layer_norm::{NormShape, layer_norm_backward, layer_norm_forward};
use crate::ops::linear::{
    Activation, InputGradient, Layout, LinearShape, linear_backward_input, linear_backward_weights,
    linear_forward,
};
use crate::ops::rbf::{DeviceRbf, rbf_backward, rbf_forward};
use crate::ops::row_sums::relu_backward;

/// The input layer in one pass.
#[derive(Debug)]
pub(super) struct Embedding<'a> {
    pub pass: Pass<'a>,
    /// Its parameters' places.
    pub slots: &'a InputSlots,
    pub config: &'a ModelConfig,
    /// Features `[N, F]`, F filled up.
    pub features: &'a Buffer<bf16>,
    /// N
    pub rows: usize,
}

impl Embedding<'_> {
    /// x `[N, C]` = input layer(features)
    pub fn forward(&self, x: &mut Buffer<bf16>, saved: &mut EmbeddingActivations) -> Result<(), DeviceError> {
        let Pass { gpu, params, eps, .. } = self.pass;
        match (self.slots, saved) {
            (InputSlots::Linear(slots), EmbeddingActivations::Linear { before_ordinals }) => {
                let out = before_ordinals.as_mut().unwrap_or(x);
                let layer = params.layer(slots)?;
                let (act, shape) = (Activation::Relu, self.linear());
                linear_forward(gpu, out, Layout::Rows, self.features, layer.get(), act, shape)
            }
            (
                InputSlots::Rbf { centers, fc1, norm1, fc2, norm2 },
                EmbeddingActivations::Rbf { hidden, normalized, output, statistics: [first, second] },
            ) => {
                let centers = params.values.part(centers.range())?;
                let layer = params.layer(fc1)?;
                let rbf = DeviceRbf { centers: &centers, layer: layer.get() };
                let shape = sizes::rbf(self.config, self.rows);
                rbf_forward(gpu, hidden, self.features, rbf, Activation::Relu, shape)?;
                let [wide, narrow] = self.norms();
                let norm = params.norm(norm1, eps)?;
                layer_norm_forward(gpu, normalized, first, hidden, None, norm.get(), wide)?;
                let (layer, act) = (params.layer(fc2)?, Activation::Identity);
                linear_forward(gpu, output, Layout::Rows, normalized, layer.get(), act, self.second())?;
                let norm = params.norm(norm2, eps)?;
                layer_norm_forward(gpu, x, second, output, None, norm.get(), narrow)
            }
            _ => Err(other_input()),
        }
    }

    /// Gradients of the layer's parameters, added to, from `flow` `[N, C]`, which is overwritten. `x` is forward's
    /// result where no ordinals were added to it.
    pub fn backward(
        &self,
        with: &mut Backward<'_>,
        flow: &mut Flow,
        saved: &EmbeddingActivations,
        x: &Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        let Pass { gpu, params, .. } = self.pass;
        match (self.slots, saved) {
            (InputSlots::Linear(slots), EmbeddingActivations::Linear { before_ordinals }) => {
                flow.settle_masked(gpu, before_ordinals.as_ref().unwrap_or(x))?;
                self.weights(with, slots, &flow.d, self.features, self.linear())
            }
            (
                InputSlots::Rbf { centers, fc1, norm1, fc2, norm2 },
                EmbeddingActivations::Rbf { hidden, normalized, output, statistics: [first, second] },
            ) => {
                let [wide, narrow] = self.norms();
                let norm = self.pass.norm_backward(with, norm2, output, None, second)?;
                flow.settle(gpu)?;
                let d = &mut flow.d;
                layer_norm_backward(gpu, d, &norm, with.sums, narrow)?;
                self.weights(with, fc2, d, normalized, self.second())?;
                let mut d_rows = with.d_hidden.part(0..hidden.len())?;
                let layer = params.layer(fc2)?;
                let (layout, plain) = (Layout::Rows, InputGradient::PLAIN);
                linear_backward_input(gpu, &mut d_rows, d, layout, &layer.weight, plain, self.second())?;
                let norm = self.pass.norm_backward(with, norm1, hidden, None, first)?;
                layer_norm_backward(gpu, &mut d_rows, &norm, with.sums, wide)?;
                relu_backward(gpu, &mut d_rows, hidden)?;
                let centers = centers.range();
                let mut d_centers = with.gradients.part(centers.clone())?;
                let [mut d_weight, mut d_bias] = with.gradients_at(fc1.ranges())?;
                let (centers, layer) = (params.values.part(centers)?, params.layer(fc1)?);
                let rbf = DeviceRbf { centers: &centers, layer: layer.get() };
                rbf_backward(
                    gpu,
                    &mut d_centers,
                    &mut d_weight,
                    &mut d_bias,
                    &d_rows,
                    self.features,
                    rbf,
                    with.sums,
                    sizes::rbf(self.config, self.rows),
                )
            }
            _ => Err(other_input()),
        }
    }

    fn weights(
        &self,
        with: &mut Backward<'_>,
        slots: &LinearSlots,
        dy: &Buffer<bf16>,
        x: &Buffer<bf16>,
        shape: LinearShape,
    ) -> Result<(), DeviceError> {
        let layer = with.layer(slots, dy.alias(), Layout::Rows, x.alias(), shape)?;
        linear_backward_weights(self.pass.gpu, &[layer], with.sums)
    }

    /// Of the linear input.
    fn linear(&self) -> LinearShape {
        let (inputs, outputs) = (sizes::input_width(self.config), self.config.hidden_size);
        LinearShape { rows: self.rows, inputs, outputs }
    }

    /// Of the rbf input's second layer.
    fn second(&self) -> LinearShape {
        let c = self.config.hidden_size;
        LinearShape { rows: self.rows, inputs: 4 * c, outputs: c }
    }

    /// Of the rbf input's LayerNorms.
    fn norms(&self) -> [NormShape; 2] {
        let c = self.config.hidden_size;
        [4 * c, c].map(|width| NormShape { rows: self.rows, width })
    }
}

fn other_input() -> DeviceError {
    DeviceError::Shapes("the buffers were made for a model with another input layer".into())
}
