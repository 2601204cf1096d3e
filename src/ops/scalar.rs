//! The numbers that the operations are generic over: f32 and f64.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

use bytemuck::Pod;

use super::gemm::{Kernel, Kernels};
use super::simd::level;

/// f32 (the product) or f64 (the oracle).
pub trait Scalar:
    Pod
    + Kernels
    + Default
    + Debug
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + Sum
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The nearest representable number.
    fn from_f64(value: f64) -> Self;
    /// The same number as f64.
    fn to_f64(self) -> f64;
    /// The exponential function; arguments are expected to be at most 0 or of moderate size.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The larger of two numbers.
    fn max(self, other: Self) -> Self;

    /// The micro-kernel of the level in use.
    #[doc(hidden)]
    fn kernel() -> Kernel<Self>;
}

impl Scalar for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    #[inline]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline]
    fn exp(self) -> Self {
        exp_f32(self)
    }
    #[inline]
    fn ln(self) -> Self {
        f32::ln(self)
    }
    #[inline]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    #[inline]
    fn max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline]
    fn kernel() -> Kernel<Self> {
        Self::at_level(level())
    }
}

impl Scalar for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline]
    fn from_f64(value: f64) -> Self {
        value
    }
    #[inline]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline]
    fn exp(self) -> Self {
        f64::exp(self)
    }
    #[inline]
    fn ln(self) -> Self {
        f64::ln(self)
    }
    #[inline]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    #[inline]
    fn max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline]
    fn kernel() -> Kernel<Self> {
        Self::at_level(level())
    }
}

/// e^x without branches, so that a loop over it becomes vector code (libm's is a call an element).
///
/// Cephes' reduction x = n·ln 2 + r with a degree-5 polynomial; relative error below 2 ulp. Arguments below
/// −87.3 give the smallest normal number's neighbourhood instead of a denormal, above 88 a large finite
/// number; NaN stays NaN.
#[inline]
fn exp_f32(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5·2^23 rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.3 { -87.3 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let mantissa = p * r * r + r + 1.0;
    let exponent = (shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits());
    mantissa * f32::from_bits(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_exp_is_within_two_ulp() {
        let mut worst = 0.0f64;
        for step in 0..2_000_000 {
            let x = -87.3 + step as f32 * (175.0 / 2_000_000.0);
            let exact = f64::from(x).exp();
            let ulp = exact * f64::from(f32::EPSILON);
            worst = worst.max((f64::from(exp_f32(x)) - exact).abs() / ulp);
        }
        assert!(worst < 2.0, "worst error {worst} ulp");
    }

    #[test]
    fn fast_exp_at_the_edges() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert!(exp_f32(-1e30) < 1.3e-38 && exp_f32(f32::NEG_INFINITY) < 1.3e-38);
        assert!(exp_f32(1e30).is_finite());
        assert!(exp_f32(f32::NAN).is_nan());
    }
}
