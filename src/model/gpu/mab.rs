//! The multi-head attention block MAB(A, Z); backward mirrors forward.

use std::ops::Range;

use half::bf16;

use super::activations::{MabActivations, PointScratch};
use super::flow::Flow;
use super::network::{self, NormBefore};
use super::parameters::Parameters;
use crate::device::{Buffer, DeviceError, Gpu};
use crate::model::layout::{FfnSlots, LinearSlots, MabSlots, NormSlots};
use crate::model::setrank::Keep;
use crate::ops::attention::{
    AttentionScratch, DeviceAttention, Heads, Qkv, QkvGradients, attention_backward, attention_forward,
};
use crate::ops::dropout::Dropout;
use crate::ops::layer_norm::{NormBackward, NormShape, layer_norm_backward};
use crate::ops::linear::{
    Activation, LayerGradients, Layout, LinearShape, PendingInput, linear_backward_weights, linear_forward,
};
use crate::ops::norm_linear::{NormForward, norm_linear_forward};
use crate::ops::partial_sums::PendingSums;
use crate::ops::row_sums::{Repeats, sum_repeats};

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
    pub d_projected: &'a mut Buffer<bf16>,
    pub delta: &'a mut Buffer<f32>,
}

impl Backward<'_> {
    /// The gradients of a layer's or norm's two parameters.
    pub fn gradients_at(&self, ranges: [Range<usize>; 2]) -> Result<[Buffer<f32>; 2], DeviceError> {
        let [first, second] = ranges;
        Ok([self.gradients.part(first)?, self.gradients.part(second)?])
    }

    /// The gradients of a layer of x, of whose output dy is the gradient.
    pub fn layer(
        &self,
        slots: &LinearSlots,
        dy: Buffer<bf16>,
        layout: Layout,
        x: Buffer<bf16>,
        shape: LinearShape,
    ) -> Result<LayerGradients, DeviceError> {
        Ok(LayerGradients { gradients: self.gradients_at(slots.ranges())?, dy, layout, x, shape })
    }
}

/// What attention is to take of rows that a pass computes: q, k and v of them, or some.
#[derive(Debug)]
pub(super) struct Projection {
    /// Its layer.
    pub slots: LinearSlots,
    /// `[outputs / D, rows, D]`
    pub out: Buffer<bf16>,
}

