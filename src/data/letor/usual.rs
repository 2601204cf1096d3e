//! What most pairs `index:value` look like: an index, mostly the one after that before, and a short decimal or NULL.
//! Read almost without branches: what a branch would decide – how many digits, a point or none, a minus, NULL – changes
//! from pair to pair.

use std::hint::select_unpredictable;

use super::marks::Marked;
use crate::data::number::{eight_digits, ends_token};

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

/// 1, 0.1, … for as many decimals as a value may have; the rest makes the length a power of two.
const NEGATIVE_POWERS: [f64; 16] =
    [1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];

/// Bytes before a pair that are read, but do not matter.
pub const BEFORE: usize = 8;

/// Bytes from the beginning of a pair on that are read, or may be.
pub const BEHIND: usize = 80;

/// A pair and how many bytes it has, with the blank behind it if there is one.
pub struct Pair {
    pub index: u32,
    pub value: f32,
    pub length: usize,
    /// Whether there is such a blank.
    pub goes_on: bool,
}

/// Reads the pair at `at`, most quickly if its index has one digit or is `expected`: an index of at most seven digits, a colon, and at most
/// eight digits with or without point and minus, or `NULL`. `None` for everything else, right or wrong.
///
/// # Safety
///
/// At least [`BEFORE`] bytes of the text stand before `at`, and [`BEHIND`] from there on.
#[inline(always)]
pub unsafe fn pair(marked: Marked<'_>, at: usize, expected: u32) -> Option<Pair> {
    let text = marked.text();
    debug_assert!(at >= BEFORE && at + BEHIND <= text.len());
    // SAFETY: inside of the text.
    let marks = unsafe { marked.from(at) };
    // Everything below is counted from the pair on. No mark is beyond 64.
    // SAFETY: at most 65 bytes behind its beginning.
    let byte = |place: usize| unsafe { *text.get_unchecked(at + place) };
    // SAFETY: at least eight bytes before its end, and at most 72 behind its beginning.
    let eight_bytes = |from: usize| unsafe { text.as_ptr().add(from).cast::<u64>().read_unaligned() };
    let begin = eight_bytes(at);
    let colon = marks.trailing_zeros() as usize;
    let digit = (begin as u8).wrapping_sub(b'0');
    let (index, first) = if (begin >> 8) as u8 == b':' && digit < 10 {
        (u32::from(digit), 2)
    } else {
        match INDICES.get(expected as usize) {
            Some(indexed) if (begin ^ indexed) << (64 - 8 * (indexed >> 56)) == 0 => (expected, colon + 1),
            _ => (other_index(begin, colon)?, colon + 1),
        }
    };
    if let Some(value) = tenths(eight_bytes(at + first) as u32) {
        return Some(Pair { index, value, length: first + 4, goes_on: true });
    }
    let marks = marks & marks.wrapping_sub(1);
    let mark = marks.trailing_zeros() as usize;
    let behind = (marks & marks.wrapping_sub(1)).trailing_zeros() as usize;
    let negative = usize::from(byte(colon + 1) == b'-');
    let point = usize::from(byte(mark) == b'.');
    let end = if point == 1 { behind } else { mark };
    let decimals = end - mark - point;
    let digits = end.wrapping_sub(colon + 1 + negative + point);
    let ender = byte(end);
    // Marks beyond the 57th are not told.
    if !((1..=8).contains(&digits) & (decimals >= point) & (end < 57) & ends_token(ender)) {
        return None;
    }
    // The last eight bytes with the point taken out, so that the digits end in the highest byte.
    let (without, with_point) = (eight_bytes(at + end - 8), eight_bytes(at + end - 9));
    let behind_point = u64::MAX << ((8 * decimals).wrapping_neg() % 64);
    let text_of_digits = (without & behind_point) | (with_point & !behind_point);
    let others = 64 - 8 * digits;
    let values = ((text_of_digits ^ 0x3030_3030_3030_3030) >> others) << others;
    // No byte is above nine.
    let right = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080 == 0;
    let null = ((without >> 32) as u32 == u32::from_le_bytes(*b"NULL")) & (end - colon == 5);
    if !(right | null) {
        return None;
    }
    // The product is off by less than 2^-52 of itself, and no decimal of so few digits that is not itself the middle
    // of two f32 lies closer to one than 2^-51.6. Those that are middles are integers, which stay as they are, or have
    // one decimal and come out exact, which a test tries for all of them. So this rounds as the decimal itself would.
    let magnitude = (eight_digits(values) as f64 * NEGATIVE_POWERS[decimals % 16]) as f32;
    let bits = magnitude.to_bits() | (negative as u32) << 31;
    let value = f32::from_bits(select_unpredictable(null, f32::NAN.to_bits(), bits));
    let goes_on = ender == b' ';
    Some(Pair { index, value, length: end + usize::from(goes_on), goes_on })
}

/// The value of the four bytes `D.D `, the first in the lowest byte: where there are any, they are many.
#[inline(always)]
fn tenths(text: u32) -> Option<f32> {
    let digits = text ^ u32::from_le_bytes(*b"0.0 ");
    let none_above_nine = digits.wrapping_add(0x06_0006) & 0xFFF0_FFF0 == 0;
    (digits & 0xFFF0_FFF0 == 0 && none_above_nine)
        .then(|| ((digits & 15) * 10 + (digits >> 16)) as f32 / 10.0)
}

