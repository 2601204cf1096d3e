//! The multi-head attention block MAB(A, Z); backward mirrors forward.

use std::ops::Range;

use half::bf16;

use super::activations::{Flow, MabActivations, PointScratch};
use super::network;
use super::parameters::Parameters;
use crate::device::{Buffer, DeviceError, Gpu};
use crate::model::layout::{LinearSlots, MabSlots};
use crate::model::setrank::Keep;
use crate::ops::attention::{
    AttentionScratch, DeviceAttention, Heads, Qkv, QkvGradients, attention_backward, attention_forward,
};
use crate::ops::dropout::Dropout;
use crate::ops::layer_norm::{NormShape, layer_norm_backward, layer_norm_forward};
use crate::ops::linear::{
    Activation, InputGradient, LayerGradients, Layout, LinearShape, linear_backward_input,
    linear_backward_weights, linear_forward,
};
use crate::ops::partial_sums::PendingSums;
use crate::ops::row_sums::sum_repeats;

/// What every block of a model shares in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass<'a> {
    pub gpu: &'a Gpu,
    /// All parameters.
    pub params: &'a Parameters,
    /// Heads and their width.
    pub heads: Heads,
    /// G
    pub ffn_size: usize,
    /// Whether q, k and v pass through a ReLU.
    pub qkv_relu: bool,
    /// LayerNorm's eps.
    pub eps: f64,
    /// Inner rows of a network `[rows, G]`: any rows, whichever network is computed.
    pub inner: &'a Buffer<bf16>,
    /// Of attention: any values, whichever is computed.
    pub attention: &'a AttentionScratch,
    /// What is kept.
    pub keep: Keep,
}

/// What every block's backward writes to.
#[derive(Debug)]
pub(super) struct Backward<'a> {
    /// Of all parameters, added to.
    pub gradients: &'a Buffer<f32>,
    /// Of parameters' gradients.
    pub sums: &'a mut PendingSums,
    pub d_hidden: &'a mut Buffer<bf16>,
    pub d_queries: &'a mut Buffer<bf16>,
    pub delta: &'a mut Buffer<f32>,
}

impl Backward<'_> {
    /// The gradients of a layer's or norm's two parameters.
    pub fn gradients_at(&self, ranges: [Range<usize>; 2]) -> Result<[Buffer<f32>; 2], DeviceError> {
        let [first, second] = ranges;
        Ok([self.gradients.part(first)?, self.gradients.part(second)?])
    }
}

/// One attention block's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// A: `[Nq, C]`, or the `M` rows that every set has.
    pub a: &'a Buffer<bf16>,
    /// Z `[Nk, C]`; `None` within a set, where it is A.
    pub z: Option<&'a Buffer<bf16>>,
    /// Which rows belong together.
    pub attention: &'a DeviceAttention,
    /// Dropout of the weights.
    pub dropout: Option<Dropout>,
}

impl<'a> Call<'a> {
    /// Z, where it is not A.
    fn z(&self) -> Result<&'a Buffer<bf16>, DeviceError> {
        self.z.ok_or_else(|| DeviceError::Shapes("attention over other rows needs them".into()))
    }
}