/// One attention block's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// A: `[Nq, C]`, or the `M` rows that every set has.
    pub a: &'a Buffer<bf16>,
    /// Z `[Nk, C]`, which backward reads; `None` within a set, where it is A.
    pub z: Option<&'a Buffer<bf16>>,
    /// Which rows belong together.
    pub attention: &'a DeviceAttention,
    /// The network behind, where there is one.
    pub ffn: Option<&'a FfnSlots>,
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
    pub fn layout(&self) -> Layout {
        Layout::Heads { width: self.heads.width }
    }

    /// What follows a projection.
    pub fn activation(&self) -> Activation {
        if self.qkv_relu { Activation::Relu } else { Activation::Identity }
    }

    /// A projection of x, by a launch of its own.
    pub fn project(&self, projection: Projection, x: &Buffer<bf16>) -> Result<(), DeviceError> {
        let Projection { slots, mut out } = projection;
        let (layer, shape) = (self.params.layer(&slots)?, self.projection(&slots, x));
        linear_forward(self.gpu, &mut out, self.layout(), x, layer.get(), self.activation(), shape)
    }

    /// LayerNorm, and `then` of what it gives.
    pub fn normalize(&self, norm: NormForward<'_>, then: Option<Projection>) -> Result<(), DeviceError> {
        let Some(Projection { slots, mut out }) = then else {
            let shape = self.norm_shape(norm.x);
            return norm.compute(self.gpu, shape);
        };
        let (layer, shape) = (self.params.layer(&slots)?, self.projection(&slots, norm.x));
        norm_linear_forward(self.gpu, norm, &mut out, self.layout(), layer.get(), self.activation(), shape)
    }

    /// The gradients of a projection of x, of whose output dy is the gradient.
    pub fn projection_gradients(
        &self,
        with: &Backward<'_>,
        slots: &LinearSlots,
        dy: &Buffer<bf16>,
        x: &Buffer<bf16>,
    ) -> Result<LayerGradients, DeviceError> {
        with.layer(slots, dy.alias(), self.layout(), x.alias(), self.projection(slots, x))
    }

    /// The gradient of x by way of a projection of it, of whose output dy is the gradient.
    pub fn projection_input(
        &self,
        slots: &LinearSlots,
        dy: &Buffer<bf16>,
        x: &Buffer<bf16>,
    ) -> Result<PendingInput, DeviceError> {
        let layer = self.params.layer(slots)?;
        let (dy, layout, shape) = (dy.alias(), self.layout(), self.projection(slots, x));
        Ok(PendingInput { dy, layout, weight: layer.weight, shape })
    }

    /// What backward of a LayerNorm of x, to which something may be added, takes.
    pub fn norm_backward<'a>(
        &self,
        with: &Backward<'_>,
        slots: &NormSlots,
        x: &'a Buffer<bf16>,
        added: Option<&'a Buffer<bf16>>,
        statistics: &'a Buffer<f32>,
    ) -> Result<NormBackward<'a>, DeviceError> {
        let ([weight, _], gradients) = (slots.ranges(), with.gradients_at(slots.ranges())?);
        let weight = self.params.values.part(weight)?;
        Ok(NormBackward { x, added, statistics, weight, gradients })
    }
}

fn qkv_of<'a>(queries: &'a Buffer<bf16>, keys_values: Option<&'a Buffer<bf16>>) -> Qkv<'a> {
    match keys_values {
        None => Qkv::Together(queries),
        Some(kv) => Qkv::Apart { q: queries, kv },
    }
}

/// out `[Nq, C]` = MAB(A, Z) of q, k and v, which are in `saved`; and `then` of out.
pub(super) fn forward(
    pass: &Pass<'_>,
    out: &mut Buffer<bf16>,
    saved: &mut MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
    then: Option<Projection>,
) -> Result<(), DeviceError> {
    let MabActivations { queries, keys_values, heads, log_sum_exp, statistics, ffn } = saved;
    let qkv = qkv_of(queries, keys_values.as_ref());
    let dropout = call.dropout.as_ref();
    attention_forward(pass.gpu, call.attention, pass.attention, qkv, heads, log_sum_exp, dropout)?;
    let norm = pass.params.norm(&slots.norm, pass.eps)?;
    let (x, added, norm) = (&*heads, call.a, norm.get());
    if let (Some(slots), Some(ffn)) = (call.ffn, ffn) {
        let before = NormBefore { x, added, norm, statistics };
        return network::forward(pass, out, ffn, slots, before, then);
    }
    pass.normalize(NormForward { rows: out, statistics, x, added, norm }, then)
}

/// Backward of [`forward`] from the gradient in `flow` to that of the heads' results and, by the residual, of A. Gives back what
/// the network's layers' gradients are of, as [`network::backward`] does, with the network's inner rows from `first_inner` on.
fn rows_backward(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    saved: &MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
    first_inner: usize,
) -> Result<Vec<LayerGradients>, DeviceError> {
    let MabActivations { heads, statistics, ffn, .. } = saved;
    let norm = pass.norm_backward(with, &slots.norm, heads, Some(call.a), statistics)?;
    if let (Some(slots), Some(ffn)) = (call.ffn, ffn) {
        return Ok(network::backward(pass, with, flow, ffn, slots, &norm, first_inner)?.into());
    }
    flow.settle(pass.gpu)?;
    layer_norm_backward(pass.gpu, &mut flow.d, &norm, with.sums, pass.norm_shape(heads))?;
    Ok(Vec::new())
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
    let mut layers = rows_backward(pass, with, flow, saved, slots, call, 0)?;
    let mut d_qkv = with.d_projected.part(0..saved.queries.len())?;
    let gradients = QkvGradients::Together(&mut d_qkv);
    pass.attention_backward(with, gradients, &flow.d, saved, call)?;
    let qkv = &slots.projections.qkv;
    layers.push(pass.projection_gradients(with, qkv, &d_qkv, call.a)?);
    linear_backward_weights(pass.gpu, &layers, with.sums)?;
    flow.add(pass.gpu, pass.projection_input(qkv, &d_qkv, call.a)?)
}

