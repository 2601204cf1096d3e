//! Decimal numbers as LETOR files write them.

/// At this magnitude a value is a sentinel for "missing", as Istella's 1.79769313486e+308 is.
pub const SENTINEL: f64 = 1e300;

/// Its power of ten.
const SENTINEL_POWER: i32 = 300;

/// Why a text is no usable number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It is not a decimal number.
    NotANumber,
    /// It is finite and no sentinel, but beyond the range of a 32-bit float.
    BeyondF32,
}

/// Powers of ten that are exact in f64.
pub const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// Byte number `at`; the end of the text reads as the end of a line.
#[inline(always)]
pub fn byte(text: &[u8], at: usize) -> u8 {
    if at < text.len() { text[at] } else { b'\n' }
}

/// Whether `byte` ends a token.
#[inline(always)]
pub fn ends_token(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'#')
}

/// Reads the number that starts at `at` and ends with its token; gives it, rounded once to f32, and where it
/// ends. A missing value (NaN, NULL, an infinity, a magnitude of at least [`SENTINEL`]) is NaN.
#[inline(always)]
pub fn scan(text: &[u8], start: usize) -> Result<(f32, usize), Flaw> {
    let mut at = start;
    let sign = byte(text, at);
    let negative = sign == b'-';
    if negative || sign == b'+' {
        at += 1;
    }
    let unsigned = at;
    let mut mantissa = 0u64;
    at = scan_digits(text, at, &mut mantissa);
    let mut digits = at - unsigned;
    let mut decimals = 0;
    if byte(text, at) == b'.' {
        let first = at + 1;
        at = scan_digits(text, first, &mut mantissa);
        decimals = at - first;
        digits += decimals;
    }
    if digits == 0 {
        // By far the most frequent word.
        if at == start && text[at..].starts_with(b"NULL") && ends_token(byte(text, at + 4)) {
            return Ok((f32::NAN, at + 4));
        }
        return scan_word(text, unsigned).map(|end| (f32::NAN, end)).ok_or(Flaw::NotANumber);
    }
    let (power, after) = scan_exponent(text, at);
    let power = power - decimals as i32;
    let magnitude = if !ends_token(byte(text, after)) || digits > 19 {
        let (value, length) =
            fast_float2::parse_partial::<f64, _>(&text[unsigned..]).map_err(|_| Flaw::NotANumber)?;
        at = unsigned + length;
        value
    } else if mantissa <= 1 << 53 && power.unsigned_abs() <= 22 {
        // Both are exact in f64, so that their quotient or product is the nearest f64 (Clinger).
        at = after;
        let power_of_ten = EXACT_POWERS[power.unsigned_abs() as usize];
        if power <= 0 { mantissa as f64 / power_of_ten } else { mantissa as f64 * power_of_ten }
    } else if mantissa.checked_ilog10().is_some_and(|leading| leading as i32 + power >= SENTINEL_POWER) {
        return Ok((f32::NAN, after));
    } else {
        at = after;
        fast_float2::parse::<f64, _>(&text[unsigned..after]).map_err(|_| Flaw::NotANumber)?
    };
    if !ends_token(byte(text, at)) {
        return Err(Flaw::NotANumber);
    }
    if magnitude >= SENTINEL {
        return Ok((f32::NAN, at));
    }
    let mut narrow = magnitude as f32;
    if may_round_twice(magnitude) {
        narrow = fast_float2::parse(&text[unsigned..at]).map_err(|_| Flaw::NotANumber)?;
    }
    if narrow.is_infinite() {
        return Err(Flaw::BeyondF32);
    }
    Ok((if negative { -narrow } else { narrow }, at))
}

