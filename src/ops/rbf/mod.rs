//! The rbf input: each feature x becomes φ_k = exp(−(x − μ_k)²/0.01) for K learned centres, followed by a linear
//! layer of width F·K. The F·K activations are made in small tiles beside the product and never stored.

#[cfg(feature = "cuda")]
mod blocks;
#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod plan;
#[cfg(feature = "cuda")]
mod warpgroups;

use std::ops::Range;

#[cfg(feature = "cuda")]
pub use blocks::RbfBlocks;
#[cfg(feature = "cuda")]
pub use device::{DeviceRbf, rbf_backward, rbf_forward};
#[cfg(feature = "cuda")]
pub use plan::{RbfPlan, RbfShape};
use rayon::prelude::*;

use super::Scalar;
use super::gemm::{
    DEPTH, Finish, Mat, MatMut, Packed, PackedLeft, Write, gemm, pack, packed_left_len, packed_len,
};
use super::linear::{Activation, WeightGradients, Weights, sum_rows};
use super::rows::{RowsMut, Shared, TILE, for_tiles, free_tile};
use super::scratch::{PerThread, take};
use super::simd::vectorized;

/// 1/0.01
const SHARPNESS: f64 = 100.0;

/// The layer: centres and the linear map of the activations.
#[derive(Clone, Copy, Debug)]
pub struct Rbf<'a, T> {
    /// μ `[F, K]`
    pub centers: &'a [T],
    /// W `[out, F·K]` and b.
    pub layer: Weights<'a, T>,
    /// `F`
    pub features: usize,
}

vectorized! {
    /// φ `[rows, columns]` of x `[rows, F]`, given the centre of each column; column number `first + i` belongs to
    /// feature (first + i)/K.
    fn activations<T: Scalar>(phi: &mut [T], x: &[T], centers: &[T], first: usize, per_feature: usize, features: usize) {
        let sharpness = T::from_f64(-SHARPNESS);
        for (phi, x) in phi.chunks_exact_mut(centers.len()).zip(x.chunks_exact(features)) {
            let mut column = 0;
            while column < centers.len() {
                let feature = (first + column) / per_feature;
                let end = ((feature + 1) * per_feature - first).min(centers.len());
                let x = x[feature];
                for (phi, &center) in phi[column..end].iter_mut().zip(&centers[column..end]) {
                    let distance = x - center;
                    *phi = (sharpness * distance * distance).exp();
                }
                column = end;
            }
        }
    }
}

vectorized! {
    /// d_centers `[columns]` += Σ over rows of d_φ·dφ/dμ, with dφ/dμ = φ·2·(x − μ)/0.01.
    fn center_gradients<T: Scalar>(
        d_centers: &mut [T],
        tile: (&[T], &[T], &[T]),
        centers: &[T],
        first: usize,
        per_feature: usize,
        features: usize,
    ) {
        let two_sharpness = T::from_f64(2.0 * SHARPNESS);
        let (phi, d_phi, x) = tile;
        let columns = centers.len();
        let rows = phi.chunks_exact(columns).zip(d_phi.chunks_exact(columns)).zip(x.chunks_exact(features));
        for ((phi, d_phi), x) in rows {
            let mut column = 0;
            while column < columns {
                let feature = (first + column) / per_feature;
                let end = ((feature + 1) * per_feature - first).min(columns);
                let x = x[feature];
                for i in column..end {
                    d_centers[i] += d_phi[i] * phi[i] * two_sharpness * (x - centers[i]);
                }
                column = end;
            }
        }
    }
}

impl<T: Scalar> Rbf<'_, T> {
    fn per_feature(&self) -> usize {
        self.centers.len() / self.features
    }

    fn activations(&self, phi: &mut [T], x: &[T], columns: Range<usize>) {
        let first = columns.start;
        activations(phi, x, &self.centers[columns], first, self.per_feature(), self.features);
    }
}

