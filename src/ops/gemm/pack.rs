//! The right factor of a product, copied into panels that a micro-kernel reads from front to back.

use std::ops::Range;

use bytemuck::Pod;
use rayon::prelude::*;

use super::Mat;
use super::kernel::Kernel;
use super::prefetch::prefetch;
use crate::ops::Scalar;

/// Inner dimension of a panel: a panel stays in the first cache while the rows of a tile pass by.
pub const DEPTH: usize = 256;

/// Panels that one task packs.
const PANELS_A_TASK: usize = 8;

/// A cache line; buffers of it are aligned as vectors like it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: plain bytes without padding, any pattern valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// Memory aligned to cache lines that grows and never shrinks.
#[derive(Clone, Debug, Default)]
pub struct Aligned(Vec<Line>);

impl Aligned {
    /// The first `len` numbers, with any content.
    pub fn of<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }

    /// The same of what is there; the memory has grown so far.
    fn there<T: Pod>(&self, len: usize) -> &[T] {
        &bytemuck::cast_slice(&self.0)[..len]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<Line>()
    }
}

/// B `[k, n]` in panels: for each run of [`DEPTH`] rows, for each run of the kernel's columns, the rows one after
/// the other, missing columns as 0.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a, T> {
    pub(super) panels: &'a [T],
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    pub(super) kernel: Kernel<T>,
}

impl<'a, T: Copy> Packed<'a, T> {
    /// The same with the missing columns of the last panel as columns of zeros: n is a multiple of a panel's width.
    pub fn padded(self) -> Self {
        Packed { n: self.n.next_multiple_of(self.kernel.cols), ..self }
    }

    /// The rows from `first` on, a multiple of [`DEPTH`], at most that many.
    pub fn run(&self, first: usize) -> Packed<'a, T> {
        assert!(first.is_multiple_of(DEPTH) && first < self.k);
        let columns = self.n.next_multiple_of(self.kernel.cols);
        let depth = DEPTH.min(self.k - first);
        let panels = &self.panels[first * columns..(first + depth) * columns];
        Packed { panels, k: depth, n: self.n, kernel: self.kernel }
    }

    /// What is read after that panel: the next one, or the first again.
    pub(super) fn after(&self, first: usize, panel: usize) -> &[T] {
        let end = self.place(first, panel).end;
        let rest = &self.panels[if end < self.panels.len() { end } else { 0 }..];
        &rest[..rest.len().min(DEPTH * self.kernel.cols)]
    }

    /// The panel of `depth` rows from `first` on, columns from `panel`·width on.
    pub(super) fn panel(&self, first: usize, panel: usize) -> &[T] {
        &self.panels[self.place(first, panel)]
    }

    fn place(&self, first: usize, panel: usize) -> Range<usize> {
        let (width, depth) = (self.kernel.cols, DEPTH.min(self.k - first));
        let start = first * self.n.next_multiple_of(width) + panel * depth * width;
        start..start + depth * width
    }
}

/// Numbers that [`Packed`] takes for B `[k, n]`.
pub fn packed_len<T: Scalar>(k: usize, n: usize) -> usize {
    k * n.next_multiple_of(T::kernel().cols)
}

/// Packs B into `buffer`, on the calling thread.
pub fn pack<'a, T: Scalar>(buffer: &'a mut [T], b: Mat<'_, T>) -> Packed<'a, T> {
    pack_for(T::kernel(), buffer, b)
}

/// Packs B for a kernel.
pub(super) fn pack_for<'a, T: Scalar>(
    kernel: Kernel<T>,
    buffer: &'a mut [T],
    b: Mat<'_, T>,
) -> Packed<'a, T> {
    let columns = b.cols.next_multiple_of(kernel.cols);
    let buffer = &mut buffer[..b.rows * columns];
    for (index, run) in buffer.chunks_mut((DEPTH * columns).max(1)).enumerate() {
        fill(run, b, index * DEPTH, 0, kernel.cols);
    }
    Packed { panels: buffer, k: b.rows, n: b.cols, kernel }
}

