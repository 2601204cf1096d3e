//! The row-wise network and its LayerNorm, fused: y = LayerNorm(x + fc2(ReLU(fc1(x)))), for the rows of a tile.
//! The hidden rows stay in the cache between the two products.

#[cfg(feature = "cuda")]
mod blocks;
#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod plan;
#[cfg(feature = "cuda")]
mod rows_gradient;
#[cfg(feature = "cuda")]
mod warpgroups;

#[cfg(feature = "cuda")]
pub use blocks::Blocks;
#[cfg(feature = "cuda")]
pub use device::{Kept, Projection, feed_forward, feed_forward_backward};
#[cfg(feature = "cuda")]
pub use plan::FeedForwardShape;
#[cfg(feature = "cuda")]
pub use rows_gradient::RowsGradient;

use super::Scalar;
use super::gemm::{Aligned, Finish, Mat, MatMut, Packed, Write, gemm};
use super::layer_norm::{self, Norm, Saved, SavedRows};
use super::linear::{Activation, Weights, relu_backward};

/// A network with its weights packed for forward.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a, T> {
    fc1: Packed<'a, T>,
    fc2: Packed<'a, T>,
    hidden: Finish<'a, T>,
    output: Finish<'a, T>,
    norm: Norm<'a, T>,
}

impl<'a, T: Scalar> Forward<'a, T> {
    /// Of fc1 `[G, C]` and fc2 `[C, G]`, and of both weights as they are packed for forward.
    pub fn new(
        fc1: Weights<'a, T>,
        fc2: Weights<'a, T>,
        norm: Norm<'a, T>,
        [packed1, packed2]: [Packed<'a, T>; 2],
    ) -> Self {
        Forward {
            fc1: packed1,
            fc2: packed2,
            hidden: fc1.finish(Activation::Relu),
            output: fc2.finish(Activation::Identity),
            norm,
        }
    }

    /// G
    pub fn hidden_width(&self) -> usize {
        self.fc1.n
    }

    /// out `[rows, C]` = LayerNorm(x + fc2(hidden)) with hidden `[rows, G]` = ReLU(fc1(x)).
    pub fn tile(&self, out: &mut [T], hidden: &mut [T], x: &[T], saved: Option<SavedRows<'_, T>>) {
        let (c, g) = (self.fc1.k, self.fc1.n);
        let rows = x.len() / c;
        gemm(&mut MatMut::new(hidden, rows, g), Write::Set, &Mat::new(x, rows, c), self.fc1, self.hidden);
        gemm(&mut MatMut::new(out, rows, c), Write::Set, &Mat::new(hidden, rows, g), self.fc2, self.output);
        layer_norm::forward_tile(out, Some(x), saved, self.norm);
    }
}

/// A network with its weights packed for backward.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a, T> {
    fc1: Packed<'a, T>,
    fc2: Packed<'a, T>,
    norm: Norm<'a, T>,
}

/// What backward writes for the weight gradients of a tile.
#[derive(Debug)]
pub struct TileGradients<'a, T> {
    /// Gradient of fc2's output `[rows, C]`.
    pub output: &'a mut [T],
    /// Gradient of fc1's output before ReLU `[rows, G]`.
    pub hidden: &'a mut [T],
    /// Sums `[2C]` for the gradients of LayerNorm's γ and β.
    pub norm: &'a mut [T],
}

impl<'a, T: Scalar> Backward<'a, T> {
    /// Packs the weights: fc1 `[G, C]`, fc2 `[C, G]`.
    pub fn new(
        fc1: Weights<'a, T>,
        fc2: Weights<'a, T>,
        norm: Norm<'a, T>,
        [buffer1, buffer2]: &'a mut [Aligned; 2],
    ) -> Self {
        Backward { fc1: fc1.pack_backward(buffer1), fc2: fc2.pack_backward(buffer2), norm }
    }

    /// G
    pub fn hidden_width(&self) -> usize {
        self.fc1.k
    }

    /// In place d `[rows, C]`: gradient of the output → gradient of x. `saved` and `hidden` `[.., G]` are the whole
    /// pass's, this tile's from row `first` on.
    pub fn tile(
        &self,
        d: &mut [T],
        gradients: TileGradients<'_, T>,
        saved: &Saved<T>,
        hidden: &[T],
        first: usize,
    ) {
        let (c, g) = (self.fc1.n, self.fc1.k);
        let rows = d.len() / c;
        layer_norm::backward_tile(d, saved, first, self.norm, gradients.norm);
        gradients.output.copy_from_slice(d);
        let d_hidden = gradients.hidden;
        gemm(&mut MatMut::new(d_hidden, rows, g), Write::Set, &Mat::new(d, rows, c), self.fc2, Finish::Plain);
        relu_backward(d_hidden, &hidden[first * g..][..rows * g]);
        gemm(&mut MatMut::new(d, rows, c), Write::Add, &Mat::new(d_hidden, rows, g), self.fc1, Finish::Plain);
    }
}
