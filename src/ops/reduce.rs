//! Sums along a row in eight interleaved chains: vector code, and less rounding than one chain.

use super::Scalar;

const LANES: usize = 8;

/// Σ a
#[inline]
pub fn sum<T: Scalar>(a: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let chunks = a.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &a)| *lane += a);
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &a)| *lane += a);
    combine(lanes)
}

/// Σ a·b
#[inline]
pub fn dot<T: Scalar>(a: &[T], b: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        lanes.iter_mut().zip(a).zip(b).for_each(|((lane, &a), &b)| *lane += a * b);
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, (&a, &b))| *lane += a * b);
    combine(lanes)
}

fn combine<T: Scalar>(l: [T; LANES]) -> T {
    ((l[0] + l[4]) + (l[1] + l[5])) + ((l[2] + l[6]) + (l[3] + l[7]))
}
