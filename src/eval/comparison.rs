//! Two rankings of the same queries, metric by metric.

use std::fmt;

use serde::Serialize;

use super::conventions::{Conventions, EmptyQueries, Ideal};
use super::evaluate::Evaluation;
use super::metrics::Metric;
use super::report::{as_map, describe, figure};
use super::significance::{paired_t_test, randomization_test};

/// How ranking B differs from ranking A; displays as a table.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// All queries of the data.
    pub queries: usize,
    /// What queries without a relevant document counted as.
    pub empty_queries: EmptyQueries,
    /// What the ideal rankings were made of.
    pub ideal: Ideal,
    /// Seed of the randomisation test.
    pub seed: u64,
    /// The difference in each metric, in the order asked for.
    #[serde(serialize_with = "as_map")]
    pub metrics: Vec<(Metric, Difference)>,
    #[serde(skip)]
    conventions: Conventions,
}

/// The paired difference in one metric; NaN (in JSON null) where too few queries count.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Difference {
    /// Mean of A.
    pub a: f64,
    /// Mean of B.
    pub b: f64,
    /// B − A.
    pub difference: f64,
    /// 95 % confidence interval of the difference, by Student's t.
    pub interval: (f64, f64),
    /// Queries in which B is better.
    pub wins: usize,
    /// Queries in which they are equal.
    pub ties: usize,
    /// Queries in which A is better.
    pub losses: usize,
    /// Queries that count.
    pub queries: usize,
    /// Two-sided p-value of the paired t-test.
    pub t_test_p: f64,
    /// Two-sided p-value of the paired randomisation test.
    pub randomization_p: f64,
}

impl Comparison {
    /// Compares evaluations of the same data by the same metrics under the same `conventions`.
    ///
    /// # Panics
    /// If the metrics or the numbers of queries differ.
    pub fn new(a: &Evaluation, b: &Evaluation, conventions: &Conventions, seed: u64) -> Self {
        assert_eq!((a.metrics(), a.num_queries()), (b.metrics(), b.num_queries()));
        let difference = |(index, &metric): (usize, &Metric)| {
            let pairs = a.of_metric(index).zip(b.of_metric(index));
            (metric, Difference::of(&pairs.filter_map(|(a, b)| Some((a?, b?))).collect::<Vec<_>>(), seed))
        };
        Comparison {
            queries: a.num_queries(),
            empty_queries: conventions.empty_queries,
            ideal: conventions.ideal,
            seed,
            metrics: a.metrics().iter().enumerate().map(difference).collect(),
            conventions: *conventions,
        }
    }
}

impl Difference {
    fn of(pairs: &[(f64, f64)], seed: u64) -> Self {
        let mean =
            |values: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(values).sum::<f64>() / pairs.len() as f64;
        let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
        let wins = differences.iter().filter(|&&d| d > 0.0).count();
        let losses = differences.iter().filter(|&&d| d < 0.0).count();
        let t_test = paired_t_test(&differences);
        Difference {
            a: mean(&|pair| pair.0),
            b: mean(&|pair| pair.1),
            difference: mean(&|pair| pair.1 - pair.0),
            interval: t_test.interval,
            wins,
            ties: pairs.len() - wins - losses,
            losses,
            queries: pairs.len(),
            t_test_p: t_test.p,
            randomization_p: randomization_test(&differences, seed),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:>7} {:>7} {:>8} {:>18} {:>17} {:>8} {:>9} {:>9}  conventions",
            "metric",
            "A",
            "B",
            "B - A",
            "95 % interval",
            "wins/ties/losses",
            "queries",
            "p t-test",
            "p random."
        )?;
        for (metric, d) in &self.metrics {
            writeln!(
                f,
                "{:<10} {} {} {} {:>18} {:>17} {:>8} {} {}  {}",
                metric.to_string(),
                figure(d.a, 7),
                figure(d.b, 7),
                figure(d.difference, 8),
                format!("{} to {}", figure(d.interval.0, 0), figure(d.interval.1, 0)),
                format!("{}/{}/{}", d.wins, d.ties, d.losses),
                d.queries,
                figure(d.t_test_p, 9),
                figure(d.randomization_p, 9),
                describe(*metric, &self.conventions)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_of_b_over_a() {
        let d = Difference::of(&[(0.5, 1.0), (0.5, 0.5), (0.25, 0.5), (1.0, 0.5)], 1);
        assert_eq!((d.a, d.b, d.difference), (0.5625, 0.625, 0.0625));
        assert_eq!((d.wins, d.ties, d.losses, d.queries), (2, 1, 1, 4));
        // Every flip of ½, ¼ and −½ sums to at least ¼.
        assert_eq!(d.randomization_p, 1.0);
        assert!(d.interval.0 < 0.0 && d.interval.1 > 0.0 && d.t_test_p > 0.5);
        assert!(Difference::of(&[], 1).difference.is_nan());
    }
}
