//! What most pairs `index:value` look like: an index, mostly the one after that before, and a short decimal or NULL.
//! Read from a window of bytes at once and almost without branches: what a branch would decide – how many digits, a
//! point or none, a minus, NULL – changes from pair to pair.

use std::hint::select_unpredictable;

use crate::data::number::{eight_digits, ends_token, leading_digits};

/// Bytes of a value, with the one that ends it, that are looked at.
pub const VALUE: usize = 16;

/// Bytes of a pair that are looked at.
pub const PAIR: usize = 8 + VALUE;

/// The texts `0:`, `1:`, … with their lengths in the highest byte.
const INDICES: [u64; 1024] = {
    let mut texts = [0; 1024];
    let mut index = 0;
    while index < texts.len() {
        let (mut rest, mut text, mut length) = (index, b':' as u64, 1);
        while rest > 0 || length == 1 {
            text = text << 8 | (b'0' as u64 + rest as u64 % 10);
            rest /= 10;
            length += 1;
        }
        texts[index] = text | length << 56;
        index += 1;
    }
    texts
};

/// 1, 0.1, … for as many decimals as a value may have.
const NEGATIVE_POWERS: [f64; 9] = [1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8];

/// A pair and how many bytes it has, with the blank behind it if there is one.
pub struct Pair {
    pub index: u32,
    pub value: f32,
    pub length: usize,
}

/// Reads the pair that `window` begins with, most quickly if its index is `expected`: an index of at most seven digits
/// and a [`value`]. `None` for everything else, right or wrong.
#[inline(always)]
pub fn pair(window: &[u8; PAIR], expected: u32) -> Option<Pair> {
    let begin = u64::from_le_bytes(*window.first_chunk().expect("a window has more"));
    let (index, length) = match INDICES.get(expected as usize) {
        Some(text) if (begin ^ text) << (64 - 8 * (text >> 56)) == 0 => (expected, (text >> 56) as usize),
        _ => other_index(begin)?,
    };
    let (value, taken) = value(window[length.min(8)..].first_chunk().expect("no index has more bytes"))?;
    Some(Pair { index, value, length: length + taken })
}

/// The index that a pair of these first bytes has, the first in the lowest one, and its length with the colon.
#[inline(always)]
fn other_index(begin: u64) -> Option<(u32, usize)> {
    let (digits, count) = leading_digits(begin);
    if !(1..=7).contains(&count) || (begin >> (8 * count)) as u8 != b':' {
        return None;
    }
    Some((eight_digits(digits << (64 - 8 * count)) as u32, count as usize + 1))
}

/// The value that `window` begins with, and how many bytes it has, with the blank behind it if there is one: at most
/// eight digits, with or without point and minus, or `NULL`. `None` for everything else, right or wrong.
#[inline(always)]
pub fn value(window: &[u8; VALUE]) -> Option<(f32, usize)> {
    let Classes { digits, dots } = classes(window);
    let begin = eight_bytes(window, 0);
    let negative = begin as u8 == b'-';
    let null = begin as u32 == u32::from_le_bytes(*b"NULL");
    let start = usize::from(negative);
    // A bit a byte: the point if there is one, the end. Minus and letters pass for digits: that there are enough of
    // true ones is seen from where the end stands.
    let others = !(digits | u32::from(negative) | (u32::from(null) * 0b1111));
    let dot = others & others.wrapping_neg() & dots;
    let end = (others ^ dot).trailing_zeros() as usize;
    let count = end.wrapping_sub(start + usize::from(dot != 0));
    if end >= VALUE || !((1..=8).contains(&count) & ends_token(window[end]) & (!null | (end == 4))) {
        return None;
    }
    // The digits with the point taken out, the first in the lowest byte.
    let before_dot = (dot.trailing_zeros() as usize).wrapping_sub(start);
    let mask = if before_dot < 8 { (1 << (8 * before_dot)) - 1 } else { u64::MAX };
    let mantissa = (eight_bytes(window, start) & mask) | (eight_bytes(window, start + 1) & !mask);
    let mantissa = eight_digits((mantissa ^ 0x3030_3030_3030_3030) << (64 - 8 * count));
    let decimals = count.saturating_sub(before_dot);
    // The product is off by less than 2^-52 of itself, and no decimal of so few digits that is not itself the middle
    // of two f32 lies closer to one than 2^-51.6. Those that are middles are integers, which stay as they are, or have
    // one decimal and come out exact, which a test tries for all of them. So this rounds as the decimal itself would.
    let magnitude = (mantissa as f64 * NEGATIVE_POWERS[decimals]) as f32;
    let bits = magnitude.to_bits() | u32::from(negative) << 31;
    let value = f32::from_bits(select_unpredictable(null, f32::NAN.to_bits(), bits));
    Some((value, end + usize::from(window[end] == b' ')))
}

