//! The multi-head attention block MAB(A, Z) and the feed-forward network behind it; backward mirrors forward.
//!
//! Forward is three passes: project the rows to q, k, v; attend; and, tile by tile, residual + LayerNorm + network +
//! LayerNorm while the rows are in the cache. Backward goes through the same in reverse, in chunks of rows, after
//! each of which the chunk's weight gradients are taken.

use std::ops::Range;

use super::layout::{LinearSlots, MabSlots};
use super::network::{self, FfnActivations};
use super::packed::PackedWeights;
use super::setrank::Keep;
use crate::ops::Scalar;
use crate::ops::attention::{self, Attention, Heads, QkvGradients, Rows};
use crate::ops::dropout::Dropout;
use crate::ops::gemm::{Finish, Write};
use crate::ops::layer_norm::{self, Saved, SavedRows};
use crate::ops::linear::{self, Activation, WeightJob};
use crate::ops::rows::{CHUNK, RowsMut, TILE, for_tiles, free_tile};
use crate::ops::scratch::PerThread;

/// What every block of a model shares in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a, T> {
    /// All parameters.
    pub params: &'a [T],
    /// Heads and their width.
    pub heads: Heads,
    /// Whether q, k and v pass through a ReLU.
    pub qkv_relu: bool,
    /// LayerNorm's eps.
    pub eps: f64,
    /// Whether backward follows.
    pub keep: Keep,
}

impl<T> Pass<'_, T> {
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
        /// A: `[Nq, C]`, or the `M` rows that every set has.
        a: &'a [T],
        /// Z `[Nk, C]`
        z: &'a [T],
    },
}

impl<'a, T> Roles<'a, T> {
    fn a(&self) -> &'a [T] {
        match *self {
            Roles::Within { x } => x,
            Roles::Across { a, .. } => a,
        }
    }
}

/// One attention block's inputs.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a, T> {
    /// A and Z.
    pub roles: Roles<'a, T>,
    /// Offsets `[B + 1]` of the sets among the rows of A, repeated for every set if it is shared.
    pub queries: &'a [usize],
    /// Offsets `[B + 1]` of the sets among the rows of Z.
    pub keys: &'a [usize],
    /// Dropout of the weights.
    pub dropout: Option<Dropout>,
}

impl<'a, T> Call<'a, T> {
    fn rows(&self) -> usize {
        self.queries.last().copied().unwrap_or(0)
    }

    /// Whether all sets share the rows of A.
    fn shares_queries(&self, c: usize) -> bool {
        self.roles.a().len() / c != self.rows()
    }

    /// The rows of A for the output rows `rows`, as runs that are contiguous in A.
    fn residual(
        &self,
        c: usize,
        rows: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, &'a [T])> + use<'a, T> {
        let a = self.roles.a();
        let period = (a.len() / c).max(1);
        let mut next = rows.start;
        std::iter::from_fn(move || {
            let first = next;
            let end = ((first / period + 1) * period).min(rows.end);
            next = end;
            let from = first % period;
            (first < end).then(|| {
                let here = first - rows.start..end - rows.start;
                (here, &a[from * c..(from + end - first) * c])
            })
        })
    }
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
    /// LayerNorm(A + heads) `[Nq, C]`, the network's input.
    attended: Vec<T>,
    ffn: FfnActivations<T>,
}

impl<T: Scalar> MabActivations<T> {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let own = [&self.queries, &self.keys_values, &self.heads, &self.lse, &self.attended];
        own.map(|buffer| size_of_val(&**buffer)).iter().sum::<usize>() + self.norm.bytes() + self.ffn.bytes()
    }
}

/// Buffers that live within one call; kept to be reused.
#[derive(Clone, Debug, Default)]
pub struct Scratch<T> {
    /// Packed weights.
    pub packed: PackedWeights,
    /// Of each thread.
    pub threads: PerThread,
    /// `[CHUNK, G]`
    pub(super) d_hidden: Vec<T>,
    /// `[CHUNK, C]`
    pub(super) d_output: Vec<T>,
    /// Sums of tiles, for LayerNorm's parameters.
    pub(super) sums: Vec<T>,
    /// Sums of tiles of the second norm.
    pub(super) sums2: Vec<T>,
    d_queries: Vec<T>,
    d_keys_values: Vec<T>,
    d_shared: Vec<T>,
}

impl<T: Scalar> Scratch<T> {
    /// Bytes held that grow with the batch, and others.
    pub fn bytes(&self) -> (usize, usize) {
        let of = |buffers: &[&Vec<T>]| buffers.iter().map(|buffer| size_of_val(&***buffer)).sum::<usize>();
        let fixed = of(&[&self.d_hidden, &self.d_output, &self.sums, &self.sums2, &self.d_shared])
            + self.packed.bytes()
            + self.threads.bytes();
        // Their lengths change from attention to attention.
        let of_batch = self.d_queries.capacity() + self.d_keys_values.capacity();
        (of_batch * size_of::<T>(), fixed)
    }
}

