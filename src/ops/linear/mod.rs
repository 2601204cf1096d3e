//! Row-wise linear layers: y = x·Wᵀ + b, optionally followed by ReLU. W is `[out, in]`.

#[cfg(feature = "cuda")]
mod block_size;
#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod plan;
#[cfg(feature = "cuda")]
mod warpgroups;
#[cfg(feature = "cuda")]
mod weights;

#[cfg(feature = "cuda")]
pub use block_size::BlockSize;
#[cfg(feature = "cuda")]
pub use device::{
    DeviceLinear, InputGradient, LayerForward, LayerGradients, LayerInput, PendingInput,
    linear_backward_input, linear_backward_input_by, linear_backward_input_layers, linear_backward_weights,
    linear_backward_weights_by, linear_forward, linear_forward_by, linear_forward_layers,
};
#[cfg(feature = "cuda")]
pub use plan::{Layout, LinearPlan, LinearShape};
use rayon::prelude::*;
#[cfg(feature = "cuda")]
pub use weights::WeightsPlan;

use super::Scalar;
use super::gemm::{
    Aligned, DEPTH, Finish, Mat, MatMut, Packed, PackedLeft, Write, gemm, pack, pack_parallel, packed,
    packed_left_len, packed_len,
};
use super::rows::{RowsMut, Shared, for_tiles, free_tile};
use super::scratch::PerThread;
use super::simd::vectorized;

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

impl<'a, T: Scalar> Weights<'a, T> {
    /// Width of y.
    pub fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// Width of x.
    pub fn inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    /// Wᵀ, packed for forward.
    pub fn pack_forward<'b>(&self, buffer: &'b mut Aligned) -> Packed<'b, T> {
        pack_parallel(buffer, Mat::new(self.weight, self.outputs(), self.inputs()).t())
    }

    /// Wᵀ as [`pack_forward`](Self::pack_forward) has left it in `buffer`.
    pub fn packed_forward<'b>(&self, buffer: &'b Aligned) -> Packed<'b, T> {
        packed(buffer, self.inputs(), self.outputs())
    }

    /// W, packed for the gradient of x.
    pub fn pack_backward<'b>(&self, buffer: &'b mut Aligned) -> Packed<'b, T> {
        pack_parallel(buffer, Mat::new(self.weight, self.outputs(), self.inputs()))
    }

    /// What follows the product.
    pub fn finish(&self, activation: Activation) -> Finish<'a, T> {
        match activation {
            Activation::Identity => Finish::Bias(self.bias),
            Activation::Relu => Finish::BiasRelu(self.bias),
        }
    }
}

/// y `[rows, out]` = activation(x `[rows, in]`·Wᵀ + b); `buffer` takes the packed weights.
pub fn forward<T: Scalar>(
    y: &mut [T],
    x: &[T],
    layer: Weights<'_, T>,
    activation: Activation,
    buffer: &mut Aligned,
) {
    let weight = layer.pack_forward(buffer);
    product(y, Write::Set, x, weight, layer.finish(activation));
}

/// dx `[rows, in]` = (or +=) dy `[rows, out]`·W; `buffer` takes the packed weights.
pub fn backward_input<T: Scalar>(
    dx: &mut [T],
    write: Write,
    dy: &[T],
    layer: Weights<'_, T>,
    buffer: &mut Aligned,
) {
    let weight = layer.pack_backward(buffer);
    product(dx, write, dy, weight, Finish::Plain);
}

/// out `[rows, n]` = (or +=) x `[rows, k]`·B `[k, n]`, tile by tile.
pub fn product<T: Scalar>(out: &mut [T], write: Write, x: &[T], b: Packed<'_, T>, finish: Finish<'_, T>) {
    let rows = x.len() / b.k;
    debug_assert_eq!(out.len() / b.n, rows);
    for_tiles(0..rows, free_tile(rows), RowsMut::new(out, b.n), &|tile, out| {
        product_tile(out.data, write, &x[tile.start * b.k..tile.end * b.k], b, finish);
    });
}

/// out `[rows, n]` = (or +=) x `[rows, k]`·B `[k, n]`, for the rows of a tile.
pub fn product_tile<T: Scalar>(
    out: &mut [T],
    write: Write,
    x: &[T],
    b: Packed<'_, T>,
    finish: Finish<'_, T>,
) {
    let rows = x.len() / b.k;
    gemm(&mut MatMut::new(out, rows, b.n), write, &Mat::new(x, rows, b.k), b, finish);
}

/// Gradients of [`Weights`]; both are added to.
#[derive(Debug)]
pub struct WeightGradients<'a, T> {
    /// `[out, in]`
    pub weight: &'a mut [T],
    /// `[out]`
    pub bias: &'a mut [T],
}

