//! The row-wise network of a block: y = LayerNorm(x + fc2(ReLU(fc1(x)))). Its inner rows are not kept: backward computes
//! them again, of the same bits, and leaves them and their gradient for those of the parameters.

use half::bf16;

use super::activations::FfnActivations;
use super::flow::Flow;
use super::mab::{Backward, Pass, Projection};
use crate::device::{Buffer, DeviceError};
use crate::model::layout::FfnSlots;
use crate::model::setrank::Keep;
use crate::ops::feed_forward::{self, FeedForwardShape, Kept, feed_forward, feed_forward_backward};
use crate::ops::layer_norm::{DeviceNorm, NormBackward, NormShape, layer_norm_backward};
use crate::ops::linear::{
    Activation, InputGradient, LayerGradients, Layout, LinearShape, linear_backward_input, linear_forward,
};
use crate::ops::norm_linear::{NormForward, norm_linear_forward};

/// The LayerNorm before a network, whose rows this takes.
#[derive(Debug)]
pub struct NormBefore<'a> {
    /// `[rows, C]`
    pub x: &'a Buffer<bf16>,
    /// `[period, C]`
    pub added: &'a Buffer<bf16>,
    /// γ, β and eps.
    pub norm: DeviceNorm<'a>,
    /// `[rows, 2]`, for backward.
    pub statistics: &'a mut Buffer<f32>,
}

/// out `[rows, C]` = LayerNorm(r + fc2(ReLU(fc1(r)))) of the rows r of the LayerNorm `before`; and `then` of out, by the same
/// kernel where it can.
pub fn forward(
    pass: &Pass<'_>,
    out: &mut Buffer<bf16>,
    saved: &mut FfnActivations,
    slots: &FfnSlots,
    before: NormBefore<'_>,
    then: Option<Projection>,
) -> Result<(), DeviceError> {
    let NormBefore { x, added, norm: norm_before, statistics: of_before } = before;
    let FfnActivations { attended, output, statistics } = saved;
    let (gpu, [fc1, fc2]) = (pass.gpu, pass.ffn_shapes(x));
    let norm = pass.params.norm(&slots.norm, pass.eps)?;
    let [layer1, layer2] = [pass.params.layer(&slots.fc1)?, pass.params.layer(&slots.fc2)?];
    let fused = fused(fc1);
    if let Some(blocks) = fused.of_forward(gpu.limits()) {
        let (layers, norms) = ([layer1.get(), layer2.get()], [norm_before, norm.get()]);
        let kept = (pass.keep == Keep::ForBackward).then_some(Kept { attended, output });
        let statistics = [of_before, statistics];
        let of_slots = |Projection { slots, out }| Ok::<_, DeviceError>((pass.params.layer(&slots)?, out));
        let mut then = then.map(of_slots).transpose()?;
        let projection = then.as_mut().map(|(layer, out)| {
            let (layer, activation, layout) = (layer.get(), pass.activation(), pass.layout());
            feed_forward::Projection { layer, activation, layout, out }
        });
        return feed_forward(gpu, blocks, out, kept, statistics, x, added, layers, norms, projection, fused);
    }
    let mut inner = pass.inner.part(0..fused.inner_values())?;
    let before = NormForward { rows: attended, statistics: of_before, x, added, norm: norm_before };
    norm_linear_forward(gpu, before, &mut inner, Layout::Rows, layer1.get(), Activation::Relu, fc1)?;
    linear_forward(gpu, output, Layout::Rows, &inner, layer2.get(), Activation::Identity, fc2)?;
    let behind = NormForward { rows: out, statistics, x: output, added: attended, norm: norm.get() };
    pass.normalize(behind, then)
}

/// In `flow` `[rows, C]`: gradient of [`forward`]'s output → gradient of what the LayerNorm `before` it is of.
/// Parameters' gradients are added to, but for the layers', which are given back: what they are of stays where it is until
/// `flow` turns, or another network's inner rows take the place of these, from value `first_inner` on.
pub fn backward(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    saved: &FfnActivations,
    slots: &FfnSlots,
    before: &NormBackward<'_>,
    first_inner: usize,
) -> Result<[LayerGradients; 2], DeviceError> {
    let FfnActivations { attended: x, output, statistics } = saved;
    let (gpu, [fc1, fc2]) = (pass.gpu, pass.ffn_shapes(x));
    let behind = pass.norm_backward(with, &slots.norm, output, Some(x), statistics)?;
    let [layer1, layer2] = [pass.params.layer(&slots.fc1)?, pass.params.layer(&slots.fc2)?];
    let (of_fc1, weight2) = (layer1.get(), &layer2.weight);
    let fused = fused(fc1);
    let place = first_inner..first_inner + fused.inner_values();
    let mut d_hidden = with.d_hidden.part(place.clone())?;
    let mut inner = pass.inner.part(place)?;
    if let Some(blocks) = fused.of_backward(gpu.limits()) {
        let of_inner = [&mut inner, &mut d_hidden];
        let sums = &mut *with.sums;
        flow.replace(|gradient, dy| {
            feed_forward_backward(
                gpu, blocks, gradient, dy, of_inner, before, &behind, of_fc1, weight2, sums, fused,
            )
        })?;
    } else {
        flow.settle(gpu)?;
        let Flow { d, next, .. } = flow;
        let shape = NormShape { rows: fc2.rows, width: fc2.outputs };
        // Then it is the gradient of fc2's results, and of x by the residual.
        layer_norm_backward(gpu, d, &behind, with.sums, shape)?;
        linear_forward(gpu, &mut inner, Layout::Rows, x, of_fc1, Activation::Relu, fc1)?;
        let masked = InputGradient::masked(&inner);
        linear_backward_input(gpu, &mut d_hidden, d, Layout::Rows, weight2, masked, fc2)?;
        let added = InputGradient::added(d);
        linear_backward_input(gpu, next, &d_hidden, Layout::Rows, &layer1.weight, added, fc1)?;
        layer_norm_backward(gpu, next, before, with.sums, shape)?;
        flow.turn();
    }
    let (layout, dy) = (Layout::Rows, flow.next.alias());
    Ok([
        with.layer(&slots.fc2, dy, layout, inner, fc2)?,
        with.layer(&slots.fc1, d_hidden, layout, x.alias(), fc1)?,
    ])
}

/// Both layers in one kernel.
fn fused(fc1: LinearShape) -> FeedForwardShape {
    FeedForwardShape { rows: fc1.rows, width: fc1.inputs, inner: fc1.outputs }
}

impl Pass<'_> {
    /// Of fc1 and fc2 over the rows of x `[rows, C]`.
    fn ffn_shapes(&self, x: &Buffer<bf16>) -> [LinearShape; 2] {
        let (c, g) = (self.heads.hidden(), self.ffn_size);
        let rows = x.len() / c;
        [LinearShape { rows, inputs: c, outputs: g }, LinearShape { rows, inputs: g, outputs: c }]
    }
}