/// out `[Nq, C]` = MAB(A, Z)
pub fn forward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    out: &mut Vec<T>,
    saved: &mut MabActivations<T>,
    slots: &MabSlots,
    call: Call<'_, T>,
) {
    let c = pass.heads.hidden();
    let keep = pass.keep == Keep::ForBackward;
    scratch.threads.prepare();
    project(pass, scratch, saved, slots, &call);

    let rows = call.rows();
    let mut heads = std::mem::take(&mut saved.heads);
    let mut lse = std::mem::take(&mut saved.lse);
    heads.resize(rows * c, T::ZERO);
    lse.resize(if keep { rows * pass.heads.count } else { 0 }, T::ZERO);
    let lse_out = keep.then_some(&mut *lse);
    attention::forward(&mut heads, lse_out, &saved.attention(&call, pass), &scratch.threads);
    saved.heads = heads;
    saved.lse = lse;

    let MabActivations { heads, norm, attended, ffn, .. } = saved;
    out.resize(rows * c, T::ZERO);
    let norm_rows = keep.then(|| norm.make_room(rows, c));
    // y = LayerNorm(A + heads) of a tile.
    let attend = |tile: Range<usize>, y: &mut [T], saved: Option<SavedRows<'_, T>>| {
        for (here, a) in call.residual(c, tile.clone()) {
            let from = (tile.start + here.start) * c..(tile.start + here.end) * c;
            let y = &mut y[here.start * c..here.end * c];
            y.copy_from_slice(a);
            layer_norm::add(y, &heads[from]);
        }
        layer_norm::forward_tile(y, None, saved, slots.norm.of(pass.params, pass.eps));
    };
    let Some(ffn_slots) = &slots.ffn else {
        for_tiles(0..rows, free_tile(rows), (RowsMut::new(out, c), norm_rows), &|tile, (out, norm)| {
            attend(tile, out.data, norm);
        });
        return;
    };
    let network = ffn_slots.pack_forward(pass, &mut scratch.packed);
    let g = network.hidden_width();
    let kept = keep.then(|| {
        attended.resize(rows * c, T::ZERO);
        ffn.hidden.resize(rows * g, T::ZERO);
        let rows_of = (RowsMut::new(attended, c), RowsMut::new(&mut ffn.hidden, g));
        (rows_of, ffn.norm.make_room(rows, c))
    });
    if !keep {
        scratch.threads.reserve::<T>(TILE * (c + g));
    }
    let buffers = (RowsMut::new(out, c), (norm_rows, kept));
    for_tiles(0..rows, free_tile(rows), buffers, &|tile, (out, (norm, kept))| match kept {
        Some(((attended, hidden), norm2)) => {
            attend(tile, attended.data, norm);
            network.tile(out.data, hidden.data, attended.data, Some(norm2));
        }
        None => scratch.threads.with(tile.len() * (c + g), |buffer| {
            let (attended, hidden) = buffer.split_at_mut(tile.len() * c);
            attend(tile, attended, None);
            network.tile(out.data, hidden, attended, None);
        }),
    });
}

/// q, k and v of all rows.
fn project<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    saved: &mut MabActivations<T>,
    slots: &MabSlots,
    call: &Call<'_, T>,
) {
    let c = pass.heads.hidden();
    let mut run = |out: &mut Vec<T>, rows: &[T], layer: &LinearSlots, width: usize| {
        out.resize(rows.len() / c * width, T::ZERO);
        let [weight] = scratch.packed.forward([layer], pass.params);
        let finish = layer.of(pass.params).finish(pass.projection_activation());
        linear::product(out, Write::Set, rows, weight, finish);
    };
    match call.roles {
        Roles::Within { x } => run(&mut saved.queries, x, &slots.projections.qkv, 3 * c),
        Roles::Across { a, z } => {
            run(&mut saved.queries, a, &slots.projections.q, c);
            run(&mut saved.keys_values, z, &slots.projections.kv, 2 * c);
        }
    }
}

/// The gradients that flow through MAB(A, Z).
#[derive(Debug)]
pub struct MabGradients<'a, T> {
    /// In place `[Nq, C]`: of the output → of A; where A is shared, of its residual in each set.
    pub d: &'a mut [T],
    /// Of Z `[Nk, C]`, added to; unused within a set, where all of X's gradient goes to `d`.
    pub d_z: &'a mut [T],
    /// Of a shared A through q `[M, C]`, added to; unused otherwise.
    pub d_queries: &'a mut [T],
}

