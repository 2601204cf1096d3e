//! Metrics of every query of a data set, and their means.

use rayon::prelude::*;

use super::conventions::{Conventions, EmptyQueries, Ideal};
use super::metrics::{MAX_EXPONENT, Metric};
use crate::data::{Dataset, Query};
use crate::{Error, Result};

/// The value of each metric for each query.
#[derive(Clone, Debug)]
pub struct Evaluation {
    metrics: Vec<Metric>,
    /// `[Q, metrics]`
    values: Vec<Option<f64>>,
}

/// The mean of a metric over the queries that count.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Mean; NaN (in JSON null) where no query counts.
    pub mean: f64,
    /// Standard error of the mean, from the unbiased variance; NaN (null) below two queries.
    pub std_error: f64,
    /// Number of queries that count.
    pub queries: usize,
}

impl Summary {
    /// The summary of `values`.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let queries = values.clone().count();
        let n = queries as f64;
        let mean = values.clone().sum::<f64>() / n;
        let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let std_error = if queries < 2 { f64::NAN } else { (variance / n).sqrt() };
        Summary { mean, std_error, queries }
    }
}

impl Evaluation {
    /// The metrics, in the order asked for.
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// Number of queries, those included that do not count.
    pub fn num_queries(&self) -> usize {
        self.values.len() / self.metrics.len()
    }

    /// Values `[metrics]` of query number `query`; `None` = the query does not count.
    pub fn of_query(&self, query: usize) -> &[Option<f64>] {
        let width = self.metrics.len();
        &self.values[query * width..(query + 1) * width]
    }

    /// Values `[Q]` of metric number `metric`; `None` = the query does not count.
    pub fn of_metric(&self, metric: usize) -> impl Iterator<Item = Option<f64>> + Clone + '_ {
        self.values.iter().skip(metric).step_by(self.metrics.len()).copied()
    }

    /// Mean of metric number `metric`.
    pub fn summary(&self, metric: usize) -> Summary {
        Summary::of(self.of_metric(metric).flatten())
    }
}

/// Evaluates the ranking of every query of `data` by `scores` `[N]`, in row order, the largest first.
///
/// Ties are broken by the order of the rows. Unjudged documents (label below 0) are left out before
/// ranking, and so are those that `kept` `[N]` leaves out, as a reranker of the top k does; whether the ideal
/// ranking has the latter is [`Conventions::ideal`]. Without `kept`, every document is ranked.
pub fn evaluate<S: Copy + Into<f64> + Sync>(
    data: &Dataset,
    scores: &[S],
    kept: Option<&[bool]>,
    metrics: &[Metric],
    conventions: &Conventions,
) -> Result<Evaluation> {
    conventions.validate()?;
    if metrics.is_empty() {
        return Err(Error::config("no metric to evaluate"));
    }
    let Some(labels) = data.labels() else {
        return Err(Error::data("the data has no labels: there is nothing to evaluate against"));
    };
    for (name, length) in [("scores", scores.len()), ("kept", kept.map_or(labels.len(), <[bool]>::len))] {
        if length != labels.len() {
            return Err(Error::data(format!("{length} {name} for {} documents", labels.len())));
        }
    }
    let max_grade = check_labels(data, labels, metrics, conventions)?;
    // Past the largest cutoff nothing needs sorting.
    let depth = metrics.iter().map(|metric| metric.cutoff()).try_fold(0, |most, k| Some(most.max(k?)));

    let values: Vec<Vec<Option<f64>>> = (0..data.num_queries())
        .into_par_iter()
        .map(|index| {
            let query = data.query(index);
            let kept = kept.map(|kept| &kept[query.rows()]);
            let ranked = ranked_labels(&query, &labels[query.rows()], &scores[query.rows()], kept, depth)?;
            let in_ideal = |document: usize| match (conventions.ideal, kept) {
                (Ideal::List, Some(kept)) => kept[document],
                _ => true,
            };
            let mut ideal: Vec<f32> = (0..query.len())
                .filter(|&document| in_ideal(document))
                .map(|document| labels[query.rows().start + document])
                .filter(|&label| label > 0.0)
                .collect();
            ideal.sort_unstable_by(|a, b| b.total_cmp(a));
            let of_empty = match conventions.empty_queries {
                EmptyQueries::Zero => Some(0.0),
                EmptyQueries::One => Some(1.0),
                EmptyQueries::Skip => None,
            };
            Ok(metrics
                .iter()
                .map(|metric| metric.of_query(&ranked, &ideal, conventions, max_grade).or(of_empty))
                .collect())
        })
        .collect::<Result<_>>()?;
    Ok(Evaluation { metrics: metrics.to_vec(), values: values.concat() })
}