/// Backward of MAB(X, T) of documents X and induced rows T: in `flow` gradient of the output → that of X by the residual, and
/// by way of q the last part of `with.d_projected`; in `points.flow` gradient of T. Gives back what the gradients of layers are of,
/// but for that of q.
pub(super) fn backward_attend(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    flow: &mut Flow,
    points: &mut PointScratch,
    saved: &MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
) -> Result<Vec<LayerGradients>, DeviceError> {
    let induced = call.z()?;
    let mut layers = rows_backward(pass, with, flow, saved, slots, call, 0)?;
    // Documents' k and v are another attention's.
    let mut d_q = with.d_projected.part(2 * call.a.len()..3 * call.a.len())?;
    let mut d_kv = points.d_projected.part(0..2 * induced.len())?;
    let gradients = QkvGradients::Apart { q: &mut d_q, kv: &mut d_kv };
    pass.attention_backward(with, gradients, &flow.d, saved, call)?;
    let kv = &slots.projections.kv;
    layers.push(pass.projection_gradients(with, kv, &d_kv, induced)?);
    points.flow.set(pass.projection_input(kv, &d_kv, induced)?);
    Ok(layers)
}

/// The gradients of what all sets share.
#[derive(Debug)]
pub(super) struct SharedGradients {
    /// Of the points' q `[H, M, D]`, which is set.
    pub queries: Buffer<bf16>,
    /// Of the points `[M, C]`, which is added to.
    pub points: Buffer<f32>,
}

/// Backward of MAB(I, X) of shared points I and documents X, from the gradient in `points.flow`: X's is, by way of k and v, the
/// first parts of `with.d_projected`; the points', by the residual of each set, is added to `shared`, and by way of q left there.
/// Gives back what the gradients of layers are of, but for that of k and v; inner rows stand behind those of X.
pub(super) fn backward_induce(
    pass: &Pass<'_>,
    with: &mut Backward<'_>,
    points: &mut PointScratch,
    shared: SharedGradients,
    saved: &MabActivations,
    slots: &MabSlots,
    call: Call<'_>,
) -> Result<Vec<LayerGradients>, DeviceError> {
    let x = call.z()?;
    let behind = x.len() / pass.heads.hidden() * pass.ffn_size;
    let mut layers = rows_backward(pass, with, &mut points.flow, saved, slots, call, behind)?;
    let PointScratch { flow: of_points, d_projected, .. } = points;
    let rows = of_points.d.len();
    let mut d_q = d_projected.part(2 * rows..3 * rows)?;
    let mut d_kv = with.d_projected.part(0..2 * x.len())?;
    let gradients = QkvGradients::Apart { q: &mut d_q, kv: &mut d_kv };
    pass.attention_backward(with, gradients, &of_points.d, saved, call)?;
    // Every set asked the same queries, of the same rows.
    let SharedGradients { mut queries, points: mut d_points } = shared;
    let (groups, repeats) = (pass.heads.count, rows / call.a.len());
    let of_sets = Repeats { x: &d_q, y: &of_points.d, groups, repeats };
    sum_repeats(pass.gpu, &mut queries, &mut d_points, of_sets)?;
    let q = &slots.projections.q;
    layers.push(pass.projection_gradients(with, q, &queries, call.a)?);
    Ok(layers)
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