/// The index of `length` digits that `begin` begins with, the first in the lowest byte.
#[inline(always)]
fn other_index(begin: u64, length: usize) -> Option<u32> {
    if !(1..=7).contains(&length) || (begin >> (8 * length)) as u8 != b':' {
        return None;
    }
    let values = (begin ^ 0x3030_3030_3030_3030) << (64 - 8 * length);
    let right = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080 == 0;
    right.then(|| eight_digits(values) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::letor::marks::Marks;
    use crate::data::number::{scan, scan_digits};

    const BLANKS: &str = "                                                                                ";

    /// Index, value and length of the pair that `text` begins with.
    fn read(text: &[u8], expected: u32) -> Option<(u32, f32, usize)> {
        let text = [b"1 qid:1 ", text, BLANKS.as_bytes()].concat();
        let mut marks = Marks::default();
        let text = marks.mark(&text);
        // SAFETY: so many bytes stand before and behind.
        let pair = unsafe { pair(text, BEFORE, expected) }?;
        Some((pair.index, pair.value, pair.length))
    }

    /// The value of the pair `1:text` and its length.
    fn value(text: &str) -> Option<(f32, usize)> {
        read(format!("1:{text}").as_bytes(), 1).map(|(_, value, length)| (value, length - 2))
    }

    #[test]
    fn usual_values() {
        for (text, expected) in [
            ("0", 0.0),
            ("-0", -0.0),
            ("14.976692", 14.976692),
            ("-3.25", -3.25),
            (".5", 0.5),
            ("12345678", 12_345_678.0),
            ("1234567.8", 1_234_567.8),
            ("3.7", 3.7),
            ("9.9", 9.9),
            ("-.00000001", -1e-8),
            ("99999999", 99_999_999.0),
        ] {
            for end in [" ", "\t5:6", "\r\n", "#"] {
                let (value, length) =
                    value(&format!("{text}{end}{BLANKS}")).unwrap_or_else(|| panic!("{text}{end}"));
                assert_eq!(value.to_bits(), f32::to_bits(expected), "{text}");
                assert_eq!(length, text.len() + usize::from(end == " "), "{text}");
            }
        }
        let (null, length) = value(&format!("NULL 2:3{BLANKS}")).unwrap();
        assert!(null.to_bits() == f32::NAN.to_bits() && length == 5);
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
            "1.",
            "-1.",
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
            "0.5:",
            "1/",
        ] {
            assert!(value(&format!("{text} {BLANKS}")).is_none(), "{text}");
        }
        for long in ["0".repeat(60), format!("{}1", "0".repeat(50)), "x".repeat(100)] {
            assert!(value(&format!("{long} {BLANKS}")).is_none(), "{long}");
        }
    }

    #[test]
    fn an_index_is_read_whatever_is_expected() {
        let read = |text: &str, expected: u32| read(format!("{text}{BLANKS}").as_bytes(), expected);
        for index in [0, 1, 9, 10, 99, 100, 101, 999, 1000, 1023, 1024, 99_999, 1_234_567] {
            let text = format!("{index}:12.5");
            for expected in [index, index ^ 1, 0, 1, 1023, 1024, u32::MAX] {
                assert_eq!(read(&text, expected), Some((index, 12.5, text.len() + 1)), "{index}, {expected}");
                for other in [
                    format!("{index} :1"),
                    format!("{index}:"),
                    format!("-{index}:1"),
                    format!("{index}"),
                    format!("{index}.:1"),
                ] {
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
        let value = |text: &str| value(&format!("{text} {BLANKS}")).map(|(value, _)| value);
        assert_eq!(value("8388608.5"), Some(8_388_608.0));
        assert_eq!(value("8388609.5"), Some(8_388_610.0));
        assert_eq!(value("16777217"), Some(16_777_216.0));
        assert_eq!(value("16777219"), Some(16_777_220.0));
    }

    proptest! {
        #[test]
        fn rounds_as_the_standard_library(mantissa in 0u32..100_000_000, decimals in 1usize..=8) {
            let digits = format!("{mantissa:08}");
            let text = format!("{}.{}", &digits[..8 - decimals], &digits[8 - decimals..]);
            let (value, _) = value(&format!("{text} {BLANKS}")).expect("a usual value");
            prop_assert_eq!(value.to_bits(), text.parse::<f32>().unwrap().to_bits());
        }

        #[test]
        fn any_pair_is_what_the_general_reader_gives(
            text in prop_oneof![
                "[0-9:]{0,3}:[0-9:. NUL-]{0,24}",
                "[0-9]{1,9}:-?[0-9.]{1,9} [0-9]:",
                "[0-9]{1,3}:(-?[0-9]{0,5}\\.?[0-9]{0,5}|NULL[0-9.]?|-?[N0-9.UL-]{1,6})[ \t\n#x:]?",
                "[0-9]{1,2}:\\PC{0,8}",
            ],
            any in proptest::collection::vec(any::<u8>(), 0..32),
            expected in prop_oneof![0u32..12, 1020u32..1030, any::<u32>()],
        ) {
            for text in [text.into_bytes(), any] {
                let Some((index, value, length)) = read(&text, expected) else { continue };
                let text = [&text[..], BLANKS.as_bytes()].concat();
                let mut digits = 0;
                let colon = scan_digits(&text, 0, &mut digits);
                prop_assert!(colon > 0 && text[colon] == b':', "{:?}", text);
                let (number, end) = scan(&text, colon + 1).expect("a number");
                let end = end + usize::from(text.get(end) == Some(&b' '));
                prop_assert_eq!((u64::from(index), length), (digits, end));
                prop_assert_eq!(value.to_bits(), number.to_bits());
            }
        }
    }
}
