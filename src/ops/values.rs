//! Values as checks of kernels take them: in f64, in other orders, and what plain evaluations make of them.

use super::Scalar;
use crate::device::sums::Sums;

/// Values as f64.
pub(in crate::ops) fn wide<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
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
    let ordered = |values: &[f32]| -> Vec<f32> {
        values.chunks(order.len()).flat_map(|row| order.iter().map(|&at| row[at])).collect()
    };
    let (a, b) = (ordered(a), ordered(b));
    let dot = |a: &[f32], b: &[f32]| sums.of(a.iter().copied().zip(b.iter().copied()));
    let rows = a.chunks(order.len());
    rows.flat_map(|a| b.chunks(order.len()).map(move |b| dot(a, b))).collect()
}
