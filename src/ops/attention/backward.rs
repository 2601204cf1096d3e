//! Backward: the weights P are recomputed tile by tile from the log-sum-exp of forward.

use super::{Attention, KEY_BLOCK, QUERY_TILE, QkvGradients, Rows, row_stride, tiles, within};
use crate::ops::Scalar;
use crate::ops::gemm::{Finish, Mat, MatMut, Write, gemm, pack, packed_len};
use crate::ops::reduce::dot;
use crate::ops::rows::Shared;
use crate::ops::scratch::{PerThread, take};
use crate::ops::simd::vectorized;

/// Gradients of q, k, v from d_heads `[Nq, C]`, given forward's outputs.
pub fn backward<T: Scalar>(
    gradients: QkvGradients<'_, [T]>,
    d_heads: &[T],
    heads_out: &[T],
    lse: &[T],
    attention: &Attention<'_, T>,
    threads: &PerThread,
) {
    let heads = attention.heads;
    let c = heads.hidden();
    let apart;
    let gradients = match gradients {
        QkvGradients::Together(qkv) => {
            apart = [Shared::new(qkv, 3 * c), Shared::new(&mut [], 1)];
            Gradients { q: &apart[0], kv: &apart[0], k_column: c, v_column: 2 * c }
        }
        QkvGradients::Apart { q, kv } => {
            apart = [Shared::new(q, c), Shared::new(kv, 2 * c)];
            Gradients { q: &apart[0], kv: &apart[1], k_column: 0, v_column: c }
        }
    };
    let (queries, keys) = attention.largest();
    let block = keys.min(KEY_BLOCK);
    let len = 2 * packed_len::<T>(queries.min(QUERY_TILE), heads.width)
        + 2 * packed_len::<T>(heads.width, block)
        + packed_len::<T>(block, heads.width)
        + 3 * QUERY_TILE * row_stride::<T>(keys)
        + queries;
    threads.reserve::<T>(len);
    let inputs = Inputs { d_heads, heads_out, lse };
    attention.for_tasks(|set, head| {
        threads.with(len, |buffer| backward_head(&gradients, buffer, &inputs, attention, set, head));
    });
}

struct Gradients<'a, T> {
    q: &'a Shared<'a, T>,
    kv: &'a Shared<'a, T>,
    k_column: usize,
    v_column: usize,
}

struct Inputs<'a, T> {
    d_heads: &'a [T],
    heads_out: &'a [T],
    lse: &'a [T],
}

