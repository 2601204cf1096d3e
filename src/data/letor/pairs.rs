//! Runs of usual pairs: the loop in which nearly all time is spent.

use std::ops::RangeInclusive;

use super::line::Entry;
use super::marks::Marked;
use super::usual::{BEFORE, BEHIND, Pair, pair};
use crate::data::number::{byte, scan, scan_digits};

/// Digits of an index that surely fits 32 bits.
const MAX_DIGITS: usize = 9;

/// Where a run of pairs stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Byte of the text.
    pub at: usize,
    /// The index that is expected: that behind the last one.
    pub next: u32,
    /// Whether no index was below the expected one.
    pub ascending: bool,
}

/// Appends usual pairs from `run` on to `entries`, as long as there are any, their indices lie in `indices` and they are
/// not close to either end of the text; gives where that ends.
#[inline]
pub fn append(text: Marked<'_>, run: Run, indices: RangeInclusive<u32>, entries: &mut Vec<Entry>) -> Run {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
        // SAFETY: the machine has these instructions.
        return unsafe { append_with_bmi(text, run, indices, entries) };
    }
    append_with_any(text, run, indices, entries)
}

/// Shifts by a number of bits that varies take a third of the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
fn append_with_bmi(
    text: Marked<'_>,
    run: Run,
    indices: RangeInclusive<u32>,
    entries: &mut Vec<Entry>,
) -> Run {
    append_with_any(text, run, indices, entries)
}

/// The pair at `at`, if it is right, whatever its length and number of digits: Istella's word for a missing value has 18.
#[inline(never)]
fn unusual(text: &[u8], at: usize) -> Option<Pair> {
    let mut index = 0;
    let colon = scan_digits(text, at, &mut index);
    if !(1..=MAX_DIGITS).contains(&(colon - at)) || byte(text, colon) != b':' {
        return None;
    }
    let (value, end) = scan(text, colon + 1).ok()?;
    let goes_on = byte(text, end) == b' ';
    Some(Pair { index: index as u32, value, length: end - at + usize::from(goes_on), goes_on })
}

#[inline(always)]
fn append_with_any(
    text: Marked<'_>,
    mut run: Run,
    indices: RangeInclusive<u32>,
    entries: &mut Vec<Entry>,
) -> Run {
    if run.at < BEFORE {
        return run;
    }
    let (least, largest) = indices.into_inner();
    let last = text.text().len().saturating_sub(BEHIND);
    // Room for what the text can hold until the memory is full; the caller comes again.
    entries.reserve(64);
    let room = entries.spare_capacity_mut();
    let mut count = 0;
    while run.at < last && count < room.len() {
        // SAFETY: so many bytes stand before and behind.
        let usual = unsafe { pair(text, run.at, run.next) };
        let Some(pair) = usual.or_else(|| unusual(text.text(), run.at)) else { break };
        if pair.index < least || pair.index > largest {
            break;
        }
        room[count].write(Entry { index: pair.index, value: pair.value });
        count += 1;
        run.ascending &= pair.index >= run.next;
        run.next = pair.index + 1;
        run.at += pair.length;
        if !pair.goes_on {
            break;
        }
    }
    // SAFETY: so many entries behind the others were written.
    unsafe { entries.set_len(entries.len() + count) };
    run
}
