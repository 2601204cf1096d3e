//! What the machine can do at most, as far as our own products of matrices reach it.

use std::time::Instant;

use super::machine;
use crate::Result;
use crate::ops::linear::{WeightGradients, WeightJob, backward_weights};
use crate::ops::scratch::PerThread;
use crate::rng::{Rng, Stream};
use crate::train::learner::in_pool;

/// Side of the product that the peak is measured on unless told otherwise.
pub const SIDE: usize = 4096;

/// Products of which the fastest counts.
const TRIES: usize = 3;

/// Refuses a `side` whose matrices the machine has not the memory for.
///
/// # Errors
/// Where they need more bytes than are free.
pub fn check_memory(side: usize) -> Result<()> {
    check_against(machine::available_memory(), side)
}

fn check_against(available: Option<u64>, side: usize) -> Result<()> {
    let needed = (3 * size_of::<f32>()) as f64 * (side as f64).powi(2);
    let product = format!("the product of two {side} × {side} matrices that measures the peak");
    machine::check_memory(available, needed, &product, "take a smaller --peak-side, or 0 to leave it out")
}

/// The rate of the fastest of a few f32 products of two `side` × `side` matrices on the pool's threads, in 10⁹
/// operations a second.
pub fn gflops(side: usize) -> f64 {
    let mut rng = Rng::new(0, Stream::Benchmark, 0);
    let mut matrix = || -> Vec<f32> { (0..side * side).map(|_| rng.uniform() as f32 - 0.5).collect() };
    let (a, b) = (matrix(), matrix());
    let mut c = vec![0.0f32; side * side];
    let mut bias = vec![0.0f32; side];
    let mut threads = PerThread::default();
    threads.prepare();
    // Aᵀ·B as weight gradients are computed: both sides are packed, so that it suits any shape.
    let mut multiply = || {
        let gradients = WeightGradients { weight: &mut c, bias: &mut bias };
        let started = Instant::now();
        backward_weights([WeightJob { gradients, dy: &a, x: &b }], &threads);
        started.elapsed().as_secs_f64()
    };
    // The first product finds caches and pages cold.
    let fastest = in_pool(|| (0..=TRIES).map(|_| multiply()).skip(1).fold(f64::INFINITY, f64::min));
    2.0 * (side as f64).powi(3) / fastest / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_do_not_fit_are_refused() {
        assert!(check_against(None, SIDE).is_ok());
        assert!(check_against(Some(1200), 10).is_ok());
        let message = check_against(Some(1199), 10).unwrap_err().to_string();
        assert!(message.contains("10 × 10") && message.contains("--peak-side"), "{message}");
        assert!(check_memory(usize::MAX).is_err() || machine::available_memory().is_none());
    }
}
