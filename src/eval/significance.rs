//! Whether two rankings of the same queries differ: a paired t-test and a paired randomisation test.

use rayon::prelude::*;

use crate::rng::{Rng, Stream};

/// Random sign flips of a randomisation test that is not exact.
pub const PERMUTATIONS: u32 = 10_000;

/// Pairs up to which all 2^n sign flips are tried: fewer than [`PERMUTATIONS`].
const EXACT_PAIRS: usize = 13;

/// The outcome of a paired t-test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TTest {
    /// Two-sided p-value; NaN below two pairs.
    pub p: f64,
    /// 95 % confidence interval of the mean difference; NaN below two pairs.
    pub interval: (f64, f64),
}

/// Student's t-test of the mean of paired `differences` being 0.
pub fn paired_t_test(differences: &[f64]) -> TTest {
    let n = differences.len() as f64;
    if differences.len() < 2 {
        return TTest { p: f64::NAN, interval: (f64::NAN, f64::NAN) };
    }
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();
    let p = match (mean == 0.0, error == 0.0) {
        (true, _) => 1.0,
        (false, true) => 0.0,
        (false, false) => two_sided_p(mean / error, n - 1.0),
    };
    let half = critical_t(0.05, n - 1.0) * error;
    TTest { p, interval: (mean - half, mean + half) }
}

/// Two-sided p-value of a paired randomisation test: the share of the sign flips of `differences` whose mean
/// is at least as far from 0 as theirs.
///
/// Up to 13 differences other than 0, all flips are tried and p is exact. Beyond, it is (1 + hits) / (1 + N)
/// over N = [`PERMUTATIONS`] flips drawn from `seed`. NaN without any pair.
pub fn randomization_test(differences: &[f64], seed: u64) -> f64 {
    if differences.is_empty() {
        return f64::NAN;
    }
    // A difference of 0 has no sign to flip.
    let differences: Vec<f64> = differences.iter().copied().filter(|&d| d != 0.0).collect();
    let observed = differences.iter().sum::<f64>().abs();
    // Sums that are equal but for rounding count as equal.
    let tolerance = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
    let is_hit = |flipped: f64| flipped.abs() >= observed - tolerance;
    if differences.len() <= EXACT_PAIRS {
        let flips = 1u32 << differences.len();
        let hits = (0..flips).filter(|&signs| is_hit(signed_sum(&differences, || signs))).count();
        return hits as f64 / f64::from(flips);
    }
    let hits = (0..PERMUTATIONS)
        .into_par_iter()
        .filter(|&permutation| {
            let mut rng = Rng::new(seed, Stream::Randomization, u64::from(permutation));
            is_hit(signed_sum(&differences, || rng.next_u32()))
        })
        .count();
    (1 + hits) as f64 / f64::from(1 + PERMUTATIONS)
}

/// Σ ±d, a set bit of the next 32 signs meaning minus.
fn signed_sum(differences: &[f64], mut next_signs: impl FnMut() -> u32) -> f64 {
    let mut sum = 0.0;
    for chunk in differences.chunks(32) {
        let signs = next_signs();
        for (bit, &difference) in chunk.iter().enumerate() {
            sum += if signs >> bit & 1 == 1 { -difference } else { difference };
        }
    }
    sum
}

/// P(|T| ≥ |t|) for Student's T with `freedom` degrees of freedom: I_x(freedom/2, ½), x = freedom/(freedom + t²).
fn two_sided_p(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
}

/// The t whose two-sided p-value is `p`, by bisection of the monotone [`two_sided_p`].
fn critical_t(p: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while two_sided_p(high, freedom) > p {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if two_sided_p(middle, freedom) > p { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) evaluated
/// with the modified Lentz method.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast on this side only; I_x(a, b) = 1 − I_{1−x}(b, a).
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let log_front = a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b);
    let nonzero = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
    let (mut c, mut d) = (1.0, 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for term in [even, odd] {
            d = 1.0 / nonzero(1.0 + term * d);
            c = nonzero(1.0 + term / c);
            fraction *= c * d;
        }
        if (fraction - before).abs() <= 1e-16 * fraction.abs() {
            break;
        }
    }
    log_front.exp() * fraction / a
}

