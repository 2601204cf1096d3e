//! Floating-point formats and roundings. Everything narrower than f64 is computed in f64 so that one rounding at the end
//! is the right one: the f64 is either exact or rounded to odd.

/// A binary format; all have the infinities, subnormals and NaNs of IEEE 754.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    exponent_bits: u32,
    fraction_bits: u32,
    /// The NaN that instructions give.
    pub nan: u64,
}

pub(super) const F16: Format = Format { exponent_bits: 5, fraction_bits: 10, nan: 0x7fff };
pub(super) const BF16: Format = Format { exponent_bits: 8, fraction_bits: 7, nan: 0x7fff };
pub(super) const F32: Format = Format { exponent_bits: 8, fraction_bits: 23, nan: 0x7fff_ffff };
pub(super) const F64: Format = Format { exponent_bits: 11, fraction_bits: 52, nan: 0x7ff8_0000_0000_0000 };

/// The NaN that f32 instructions give.
pub(super) const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// To nearest, ties to even: `.rn`.
    Nearest,
    /// `.rz`
    Zero,
    /// `.rm`
    Down,
    /// `.rp`
    Up,
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn sign_bit(self) -> u64 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    /// ±`magnitude`·2^`exponent`, rounded.
    pub fn round(self, negative: bool, magnitude: u128, exponent: i32, rounding: Rounding) -> u64 {
        let sign = if negative { self.sign_bit() } else { 0 };
        if magnitude == 0 {
            return sign;
        }
        let top = exponent + 127 - magnitude.leading_zeros() as i32;
        let lowest = (1 - self.bias()) - self.fraction_bits as i32;
        // The last place of the result, which is coarser than its leading bit says among the subnormals.
        let last = (top - self.fraction_bits as i32).max(lowest);
        let shift = last - exponent;
        let (mut kept, rest, half) = match shift {
            ..=0 => (magnitude << -shift, 0, 1),
            1..=127 => (magnitude >> shift, magnitude & ((1 << shift) - 1), 1u128 << (shift - 1)),
            // All of it lies below half of the last place.
            _ => (0, 1, 2),
        };
        let up = match rounding {
            Rounding::Nearest => rest > half || rest == half && kept & 1 == 1,
            Rounding::Zero => false,
            Rounding::Down => negative && rest > 0,
            Rounding::Up => !negative && rest > 0,
        };
        kept += u128::from(up);
        // A carry out of the fraction is the next exponent, as the bits stand.
        let biased = (last - lowest) as u64;
        let bits = kept as u64 + (biased << self.fraction_bits);
        if bits < self.infinity() {
            return sign | bits;
        }
        let to_infinity = match rounding {
            Rounding::Nearest => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        sign | (self.infinity() - u64::from(!to_infinity))
    }

    /// An f64, rounded.
    pub fn round_f64(self, value: f64, rounding: Rounding) -> u64 {
        let bits = value.to_bits();
        let negative = bits >> 63 == 1;
        let biased = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        match (biased, fraction) {
            (0x7ff, 0) => self.infinity() | if negative { self.sign_bit() } else { 0 },
            (0x7ff, _) => self.nan,
            (0, _) => self.round(negative, fraction.into(), -1074, rounding),
            _ => self.round(negative, (fraction | 1 << 52).into(), biased - 1075, rounding),
        }
    }

    /// The number that bits stand for; exact.
    pub fn value(self, bits: u64) -> f64 {
        let negative = bits & self.sign_bit() != 0;
        let biased = (bits >> self.fraction_bits & ((1 << self.exponent_bits) - 1)) as i32;
        let fraction = bits & ((1 << self.fraction_bits) - 1);
        let magnitude = if biased == (1 << self.exponent_bits) - 1 {
            if fraction == 0 { f64::INFINITY } else { f64::NAN }
        } else {
            let (fraction, exponent) =
                if biased == 0 { (fraction, 1) } else { (fraction | 1 << self.fraction_bits, biased) };
            fraction as f64 * power_of_two(exponent - self.bias() - self.fraction_bits as i32)
        };
        if negative { -magnitude } else { magnitude }
    }

    /// The bits with a subnormal number made a zero of its sign.
    pub fn flush(self, bits: u64) -> u64 {
        if bits & self.infinity() == 0 { bits & self.sign_bit() } else { bits }
    }
}

/// 2^`exponent`, of a normal f64.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// A subnormal number made a zero of its sign.
pub(super) fn flush(value: f32) -> f32 {
    f32::from_bits(F32.flush(value.to_bits().into()) as u32)
}

/// A NaN made the one that f32 instructions give.
pub(super) fn canonical(value: f32) -> f32 {
    if value.is_nan() { NAN } else { value }
}

/// The value next to `value` in the direction of `error` if its last bit is even and `error` is not zero: rounds a nearest
/// result to odd, given what is missing in it.
fn to_odd(value: f64, error: f64) -> f64 {
    let bits = value.to_bits();
    if error == 0.0 || error.is_nan() || !value.is_finite() || bits & 1 == 1 {
        value
    } else if (error > 0.0) == (value > 0.0) {
        f64::from_bits(bits + 1)
    } else {
        f64::from_bits(bits - 1)
    }
}

/// a + b rounded to odd, for operands far from f64's limits; an exact zero has the sign that `rounding` gives it.
pub(super) fn sum(a: f64, b: f64, rounding: Rounding) -> f64 {
    let sum = a + b;
    if sum == 0.0 && rounding == Rounding::Down && a.is_sign_negative() != b.is_sign_negative() {
        return -0.0;
    }
    let of_b = sum - a;
    to_odd(sum, (a - (sum - of_b)) + (b - of_b))
}