/// Packs B into `buffer`, on all threads.
pub fn pack_parallel<'a, T: Scalar>(buffer: &'a mut Aligned, b: Mat<'_, T>) -> Packed<'a, T> {
    let kernel = T::kernel();
    let width = kernel.cols;
    let buffer = buffer.of::<T>(packed_len::<T>(b.rows, b.cols));
    let run = b.cols.next_multiple_of(width) * DEPTH;
    for (index, run) in buffer.chunks_mut(run.max(1)).enumerate() {
        let first = index * DEPTH;
        let depth = DEPTH.min(b.rows - first);
        run.par_chunks_mut(PANELS_A_TASK * depth * width).enumerate().for_each(|(task, panels)| {
            fill(panels, b, first, task * PANELS_A_TASK * width, width);
        });
    }
    Packed { panels: buffer, k: b.rows, n: b.cols, kernel }
}

/// B `[k, n]` as [`pack_parallel`] has left it in `buffer`.
///
/// # Panics
///
/// Where nothing so large was packed there.
pub fn packed<T: Scalar>(buffer: &Aligned, k: usize, n: usize) -> Packed<'_, T> {
    Packed { panels: buffer.there(packed_len::<T>(k, n)), k, n, kernel: T::kernel() }
}

/// Rows that are copied from one panel to the next: few enough for the processor to follow all of them.
const ROWS_AT_ONCE: usize = 8;

/// Panels `[depth, width]` = rows from `first`, columns from `column` on of B, up to [`DEPTH`] rows of it.
fn fill<T: Scalar>(panels: &mut [T], b: Mat<'_, T>, first: usize, column: usize, width: usize) {
    let depth = DEPTH.min(b.rows - first);
    if b.col_stride == 1 {
        let from = &b.data[first * b.row_stride + column..];
        let cols = b.cols - column;
        match width {
            8 => copy_rows::<T, 8>(panels, from, b.row_stride, depth, cols),
            16 => copy_rows::<T, 16>(panels, from, b.row_stride, depth, cols),
            32 => copy_rows::<T, 32>(panels, from, b.row_stride, depth, cols),
            _ => unreachable!("panels of {width} columns"),
        }
        return;
    }
    for (index, panel) in panels.chunks_exact_mut(depth * width).enumerate() {
        let column = column + index * width;
        let cols = width.min(b.cols - column);
        if cols < width {
            panel.fill(T::ZERO);
        }
        let source = |col: usize| &b.data[(column + col) * b.col_stride + first..][..depth];
        let whole = cols / SIDE_BY_SIDE * SIDE_BY_SIDE;
        for col in (0..whole).step_by(SIDE_BY_SIDE) {
            interleave(panel, col, width, std::array::from_fn(|i| source(col + i)));
        }
        for col in whole..cols {
            for (panel, &value) in panel.chunks_exact_mut(width).zip(source(col)) {
                panel[col] = value;
            }
        }
    }
}

/// Panels `[depth, W]` = runs of `W` of the `cols` columns of `depth` rows that are `stride` apart; missing columns
/// are 0.
#[inline]
fn copy_rows<T: Scalar, const W: usize>(
    panels: &mut [T],
    from: &[T],
    stride: usize,
    depth: usize,
    cols: usize,
) {
    for row in (0..depth).step_by(ROWS_AT_ONCE) {
        let rows = row..(row + ROWS_AT_ONCE).min(depth);
        for (panel, to) in panels.chunks_exact_mut(depth * W).enumerate() {
            let column = panel * W;
            let to = to[rows.start * W..rows.end * W].chunks_exact_mut(W);
            if column + W <= cols {
                for (row, to) in rows.clone().zip(to) {
                    // The rows of the next turn come from afar.
                    prefetch(from.as_ptr().wrapping_add((row + ROWS_AT_ONCE) * stride + column));
                    to.copy_from_slice(&from[row * stride + column..][..W]);
                }
            } else {
                for (row, to) in rows.clone().zip(to) {
                    let (values, missing) = to.split_at_mut(cols - column);
                    values.copy_from_slice(&from[row * stride + column..][..cols - column]);
                    missing.fill(T::ZERO);
                }
            }
        }
    }
}