impl Pass<'_> {
    /// A projection of x to q, k, v, or some of them.
    fn projection(&self, slots: &LinearSlots, x: &Buffer<bf16>) -> LinearShape {
        let (c, [_, bias]) = (self.heads.hidden(), slots.ranges());
        LinearShape { rows: x.len() / c, inputs: c, outputs: bias.len() }
    }

    /// Where attention reads q, k and v.
    fn layout(&self) -> Layout {
        Layout::Heads { width: self.heads.width }
    }

    fn project(
        &self,
        out: &mut Buffer<bf16>,
        slots: &LinearSlots,
        x: &Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        let activation = if self.qkv_relu { Activation::Relu } else { Activation::Identity };
        let layer = self.params.layer(slots)?;
        linear_forward(self.gpu, out, self.layout(), x, layer.get(), activation, self.projection(slots, x))
    }

    /// Weights' gradients of a projection of x, whose output's gradient is dy; and dx.
    fn projection_backward(
        &self,
        with: &mut Backward<'_>,
        dx: &mut Buffer<bf16>,
        finish: InputGradient<'_>,
        slots: &LinearSlots,
        dy: &Buffer<bf16>,
        x: &Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        let (gpu, layout, shape) = (self.gpu, self.layout(), self.projection(slots, x));
        let [mut d_weight, mut d_bias] = with.gradients_at(slots.ranges())?;
        let (weight, bias) = (&mut d_weight, &mut d_bias);
        let gradients = LayerGradients { weight, bias, dy, layout, x, shape };
        linear_backward_weights(gpu, [gradients], with.sums)?;
        let layer = self.params.layer(slots)?;
        linear_backward_input(gpu, dx, dy, layout, &layer.weight, finish, shape)
    }
}

fn qkv_of<'a>(queries: &'a Buffer<bf16>, keys_values: Option<&'a Buffer<bf16>>) -> Qkv<'a> {
    match keys_values {
        None => Qkv::Together(queries),
        Some(kv) => Qkv::Apart { q: queries, kv },
    }
}

/// out `[Nq, C]` = MAB(A, Z)
pub(super) fn forward(
    pass: &Pass<'_>,
    out: &mut Buffer<bf16>,
    saved: &mut MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
) -> Result<(), DeviceError> {
    let projections = &slots.projections;
    match (call.z, &mut saved.keys_values) {
        (Some(z), Some(keys_values)) => {
            pass.project(&mut saved.queries, &projections.q, call.a)?;
            pass.project(keys_values, &projections.kv, z)?;
        }
        _ => pass.project(&mut saved.queries, &projections.qkv, call.a)?,
    }
    let MabActivations { queries, keys_values, heads, log_sum_exp, statistics, ffn } = saved;
    let qkv = qkv_of(queries, keys_values.as_ref());
    let dropout = call.dropout.as_ref();
    attention_forward(pass.gpu, call.attention, pass.attention, qkv, heads, log_sum_exp, dropout)?;
    let norm = pass.params.norm(&slots.norm, pass.eps)?;
    let shape = pass.norm_shape(heads);
    match (&slots.ffn, ffn) {
        (Some(slots), Some(ffn)) => {
            let attended = &mut ffn.attended;
            layer_norm_forward(pass.gpu, attended, statistics, heads, Some(call.a), norm.get(), shape)?;
            network::forward(pass, out, &mut ffn.network, slots, attended)
        }
        _ => layer_norm_forward(pass.gpu, out, statistics, heads, Some(call.a), norm.get(), shape),
    }
}

/// Backward of [`forward`] from the gradient in `flow` to that of the heads' results and, by the residual, of A, in
/// `flow.next`; parameters' gradients are added to.
fn rows_backward(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    saved: &MabActivations,
    slots: &MabSlots,
    a: &Buffer<bf16>,
) -> Result<(), DeviceError> {
    if let (Some(slots), Some(ffn)) = (&slots.ffn, &saved.ffn) {
        network::backward(pass, with, flow, &ffn.network, slots, &ffn.attended)?;
    }
    let Flow { d, next } = flow;
    let MabActivations { heads, statistics, .. } = saved;
    let norm = pass.params.norm(&slots.norm, pass.eps)?;
    let [mut d_weight, mut d_bias] = with.gradients_at(slots.norm.ranges())?;
    let shape = pass.norm_shape(heads);
    layer_norm_backward(
        pass.gpu,
        next,
        &mut d_weight,
        &mut d_bias,
        d,
        statistics,
        heads,
        Some(a),
        norm.get(),
        with.sums,
        shape,
    )
}

