//! Ordinal embeddings: the row of a table that belongs to a document's rank in an initial ranking is added to
//! its hidden row (paper, section 4.2).

use rayon::prelude::*;

use super::Scalar;

/// Columns of one piece of the gradient.
const COLUMN_TILE: usize = 32;

/// x `[N, C]` += table `[n_max, C]` at each document's index; a negative index adds nothing.
pub fn forward<T: Scalar>(x: &mut [T], table: &[T], indices: &[i32], hidden: usize) {
    for (row, &index) in x.chunks_exact_mut(hidden).zip(indices) {
        if let Ok(index) = usize::try_from(index) {
            row.iter_mut().zip(&table[index * hidden..][..hidden]).for_each(|(x, &e)| *x += e);
        }
    }
}

/// d_table `[n_max, C]` += dx `[N, C]`, documents in order.
pub fn backward<T: Scalar>(d_table: &mut [T], dx: &[T], indices: &[i32], hidden: usize) {
    // Columns are independent, so a piece takes some columns of all rows and no two pieces share a sum.
    let pieces: Vec<Vec<T>> = (0..hidden.div_ceil(COLUMN_TILE))
        .into_par_iter()
        .map(|piece| {
            let columns = piece * COLUMN_TILE..((piece + 1) * COLUMN_TILE).min(hidden);
            let mut sums = vec![T::ZERO; d_table.len() / hidden * columns.len()];
            for (row, &index) in dx.chunks_exact(hidden).zip(indices) {
                if let Ok(index) = usize::try_from(index) {
                    let sums = &mut sums[index * columns.len()..][..columns.len()];
                    sums.iter_mut().zip(&row[columns.clone()]).for_each(|(sum, &d)| *sum += d);
                }
            }
            sums
        })
        .collect();
    for (piece, sums) in pieces.iter().enumerate() {
        let first = piece * COLUMN_TILE;
        let width = (hidden - first).min(COLUMN_TILE);
        for (row, sums) in d_table.chunks_exact_mut(hidden).zip(sums.chunks_exact(width)) {
            row[first..first + width].iter_mut().zip(sums).for_each(|(d, &sum)| *d += sum);
        }
    }
}
