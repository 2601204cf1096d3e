//! LayerNorm of a residual sum: y = γ·(a + b − mean)/√(var + eps) + β, biased variance, row by row; for the rows of
//! a tile, inside the passes that have them in cache.

#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod plan;

#[cfg(feature = "cuda")]
pub(in crate::ops) use device::period;
#[cfg(feature = "cuda")]
pub use device::{DeviceNorm, NormBackward, layer_norm_backward, layer_norm_forward};
#[cfg(feature = "cuda")]
pub use plan::NormShape;

use super::Scalar;
use super::reduce::{dot, sum};
use super::rows::{RowsMut, SplitRows, TILE, TileSums, for_tiles, free_tile};
use super::simd::vectorized;

/// Scale and shift `[C]`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a, T> {
    /// γ `[C]`
    pub weight: &'a [T],
    /// β `[C]`
    pub bias: &'a [T],
    /// Added to the variance inside the square root.
    pub eps: f64,
}

/// What forward keeps for backward.
#[derive(Clone, Debug, Default)]
pub struct Saved<T> {
    /// Normalised rows `[rows, C]`, before γ and β.
    pub normalized: Vec<T>,
    /// 1/√(var + eps) `[rows]`
    pub inverse_std: Vec<T>,
}

impl<T: Scalar> Saved<T> {
    /// Room for `rows` rows of `width` numbers, to be written by forward.
    pub fn make_room(&mut self, rows: usize, width: usize) -> SavedRows<'_, T> {
        self.normalized.resize(rows * width, T::ZERO);
        self.inverse_std.resize(rows, T::ZERO);
        SavedRows {
            normalized: RowsMut::new(&mut self.normalized, width),
            inverse_std: RowsMut::new(&mut self.inverse_std, 1),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        (self.normalized.len() + self.inverse_std.len()) * size_of::<T>()
    }
}

/// Rows of [`Saved`].
#[derive(Debug)]
pub struct SavedRows<'a, T> {
    normalized: RowsMut<'a, T>,
    inverse_std: RowsMut<'a, T>,
}

impl<T: Send> SplitRows for SavedRows<'_, T> {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (normalized, inverse_std) = (self.normalized.split_rows(rows), self.inverse_std.split_rows(rows));
        (
            SavedRows { normalized: normalized.0, inverse_std: inverse_std.0 },
            SavedRows { normalized: normalized.1, inverse_std: inverse_std.1 },
        )
    }
}

/// In place y `[rows, C]` → LayerNorm(y + residual), or LayerNorm(y); keeps what backward needs in `saved`.
pub fn forward_tile<T: Scalar>(
    y: &mut [T],
    residual: Option<&[T]>,
    saved: Option<SavedRows<'_, T>>,
    norm: Norm<'_, T>,
) {
    if let Some(residual) = residual {
        add(y, residual);
    }
    match saved {
        None => normalize(y, &mut [], &mut [], norm),
        Some(saved) => normalize(y, saved.normalized.data, saved.inverse_std.data, norm),
    }
}

vectorized! {
    /// y += x
    pub fn add<T: Scalar>(y: &mut [T], x: &[T]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y += x);
    }
}

vectorized! {
    /// The two outputs for backward may be empty.
    fn normalize<T: Scalar>(y: &mut [T], normalized: &mut [T], inverse_std: &mut [T], norm: Norm<'_, T>) {
        let width = norm.weight.len();
        let scale = T::from_f64(1.0 / width as f64);
        let eps = T::from_f64(norm.eps);
        let bias = &norm.bias[..width];
        for (row, y) in y.chunks_exact_mut(width).enumerate() {
            let mean = sum(y) * scale;
            y.iter_mut().for_each(|y| *y -= mean);
            let variance = dot(y, y) * scale;
            let inverse = T::ONE / (variance + eps).sqrt();
            if let Some(place) = inverse_std.get_mut(row) {
                *place = inverse;
                let kept = &mut normalized[row * width..][..width];
                kept.iter_mut().zip(y.iter()).for_each(|(kept, &y)| *kept = y * inverse);
            }
            y.iter_mut().zip(norm.weight).zip(bias).for_each(|((y, &w), &b)| *y = *y * inverse * w + b);
        }
    }
}

