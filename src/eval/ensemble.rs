//! One ranking of several models.

use crate::data::Dataset;

/// The mean `[N]` of the scores of several models, `[N]` by row each, after those of every set have been shifted to
/// mean 0 and scaled to standard deviation 1. Losses fix scores only up to a constant for each set, and some not even
/// their scale: without this the model with the widest scores would decide alone.
///
/// `kept` `[N]` says which rows the models reranked: only these count, and the others become 0. One model's scores stay
/// as they are. Equal scores stay equal.
pub fn mean_of_standardised(data: &Dataset, models: &[Vec<f32>], kept: Option<&[bool]>) -> Vec<f32> {
    if let [only] = models {
        return only.clone();
    }
    let mut sums = vec![0.0f64; data.num_documents()];
    for scores in models {
        for query in data.queries() {
            let rows = || query.rows().filter(|&row| kept.is_none_or(|kept| kept[row]));
            let n = rows().count() as f64;
            let mean = rows().map(|row| f64::from(scores[row])).sum::<f64>() / n;
            let square = rows().map(|row| (f64::from(scores[row]) - mean).powi(2)).sum::<f64>() / n;
            let scale = if square > 0.0 { 1.0 / square.sqrt() } else { 0.0 };
            rows().for_each(|row| sums[row] += (f64::from(scores[row]) - mean) * scale);
        }
    }
    sums.into_iter().map(|sum| (sum / models.len() as f64) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DatasetBuilder, Document};

    #[test]
    fn neither_shift_nor_scale_of_a_model_counts() {
        let mut builder = DatasetBuilder::new(0);
        for set in 0..3 {
            builder.start_query(set.to_string());
            (0..2 + 2 * set).for_each(|_| builder.push(Document::default()));
        }
        let data = builder.finish();
        let one: Vec<f32> = (0..12).map(|i| ((i * 7) % 5) as f32).collect();
        let other: Vec<f32> = (0..12).map(|i| ((i * 5) % 7) as f32).collect();
        let moved = other.iter().map(|score| 1e3 + 50.0 * score).collect();
        let plain = mean_of_standardised(&data, &[one.clone(), other.clone()], None);
        for (a, b) in plain.iter().zip(mean_of_standardised(&data, &[one.clone(), moved], None)) {
            assert!((a - b).abs() < 1e-5);
        }
        // A set of two: both say ±1.
        assert_eq!(plain[..2], [-1.0, 1.0]);
        assert_eq!(mean_of_standardised(&data, std::slice::from_ref(&one), None), one);
        // A model without an opinion leaves it to the other.
        let flat = mean_of_standardised(&data, &[one.clone(), vec![3.0; 12]], None);
        for query in data.queries() {
            for (a, b) in query.rows().zip(query.rows().skip(1)) {
                assert_eq!(one[a].partial_cmp(&one[b]), flat[a].partial_cmp(&flat[b]));
            }
        }
        // What was not reranked has no say.
        let mut kept = [true; 12];
        kept[3] = false;
        let mut wild = one.clone();
        wild[3] = -1e9;
        let cut = mean_of_standardised(&data, &[wild, other.clone()], Some(&kept));
        assert_eq!(cut, mean_of_standardised(&data, &[one, other], Some(&kept)));
        assert_eq!(cut[3], 0.0);
    }
}