/// Mean NDCG@k of `scores` `[N]` over the queries of `data` that count; NaN where none does.
pub fn mean_ndcg<S: Copy + Into<f64> + Sync>(
    data: &Dataset,
    scores: &[S],
    kept: Option<&[bool]>,
    k: usize,
    conventions: &Conventions,
) -> Result<f64> {
    Ok(evaluate(data, scores, kept, &[Metric::Ndcg(Some(k))], conventions)?.summary(0).mean)
}

/// Refuses labels that the metrics have no value for; returns the largest grade of ERR.
fn check_labels(
    data: &Dataset,
    labels: &[f32],
    metrics: &[Metric],
    conventions: &Conventions,
) -> Result<f32> {
    let exponential = metrics.iter().find(|metric| metric.is_exponential(conventions.gain));
    let fails = |label: &f32| !label.is_finite() || (exponential.is_some() && *label > MAX_EXPONENT);
    if let Some(row) = labels.iter().position(fails) {
        let place = place(data, row);
        return Err(match exponential {
            Some(metric) if labels[row].is_finite() => Error::data(format!(
                "{place} has the label {}: {metric} takes 2^label, for labels of at most {MAX_EXPONENT} \
                 (NDCG also has --gain linear)",
                labels[row]
            )),
            _ => Error::data(format!("{place} has the label {}, which is no finite number", labels[row])),
        });
    }
    let largest = labels.iter().copied().fold(0.0, f32::max);
    match conventions.max_grade {
        Some(grade) if largest > grade && metrics.iter().any(|metric| matches!(metric, Metric::Err(_))) => {
            Err(Error::data(format!("the data has the label {largest}, above the max-grade {grade} of ERR")))
        }
        grade => Ok(grade.unwrap_or(largest.max(4.0))),
    }
}

/// Labels of the judged documents among `kept`, the largest score first, at least the first `depth`.
fn ranked_labels<S: Copy + Into<f64>>(
    query: &Query<'_>,
    labels: &[f32],
    scores: &[S],
    kept: Option<&[bool]>,
    depth: Option<usize>,
) -> Result<Vec<f32>> {
    let mut documents: Vec<(f64, u32)> = Vec::with_capacity(labels.len());
    for (document, (&label, &score)) in labels.iter().zip(scores).enumerate() {
        if kept.is_some_and(|kept| !kept[document]) {
            continue;
        }
        let score: f64 = score.into();
        if score.is_nan() {
            return Err(Error::data(format!(
                "query {}, document {} of {}: the score is not a number",
                query.id(),
                document + 1,
                query.len()
            )));
        }
        if label >= 0.0 {
            documents.push((score, document as u32));
        }
    }
    // Not total_cmp, to which 0 and −0 would be no tie.
    let before = |a: &(f64, u32), b: &(f64, u32)| {
        b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal).then(a.1.cmp(&b.1))
    };
    if let Some(depth) = depth.filter(|&depth| depth < documents.len()) {
        documents.select_nth_unstable_by(depth, before);
        documents.truncate(depth);
    }
    documents.sort_unstable_by(before);
    Ok(documents.into_iter().map(|(_, document)| labels[document as usize]).collect())
}

