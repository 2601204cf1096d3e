//! Disturbed features in training, so that a model does not lean on the exact value of one of them.

use super::batch::Shuffle;
use crate::rng::Stream;

/// Which of a document's columns are whose: feature f has column f, and of those from `first_within_set` on each that is f +
/// a multiple of F behind it. Those between, indicators of missing values, are no feature's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// F
    pub num_features: usize,
    /// At least F.
    pub first_within_set: usize,
}

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

    /// Disturbs the document in row `row` of its data set, all columns of it, with draws that are its own in each epoch.
    pub(super) fn apply(&self, shuffle: Shuffle, row: usize, columns: Columns, document: &mut [f32]) {
        let mut rng = shuffle.rng(Stream::Augment, row);
        let Columns { num_features, first_within_set } = columns;
        let (values, within_set) = document.split_at_mut(first_within_set);
        for (feature, value) in values[..num_features].iter_mut().enumerate() {
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

/// Feature dropout that a batch has yet to get: which features of a document are dropped is a function of its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeatureDropout {
    /// Probability of a feature to be dropped, above 0 and below 1.
    pub rate: f64,
    /// The run's seed, and the epoch.
    pub shuffle: Shuffle,
    /// What is dropped of a document.
    pub columns: Columns,
}

#[cfg(feature = "cuda")]
impl FeatureDropout {
    /// Drops features of the document in row `row` of its data set, all columns of it.
    pub(crate) fn apply(&self, row: usize, document: &mut [f32]) {
        let augment = Augment { noise: 0.0, feature_dropout: self.rate };
        augment.apply(self.shuffle, row, self.columns, document);
    }

    /// What kernels repeat it with; columns are below 2³¹.
    pub(crate) fn numbers(&self) -> crate::device::abi::GatherDropout {
        let FeatureDropout { rate, shuffle: Shuffle { seed, epoch }, columns } = *self;
        crate::device::abi::GatherDropout {
            // A whole number is below a number just where it is below that number rounded up.
            threshold: (rate * (1u64 << 53) as f64).ceil() as u64,
            key_low: seed as u32,
            key_high: (seed >> 32) as u32,
            stream: Stream::Augment as u32,
            epoch: epoch as u32,
            features: columns.num_features as i32,
            first_within_set: columns.first_within_set as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_and_drops_have_their_size() {
        let shuffle = Shuffle { seed: 4, epoch: 0 };
        let columns = Columns { num_features: 40_000, first_within_set: 40_010 };
        let mut document = [vec![1.0; 40_000], vec![0.0; 10], vec![2.0; 80_000]].concat();
        Augment { noise: 0.5, feature_dropout: 0.25 }.apply(shuffle, 7, columns, &mut document);
        let (values, rest) = document.split_at(40_000);
        let (indicators, within) = rest.split_at(10);
        assert_eq!(indicators, [0.0; 10]);
        let dropped: Vec<bool> = values.iter().map(|&v| v == 0.0).collect();
        assert!(within.iter().zip(dropped.iter().cycle()).all(|(&w, &dropped)| (w == 0.0) == dropped));
        let share = dropped.iter().filter(|&&d| d).count() as f64 / 40_000.0;
        assert!((share - 0.25).abs() < 0.01, "{share}");
        let kept: Vec<f64> = values.iter().filter(|&&v| v != 0.0).map(|&v| f64::from(v)).collect();
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        let variance = kept.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / kept.len() as f64;
        assert!((mean - 1.0).abs() < 0.01 && (variance - 0.25).abs() < 0.01, "{mean} {variance}");
        let (mut again, alone) = (vec![1.0; 40_000], Columns { first_within_set: 40_000, ..columns });
        Augment { noise: 0.5, feature_dropout: 0.25 }.apply(shuffle, 7, alone, &mut again);
        assert!(again[0] == values[0] && again != values);
    }

    /// A kernel compares whole numbers, the processor their quotients.
    #[cfg(feature = "cuda")]
    #[test]
    fn kernels_drop_the_same() {
        let shuffle = Shuffle { seed: 1 << 40 | 3, epoch: 9 };
        let drawn = shuffle.rng(Stream::Augment, 5).uniform();
        let bits = (drawn * (1u64 << 53) as f64) as u64;
        let columns = Columns { num_features: 1, first_within_set: 1 };
        for rate in [drawn, drawn.next_up(), drawn.next_down(), 0.2, 1.0 / 3.0, 1.0 - f64::EPSILON, 1e-300] {
            let dropout = FeatureDropout { rate, shuffle, columns };
            let mut document = [1.0];
            dropout.apply(5, &mut document);
            assert_eq!(document[0] == 0.0, bits < dropout.numbers().threshold, "{rate}");
        }
    }
}