/// Backward of [`forward`]; parameters' gradients are added to.
pub fn backward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    flow: MabGradients<'_, T>,
    saved: &MabActivations<T>,
    slots: &MabSlots,
    gradients: &mut [T],
    call: Call<'_, T>,
) {
    let c = pass.heads.hidden();
    let MabGradients { d, d_z, d_queries } = flow;
    scratch.threads.prepare();
    let ffn = slots.ffn.as_ref().map(|ffn| (ffn, &saved.ffn, &*saved.attended));
    network::rows_backward(pass, scratch, d, ffn, Some((&slots.norm, &saved.norm)), gradients);

    let attention = saved.attention(&call, pass);
    let mut dq = std::mem::take(&mut scratch.d_queries);
    let mut dkv = std::mem::take(&mut scratch.d_keys_values);
    let projections = &slots.projections;
    match call.roles {
        Roles::Within { x } => {
            dq.resize(saved.queries.len(), T::ZERO);
            let into = QkvGradients::Together(&mut dq[..]);
            attention::backward(into, d, &saved.heads, &saved.lse, &attention, &scratch.threads);
            let qkv = Projection { dy: &mut dq, y: &saved.queries, x, layer: &projections.qkv };
            qkv.backward(pass, scratch, d, gradients);
        }
        Roles::Across { a, z } => {
            dq.resize(d.len(), T::ZERO);
            dkv.resize(saved.keys_values.len(), T::ZERO);
            let into = QkvGradients::Apart { q: &mut dq[..], kv: &mut dkv[..] };
            attention::backward(into, d, &saved.heads, &saved.lse, &attention, &scratch.threads);
            let kv = Projection { dy: &mut dkv, y: &saved.keys_values, x: z, layer: &projections.kv };
            kv.backward(pass, scratch, d_z, gradients);
            if call.shares_queries(c) {
                let mut shared = std::mem::take(&mut scratch.d_shared);
                shared.clear();
                shared.resize(a.len(), T::ZERO);
                add_sets(&mut shared, &dq);
                let q = Projection { dy: &mut shared, y: &saved.queries, x: a, layer: &projections.q };
                q.backward(pass, scratch, d_queries, gradients);
                scratch.d_shared = shared;
            } else {
                let q = Projection { dy: &mut dq, y: &saved.queries, x: a, layer: &projections.q };
                q.backward(pass, scratch, d, gradients);
            }
        }
    }
    scratch.d_queries = dq;
    scratch.d_keys_values = dkv;
}

impl<T: Scalar> MabActivations<T> {
    fn attention<'a>(&'a self, call: &Call<'a, T>, pass: &Pass<'_, T>) -> Attention<'a, T> {
        let c = pass.heads.hidden();
        let (q, k, v) = match call.roles {
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
            heads: pass.heads,
            q,
            k,
            v,
            query_offsets: call.queries,
            key_offsets: call.keys,
            shared_queries: call.shares_queries(c),
            dropout: call.dropout,
        }
    }
}

/// Backward of one projection.
struct Projection<'a, T> {
    /// Gradient of its output `[rows, out]`, which ReLU's derivative is applied to.
    dy: &'a mut [T],
    /// Its output `[rows, out]`.
    y: &'a [T],
    /// Its input `[rows, in]`.
    x: &'a [T],
    layer: &'a LinearSlots,
}

impl<T: Scalar> Projection<'_, T> {
    /// dx `[rows, in]` += dy·W, and the weights' gradients; chunk by chunk.
    fn backward(self, pass: &Pass<'_, T>, scratch: &mut Scratch<T>, dx: &mut [T], gradients: &mut [T]) {
        let Projection { dy, y, x, layer } = self;
        let weights = layer.of(pass.params);
        let (inputs, outputs) = (weights.inputs(), weights.outputs());
        let weight = weights.pack_backward(&mut scratch.packed.places[0]);
        let rows = x.len() / inputs;
        for first in (0..rows).step_by(CHUNK) {
            let chunk = first..(first + CHUNK).min(rows);
            let here = chunk.start * inputs..chunk.end * inputs;
            let there = chunk.start * outputs..chunk.end * outputs;
            let dx = RowsMut::new(&mut dx[here.clone()], inputs);
            let dy_rows = RowsMut::new(&mut dy[there.clone()], outputs);
            for_tiles(chunk.clone(), free_tile(chunk.len()), (dx, dy_rows), &|tile, (dx, dy)| {
                if pass.qkv_relu {
                    linear::relu_backward(dy.data, &y[tile.start * outputs..tile.end * outputs]);
                }
                linear::product_tile(dx.data, Write::Add, dy.data, weight, Finish::Plain);
            });
            let job = WeightJob { gradients: layer.of_mut(gradients), dy: &dy[there], x: &x[here] };
            linear::backward_weights([job], &scratch.threads);
        }
    }
}

/// sums `[M, C]` += Σ over the sets of rows `[B·M, C]`, in order.
pub fn add_sets<T: Scalar>(sums: &mut [T], rows: &[T]) {
    for set in rows.chunks_exact(sums.len()) {
        layer_norm::add(sums, set);
    }
}
