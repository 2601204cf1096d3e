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
                check(gpu, extent, bytes_of, can_shrink)?;
                let Extent { documents, sets, .. } = extent;
                gpu.arena(&format!("a batch of {documents} documents in {sets} set(s)"), bytes)?
            }
        };
        // Of an arena that could not be cleared or made, nothing is left.
        self.bytes = before.max(bytes);
        Ok(self.arena.insert(arena))
    }
}

/// Refuses a batch that the GPU has not the memory for.
///
/// # Errors
///
/// How many documents would do, where batches `can_shrink`.
pub(crate) fn check(
    gpu: &Gpu,
    extent: Extent,
    bytes_of: impl Fn(Extent) -> usize,
    can_shrink: bool,
) -> Result<(), DeviceError> {
    let Extent { documents, sets, .. } = extent;
    let (needed, (free, total)) = (bytes_of(extent), gpu.memory()?);
    if needed <= free {
        return Ok(());
    }
    let possible = can_shrink.then(|| possible(extent, free, bytes_of)).flatten();
    let fuse = gpu.limits().fuse;
    Err(DeviceError::BatchTooLarge { documents, sets, needed, free, total, possible, fuse })
}

/// The most documents of a batch of several sets like those of `extent` that need at most `free` bytes, whichever of the
/// sets they are of; none where the longest set is not among them.
fn possible(extent: Extent, free: usize, bytes_of: impl Fn(Extent) -> usize) -> Option<usize> {
    let fits = |fewer: usize| bytes_of(extent.with_documents(fewer)) <= free;
    let (mut least, mut most) = (0, extent.documents);
    while least < most {
        let middle = (least + most).div_ceil(2);
        (least, most) = if fits(middle) { (middle, most) } else { (least, middle - 1) };
    }
    (extent.sets > 1 && least >= extent.longest).then_some(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_fit_is_said_where_it_would() {
        let bytes = |extent: Extent| 1000 + 100 * extent.documents + 50 * extent.sets;
        let of =
            |documents, sets, free| possible(Extent { documents, sets, longest: 40, pairs: 0 }, free, bytes);
        assert_eq!(of(400, 10, 1000 + 100 * 123 + 50 * 10), Some(123));
        assert_eq!(of(400, 10, 1000 + 100 * 123 + 50 * 10 - 1), Some(122));
        // Less than a set, or one alone.
        assert_eq!(of(400, 10, 1000 + 100 * 39 + 50 * 10), None);
        assert_eq!((of(400, 10, 500), of(400, 1, 30_000)), (None, None));
        // Documents of ten sets of 40 meet 40 each; where there is one long set, most of a batch may be of it.
        let pairs_of =
            |sizes: Vec<usize>, free| possible(Extent::of_sizes(sizes), free, |extent| extent.pairs);
        assert_eq!(pairs_of(vec![40; 10], 40 * 123), Some(123));
        let mixed = || std::iter::once(2000).chain([1; 3000]).collect();
        assert_eq!((pairs_of(mixed(), 2_500_000), pairs_of(mixed(), 4_010_000)), (None, Some(2005)));
    }
}
