//! The multi-head attention block MAB(A, Z) and the feed-forward network behind it; backward mirrors forward.

use super::layout::{FfnSlots, LinearSlots, MabSlots};
use crate::ops::Scalar;
use crate::ops::attention::{self, Attention, Heads, QkvGradients, Rows, RowsMut};
use crate::ops::dropout::Dropout;
use crate::ops::gemm::Write;
use crate::ops::layer_norm::{self, Saved};
use crate::ops::linear::{self, Activation};

/// What every block of a model shares.
#[derive(Clone, Copy, Debug)]
pub struct BlockShape {
    /// Heads and their width.
    pub heads: Heads,
    /// Whether q, k and v pass through a ReLU.
    pub qkv_relu: bool,
    /// LayerNorm's eps.
    pub eps: f64,
}

impl BlockShape {
    fn hidden(&self) -> usize {
        self.heads.count * self.heads.width
    }

    fn projection_activation(&self) -> Activation {
        if self.qkv_relu { Activation::Relu } else { Activation::Identity }
    }
}

/// Who asks whom in one attention block.
#[derive(Clone, Copy, Debug)]
pub enum Roles<'a, T> {
    /// MAB(X, X): the documents of a set among themselves.
    Within {
        /// X `[N, C]`
        x: &'a [T],
    },
    /// MAB(A, Z).
    Across {
        /// A `[Nq, C]`, the residual of each output row.
        a: &'a [T],
        /// The rows that are projected to q: A, or the `M` rows that A repeats for every set.
        queries: &'a [T],
        /// Z `[Nk, C]`
        z: &'a [T],
    },
}

impl<'a, T> Roles<'a, T> {
    /// The residual rows A.
    fn residual(&self) -> &'a [T] {
        match *self {
            Roles::Within { x } => x,
            Roles::Across { a, .. } => a,
        }
    }

    fn shares_queries(&self) -> bool {
        match self {
            Roles::Within { .. } => false,
            Roles::Across { a, queries, .. } => queries.len() < a.len(),
        }
    }
}

/// The sets among the rows of A and of Z, offsets `[B + 1]` each.
#[derive(Clone, Copy, Debug)]
pub struct Sets<'a> {
    /// Among the rows of A.
    pub queries: &'a [usize],
    /// Among the rows of Z.
    pub keys: &'a [usize],
}

/// What forward keeps for backward.
#[derive(Clone, Debug, Default)]
pub struct MabActivations<T> {
    /// `[N, 3C]` within a set, else q `[rows, C]`.
    queries: Vec<T>,
    /// k and v `[Nk, 2C]`; empty within a set.
    keys_values: Vec<T>,
    /// `[Nq, C]`
    heads: Vec<T>,
    /// `[Nq, H]`
    lse: Vec<T>,
    norm: Saved<T>,
    /// LayerNorm(A + heads) `[Nq, C]`
    attended: Vec<T>,
    ffn: FfnActivations<T>,
}

/// What a network's forward keeps for backward.
#[derive(Clone, Debug, Default)]
pub struct FfnActivations<T> {
    /// `[rows, G]`
    hidden: Vec<T>,
    norm: Saved<T>,
}

/// Buffers that live within one call; kept to be reused.
#[derive(Clone, Debug, Default)]
pub struct Scratch<T> {
    rows: Vec<T>,
    hidden: Vec<T>,
    d_queries: Vec<T>,
    d_keys_values: Vec<T>,
    d_shared: Vec<T>,
}

