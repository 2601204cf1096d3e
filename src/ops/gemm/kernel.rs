//! The micro-kernels: a few rows of C against one panel of packed B, held in registers over the inner dimension.

use crate::ops::simd::Level;

/// Most rows of a tile, over all kernels.
pub const MAX_ROWS: usize = 12;
/// Widest panel, over all kernels.
pub const MAX_COLS: usize = 32;

/// One product of a tile: C `[rows, cols]` ← (C +) A `[rows, depth]` · B `[depth, panel]`, then bias and ReLU.
#[derive(Clone, Copy, Debug)]
pub struct Tile<T> {
    /// Inner dimension.
    pub depth: usize,
    /// Rows of A and C, 1 to the kernel's.
    pub rows: usize,
    /// Element (0, 0) of A.
    pub a: *const T,
    /// Distance of A's rows; 1 if A is read by columns.
    pub a_row: usize,
    /// Distance of A's columns; 1 if A is read by rows.
    pub a_col: usize,
    /// The panel `[depth, panel width]`.
    pub b: *const T,
    /// Element (0, 0) of C; its columns are adjacent, and all of the panel's width may be written.
    pub c: *mut T,
    /// Distance of C's rows.
    pub c_row: usize,
    /// Whether C's former value is added.
    pub add: bool,
    /// Added to each row at the end, of the panel's width, or null.
    pub bias: *const T,
    /// Whether negative results become 0 at the end.
    pub relu: bool,
}

/// A kernel for tiles of at most `rows` × `cols`.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<T> {
    /// Rows of a full tile.
    pub(super) rows: usize,
    /// Width of a panel.
    pub(super) cols: usize,
    /// Computes a tile.
    ///
    /// # Safety
    /// The pointers of the tile must be valid for what its fields describe, C not overlapping A, B or bias, and
    /// the machine must have the kernel's level.
    pub(super) run: unsafe fn(&Tile<T>),
}

impl<T> Kernel<T> {
    /// Width of a panel.
    pub fn panel_width(&self) -> usize {
        self.cols
    }
}

/// A vector of a level.
trait Vector<T>: Copy {
    /// # Safety
    /// The machine has the vector's level (of all functions), `from` is valid for a vector.
    unsafe fn load(from: *const T) -> Self;
    unsafe fn splat(value: T) -> Self;
    unsafe fn store(self, to: *mut T);
    /// self + a·b
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    unsafe fn plus(self, other: Self) -> Self;
    /// max(0, self), NaN stays NaN.
    unsafe fn relu(self) -> Self;
}

/// A tile of `R` rows and two vectors, A read by rows (`a_col` = 1) or by columns (`a_row` = 1).
///
/// Every element is one chain of sums over the inner dimension: its bits do not depend on its place in the tile.
#[inline(always)]
unsafe fn tile<T: Copy + Default, V: Vector<T>, const R: usize, const BY_ROWS: bool>(tile: &Tile<T>) {
    let lanes = size_of::<V>() / size_of::<T>();
    // SAFETY: the caller's promise covers all elements that are touched here.
    unsafe {
        let zero = V::splat(T::default());
        let mut acc = [[zero; 2]; R];
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_col) = if BY_ROWS { (tile.a_row, 1) } else { (1, tile.a_col) };
        for _ in 0..tile.depth {
            let b0 = V::load(b);
            let b1 = V::load(b.add(lanes));
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = V::splat(*a.add(r * a_row));
                acc[0] = acc[0].add_product(x, b0);
                acc[1] = acc[1].add_product(x, b1);
            }
            a = a.add(a_col);
            b = b.add(2 * lanes);
        }
        // One simple loop for each: all are unrolled, and the sums stay in registers.
        let c = |r: usize, half: usize| tile.c.add(r * tile.c_row + half * lanes);
        if tile.add {
            for (r, acc) in acc.iter_mut().enumerate() {
                acc[0] = V::load(c(r, 0)).plus(acc[0]);
                acc[1] = V::load(c(r, 1)).plus(acc[1]);
            }
        }
        if !tile.bias.is_null() {
            let bias = [V::load(tile.bias), V::load(tile.bias.add(lanes))];
            for acc in &mut acc {
                acc[0] = acc[0].plus(bias[0]);
                acc[1] = acc[1].plus(bias[1]);
            }
        }
        if tile.relu {
            for acc in &mut acc {
                acc[0] = acc[0].relu();
                acc[1] = acc[1].relu();
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            acc[0].store(c(r, 0));
            acc[1].store(c(r, 1));
        }
    }
}

