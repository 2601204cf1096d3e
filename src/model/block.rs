//! One block of the encoder: MSAB(X) = MAB(X, X), or IMSAB(X) = MAB(X, MAB(I, X)).

use super::layout::BlockSlots;
use super::mab::{self, Call, MabActivations, MabGradients, Pass, Roles, Scratch};
use super::network::{self, FfnActivations};
use crate::ops::Scalar;
use crate::ops::dropout::Dropout;

/// What forward keeps for backward; an MSAB uses only `attend`.
#[derive(Clone, Debug, Default)]
pub struct BlockActivations<T> {
    induce: MabActivations<T>,
    /// MAB(I, X) `[B·M, C]`
    induced: Vec<T>,
    attend: MabActivations<T>,
    /// MAB(X, ·) before the network of `inner_ffn = false` `[N, C]`
    attended: Vec<T>,
    ffn: FfnActivations<T>,
}

impl<T: Scalar> BlockActivations<T> {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.induce.bytes()
            + self.attend.bytes()
            + self.ffn.bytes()
            + size_of_val(&*self.induced)
            + size_of_val(&*self.attended)
    }
}

/// Buffers of one backward call; kept to be reused.
#[derive(Clone, Debug, Default)]
pub struct BlockGradients<T> {
    d_induced: Vec<T>,
    d_inducing: Vec<T>,
}

impl<T> BlockGradients<T> {
    /// Bytes held that grow with the batch, and others.
    pub fn bytes(&self) -> (usize, usize) {
        (size_of_val(&*self.d_induced), size_of_val(&*self.d_inducing))
    }
}

/// The sets of a batch, and where their inducing points stand.
#[derive(Clone, Copy, Debug)]
pub struct BatchSets<'a> {
    /// Offsets `[B + 1]` of the documents.
    pub documents: &'a [usize],
    /// Offsets `[B + 1]` of the inducing points: multiples of M.
    pub inducing: &'a [usize],
}

impl<'a> BatchSets<'a> {
    /// Documents among themselves.
    fn within<T>(self, x: &'a [T], dropout: Option<Dropout>) -> Call<'a, T> {
        Call { roles: Roles::Within { x }, queries: self.documents, keys: self.documents, dropout }
    }

    /// Inducing points over documents.
    fn induce<T>(self, inducing: &'a [T], x: &'a [T], dropout: Option<Dropout>) -> Call<'a, T> {
        let roles = Roles::Across { a: inducing, z: x };
        Call { roles, queries: self.inducing, keys: self.documents, dropout }
    }

    /// Documents over induced rows.
    fn attend<T>(self, x: &'a [T], induced: &'a [T], dropout: Option<Dropout>) -> Call<'a, T> {
        let roles = Roles::Across { a: x, z: induced };
        Call { roles, queries: self.documents, keys: self.inducing, dropout }
    }
}

/// One block's part of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a, T> {
    /// What all blocks share.
    pub pass: Pass<'a, T>,
    /// Its parameters' places.
    pub slots: &'a BlockSlots,
    /// The batch's sets.
    pub sets: BatchSets<'a>,
    /// Dropout of its attentions, `[induce, attend]`.
    pub dropout: [Option<Dropout>; 2],
}

impl<T: Scalar> Block<'_, T> {
    /// out `[N, C]` = block(x `[N, C]`)
    pub fn forward(
        &self,
        out: &mut Vec<T>,
        saved: &mut BlockActivations<T>,
        scratch: &mut Scratch<T>,
        x: &[T],
    ) {
        let Block { pass, sets, dropout, .. } = self;
        match self.slots {
            BlockSlots::Msab(slots) => {
                mab::forward(pass, scratch, out, &mut saved.attend, slots, sets.within(x, dropout[1]));
            }
            BlockSlots::Imsab { inducing, induce, attend, ffn } => {
                let BlockActivations { induce: kept_induce, induced, attend: kept_attend, .. } = saved;
                let call = sets.induce(inducing.of(pass.params), x, dropout[0]);
                mab::forward(pass, scratch, induced, kept_induce, induce, call);
                let call = sets.attend(x, induced, dropout[1]);
                match ffn {
                    None => mab::forward(pass, scratch, out, kept_attend, attend, call),
                    Some(ffn) => {
                        mab::forward(pass, scratch, &mut saved.attended, kept_attend, attend, call);
                        network::forward(pass, scratch, out, &mut saved.ffn, ffn, &saved.attended);
                    }
                }
            }
        }
    }

    /// In place d `[N, C]`: gradient of the block's output → gradient of x; parameters' gradients are added to.
    pub fn backward(
        &self,
        d: &mut [T],
        saved: &BlockActivations<T>,
        buffers: &mut BlockGradients<T>,
        scratch: &mut Scratch<T>,
        gradients: &mut [T],
        x: &[T],
    ) {
        let Block { pass, sets, dropout, .. } = self;
        match self.slots {
            BlockSlots::Msab(slots) => {
                let flow = MabGradients { d, d_z: &mut [], d_queries: &mut [] };
                let call = sets.within(x, dropout[1]);
                mab::backward(pass, scratch, flow, &saved.attend, slots, gradients, call);
            }
            BlockSlots::Imsab { inducing, induce, attend, ffn } => {
                if let Some(ffn) = ffn {
                    network::backward(pass, scratch, d, &saved.ffn, ffn, gradients, &saved.attended);
                }
                let BlockGradients { d_induced, d_inducing } = buffers;
                d_induced.clear();
                d_induced.resize(saved.induced.len(), T::ZERO);
                let flow = MabGradients { d, d_z: d_induced, d_queries: &mut [] };
                let call = sets.attend(x, &saved.induced, dropout[1]);
                mab::backward(pass, scratch, flow, &saved.attend, attend, gradients, call);

                let points = inducing.of(pass.params);
                d_inducing.clear();
                d_inducing.resize(points.len(), T::ZERO);
                let flow = MabGradients { d: d_induced, d_z: d, d_queries: d_inducing };
                let call = sets.induce(points, x, dropout[0]);
                mab::backward(pass, scratch, flow, &saved.induce, induce, gradients, call);
                let sums = inducing.of_mut(gradients);
                mab::add_sets(sums, d_inducing);
                mab::add_sets(sums, d_induced);
            }
        }
    }
}
