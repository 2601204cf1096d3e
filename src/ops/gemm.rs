//! Matrix products on bounds-checked views; the arithmetic is the `gemm` family of crates.

use super::Scalar;

/// A read-only matrix: element `(i, j)` stands at `data[i·row_stride + j·col_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// A writable row-major matrix: element `(i, j)` stands at `data[i·row_stride + j]`.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
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
}

impl<'a, T> MatMut<'a, T> {
    /// A dense row-major matrix.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// The first `cols` columns of rows that are `row_stride` apart.
    pub fn strided(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride);
        MatMut { data, rows, cols, row_stride }
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

/// C ← scale·A·B or C ← C + scale·A·B, on the calling thread.
///
/// For given shapes the order of summation of an element does not depend on its place in C.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn gemm<T: Scalar>(c: MatMut<'_, T>, write: Write, scale: T, a: Mat<'_, T>, b: Mat<'_, T>) {
    assert!(
        a.rows == c.rows && b.cols == c.cols && a.cols == b.rows,
        "[{}, {}] · [{}, {}] -> [{}, {}]",
        a.rows,
        a.cols,
        b.rows,
        b.cols,
        c.rows,
        c.cols
    );
    let stride = |x: usize| isize::try_from(x).expect("a slice is shorter than isize::MAX");
    // SAFETY: the constructors checked that each matrix lies in its slice; C is borrowed exclusively.
    unsafe {
        T::gemm_raw(
            [c.rows, c.cols, a.cols],
            (c.data.as_mut_ptr(), stride(c.row_stride), 1),
            write == Write::Add,
            (a.data.as_ptr(), stride(a.row_stride), stride(a.col_stride)),
            (b.data.as_ptr(), stride(b.row_stride), stride(b.col_stride)),
            scale,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_size_that_overflows_is_refused() {
        // (2^33 − 1)·2^31 + 2^31 = 2^64
        Mat::strided(&[0.0], 1 << 33, 1 << 31, 1 << 31);
    }
}
