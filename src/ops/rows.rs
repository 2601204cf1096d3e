//! Passes over rows: buffers cut into tiles of rows, one task a tile, so that a row is read, worked on and written
//! while it is in the cache; and buffers of which tasks write disjoint blocks.

use std::marker::PhantomData;
use std::ops::Range;

use super::gemm::MatMut;

/// Rows of a tile. Fixed: sums over the rows of a tile are combined tile by tile, so that they have the same bits
/// for every number of threads. A multiple of the rows of every micro-kernel.
pub const TILE: usize = 96;

/// Rows of a chunk, after which weight gradients are taken while the rows are in the last cache; a multiple of
/// [`TILE`] and of the inner dimension of a packed panel.
pub const CHUNK: usize = 1536;

/// Writable rows `[rows, width]`.
#[derive(Debug)]
pub struct RowsMut<'a, T> {
    /// `[rows, width]`
    pub data: &'a mut [T],
    /// Numbers of a row.
    pub width: usize,
}

impl<'a, T> RowsMut<'a, T> {
    /// Rows of `width` numbers.
    pub fn new(data: &'a mut [T], width: usize) -> Self {
        RowsMut { data, width }
    }
}

/// Buffers that can be cut between two rows.
pub trait SplitRows: Sized + Send {
    /// The first `rows` rows, and the others.
    fn split_rows(self, rows: usize) -> (Self, Self);
}

impl<T: Send> SplitRows for RowsMut<'_, T> {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (first, second) = self.data.split_at_mut(rows * self.width);
        (RowsMut::new(first, self.width), RowsMut::new(second, self.width))
    }
}

impl<S: SplitRows> SplitRows for Option<S> {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        self.map(|buffer| buffer.split_rows(rows)).unzip()
    }
}

impl<A: SplitRows, B: SplitRows> SplitRows for (A, B) {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (a, b) = (self.0.split_rows(rows), self.1.split_rows(rows));
        ((a.0, b.0), (a.1, b.1))
    }
}

/// Partial sums `[tiles, width]`: one row for each tile of rows.
#[derive(Debug)]
pub struct TileSums<'a, T>(pub RowsMut<'a, T>);

impl<T: Send> SplitRows for TileSums<'_, T> {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (first, second) = self.0.split_rows(rows.div_ceil(TILE));
        (TileSums(first), TileSums(second))
    }
}

/// Calls `work` once for each tile of `tile` rows, with the tile's range of rows and its part of `buffers`, on all
/// threads.
pub fn for_tiles<S: SplitRows>(
    rows: Range<usize>,
    tile: usize,
    buffers: S,
    work: &(impl Fn(Range<usize>, S) + Sync),
) {
    if rows.len() <= tile {
        if !rows.is_empty() {
            work(rows, buffers);
        }
        return;
    }
    let middle = rows.len().div_ceil(tile) / 2 * tile;
    let (first, second) = buffers.split_rows(middle);
    rayon::join(
        || for_tiles(rows.start..rows.start + middle, tile, first, work),
        || for_tiles(rows.start + middle..rows.end, tile, second, work),
    );
}

/// Rows of a tile of a pass without sums: smaller where there would be less than two tiles a thread.
pub fn free_tile(rows: usize) -> usize {
    let shared = rows.div_ceil(2 * rayon::current_num_threads()).next_multiple_of(12);
    shared.clamp(12, TILE)
}

/// Rows `[rows, stride]` of which concurrent tasks write disjoint blocks.
#[derive(Debug)]
pub struct Shared<'a, T> {
    data: *mut T,
    len: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the data is only reached through `block`, whose callers keep their blocks apart.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as a mutable slice.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Rows of `stride` numbers.
    pub fn new(data: &'a mut [T], stride: usize) -> Self {
        Shared { data: data.as_mut_ptr(), len: data.len(), stride, lifetime: PhantomData }
    }

    /// Columns `columns` of the rows `rows`.
    ///
    /// # Safety
    /// No two blocks that live at the same time overlap.
    pub unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> MatMut<'_, T> {
        assert!(rows.start <= rows.end && columns.start <= columns.end && columns.end <= self.stride);
        assert!(rows.is_empty() || rows.end.checked_mul(self.stride).is_some_and(|end| end <= self.len));
        // Of no row, this may lie behind the slice.
        let data = self.data.wrapping_add(rows.start.wrapping_mul(self.stride).wrapping_add(columns.start));
        // SAFETY: inside the slice, and apart from other blocks by the caller's promise.
        unsafe { MatMut::from_raw(data, rows.len(), columns.len(), self.stride) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_row_once() {
        for rows in [0, 1, 95, 96, 97, 1000] {
            let mut data = vec![0usize; rows * 2];
            let mut sums = vec![0usize; rows.div_ceil(TILE)];
            let buffers = (RowsMut::new(&mut data, 2), TileSums(RowsMut::new(&mut sums, 1)));
            for_tiles(0..rows, TILE, buffers, &|range, (rows, sums)| {
                assert_eq!((range.start % TILE, rows.data.len(), sums.0.data.len()), (0, 2 * range.len(), 1));
                rows.data.chunks_mut(2).zip(range.clone()).for_each(|(row, index)| row.fill(index + 1));
                sums.0.data[0] += range.len();
            });
            assert!(data.chunks(2).enumerate().all(|(index, row)| row == [index + 1; 2]));
            assert_eq!(sums.iter().sum::<usize>(), rows);
        }
    }
}