/// out `[Nq, C]` = MAB(A, Z)
#[allow(clippy::too_many_arguments)]
pub fn forward<T: Scalar>(
    out: &mut Vec<T>,
    saved: &mut MabActivations<T>,
    scratch: &mut Scratch<T>,
    roles: Roles<'_, T>,
    sets: Sets<'_>,
    slots: &MabSlots,
    params: &[T],
    shape: BlockShape,
    dropout: Option<Dropout>,
) {
    let c = shape.hidden();
    let activation = shape.projection_activation();
    let project = |out: &mut Vec<T>, rows: &[T], layer: &LinearSlots, width: usize| {
        out.resize(rows.len() / c * width, T::ZERO);
        linear::forward(out, rows, layer.of(params), activation);
    };
    match roles {
        Roles::Within { x } => project(&mut saved.queries, x, &slots.projections.qkv, 3 * c),
        Roles::Across { queries, z, .. } => {
            project(&mut saved.queries, queries, &slots.projections.q, c);
            project(&mut saved.keys_values, z, &slots.projections.kv, 2 * c);
        }
    }
    let residual = roles.residual();
    let mut heads = std::mem::take(&mut saved.heads);
    let mut lse = std::mem::take(&mut saved.lse);
    heads.resize(residual.len(), T::ZERO);
    lse.resize(residual.len() / c * shape.heads.count, T::ZERO);
    attention::forward(&mut heads, &mut lse, &saved.attention(&roles, sets, shape, dropout));
    saved.heads = heads;
    saved.lse = lse;

    let attended = if slots.ffn.is_some() { &mut saved.attended } else { &mut *out };
    attended.resize(residual.len(), T::ZERO);
    layer_norm::forward(
        attended,
        &mut saved.norm,
        residual,
        Some(&saved.heads),
        slots.norm.of(params, shape.eps),
    );
    if let Some(slots) = &slots.ffn {
        ffn_forward(out, &mut saved.ffn, scratch, &saved.attended, slots, params, shape);
    }
}

/// d_a `[Nq, C]` = and d_z `[Nk, C]` += from d_out `[Nq, C]`, which is overwritten; parameters' gradients are added
/// to. Within a set d_z is not used: all of X's gradient goes to d_a. Where queries are shared, the gradient
/// through q goes to d_queries `[M, C]` (+=), that of the residual to d_a.
#[allow(clippy::too_many_arguments)]
pub fn backward<T: Scalar>(
    d_a: &mut Vec<T>,
    d_z: &mut [T],
    d_queries: &mut [T],
    d_out: &mut [T],
    saved: &MabActivations<T>,
    scratch: &mut Scratch<T>,
    roles: Roles<'_, T>,
    sets: Sets<'_>,
    slots: &MabSlots,
    params: &[T],
    gradients: &mut [T],
    shape: BlockShape,
    dropout: Option<Dropout>,
) {
    let c = shape.hidden();
    if let Some(slots) = &slots.ffn {
        ffn_backward(d_out, &saved.ffn, scratch, &saved.attended, slots, params, gradients, shape);
    }
    let (d_weight, d_bias) = slots.norm.of_mut(gradients);
    layer_norm::backward(d_out, &saved.norm, slots.norm.of(params, shape.eps), d_weight, d_bias);
    d_a.clear();
    d_a.extend_from_slice(d_out);

    let attention = saved.attention(&roles, sets, shape, dropout);
    let Scratch { d_queries: dq, d_keys_values: dkv, d_shared, .. } = scratch;
    match roles {
        Roles::Within { x } => {
            // One buffer [N, 3C] holds dq, dk, dv as the projection's output does; q is filled on its own first.
            dq.resize(d_out.len(), T::ZERO);
            dkv.resize(3 * d_out.len(), T::ZERO);
            let into = QkvGradients {
                q: RowsMut { data: dq, stride: c },
                kv: RowsMut { data: dkv, stride: 3 * c },
                k_column: c,
                v_column: 2 * c,
            };
            attention::backward(into, d_out, &saved.heads, &saved.lse, &attention);
            for (row, q) in dkv.chunks_exact_mut(3 * c).zip(dq.chunks_exact(c)) {
                row[..c].copy_from_slice(q);
            }
            projection_backward(
                d_a,
                dkv,
                &saved.queries,
                x,
                &slots.projections.qkv,
                params,
                gradients,
                shape,
            );
        }
        Roles::Across { queries, z, .. } => {
            dq.resize(d_out.len(), T::ZERO);
            dkv.resize(saved.keys_values.len(), T::ZERO);
            let into = QkvGradients {
                q: RowsMut { data: dq, stride: c },
                kv: RowsMut { data: dkv, stride: 2 * c },
                k_column: 0,
                v_column: c,
            };
            attention::backward(into, d_out, &saved.heads, &saved.lse, &attention);
            projection_backward(
                d_z,
                dkv,
                &saved.keys_values,
                z,
                &slots.projections.kv,
                params,
                gradients,
                shape,
            );
            if roles.shares_queries() {
                d_shared.clear();
                d_shared.resize(queries.len(), T::ZERO);
                add_sets(d_shared, dq);
                projection_backward(
                    d_queries,
                    d_shared,
                    &saved.queries,
                    queries,
                    &slots.projections.q,
                    params,
                    gradients,
                    shape,
                );
            } else {
                projection_backward(
                    d_a,
                    dq,
                    &saved.queries,
                    queries,
                    &slots.projections.q,
                    params,
                    gradients,
                    shape,
                );
            }
        }
    }
}

