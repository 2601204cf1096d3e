//! What an evaluation says: as JSON, as a table, and query by query.

use std::fmt;
use std::path::Path;

use serde::{Serialize, Serializer};

use super::conventions::{Conventions, EmptyQueries, Gain, Ideal};
use super::evaluate::{Evaluation, Summary};
use super::metrics::Metric;
use crate::Result;
use crate::data::Dataset;
use crate::files::write_atomically;

/// Means of an evaluation and the conventions behind them.
///
/// Serialises to `{"queries", "empty_queries", "ideal", "metrics": {"ndcg@10": {"mean", "std_error",
/// "queries"}}}`; displays as a table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// All queries of the data.
    pub queries: usize,
    /// What queries without a relevant document counted as.
    pub empty_queries: EmptyQueries,
    /// What the ideal rankings were made of.
    pub ideal: Ideal,
    /// The mean of each metric, in the order asked for.
    #[serde(serialize_with = "as_map")]
    pub metrics: Vec<(Metric, Summary)>,
    #[serde(skip)]
    conventions: Conventions,
}

/// Serialises metrics as an object that keeps their order.
pub fn as_map<T: Serialize, S: Serializer>(
    metrics: &[(Metric, T)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|(metric, value)| (metric.to_string(), value)))
}

impl Report {
    /// The means of `evaluation`, made under `conventions`.
    pub fn new(evaluation: &Evaluation, conventions: &Conventions) -> Self {
        let summaries = evaluation.metrics().iter().enumerate();
        Report {
            queries: evaluation.num_queries(),
            empty_queries: conventions.empty_queries,
            ideal: conventions.ideal,
            metrics: summaries.map(|(index, &metric)| (metric, evaluation.summary(index))).collect(),
            conventions: *conventions,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<10} {:>8} {:>10} {:>8}  conventions", "metric", "mean", "std. error", "queries")?;
        for (metric, summary) in &self.metrics {
            writeln!(
                f,
                "{:<10} {} {} {:>8}  {}",
                metric.to_string(),
                figure(summary.mean, 8),
                figure(summary.std_error, 10),
                summary.queries,
                describe(*metric, &self.conventions)
            )?;
        }
        Ok(())
    }
}

/// `value` with four decimals, right-aligned; a dash where there is none. What rounds to 0 has no sign.
pub fn figure(value: f64, width: usize) -> String {
    let digits = if value.is_nan() { "-".to_owned() } else { format!("{value:.4}") };
    let digits = if digits == "-0.0000" { &digits[1..] } else { &digits };
    format!("{digits:>width$}")
}

/// The conventions that bear on `metric`, in a few words.
pub fn describe(metric: Metric, conventions: &Conventions) -> String {
    let empty = match conventions.empty_queries {
        EmptyQueries::Zero => "empty queries: zero",
        EmptyQueries::One => "empty queries: one",
        EmptyQueries::Skip => "empty queries: skip",
    };
    let ideal = match conventions.ideal {
        Ideal::Full => "ideal: full",
        Ideal::List => "ideal: list",
    };
    let gain = match conventions.gain {
        Gain::Exp => "gain: exp",
        Gain::Linear => "gain: linear",
    };
    let relevant = format!("relevant from: {}", conventions.relevant_from);
    match metric {
        Metric::Ndcg(_) => format!("{empty}, {ideal}, {gain}"),
        Metric::Map(_) => format!("{empty}, {ideal}, {relevant}"),
        Metric::Mrr(_) | Metric::Precision(_) => format!("{empty}, {relevant}"),
        Metric::Err(_) => match conventions.max_grade {
            Some(grade) => format!("{empty}, max grade: {grade}"),
            None => format!("{empty}, max grade: of the data, at least 4"),
        },
    }
}

/// Writes `evaluation` of `data` query by query, tab-separated: `qid`, `documents`, one column a metric;
/// `NA` where a query does not count.
pub fn write_per_query(path: &Path, data: &Dataset, evaluation: &Evaluation) -> Result<()> {
    write_atomically(path, |out| {
        write!(out, "qid\tdocuments")?;
        for metric in evaluation.metrics() {
            write!(out, "\t{metric}")?;
        }
        writeln!(out)?;
        for query in data.queries() {
            write!(out, "{}\t{}", query.id(), query.len())?;
            for value in evaluation.of_query(query.index()) {
                match value {
                    Some(value) => write!(out, "\t{value}")?,
                    None => write!(out, "\tNA")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DatasetBuilder, Document};
    use crate::eval::evaluate;

    #[test]
    fn figures_are_rounded() {
        for (value, digits) in [
            (0.12346, " 0.1235"),
            (-0.12346, "-0.1235"),
            (-0.00004, " 0.0000"),
            (-0.0, " 0.0000"),
            (-0.00006, "-0.0001"),
            (f64::NAN, "      -"),
        ] {
            assert_eq!(figure(value, 7), digits);
        }
    }

    #[test]
    fn json_table_and_file() {
        let mut builder = DatasetBuilder::new(0);
        for (query, labels) in [("7", [1.0, 0.0]), ("8", [0.0, 0.0]), ("9", [0.0, 1.0])] {
            builder.start_query(query);
            for label in labels {
                builder.push(Document { label: Some(label), ..Document::default() });
            }
        }
        let data = builder.finish();
        let conventions = Conventions::default();
        let metrics = [Metric::Precision(1), Metric::Map(None)];
        let evaluation = evaluate(&data, &[0.0f32; 6], None, &metrics, &conventions).unwrap();
        let report = Report::new(&evaluation, &conventions);
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"queries":3,"empty_queries":"skip","ideal":"full","metrics":{"p@1":{"mean":0.5,"std_error":0.5,"queries":2},"map":{"mean":0.75,"std_error":0.25,"queries":2}}}"#
        );
        assert_eq!(
            report.to_string(),
            "metric         mean std. error  queries  conventions\n\
             p@1          0.5000     0.5000        2  empty queries: skip, relevant from: 1\n\
             map          0.7500     0.2500        2  empty queries: skip, ideal: full, relevant from: 1\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("per-query.tsv");
        write_per_query(&path, &data, &evaluation).unwrap();
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "qid\tdocuments\tp@1\tmap\n7\t2\t1\t1\n8\t2\tNA\tNA\n9\t2\t0\t0.5\n"
        );
    }
}
