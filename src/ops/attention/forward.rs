//! Forward: an online softmax over blocks of keys.

use super::{Attention, KEY_BLOCK, QUERY_TILE, row_stride, tiles, within};
use crate::ops::Scalar;
use crate::ops::gemm::{Finish, Mat, MatMut, Write, gemm, pack, packed_len};
use crate::ops::reduce::sum;
use crate::ops::rows::Shared;
use crate::ops::scratch::{PerThread, take};
use crate::ops::simd::vectorized;

/// heads `[Nq, C]` and, where backward needs it, the log-sum-exp of each row and head, lse `[Nq, H]`.
pub fn forward<T: Scalar>(
    heads_out: &mut [T],
    lse: Option<&mut [T]>,
    attention: &Attention<'_, T>,
    threads: &PerThread,
) {
    let heads = attention.heads;
    let outputs = Outputs {
        heads: Shared::new(heads_out, heads.hidden()),
        lse: lse.map(|lse| Shared::new(lse, heads.count)),
    };
    let (queries, keys) = attention.largest();
    let block = keys.min(KEY_BLOCK);
    let len = packed_len::<T>(heads.width, block)
        + packed_len::<T>(block, heads.width)
        + QUERY_TILE * row_stride::<T>(keys)
        + 3 * queries;
    threads.reserve::<T>(len);
    attention.for_tasks(|set, head| {
        threads.with(len, |buffer| forward_head(&outputs, buffer, attention, set, head));
    });
}

struct Outputs<'a, T> {
    heads: Shared<'a, T>,
    lse: Option<Shared<'a, T>>,
}

fn forward_head<T: Scalar>(
    outputs: &Outputs<'_, T>,
    mut buffer: &mut [T],
    attention: &Attention<'_, T>,
    set: usize,
    head: usize,
) {
    let heads = attention.heads;
    let (queries, keys) = (attention.num_queries(set), attention.key_rows(set));
    let stride = row_stride::<T>(keys.len());
    let rows = attention.output_rows(set, 0..queries);
    // SAFETY: each head of each set is one task's.
    let mut out = unsafe { outputs.heads.block(rows.clone(), heads.columns(head)) };
    let [max, total, rescale] = [(); 3].map(|()| take(&mut buffer, queries));
    for block in tiles(keys.len(), KEY_BLOCK) {
        let mut rest = &mut *buffer;
        let k = attention.k.head(within(&keys, &block), head, heads);
        let v = attention.v.head(within(&keys, &block), head, heads);
        let k = pack(take(&mut rest, packed_len::<T>(heads.width, block.len())), k.t()).padded();
        let v = pack(take(&mut rest, packed_len::<T>(block.len(), heads.width)), v);
        for tile in tiles(queries, QUERY_TILE) {
            let q = attention.q.head(attention.query_rows(set, tile.clone()), head, heads);
            let mut weights = MatMut::strided(rest, tile.len(), k.n, stride);
            gemm(&mut weights, Write::Set, &q, k, Finish::Plain);
            let state = Softmax {
                max: &mut max[tile.clone()],
                total: &mut total[tile.clone()],
                rescale: &mut rescale[tile.clone()],
                first: block.start == 0,
            };
            softmax(rest, stride, block.len(), attention.scale(), state);
            if let Some(dropout) = attention.dropout {
                for (row, weights) in tile.clone().zip(rest.chunks_mut(stride)) {
                    dropout.apply(&mut weights[..block.len()], block.start, [set, head, row]);
                }
            }
            let mut out = out.slice_rows(tile.clone());
            let mut write = Write::Set;
            if block.start > 0 {
                write = Write::Add;
                scale_rows(&mut out, &rescale[tile.clone()]);
            }
            gemm(&mut out, write, &Mat::strided(rest, tile.len(), block.len(), stride), v, Finish::Plain);
        }
    }
    rescale.iter_mut().zip(&*total).for_each(|(scale, &total)| *scale = T::ONE / total);
    scale_rows(&mut out, rescale);
    if let Some(lse) = &outputs.lse {
        // SAFETY: as above.
        let mut lse = unsafe { lse.block(rows, head..head + 1) };
        for (row, (&max, &total)) in max.iter().zip(&*total).enumerate() {
            lse.row_mut(row)[0] = max + total.ln();
        }
    }
}

/// The state of the softmax of each row of a tile over the keys so far.
struct Softmax<'a, T> {
    /// The largest logit.
    max: &'a mut [T],
    /// Σ exp(logit − max)
    total: &'a mut [T],
    /// What former weights are to be multiplied by.
    rescale: &'a mut [T],
    /// Whether there were no keys so far.
    first: bool,
}

vectorized! {
    /// In place logits/scale → exp(logit − max), for `keys` columns of rows `stride` apart.
    fn softmax<T: Scalar>(rows: &mut [T], stride: usize, keys: usize, scale: T, state: Softmax<'_, T>) {
        for (row, logits) in rows.chunks_mut(stride).take(state.max.len()).enumerate() {
            let logits = &mut logits[..keys];
            let largest = max_of(logits) * scale;
            let max = if state.first { largest } else { largest.max(state.max[row]) };
            logits.iter_mut().for_each(|x| *x = (*x * scale - max).exp());
            let total = sum(logits);
            if state.first {
                state.total[row] = total;
            } else {
                state.rescale[row] = (state.max[row] - max).exp();
                state.total[row] = state.total[row] * state.rescale[row] + total;
            }
            state.max[row] = max;
        }
    }
}

/// The largest number, in eight interleaved chains.
#[inline(always)]
fn max_of<T: Scalar>(row: &[T]) -> T {
    let mut lanes = [row[0]; 8];
    let chunks = row.chunks_exact(8);
    for &x in chunks.remainder() {
        lanes[0] = lanes[0].max(x);
    }
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = lane.max(x));
    }
    lanes.into_iter().fold(row[0], T::max)
}

fn scale_rows<T: Scalar>(rows: &mut MatMut<'_, T>, scales: &[T]) {
    for (row, &scale) in scales.iter().enumerate() {
        rows.row_mut(row).iter_mut().for_each(|x| *x *= scale);
    }
}