/// ln Γ(x) for x > 0: Stirling's series, after raising x to where it is exact to float64.
fn ln_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    let series = (1.0 / 12.0
        - z * (1.0 / 360.0
            - z * (1.0 / 1260.0 - z * (1.0 / 1680.0 - z * (1.0 / 1188.0 - z * 691.0 / 360_360.0)))))
        / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(left: f64, right: f64, tolerance: f64) {
        assert!((left - right).abs() <= tolerance * right.abs(), "{left} {right}");
    }

    #[test]
    fn ln_gamma_of_known_arguments() {
        assert_close(ln_gamma(0.5), std::f64::consts::PI.sqrt().ln(), 1e-13);
        assert_close(ln_gamma(5.0), 24f64.ln(), 1e-13);
        assert_close(ln_gamma(101.0), (1..=100).map(|i| f64::from(i).ln()).sum(), 1e-13);
    }

    #[test]
    fn p_values_of_closed_forms() {
        for t in [0.1, 0.5, 1.0, 2.0, 10.0, 1e3] {
            // 1, 2 and 4 degrees of freedom have elementary distributions.
            assert_close(two_sided_p(t, 1.0), 1.0 - 2.0 / std::f64::consts::PI * f64::atan(t), 1e-9);
            assert_close(two_sided_p(t, 2.0), 2.0 / (2.0 + t * t + t * (2.0 + t * t).sqrt()), 1e-12);
        }
        // The normal distribution in the limit: P(|Z| ≥ 1.959964) = 0.05.
        assert_close(two_sided_p(1.959_963_984_540_054, 1e7), 0.05, 1e-6);
    }

    #[test]
    fn critical_values_of_the_tables() {
        for (freedom, t) in
            [(1.0, 12.7062), (2.0, 4.30265), (10.0, 2.22814), (30.0, 2.04227), (1000.0, 1.96234)]
        {
            assert_close(critical_t(0.05, freedom), t, 1e-5);
        }
    }

    #[test]
    fn the_sleep_data_of_student() {
        // Extra hours of sleep by two drugs, ten patients (Student 1908): t = 4.0621, p = 0.002833.
        let differences = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
        let test = paired_t_test(&differences);
        assert_close(test.p, 0.002833, 1e-3);
        assert_close(test.interval.0, 0.7001142, 1e-6);
        assert_close(test.interval.1, 2.4598858, 1e-6);
        // Nine differences of one sign: only the two flips of all of them reach the sum.
        assert_eq!(randomization_test(&differences, 0), 2.0 / 512.0);
    }

    #[test]
    fn degenerate_samples() {
        assert!(paired_t_test(&[1.0]).p.is_nan() && randomization_test(&[], 0).is_nan());
        assert_eq!(paired_t_test(&[0.0; 5]), TTest { p: 1.0, interval: (0.0, 0.0) });
        assert_eq!(paired_t_test(&[1.0; 5]), TTest { p: 0.0, interval: (1.0, 1.0) });
        assert_eq!(randomization_test(&[0.0; 50], 0), 1.0);
        assert_eq!(randomization_test(&[0.1, 0.2, -0.3], 0), 1.0);
    }

    #[test]
    fn random_flips_agree_with_the_t_test_and_repeat() {
        let mut rng = Rng::new(1, Stream::Synth, 0);
        for shift in [0.0, 0.1, 0.2] {
            let differences: Vec<f64> = (0..200).map(|_| rng.normal() + shift).collect();
            let p = randomization_test(&differences, 3);
            assert!((p - paired_t_test(&differences).p).abs() < 0.02);
            assert_eq!(p, randomization_test(&differences, 3));
        }
        // Out of reach of any flip, the estimate is never 0.
        assert_eq!(randomization_test(&[1.0; 100], 0), 1.0 / 10_001.0);
    }

    #[test]
    fn exact_and_sampled_agree() {
        // The same thirteen differences, then a fourteenth too small to matter.
        let mut rng = Rng::new(2, Stream::Synth, 0);
        let mut differences: Vec<f64> = (0..13).map(|_| rng.normal() + 0.4).collect();
        let exact = randomization_test(&differences, 0);
        differences.push(1e-9);
        assert!((randomization_test(&differences, 0) - exact).abs() < 0.02);
    }
}
