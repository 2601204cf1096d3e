//! Permutation importance (Breiman 2001): how much of a metric is lost when one feature tells nothing any more.

use serde::Serialize;

use super::{Conventions, Evaluation, Metric, Summary, evaluate};
use crate::data::Dataset;
use crate::data::concat::concat;
use crate::rng::{Rng, Stream};
use crate::{Error, Result};

mod chart;

pub use chart::write_svg;

/// Most permutations of a feature: far beyond any use, and far from overflowing anything.
pub const MAX_REPEATS: usize = 1000;

/// What is lost without one feature.
#[derive(Clone, Debug, Serialize)]
pub struct Importance {
    /// Raw index of the feature.
    pub feature: u32,
    /// Its values dealt anew among the documents of each set: what it tells about the documents of a query.
    pub within_set: Summary,
    /// Its values dealt anew among all documents: what it tells about queries as well.
    pub across_sets: Summary,
}

/// Among which documents values are dealt anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Among {
    Set = 0,
    All = 1,
}

/// The importance of every feature of `data` to what `score` makes of it, the most important within sets first.
///
/// `score` gives scores `[N]` by row. Each feature is permuted `repeats` times, as raw values, so that whether a value
/// is missing moves with it; initial rankings stay, also those that were made of a feature. A drop is the `metric` of a
/// query as it is less its mean over the repeats; the mean and its standard error are over the queries that count. Equal
/// seeds give equal permutations. `progress` is told how many scorings are done, of
/// `1 + 2·features·repeats`.
///
/// # Errors
/// Before anything is scored, where `repeats` is not 1 to [`MAX_REPEATS`], where no document is relevant, or where no
/// query counts for the metric; and as `score` and [`evaluate()`].
pub fn importance(
    data: &Dataset,
    score: impl Fn(&Dataset) -> Result<Vec<f32>>,
    metric: Metric,
    conventions: &Conventions,
    repeats: usize,
    seed: u64,
    mut progress: impl FnMut(usize),
) -> Result<Vec<Importance>> {
    if !(1..=MAX_REPEATS).contains(&repeats) {
        return Err(Error::config(format!(
            "repeats is {repeats}: a feature is permuted 1 to {MAX_REPEATS} times"
        )));
    }
    check_labels(data, metric, conventions)?;
    let measure = |data: &Dataset| evaluate(data, &score(data)?, None, &[metric], conventions);
    let whole = measure(data)?;
    let mut done = 1;
    progress(done);
    let mut permuted = concat(&[data])?;
    let mut all = Vec::with_capacity(data.num_features());
    for column in 0..data.num_features() {
        let mut drop_among = |among: Among| -> Result<Summary> {
            let mut evaluations = Vec::with_capacity(repeats);
            for repeat in 0..repeats {
                let sequence = ((2 * repeat + among as usize) as u64) << 32 | column as u64;
                let rng = Rng::new(seed, Stream::Importance, sequence);
                permuted.features = permute(data, column, among, rng).into();
                evaluations.push(measure(&permuted)?);
                done += 1;
                progress(done);
            }
            Ok(drop_of(&whole, &evaluations))
        };
        let (within_set, across_sets) = (drop_among(Among::Set)?, drop_among(Among::All)?);
        all.push(Importance { feature: data.columns().first_index + column as u32, within_set, across_sets });
    }
    // Stable: equal ones stay in the order of the features.
    let key = |importance: &Importance| (importance.within_set.mean, importance.across_sets.mean);
    all.sort_by(|a, b| key(b).0.total_cmp(&key(a).0).then(key(b).1.total_cmp(&key(a).1)));
    Ok(all)
}

/// Refuses data on which no permutation could lose anything.
fn check_labels(data: &Dataset, metric: Metric, conventions: &Conventions) -> Result<()> {
    if data.has_labels() && !data.has_relevant() {
        let fault = if data.has_judged() {
            "no document is relevant: no label is above 0"
        } else {
            "no document is judged: no label is at least 0"
        };
        return Err(Error::data(format!(
            "{fault}, so that no feature can be worth anything (see --label-offset)"
        )));
    }
    // Which queries count does not depend on the scores.
    let any = vec![0.0f32; data.num_documents()];
    if evaluate(data, &any, None, &[metric], conventions)?.summary(0).queries == 0 {
        return Err(Error::data(format!(
            "no query counts for {metric}: see --relevant-from and --empty-queries"
        )));
    }
    Ok(())
}

/// All features `[N, F]` of `data`, those of `column` dealt anew.
fn permute(data: &Dataset, column: usize, among: Among, mut rng: Rng) -> Vec<f32> {
    let mut features = data.features().to_vec();
    let width = data.num_features();
    let mut deal = |rows: std::ops::Range<usize>| {
        let mut values: Vec<f32> = rows.clone().map(|row| features[row * width + column]).collect();
        rng.shuffle(&mut values);
        for (row, value) in rows.zip(values) {
            features[row * width + column] = value;
        }
    };
    match among {
        Among::Set => data.queries().for_each(|query| deal(query.rows())),
        Among::All => deal(0..data.num_documents()),
    }
    features
}

