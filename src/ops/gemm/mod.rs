//! Matrix products for one thread: C ← (C +) A·B, with B packed into panels beforehand and A read where it stands.
//!
//! An element of C is one chain of sums over runs of [`DEPTH`] inner elements, the runs added in order: its bits
//! depend neither on its place in C nor on the number of threads, so callers may cut C as they like.

mod kernel;
mod pack;
mod prefetch;

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

pub use kernel::{Kernel, Kernels};
use kernel::{MAX_COLS, MAX_ROWS, Tile};
pub use pack::{
    Aligned, DEPTH, Left, Packed, PackedLeft, pack, pack_parallel, packed, packed_left_len, packed_len,
};

use prefetch::prefetch;

use super::Scalar;

/// A read-only matrix: element `(i, j)` stands at `data[i·row_stride + j·col_stride]`, and one of the strides is 1.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// A writable matrix whose rows are contiguous: element `(i, j)` stands at `data + i·row_stride + j`.
///
/// It may be a block of a larger matrix whose other blocks are written by other threads.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    row_stride: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

fn check(len: usize, rows: usize, cols: usize, row_stride: usize) {
    let end = |rows: usize| (rows - 1).checked_mul(row_stride)?.checked_add(cols);
    assert!(
        rows == 0 || cols == 0 || (cols <= row_stride && end(rows).is_some_and(|end| end <= len)),
        "a [{rows}, {cols}] matrix of row stride {row_stride} does not fit {len} elements"
    );
}

impl<'a, T> Mat<'a, T> {
    /// A dense row-major matrix.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// The first `cols` columns of rows that are `row_stride` apart.
    pub fn strided(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride);
        Mat { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Mat {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A block of a matrix that is not transposed.
    pub fn block(&self, rows: Range<usize>, cols: Range<usize>) -> Mat<'a, T> {
        assert!(self.col_stride == 1 && rows.end <= self.rows && cols.end <= self.cols);
        Mat::strided(
            &self.data[rows.start * self.row_stride + cols.start..],
            rows.len(),
            cols.len(),
            self.row_stride,
        )
    }

    /// Row number `row` of a matrix that is not transposed.
    pub fn row(&self, row: usize) -> &'a [T] {
        assert!(self.col_stride == 1 && row < self.rows);
        &self.data[row * self.row_stride..][..self.cols]
    }
}

impl<'a, T> MatMut<'a, T> {
    /// A dense row-major matrix.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// The first `cols` columns of rows that are `row_stride` apart.
    pub fn strided(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride);
        MatMut { data: data.as_mut_ptr(), rows, cols, row_stride, lifetime: PhantomData }
    }

    /// A block of a matrix that other threads write other blocks of.
    ///
    /// # Safety
    /// Rows of `cols` numbers, `row_stride` apart, from `data` on are valid for reads and writes during `'a`, and
    /// nobody else touches them.
    pub unsafe fn from_raw(data: *mut T, rows: usize, cols: usize, row_stride: usize) -> Self {
        MatMut { data, rows, cols, row_stride, lifetime: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row number `row`.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        if self.cols == 0 {
            return &mut [];
        }
        // SAFETY: the constructors vouch for `rows` rows of `cols` numbers.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.row_stride), self.cols) }
    }

    /// The rows `rows`.
    pub fn slice_rows(&mut self, rows: Range<usize>) -> MatMut<'_, T> {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        // Of no row, this may lie behind the matrix.
        let data = self.data.wrapping_add(rows.start * self.row_stride);
        MatMut { data, rows: rows.len(), cols: self.cols, row_stride: self.row_stride, lifetime: PhantomData }
    }
}

/// What happens to the output's former value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `=`
    Set,
    /// `+=`
    Add,
}

/// What is done with a finished element of C.
#[derive(Clone, Copy, Debug)]
pub enum Finish<'a, T> {
    /// Nothing.
    Plain,
    /// The bias `[n]` of its column is added.
    Bias(&'a [T]),
    /// The bias `[n]` of its column is added, and max(0, ·) taken; NaN stays NaN.
    BiasRelu(&'a [T]),
}

impl<T> Finish<'_, T> {
    fn bias(&self) -> Option<&[T]> {
        match self {
            Finish::Plain => None,
            Finish::Bias(bias) | Finish::BiasRelu(bias) => Some(bias),
        }
    }
}