/// a / b rounded to odd, for operands far from f64's limits.
pub(super) fn quotient(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    let remainder = (-quotient).mul_add(b, a);
    to_odd(quotient, if b > 0.0 { remainder } else { -remainder })
}

/// √a rounded to odd, for operands far from f64's limits.
pub(super) fn square_root(a: f64) -> f64 {
    let root = a.sqrt();
    to_odd(root, (-root).mul_add(root, a))
}

/// The number between 0 and 1 that is closest; 0 for a NaN.
pub(super) fn saturate(value: f32) -> f32 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn as_f32(value: f64, rounding: Rounding) -> f32 {
        f32::from_bits(F32.round_f64(value, rounding) as u32)
    }

    #[test]
    fn edges() {
        let cases = [
            (BF16, 1.0 + 1.0 / 256.0, Rounding::Nearest, 0x3f80),
            (BF16, 1.0 + 3.0 / 256.0, Rounding::Nearest, 0x3f82),
            (BF16, f64::NAN, Rounding::Nearest, 0x7fff),
            (BF16, 3.4e38, Rounding::Nearest, 0x7f80),
            (BF16, 3.4e38, Rounding::Zero, 0x7f7f),
            (F16, 65504.0, Rounding::Nearest, 0x7bff),
            (F16, 65519.9, Rounding::Nearest, 0x7bff),
            (F16, 65520.0, Rounding::Nearest, 0x7c00),
            (F16, -65520.0, Rounding::Up, 0xfbff),
            (F16, -65520.0, Rounding::Down, 0xfc00),
            (F16, 2f64.powi(-24), Rounding::Nearest, 1),
            (F16, 2f64.powi(-25), Rounding::Nearest, 0),
            (F16, 1.5 * 2f64.powi(-25), Rounding::Nearest, 1),
            (F16, 2f64.powi(-200), Rounding::Up, 1),
            (F16, -2f64.powi(-200), Rounding::Up, 0x8000),
            (F16, -2f64.powi(-200), Rounding::Down, 0x8001),
            (F16, f64::NEG_INFINITY, Rounding::Zero, 0xfc00),
        ];
        for (format, value, rounding, bits) in cases {
            assert_eq!(format.round_f64(value, rounding), bits, "{value:e} {rounding:?}");
        }
    }

    #[test]
    fn all_values_of_the_narrow_formats_come_back() {
        for format in [F16, BF16] {
            for bits in 0..=0xffff {
                let value = format.value(bits);
                let back = format.round_f64(value, Rounding::Nearest);
                assert_eq!(back, if value.is_nan() { 0x7fff } else { bits });
            }
        }
        for bits in 0..=0xffffu32 {
            let value = BF16.value(bits.into());
            let wide = f64::from(f32::from_bits(bits << 16));
            assert!(value == wide || value.is_nan() && wide.is_nan());
        }
    }

    fn number() -> impl Strategy<Value = f32> {
        any::<u32>().prop_map(f32::from_bits)
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    proptest! {
        #[test]
        fn nearest_is_the_machines(value in any::<u64>().prop_map(f64::from_bits), whole: i64) {
            prop_assert!(same(as_f32(value, Rounding::Nearest), value as f32));
            prop_assert!(same(as_f32(f64::from(value as f32), Rounding::Zero), value as f32));
            let rounded = F32.round(whole < 0, whole.unsigned_abs().into(), 0, Rounding::Nearest);
            prop_assert_eq!(rounded, u64::from((whole as f32).to_bits()));
            let rounded = F64.round(whole < 0, whole.unsigned_abs().into(), 0, Rounding::Nearest);
            prop_assert_eq!(rounded, (whole as f64).to_bits());
        }

        #[test]
        fn directed_roundings_enclose(value in -1e30f64..1e30, scale in -60i32..20) {
            let value = value * 2f64.powi(scale * 4);
            let (down, up) = (as_f32(value, Rounding::Down), as_f32(value, Rounding::Up));
            prop_assert!(f64::from(down) <= value && value <= f64::from(up));
            prop_assert!(down == up || down.next_up() == up);
            let zero = as_f32(value, Rounding::Zero);
            let inner = if value < 0.0 { up } else { down };
            prop_assert!(same(zero, inner));
        }

        #[test]
        fn odd_intermediates_round_like_the_machine(a in number(), b in number(), c in number()) {
            let (x, y, z) = (f64::from(a), f64::from(b), f64::from(c));
            prop_assert!(same(as_f32(sum(x, y, Rounding::Nearest), Rounding::Nearest), a + b));
            prop_assert!(same(as_f32(quotient(x, y), Rounding::Nearest), a / b));
            prop_assert!(same(as_f32(square_root(x), Rounding::Nearest), a.sqrt()));
            prop_assert!(same(as_f32(sum(x * y, z, Rounding::Nearest), Rounding::Nearest), a.mul_add(b, c)));
        }

        #[test]
        fn sums_near_a_tie(a in 0x3f80_0000u32..0x4000_0000, shift in 20i32..60, odd: bool) {
            // a, half a unit in a's last place, and a speck that decides the tie.
            let a = f32::from_bits(a);
            let speck = 2f32.powi(-24 - shift) * if odd { 1.0 } else { -1.0 };
            let half = 2f32.powi(-24);
            let product = f64::from(half) * f64::from(1.0f32);
            let exact = sum(sum(f64::from(a), product, Rounding::Nearest), f64::from(speck), Rounding::Nearest);
            let expected = if odd { f32::from_bits(a.to_bits() + 1) } else { a };
            prop_assert_eq!(as_f32(exact, Rounding::Nearest), expected);
        }
    }
}
