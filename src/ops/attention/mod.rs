//! Multi-head attention inside each set of a ragged batch: softmax(q·kᵀ/√D)·v, head by head (paper, eq. 4–6).
//!
//! Queries are either the documents of the set, or the same `M` inducing points for every set; keys and values
//! are the documents of the set or its `M` induced rows. One task is one head of one set: it goes over blocks of
//! keys and tiles of queries, so that the weights of a tile stay in the cache. Forward keeps only the log-sum-exp
//! of each row; backward recomputes the weights from it.

mod backward;
#[cfg(feature = "cuda")]
mod backward_warpgroups;
#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod device;
mod forward;
#[cfg(feature = "cuda")]
mod forward_groups;
#[cfg(feature = "cuda")]
mod forward_warpgroups;
#[cfg(feature = "cuda")]
mod groups;
#[cfg(feature = "cuda")]
pub(crate) mod naive;
#[cfg(feature = "cuda")]
mod parts;
#[cfg(feature = "cuda")]
mod plan;
#[cfg(feature = "cuda")]
mod scratch;
#[cfg(feature = "cuda")]
mod tiles;

use std::ops::Range;

pub use backward::backward;
#[cfg(feature = "cuda")]
pub use backward_warpgroups::BackwardWarpgroups;
#[cfg(feature = "cuda")]
pub use device::{DeviceAttention, Qkv, attention_backward, attention_forward};
pub use forward::forward;
#[cfg(feature = "cuda")]
pub use forward_groups::ForwardGroups;
#[cfg(feature = "cuda")]
pub use forward_warpgroups::ForwardWarpgroups;
#[cfg(feature = "cuda")]
pub use naive::{NaivePlan, RowKernel};
#[cfg(feature = "cuda")]
pub use parts::Parts;
#[cfg(feature = "cuda")]
pub use plan::AttentionPlan;
use rayon::prelude::*;
#[cfg(feature = "cuda")]
pub use scratch::{AttentionScratch, ScratchLen};

use super::Scalar;
use super::dropout::Dropout;
use super::gemm::Mat;

/// Query rows of one tile of weights.
const QUERY_TILE: usize = 48;

/// Keys of one tile of weights: a multiple of a packed panel's inner dimension, and of a dropout group.
const KEY_BLOCK: usize = 512;

/// Products q·k that are worth a task of their own.
const TASK_PRODUCTS: usize = 1 << 12;

/// Heads `H` and their width `D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// `H`
    pub count: usize,
    /// `D`
    pub width: usize,
}

impl Heads {
    /// `C`
    pub fn hidden(self) -> usize {
        self.count * self.width
    }

    /// 1 / √D
    #[cfg(feature = "cuda")]
    fn scale(self) -> f64 {
        1.0 / (self.width as f64).sqrt()
    }

    fn columns(self, head: usize) -> Range<usize> {
        head * self.width..(head + 1) * self.width
    }
}

/// Who attends to whom, on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roles {
    /// Each document to the documents of its set: q, k and v of N rows.
    Documents,
    /// The same M queries to each set's documents: q of M rows, k and v of N, results of B·M.
    Induce {
        /// M
        points: usize,
    },
    /// Each document to the M rows of its set: q of N rows, k and v of B·M.
    Attend {
        /// M
        points: usize,
    },
}

/// Where the gradients of q, k and v go; all are written with `=`.
#[derive(Debug)]
pub enum QkvGradients<'a, R: ?Sized> {
    /// Of q, k and v in one, as they stand themselves: rows `[N, 3C]` on the CPU, `[3, H, N, D]` on a GPU.
    Together(&'a mut R),
    /// Apart.
    Apart {
        /// In the rows of the output, also where queries are shared (the caller sums them over the sets): `[Nq, C]` on
        /// the CPU, `[H, Nq, D]` on a GPU.
        q: &'a mut R,
        /// Of k and v: rows `[Nk, 2C]` on the CPU, `[2, H, Nk, D]` on a GPU.
        kv: &'a mut R,
    },
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

impl<T: Scalar> Attention<'_, T> {
    /// The rows of q for the set's queries `tile`.
    fn query_rows(&self, set: usize, tile: Range<usize>) -> Range<usize> {
        let first = if self.shared_queries { 0 } else { self.query_offsets[set] };
        first + tile.start..first + tile.end
    }

    /// The rows of the output for the set's queries `tile`.
    fn output_rows(&self, set: usize, tile: Range<usize>) -> Range<usize> {
        let first = self.query_offsets[set];
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

    /// Most queries and most keys of a set.
    fn largest(&self) -> (usize, usize) {
        let most = |offsets: &[usize]| offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        (most(self.query_offsets), most(self.key_offsets))
    }

    /// Calls `task` once for each head of each set, on all threads.
    fn for_tasks(&self, task: impl Fn(usize, usize) + Sync) {
        let sets = self.query_offsets.len() - 1;
        let pairs = self.query_offsets.windows(2).zip(self.key_offsets.windows(2));
        let products: usize = pairs.map(|(q, k)| (q[1] - q[0]) * (k[1] - k[0])).sum();
        // Small sets share a task; large ones are handed out one by one.
        let together = (TASK_PRODUCTS * sets).div_ceil(products.max(1)).clamp(1, self.heads.count);
        (0..sets * self.heads.count)
            .into_par_iter()
            .with_min_len(together)
            .with_max_len(together)
            .for_each(|index| task(index / self.heads.count, index % self.heads.count));
    }
}

/// Distance of rows of weights: room for whole panels, and no two rows a multiple of a page apart, where they would
/// share a cache set.
fn row_stride<T: Scalar>(keys: usize) -> usize {
    keys.min(KEY_BLOCK).next_multiple_of(T::kernel().panel_width()) + 16
}

fn tiles(rows: usize, tile: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(tile).map(move |first| first..(first + tile).min(rows))
}

/// The keys `block` of a set, as rows of k and v.
fn within(rows: &Range<usize>, block: &Range<usize>) -> Range<usize> {
    rows.start + block.start..rows.start + block.end
}
