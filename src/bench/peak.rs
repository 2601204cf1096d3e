//! What the machine can do at most, as far as our own products of matrices reach it.

use std::time::Instant;

use rayon::prelude::*;

use crate::ops::gemm::{Mat, MatMut, Write, gemm};
use crate::rng::{Rng, Stream};
use crate::train::learner::in_pool;

/// Side of the product that the peak is measured on unless told otherwise.
pub const SIDE: usize = 4096;

/// Products of which the fastest counts.
const TRIES: usize = 3;

/// Rows of one piece of the product at most: several pieces a thread, so that a thread that is held up by the rest
/// of the machine does not hold up all.
const ROWS: usize = 512;

/// The rate of the fastest of a few f32 products of two `side` × `side` matrices on the pool's threads, in 10⁹
/// operations a second.
pub fn gflops(side: usize) -> f64 {
    let mut rng = Rng::new(0, Stream::Benchmark, 0);
    let mut matrix = || -> Vec<f32> { (0..side * side).map(|_| rng.uniform() as f32 - 0.5).collect() };
    let (a, b) = (matrix(), matrix());
    let mut c = vec![0.0f32; side * side];
    let rows = side.div_ceil(rayon::current_num_threads()).min(ROWS);
    let mut multiply = || {
        let started = Instant::now();
        c.par_chunks_mut(rows * side).zip(a.par_chunks(rows * side)).for_each(|(c, a)| {
            let rows = a.len() / side;
            gemm(
                MatMut::new(c, rows, side),
                Write::Set,
                1.0,
                Mat::new(a, rows, side),
                Mat::new(&b, side, side),
            );
        });
        started.elapsed().as_secs_f64()
    };
    // The first product finds caches and pages cold.
    let fastest = in_pool(|| (0..=TRIES).map(|_| multiply()).skip(1).fold(f64::INFINITY, f64::min));
    2.0 * (side as f64).powi(3) / fastest / 1e9
}
