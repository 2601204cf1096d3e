//! The metrics' names and formulas, for one query.

use std::fmt;
use std::str::FromStr;

use super::conventions::{Conventions, Gain};
use crate::{Error, Result};

/// Largest label of an exponential gain: 2^31 is as far as published evaluators go, and a label beyond it is
/// rather a mistake in the data than a grade.
pub const MAX_EXPONENT: f32 = 31.0;

/// A measure of a ranking; a cutoff of `None` takes the whole list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// `ndcg`, `ndcg@k`: normalised discounted cumulative gain (Järvelin and Kekäläinen 2002).
    Ndcg(Option<usize>),
    /// `err`, `err@k`: expected reciprocal rank (Chapelle et al. 2009).
    Err(Option<usize>),
    /// `map`, `map@k`: average precision; the mean of it is MAP.
    Map(Option<usize>),
    /// `mrr`, `mrr@k`: reciprocal rank of the first relevant document.
    Mrr(Option<usize>),
    /// `p@k`: share of relevant documents among the first k.
    Precision(usize),
}

impl Metric {
    /// The rank after which nothing counts; `None` = all ranks count.
    pub fn cutoff(self) -> Option<usize> {
        match self {
            Metric::Ndcg(k) | Metric::Err(k) | Metric::Map(k) | Metric::Mrr(k) => k,
            Metric::Precision(k) => Some(k),
        }
    }

    /// Whether labels enter as 2^y.
    pub fn is_exponential(self, gain: Gain) -> bool {
        matches!((self, gain), (Metric::Ndcg(_), Gain::Exp) | (Metric::Err(_), _))
    }

    /// The least label that makes a document relevant, where `None` stands for any above 0.
    fn relevant_from(self, conventions: &Conventions) -> Option<f32> {
        match self {
            Metric::Ndcg(_) | Metric::Err(_) => None,
            Metric::Map(_) | Metric::Mrr(_) | Metric::Precision(_) => Some(conventions.relevant_from),
        }
    }

    /// The value for one query, or `None` where it has no relevant document.
    ///
    /// `ranked` holds the labels of the judged documents from the best score down, at least as far as the
    /// cutoff; `ideal` those of the documents that an ideal ranking is made of, from the largest down;
    /// `max_grade` is the largest grade of ERR.
    pub fn of_query(
        self,
        ranked: &[f32],
        ideal: &[f32],
        conventions: &Conventions,
        max_grade: f32,
    ) -> Option<f64> {
        let relevant_from = self.relevant_from(conventions);
        let is_relevant = |&label: &f32| relevant_from.map_or(label > 0.0, |from| label >= from);
        if !ideal.first().is_some_and(is_relevant) {
            return None;
        }
        let top = |labels| first(labels, self.cutoff());
        Some(match self {
            Metric::Ndcg(_) => dcg(top(ranked), conventions.gain) / dcg(top(ideal), conventions.gain),
            Metric::Err(_) => expected_reciprocal_rank(top(ranked), max_grade),
            Metric::Map(k) => {
                let relevant = ideal.iter().take_while(|&label| is_relevant(label)).count();
                precision_sum(top(ranked), is_relevant) / relevant.min(k.unwrap_or(usize::MAX)) as f64
            }
            Metric::Mrr(_) => {
                top(ranked).iter().position(is_relevant).map_or(0.0, |index| 1.0 / (index + 1) as f64)
            }
            Metric::Precision(k) => {
                top(ranked).iter().filter(|&label| is_relevant(label)).count() as f64 / k as f64
            }
        })
    }
}

fn first(labels: &[f32], cutoff: Option<usize>) -> &[f32] {
    &labels[..labels.len().min(cutoff.unwrap_or(usize::MAX))]
}

/// Σ over ranks r of gain(y_r) / log2(r + 1).
fn dcg(labels: &[f32], gain: Gain) -> f64 {
    labels.iter().enumerate().map(|(index, &label)| gain.of(label) / ((index + 2) as f64).log2()).sum()
}

/// Σ over ranks r of 1/r · R_r · Π over i < r of (1 − R_i), with R = (2^y − 1) / 2^max_grade.
fn expected_reciprocal_rank(labels: &[f32], max_grade: f32) -> f64 {
    let mut unsatisfied = 1.0;
    let mut sum = 0.0;
    for (index, &label) in labels.iter().enumerate() {
        let satisfied = Gain::Exp.of(label) / f64::from(max_grade).exp2();
        sum += unsatisfied * satisfied / (index + 1) as f64;
        unsatisfied *= 1.0 - satisfied;
    }
    sum
}

/// Σ over the ranks r of relevant documents of the precision at r.
fn precision_sum(labels: &[f32], is_relevant: impl Fn(&f32) -> bool) -> f64 {
    let ranks = labels.iter().enumerate().filter(|&(_, label)| is_relevant(label));
    ranks.enumerate().map(|(before, (index, _))| (before + 1) as f64 / (index + 1) as f64).sum()
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Metric::Ndcg(_) => "ndcg",
            Metric::Err(_) => "err",
            Metric::Map(_) => "map",
            Metric::Mrr(_) => "mrr",
            Metric::Precision(_) => "p",
        })?;
        self.cutoff().map_or(Ok(()), |k| write!(f, "@{k}"))
    }
}

