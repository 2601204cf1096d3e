//! Sums of a matrix product as GPUs make them, for the rule (`rule.rs`).

use crate::ops::Scalar;
use crate::ops::simd::vectorized;

/// Products that a matrix instruction adds at once (m16n8k16).
const AT_ONCE: usize = 16;

/// How the sums of a matrix product of bf16 are rounded.
///
/// Tensor cores do not add in f32. They cut what they add a few bits behind those of the largest of it, and then the sum
/// (Fasi, Higham, Mikaitis, Pranesh 2021: "Numerical behavior of NVIDIA tensor cores"); how many products at once, and how
/// many bits behind, differs from card to card. That sums are cut does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// One product after the other, each sum to the nearest f32.
    Nearest,
    /// 16 products and what was there exactly, their sum toward zero to f32.
    Truncated,
}

/// Sums of a matrix product side by side, for which products come a row at a time.
#[derive(Clone, Debug)]
pub(crate) struct RowOfSums {
    sums: Sums,
    values: Vec<f64>,
    added: usize,
}

impl RowOfSums {
    /// So many sums of nothing.
    pub fn new(sums: Sums, len: usize) -> Self {
        RowOfSums { sums, values: vec![0.0; len], added: 0 }
    }

    /// Adds factor · row.
    pub fn add(&mut self, factor: f32, row: &[f32]) {
        match self.sums {
            Sums::Nearest => add_rounded(&mut self.values, factor, row),
            Sums::Truncated => add_exactly(&mut self.values, factor, row),
        }
        self.added += 1;
        if self.sums == Sums::Truncated && self.added.is_multiple_of(AT_ONCE) {
            cut(&mut self.values);
        }
    }

    /// The sums.
    pub fn values(&self) -> impl Iterator<Item = f32> + '_ {
        self.values.iter().map(|&sum| toward_zero(sum))
    }
}

vectorized! {
    /// Adds factor · row, each product and each sum rounded to the row's numbers.
    fn add_rounded<T: Scalar>(sums: &mut [f64], factor: T, row: &[T]) {
        sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum = (T::from_f64(*sum) + factor * value).to_f64());
    }
}

vectorized! {
    /// Adds factor · row in f64.
    fn add_exactly<T: Scalar>(sums: &mut [f64], factor: T, row: &[T]) {
        sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += factor.to_f64() * value.to_f64());
    }
}

vectorized! {
    /// Cuts sums to f32.
    fn cut<T: Scalar>(sums: &mut [T]) {
        sums.iter_mut().for_each(|sum| *sum = T::from_f64(toward_zero(sum.to_f64()).into()));
    }
}

/// The nearest f32 that is no larger in magnitude.
#[inline(always)]
fn toward_zero(value: f64) -> f32 {
    let near = value as f32;
    let is_larger = f64::from(near).abs() > value.abs();
    f32::from_bits(near.to_bits() - u32::from(is_larger))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Just above and just below a number that is no f32.
    const BETWEEN: f32 = 1.0 / 16_777_216.0;

    #[test]
    fn sums_are_cut() {
        for (last, nearest) in [(1.0, 1.0 + 2.0 * BETWEEN), (-1.0, 1.0 - 2.0 * BETWEEN)] {
            let cut = if last > 0.0 { 1.0 } else { 1.0 - 2.0 * BETWEEN };
            for (sums, right) in [(Sums::Nearest, nearest), (Sums::Truncated, cut)] {
                let mut row = RowOfSums::new(sums, 2);
                row.add(1.0, &[1.0, -1.0]);
                row.add(1.5 * BETWEEN, &[last, -last]);
                assert_eq!(row.values().collect::<Vec<_>>(), [right, -right]);
            }
        }
    }

    /// Behind 16 products what was cut is lost, within them not.
    #[test]
    fn sixteen_products_are_added_at_once() {
        let sum = |len| {
            let mut row = RowOfSums::new(Sums::Truncated, 1);
            (0..len).for_each(|at| row.add(1.0, &[if at == 0 { 1.0 } else { BETWEEN }]));
            row.values().next().unwrap()
        };
        assert_eq!([2, 3, 16].map(sum), [1.0, 1.0 + 2.0 * BETWEEN, 1.0 + 14.0 * BETWEEN]);
        assert_eq!([17, 18, 31].map(sum), [1.0 + 14.0 * BETWEEN, 1.0 + 16.0 * BETWEEN, 1.0 + 28.0 * BETWEEN]);
        assert!(toward_zero(f64::NAN).is_nan());
        assert_eq!(toward_zero(f64::NEG_INFINITY), f32::NEG_INFINITY);
    }
}
