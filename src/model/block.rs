//! One block of the encoder: MSAB(X) = MAB(X, X), or IMSAB(X) = MAB(X, MAB(I, X)).

use super::layout::{BlockSlots, MabSlots};
use super::mab::{self, BlockShape, FfnActivations, MabActivations, Roles, Scratch, Sets};
use crate::ops::Scalar;
use crate::ops::dropout::Dropout;

/// What forward keeps for backward; an MSAB uses only `attend`.
#[derive(Clone, Debug, Default)]
pub struct BlockActivations<T> {
    /// I, repeated for every set `[B·M, C]`
    inducing: Vec<T>,
    induce: MabActivations<T>,
    /// MAB(I, X) `[B·M, C]`
    induced: Vec<T>,
    attend: MabActivations<T>,
    /// MAB(X, ·) before the network of `inner_ffn = false` `[N, C]`
    attended: Vec<T>,
    ffn: FfnActivations<T>,
}

/// Buffers of one backward call; kept to be reused.
#[derive(Clone, Debug, Default)]
pub struct BlockGradients<T> {
    d_x: Vec<T>,
    d_induced: Vec<T>,
    d_inducing_rows: Vec<T>,
    d_inducing: Vec<T>,
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
    fn among_documents(self) -> Sets<'a> {
        Sets { queries: self.documents, keys: self.documents }
    }

    fn induce(self) -> Sets<'a> {
        Sets { queries: self.inducing, keys: self.documents }
    }

    fn attend(self) -> Sets<'a> {
        Sets { queries: self.documents, keys: self.inducing }
    }
}

/// Dropout of a block's attentions, `[induce, attend]`.
pub type BlockDropout = [Option<Dropout>; 2];

/// out `[N, C]` = block(x `[N, C]`)
#[allow(clippy::too_many_arguments)]
pub fn forward<T: Scalar>(
    out: &mut Vec<T>,
    saved: &mut BlockActivations<T>,
    scratch: &mut Scratch<T>,
    x: &[T],
    sets: BatchSets<'_>,
    slots: &BlockSlots,
    params: &[T],
    shape: BlockShape,
    dropout: BlockDropout,
) {
    let mut run = |out: &mut Vec<T>, saved: &mut _, roles, sets, slots: &MabSlots, dropout| {
        mab::forward(out, saved, scratch, roles, sets, slots, params, shape, dropout);
    };
    match slots {
        BlockSlots::Msab(slots) => {
            run(out, &mut saved.attend, Roles::Within { x }, sets.among_documents(), slots, dropout[1]);
        }
        BlockSlots::Imsab { inducing, induce, attend, ffn } => {
            let queries = inducing.of(params);
            saved.inducing.clear();
            (1..sets.documents.len()).for_each(|_| saved.inducing.extend_from_slice(queries));
            let roles = Roles::Across { a: &saved.inducing, queries, z: x };
            run(&mut saved.induced, &mut saved.induce, roles, sets.induce(), induce, dropout[0]);
            let roles = Roles::Across { a: x, queries: x, z: &saved.induced };
            match ffn {
                None => run(out, &mut saved.attend, roles, sets.attend(), attend, dropout[1]),
                Some(ffn) => {
                    run(&mut saved.attended, &mut saved.attend, roles, sets.attend(), attend, dropout[1]);
                    mab::ffn_forward(out, &mut saved.ffn, scratch, &saved.attended, ffn, params, shape);
                }
            }
        }
    }
}

/// In place d `[N, C]`: gradient of the block's output → gradient of x; parameters' gradients are added to.
#[allow(clippy::too_many_arguments)]
pub fn backward<T: Scalar>(
    d: &mut Vec<T>,
    saved: &BlockActivations<T>,
    buffers: &mut BlockGradients<T>,
    scratch: &mut Scratch<T>,
    x: &[T],
    sets: BatchSets<'_>,
    slots: &BlockSlots,
    params: &[T],
    gradients: &mut [T],
    shape: BlockShape,
    dropout: BlockDropout,
) {
    match slots {
        BlockSlots::Msab(slots) => {
            mab::backward(
                &mut buffers.d_x,
                &mut [],
                &mut [],
                d,
                &saved.attend,
                scratch,
                Roles::Within { x },
                sets.among_documents(),
                slots,
                params,
                gradients,
                shape,
                dropout[1],
            );
        }
        BlockSlots::Imsab { inducing, induce, attend, ffn } => {
            if let Some(ffn) = ffn {
                mab::ffn_backward(d, &saved.ffn, scratch, &saved.attended, ffn, params, gradients, shape);
            }
            buffers.d_induced.clear();
            buffers.d_induced.resize(saved.induced.len(), T::ZERO);
            mab::backward(
                &mut buffers.d_x,
                &mut buffers.d_induced,
                &mut [],
                d,
                &saved.attend,
                scratch,
                Roles::Across { a: x, queries: x, z: &saved.induced },
                sets.attend(),
                attend,
                params,
                gradients,
                shape,
                dropout[1],
            );
            let queries = inducing.of(params);
            buffers.d_inducing.clear();
            buffers.d_inducing.resize(queries.len(), T::ZERO);
            mab::backward(
                &mut buffers.d_inducing_rows,
                &mut buffers.d_x,
                &mut buffers.d_inducing,
                &mut buffers.d_induced,
                &saved.induce,
                scratch,
                Roles::Across { a: &saved.inducing, queries, z: x },
                sets.induce(),
                induce,
                params,
                gradients,
                shape,
                dropout[0],
            );
            let d_inducing = inducing.of_mut(gradients);
            mab::add_sets(d_inducing, &buffers.d_inducing);
            mab::add_sets(d_inducing, &buffers.d_inducing_rows);
        }
    }
    std::mem::swap(d, &mut buffers.d_x);
}
