//! Every operation alone: forward against plain loops written from its formula, backward against differences, in f64
//! over ragged shapes; and f32 against f64 within its rounding.

use setrank::ops::Scalar;
use setrank::rng::{Rng, Stream};

mod attention;
mod embed;
mod layer_norm;
mod linear;
mod loss;
mod rbf;

fn normals(len: usize, seed: u64) -> Vec<f64> {
    let mut rng = Rng::new(seed, Stream::Synth, 7);
    (0..len).map(|_| rng.normal()).collect()
}

fn cast<T: Scalar>(values: &[f64]) -> Vec<T> {
    values.iter().map(|&v| T::from_f64(v)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Holds `analytic` against fourth-order differences of `f` at `x`, by the rule of the gradient checks.
fn check(what: &str, x: &[f64], analytic: &[f64], f: impl Fn(&[f64]) -> f64) {
    assert_eq!(x.len(), analytic.len(), "{what}");
    let norm = analytic.iter().fold(0.0f64, |max, g| max.max(g.abs()));
    let mut at = x.to_vec();
    let h = 1e-3;
    for index in 0..x.len() {
        let [up, down, up2, down2] = [h, -h, 2.0 * h, -2.0 * h].map(|step| {
            at[index] = x[index] + step;
            f(&at)
        });
        at[index] = x[index];
        let numeric = (8.0 * (up - down) - (up2 - down2)) / (12.0 * h);
        let allowed = 1e-6 * analytic[index].abs().max(numeric.abs()).max(1e-3 * norm);
        assert!(
            (analytic[index] - numeric).abs() <= allowed.max(1e-11),
            "{what}[{index}]: {} is not {numeric}",
            analytic[index]
        );
    }
}

fn assert_close<T: Scalar>(what: &str, actual: &[T], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let magnitude = expected.iter().fold(1.0f64, |max, v| max.max(v.abs()));
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let difference = (actual.to_f64() - expected).abs();
        assert!(difference <= tolerance * magnitude, "{what}[{index}]: {actual:?} is not {expected}");
    }
}
