//! Multi-head attention inside each set of a ragged batch: softmax(q·kᵀ/√D)·v, head by head (paper, eq. 4–6).
//!
//! Queries are either the documents of the set, or the same `M` inducing points for every set; keys and values
//! are the documents of the set or its `M` induced rows. Forward keeps only the log-sum-exp of each row;
//! backward recomputes the weights from it.

use std::ops::Range;

use rayon::prelude::*;

use super::Scalar;
use super::dropout::Dropout;
use super::gemm::{Mat, MatMut, Write, gemm};
use super::reduce::{dot, sum};

/// Query rows of one product: the tile of weights stays in the cache.
const QUERY_TILE: usize = 64;

/// Heads `H` and their width `D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// `H`
    pub count: usize,
    /// `D`
    pub width: usize,
}

impl Heads {
    fn hidden(self) -> usize {
        self.count * self.width
    }
}

/// Where one of q, k and v stands: `C` columns from `column` on, in rows of `stride` numbers.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    /// `[rows, stride]`
    pub data: &'a [T],
    /// Numbers from row to row.
    pub stride: usize,
    /// The first of the `C` columns.
    pub column: usize,
}

impl<'a, T> Rows<'a, T> {
    /// Head number `head` of `rows`.
    fn head(&self, rows: Range<usize>, head: usize, heads: Heads) -> Mat<'a, T> {
        let first = rows.start * self.stride + self.column + head * heads.width;
        Mat::strided(&self.data[first..], rows.len(), heads.width, self.stride)
    }
}

/// One attention: its inputs and which rows belong together.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a, T> {
    /// Heads.
    pub heads: Heads,
    /// Queries `[Nq, C]`, or `[M, C]` where they are shared by all sets.
    pub q: Rows<'a, T>,
    /// Keys `[Nk, C]`
    pub k: Rows<'a, T>,
    /// Values `[Nk, C]`
    pub v: Rows<'a, T>,
    /// Offsets `[B + 1]` of the sets among the output rows.
    pub query_offsets: &'a [usize],
    /// Offsets `[B + 1]` of the sets among the rows of k and v.
    pub key_offsets: &'a [usize],
    /// Whether all sets ask the same `M` queries.
    pub shared_queries: bool,
    /// Dropout of the weights, in training.
    pub dropout: Option<Dropout>,
}

/// Where the gradients of q, k and v go; all are written with `=`, in rows of the given strides.
#[derive(Debug)]
pub struct QkvGradients<'a, T> {
    /// `[Nq, C]` in the rows of the output, also where queries are shared (the caller sums them over the sets).
    pub q: RowsMut<'a, T>,
    /// Keys and values: rows `[Nk, stride]` that hold k at `k_column` and v at `v_column`.
    pub kv: RowsMut<'a, T>,
    /// The first column of k's gradient in a row of `kv`.
    pub k_column: usize,
    /// The first column of v's gradient in a row of `kv`.
    pub v_column: usize,
}

/// Writable rows `[rows, stride]`.
#[derive(Debug)]
pub struct RowsMut<'a, T> {
    /// `[rows, stride]`
    pub data: &'a mut [T],
    /// Numbers from row to row.
    pub stride: usize,
}

impl<T: Scalar> Attention<'_, T> {
    fn query_rows(&self, set: usize, tile: Range<usize>) -> Range<usize> {
        let first = if self.shared_queries { 0 } else { self.query_offsets[set] };
        first + tile.start..first + tile.end
    }

    fn key_rows(&self, set: usize) -> Range<usize> {
        self.key_offsets[set]..self.key_offsets[set + 1]
    }

    fn num_queries(&self, set: usize) -> usize {
        self.query_offsets[set + 1] - self.query_offsets[set]
    }

    fn scale(&self) -> T {
        T::from_f64(1.0 / (self.heads.width as f64).sqrt())
    }

    /// logits `[tile, keys]` = q·kᵀ/√D
    fn logits(&self, logits: &mut [T], set: usize, head: usize, tile: Range<usize>) {
        let keys = self.key_rows(set);
        let (rows, columns) = (tile.len(), keys.len());
        let q = self.q.head(self.query_rows(set, tile), head, self.heads);
        let k = self.k.head(keys, head, self.heads);
        gemm(MatMut::new(logits, rows, columns), Write::Set, self.scale(), q, k.t());
    }
}

/// heads `[Nq, C]` and the log-sum-exp of each row and head, lse `[Nq, H]`.
pub fn forward<T: Scalar>(heads_out: &mut [T], lse: &mut [T], attention: &Attention<'_, T>) {
    let heads = attention.heads;
    let outputs = by_set(heads_out, attention.query_offsets, heads.hidden());
    let lses = by_set(lse, attention.query_offsets, heads.count);
    outputs.into_par_iter().zip(lses).enumerate().for_each_init(Vec::new, |scratch, (set, (out, lse))| {
        let keys = attention.key_rows(set);
        for head in 0..heads.count {
            let v = attention.v.head(keys.clone(), head, heads);
            for tile in tiles(attention.num_queries(set)) {
                scratch.resize(tile.len() * keys.len(), T::ZERO);
                attention.logits(scratch, set, head, tile.clone());
                for (row, weights) in tile.clone().zip(scratch.chunks_exact_mut(keys.len())) {
                    lse[row * heads.count + head] = softmax(weights);
                    if let Some(dropout) = attention.dropout {
                        dropout.apply(weights, set, head, row);
                    }
                }
                let out = &mut out[tile.start * heads.hidden() + head * heads.width..];
                let out = MatMut::strided(out, tile.len(), heads.width, heads.hidden());
                gemm(out, Write::Set, T::ONE, Mat::new(scratch, tile.len(), keys.len()), v);
            }
        }
    });
}