/// Picks the code for the tile's number of rows.
macro_rules! by_rows {
    ($tile:ident, $T:ty, $V:ty, $($R:literal)*) => {
        match ($tile.rows, $tile.a_col == 1) {
            $(
                // SAFETY: the caller's promise.
                ($R, true) => unsafe { tile::<$T, $V, $R, true>($tile) },
                // SAFETY: the caller's promise.
                ($R, false) => unsafe { tile::<$T, $V, $R, false>($tile) },
            )*
            _ => unreachable!("a tile of {} rows", $tile.rows),
        }
    };
}

/// Eight numbers as an array: the compiler makes of them what the target has.
impl<T> Vector<T> for [T; 8]
where
    T: crate::ops::Scalar,
{
    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat(value: T) -> Self {
        [value; 8]
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        self.map(|x| if x < T::ZERO { T::ZERO } else { x })
    }
}

unsafe fn portable<T: crate::ops::Scalar>(tile_of: &Tile<T>) {
    by_rows!(tile_of, T, [T; 8], 1 2);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Tile, Vector, tile};

    macro_rules! vector {
        ($T:ty, $V:ty, $load:ident, $splat:ident, $store:ident, $fma:ident, $add:ident, $max:ident) => {
            impl Vector<$T> for $V {
                #[inline(always)]
                unsafe fn load(from: *const $T) -> Self {
                    // SAFETY: the caller's promise, here and below.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn splat(value: $T) -> Self {
                    // SAFETY: as above.
                    unsafe { $splat(value) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut $T) {
                    // SAFETY: as above.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn add_product(self, a: Self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $fma(a, b, self) }
                }
                #[inline(always)]
                unsafe fn plus(self, other: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $add(self, other) }
                }
                #[inline(always)]
                unsafe fn relu(self) -> Self {
                    // Of two operands with a NaN the second is returned.
                    // SAFETY: as above.
                    unsafe { $max($splat(0.0), self) }
                }
            }
        };
    }
    vector!(
        f32,
        __m256,
        _mm256_loadu_ps,
        _mm256_set1_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        _mm256_max_ps
    );
    vector!(
        f64,
        __m256d,
        _mm256_loadu_pd,
        _mm256_set1_pd,
        _mm256_storeu_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd,
        _mm256_max_pd
    );
    vector!(
        f32,
        __m512,
        _mm512_loadu_ps,
        _mm512_set1_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        _mm512_max_ps
    );
    vector!(
        f64,
        __m512d,
        _mm512_loadu_pd,
        _mm512_set1_pd,
        _mm512_storeu_pd,
        _mm512_fmadd_pd,
        _mm512_add_pd,
        _mm512_max_pd
    );

    macro_rules! kernel {
        ($name:ident, $features:literal, $T:ty, $V:ty, $($R:literal)*) => {
            #[target_feature(enable = $features)]
            pub unsafe fn $name(tile_of: &Tile<$T>) {
                by_rows!(tile_of, $T, $V, $($R)*);
            }
        };
    }
    kernel!(avx2_f32, "avx2,fma", f32, __m256, 1 2 3 4 5 6);
    kernel!(avx2_f64, "avx2,fma", f64, __m256d, 1 2 3 4 5 6);
    kernel!(avx512_f32, "avx512f,avx2,fma", f32, __m512, 1 2 3 4 5 6 7 8 9 10 11 12);
    kernel!(avx512_f64, "avx512f,avx2,fma", f64, __m512d, 1 2 3 4 5 6 7 8 9 10 11 12);
}

mod sealed {
    /// Products run what a kernel holds: nobody else is to make one.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// The numbers that there are kernels for.
pub trait Kernels: sealed::Sealed + Sized + 'static {
    /// The kernel of a level that the machine has.
    fn at_level(level: Level) -> Kernel<Self>;
}

impl Kernels for f32 {
    #[inline]
    fn at_level(level: Level) -> Kernel<Self> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Kernel { rows: 12, cols: 32, run: x86::avx512_f32 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Kernel { rows: 6, cols: 16, run: x86::avx2_f32 },
            _ => Kernel { rows: 2, cols: 16, run: portable::<f32> },
        }
    }
}

impl Kernels for f64 {
    #[inline]
    fn at_level(level: Level) -> Kernel<Self> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Kernel { rows: 12, cols: 16, run: x86::avx512_f64 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Kernel { rows: 6, cols: 8, run: x86::avx2_f64 },
            _ => Kernel { rows: 2, cols: 16, run: portable::<f64> },
        }
    }
}
