//! What attention keeps in memory from one kernel to the next; nobody needs it afterwards.

use half::bf16;

use crate::device::{Arena, Buffer, DeviceError, Operands};

/// How much it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchLen {
    /// H times the pairs of a query and a key of a head, padded, where it is not fused.
    pub pairs: usize,
    /// Numbers that parts of long sets leave.
    pub partials: usize,
}

impl ScratchLen {
    /// Bytes of the buffers; of forward alone, or of backward as well.
    pub fn bytes(self, backward: bool) -> usize {
        let of = |values: usize, size: usize| values.saturating_mul(size);
        let d_weights = if backward { self.pairs } else { 0 };
        Arena::bytes_for([of(self.pairs, 4), of(d_weights, 4), of(self.pairs, 2), of(self.partials, 4)])
    }
}

/// The buffers.
#[derive(Debug)]
pub struct AttentionScratch {
    /// q·k of all pairs `[H, pairs]`.
    scores: Buffer<f32>,
    /// d heads·v `[H, pairs]`, of backward.
    d_weights: Buffer<f32>,
    /// Weights, or the scores' gradients `[H, pairs]`.
    weights: Buffer<bf16>,
    /// `[parts, H, 64·D]`
    partials: Buffer<f32>,
}

impl AttentionScratch {
    /// Takes [`ScratchLen::bytes`] out of `arena`.
    pub fn new(arena: &mut Arena, len: ScratchLen, backward: bool) -> Result<Self, DeviceError> {
        Ok(AttentionScratch {
            scores: arena.take(len.pairs)?,
            d_weights: arena.take(if backward { len.pairs } else { 0 })?,
            weights: arena.take(len.pairs)?,
            partials: arena.take(len.partials)?,
        })
    }

    /// Notes what a launch takes of them, and gives where it stands.
    pub(super) fn note(
        &self,
        operands: &mut Operands<'_>,
        len: ScratchLen,
        backward: bool,
    ) -> Result<Pointers, DeviceError> {
        operands.scratch("scores [H, pairs]", &self.scores, len.pairs)?;
        operands.scratch("d weights [H, pairs]", &self.d_weights, if backward { len.pairs } else { 0 })?;
        operands.scratch("weights [H, pairs]", &self.weights, len.pairs)?;
        operands.scratch("partial sums [parts, H, 64·D]", &self.partials, len.partials)?;
        Ok(Pointers {
            scores: self.scores.pointer::<f32>().cast_mut(),
            d_weights: self.d_weights.pointer::<f32>().cast_mut(),
            weights: self.weights.pointer::<u16>().cast_mut(),
            partials: self.partials.pointer::<f32>().cast_mut(),
        })
    }
}

/// Where they stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointers {
    pub scores: *mut f32,
    pub d_weights: *mut f32,
    pub weights: *mut u16,
    pub partials: *mut f32,
}
