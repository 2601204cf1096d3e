//! The rbf input: each feature x becomes φ_k = exp(−(x − μ_k)²/0.01) for K learned centres, followed by a linear
//! layer of width F·K. The F·K activations are made in small tiles beside the product and never stored.

use rayon::prelude::*;

use super::Scalar;
use super::gemm::{Mat, MatMut, Write, gemm};
use super::linear::{ROW_TILE, WeightGradients, Weights};

/// 1/0.01
const SHARPNESS: f64 = 100.0;

/// φ columns of one tile, about: a tile of [`ROW_TILE`] rows stays in the cache.
const TILE_COLUMNS: usize = 512;

/// Features whose centres fill one tile.
fn tile_features(num_centers: usize) -> usize {
    (TILE_COLUMNS / num_centers).max(1)
}

/// φ `[rows, (features of the tile)·K]` for features `first..first + count` of x `[rows, F]`.
fn activations<T: Scalar>(phi: &mut [T], x: &[T], centers: &[T], shape: Shape, first: usize, count: usize) {
    let sharpness = T::from_f64(-SHARPNESS);
    let k = shape.centers;
    for (phi, x) in phi.chunks_exact_mut(count * k).zip(x.chunks_exact(shape.features)) {
        for (feature, phi) in phi.chunks_exact_mut(k).enumerate() {
            let x = x[first + feature];
            for (phi, &center) in phi.iter_mut().zip(&centers[(first + feature) * k..]) {
                let distance = x - center;
                *phi = (sharpness * distance * distance).exp();
            }
        }
    }
}

/// Sizes of the rbf input.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// `F`
    pub features: usize,
    /// `K`
    pub centers: usize,
}

/// y `[N, out]` = φ(x `[N, F]`)·Wᵀ + b, with centers `[F, K]`, W `[out, F·K]`.
pub fn forward<T: Scalar>(y: &mut [T], x: &[T], centers: &[T], layer: Weights<'_, T>, shape: Shape) {
    let outputs = layer.bias.len();
    let width = shape.features * shape.centers;
    let step = tile_features(shape.centers);
    y.par_chunks_mut(ROW_TILE * outputs).zip(x.par_chunks(ROW_TILE * shape.features)).for_each(|(y, x)| {
        // A short tile is filled up, so that a row's bits do not depend on its neighbours.
        let mut whole_x = vec![T::ZERO; ROW_TILE * shape.features];
        whole_x[..x.len()].copy_from_slice(x);
        let mut whole_y = vec![T::ZERO; ROW_TILE * outputs];
        whole_y.chunks_exact_mut(outputs).for_each(|row| row.copy_from_slice(layer.bias));
        let mut phi = vec![T::ZERO; ROW_TILE * step * shape.centers];
        for first in (0..shape.features).step_by(step) {
            let count = step.min(shape.features - first);
            let columns = count * shape.centers;
            let phi = &mut phi[..ROW_TILE * columns];
            activations(phi, &whole_x, centers, shape, first, count);
            let weight = Mat::strided(&layer.weight[first * shape.centers..], outputs, columns, width);
            let y = MatMut::new(&mut whole_y, ROW_TILE, outputs);
            gemm(y, Write::Add, T::ONE, Mat::new(phi, ROW_TILE, columns), weight.t());
        }
        y.copy_from_slice(&whole_y[..y.len()]);
    });
}

/// dW, db and d_centers `[F, K]`, all added to, from dy `[N, out]`.
pub fn backward<T: Scalar>(
    gradients: WeightGradients<'_, T>,
    d_centers: &mut [T],
    dy: &[T],
    x: &[T],
    centers: &[T],
    layer: Weights<'_, T>,
    shape: Shape,
) {
    let outputs = layer.bias.len();
    let width = shape.features * shape.centers;
    let step = tile_features(shape.centers);
    for row in dy.chunks_exact(outputs) {
        gradients.bias.iter_mut().zip(row).for_each(|(b, &d)| *b += d);
    }
    let two_sharpness = T::from_f64(2.0 * SHARPNESS);
    let pieces: Vec<(usize, Vec<T>)> = d_centers
        .par_chunks_mut(step * shape.centers)
        .enumerate()
        .map(|(piece, d_centers)| {
            let first = piece * step;
            let columns = d_centers.len();
            let count = columns / shape.centers;
            let mut d_weight = vec![T::ZERO; outputs * columns];
            let mut phi = vec![T::ZERO; ROW_TILE * columns];
            let mut d_phi = vec![T::ZERO; ROW_TILE * columns];
            let weight = Mat::strided(&layer.weight[first * shape.centers..], outputs, columns, width);
            for (dy, x) in dy.chunks(ROW_TILE * outputs).zip(x.chunks(ROW_TILE * shape.features)) {
                let rows = dy.len() / outputs;
                let phi = &mut phi[..rows * columns];
                let d_phi = &mut d_phi[..rows * columns];
                activations(phi, x, centers, shape, first, count);
                let dy = Mat::new(dy, rows, outputs);
                gemm(
                    MatMut::new(&mut d_weight, outputs, columns),
                    Write::Add,
                    T::ONE,
                    dy.t(),
                    Mat::new(phi, rows, columns),
                );
                gemm(MatMut::new(d_phi, rows, columns), Write::Set, T::ONE, dy, weight);
                // dφ/dμ = φ·2·(x − μ)/0.01
                let rows = phi.chunks_exact(columns).zip(d_phi.chunks_exact(columns));
                for (x, (phi, d_phi)) in x.chunks_exact(shape.features).zip(rows) {
                    for (column, d_center) in d_centers.iter_mut().enumerate() {
                        let distance =
                            x[first + column / shape.centers] - centers[first * shape.centers + column];
                        *d_center += d_phi[column] * phi[column] * two_sharpness * distance;
                    }
                }
            }
            (first * shape.centers, d_weight)
        })
        .collect();
    for (first, d_weight) in pieces {
        let columns = d_weight.len() / outputs;
        for (row, d_weight) in gradients.weight.chunks_exact_mut(width).zip(d_weight.chunks_exact(columns)) {
            row[first..first + columns].iter_mut().zip(d_weight).for_each(|(w, &d)| *w += d);
        }
    }
}
