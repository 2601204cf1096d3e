//! The row-wise network of a block: y = LayerNorm(x + fc2(ReLU(fc1(x)))). Its inner rows are not kept: backward computes
//! them again, of the same bits, and leaves them and their gradient for those of the parameters.

use half::bf16;

use super::activations::{FfnActivations, Flow};
use super::mab::{Backward, Pass};
use crate::device::{Buffer, DeviceError};
use crate::model::layout::FfnSlots;
use crate::model::setrank::Keep;
use crate::ops::feed_forward::{FeedForwardShape, feed_forward, feed_forward_backward};
use crate::ops::layer_norm::{NormShape, layer_norm_backward, layer_norm_forward};
use crate::ops::linear::{
    Activation, InputGradient, LayerGradients, Layout, LinearShape, linear_backward_input,
    linear_backward_weights, linear_forward,
};

/// out `[rows, C]` = LayerNorm(x + fc2(ReLU(fc1(x))))
pub fn forward(
    pass: &Pass<'_>,
    out: &mut Buffer<bf16>,
    saved: &mut FfnActivations,
    slots: &FfnSlots,
    x: &Buffer<bf16>,
) -> Result<(), DeviceError> {
    let (gpu, [fc1, fc2]) = (pass.gpu, pass.ffn_shapes(x));
    let FfnActivations { output, statistics } = saved;
    let norm = pass.params.norm(&slots.norm, pass.eps)?;
    let fused = fused(fc1);
    if fused.pays(gpu.limits()) {
        let [layer1, layer2] = [pass.params.layer(&slots.fc1)?, pass.params.layer(&slots.fc2)?];
        let layers = [layer1.get(), layer2.get()];
        let kept = (pass.keep == Keep::ForBackward).then_some(output);
        return feed_forward(gpu, out, kept, statistics, x, layers, norm.get(), fused);
    }
    let inner = pass.inner_rows(slots, x)?;
    let layer = pass.params.layer(&slots.fc2)?;
    linear_forward(gpu, output, Layout::Rows, &inner, layer.get(), Activation::Identity, fc2)?;
    let shape = NormShape { rows: fc2.rows, width: fc2.outputs };
    layer_norm_forward(gpu, out, statistics, output, Some(x), norm.get(), shape)
}

/// In `flow` `[rows, C]`: gradient of [`forward`]'s output → gradient of x; parameters' gradients are added to.
pub fn backward(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    saved: &FfnActivations,
    slots: &FfnSlots,
    x: &Buffer<bf16>,
) -> Result<(), DeviceError> {
    let (gpu, [fc1, fc2]) = (pass.gpu, pass.ffn_shapes(x));
    let FfnActivations { output, statistics } = saved;
    let Flow { d, next } = flow;
    let norm = pass.params.norm(&slots.norm, pass.eps)?;
    let shape = NormShape { rows: fc2.rows, width: fc2.outputs };
    let [mut d_weight, mut d_bias] = with.gradients_at(slots.norm.ranges())?;
    layer_norm_backward(
        gpu,
        next,
        &mut d_weight,
        &mut d_bias,
        d,
        statistics,
        output,
        Some(x),
        norm.get(),
        with.sums,
        shape,
    )?;
    // `next` is the gradient of fc2's output, and of x by the residual.
    let [layer1, layer2] = [pass.params.layer(&slots.fc1)?, pass.params.layer(&slots.fc2)?];
    let fused = fused(fc1);
    let mut d_hidden = with.d_hidden.part(0..fused.inner_values())?;
    let inner = if fused.backward_pays(gpu.limits()) {
        let mut inner = pass.inner.part(0..fused.inner_values())?;
        let (layer1, weight2) = (layer1.get(), &layer2.weight);
        feed_forward_backward(gpu, d, &mut inner, &mut d_hidden, next, x, layer1, weight2, fused)?;
        inner
    } else {
        let inner = pass.inner_rows(slots, x)?;
        let masked = InputGradient::Masked(&inner);
        linear_backward_input(gpu, &mut d_hidden, next, Layout::Rows, &layer2.weight, masked, fc2)?;
        let added = InputGradient::Added(next);
        linear_backward_input(gpu, d, &d_hidden, Layout::Rows, &layer1.weight, added, fc1)?;
        inner
    };
    let [[mut weight1, mut bias1], [mut weight2, mut bias2]] =
        [with.gradients_at(slots.fc1.ranges())?, with.gradients_at(slots.fc2.ranges())?];
    let layout = Layout::Rows;
    let layer2 =
        LayerGradients { weight: &mut weight2, bias: &mut bias2, dy: next, layout, x: &inner, shape: fc2 };
    let layer1 =
        LayerGradients { weight: &mut weight1, bias: &mut bias1, dy: &d_hidden, layout, x, shape: fc1 };
    linear_backward_weights(gpu, [layer2, layer1], with.sums)
}

/// Both layers in one kernel.
fn fused(fc1: LinearShape) -> FeedForwardShape {
    FeedForwardShape { rows: fc1.rows, width: fc1.inputs, inner: fc1.outputs }
}

impl Pass<'_> {
    /// ReLU(fc1(x)) `[rows, G]`, in the place that all networks share.
    fn inner_rows(&self, slots: &FfnSlots, x: &Buffer<bf16>) -> Result<Buffer<bf16>, DeviceError> {
        let [fc1, _] = self.ffn_shapes(x);
        let mut inner = self.inner.part(0..fc1.rows * fc1.outputs)?;
        let layer = self.params.layer(&slots.fc1)?;
        linear_forward(self.gpu, &mut inner, Layout::Rows, x, layer.get(), Activation::Relu, fc1)?;
        Ok(inner)
    }

    /// Of fc1 and fc2 over the rows of x `[rows, C]`.
    fn ffn_shapes(&self, x: &Buffer<bf16>) -> [LinearShape; 2] {
        let (c, g) = (self.heads.hidden(), self.ffn_size);
        let rows = x.len() / c;
        [LinearShape { rows, inputs: c, outputs: g }, LinearShape { rows, inputs: g, outputs: c }]
    }
}