impl FromStr for Metric {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why: &str| {
            Error::config(format!(
                "`{text}` is no metric: {why}; there are ndcg, err, map, mrr, each also with a cutoff as in \
                 ndcg@10, and p@k"
            ))
        };
        let (name, cutoff) = match text.split_once('@') {
            None => (text, None),
            Some((name, k)) => match k.parse::<usize>() {
                Ok(k) if k > 0 => (name, Some(k)),
                _ => return Err(refuse("the cutoff must be a positive integer")),
            },
        };
        match (name.to_ascii_lowercase().as_str(), cutoff) {
            ("ndcg", k) => Ok(Metric::Ndcg(k)),
            ("err", k) => Ok(Metric::Err(k)),
            ("map", k) => Ok(Metric::Map(k)),
            ("mrr", k) => Ok(Metric::Mrr(k)),
            ("p" | "precision", Some(k)) => Ok(Metric::Precision(k)),
            ("p" | "precision", None) => Err(refuse("precision needs a cutoff")),
            _ => Err(refuse("the name is not known")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metric: &str, ranked: &[f32]) -> f64 {
        let mut ideal = ranked.to_vec();
        ideal.sort_by(|a, b| b.total_cmp(a));
        let metric: Metric = metric.parse().unwrap();
        metric.of_query(ranked, &ideal, &Conventions::default(), 4.0).unwrap()
    }

    fn assert_close(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-12, "{left} {right}");
    }

    #[test]
    fn values_by_hand() {
        let ranked = [0.0, 2.0, 1.0, 0.0, 3.0];
        let log2_3 = 3f64.log2();
        assert_close(value("ndcg@3", &ranked), (3.0 / log2_3 + 1.0 / 2.0) / (7.0 + 3.0 / log2_3 + 1.0 / 2.0));
        assert_close(
            value("ndcg", &ranked),
            (3.0 / log2_3 + 1.0 / 2.0 + 7.0 / 6f64.log2()) / (7.0 + 3.0 / log2_3 + 1.0 / 2.0),
        );
        assert_close(value("ndcg@1", &ranked), 0.0);
        assert_close(value("ndcg@99", &ranked), value("ndcg", &ranked));
        assert_close(value("map", &ranked), (1.0 / 2.0 + 2.0 / 3.0 + 3.0 / 5.0) / 3.0);
        assert_close(value("map@2", &ranked), (1.0 / 2.0) / 2.0);
        assert_close(value("mrr", &ranked), 0.5);
        assert_close(value("mrr@1", &ranked), 0.0);
        assert_close(value("p@3", &ranked), 2.0 / 3.0);
        // A list shorter than k keeps the denominator k.
        assert_close(value("precision@10", &ranked), 3.0 / 10.0);
        // ERR, equation 1 of Chapelle et al.: R = 3/16, 1/16, 7/16 at ranks 2, 3 and 5.
        assert_close(
            value("err", &ranked),
            (3.0 / 16.0) / 2.0
                + (13.0 / 16.0) * (1.0 / 16.0) / 3.0
                + (13.0 / 16.0) * (15.0 / 16.0) * (7.0 / 16.0) / 5.0,
        );
        assert_close(value("err@2", &ranked), (3.0 / 16.0) / 2.0);
        // A perfect list is 1 under every cutoff.
        for metric in ["ndcg@1", "ndcg@2", "ndcg@9", "map", "map@1", "map@9", "mrr", "p@1"] {
            assert_close(value(metric, &[4.0, 2.0, 0.5, 0.0]), 1.0);
        }
    }

    #[test]
    fn thresholds_and_gains() {
        let (ranked, ideal) = ([1.0, 2.0], [2.0, 1.0]);
        let from_2 = Conventions { relevant_from: 2.0, ..Conventions::default() };
        assert_eq!(Metric::Mrr(None).of_query(&ranked, &ideal, &from_2, 4.0), Some(0.5));
        assert_eq!(Metric::Mrr(None).of_query(&[1.0], &[1.0], &from_2, 4.0), None);
        assert_eq!(Metric::Ndcg(None).of_query(&[1.0], &[1.0], &from_2, 4.0), Some(1.0));
        let linear = Conventions { gain: Gain::Linear, ..Conventions::default() };
        let ndcg = Metric::Ndcg(None).of_query(&ranked, &ideal, &linear, 4.0).unwrap();
        let second = 1.0 / 3f64.log2();
        assert_close(ndcg, (1.0 + 2.0 * second) / (2.0 + second));
        for metric in [Metric::Ndcg(None), Metric::Err(None), Metric::Map(None), Metric::Precision(1)] {
            assert_eq!(metric.of_query(&[0.0, 0.0], &[0.0, 0.0], &linear, 4.0), None);
            assert_eq!(metric.of_query(&[], &[], &linear, 4.0), None);
        }
    }

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for name in ["ndcg", "ndcg@10", "err@10", "map", "map@3", "mrr", "p@5"] {
            assert_eq!(name.parse::<Metric>().unwrap().to_string(), name);
        }
        assert_eq!("Precision@5".parse::<Metric>().unwrap(), Metric::Precision(5));
        for (text, reason) in [
            ("auc", "the name is not known"),
            ("ndcg@0", "positive integer"),
            ("ndcg@-1", "positive integer"),
            ("ndcg@", "positive integer"),
            ("p", "needs a cutoff"),
        ] {
            let message = text.parse::<Metric>().unwrap_err().to_string();
            assert!(message.contains(reason) && message.contains("ndcg@10"), "{message}");
        }
    }
}
