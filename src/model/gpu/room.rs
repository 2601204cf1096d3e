//! Memory for one batch after the other.

use super::sizes::Extent;
use crate::device::{Arena, DeviceError, Gpu};

/// Memory that holds one batch at a time, and grows with the largest.
#[derive(Debug, Default)]
pub struct Room {
    arena: Option<Arena>,
    bytes: usize,
}

impl Room {
    /// An arena for a batch of `extent`, of which `bytes_of` says what it needs. What the last batch had in it is to be
    /// dropped by now. Waits for all work where no batch before was as large.
    ///
    /// # Errors
    ///
    /// Too little memory: how many documents would do, where batches `can_shrink`.
    pub fn arena(
        &mut self,
        gpu: &Gpu,
        extent: Extent,
        bytes_of: impl Fn(Extent) -> usize,
        can_shrink: bool,
    ) -> Result<&mut Arena, DeviceError> {
        let bytes = bytes_of(extent);
        if bytes > self.bytes && self.arena.is_some() {
            // Given back first: both would not fit. It is free when the stream has got there.
            self.arena = None;
            self.bytes = 0;
            gpu.synchronize()?;
        }
        let before = std::mem::take(&mut self.bytes);
        let arena = match self.arena.take() {
            Some(mut arena) => {
                arena.clear()?;
                arena
            }
            None => {
                let Extent { documents, sets, .. } = extent;
                let (free, total) = gpu.memory()?;
                if bytes > free {
                    let possible = can_shrink.then(|| possible(extent, free, bytes_of)).flatten();
                    let needed = bytes;
                    return Err(DeviceError::BatchTooLarge {
                        documents,
                        sets,
                        needed,
                        free,
                        total,
                        possible,
                    });
                }
                gpu.arena(&format!("a batch of {documents} documents in {sets} set(s)"), bytes)?
            }
        };
        // Of an arena that could not be cleared or made, nothing is left.
        self.bytes = before.max(bytes);
        Ok(self.arena.insert(arena))
    }
}

/// The most documents of a batch of several sets like those of `extent`, of as many documents and pairs on average or fewer,
/// that need at most `free` bytes; none where not even a set as large fits.
pub(crate) fn possible(extent: Extent, free: usize, bytes_of: impl Fn(Extent) -> usize) -> Option<usize> {
    let Extent { documents, sets, pairs } = extent;
    // As many pairs for each document.
    let pairs_of = |fewer: usize| (pairs as u128 * fewer as u128).div_ceil(documents.max(1) as u128) as usize;
    let fits = |fewer: usize| {
        bytes_of(Extent { documents: fewer, sets: sets.min(fewer), pairs: pairs_of(fewer) }) <= free
    };
    let (mut least, mut most) = (0, documents);
    while least < most {
        let middle = (least + most).div_ceil(2);
        (least, most) = if fits(middle) { (middle, most) } else { (least, middle - 1) };
    }
    (sets > 1 && least >= documents.div_ceil(sets)).then_some(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_fit_is_said_where_it_would() {
        let bytes = |extent: Extent| 1000 + 100 * extent.documents + 50 * extent.sets;
        let of = |documents, sets, free| possible(Extent { documents, sets, pairs: 0 }, free, bytes);
        assert_eq!(of(400, 10, 1000 + 100 * 123 + 50 * 10), Some(123));
        assert_eq!(of(400, 10, 1000 + 100 * 123 + 50 * 10 - 1), Some(122));
        // Less than a set, or one alone.
        assert_eq!(of(400, 10, 1000 + 100 * 39 + 50 * 10), None);
        assert_eq!((of(400, 10, 500), of(400, 1, 30_000)), (None, None));
        // Ten sets of 40 meet 40 each.
        let ten = Extent { documents: 400, sets: 10, pairs: 16_000 };
        assert_eq!(possible(ten, 10 * 40 * 123, |extent| 10 * extent.pairs), Some(123));
    }
}