/// Contiguous columns that are read at the same time, so that what is written is not single numbers.
const SIDE_BY_SIDE: usize = 4;

/// Columns from `column` on of `panel` `[depth, width]`.
#[inline]
fn interleave<T: Copy>(panel: &mut [T], column: usize, width: usize, sources: [&[T]; SIDE_BY_SIDE]) {
    let depth = panel.len() / width;
    let sources = sources.map(|source| &source[..depth]);
    for (row, panel) in panel.chunks_exact_mut(width).enumerate() {
        let values: [T; SIDE_BY_SIDE] = std::array::from_fn(|i| sources[i][row]);
        panel[column..column + SIDE_BY_SIDE].copy_from_slice(&values);
    }
}

/// A `[m, k]`, k at most [`DEPTH`], in panels of as many rows as the kernel has: their columns one after the other,
/// missing rows as 0.
#[derive(Clone, Copy, Debug)]
pub struct PackedLeft<'a, T> {
    panels: &'a [T],
    rows: usize,
    depth: usize,
    height: usize,
}

/// Numbers that [`PackedLeft`] takes for A `[m, k]`.
pub fn packed_left_len<T: Scalar>(m: usize, k: usize) -> usize {
    m.next_multiple_of(T::kernel().rows) * k
}

impl<'a, T: Scalar> PackedLeft<'a, T> {
    /// The transpose of `source` `[k, m]`, packed into `buffer`.
    pub fn new(buffer: &'a mut [T], source: Mat<'_, T>) -> Self {
        Self::for_kernel(T::kernel(), buffer, source)
    }

    /// Packs for a kernel.
    pub(super) fn for_kernel(kernel: Kernel<T>, buffer: &'a mut [T], source: Mat<'_, T>) -> Self {
        assert!(source.col_stride == 1 && source.rows <= DEPTH);
        let (rows, depth, height) = (source.cols, source.rows, kernel.rows);
        let buffer = &mut buffer[..rows.next_multiple_of(height) * depth];
        let (from, stride) = (source.data, source.row_stride);
        match height {
            2 => copy_rows::<T, 2>(buffer, from, stride, depth, rows),
            6 => copy_rows::<T, 6>(buffer, from, stride, depth, rows),
            12 => copy_rows::<T, 12>(buffer, from, stride, depth, rows),
            _ => unreachable!("tiles of {height} rows"),
        }
        PackedLeft { panels: buffer, rows, depth, height }
    }
}

mod sealed {
    /// What the products rely on is checked where these are made.
    pub trait Sealed {}
    impl<T> Sealed for super::Mat<'_, T> {}
    impl<T> Sealed for super::PackedLeft<'_, T> {}
}

/// The left factor of a product.
pub trait Left<T>: sealed::Sealed {
    /// Rows.
    fn rows(&self) -> usize;
    /// Columns.
    fn cols(&self) -> usize;
    /// The rows of a tile that it is packed for; `None` = any.
    fn tile_rows(&self) -> Option<usize>;
    /// Where element (`row`, `col`) stands, and the distances of rows and of columns around it, as far as the
    /// kernel's tile reaches; `row` is a multiple of the kernel's rows, `col` of [`DEPTH`].
    fn at(&self, row: usize, col: usize) -> (&[T], usize, usize);
}

impl<T> Left<T> for Mat<'_, T> {
    fn rows(&self) -> usize {
        self.rows
    }
    fn cols(&self) -> usize {
        self.cols
    }
    fn tile_rows(&self) -> Option<usize> {
        None
    }
    #[inline]
    fn at(&self, row: usize, col: usize) -> (&[T], usize, usize) {
        (&self.data[row * self.row_stride + col * self.col_stride..], self.row_stride, self.col_stride)
    }
}

impl<T> Left<T> for PackedLeft<'_, T> {
    fn rows(&self) -> usize {
        self.rows
    }
    fn cols(&self) -> usize {
        self.depth
    }
    fn tile_rows(&self) -> Option<usize> {
        Some(self.height)
    }
    #[inline]
    fn at(&self, row: usize, _: usize) -> (&[T], usize, usize) {
        (&self.panels[row * self.depth..], 1, self.height)
    }
}