/// Mean and standard error over the queries of what the `permuted` lose on `whole`.
fn drop_of(whole: &Evaluation, permuted: &[Evaluation]) -> Summary {
    let drops: Vec<f64> = (0..whole.num_queries())
        .filter_map(|query| {
            let before = whole.of_query(query)[0]?;
            let after: Option<f64> = permuted.iter().map(|evaluation| evaluation.of_query(query)[0]).sum();
            Some(before - after? / permuted.len() as f64)
        })
        .collect();
    Summary::of(drops.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DatasetBuilder, Document};
    use crate::eval::EmptyQueries;

    /// Feature 1 tells the label within a set, 2 is the same for a whole set, 3 tells nothing and is sometimes missing.
    fn data() -> Dataset {
        let mut rng = Rng::new(1, Stream::Synth, 0);
        let mut builder = DatasetBuilder::new(3);
        for query in 0..40 {
            builder.start_query(query.to_string());
            for document in 0..8 {
                let sign = if query % 2 == 0 { 1.0 } else { -1.0 };
                let noise = if rng.below(3) == 0 { f32::NAN } else { rng.normal() as f32 };
                let label = (document % 3) as f32;
                builder.push(Document { features: &[sign * label, sign, noise], label: Some(label), id: "" });
            }
        }
        builder.finish()
    }

    /// The label, from the first two features.
    fn score(data: &Dataset) -> Result<Vec<f32>> {
        Ok(data.features().chunks(3).map(|row| row[0] * row[1]).collect())
    }

    fn of(data: &Dataset, seed: u64) -> Vec<Importance> {
        let metric = Metric::Ndcg(Some(3));
        importance(data, score, metric, &Conventions::default(), 2, seed, |_| {}).unwrap()
    }

    #[test]
    fn features_are_told_apart_by_what_they_tell() {
        let data = data();
        let mut told = Vec::new();
        let all = importance(&data, score, Metric::Ndcg(Some(3)), &Conventions::default(), 2, 7, |done| {
            told.push(done)
        })
        .unwrap();
        assert!(told.into_iter().eq(1..=13));
        let find = |feature| all.iter().find(|importance| importance.feature == feature).unwrap();
        assert_eq!(all[0].feature, 1);
        assert!(all[0].within_set.mean > 0.2 && all[0].within_set.std_error < 0.05);
        assert_eq!((find(2).within_set.mean, find(3).within_set.mean), (0.0, 0.0));
        assert!(find(2).across_sets.mean > 0.2 && find(3).across_sets.mean == 0.0);
        assert_eq!(all[0].within_set.queries, 40);
        let means = |all: &[Importance]| all.iter().map(|i| i.across_sets.mean).collect::<Vec<_>>();
        assert_eq!(means(&all), means(&of(&data, 7)));
        assert_ne!(means(&all), means(&of(&data, 8)));
    }

    #[test]
    fn a_permutation_keeps_the_values_where_they_belong() {
        let data = data();
        let bits = |values: &[f32]| {
            let mut bits: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
            bits.sort_unstable();
            bits
        };
        for among in [Among::Set, Among::All] {
            let permuted = permute(&data, 2, among, Rng::new(3, Stream::Importance, 0));
            let column = |features: &[f32]| features.iter().skip(2).step_by(3).copied().collect::<Vec<_>>();
            let (before, after) = (column(data.features()), column(&permuted));
            assert_eq!(bits(&before), bits(&after));
            let stays = data.queries().all(|q| bits(&before[q.rows()]) == bits(&after[q.rows()]));
            assert_eq!(stays, among == Among::Set);
            for (old, new) in data.features().chunks(3).zip(permuted.chunks(3)) {
                assert_eq!(old[..2], new[..2]);
            }
        }
    }

    #[test]
    fn what_cannot_be_told_is_refused_before_anything_is_scored() {
        let unscored = |_: &Dataset| -> Result<Vec<f32>> { panic!("scored") };
        let fails = |data: &Dataset, metric, conventions: &Conventions, repeats, part: &str| {
            let message =
                importance(data, unscored, metric, conventions, repeats, 1, |_| {}).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        let conventions = Conventions::default();
        let ndcg = Metric::Ndcg(Some(3));
        for repeats in [0, MAX_REPEATS + 1, usize::MAX] {
            fails(&data(), ndcg, &conventions, repeats, "1 to 1000");
        }
        for (label, part) in [(0.0, "relevant"), (-1.0, "judged")] {
            let mut builder = DatasetBuilder::new(1);
            builder.start_query("q");
            builder.push(Document { features: &[1.0], label: Some(label), id: "" });
            let counted = Conventions { empty_queries: EmptyQueries::Zero, ..conventions };
            fails(&builder.finish(), ndcg, &counted, 1, part);
        }
        let strict = Conventions { relevant_from: 9.0, ..conventions };
        fails(&data(), Metric::Map(None), &strict, 1, "no query counts for map");
    }
}