fn backward_head<T: Scalar>(
    gradients: &Gradients<'_, T>,
    mut buffer: &mut [T],
    inputs: &Inputs<'_, T>,
    attention: &Attention<'_, T>,
    set: usize,
    head: usize,
) {
    let heads = attention.heads;
    let c = heads.hidden();
    let (queries, keys) = (attention.num_queries(set), attention.key_rows(set));
    let stride = row_stride::<T>(keys.len());
    let output = attention.output_rows(set, 0..queries);
    let columns = heads.columns(head);
    let beside = |first: usize| first + columns.start..first + columns.end;
    let d_heads = Rows { data: inputs.d_heads, stride: c, column: 0 };
    // SAFETY: each head of each set is one task's; the columns of q, k and v are apart.
    let (mut dq, mut dk, mut dv) = unsafe {
        (
            gradients.q.block(output.clone(), columns.clone()),
            gradients.kv.block(keys.clone(), beside(gradients.k_column)),
            gradients.kv.block(keys.clone(), beside(gradients.v_column)),
        )
    };
    if queries == 0 {
        // No tile of queries sets these.
        for gradient in [&mut dk, &mut dv] {
            (0..gradient.rows()).for_each(|row| gradient.row_mut(row).fill(T::ZERO));
        }
        return;
    }
    let deltas = take(&mut buffer, queries);
    for (row, delta) in deltas.iter_mut().enumerate() {
        // Σ P·dP of a row = d_out·out.
        let here = (output.start + row) * c + columns.start..(output.start + row) * c + columns.end;
        *delta = dot(&inputs.d_heads[here.clone()], &inputs.heads_out[here]);
    }
    let tile_len = packed_len::<T>(QUERY_TILE.min(queries), heads.width);
    for block in tiles(keys.len(), KEY_BLOCK) {
        let mut rest = &mut *buffer;
        let k = attention.k.head(within(&keys, &block), head, heads);
        let v = attention.v.head(within(&keys, &block), head, heads);
        let across = packed_len::<T>(heads.width, block.len());
        let k_t = pack(take(&mut rest, across), k.t()).padded();
        let v_t = pack(take(&mut rest, across), v.t()).padded();
        let k = pack(take(&mut rest, packed_len::<T>(block.len(), heads.width)), k);
        let [weights, d_weights, dropped] = [(); 3].map(|()| take(&mut rest, QUERY_TILE * stride));
        let (q_panels, d_out_panels) = (take(&mut rest, tile_len), take(&mut rest, tile_len));
        let (mut dk, mut dv) = (dk.slice_rows(block.clone()), dv.slice_rows(block.clone()));
        for tile in tiles(queries, QUERY_TILE) {
            let (rows, count) = (tile.len(), block.len());
            let write = if tile.start == 0 { Write::Set } else { Write::Add };
            let q = attention.q.head(attention.query_rows(set, tile.clone()), head, heads);
            let d_out = d_heads.head(attention.output_rows(set, tile.clone()), head, heads);
            gemm(&mut MatMut::strided(weights, rows, k_t.n, stride), Write::Set, &q, k_t, Finish::Plain);
            gemm(
                &mut MatMut::strided(d_weights, rows, v_t.n, stride),
                Write::Set,
                &d_out,
                v_t,
                Finish::Plain,
            );
            let q = pack(q_panels, q);
            let d_out = pack(d_out_panels, d_out);
            let transposed = |weights| Mat::strided(weights, rows, count, stride).t();

            let row = |local: usize| {
                let lse = inputs.lse[(output.start + tile.start + local) * heads.count + head];
                (lse, deltas[tile.start + local])
            };
            // With dropout, P∘mask takes P's place in the product with d_out, and dP is masked.
            if let Some(dropout) = attention.dropout {
                for local in 0..rows {
                    let here = local * stride..local * stride + count;
                    let at = [set, head, tile.start + local];
                    let (lse, _) = row(local);
                    weights_of(&mut dropped[here.clone()], &weights[here.clone()], attention.scale(), lse);
                    dropout.apply(&mut dropped[here.clone()], block.start, at);
                    dropout.apply(&mut d_weights[here], block.start, at);
                }
            }
            for local in 0..rows {
                let here = local * stride..local * stride + count;
                let (lse, delta) = row(local);
                weights_and_gradients(
                    &mut weights[here.clone()],
                    &mut d_weights[here],
                    attention.scale(),
                    lse,
                    delta,
                );
            }
            let kept = if attention.dropout.is_some() { &*dropped } else { &*weights };
            gemm(&mut dv, write, &transposed(kept), d_out, Finish::Plain);
            gemm(&mut dk, write, &transposed(d_weights), q, Finish::Plain);
            let write = if block.start == 0 { Write::Set } else { Write::Add };
            let d_logits = Mat::strided(d_weights, rows, count, stride);
            gemm(&mut dq.slice_rows(tile.clone()), write, &d_logits, k, Finish::Plain);
        }
    }
}

vectorized! {
    /// P = exp(logits − lse), from logits/scale.
    fn weights_of<T: Scalar>(weights: &mut [T], logits: &[T], scale: T, lse: T) {
        weights.iter_mut().zip(logits).for_each(|(w, &x)| *w = (x * scale - lse).exp());
    }
}

vectorized! {
    /// In place logits/scale → P = exp(logits − lse) and dP → scale·P∘(dP − Σ P·dP).
    fn weights_and_gradients<T: Scalar>(weights: &mut [T], d_weights: &mut [T], scale: T, lse: T, delta: T) {
        for (w, d) in weights.iter_mut().zip(d_weights) {
            *w = (*w * scale - lse).exp();
            *d = *w * (*d - delta) * scale;
        }
    }
}