/// One layer whose weight gradient is wanted: dW += dyᵀ·x and db += Σ rows of dy.
#[derive(Debug)]
pub struct WeightJob<'a, T> {
    /// Where the gradients are added to.
    pub gradients: WeightGradients<'a, T>,
    /// Gradient of the layer's output `[rows, out]`.
    pub dy: &'a [T],
    /// The layer's input `[rows, in]`.
    pub x: &'a [T],
}

/// A job whose blocks are written by different threads.
struct Blocks<'a, T> {
    weight: Shared<'a, T>,
    bias: Shared<'a, T>,
    dy: Mat<'a, T>,
    x: Mat<'a, T>,
    rows: usize,
    outputs: usize,
    inputs: usize,
}

/// Edges of the largest blocks of dW, and the smallest that are worth their packing.
const BLOCKS: [(usize, usize); 5] = [(256, 256), (128, 256), (128, 128), (64, 128), (64, 64)];

/// Takes the weight gradients of some layers. Blocks of dW are the tasks; each sums over the rows in order.
pub fn backward_weights<const JOBS: usize, T: Scalar>(jobs: [WeightJob<'_, T>; JOBS], threads: &PerThread) {
    let jobs = jobs.map(|WeightJob { gradients, dy, x }| {
        let outputs = gradients.bias.len();
        let inputs = gradients.weight.len() / outputs;
        let rows = dy.len() / outputs;
        Blocks {
            weight: Shared::new(gradients.weight, inputs),
            bias: Shared::new(gradients.bias, outputs),
            dy: Mat::new(dy, rows, outputs),
            x: Mat::new(x, rows, inputs),
            rows,
            outputs,
            inputs,
        }
    });
    let count = |job: &Blocks<'_, T>, block: (usize, usize)| {
        job.outputs.div_ceil(block.0) * job.inputs.div_ceil(block.1)
    };
    let wanted = 4 * rayon::current_num_threads();
    let block = BLOCKS
        .into_iter()
        .find(|&block| jobs.iter().map(|job| count(job, block)).sum::<usize>() >= wanted)
        .unwrap_or(BLOCKS[BLOCKS.len() - 1]);
    let tasks: usize = jobs.iter().map(|job| count(job, block)).sum();
    threads.reserve::<T>(packed_left_len::<T>(block.0, DEPTH) + packed_len::<T>(DEPTH, block.1));
    (0..tasks).into_par_iter().with_max_len(1).for_each(|mut task| {
        for job in &jobs {
            let tasks = count(job, block);
            if task < tasks {
                let across = job.inputs.div_ceil(block.1);
                job.block((task / across * block.0, task % across * block.1), block, threads);
                return;
            }
            task -= tasks;
        }
    });
}

impl<T: Scalar> Blocks<'_, T> {
    /// The block of dW at (`output`, `input`), and the bias beside it if the block is the first of its rows.
    fn block(&self, (output, input): (usize, usize), block: (usize, usize), threads: &PerThread) {
        let outputs = output..(output + block.0).min(self.outputs);
        let inputs = input..(input + block.1).min(self.inputs);
        // SAFETY: each block is one task's.
        let mut weight = unsafe { self.weight.block(outputs.clone(), inputs.clone()) };
        let (left, right) =
            (packed_left_len::<T>(outputs.len(), DEPTH), packed_len::<T>(DEPTH, inputs.len()));
        threads.with(left + right, |buffer: &mut [T]| {
            let (left, right) = buffer.split_at_mut(left);
            for first in (0..self.rows).step_by(DEPTH) {
                let rows = first..(first + DEPTH).min(self.rows);
                let dy = self.dy.block(rows.clone(), outputs.clone());
                let packed_dy = PackedLeft::new(left, dy);
                let x = pack(right, self.x.block(rows, inputs.clone()));
                gemm(&mut weight, Write::Add, &packed_dy, x, Finish::Plain);
                if input == 0 {
                    // SAFETY: only this task has these outputs and input 0.
                    let mut bias = unsafe { self.bias.block(0..1, outputs.clone()) };
                    sum_rows(bias.row_mut(0), dy);
                }
            }
        });
    }
}

vectorized! {
    /// sums `[n]` += Σ of rows `[rows, n]`, in order.
    pub fn sum_rows<T: Scalar>(sums: &mut [T], rows: Mat<'_, T>) {
        for row in 0..rows.rows() {
            sums.iter_mut().zip(rows.row(row)).for_each(|(sum, &d)| *sum += d);
        }
    }
}

vectorized! {
    /// Multiplies `dy` by ReLU's derivative, read off ReLU's output `y`: 0 where y is 0.
    pub fn relu_backward<T: Scalar>(dy: &mut [T], y: &[T]) {
        for (d, &y) in dy.iter_mut().zip(y) {
            *d = if y > T::ZERO { *d } else { T::ZERO };
        }
    }
}
