//! Where tokens end: the bytes of a text that may end or divide one, found 64 at a time.

/// A bit for each byte of a text, the first byte's the lowest of the first byte: set for a colon, a point, and everything
/// below `$` or beyond ASCII, as blanks and `#` are.
#[derive(Debug, Default)]
pub struct Marks(Vec<u8>);

/// Bytes that are marked at once.
const BLOCK: usize = 64;

/// A text and its marks.
#[derive(Clone, Copy, Debug)]
pub struct Marked<'a> {
    text: &'a [u8],
    /// The text's, and eight bytes.
    marks: &'a [u8],
}

impl Marks {
    /// Marks `text`.
    pub fn mark<'a>(&'a mut self, text: &'a [u8]) -> Marked<'a> {
        self.0.clear();
        let (blocks, rest) = text.as_chunks::<BLOCK>();
        self.0.extend(blocks.iter().flat_map(|block| marks(block).to_le_bytes()));
        let mut last = [b' '; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        self.0.extend(marks(&last).to_le_bytes());
        self.0.extend([u8::MAX; 8]);
        Marked { text, marks: &self.0 }
    }
}

impl<'a> Marked<'a> {
    /// The text.
    #[inline(always)]
    pub fn text(self) -> &'a [u8] {
        self.text
    }

    /// The marks from byte `at` of the text on, the first the lowest bit: at least 57 of them are told. Behind the text all
    /// are set.
    ///
    /// # Safety
    ///
    /// The text is at least `at` bytes long.
    #[inline(always)]
    pub unsafe fn from(self, at: usize) -> u64 {
        debug_assert!(at <= self.text.len());
        // SAFETY: eight bytes stand behind those of the text.
        unsafe { self.marks.as_ptr().add(at / 8).cast::<u64>().read_unaligned() >> (at % 8) }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn marks(block: &[u8; BLOCK]) -> u64 {
    use std::arch::x86_64::*;
    let (parts, []) = block.as_chunks::<16>() else { unreachable!("64 is a multiple of 16") };
    let mut bits = 0;
    for (number, part) in parts.iter().enumerate() {
        // SAFETY: every x86-64 processor has SSE2, and the load reads sixteen bytes of the block.
        let marks = unsafe {
            let bytes = _mm_loadu_si128(part.as_ptr().cast());
            let is = |byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8));
            // As signed bytes those beyond ASCII are negative.
            let low = _mm_cmplt_epi8(bytes, _mm_set1_epi8(b'$' as i8));
            _mm_movemask_epi8(_mm_or_si128(low, _mm_or_si128(is(b':'), is(b'.'))))
        };
        bits |= (marks as u64) << (16 * number);
    }
    bits
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn marks_in_plain_code(block: &[u8; BLOCK]) -> u64 {
    let is_mark = |byte: u8| matches!(byte, b':' | b'.' | ..b'$' | 0x80..);
    block.iter().enumerate().fold(0, |bits, (at, &byte)| bits | u64::from(is_mark(byte)) << at)
}
#[cfg(not(target_arch = "x86_64"))]
use marks_in_plain_code as marks;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str, from: usize) -> Vec<usize> {
        let mut marks = Marks::default();
        let marks = marks.mark(text.as_bytes());
        // SAFETY: inside of the text.
        (from..text.len()).filter(|&at| unsafe { marks.from(at) } & 1 == 1).collect()
    }

    #[test]
    fn marks_end_tokens() {
        assert_eq!(all("1 qid:10 2:0.5\n", 0), [1, 5, 8, 10, 12, 14]);
        assert_eq!(all("-NULL#\t\r", 0), [5, 6, 7]);
        assert_eq!(all("é", 0), [0, 1]);
        let long = format!("{}:{}.", "1".repeat(200), "2".repeat(63));
        assert_eq!(all(&long, 0), [200, 264]);
    }

    #[test]
    fn at_least_57_are_told() {
        let mut marks = Marks::default();
        for len in [0, 1, 63, 64, 65, 200] {
            let text = b"1".repeat(len);
            let marks = marks.mark(&text);
            for at in 0..=len {
                let own = (len - at).min(57);
                // SAFETY: not beyond the text.
                let told = unsafe { marks.from(at) };
                assert_eq!(told << 7, u64::MAX << own << 7, "{at} of {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn vectors_see_what_plain_code_sees(bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
            let block: &[u8; BLOCK] = bytes[..].try_into().unwrap();
            prop_assert_eq!(marks(block), marks_in_plain_code(block));
        }
    }
}
