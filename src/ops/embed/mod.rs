//! Ordinal embeddings: the row of a table that belongs to a document's rank in an initial ranking is added to
//! its hidden row (paper, section 4.2).

#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod plan;

#[cfg(feature = "cuda")]
pub use device::{DeviceOrdinals, embed_backward, embed_forward};
#[cfg(feature = "cuda")]
pub use plan::{ByTableRow, EmbedPlan, EmbedShape};
use rayon::prelude::*;

use super::Scalar;
use super::rows::{RowsMut, Shared, for_tiles, free_tile};

/// Columns of one piece of the gradient.
const COLUMN_TILE: usize = 32;

/// x `[N, C]` += table `[n_max, C]` at each document's index; a negative index adds nothing.
pub fn forward<T: Scalar>(x: &mut [T], table: &[T], indices: &[i32], hidden: usize) {
    for_tiles(0..indices.len(), free_tile(indices.len()), RowsMut::new(x, hidden), &|tile, x| {
        for (row, &index) in x.data.chunks_exact_mut(hidden).zip(&indices[tile]) {
            if let Ok(index) = usize::try_from(index) {
                row.iter_mut().zip(&table[index * hidden..][..hidden]).for_each(|(x, &e)| *x += e);
            }
        }
    });
}

/// d_table `[n_max, C]` += dx `[N, C]`, documents in order.
pub fn backward<T: Scalar>(d_table: &mut [T], dx: &[T], indices: &[i32], hidden: usize) {
    let rows = d_table.len() / hidden;
    let d_table = Shared::new(d_table, hidden);
    (0..hidden.div_ceil(COLUMN_TILE)).into_par_iter().for_each(|piece| {
        let columns = piece * COLUMN_TILE..((piece + 1) * COLUMN_TILE).min(hidden);
        // SAFETY: a piece has its own columns.
        let mut sums = unsafe { d_table.block(0..rows, columns.clone()) };
        for (row, &index) in dx.chunks_exact(hidden).zip(indices) {
            if let Ok(index) = usize::try_from(index) {
                let sums = sums.row_mut(index).iter_mut();
                sums.zip(&row[columns.clone()]).for_each(|(sum, &d)| *sum += d);
            }
        }
    });
}