/// C `[m, n]` ← A `[m, k]`·B `[k, n]`, or C + A·B; then `finish`.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn gemm<T: Scalar>(
    c: &mut MatMut<'_, T>,
    write: Write,
    a: &impl Left<T>,
    b: Packed<'_, T>,
    finish: Finish<'_, T>,
) {
    assert!(
        a.rows() == c.rows
            && b.n == c.cols
            && a.cols() == b.k
            && finish.bias().is_none_or(|bias| bias.len() == b.n),
        "[{}, {}] · [{}, {}] -> [{}, {}]",
        a.rows(),
        a.cols(),
        b.k,
        b.n,
        c.rows,
        c.cols
    );
    assert!(
        a.tile_rows().is_none_or(|rows| rows == b.kernel.rows),
        "A and B are packed for different kernels"
    );
    assert!(b.k > 0, "a product over no inner element");
    let kernel = b.kernel;
    for first in (0..b.k).step_by(DEPTH) {
        let finish = if first + DEPTH >= b.k { finish } else { Finish::Plain };
        let depth = DEPTH.min(b.k - first);
        for (panel, column) in (0..b.n).step_by(kernel.cols).enumerate() {
            let whole = column + kernel.cols <= b.n;
            let bias =
                finish.bias().filter(|_| whole).map_or(std::ptr::null(), |bias| bias[column..].as_ptr());
            let mut next = b.after(first, panel);
            let lines = next.len().div_ceil(c.rows.div_ceil(kernel.rows).max(1));
            let panel = b.panel(first, panel).as_ptr();
            for row in (0..c.rows).step_by(kernel.rows) {
                let (now, later) = next.split_at(lines.min(next.len()));
                now.chunks(64 / size_of::<T>()).for_each(|line| prefetch(line.as_ptr()));
                next = later;
                let (a, a_row, a_col) = a.at(row, first);
                let tile = Tile {
                    depth,
                    rows: kernel.rows.min(c.rows - row),
                    a: a.as_ptr(),
                    a_row,
                    a_col,
                    b: panel,
                    // SAFETY: inside C.
                    c: unsafe { c.data.add(row * c.row_stride + column) },
                    c_row: c.row_stride,
                    add: write == Write::Add || first > 0,
                    bias,
                    relu: matches!(finish, Finish::BiasRelu(_)),
                };
                // SAFETY: the tile lies inside A, the panel and C, of which only C is written.
                unsafe {
                    if whole {
                        (kernel.run)(&tile);
                    } else {
                        run_partial(kernel, tile, b.n - column, finish.bias().map(|bias| &bias[column..]));
                    }
                }
            }
        }
    }
}

