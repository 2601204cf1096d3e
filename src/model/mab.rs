//! The multi-head attention block MAB(A, Z) and the feed-forward network behind it; backward mirrors forward.
//!
//! Forward is three passes: project the rows to q, k, v; attend; and, tile by tile, residual + LayerNorm + network +
//! LayerNorm while the rows are in the cache. Backward goes through the same in reverse, in chunks of rows, after
//! each of which the chunk's weight gradients are taken.

use std::ops::Range;

use super::layout::{FfnSlots, LinearSlots, MabSlots, NormSlots};
use super::setrank::Keep;
use crate::ops::Scalar;
use crate::ops::attention::{self, Attention, Heads, QkvGradients, Rows};
use crate::ops::dropout::Dropout;
use crate::ops::feed_forward::{self, TileGradients};
use crate::ops::gemm::{Aligned, Finish, Write};
use crate::ops::layer_norm::{self, Saved, SavedRows};
use crate::ops::linear::{self, Activation, WeightJob};
use crate::ops::rows::{CHUNK, RowsMut, TILE, TileSums, for_tiles, free_tile};
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

/// What a network's forward keeps for backward.
#[derive(Clone, Debug, Default)]
pub struct FfnActivations<T> {
    /// `[rows, G]`
    hidden: Vec<T>,
    norm: Saved<T>,
}

impl<T: Scalar> FfnActivations<T> {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.hidden) + self.norm.bytes()
    }
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
    pub packed: [Aligned; 2],
    /// Of each thread.
    pub threads: PerThread,
    /// `[CHUNK, G]`
    d_hidden: Vec<T>,
    /// `[CHUNK, C]`
    d_output: Vec<T>,
    /// Sums of tiles, for LayerNorm's parameters.
    sums: Vec<T>,
    /// Sums of tiles of the second norm.
    sums2: Vec<T>,
    d_queries: Vec<T>,
    d_keys_values: Vec<T>,
    d_shared: Vec<T>,
}

impl<T: Scalar> Scratch<T> {
    /// Bytes held that grow with the batch, and others.
    pub fn bytes(&self) -> (usize, usize) {
        let of = |buffers: &[&Vec<T>]| buffers.iter().map(|buffer| size_of_val(&***buffer)).sum::<usize>();
        let fixed = of(&[&self.d_hidden, &self.d_output, &self.sums, &self.sums2, &self.d_shared])
            + self.packed.iter().map(Aligned::bytes).sum::<usize>()
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
        let activation = pass.projection_activation();
        linear::forward(out, rows, layer.of(pass.params), activation, &mut scratch.packed[0]);
    };
    match call.roles {
        Roles::Within { x } => run(&mut saved.queries, x, &slots.projections.qkv, 3 * c),
        Roles::Across { a, z } => {
            run(&mut saved.queries, a, &slots.projections.q, c);
            run(&mut saved.keys_values, z, &slots.projections.kv, 2 * c);
        }
    }
}

