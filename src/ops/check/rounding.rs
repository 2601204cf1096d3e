//! Exact results in the types that kernels store them in, for the rule (`rule.rs`).

use half::bf16;

/// The nearest bf16, the even one of two that are as near.
///
/// [`bf16::from_f64`] drops the lower half of the value's bits before it rounds, and takes what is just above the middle of
/// two for the middle; so does rounding to f32 first.
#[inline]
pub fn nearest_bf16(value: f64) -> bf16 {
    let near = value as f32;
    let error = value - f64::from(near);
    // Of the two f32 around the value, the odd one: it is no bf16 and in the middle of no two, but on the value's side.
    let is_exact = error == 0.0 || error.is_nan();
    if is_exact || near.to_bits() & 1 == 1 {
        return bf16::from_f32(near);
    }
    bf16::from_f32(if error > 0.0 { near.next_up() } else { near.next_down() })
}

/// The nearest bf16, as f64.
#[inline]
pub fn to_bf16(value: f64) -> f64 {
    nearest_bf16(value).to_f64()
}

/// The nearest f32, as f64.
#[inline]
pub fn to_f32(value: f64) -> f64 {
    f64::from(value as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bf16, the middle of it and the next, and what is next to the middle.
    #[test]
    fn the_nearest_bf16_of_every_middle() {
        for bits in 0..0x7f80u16 {
            let [low, high] = [bits, bits + 1].map(bf16::from_bits);
            // Behind the largest there would be 2¹²⁸.
            let next = if high.is_infinite() { 128f64.exp2() } else { high.to_f64() };
            let middle = low.to_f64() + (next - low.to_f64()) / 2.0;
            let even = if bits % 2 == 0 { low } else { high };
            for (value, nearest) in [
                (low.to_f64(), low),
                (low.to_f64().next_up(), low),
                (middle.next_down(), low),
                (middle, even),
                (middle.next_up(), high),
                (next.next_down(), high),
            ] {
                assert_eq!(nearest_bf16(value).to_bits(), nearest.to_bits(), "{value:e}");
                assert_eq!(nearest_bf16(-value).to_bits(), (-nearest).to_bits(), "-{value:e}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        assert!(nearest_bf16(f64::NAN).is_nan());
        for (value, nearest) in [(f64::INFINITY, bf16::INFINITY), (f64::MAX, bf16::INFINITY)] {
            assert_eq!((nearest_bf16(value), nearest_bf16(-value)), (nearest, -nearest));
        }
    }
}
