//! One block of the encoder: MSAB(X) = MAB(X, X), or IMSAB(X) = MAB(X, MAB(I, X)).

use half::bf16;

use super::activations::{BlockActivations, PointScratch};
use super::batch::Attentions;
use super::flow::Flow;
use super::mab::{self, Backward, Call, Pass, Projection, SharedGradients};
use super::parameters::Layer;
use crate::device::{Buffer, DeviceError};
use crate::model::layout::{BlockSlots, LinearSlots, MabSlots};
use crate::ops::dropout::Dropout;
use crate::ops::linear::{
    LayerForward, LayerInput, LinearShape, linear_backward_input_layers, linear_backward_weights,
    linear_forward_layers,
};

/// One block's part of a pass.
#[derive(Debug)]
pub(super) struct Block<'a> {
    /// What all blocks share.
    pub pass: Pass<'a>,
    /// Its number.
    pub number: usize,
    /// Its parameters' places.
    pub slots: &'a BlockSlots,
    /// The batch's sets.
    pub sets: &'a Attentions,
    /// Dropout of its attentions, `[induce, attend]`.
    pub dropout: [Option<Dropout>; 2],
}

/// What a block's attention takes of its input.
pub(super) fn projection(slots: &BlockSlots, saved: &BlockActivations) -> Result<Projection, DeviceError> {
    let slots = match slots {
        BlockSlots::Msab(slots) => slots.projections.qkv.clone(),
        BlockSlots::Imsab { induce, attend, .. } => of_documents(induce, attend)?,
    };
    Ok(Projection { slots, out: saved.projected.alias() })
}

/// Documents' k and v, which points ask, and their q, which asks points, as one layer.
fn of_documents(induce: &MabSlots, attend: &MabSlots) -> Result<LinearSlots, DeviceError> {
    let joined = induce.projections.kv.joined(&attend.projections.q);
    joined.ok_or_else(|| DeviceError::Shapes("the table of parameters is not that of a GPU".into()))
}

/// q of the inducing points of all blocks, which depend on parameters alone: one launch of few rows each.
pub(super) fn project_points(
    pass: &Pass<'_>,
    blocks: &[BlockSlots],
    out: &[Buffer<bf16>],
) -> Result<(), DeviceError> {
    let mut layers = Vec::with_capacity(out.len());
    for (slots, out) in blocks.iter().zip(out) {
        let BlockSlots::Imsab { inducing, induce, .. } = slots else { return Err(other_encoder()) };
        let Layer { weight, bias } = pass.params.layer(&induce.projections.q)?;
        layers.push(LayerForward { y: out.alias(), x: pass.params.rounded(inducing)?, weight, bias });
    }
    let Some(first) = layers.first() else { return Ok(()) };
    let (c, outputs) = (pass.heads.hidden(), first.bias.len());
    let shape = LinearShape { rows: first.x.len() / c, inputs: c, outputs };
    linear_forward_layers(pass.gpu, &mut layers, pass.layout(), pass.activation(), shape)
}

/// The gradients of the inducing points of all blocks by way of q, of which these are the gradients: one launch, which adds them
/// to what came by the residual.
pub(super) fn points_backward(
    pass: &Pass<'_>,
    gradients: &Buffer<f32>,
    blocks: &[BlockSlots],
    d_queries: &[Buffer<bf16>],
) -> Result<(), DeviceError> {
    let mut layers = Vec::with_capacity(d_queries.len());
    for (slots, dy) in blocks.iter().zip(d_queries) {
        let BlockSlots::Imsab { inducing, induce, .. } = slots else { return Err(other_encoder()) };
        let Layer { weight, .. } = pass.params.layer(&induce.projections.q)?;
        layers.push(LayerInput { dx: gradients.part(inducing.range())?, dy: dy.alias(), weight });
    }
    let Some(first) = layers.first() else { return Ok(()) };
    let c = pass.heads.hidden();
    let shape = LinearShape { rows: first.dx.len() / c, inputs: c, outputs: c };
    linear_backward_input_layers(pass.gpu, &mut layers, pass.layout(), shape)
}

