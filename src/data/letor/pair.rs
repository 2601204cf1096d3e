//! Pairs `index:value` of the usual shape, read from sixteen bytes at once and almost without branches: what a
//! branch would decide – how many digits, a point or none, a sign, NULL – changes from pair to pair.

use crate::data::number::{EXACT_POWERS, eight_digits, ends_token};

/// Bytes that are looked at: those of the pair and the one that ends it.
pub const WINDOW: usize = 16;

/// A pair and how many bytes it has.
pub struct Pair {
    pub index: u32,
    pub value: f32,
    pub length: usize,
}

/// Reads the pair that `window` begins with: an index of at most seven digits; a value of at most eight, with or
/// without point and minus, or `NULL`. `None` for everything else, right or wrong.
#[inline(always)]
pub fn usual(window: [u8; WINDOW]) -> Option<Pair> {
    let Classes { plain, dots, odd } = classes(&window);
    // A bit a byte from here on: the colon, the point if there is one, the end.
    let others = !plain;
    let colon = others.trailing_zeros() as usize;
    let behind = others & others.wrapping_sub(1);
    let dot = behind & behind.wrapping_neg() & dots;
    let end = (behind ^ dot).trailing_zeros() as usize;
    if !(1..=7).contains(&colon) || end >= WINDOW {
        return None;
    }
    if window[colon] != b':' || !ends_token(window[end]) {
        return None;
    }
    let bytes = u128::from_le_bytes(window);
    let value = bytes >> (8 * (colon + 1));
    let negative = usize::from(value as u8 == b'-');
    let null = usize::from(value as u32 == u32::from_le_bytes(*b"NULL"));
    let digits = end.wrapping_sub(colon + 1 + negative + usize::from(dot != 0));
    let odd_here = odd & ((1 << end) - 1);
    let odd_allowed = ((negative | (null * 0b1111)) << (colon + 1)) as u32;
    if odd_here != odd_allowed || !(1..=8).contains(&digits) || (null == 1 && end != colon + 5) {
        return None;
    }

    // The digits with the point taken out, the first in the lowest byte.
    let value = value >> (8 * negative);
    let before_dot = dot.trailing_zeros() as usize - (colon + 1 + negative);
    let mask = if before_dot < 8 { (1 << (8 * before_dot)) - 1 } else { u64::MAX };
    let mantissa = (value as u64 & mask) | ((value >> 8) as u64 & !mask);
    let mantissa = eight_digits((mantissa ^ 0x3030_3030_3030_3030) << (64 - 8 * digits));
    let decimals = digits.saturating_sub(before_dot);
    // The quotient is the f64 next to the decimal, and no decimal of so few digits lies so close to the middle
    // of two f32, without being it, that the f64 is the middle: rounding twice is rounding once.
    let magnitude = (mantissa as f64 / EXACT_POWERS[decimals]) as f32;
    let missing = 0u32.wrapping_sub(null as u32);
    let bits = magnitude.to_bits() | (negative as u32) << 31;
    let value = f32::from_bits((bits & !missing) | (f32::NAN.to_bits() & missing));
    let index = eight_digits((bytes as u64 ^ 0x3030_3030_3030_3030) << (64 - 8 * colon)) as u32;
    Some(Pair { index, value, length: end })
}

