//! LayerNorm of a residual sum: y = γ·(a + b − mean)/√(var + eps) + β, biased variance, row by row.

use rayon::prelude::*;

use super::Scalar;
use super::reduce::{dot, sum};

/// Rows of one piece of work, and of one partial sum of the parameters' gradients.
const ROW_TILE: usize = 256;

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

/// y `[rows, C]` = LayerNorm(a + b); without `b`, LayerNorm(a).
pub fn forward<T: Scalar>(y: &mut [T], saved: &mut Saved<T>, a: &[T], b: Option<&[T]>, norm: Norm<'_, T>) {
    let width = norm.weight.len();
    saved.normalized.resize(y.len(), T::ZERO);
    saved.inverse_std.resize(y.len() / width, T::ZERO);
    let scale = T::from_f64(1.0 / width as f64);
    let eps = T::from_f64(norm.eps);
    y.par_chunks_mut(ROW_TILE * width)
        .zip(saved.normalized.par_chunks_mut(ROW_TILE * width))
        .zip(saved.inverse_std.par_chunks_mut(ROW_TILE))
        .enumerate()
        .for_each(|(tile, ((y, normalized), inverse_std))| {
            let first = tile * ROW_TILE;
            for (row, inverse_std) in inverse_std.iter_mut().enumerate() {
                let here = row * width..(row + 1) * width;
                let there = (first + row) * width..(first + row + 1) * width;
                let x = &mut normalized[here.clone()];
                x.copy_from_slice(&a[there.clone()]);
                if let Some(b) = b {
                    x.iter_mut().zip(&b[there]).for_each(|(x, &b)| *x += b);
                }
                let mean = sum(x) * scale;
                x.iter_mut().for_each(|x| *x -= mean);
                let variance = dot(x, x) * scale;
                *inverse_std = T::ONE / (variance + eps).sqrt();
                for (((y, x), &weight), &bias) in y[here].iter_mut().zip(x).zip(norm.weight).zip(norm.bias) {
                    *x *= *inverse_std;
                    *y = *x * weight + bias;
                }
            }
        });
}

/// In place dy → the gradient of the sum a + b (which both a and b receive):
/// d = inverse_std·(γ·dy − mean(γ·dy) − x̂·mean(γ·dy·x̂)); dγ += Σ dy·x̂ and dβ += Σ dy, in order of rows.
pub fn backward<T: Scalar>(
    dy: &mut [T],
    saved: &Saved<T>,
    norm: Norm<'_, T>,
    weight_gradient: &mut [T],
    bias_gradient: &mut [T],
) {
    let width = norm.weight.len();
    let scale = T::from_f64(1.0 / width as f64);
    let partials: Vec<(Vec<T>, Vec<T>)> = dy
        .par_chunks_mut(ROW_TILE * width)
        .zip(saved.normalized.par_chunks(ROW_TILE * width))
        .zip(saved.inverse_std.par_chunks(ROW_TILE))
        .map(|((dy, normalized), inverse_std)| {
            let (mut d_weight, mut d_bias) = (vec![T::ZERO; width], vec![T::ZERO; width]);
            let rows = dy.chunks_exact_mut(width).zip(normalized.chunks_exact(width)).zip(inverse_std);
            for ((dy, x), &inverse_std) in rows {
                for (((d_weight, d_bias), &dy), &x) in
                    d_weight.iter_mut().zip(&mut d_bias).zip(dy.iter()).zip(x)
                {
                    *d_weight += dy * x;
                    *d_bias += dy;
                }
                dy.iter_mut().zip(norm.weight).for_each(|(dy, &weight)| *dy *= weight);
                let mean = sum(dy) * scale;
                let mean_x = dot(dy, x) * scale;
                dy.iter_mut().zip(x).for_each(|(dy, &x)| *dy = inverse_std * (*dy - mean - x * mean_x));
            }
            (d_weight, d_bias)
        })
        .collect();
    for (d_weight, d_bias) in partials {
        weight_gradient.iter_mut().zip(d_weight).for_each(|(sum, part)| *sum += part);
        bias_gradient.iter_mut().zip(d_bias).for_each(|(sum, part)| *sum += part);
    }
}
