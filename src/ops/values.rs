//! Values as checks of kernels take them: in f64, in other orders, and what plain evaluations make of them.

use half::bf16;

use super::Scalar;
use crate::ops::check::sums::{RowOfSums, Sums};

/// Values as f64.
pub(in crate::ops) fn wide<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

/// Values as f32.
pub(in crate::ops) fn narrow(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// Sums added to what was there before.
pub(in crate::ops) fn added<T: Scalar>(before: &[f32], sums: &[T]) -> Vec<f64> {
    let pairs = before.iter().zip(sums);
    pairs.map(|(&before, &sum)| (T::from_f64(before.into()) + sum).to_f64()).collect()
}

/// `[n, m]` of values `[m, n]`.
pub(in crate::ops) fn transposed<T: Copy>(values: &[T], n: usize) -> Vec<T> {
    (0..n).flat_map(|column| values.iter().skip(column).step_by(n).copied()).collect()
}

/// a `[m, k]` · b `[n, k]`ᵀ in f32, summed in an order of the k.
pub(in crate::ops) fn plain_product(a: &[f32], b: &[f32], order: &[usize], sums: Sums) -> Vec<f32> {
    let (k, n) = (order.len(), b.len() / order.len().max(1));
    let columns = transposed(b, k);
    let products = a.chunks(k.max(1)).flat_map(|row| row_times(row, &columns, n, order, sums));
    products.collect()
}

/// a `[k]` · b `[k, n]` in f32, summed in an order of the k.
pub(in crate::ops) fn row_times(a: &[f32], b: &[f32], n: usize, order: &[usize], sums: Sums) -> Vec<f32> {
    let mut row = RowOfSums::new(sums, n);
    order.iter().for_each(|&at| row.add(a[at], &b[at * n..][..n]));
    row.values().collect()
}