impl Block<'_> {
    /// out `[N, C]` = block(x `[N, C]`), given the [`projection`] of x and q of its points; and `then` of out.
    pub fn forward(
        &self,
        out: &mut Buffer<bf16>,
        saved: &mut BlockActivations,
        x: &Buffer<bf16>,
        then: Option<Projection>,
    ) -> Result<(), DeviceError> {
        let Block { pass, dropout, .. } = self;
        match (self.slots, self.sets, &mut saved.induce) {
            (BlockSlots::Msab(slots), Attentions::Msab { within }, _) => {
                let (attention, ffn) = (within, slots.ffn.as_ref());
                let call = Call { a: x, z: None, attention, ffn, dropout: dropout[1] };
                mab::forward(pass, out, &mut saved.attend, slots, call, then)
            }
            (
                BlockSlots::Imsab { inducing, induce, attend, ffn },
                Attentions::Imsab { induce: over_documents, attend: over_points },
                Some(kept),
            ) => {
                let points = pass.params.rounded(inducing)?;
                let Some(keys_values) = &saved.attend.keys_values else { return Err(other_encoder()) };
                let (slots, of_induced) = (attend.projections.kv.clone(), keys_values.alias());
                let of_induced = Projection { slots, out: of_induced };
                let (attention, inner) = (over_documents, induce.ffn.as_ref());
                let call = Call { a: &points, z: Some(x), attention, ffn: inner, dropout: dropout[0] };
                mab::forward(pass, &mut kept.out, &mut kept.mab, induce, call, Some(of_induced))?;
                let (attention, ffn) = (over_points, attend.ffn.as_ref().or(ffn.as_ref()));
                let call = Call { a: x, z: Some(&kept.out), attention, ffn, dropout: dropout[1] };
                mab::forward(pass, out, &mut saved.attend, attend, call, then)
            }
            _ => Err(other_encoder()),
        }
    }

    /// In `flow` `[N, C]`: gradient of the block's output → gradient of x; parameters' gradients are added to, that of inducing
    /// points as far as it does not come by way of q, which is left to [`points_backward`].
    pub fn backward(
        &self,
        with: &mut Backward<'_>,
        flow: &mut Flow,
        points: Option<&mut PointScratch>,
        saved: &BlockActivations,
        x: &Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        let Block { pass, dropout, .. } = self;
        match (self.slots, self.sets, &saved.induce, points) {
            (BlockSlots::Msab(slots), Attentions::Msab { within }, ..) => {
                let (attention, ffn) = (within, slots.ffn.as_ref());
                let call = Call { a: x, z: None, attention, ffn, dropout: dropout[1] };
                mab::backward_within(pass, with, flow, &saved.attend, slots, call)
            }
            (
                BlockSlots::Imsab { inducing, induce, attend, ffn },
                Attentions::Imsab { induce: over_documents, attend: over_points },
                Some(kept),
                Some(points),
            ) => {
                let (attention, ffn) = (over_points, attend.ffn.as_ref().or(ffn.as_ref()));
                let call = Call { a: x, z: Some(&kept.out), attention, ffn, dropout: dropout[1] };
                let mut layers = mab::backward_attend(pass, with, flow, points, &saved.attend, attend, call)?;
                let rows = pass.params.rounded(inducing)?;
                let (attention, inner) = (over_documents, induce.ffn.as_ref());
                let call = Call { a: &rows, z: Some(x), attention, ffn: inner, dropout: dropout[0] };
                let queries = points.d_queries.get(self.number).ok_or_else(other_encoder)?.alias();
                let shared = SharedGradients { queries, points: with.gradients.part(inducing.range())? };
                layers.extend(mab::backward_induce(pass, with, points, shared, &kept.mab, induce, call)?);
                let of_documents = of_documents(induce, attend)?;
                let d_projected = with.d_projected.part(0..saved.projected.len())?;
                layers.push(pass.projection_gradients(with, &of_documents, &d_projected, x)?);
                linear_backward_weights(pass.gpu, &layers, with.sums)?;
                flow.add(pass.gpu, pass.projection_input(&of_documents, &d_projected, x)?)
            }
            _ => Err(other_encoder()),
        }
    }
}

fn other_encoder() -> DeviceError {
    DeviceError::Shapes("the batch and its buffers were made for a model of the other encoder".into())
}