/// Backward of MAB(X, X): in `flow` gradient of the output → gradient of X.
pub(super) fn backward_within(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    saved: &MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
) -> Result<(), DeviceError> {
    rows_backward(pass, with, flow, saved, slots, call.a)?;
    let mut d_qkv = with.d_queries.part(0..saved.queries.len())?;
    let gradients = QkvGradients::Together(&mut d_qkv);
    pass.attention_backward(with, gradients, &flow.next, saved, call)?;
    let Flow { d, next } = flow;
    let added = InputGradient::Added(next);
    pass.projection_backward(with, d, added, &slots.projections.qkv, &d_qkv, call.a)
}

/// Backward of MAB(X, T) of documents X and induced rows T: in `flow` gradient of the output → gradient of X; in
/// `points.flow.d` gradient of T.
pub(super) fn backward_attend(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    points: &mut PointScratch,
    saved: &MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
) -> Result<(), DeviceError> {
    let induced = call.z()?;
    rows_backward(pass, with, flow, saved, slots, call.a)?;
    let mut d_q = with.d_queries.part(0..flow.d.len())?;
    let mut d_kv = points.d_keys_values.part(0..2 * induced.len())?;
    let gradients = QkvGradients::Apart { q: &mut d_q, kv: &mut d_kv };
    pass.attention_backward(with, gradients, &flow.next, saved, call)?;
    let (projections, d_induced) = (&slots.projections, &mut points.flow.d);
    pass.projection_backward(with, d_induced, InputGradient::Plain, &projections.kv, &d_kv, induced)?;
    let Flow { d, next } = flow;
    pass.projection_backward(with, d, InputGradient::Added(next), &projections.q, &d_q, call.a)
}

/// Backward of MAB(I, X) of shared points I and documents X, from the gradient in `points.flow.d`: adds X's gradient to
/// `flow`; the points' is in `points.d_points` through q, in `points.flow.next` by the residual of each set.
pub(super) fn backward_induce(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    points: &mut PointScratch,
    saved: &MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
) -> Result<(), DeviceError> {
    let x = call.z()?;
    rows_backward(pass, with, &mut points.flow, saved, slots, call.a)?;
    let PointScratch { flow: of_points, d_keys_values, d_shared, d_points } = points;
    let mut d_q = with.d_queries.part(0..of_points.d.len())?;
    let mut d_kv = d_keys_values.part(0..2 * x.len())?;
    let gradients = QkvGradients::Apart { q: &mut d_q, kv: &mut d_kv };
    pass.attention_backward(with, gradients, &of_points.next, saved, call)?;
    let projections = &slots.projections;
    let Flow { d, next } = flow;
    pass.projection_backward(with, next, InputGradient::Added(d), &projections.kv, &d_kv, x)?;
    flow.turn();
    // Every set asked the same queries.
    let sets = of_points.d.len() / call.a.len();
    sum_repeats(pass.gpu, d_shared, &d_q, pass.heads.count, sets)?;
    pass.projection_backward(with, d_points, InputGradient::Plain, &projections.q, d_shared, call.a)
}

impl Pass<'_> {
    /// Of LayerNorm over rows `[rows, C]`.
    fn norm_shape(&self, rows: &Buffer<bf16>) -> NormShape {
        let width = self.heads.hidden();
        NormShape { rows: rows.len() / width, width }
    }

    fn attention_backward(
        &self,
        with: &mut Backward<'_>,
        gradients: QkvGradients<'_, Buffer<bf16>>,
        d_heads: &Buffer<bf16>,
        saved: &MabActivations,
        call: Call<'_>,
    ) -> Result<(), DeviceError> {
        let MabActivations { queries, keys_values, heads, log_sum_exp, .. } = saved;
        let mut delta = with.delta.part(0..log_sum_exp.len())?;
        attention_backward(
            self.gpu,
            call.attention,
            self.attention,
            gradients,
            d_heads,
            qkv_of(queries, keys_values.as_ref()),
            heads,
            log_sum_exp,
            &mut delta,
            self.qkv_relu,
            call.dropout.as_ref(),
        )
    }
}
