//! Normal scores: a feature's value by its place in the training data, so that neither unit nor skew nor outliers
//! count.

use serde::{Deserialize, Serialize};

/// Knots of one feature at most: more tell apart what noise does as well.
const MAX_KNOTS: usize = 64;

/// A rising broken line from values to normal scores; flat beyond its ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knots {
    /// Values of the feature, strictly rising.
    pub values: Vec<f32>,
    /// What each becomes; never falling.
    pub scores: Vec<f32>,
}

impl Knots {
    /// The line through `known`, the values of one feature in training; none of them NaN. Each distinct value, or the
    /// 64 nearest to evenly spaced quantiles, becomes Φ⁻¹ of the share of values below it and half of those equal to
    /// it, so that ties stand in the middle of their places.
    pub fn fit(mut known: Vec<f32>) -> Self {
        // −0 and 0 are one value.
        known.iter_mut().for_each(|value| *value += 0.0);
        known.sort_unstable_by(f32::total_cmp);
        let n = known.len() as f64;
        let mut below = 0;
        let places: Vec<(f32, f64)> = known
            .chunk_by(|a, b| a == b)
            .map(|equal| {
                let place = (below as f64 + 0.5 * equal.len() as f64) / n;
                below += equal.len();
                (equal[0], place)
            })
            .collect();
        let chosen = thinned(&places);
        if chosen.is_empty() {
            return Knots { values: vec![0.0], scores: vec![0.0] };
        }
        let scores = chosen.iter().map(|&(_, place)| normal_quantile(place) as f32).collect();
        Knots { values: chosen.into_iter().map(|(value, _)| value).collect(), scores }
    }

    /// The score of the known value `x`.
    #[inline]
    pub fn score(&self, x: f32) -> f32 {
        let after = self.values.partition_point(|&value| value < x);
        match (after.checked_sub(1), self.values.get(after)) {
            (None, _) => self.scores[0],
            (Some(last), None) => self.scores[last],
            (Some(before), Some(&right)) => {
                let (left, right) = (f64::from(self.values[before]), f64::from(right));
                let (low, high) = (f64::from(self.scores[before]), f64::from(self.scores[after]));
                (low + (high - low) * (f64::from(x) - left) / (right - left)) as f32
            }
        }
    }

    /// Why this is no rising line, if it is none.
    pub(super) fn flaw(&self) -> Option<&'static str> {
        let rising = self.values.windows(2).all(|pair| pair[0] < pair[1]);
        let never_falling = self.scores.windows(2).all(|pair| pair[0] <= pair[1]);
        if self.values.is_empty() || self.values.len() != self.scores.len() {
            Some("needs as many scores as values, and at least one")
        } else if !self.values.iter().chain(&self.scores).all(|v| v.is_finite()) {
            Some("holds a number that is not finite")
        } else if !rising || !never_falling {
            Some("needs rising values and scores that never fall")
        } else {
            None
        }
    }
}

/// All of `places`, or those nearest to evenly spaced ones, the ends among them.
fn thinned(places: &[(f32, f64)]) -> Vec<(f32, f64)> {
    if places.len() <= MAX_KNOTS {
        return places.to_vec();
    }
    let mut chosen: Vec<(f32, f64)> = Vec::with_capacity(MAX_KNOTS);
    for knot in 0..MAX_KNOTS {
        let wanted = knot as f64 / (MAX_KNOTS - 1) as f64;
        let after = places.partition_point(|&(_, place)| place < wanted).clamp(1, places.len() - 1);
        let nearer_before = wanted - places[after - 1].1 <= places[after].1 - wanted;
        let nearest = places[if nearer_before { after - 1 } else { after }];
        if chosen.last().is_none_or(|&(value, _)| value < nearest.0) {
            chosen.push(nearest);
        }
    }
    chosen
}

/// Φ⁻¹(p) for p in (0, 1), within 1.2e-9 relative (Acklam's rational approximation).
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.38357751867269e+02,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e+01,
        1.615858368580409e+02,
        -1.556989798598866e+02,
        6.680131188771972e+01,
        -1.328068155288572e+01,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 5] =
        [7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00, 1.0];
    let polynomial = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if p < 0.02425 {
        tail(p)
    } else if p > 1.0 - 0.02425 {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        q * polynomial(&A, q * q) / polynomial(&B, q * q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn normal_quantiles_are_those_of_the_tables() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959963985), (0.01, -2.326347874), (0.8, 0.841621234)] {
            assert!((normal_quantile(p) - z).abs() < 1e-8, "{p}");
            assert!((normal_quantile(1.0 - p) + z).abs() < 1e-8, "{p}");
        }
    }

    #[test]
    fn ties_stand_in_the_middle_of_their_places() {
        let knots = Knots::fit(vec![1.0, 0.0, 0.0, -0.0]);
        assert_eq!(knots.values, [0.0, 1.0]);
        assert_eq!(knots.scores, [normal_quantile(0.375) as f32, normal_quantile(0.875) as f32]);
        assert_eq!(Knots::fit(vec![7.0; 5]), Knots { values: vec![7.0], scores: vec![0.0] });
        assert_eq!(Knots::fit(Vec::new()).score(3.0), 0.0);
    }

    proptest! {
        #[test]
        fn scores_rise_with_values_and_stay_between_the_ends(
            known in prop::collection::vec(prop_oneof![-9i16..9, any::<i16>()], 1..400),
            unseen in prop::collection::vec(any::<f32>().prop_filter("known", |x| x.is_finite()), 9),
        ) {
            let known: Vec<f32> = known.into_iter().map(f32::from).collect();
            let knots = Knots::fit(known.clone());
            prop_assert!(knots.flaw().is_none() && knots.values.len() <= MAX_KNOTS);
            let mut all = [known.clone(), unseen].concat();
            all.sort_unstable_by(f32::total_cmp);
            let scores: Vec<f32> = all.iter().map(|&x| knots.score(x)).collect();
            prop_assert!(scores.windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert!(scores.iter().all(|s| s.is_finite() && s.abs() < 4.0));
            // A value's score is within a knot's distance of its exact place.
            for &x in &known {
                let below = known.iter().filter(|&&y| y < x).count() as f64;
                let equal = known.iter().filter(|&&y| y == x).count() as f64;
                let exact = normal_quantile((below + 0.5 * equal) / known.len() as f64);
                prop_assert!((f64::from(knots.score(x)) - exact).abs() < 0.8, "{} {}", knots.score(x), exact);
            }
        }
    }
}