/// y `[N, out]` = activation(φ(x `[N, F]`)·Wᵀ + b), given Wᵀ packed for forward.
pub fn forward<T: Scalar>(
    y: &mut [T],
    x: &[T],
    rbf: &Rbf<'_, T>,
    weight: Packed<'_, T>,
    activation: Activation,
    threads: &PerThread,
) {
    let (outputs, features) = (rbf.layer.outputs(), rbf.features);
    let width = rbf.centers.len();
    let rows = x.len() / features;
    threads.reserve::<T>(TILE * DEPTH.min(width));
    for_tiles(0..rows, free_tile(rows), RowsMut::new(y, outputs), &|tile, y| {
        let x = &x[tile.start * features..tile.end * features];
        let mut y = MatMut::new(y.data, tile.len(), outputs);
        threads.with(tile.len() * DEPTH.min(width), |phi: &mut [T]| {
            for first in (0..width).step_by(DEPTH) {
                let end = (first + DEPTH).min(width);
                let phi = &mut phi[..tile.len() * (end - first)];
                rbf.activations(phi, x, first..end);
                let write = if first == 0 { Write::Set } else { Write::Add };
                let finish = if end == width { rbf.layer.finish(activation) } else { Finish::Plain };
                let phi = Mat::new(phi, tile.len(), end - first);
                gemm(&mut y, write, &phi, weight.run(first), finish);
            }
        });
    });
}

/// dW, db and d_centers `[F, K]`, all added to, from dy `[N, out]`.
pub fn backward<T: Scalar>(
    gradients: WeightGradients<'_, T>,
    d_centers: &mut [T],
    dy: &[T],
    x: &[T],
    rbf: &Rbf<'_, T>,
    threads: &PerThread,
) {
    let (outputs, features) = (rbf.layer.outputs(), rbf.features);
    let width = rbf.centers.len();
    let rows = dy.len() / outputs;
    sum_rows(gradients.bias, Mat::new(dy, rows, outputs));
    let d_weight = Shared::new(gradients.weight, width);
    let count = DEPTH.min(width);
    let packed = packed_len::<T>(outputs, count)
        + packed_left_len::<T>(outputs, DEPTH)
        + packed_len::<T>(DEPTH, count);
    threads.reserve::<T>(2 * DEPTH * count + packed);
    // A task has some columns of φ, for all rows.
    d_centers.par_chunks_mut(DEPTH).enumerate().for_each(|(task, d_centers)| {
        let columns = task * DEPTH..task * DEPTH + d_centers.len();
        let count = columns.len();
        let tile = DEPTH * count;
        let weight_len = packed_len::<T>(outputs, count);
        let (left, right) = (packed_left_len::<T>(outputs, DEPTH), packed_len::<T>(DEPTH, count));
        // SAFETY: a task has its own columns.
        let mut d_weight = unsafe { d_weight.block(0..outputs, columns.clone()) };
        threads.with(2 * tile + weight_len + left + right, |mut buffer: &mut [T]| {
            let weight = Mat::strided(&rbf.layer.weight[columns.start..], outputs, count, width);
            let weight = pack(take(&mut buffer, weight_len), weight);
            let (left, right) = (take(&mut buffer, left), take(&mut buffer, right));
            let (phi, d_phi) = (take(&mut buffer, tile), take(&mut buffer, tile));
            for first in (0..rows).step_by(DEPTH) {
                let rows = DEPTH.min(rows - first);
                let x = &x[first * features..(first + rows) * features];
                let dy = Mat::new(&dy[first * outputs..(first + rows) * outputs], rows, outputs);
                let (phi, d_phi) = (&mut phi[..rows * count], &mut d_phi[..rows * count]);
                rbf.activations(phi, x, columns.clone());
                let packed_phi = pack(right, Mat::new(phi, rows, count));
                gemm(&mut d_weight, Write::Add, &PackedLeft::new(left, dy), packed_phi, Finish::Plain);
                gemm(&mut MatMut::new(d_phi, rows, count), Write::Set, &dy, weight, Finish::Plain);
                let centers = &rbf.centers[columns.clone()];
                let tile = (&*phi, &*d_phi, x);
                center_gradients(d_centers, tile, centers, columns.start, rbf.per_feature(), features);
            }
        });
    });
}
