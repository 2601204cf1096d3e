//! What the machine can do at most, as far as our own products of matrices reach it.

use std::time::Instant;

use crate::ops::gemm::{Aligned, Finish, Mat, Write, pack_parallel};
use crate::ops::linear::product;
use crate::rng::{Rng, Stream};
use crate::train::learner::in_pool;

/// Side of the product that the peak is measured on unless told otherwise.
pub const SIDE: usize = 4096;

/// Products of which the fastest counts.
const TRIES: usize = 3;

/// The rate of the fastest of a few f32 products of two `side` × `side` matrices on the pool's threads, in 10⁹
/// operations a second.
pub fn gflops(side: usize) -> f64 {
    let mut rng = Rng::new(0, Stream::Benchmark, 0);
    let mut matrix = || -> Vec<f32> { (0..side * side).map(|_| rng.uniform() as f32 - 0.5).collect() };
    let (a, b) = (matrix(), matrix());
    let mut c = vec![0.0f32; side * side];
    let mut packed = Aligned::default();
    let mut multiply = || {
        let started = Instant::now();
        let b = pack_parallel(&mut packed, Mat::new(&b, side, side));
        product(&mut c, Write::Set, &a, b, Finish::Plain);
        started.elapsed().as_secs_f64()
    };
    // The first product finds caches and pages cold.
    let fastest = in_pool(|| (0..=TRIES).map(|_| multiply()).skip(1).fold(f64::INFINITY, f64::min));
    2.0 * (side as f64).powi(3) / fastest / 1e9
}
