//! Features relative to the other documents of the set: what a document stands for is often not its value but
//! whether the others have more.

use serde::{Deserialize, Serialize};

/// Columns appended for each feature, computed from its normalised column (missing values at their fill) over all
/// documents of the set that the model sees. Permuting the documents permutes the values, ties are equal, and a
/// feature that is the same in the whole set becomes 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum WithinSet {
    /// None.
    #[default]
    None,
    /// (x − mean)/standard deviation.
    ZScore,
    /// The middle of the places that equal values take in ascending order, scaled to (−1, 1).
    Rank,
    /// The standardised values of all features, then the ranks of all.
    Both,
}

/// What one column holds of a feature.
#[derive(Clone, Copy)]
enum Comparison {
    ZScore,
    Rank,
}

impl WithinSet {
    pub(super) fn is_none(&self) -> bool {
        *self == WithinSet::None
    }

    /// Number of columns for `num_features` features.
    pub fn num_columns(self, num_features: usize) -> usize {
        self.comparisons().len() * num_features
    }

    fn comparisons(self) -> &'static [Comparison] {
        match self {
            WithinSet::None => &[],
            WithinSet::ZScore => &[Comparison::ZScore],
            WithinSet::Rank => &[Comparison::Rank],
            WithinSet::Both => &[Comparison::ZScore, Comparison::Rank],
        }
    }

    /// Fills the last columns of `rows` `[n, width]`, one set, from the first `num_features`. The documents are summed in
    /// the order that `order` `[n]` lists them in: where it lists them in one order of their own, however the rows are
    /// shuffled, each document's values are the same bits.
    pub(super) fn fill(self, rows: &mut [f32], width: usize, num_features: usize, order: &[usize]) {
        let first = width - self.num_columns(num_features);
        let mut column = vec![0.0; rows.len() / width];
        let mut ranking = Vec::new();
        for (number, comparison) in self.comparisons().iter().enumerate() {
            for feature in 0..num_features {
                for (value, &document) in column.iter_mut().zip(order) {
                    *value = rows[document * width + feature];
                }
                match comparison {
                    Comparison::ZScore => z_scores(&mut column),
                    Comparison::Rank => mid_ranks(&mut column, &mut ranking),
                }
                for (value, &document) in column.iter().zip(order) {
                    rows[document * width + first + number * num_features + feature] = *value;
                }
            }
        }
    }
}

fn z_scores(values: &mut [f32]) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let square = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    // Equal values decide, since rounding can leave them a spread.
    let scale = if values.iter().all(|v| *v == values[0]) { 0.0 } else { 1.0 / square.sqrt() };
    values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) * scale) as f32);
}

fn mid_ranks(values: &mut [f32], order: &mut Vec<usize>) {
    let n = values.len() as f64;
    order.clear();
    order.extend(0..values.len());
    order.sort_unstable_by(|&a, &b| values[a].partial_cmp(&values[b]).expect("normalised values are finite"));
    let mut rank = 0;
    while rank < order.len() {
        let value = values[order[rank]];
        let equal = order[rank..].iter().take_while(|&&document| values[document] == value).count();
        // Ranks from 0 to n − 1 stand in the middles of n equal parts of (−1, 1).
        let middle = rank as f64 + 0.5 * equal as f64;
        for &document in &order[rank..rank + equal] {
            values[document] = (2.0 * middle / n - 1.0) as f32;
        }
        rank += equal;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [WithinSet; 2] = [WithinSet::ZScore, WithinSet::Rank];

    /// In the order in which the rows stand.
    fn fill(kind: WithinSet, rows: &mut [f32], width: usize, num_features: usize) {
        let order: Vec<usize> = (0..rows.len() / width).collect();
        kind.fill(rows, width, num_features, &order);
    }

    #[test]
    fn known_values() {
        // One feature, an indicator between, its column within the set.
        let rows = |values: [f32; 4]| values.map(|v| [v, 1.0, 9.0]).concat();
        let last = |rows: &[f32]| rows.chunks(3).map(|row| row[2]).collect::<Vec<_>>();
        let mut set = rows([3.0, 1.0, 1.0, 3.0]);
        fill(WithinSet::ZScore, &mut set, 3, 1);
        assert_eq!(last(&set), [1.0, -1.0, -1.0, 1.0]);
        assert_eq!(set[..2], [3.0, 1.0]);
        let mut set = rows([7.0, -2.0, -2.0, 0.0]);
        fill(WithinSet::Rank, &mut set, 3, 1);
        assert_eq!(last(&set), [0.75, -0.5, -0.5, 0.25]);
        for kind in KINDS {
            for mut set in [rows([0.1; 4]), vec![5.0, 0.0, 9.0]] {
                fill(kind, &mut set, 3, 1);
                assert!(last(&set).iter().all(|&v| v == 0.0), "{kind:?}");
            }
        }
    }

    #[test]
    fn both_kinds_stand_side_by_side() {
        // Two features, an indicator, two columns of each kind.
        let (features, n) = ([[3.0, 5.0], [1.0, 9.0], [1.0, 9.0], [4.0, 0.0]], 4);
        let alone = KINDS.map(|kind| {
            let mut rows = features.map(|row| [row[0], row[1], 1.0, 9.0, 9.0]).concat();
            fill(kind, &mut rows, 5, 2);
            rows
        });
        let mut both = features.map(|row| [row[0], row[1], 1.0, 9.0, 9.0, 9.0, 9.0]).concat();
        fill(WithinSet::Both, &mut both, 7, 2);
        for document in 0..n {
            assert_eq!(both[7 * document..][..5], alone[0][5 * document..][..5]);
            assert_eq!(both[7 * document + 5..][..2], alone[1][5 * document + 3..][..2]);
        }
    }

    proptest! {
        #[test]
        fn documents_may_stand_in_any_order(
            values in prop::collection::vec((-3i8..4).prop_map(f32::from), 1..30),
            seed: u64,
        ) {
            let mut order: Vec<usize> = (0..values.len()).collect();
            crate::rng::Rng::new(seed, crate::rng::Stream::Synth, 0).shuffle(&mut order);
            for kind in KINDS {
                let column = |values: Vec<f32>| {
                    let mut rows: Vec<f32> = values.into_iter().flat_map(|v| [v, 0.0]).collect();
                    fill(kind, &mut rows, 2, 1);
                    rows.chunks(2).map(|row| row[1]).collect::<Vec<_>>()
                };
                let plain = column(values.clone());
                let permuted = column(order.iter().map(|&i| values[i]).collect());
                for (permuted, &i) in permuted.into_iter().zip(&order) {
                    prop_assert!((permuted - plain[i]).abs() < 1e-6);
                }
                // Shuffled rows that are summed in the same order have the same bits.
                let scaled: Vec<f32> = values.iter().map(|v| 0.1 * v).collect();
                let plain_bits = column(scaled.clone());
                let mut shuffled: Vec<f32> = order.iter().flat_map(|&i| [scaled[i], 0.0]).collect();
                let mut back = vec![0; order.len()];
                order.iter().enumerate().for_each(|(place, &document)| back[document] = place);
                kind.fill(&mut shuffled, 2, 1, &back);
                for (row, &i) in shuffled.chunks(2).zip(&order) {
                    prop_assert_eq!(row[1].to_bits(), plain_bits[i].to_bits());
                }
                // Larger values, larger columns; ties equal.
                for i in 0..values.len() {
                    for j in 0..values.len() {
                        let same = values[i].partial_cmp(&values[j]) == plain[i].partial_cmp(&plain[j]);
                        prop_assert!(same, "{:?} {:?}", values, plain);
                    }
                }
            }
        }
    }
}