/// Gradients of q, k, v from d_heads `[Nq, C]`, given forward's outputs.
pub fn backward<T: Scalar>(
    gradients: QkvGradients<'_, T>,
    d_heads: &[T],
    heads_out: &[T],
    lse: &[T],
    attention: &Attention<'_, T>,
) {
    let QkvGradients { q, kv, k_column, v_column } = gradients;
    let (q_stride, kv_stride) = (q.stride, kv.stride);
    let q_sets = by_set(q.data, attention.query_offsets, q_stride);
    let kv_sets = by_set(kv.data, attention.key_offsets, kv_stride);
    q_sets.into_par_iter().zip(kv_sets).enumerate().for_each_init(
        || (Vec::new(), Vec::new()),
        |scratch, (set, (dq, dkv))| {
            let shape = SetGradients { dq, dkv, q_stride, kv_stride, k_column, v_column };
            backward_set(shape, scratch, d_heads, heads_out, lse, attention, set);
        },
    );
}

/// The gradients' rows of one set.
struct SetGradients<'a, T> {
    dq: &'a mut [T],
    dkv: &'a mut [T],
    q_stride: usize,
    kv_stride: usize,
    k_column: usize,
    v_column: usize,
}

fn backward_set<T: Scalar>(
    gradients: SetGradients<'_, T>,
    (weights, d_weights): &mut (Vec<T>, Vec<T>),
    d_heads: &[T],
    heads_out: &[T],
    lse: &[T],
    attention: &Attention<'_, T>,
    set: usize,
) {
    let SetGradients { dq, dkv, q_stride, kv_stride, k_column, v_column } = gradients;
    let heads = attention.heads;
    let (hidden, width) = (heads.hidden(), heads.width);
    let keys = attention.key_rows(set);
    let first_row = attention.query_offsets[set];
    for head in 0..heads.count {
        let column = head * width;
        let k = attention.k.head(keys.clone(), head, heads);
        let v = attention.v.head(keys.clone(), head, heads);
        for tile in tiles(attention.num_queries(set)) {
            let rows = tile.len();
            let write = if tile.start == 0 { Write::Set } else { Write::Add };
            let first = (first_row + tile.start) * hidden + column;
            let d_out = Mat::strided(&d_heads[first..], rows, width, hidden);
            weights.resize(rows * keys.len(), T::ZERO);
            d_weights.resize(rows * keys.len(), T::ZERO);

            // P = exp(logits − lse); with dropout, P̃ = P∘mask takes its place in the products.
            attention.logits(weights, set, head, tile.clone());
            for (row, weights) in tile.clone().zip(weights.chunks_exact_mut(keys.len())) {
                let lse = lse[(first_row + row) * heads.count + head];
                weights.iter_mut().for_each(|w| *w = (*w - lse).exp());
            }
            gemm(MatMut::new(d_weights, rows, keys.len()), Write::Set, T::ONE, d_out, v.t());
            let dv = &mut dkv[v_column + column..];
            let dv = MatMut::strided(dv, keys.len(), width, kv_stride);
            if let Some(dropout) = attention.dropout {
                let mut dropped = weights.clone();
                for (row, (dropped, d_weights)) in tile
                    .clone()
                    .zip(dropped.chunks_exact_mut(keys.len()).zip(d_weights.chunks_exact_mut(keys.len())))
                {
                    dropout.apply(dropped, set, head, row);
                    dropout.apply(d_weights, set, head, row);
                }
                gemm(dv, write, T::ONE, Mat::new(&dropped, rows, keys.len()).t(), d_out);
            } else {
                gemm(dv, write, T::ONE, Mat::new(weights, rows, keys.len()).t(), d_out);
            }

            // dS = P∘(dP − Σ P·dP), and Σ P·dP = d_out·out.
            let both = weights.chunks_exact_mut(keys.len()).zip(d_weights.chunks_exact(keys.len()));
            for (row, (weights, d_weights)) in tile.clone().zip(both) {
                let here = (first_row + row) * hidden + column..(first_row + row) * hidden + column + width;
                let delta = dot(&d_heads[here.clone()], &heads_out[here]);
                weights.iter_mut().zip(d_weights).for_each(|(w, &d)| *w *= d - delta);
            }
            let d_logits = Mat::new(weights, rows, keys.len());
            let dq = &mut dq[tile.start * q_stride + column..];
            gemm(MatMut::strided(dq, rows, width, q_stride), Write::Set, attention.scale(), d_logits, k);
            let q = attention.q.head(attention.query_rows(set, tile), head, heads);
            let dk = &mut dkv[k_column + column..];
            gemm(
                MatMut::strided(dk, keys.len(), width, kv_stride),
                write,
                attention.scale(),
                d_logits.t(),
                q,
            );
        }
    }
}

/// In place softmax of a row; returns its log-sum-exp.
fn softmax<T: Scalar>(row: &mut [T]) -> T {
    let max = row.iter().copied().fold(row[0], T::max);
    row.iter_mut().for_each(|x| *x = (*x - max).exp());
    let total = sum(row);
    let inverse = T::ONE / total;
    row.iter_mut().for_each(|x| *x *= inverse);
    max + total.ln()
}

fn tiles(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(QUERY_TILE).map(move |first| first..(first + QUERY_TILE).min(rows))
}

/// Cuts rows of `stride` numbers at the offsets of the sets.
fn by_set<'a, T>(mut rows: &'a mut [T], offsets: &[usize], stride: usize) -> Vec<&'a mut [T]> {
    offsets
        .windows(2)
        .map(|pair| {
            let (set, rest) = std::mem::take(&mut rows).split_at_mut((pair[1] - pair[0]) * stride);
            rows = rest;
            set
        })
        .collect()
}