/// The bytes from `at` on, at most `VALUE - 8`, the first in the lowest byte.
#[inline(always)]
fn eight_bytes(window: &[u8; VALUE], at: usize) -> u64 {
    u64::from_le_bytes(*window[at.min(VALUE - 8)..].first_chunk().expect("at least eight bytes are left"))
}

/// What the first bytes of a window are, a bit each, the first byte's the lowest.
struct Classes {
    digits: u32,
    dots: u32,
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn classes(window: &[u8; VALUE]) -> Classes {
    use std::arch::x86_64::*;
    // SAFETY: every x86-64 processor has SSE2, and the load reads sixteen of the window's bytes.
    unsafe {
        let bytes = _mm_loadu_si128(window.as_ptr().cast());
        // Shifted so that the ten digits are the least of all signed bytes.
        let shifted = _mm_add_epi8(bytes, _mm_set1_epi8((0x80 - b'0') as i8));
        let digits = _mm_cmplt_epi8(shifted, _mm_set1_epi8(-128 + 10));
        let dots = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'.' as i8));
        Classes { digits: _mm_movemask_epi8(digits) as u32, dots: _mm_movemask_epi8(dots) as u32 }
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn classes_in_plain_code(window: &[u8; VALUE]) -> Classes {
    let mask = |is: fn(&u8) -> bool| {
        let bits = window.iter().enumerate().map(|(at, byte)| u32::from(is(byte)) << at);
        bits.fold(0, |mask, bit| mask | bit)
    };
    Classes { digits: mask(u8::is_ascii_digit), dots: mask(|&byte| byte == b'.') }
}
#[cfg(not(target_arch = "x86_64"))]
use classes_in_plain_code as classes;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::number::{scan, scan_digits};

    /// The value that `text` begins with and its length.
    fn read(text: &str) -> Option<(f32, usize)> {
        let mut window = [b'\n'; VALUE];
        let length = text.len().min(VALUE);
        window[..length].copy_from_slice(&text.as_bytes()[..length]);
        value(&window)
    }

    #[test]
    fn usual_values() {
        for (text, expected) in [
            ("0", 0.0),
            ("-0", -0.0),
            ("14.976692", 14.976692),
            ("-3.25", -3.25),
            (".5", 0.5),
            ("1.", 1.0),
            ("12345678", 12_345_678.0),
            ("12345678.", 12_345_678.0),
            ("-.00000001", -1e-8),
            ("99999999", 99_999_999.0),
        ] {
            for end in ["", " ", "\t5:6", "\r\n", "#"] {
                let (value, length) = read(&format!("{text}{end}")).unwrap_or_else(|| panic!("{text}"));
                assert_eq!(value.to_bits(), f32::to_bits(expected), "{text}");
                assert_eq!(length, text.len() + usize::from(end == " "), "{text}");
            }
        }
        let (value, length) = read("NULL 2").unwrap();
        assert!(value.to_bits() == f32::NAN.to_bits() && length == 5);
    }

