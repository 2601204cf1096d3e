//! Disturbed features in training, so that a model does not lean on the exact value of one of them.

use crate::rng::Rng;

/// What is done to the normalised features of every training document at every visit; indicators stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augment {
    /// Standard deviation of the normal noise added to each value.
    pub noise: f64,
    /// Probability with which a feature of a document becomes 0, and its columns within the set too.
    pub feature_dropout: f64,
}

impl Augment {
    /// Whether nothing is done.
    pub fn is_nothing(&self) -> bool {
        self.noise == 0.0 && self.feature_dropout == 0.0
    }

    /// Disturbs one document with the draws of `rng`: `values` `[F]`, and `within_set`, any number of times `[F]`.
    pub(super) fn apply(&self, mut rng: Rng, values: &mut [f32], within_set: &mut [f32]) {
        let num_features = values.len();
        for (feature, value) in values.iter_mut().enumerate() {
            let dropped = self.feature_dropout > 0.0 && rng.uniform() < self.feature_dropout;
            let within_set = within_set.iter_mut().skip(feature).step_by(num_features);
            for value in std::iter::once(value).chain(within_set) {
                if dropped {
                    *value = 0.0;
                } else if self.noise > 0.0 {
                    *value += (self.noise * rng.normal()) as f32;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn noise_and_drops_have_their_size() {
        let rng = || Rng::new(4, Stream::Augment, 7);
        let (mut values, mut within) = (vec![1.0; 40_000], vec![2.0; 80_000]);
        Augment { noise: 0.5, feature_dropout: 0.25 }.apply(rng(), &mut values, &mut within);
        let dropped: Vec<bool> = values.iter().map(|&v| v == 0.0).collect();
        assert!(within.iter().zip(dropped.iter().cycle()).all(|(&w, &dropped)| (w == 0.0) == dropped));
        let share = dropped.iter().filter(|&&d| d).count() as f64 / 40_000.0;
        assert!((share - 0.25).abs() < 0.01, "{share}");
        let kept: Vec<f64> = values.iter().filter(|&&v| v != 0.0).map(|&v| f64::from(v)).collect();
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        let variance = kept.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / kept.len() as f64;
        assert!((mean - 1.0).abs() < 0.01 && (variance - 0.25).abs() < 0.01, "{mean} {variance}");
        let mut again = vec![1.0; 40_000];
        Augment { noise: 0.5, feature_dropout: 0.25 }.apply(rng(), &mut again, &mut []);
        assert!(again[0] == values[0] && again != values);
    }
}
