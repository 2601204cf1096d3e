//! Words of a line: ids, and the token of a query that is repeated line by line.

/// A word at the beginning of a text.
pub struct Word {
    pub length: usize,
    /// Whether it is known to be ASCII throughout.
    pub ascii: bool,
}

/// Bytes that are looked at together.
const WINDOW: usize = 16;

/// The word that `text` begins with: everything up to a blank or the end of the line or text.
#[inline(always)]
pub fn first(text: &[u8]) -> Word {
    let (windows, _) = text.as_chunks::<WINDOW>();
    // Longer ids than two windows hold are rare.
    for (number, window) in windows.iter().take(2).enumerate() {
        let letters = no_letters(window).trailing_zeros() as usize;
        if letters < WINDOW {
            if is_blank(window[letters]) {
                return Word { length: number * WINDOW + letters, ascii: true };
            }
            break;
        }
    }
    let length = text.iter().position(|&byte| is_blank(byte)).unwrap_or(text.len());
    Word { length, ascii: false }
}

#[inline(always)]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// A bit a byte, the first byte's the lowest: set where it is a blank, a control, or no ASCII.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn no_letters(window: &[u8; WINDOW]) -> u32 {
    use std::arch::x86_64::*;
    // SAFETY: every x86-64 processor has SSE2, and the load reads sixteen bytes of the window.
    unsafe {
        let bytes = _mm_loadu_si128(window.as_ptr().cast());
        // As signed bytes those beyond ASCII are negative.
        _mm_movemask_epi8(_mm_cmplt_epi8(bytes, _mm_set1_epi8(b'!' as i8))) as u32
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn no_letters_in_plain_code(window: &[u8; WINDOW]) -> u32 {
    let is = |byte: u8| byte <= b' ' || !byte.is_ascii();
    window.iter().enumerate().fold(0, |bits, (at, &byte)| bits | u32::from(is(byte)) << at)
}
#[cfg(not(target_arch = "x86_64"))]
use no_letters_in_plain_code as no_letters;

/// A short token that many lines repeat.
pub struct Repeated {
    text: u128,
    mask: u128,
    /// Its bytes.
    pub length: usize,
}

impl Repeated {
    /// `None` for a long token.
    pub fn new(token: &[u8]) -> Option<Self> {
        let mut text = [0; WINDOW];
        text.get_mut(..token.len())?.copy_from_slice(token);
        let unused = 8 * (WINDOW - token.len()) as u32;
        let mask = u128::MAX.checked_shr(unused)?;
        Some(Repeated { text: u128::from_le_bytes(text), mask, length: token.len() })
    }

    /// Whether a text of these first bytes begins with it.
    #[inline(always)]
    pub fn begins(&self, window: &[u8; WINDOW]) -> bool {
        (u128::from_le_bytes(*window) ^ self.text) & self.mask == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_end_at_blanks() {
        fn read(text: &str) -> (&str, bool) {
            let Word { length, ascii } = first(text.as_bytes());
            (&text[..length], ascii)
        }
        for (text, word, ascii) in [
            ("GX000-00-000000 inc", "GX000-00-000000", true),
            ("GX000-00-0000000 inc = 1            ", "GX000-00-0000000", true),
            ("GX000-00-0000000-0123456789abcdef inc = 1 ", "GX000-00-0000000-0123456789abcdef", false),
            ("a\tb             ", "a", true),
            ("\n               ", "", true),
            ("", "", false),
            ("abc", "abc", false),
            ("é               ", "é", false),
            ("a\u{b}b            ", "a\u{b}b", false),
            ("ab\u{7f}é\r           ", "ab\u{7f}é", false),
        ] {
            assert_eq!(read(text), (word, ascii), "{text:?}");
        }
    }

    #[test]
    fn repeated_tokens() {
        let window = |text: &str| *text.as_bytes().first_chunk().unwrap();
        let short = Repeated::new(b"qid:7").unwrap();
        assert!(short.begins(&window("qid:7 1:0.5 2:0.5")) && short.begins(&window("qid:77 1:0.5 2:0.5")));
        assert!(!short.begins(&window("qid:8 1:0.5 2:0.5")));
        let long = Repeated::new(b"qid:0123456789ab").unwrap();
        assert!(
            long.begins(&window("qid:0123456789ab 1:2")) && !long.begins(&window("qid:0123456789ac 1:2"))
        );
        assert!(Repeated::new(b"qid:0123456789abc").is_none());
    }

    proptest! {
        #[test]
        fn vectors_see_what_plain_code_sees(window: [u8; WINDOW]) {
            prop_assert_eq!(no_letters(&window), no_letters_in_plain_code(&window));
        }
    }
}