impl FfnSlots {
    fn pack_forward<'a, T: Scalar>(
        &self,
        pass: &Pass<'a, T>,
        buffers: &'a mut [Aligned; 2],
    ) -> feed_forward::Forward<'a, T> {
        let norm = self.norm.of(pass.params, pass.eps);
        feed_forward::Forward::new(self.fc1.of(pass.params), self.fc2.of(pass.params), norm, buffers)
    }

    fn pack_backward<'a, T: Scalar>(
        &self,
        pass: &Pass<'a, T>,
        buffers: &'a mut [Aligned; 2],
    ) -> feed_forward::Backward<'a, T> {
        let norm = self.norm.of(pass.params, pass.eps);
        feed_forward::Backward::new(self.fc1.of(pass.params), self.fc2.of(pass.params), norm, buffers)
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
    rows_backward(pass, scratch, d, ffn, Some((&slots.norm, &saved.norm)), gradients);

    let attention = saved.attention(&call, pass);
    let mut dq = std::mem::take(&mut scratch.d_queries);
    let mut dkv = std::mem::take(&mut scratch.d_keys_values);
    let mut projection =
        |dx: &mut [T], dy: &mut [T], y: &[T], x: &[T], layer: &LinearSlots, scratch: &mut _| {
            projection_backward(pass, scratch, (dx, dy), (y, x), layer, gradients);
        };
    match call.roles {
        Roles::Within { x } => {
            dq.resize(saved.queries.len(), T::ZERO);
            let into = QkvGradients::Together(&mut dq);
            attention::backward(into, d, &saved.heads, &saved.lse, &attention, &scratch.threads);
            projection(d, &mut dq, &saved.queries, x, &slots.projections.qkv, scratch);
        }
        Roles::Across { a, z } => {
            dq.resize(d.len(), T::ZERO);
            dkv.resize(saved.keys_values.len(), T::ZERO);
            let into = QkvGradients::Apart { q: &mut dq, kv: &mut dkv };
            attention::backward(into, d, &saved.heads, &saved.lse, &attention, &scratch.threads);
            projection(d_z, &mut dkv, &saved.keys_values, z, &slots.projections.kv, scratch);
            if call.shares_queries(c) {
                let mut shared = std::mem::take(&mut scratch.d_shared);
                shared.clear();
                shared.resize(a.len(), T::ZERO);
                add_sets(&mut shared, &dq);
                projection(d_queries, &mut shared, &saved.queries, a, &slots.projections.q, scratch);
                scratch.d_shared = shared;
            } else {
                projection(d, &mut dq, &saved.queries, a, &slots.projections.q, scratch);
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

/// In place dx += dy·W after ReLU's derivative on dy, and the weights' gradients; chunk by chunk.
fn projection_backward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    (dx, dy): (&mut [T], &mut [T]),
    (y, x): (&[T], &[T]),
    layer: &LinearSlots,
    gradients: &mut [T],
) {
    let weights = layer.of(pass.params);
    let (inputs, outputs) = (weights.inputs(), weights.outputs());
    let weight = weights.pack_backward(&mut scratch.packed[0]);
    let rows = x.len() / inputs;
    for first in (0..rows).step_by(CHUNK) {
        let chunk = first..(first + CHUNK).min(rows);
        let (here, there) =
            (chunk.start * inputs..chunk.end * inputs, chunk.start * outputs..chunk.end * outputs);
        let buffers =
            (RowsMut::new(&mut dx[here.clone()], inputs), RowsMut::new(&mut dy[there.clone()], outputs));
        for_tiles(chunk.clone(), free_tile(chunk.len()), buffers, &|tile, (dx, dy)| {
            if pass.qkv_relu {
                linear::relu_backward(dy.data, &y[tile.start * outputs..tile.end * outputs]);
            }
            linear::product_tile(dx.data, Write::Add, dy.data, weight, Finish::Plain);
        });
        let job = WeightJob { gradients: layer.of_mut(gradients), dy: &dy[there], x: &x[here] };
        linear::backward_weights([job], &scratch.threads);
    }
}

/// sums `[M, C]` += Σ over the sets of rows `[B·M, C]`, in order.
pub fn add_sets<T: Scalar>(sums: &mut [T], rows: &[T]) {
    for set in rows.chunks_exact(sums.len()) {
        layer_norm::add(sums, set);
    }
}

/// out `[rows, C]` = LayerNorm(x + fc2(ReLU(fc1(x)))), where the network stands outside the attention blocks.
pub fn ffn_forward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    out: &mut Vec<T>,
    saved: &mut FfnActivations<T>,
    slots: &FfnSlots,
    x: &[T],
) {
    let c = pass.heads.hidden();
    let rows = x.len() / c;
    scratch.threads.prepare();
    let network = slots.pack_forward(pass, &mut scratch.packed);
    let g = network.hidden_width();
    out.resize(rows * c, T::ZERO);
    let kept = (pass.keep == Keep::ForBackward).then(|| {
        saved.hidden.resize(rows * g, T::ZERO);
        (RowsMut::new(&mut saved.hidden, g), saved.norm.make_room(rows, c))
    });
    for_tiles(0..rows, free_tile(rows), (RowsMut::new(out, c), kept), &|tile, (out, kept)| {
        let x = &x[tile.start * c..tile.end * c];
        match kept {
            Some((hidden, norm)) => network.tile(out.data, hidden.data, x, Some(norm)),
            None => scratch.threads.with(tile.len() * g, |hidden| network.tile(out.data, hidden, x, None)),
        }
    });
}

/// In place d `[rows, C]`: gradient of [`ffn_forward`]'s output → gradient of x; parameters' gradients are added to.
pub fn ffn_backward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    d: &mut [T],
    saved: &FfnActivations<T>,
    slots: &FfnSlots,
    gradients: &mut [T],
    x: &[T],
) {
    scratch.threads.prepare();
    rows_backward(pass, scratch, d, Some((slots, saved, x)), None, gradients);
}