/// In place dy `[rows, C]` → the gradient of the sum that was normalised (which both summands receive):
/// d = inverse_std·(γ·dy − mean(γ·dy) − x̂·mean(γ·dy·x̂)). `sums` `[2C]` = (Σ dy·x̂, Σ dy) of these rows, the
/// gradients of γ and β. `saved` holds the rows of a larger pass, these from `first` on.
pub fn backward_tile<T: Scalar>(
    dy: &mut [T],
    saved: &Saved<T>,
    first: usize,
    norm: Norm<'_, T>,
    sums: &mut [T],
) {
    let width = norm.weight.len();
    let rows = dy.len() / width;
    let normalized = &saved.normalized[first * width..][..rows * width];
    backward_rows(dy, normalized, &saved.inverse_std[first..][..rows], norm.weight, sums);
}

vectorized! {
    fn backward_rows<T: Scalar>(
        dy: &mut [T],
        normalized: &[T],
        inverse_std: &[T],
        weight: &[T],
        sums: &mut [T],
    ) {
        let width = weight.len();
        let scale = T::from_f64(1.0 / width as f64);
        let (d_weight, d_bias) = sums.split_at_mut(width);
        d_weight.fill(T::ZERO);
        d_bias.fill(T::ZERO);
        let rows = dy.chunks_exact_mut(width).zip(normalized.chunks_exact(width)).zip(inverse_std);
        for ((dy, x), &inverse_std) in rows {
            let d_bias = &mut d_bias[..width];
            for i in 0..width {
                d_weight[i] += dy[i] * x[i];
                d_bias[i] += dy[i];
                dy[i] *= weight[i];
            }
            let mean = sum(dy) * scale;
            let mean_x = dot(dy, x) * scale;
            dy.iter_mut().zip(x).for_each(|(dy, &x)| *dy = inverse_std * (*dy - mean - x * mean_x));
        }
    }
}

/// In place y `[rows, C]` → LayerNorm(y + residual), or LayerNorm(y), on all threads.
pub fn forward<T: Scalar>(y: &mut [T], residual: Option<&[T]>, saved: &mut Saved<T>, norm: Norm<'_, T>) {
    let width = norm.weight.len();
    let rows = y.len() / width;
    let buffers = (RowsMut::new(y, width), saved.make_room(rows, width));
    for_tiles(0..rows, free_tile(rows), buffers, &|tile, (y, saved)| {
        let residual = residual.map(|rows| &rows[tile.start * width..tile.end * width]);
        forward_tile(y.data, residual, Some(saved), norm);
    });
}

/// In place dy `[rows, C]` → the gradient of the sum that was normalised, on all threads; γ's and β's gradients are
/// added to. `sums` is room for the sums of tiles.
pub fn backward<T: Scalar>(
    dy: &mut [T],
    saved: &Saved<T>,
    sums: &mut Vec<T>,
    norm: Norm<'_, T>,
    gradients: (&mut [T], &mut [T]),
) {
    let width = norm.weight.len();
    let rows = dy.len() / width;
    sums.resize(rows.div_ceil(TILE) * 2 * width, T::ZERO);
    let buffers = (RowsMut::new(dy, width), TileSums(RowsMut::new(sums, 2 * width)));
    for_tiles(0..rows, TILE, buffers, &|tile, (dy, sums)| {
        backward_tile(dy.data, saved, tile.start, norm, sums.0.data);
    });
    add_tile_sums(gradients, sums);
}

/// dγ and dβ += the sums `[tiles, 2C]` of tiles, in order.
pub fn add_tile_sums<T: Scalar>((d_weight, d_bias): (&mut [T], &mut [T]), sums: &[T]) {
    let width = d_weight.len();
    for tile in sums.chunks_exact(2 * width) {
        add(d_weight, &tile[..width]);
        add(d_bias, &tile[width..]);
    }
}
