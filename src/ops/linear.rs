//! Row-wise linear layers: y = x·Wᵀ + b, optionally followed by ReLU. W is `[out, in]`.

use rayon::prelude::*;

use super::Scalar;
use super::gemm::{Mat, MatMut, Write, gemm};

/// Rows of one product. Fixed, and short tiles are filled up: the same row then gives the same bits whatever
/// stands around it and however many threads there are.
pub const ROW_TILE: usize = 128;

/// Output columns of one weight-gradient product.
const COLUMN_TILE: usize = 128;

/// Whether a ReLU follows the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// None: the output is the linear map.
    Identity,
    /// max(0, ·)
    Relu,
}

/// Weight `[out, in]` and bias `[out]` of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a, T> {
    /// `[out, in]`
    pub weight: &'a [T],
    /// `[out]`
    pub bias: &'a [T],
}

impl<T> Weights<'_, T> {
    fn outputs(&self) -> usize {
        self.bias.len()
    }

    fn inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }
}

/// Gradients of [`Weights`]; both are added to.
#[derive(Debug)]
pub struct WeightGradients<'a, T> {
    /// `[out, in]`
    pub weight: &'a mut [T],
    /// `[out]`
    pub bias: &'a mut [T],
}

/// y `[rows, out]` = activation(x `[rows, in]`·Wᵀ + b)
pub fn forward<T: Scalar>(y: &mut [T], x: &[T], layer: Weights<'_, T>, activation: Activation) {
    let outputs = layer.outputs();
    product(
        y,
        outputs,
        x,
        layer.inputs(),
        Mat::new(layer.weight, outputs, layer.inputs()).t(),
        Write::Set,
        |tile| {
            for row in tile.chunks_exact_mut(outputs) {
                match activation {
                    Activation::Identity => row.iter_mut().zip(layer.bias).for_each(|(y, &b)| *y += b),
                    Activation::Relu => row.iter_mut().zip(layer.bias).for_each(|(y, &b)| *y = relu(*y + b)),
                }
            }
        },
    );
}

/// dx `[rows, in]` = (or +=) dy `[rows, out]`·W
pub fn backward_input<T: Scalar>(dx: &mut [T], write: Write, dy: &[T], layer: Weights<'_, T>) {
    let (inputs, outputs) = (layer.inputs(), layer.outputs());
    product(dx, inputs, dy, outputs, Mat::new(layer.weight, outputs, inputs), write, |_| {});
}

/// dW += dyᵀ·x and db += Σ rows of dy; rows are summed in order.
pub fn backward_weights<T: Scalar>(gradients: WeightGradients<'_, T>, dy: &[T], x: &[T]) {
    let outputs = gradients.bias.len();
    let inputs = gradients.weight.len() / outputs;
    let rows = dy.len() / outputs;
    gradients
        .weight
        .par_chunks_mut(COLUMN_TILE * inputs)
        .zip(gradients.bias.par_chunks_mut(COLUMN_TILE))
        .enumerate()
        .for_each(|(tile, (weight, bias))| {
            if rows == 0 {
                return;
            }
            let first = tile * COLUMN_TILE;
            let width = bias.len();
            let dy_tile = Mat::strided(&dy[first..], rows, width, outputs);
            gemm(
                MatMut::new(weight, width, inputs),
                Write::Add,
                T::ONE,
                dy_tile.t(),
                Mat::new(x, rows, inputs),
            );
            for row in dy.chunks_exact(outputs) {
                bias.iter_mut().zip(&row[first..first + width]).for_each(|(b, &d)| *b += d);
            }
        });
}

/// max(0, x), but NaN stays NaN: an overflow is to be seen, not to become 0.
#[inline]
pub fn relu<T: Scalar>(x: T) -> T {
    if x < T::ZERO { T::ZERO } else { x }
}

/// Multiplies `dy` by ReLU's derivative, read off ReLU's output `y`: 0 where y is 0.
pub fn relu_backward<T: Scalar>(dy: &mut [T], y: &[T]) {
    dy.par_chunks_mut(1 << 14).zip(y.par_chunks(1 << 14)).for_each(|(dy, y)| {
        for (d, &y) in dy.iter_mut().zip(y) {
            *d = if y > T::ZERO { *d } else { T::ZERO };
        }
    });
}

/// out `[rows, n]` = (or +=) x `[rows, k]`·B `[k, n]` in tiles of [`ROW_TILE`] rows, each then handed to `finish`.
fn product<T: Scalar>(
    out: &mut [T],
    n: usize,
    x: &[T],
    k: usize,
    b: Mat<'_, T>,
    write: Write,
    finish: impl Fn(&mut [T]) + Sync,
) {
    debug_assert_eq!(out.len() / n, x.len() / k);
    out.par_chunks_mut(ROW_TILE * n).zip(x.par_chunks(ROW_TILE * k)).for_each(|(out, x)| {
        if out.len() == ROW_TILE * n {
            gemm(MatMut::new(out, ROW_TILE, n), write, T::ONE, Mat::new(x, ROW_TILE, k), b);
        } else {
            let mut whole_x = vec![T::ZERO; ROW_TILE * k];
            whole_x[..x.len()].copy_from_slice(x);
            let mut whole_out = vec![T::ZERO; ROW_TILE * n];
            whole_out[..out.len()].copy_from_slice(out);
            gemm(MatMut::new(&mut whole_out, ROW_TILE, n), write, T::ONE, Mat::new(&whole_x, ROW_TILE, k), b);
            out.copy_from_slice(&whole_out[..out.len()]);
        }
        finish(out);
    });
}