/// Appends the digits from `at` on to `mantissa`, modulo 2^64; gives where they end.
///
/// Eight bytes at a time and without a branch on the number of digits, which would be mispredicted often.
#[inline(always)]
pub fn scan_digits(text: &[u8], mut at: usize, mantissa: &mut u64) -> usize {
    while let Some(bytes) = text.get(at..at + 8) {
        let (values, count) = leading_digits(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        let digits = if count == 8 { values } else { (values << 8) << (56 - 8 * count) };
        *mantissa = mantissa.wrapping_mul(POWERS[count as usize]).wrapping_add(eight_digits(digits));
        at += count as usize;
        if count < 8 {
            return at;
        }
    }
    loop {
        let digit = byte(text, at).wrapping_sub(b'0');
        if digit > 9 {
            return at;
        }
        *mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
        at += 1;
    }
}

/// The values of the digits that `bytes` begin with, the first in the lowest byte, and how many they are; what stands
/// above them is of no use.
#[inline(always)]
pub fn leading_digits(bytes: u64) -> (u64, u32) {
    let values = bytes ^ 0x3030_3030_3030_3030;
    // The high bit of every byte that is no digit; above the first of them a carry may disturb it.
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    (values, others.trailing_zeros() / 8)
}

/// The number that the values of eight digits make, the first in the lowest byte.
#[inline(always)]
pub fn eight_digits(values: u64) -> u64 {
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_FFFF_0000_FFFF;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xFFFF_FFFF
}

const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Reads the exponent at `at`, of three digits at most; gives it and where it ends: 0 and `at` without one.
#[inline(always)]
fn scan_exponent(text: &[u8], at: usize) -> (i32, usize) {
    if !matches!(byte(text, at), b'e' | b'E') {
        return (0, at);
    }
    let sign = byte(text, at + 1);
    let first = at + 1 + usize::from(matches!(sign, b'-' | b'+'));
    let mut exponent = 0;
    let mut end = first;
    while end < first + 3 && byte(text, end).is_ascii_digit() {
        exponent = 10 * exponent + i32::from(byte(text, end) - b'0');
        end += 1;
    }
    if end == first {
        return (0, at);
    }
    (if sign == b'-' { -exponent } else { exponent }, end)
}

/// Whether rounding decimal → f64 → f32 can differ from decimal → f32: where the f64 lies just between two
/// f32, or among the subnormal ones.
#[inline]
fn may_round_twice(magnitude: f64) -> bool {
    const BELOW_F32: u64 = (1 << 29) - 1;
    magnitude.to_bits() & BELOW_F32 == 1 << 28
        || (magnitude < f64::from(f32::MIN_POSITIVE) && magnitude != 0.0)
}

/// Where the word for a missing value that starts at `at` ends.
#[cold]
fn scan_word(text: &[u8], at: usize) -> Option<usize> {
    let length = text[at..].iter().position(|&b| ends_token(b)).unwrap_or(text.len() - at);
    let word = &text[at..at + length];
    ["nan", "null", "inf", "infinity"]
        .iter()
        .any(|missing| word.eq_ignore_ascii_case(missing.as_bytes()))
        .then_some(at + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(text: &str) -> Result<f32, Flaw> {
        scan(text.as_bytes(), 0).map(|(value, end)| {
            assert_eq!(end, text.len());
            value
        })
    }

    #[test]
    fn ordinary_numbers() {
        for (text, expected) in [
            ("3", 3.0),
            ("+3", 3.0),
            ("+0.5", 0.5),
            ("1e+1", 10.0),
            ("1E1", 10.0),
            ("1.", 1.0),
            ("1.e2", 100.0),
            ("00.5", 0.5),
            (".50", 0.5),
            ("-.25", -0.25),
            ("2.6864e-05", 2.6864e-05),
            ("123456789012345678901234567890", 1.234_567_9e29),
            ("0.00000000000000000000000000000000001", 1e-35),
            ("1e-60", 0.0),
            ("3.4028235e38", f32::MAX),
            ("1e-45", 1e-45),
            ("2.5e22", 2.5e22),
            ("0e999", 0.0),
            ("0.0e300", 0.0),
            ("1e-400", 0.0),
            ("12e0000000001", 120.0),
            ("9007199254740993e3", 9.007_199e18),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
        assert!(value("-0").unwrap().is_sign_negative());
    }

    #[test]
    fn missing_values() {
        for text in [
            "nan",
            "NaN",
            "-NaN",
            "NULL",
            "null",
            "inf",
            "-inf",
            "+Infinity",
            "1.79769313486e+308",
            "-1e300",
            "1e999",
            "1e+308",
            "0.0017e303",
            "100000000000000000e283",
            "1e1234567",
        ] {
            assert!(value(text).unwrap().is_nan(), "{text}");
        }
    }

    #[test]
    fn what_is_no_number() {
        for text in
            ["", "-", "+", ".", "e5", "1e", "1e+", "0x10", "1_0", "1,5", "--1", "1.2.3", "nanx", "nul", "1f"]
        {
            assert_eq!(value(text), Err(Flaw::NotANumber), "{text}");
        }
        for text in ["1e39", "-3.5e38", "1e299", "0.9e300", "9.99999999999e299"] {
            assert_eq!(value(text), Err(Flaw::BeyondF32), "{text}");
        }
    }

    #[test]
    fn rounds_once() {
        // Just above the middle of two f32: through f64 it would become the middle and fall to the even one.
        let text = "1.00000005960464477539062500000000000001";
        assert_eq!(value(text), Ok(text.parse().unwrap()));
        assert_ne!(text.parse::<f64>().unwrap() as f32, text.parse::<f32>().unwrap());
    }

    proptest! {
        #[test]
        fn agrees_with_the_standard_library(bits: u32, text in "[+-]?[0-9]{0,12}\\.?[0-9]{0,12}(e[+-]?[0-9]{1,2})?") {
            let float = f32::from_bits(bits);
            if float.is_finite() {
                prop_assert_eq!(value(&float.to_string()).unwrap().to_bits(), bits);
                prop_assert_eq!(value(&format!("{float:e}")).unwrap().to_bits(), bits);
            }
            match text.parse::<f32>() {
                Ok(expected) if expected.is_finite() => prop_assert_eq!(value(&text), Ok(expected)),
                Ok(_) => prop_assert_eq!(value(&text), Err(Flaw::BeyondF32)),
                Err(_) => prop_assert_eq!(value(&text), Err(Flaw::NotANumber)),
            }
        }
    }
}