/// A tile of which only `cols` columns exist: computed beside C and copied. `bias` is of those columns.
///
/// # Safety
/// As [`Kernel::run`], but only `cols` columns of C are touched.
unsafe fn run_partial<T: Scalar>(kernel: Kernel<T>, tile: Tile<T>, cols: usize, bias: Option<&[T]>) {
    let mut beside = [MaybeUninit::<T>::uninit(); MAX_ROWS * MAX_COLS];
    let beside = beside.as_mut_ptr().cast::<T>();
    let mut whole_bias = [T::ZERO; MAX_COLS];
    let c = |r: usize| tile.c.wrapping_add(r * tile.c_row);
    // SAFETY: the caller vouches for `cols` columns of the tile's rows, and for A and B; `beside` holds a whole tile,
    // which is written before it is read.
    unsafe {
        if tile.add {
            for r in 0..tile.rows {
                let beside = beside.add(r * kernel.cols);
                beside.copy_from_nonoverlapping(c(r), cols);
                beside.add(cols).write_bytes(0, kernel.cols - cols);
            }
        }
        let mut inner = Tile { c: beside, c_row: kernel.cols, ..tile };
        if let Some(bias) = bias {
            whole_bias[..cols].copy_from_slice(bias);
            inner.bias = whole_bias.as_ptr();
        }
        (kernel.run)(&inner);
        for r in 0..tile.rows {
            c(r).copy_from_nonoverlapping(beside.add(r * kernel.cols), cols);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::simd::Level;
    use crate::rng::{Rng, Stream};

    #[derive(Clone, Debug)]
    struct Case {
        dims: [usize; 3],
        /// Whether A and B are given transposed.
        transposed: [bool; 2],
        packed_left: bool,
        write: Write,
        finish: usize,
        seed: u64,
    }

    impl Case {
        /// C of the case by a kernel, and the largest error that sums in any order can have.
        fn run<T: Scalar>(&self, kernel: Kernel<T>) -> Vec<T> {
            let [m, n, k] = self.dims;
            let [a, b, c, bias] =
                self.inputs().map(|values| values.iter().map(|&x| T::from_f64(x)).collect::<Vec<T>>());
            let transposed = |data: &[T], rows: usize, cols: usize| -> Vec<T> {
                (0..cols)
                    .flat_map(|col| (0..rows).map(move |row| (row, col)))
                    .map(|(row, col)| data[row * cols + col])
                    .collect()
            };
            let (a_t, b_t) = (transposed(&a, m, k), transposed(&b, k, n));
            let b = if self.transposed[1] { Mat::new(&b_t, n, k).t() } else { Mat::new(&b, k, n) };
            let mut panels = vec![T::ZERO; k * n.next_multiple_of(kernel.cols)];
            let b = pack::pack_for(kernel, &mut panels, b);
            let finish = match self.finish {
                0 => Finish::Plain,
                1 => Finish::Bias(&bias),
                _ => Finish::BiasRelu(&bias),
            };
            let mut c = c;
            let out = &mut MatMut::new(&mut c, m, n);
            if self.packed_left && k <= DEPTH {
                let mut buffer = vec![T::ONE; m.next_multiple_of(kernel.rows) * k];
                let a = PackedLeft::for_kernel(kernel, &mut buffer, Mat::new(&a_t, k, m));
                gemm(out, self.write, &a, b, finish);
            } else {
                let a = if self.transposed[0] { Mat::new(&a_t, k, m).t() } else { Mat::new(&a, m, k) };
                gemm(out, self.write, &a, b, finish);
            }
            c
        }

        fn inputs(&self) -> [Vec<f64>; 4] {
            let [m, n, k] = self.dims;
            let mut rng = Rng::new(self.seed, Stream::Synth, 3);
            [m * k, k * n, m * n, n].map(|len| (0..len).map(|_| f64::from(rng.normal() as f32)).collect())
        }

        /// C in f64 by plain loops, and beside it Σ |a·b|.
        fn plain(&self) -> Vec<(f64, f64)> {
            let [m, n, k] = self.dims;
            let [a, b, c, bias] = self.inputs();
            (0..m * n)
                .map(|at| {
                    let (i, j) = (at / n, at % n);
                    let products = (0..k).map(|p| a[i * k + p] * b[p * n + j]);
                    let before = if self.write == Write::Add { c[at] } else { 0.0 };
                    let bias = if self.finish > 0 { bias[j] } else { 0.0 };
                    let sum = before + products.clone().sum::<f64>() + bias;
                    let size = before.abs() + products.map(f64::abs).sum::<f64>() + bias.abs();
                    (if self.finish == 2 { sum.max(0.0) } else { sum }, size)
                })
                .collect()
        }
    }

    fn cases() -> impl Strategy<Value = Case> {
        let size = || prop_oneof![1usize..40, 90usize..100];
        let depth = prop_oneof![1usize..40, 250usize..260, 500usize..530];
        (size(), size(), depth, any::<[bool; 4]>(), 0usize..3, 0u64..1000).prop_map(
            |(m, n, k, [a, b, packed_left, add], finish, seed)| Case {
                dims: [m, n, k],
                transposed: [a, b],
                packed_left,
                write: if add { Write::Add } else { Write::Set },
                finish,
                seed,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn every_kernel_matches_plain_loops(case in cases()) {
            let plain = case.plain();
            let depth = (case.dims[2] + 2) as f64;
            for level in Level::available() {
                let single = case.run(f32::at_level(level));
                let double = case.run(f64::at_level(level));
                for (at, &(exact, size)) in plain.iter().enumerate() {
                    let allowed = depth * size;
                    prop_assert!((f64::from(single[at]) - exact).abs() <= allowed * f64::from(f32::EPSILON), "{level:?} f32 [{at}]");
                    prop_assert!((double[at] - exact).abs() <= allowed * f64::EPSILON, "{level:?} f64 [{at}]");
                }
            }
        }

        #[test]
        fn the_bits_of_an_element_do_not_depend_on_its_place(case in cases(), first in 0usize..39) {
            let [m, n, k] = case.dims;
            let first = first % m;
            let [a, b, ..] = case.inputs().map(|values| values.iter().map(|&x| x as f32).collect::<Vec<_>>());
            for level in Level::available() {
                let kernel = f32::at_level(level);
                let mut panels = vec![0.0; k * n.next_multiple_of(kernel.cols)];
                let b = pack::pack_for(kernel, &mut panels, Mat::new(&b, k, n));
                let run = |rows: Range<usize>| {
                    let mut c = vec![0.0f32; rows.len() * n];
                    let a = Mat::new(&a[rows.start * k..rows.end * k], rows.len(), k);
                    gemm(&mut MatMut::new(&mut c, rows.len(), n), Write::Set, &a, b, Finish::Plain);
                    c
                };
                prop_assert_eq!(&run(0..m)[first * n..], &run(first..m)[..]);
            }
        }
    }

    #[test]
    fn relu_lets_nan_through() {
        for level in Level::available() {
            let mut panels = vec![0.0; 32];
            let b = pack::pack_for(f32::at_level(level), &mut panels, Mat::new(&[1.0], 1, 1));
            let mut c = [0.0f32; 2];
            let a = Mat::new(&[f32::NAN, -1.0], 2, 1);
            gemm(&mut MatMut::new(&mut c, 2, 1), Write::Set, &a, b, Finish::BiasRelu(&[0.0]));
            assert!(c[0].is_nan() && c[1] == 0.0, "{level:?}");
        }
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_size_that_overflows_is_refused() {
        // (2^33 − 1)·2^31 + 2^31 = 2^64
        Mat::strided(&[0.0], 1 << 33, 1 << 31, 1 << 31);
    }
}