/// In place d `[rows, C]`: backward through the network on `x`, if there is one, then through the LayerNorm before
/// it, if there is one.
fn rows_backward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    d: &mut [T],
    ffn: Option<(&FfnSlots, &FfnActivations<T>, &[T])>,
    norm: Option<(&NormSlots, &Saved<T>)>,
    gradients: &mut [T],
) {
    let c = pass.heads.hidden();
    let rows = d.len() / c;
    let chunk_rows = rows.min(CHUNK);
    let Scratch { packed, threads, d_hidden, d_output, sums, sums2, .. } = scratch;
    let network = ffn.map(|(slots, saved, x)| (slots.pack_backward(pass, packed), slots, saved, x));
    let g = network.as_ref().map_or(0, |(network, ..)| network.hidden_width());
    d_hidden.resize(chunk_rows * g, T::ZERO);
    d_output.resize(if g > 0 { chunk_rows * c } else { 0 }, T::ZERO);
    let tiles = chunk_rows.div_ceil(TILE);
    sums.resize(tiles * 2 * c, T::ZERO);
    sums2.resize(tiles * 2 * c, T::ZERO);
    for first in (0..rows).step_by(CHUNK) {
        let chunk = first..(first + CHUNK).min(rows);
        let (count, tiles) = (chunk.len(), chunk.len().div_ceil(TILE));
        let sums_of = |sums| TileSums(RowsMut::new(sums, 2 * c));
        let of_network = network.is_some().then(|| {
            let hidden = RowsMut::new(&mut d_hidden[..count * g], g);
            let output = RowsMut::new(&mut d_output[..count * c], c);
            ((hidden, output), sums_of(&mut sums2[..tiles * 2 * c]))
        });
        let d = RowsMut::new(&mut d[chunk.start * c..chunk.end * c], c);
        let buffers = (d, (sums_of(&mut sums[..tiles * 2 * c]), of_network));
        for_tiles(chunk.clone(), TILE, buffers, &|tile, (d, (sums, of_network))| {
            if let (Some((network, _, saved, _)), Some(((hidden, output), sums))) = (&network, of_network) {
                let into = TileGradients { output: output.data, hidden: hidden.data, norm: sums.0.data };
                network.tile(d.data, into, &saved.norm, &saved.hidden, tile.start);
            }
            if let Some((slots, saved)) = norm {
                layer_norm::backward_tile(
                    d.data,
                    saved,
                    tile.start,
                    slots.of(pass.params, pass.eps),
                    sums.0.data,
                );
            }
        });
        if let Some((slots, _)) = norm {
            layer_norm::add_tile_sums(slots.of_mut(gradients), &sums[..tiles * 2 * c]);
        }
        if let Some((_, slots, saved, x)) = &network {
            layer_norm::add_tile_sums(slots.norm.of_mut(gradients), &sums2[..tiles * 2 * c]);
            let (fc1, fc2) = slots.layers_mut(gradients);
            let hidden = &saved.hidden[chunk.start * g..chunk.end * g];
            let jobs = [
                WeightJob { gradients: fc2, dy: &d_output[..count * c], x: hidden },
                WeightJob {
                    gradients: fc1,
                    dy: &d_hidden[..count * g],
                    x: &x[chunk.start * c..chunk.end * c],
                },
            ];
            linear::backward_weights(jobs, threads);
        }
    }
}