    #[test]
    fn what_is_left_to_the_general_reader() {
        for text in [
            "",
            "-",
            ".",
            "--1",
            "+1",
            "1e5",
            "1.2.3",
            "1:1",
            "NULL5",
            "NULL.",
            "NUL",
            "-NULL",
            "NLLU",
            "NULLNULL",
            "nan",
            "1-",
            "1N",
            "123456789",
            "1.23456789",
            "0x10",
            " 1",
            "5,",
            "12345678.12345",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn an_index_is_read_whatever_is_expected() {
        let read = |text: &str, expected: u32| {
            let mut window = [b' '; PAIR];
            window[..text.len()].copy_from_slice(text.as_bytes());
            pair(&window, expected).map(|pair| (pair.index, pair.value, pair.length))
        };
        for index in [0, 1, 9, 10, 99, 100, 101, 999, 1000, 1023, 1024, 99_999, 1_234_567] {
            let text = format!("{index}:12.5");
            for expected in [index, index ^ 1, 0, 1, 1023, 1024, u32::MAX] {
                assert_eq!(read(&text, expected), Some((index, 12.5, text.len() + 1)), "{index}, {expected}");
                for other in
                    [format!("{index} :1"), format!("{index}:"), format!("-{index}:1"), format!("{index}")]
                {
                    assert_eq!(read(&other, expected), None, "{other}, {expected}");
                }
            }
            assert_eq!(
                read(&format!("{index}0:1"), index).map(|pair| pair.0),
                (index < 1_000_000).then_some(10 * index)
            );
        }
        assert_eq!(read("007:1", 7), Some((7, 1.0, 6)));
        for text in [":1", "12345678:1", "x:1", ""] {
            for expected in [0, 1, 1024, u32::MAX] {
                assert_eq!(read(text, expected), None, "{text}, {expected}");
            }
        }
    }

    #[test]
    fn middles_of_two_floats_go_to_the_even_one() {
        // With a point eight digits reach a middle only here: at half a unit between 2^23 and 10^7.
        for whole in 1 << 23..10_000_000u32 {
            let middle = f64::from(whole) + 0.5;
            assert_eq!((f64::from(10 * whole + 5) * NEGATIVE_POWERS[1]).to_bits(), middle.to_bits());
        }
        assert_eq!(read("8388608.5"), Some((8_388_608.0, 9)));
        assert_eq!(read("8388609.5"), Some((8_388_610.0, 9)));
        assert_eq!(read("16777217"), Some((16_777_216.0, 8)));
        assert_eq!(read("16777219"), Some((16_777_220.0, 8)));
    }

    proptest! {
        #[test]
        fn agrees_with_the_general_reader(
            text in "-?[0-9]{0,5}\\.?[0-9]{0,5}|NULL[0-9.]?|-?[0-9]{1,8}|0\\.[0-9]{1,7}|-?[N0-9.UL-]{1,6}",
        ) {
            if let Some((value, length)) = read(&text) {
                let (expected, end) = scan(text.as_bytes(), 0).expect("a number");
                prop_assert_eq!((value.to_bits(), length), (expected.to_bits(), end));
            }
        }

        #[test]
        fn rounds_as_the_standard_library(mantissa in 0u32..100_000_000, decimals in 0usize..=8) {
            let digits = format!("{mantissa:08}");
            let text = format!("{}.{}", &digits[..8 - decimals], &digits[8 - decimals..]);
            let (value, _) = read(&text).expect("a usual value");
            prop_assert_eq!(value.to_bits(), text.parse::<f32>().unwrap().to_bits());
        }

        #[test]
        fn any_bytes_give_what_the_general_reader_gives(any: [u8; VALUE], used in "[0-9:. NUL-]{16}") {
            for window in [any, used.as_bytes().try_into().unwrap()] {
                let Some((number, length)) = value(&window) else { continue };
                let (expected, end) = scan(&window, 0).expect("a number");
                let end = end + usize::from(window[end] == b' ');
                prop_assert_eq!((number.to_bits(), length), (expected.to_bits(), end));
            }
        }

        #[test]
        fn any_pair_is_what_the_general_reader_gives(
            text in "[0-9:]{0,3}:[0-9:. NUL-]{0,24}|[0-9]{1,9}:-?[0-9.]{1,9} [0-9]:",
            expected in prop_oneof![0u32..12, 1020u32..1030, any::<u32>()],
        ) {
            let mut window = [b' '; PAIR];
            window[..text.len().min(PAIR)].copy_from_slice(&text.as_bytes()[..text.len().min(PAIR)]);
            let mut digits = 0;
            let colon = scan_digits(&window, 0, &mut digits);
            let right = colon > 0 && window[colon] == b':';
            if let Some(pair) = pair(&window, expected) {
                prop_assert!(right, "{:?}", text);
                let (value, end) = scan(&window, colon + 1).expect("a number");
                let end = end + usize::from(window.get(end) == Some(&b' '));
                prop_assert_eq!((u64::from(pair.index), pair.length), (digits, end));
                prop_assert_eq!(pair.value.to_bits(), value.to_bits());
            }
        }

        #[test]
        fn vectors_see_what_plain_code_sees(window: [u8; VALUE]) {
            let (a, b) = (classes(&window), classes_in_plain_code(&window));
            prop_assert_eq!((a.digits, a.dots), (b.digits, b.dots));
        }
    }
}