impl<T: Scalar> MabActivations<T> {
    fn attention<'a>(
        &'a self,
        roles: &Roles<'_, T>,
        sets: Sets<'a>,
        shape: BlockShape,
        dropout: Option<Dropout>,
    ) -> Attention<'a, T> {
        let c = shape.hidden();
        let (q, k, v) = match roles {
            Roles::Within { .. } => {
                let part = |column| Rows { data: &self.queries, stride: 3 * c, column };
                (part(0), part(c), part(2 * c))
            }
            Roles::Across { .. } => {
                let part = |column| Rows { data: &self.keys_values, stride: 2 * c, column };
                (Rows { data: &self.queries, stride: c, column: 0 }, part(0), part(c))
            }
        };
        Attention {
            heads: shape.heads,
            q,
            k,
            v,
            query_offsets: sets.queries,
            key_offsets: sets.keys,
            shared_queries: roles.shares_queries(),
            dropout,
        }
    }
}

/// dx += dy·W after ReLU's derivative, and the weights' gradients.
#[allow(clippy::too_many_arguments)]
fn projection_backward<T: Scalar>(
    dx: &mut [T],
    dy: &mut [T],
    y: &[T],
    x: &[T],
    layer: &LinearSlots,
    params: &[T],
    gradients: &mut [T],
    shape: BlockShape,
) {
    if shape.qkv_relu {
        linear::relu_backward(dy, y);
    }
    linear::backward_weights(layer.of_mut(gradients), dy, x);
    linear::backward_input(dx, Write::Add, dy, layer.of(params));
}

/// sums `[M, C]` += Σ over the sets of rows `[B·M, C]`, in order.
pub fn add_sets<T: Scalar>(sums: &mut [T], rows: &[T]) {
    for set in rows.chunks_exact(sums.len()) {
        sums.iter_mut().zip(set).for_each(|(sum, &value)| *sum += value);
    }
}

/// out `[rows, C]` = LayerNorm(x + fc2(ReLU(fc1(x))))
pub fn ffn_forward<T: Scalar>(
    out: &mut Vec<T>,
    saved: &mut FfnActivations<T>,
    scratch: &mut Scratch<T>,
    x: &[T],
    slots: &FfnSlots,
    params: &[T],
    shape: BlockShape,
) {
    let fc1 = slots.fc1.of(params);
    saved.hidden.resize(x.len() / shape.hidden() * fc1.bias.len(), T::ZERO);
    linear::forward(&mut saved.hidden, x, fc1, Activation::Relu);
    scratch.rows.resize(x.len(), T::ZERO);
    linear::forward(&mut scratch.rows, &saved.hidden, slots.fc2.of(params), Activation::Identity);
    out.resize(x.len(), T::ZERO);
    layer_norm::forward(out, &mut saved.norm, x, Some(&scratch.rows), slots.norm.of(params, shape.eps));
}

/// In place d `[rows, C]`: gradient of the output → gradient of x; parameters' gradients are added to.
#[allow(clippy::too_many_arguments)]
pub fn ffn_backward<T: Scalar>(
    d: &mut [T],
    saved: &FfnActivations<T>,
    scratch: &mut Scratch<T>,
    x: &[T],
    slots: &FfnSlots,
    params: &[T],
    gradients: &mut [T],
    shape: BlockShape,
) {
    let (d_weight, d_bias) = slots.norm.of_mut(gradients);
    layer_norm::backward(d, &saved.norm, slots.norm.of(params, shape.eps), d_weight, d_bias);
    linear::backward_weights(slots.fc2.of_mut(gradients), d, &saved.hidden);
    scratch.hidden.resize(saved.hidden.len(), T::ZERO);
    linear::backward_input(&mut scratch.hidden, Write::Set, d, slots.fc2.of(params));
    linear::relu_backward(&mut scratch.hidden, &saved.hidden);
    linear::backward_weights(slots.fc1.of_mut(gradients), &scratch.hidden, x);
    linear::backward_input(d, Write::Add, &scratch.hidden, slots.fc1.of(params));
}