fn place(data: &Dataset, row: usize) -> String {
    let query = data.queries().find(|query| query.rows().contains(&row)).expect("every row has a query");
    format!("query {}, document {} of {}", query.id(), row - query.rows().start + 1, query.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DatasetBuilder, Document};
    use crate::eval::Gain;
    use proptest::prelude::*;

    fn dataset(queries: &[Vec<f32>]) -> Dataset {
        let mut builder = DatasetBuilder::new(0);
        for (index, labels) in queries.iter().enumerate() {
            builder.start_query(format!("q{index}"));
            for &label in labels {
                builder.push(Document { label: Some(label), ..Document::default() });
            }
        }
        builder.finish()
    }

    fn values(
        queries: &[Vec<f32>],
        scores: &[f32],
        metric: Metric,
        conventions: &Conventions,
    ) -> Vec<Option<f64>> {
        let data = dataset(queries);
        evaluate(&data, scores, None, &[metric], conventions).unwrap().of_metric(0).collect()
    }

    const MRR: Metric = Metric::Mrr(None);

    #[test]
    fn ties_keep_the_order_of_rows_and_unjudged_documents_take_no_rank() {
        let plain = Conventions::default();
        assert_eq!(values(&[vec![0.0, 1.0]], &[1.0, 1.0], MRR, &plain), [Some(0.5)]);
        assert_eq!(values(&[vec![1.0, 0.0]], &[1.0, 1.0], MRR, &plain), [Some(1.0)]);
        assert_eq!(values(&[vec![1.0, 0.0]], &[-0.0, 0.0], MRR, &plain), [Some(1.0)]);
        assert_eq!(values(&[vec![-1.0, 1.0]], &[9.0, 1.0], MRR, &plain), [Some(1.0)]);
        assert_eq!(values(&[vec![0.0, 1.0]], &[f32::NEG_INFINITY, f32::INFINITY], MRR, &plain), [Some(1.0)]);
    }

    #[test]
    fn empty_queries_count_as_asked() {
        let queries = [vec![0.0, 1.0], vec![0.0, 0.0], vec![-1.0], vec![]];
        let scores = [1.0, 2.0, 1.0, 2.0, 1.0];
        for (empty_queries, value, mean, counted) in [
            (EmptyQueries::Zero, Some(0.0), 0.25, 4),
            (EmptyQueries::One, Some(1.0), 1.0, 4),
            (EmptyQueries::Skip, None, 1.0, 1),
        ] {
            let conventions = Conventions { empty_queries, ..Conventions::default() };
            let data = dataset(&queries);
            for metric in [Metric::Ndcg(Some(10)), Metric::Map(None), MRR, Metric::Precision(1)] {
                let evaluation = evaluate(&data, &scores, None, &[metric], &conventions).unwrap();
                assert_eq!(evaluation.of_metric(0).collect::<Vec<_>>(), [Some(1.0), value, value, value]);
                let summary = evaluation.summary(0);
                assert_eq!((summary.mean, summary.queries), (mean, counted));
            }
        }
    }

    #[test]
    fn the_ideal_is_of_all_documents_or_of_those_kept() {
        let data = dataset(&[vec![2.0, 1.0, 0.0], vec![1.0, 0.0]]);
        let (scores, kept) = ([f32::NAN, 2.0, 1.0, 0.0, 1.0], [false, true, true, false, true]);
        let run = |ideal| {
            let conventions = Conventions { ideal, ..Conventions::default() };
            let metrics = [Metric::Ndcg(Some(1)), Metric::Map(None)];
            evaluate(&data, &scores, Some(&kept), &metrics, &conventions).unwrap()
        };
        let full = run(Ideal::Full);
        assert_eq!(full.of_query(0), [Some(1.0 / 3.0), Some(0.5)]);
        assert_eq!(full.of_query(1), [Some(0.0), Some(0.0)]);
        let list = run(Ideal::List);
        assert_eq!(list.of_query(0), [Some(1.0), Some(1.0)]);
        assert_eq!(list.of_query(1), [None, None]);
    }

    #[test]
    fn summaries() {
        let summary = Summary::of([1.0, 2.0, 4.0].into_iter());
        assert!((summary.mean - 7.0 / 3.0).abs() < 1e-15);
        assert!((summary.std_error - (7.0f64 / 9.0).sqrt()).abs() < 1e-15);
        assert!(Summary::of(std::iter::empty()).mean.is_nan());
        assert!(Summary::of([1.0].into_iter()).std_error.is_nan());
    }

    #[test]
    fn what_cannot_be_evaluated_is_named() {
        let data = dataset(&[vec![1.0], vec![0.0, 32.0]]);
        let message = |scores: &[f32], metric, conventions: &Conventions| {
            evaluate(&data, scores, None, &[metric], conventions).unwrap_err().to_string()
        };
        let (ndcg, plain) = (Metric::Ndcg(None), Conventions::default());
        let linear = Conventions { gain: Gain::Linear, ..plain };
        let all = [0.0, 1.0, f32::NAN];
        assert!(
            message(&all, ndcg, &linear).contains("query q1, document 2 of 2: the score is not a number")
        );
        assert!(message(&all, ndcg, &plain).contains("query q1, document 2 of 2 has the label 32"));
        assert!(message(&all, Metric::Err(None), &linear).contains("has the label 32"));
        assert!(message(&all[..2], ndcg, &linear).contains("2 scores for 3 documents"));
        let data = dataset(&[vec![3.0]]);
        let low = Conventions { max_grade: Some(2.0), ..plain };
        let error = evaluate(&data, &[0.0f32], None, &[Metric::Err(None)], &low).unwrap_err();
        assert!(error.to_string().contains("above the max-grade 2"));
        assert!(evaluate(&data, &[0.0f32], None, &[ndcg], &low).is_ok());
        for relevant_from in [0.0, f32::NAN] {
            let broken = Conventions { relevant_from, ..plain };
            assert!(evaluate(&data, &[0.0f32], None, &[ndcg], &broken).is_err());
        }
    }

    /// The definitions once more, by ranks instead of lists: O(n²), nothing shared with the code under test.
    fn plain(
        metric: Metric,
        labels: &[f32],
        scores: &[f32],
        conventions: &Conventions,
        grade: f64,
    ) -> Option<f64> {
        let judged: Vec<usize> = (0..labels.len()).filter(|&i| labels[i] >= 0.0).collect();
        let rank = |i: usize, key: &[f32]| {
            1 + judged.iter().filter(|&&j| key[j] > key[i] || (key[j] == key[i] && j < i)).count()
        };
        let from = f64::from(conventions.relevant_from);
        let relevant = |i: usize| f64::from(labels[i]) >= from;
        let within = |r: usize| metric.cutoff().is_none_or(|k| r <= k);
        let counted: Vec<(usize, usize)> =
            judged.iter().map(|&i| (i, rank(i, scores))).filter(|&(_, r)| within(r)).collect();
        match metric {
            Metric::Ndcg(_) => {
                let gain = |i: usize| match conventions.gain {
                    Gain::Exp => 2f64.powf(f64::from(labels[i])) - 1.0,
                    Gain::Linear => f64::from(labels[i]),
                };
                let sum = |key: &[f32]| -> f64 {
                    let ranks = judged.iter().map(|&i| (i, rank(i, key))).filter(|&(_, r)| within(r));
                    ranks.map(|(i, r)| gain(i) * 2f64.ln() / ((r + 1) as f64).ln()).sum()
                };
                let ideal = sum(labels);
                (ideal > 0.0).then(|| sum(scores) / ideal)
            }
            Metric::Err(_) => {
                let stop = |i: usize| (2f64.powf(f64::from(labels[i])) - 1.0) / 2f64.powf(grade);
                judged.iter().any(|&i| labels[i] > 0.0).then(|| {
                    let term = |&(i, r): &(usize, usize)| {
                        let above = judged.iter().filter(|&&j| rank(j, scores) < r);
                        above.map(|&j| 1.0 - stop(j)).product::<f64>() * stop(i) / r as f64
                    };
                    counted.iter().map(term).sum()
                })
            }
            _ => {
                let total = judged.iter().filter(|&&i| relevant(i)).count();
                let hits = || counted.iter().filter(|&&(i, _)| relevant(i));
                (total > 0).then(|| match metric {
                    Metric::Map(k) => {
                        let precision = |r: usize| hits().filter(|&&(_, q)| q <= r).count() as f64 / r as f64;
                        hits().map(|&(_, r)| precision(r)).sum::<f64>()
                            / k.map_or(total, |k| k.min(total)) as f64
                    }
                    Metric::Mrr(_) => hits().map(|&(_, r)| 1.0 / r as f64).fold(0.0, f64::max),
                    _ => hits().count() as f64 / metric.cutoff().unwrap() as f64,
                })
            }
        }
    }

    fn metric() -> impl Strategy<Value = Metric> {
        let cutoff = || prop::option::of(1usize..25);
        prop_oneof![
            cutoff().prop_map(Metric::Ndcg),
            cutoff().prop_map(Metric::Err),
            cutoff().prop_map(Metric::Map),
            cutoff().prop_map(Metric::Mrr),
            (1usize..25).prop_map(Metric::Precision),
        ]
    }

    fn document() -> impl Strategy<Value = (f32, f32)> {
        let label = prop_oneof![4 => (0u8..5).prop_map(f32::from), 1 => 0.0f32..4.0, 1 => Just(-1.0)];
        // Few different scores, so that there are ties.
        (label, prop_oneof![(-3i8..3).prop_map(f32::from), -1e6f32..1e6])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn every_metric_agrees_with_its_plain_definition(
            sets in prop::collection::vec(prop::collection::vec(document(), 0..20), 1..4),
            metrics in prop::collection::vec(metric(), 1..4),
            linear: bool,
            relevant_from in prop_oneof![Just(1.0f32), Just(0.5), Just(2.0)],
        ) {
            let gain = if linear { Gain::Linear } else { Gain::Exp };
            let conventions = Conventions { gain, relevant_from, ..Conventions::default() };
            let labels: Vec<Vec<f32>> = sets.iter().map(|set| set.iter().map(|d| d.0).collect()).collect();
            let scores: Vec<Vec<f32>> = sets.iter().map(|set| set.iter().map(|d| d.1).collect()).collect();
            let data = dataset(&labels);
            let evaluation = evaluate(&data, &scores.concat(), None, &metrics, &conventions).unwrap();
            for query in 0..sets.len() {
                for (&metric, &value) in metrics.iter().zip(evaluation.of_query(query)) {
                    let expected = plain(metric, &labels[query], &scores[query], &conventions, 4.0);
                    prop_assert_eq!(value.is_some(), expected.is_some());
                    let difference = value.unwrap_or(0.0) - expected.unwrap_or(0.0);
                    prop_assert!(difference.abs() < 1e-12, "{metric}: {value:?} {expected:?}");
                    prop_assert!((0.0..=1.0 + 1e-12).contains(&value.unwrap_or(0.0)));
                }
            }
        }
    }
}
