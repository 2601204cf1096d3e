//! What a missing value becomes.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What a missing value becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Fill {
    /// 0 in normalised units: the mean, the median, or the least value of `minmax`.
    #[default]
    Zero,
    /// The least value seen in training.
    Low,
    /// The largest value seen in training, as for ranks, where missing is worse than any.
    High,
    /// The least or the largest, whichever goes with the lower labels in training.
    Worst,
}

/// `[F]` the covariance of each feature's known values, as `value` gives them by feature and raw value, with the labels
/// of the judged documents; missing = not finite, unjudged = below 0.
pub(super) fn covariances(
    features: &[f32],
    labels: &[f32],
    num_features: usize,
    value: impl Fn(usize, f32) -> f64 + Sync,
) -> Vec<f64> {
    let judged = labels.iter().filter(|&&label| label >= 0.0);
    let mean = judged.clone().map(|&label| f64::from(label)).sum::<f64>() / judged.count().max(1) as f64;
    let of_feature = |feature: usize| {
        let column = features.iter().skip(feature).step_by(num_features).zip(labels);
        let (mut count, mut sum, mut sum_label, mut sum_product) = (0.0, 0.0, 0.0, 0.0);
        for (&x, &label) in column.filter(|&(x, &label)| x.is_finite() && label >= 0.0) {
            let (x, label) = (value(feature, x), f64::from(label) - mean);
            count += 1.0;
            sum += x;
            sum_label += label;
            sum_product += x * label;
        }
        if count > 0.0 { (sum_product - sum * sum_label / count) / count } else { 0.0 }
    };
    (0..num_features).into_par_iter().map(of_feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covariance_is_over_known_values_of_judged_documents() {
        let features = [1.0, f32::NAN, 3.0, 5.0, 2.0, 7.0, 9.0, -100.0];
        let labels = [0.0, 2.0, 1.0, -1.0];
        // Feature 0: (1, 0), (3, 2), (2, 1); feature 1: (5, 2), (7, 1).
        let found = covariances(&features, &labels, 2, |_, x| f64::from(x));
        assert!((found[0] - 2.0 / 3.0).abs() < 1e-12 && (found[1] + 0.5).abs() < 1e-12, "{found:?}");
        assert_eq!(covariances(&[f32::NAN], &[1.0], 1, |_, x| f64::from(x)), [0.0]);
    }
}