/// What the bytes of a window are, a bit each, the first byte's the lowest.
struct Classes {
    /// Digits and what is odd.
    plain: u32,
    dots: u32,
    /// A minus or a letter of NULL.
    odd: u32,
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn classes(window: &[u8; WINDOW]) -> Classes {
    use std::arch::x86_64::*;
    // SAFETY: every x86-64 processor has SSE2, and the load reads the sixteen bytes of the window.
    unsafe {
        let bytes = _mm_loadu_si128(window.as_ptr().cast());
        let is = |byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8));
        // Shifted so that the ten digits are the least of all signed bytes.
        let shifted = _mm_add_epi8(bytes, _mm_set1_epi8((0x80 - b'0') as i8));
        let digits = _mm_cmplt_epi8(shifted, _mm_set1_epi8(-128 + 10));
        let odd = _mm_or_si128(_mm_or_si128(is(b'-'), is(b'N')), _mm_or_si128(is(b'U'), is(b'L')));
        Classes {
            plain: _mm_movemask_epi8(_mm_or_si128(digits, odd)) as u32,
            dots: _mm_movemask_epi8(is(b'.')) as u32,
            odd: _mm_movemask_epi8(odd) as u32,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn classes(window: &[u8; WINDOW]) -> Classes {
    let mask = |is: fn(u8) -> bool| {
        let mut mask = 0;
        for (at, &byte) in window.iter().enumerate() {
            mask |= u32::from(is(byte)) << at;
        }
        mask
    };
    let odd = mask(|byte| matches!(byte, b'-' | b'N' | b'U' | b'L'));
    Classes { plain: mask(|byte| byte.is_ascii_digit()) | odd, dots: mask(|byte| byte == b'.'), odd }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::number::scan;

    fn read(text: &str) -> Option<(u32, f32, usize)> {
        let mut window = [b'\n'; WINDOW];
        window[..text.len().min(WINDOW)].copy_from_slice(&text.as_bytes()[..text.len().min(WINDOW)]);
        usual(window).map(|pair| (pair.index, pair.value, pair.length))
    }

    #[test]
    fn usual_pairs() {
        for (text, index, value) in [
            ("1:0", 1, 0.0),
            ("7:-0", 7, -0.0),
            ("136:14.976692", 136, 14.976692),
            ("12:-3.25", 12, -3.25),
            ("0:.5", 0, 0.5),
            ("9:1.", 9, 1.0),
            ("1234567:1", 1_234_567, 1.0),
            ("1:12345678", 1, 12_345_678.0),
            ("1:12345678.", 1, 12_345_678.0),
            ("1:-.00000001", 1, -1e-8),
            ("1:99999999", 1, 99_999_999.0),
        ] {
            for end in ["", " ", "\t5:6", "\r\n", "#"] {
                let (i, v, length) = read(&format!("{text}{end}")).unwrap_or_else(|| panic!("{text}"));
                assert_eq!((i, v.to_bits(), length), (index, f32::to_bits(value), text.len()), "{text}");
            }
        }
        let (index, value, length) = read("21:NULL 2").unwrap();
        assert!(index == 21 && value.to_bits() == f32::NAN.to_bits() && length == 7);
    }

    #[test]
    fn what_is_left_to_the_general_reader() {
        for text in [
            "",
            "1",
            "1:",
            ":1",
            "1:-",
            "1:.",
            "1:--1",
            "1:+1",
            "1:1e5",
            "1:1.2.3",
            "1:1:1",
            "1:NULL5",
            "1:NULL.",
            "1:NUL",
            "1:-NULL",
            "1:NLLU",
            "1:NULLNULL",
            "1:nan",
            "1:1-",
            "1:1N",
            "-1:1",
            "N:1",
            "12345678:1",
            "1:123456789",
            "1:1.23456789",
            "1:0x10",
            "1 :1",
            "1.5:1",
            "1:5,",
            "1:12345678.12345",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_general_reader(
            index in 0u32..10_000_000,
            text in "-?[0-9]{0,5}\\.?[0-9]{0,5}|NULL[0-9.]?|-?[0-9]{1,8}|0\\.[0-9]{1,7}|-?[N0-9.UL-]{1,6}",
        ) {
            let pair = format!("{index}:{text}");
            if let Some((i, value, length)) = read(&pair) {
                let (expected, end) = scan(pair.as_bytes(), pair.len() - text.len()).expect("a number");
                prop_assert_eq!((i, value.to_bits(), length), (index, expected.to_bits(), end));
            }
        }

        #[test]
        fn rounds_as_the_standard_library(mantissa in 0u32..100_000_000, decimals in 0usize..=8) {
            let digits = format!("{mantissa:08}");
            let text = format!("{}.{}", &digits[..8 - decimals], &digits[8 - decimals..]);
            let (_, value, _) = read(&format!("1:{text}")).expect("a usual pair");
            prop_assert_eq!(value.to_bits(), text.parse::<f32>().unwrap().to_bits());
        }

        #[test]
        fn any_bytes_give_what_the_general_reader_gives(window: [u8; WINDOW], used in "[0-9:. NUL-]{16}") {
            let mut text: [u8; WINDOW] = used.as_bytes().try_into().unwrap();
            for window in [window, { text[WINDOW - 1] = b' '; text }] {
                let Some(pair) = usual(window) else { continue };
                let colon = window.iter().position(|&b| b == b':').unwrap();
                let index: u32 = std::str::from_utf8(&window[..colon]).unwrap().parse().unwrap();
                let (value, end) = scan(&window, colon + 1).expect("a number");
                prop_assert_eq!((pair.index, pair.value.to_bits(), pair.length), (index, value.to_bits(), end));
            }
        }
    }
}
