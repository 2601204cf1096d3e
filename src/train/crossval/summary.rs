//! What the scores of all folds and seeds amount to.

use std::fmt;

use serde::Serialize;

use crate::Result;
use crate::data::Dataset;
use crate::eval::ensemble::mean_of_standardised;
use crate::eval::report::{as_map, figure};
use crate::eval::{self, Conventions, Evaluation, Metric, evaluate};

/// Scores of the part of one fold that is measured on.
pub struct FoldScores<'a> {
    /// Number of the fold, from 1.
    pub fold: usize,
    /// The part.
    pub data: &'a Dataset,
    /// Of each seed, `[N]` by row; the same seeds in every fold.
    pub seeds: Vec<Vec<f32>>,
    /// The rows that the models reranked; `None` = all.
    pub kept: Option<Vec<bool>>,
}

/// Means over the queries of each fold and of all folds together; displays as a table.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Fold by fold.
    pub folds: Vec<Row>,
    /// All queries of all folds.
    pub all: Row,
}

/// Means over some queries.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The fold, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fold: Option<usize>,
    /// All queries, those included that do not count.
    pub queries: usize,
    /// Models whose scores the ensemble takes.
    pub seeds: usize,
    /// Each metric, in the order asked for.
    #[serde(serialize_with = "as_map")]
    pub metrics: Vec<(Metric, Figures)>,
}

/// One metric over some queries; NaN (in JSON null) where there are too few.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The mean over the queries of each query's mean over the seeds, and its standard error over the queries.
    #[serde(flatten)]
    pub one: eval::Summary,
    /// Standard deviation over the seeds of their means over the queries.
    pub seed_deviation: f64,
    /// The same of the ensemble of the seeds.
    pub ensemble: eval::Summary,
}

impl Summary {
    /// Evaluates `folds`, at least one, by `metrics` under `conventions`.
    pub fn new(folds: &[FoldScores<'_>], metrics: &[Metric], conventions: &Conventions) -> Result<Self> {
        let measured =
            folds.iter().map(|fold| Measured::of(fold, metrics, conventions)).collect::<Result<Vec<_>>>()?;
        let row = |fold: Option<usize>, of: &[Measured]| Row {
            fold,
            queries: of.iter().map(|m| m.ensemble.num_queries()).sum(),
            seeds: of[0].seeds.len(),
            metrics: metrics.iter().enumerate().map(|(m, &metric)| (metric, figures(of, m))).collect(),
        };
        Ok(Summary {
            folds: folds
                .iter()
                .zip(&measured)
                .map(|(fold, measured)| row(Some(fold.fold), std::slice::from_ref(measured)))
                .collect(),
            all: row(None, &measured),
        })
    }
}

/// The evaluations of one fold.
struct Measured {
    seeds: Vec<Evaluation>,
    ensemble: Evaluation,
}

impl Measured {
    fn of(fold: &FoldScores<'_>, metrics: &[Metric], conventions: &Conventions) -> Result<Self> {
        let of = |scores: &[f32]| evaluate(fold.data, scores, None, metrics, conventions);
        // What was not reranked stays below in each model's scores; the ensemble is told so.
        let mut mean = mean_of_standardised(fold.data, &fold.seeds, fold.kept.as_deref());
        if let Some(kept) = &fold.kept {
            crate::data::initial::rank_dropped_below(fold.data, kept, &mut mean);
        }
        Ok(Measured {
            seeds: fold.seeds.iter().map(|scores| of(scores)).collect::<Result<_>>()?,
            ensemble: of(&mean)?,
        })
    }
}

fn figures(folds: &[Measured], metric: usize) -> Figures {
    let num_seeds = folds[0].seeds.len();
    // Whether a query counts does not depend on the scores.
    let of_query = |fold: &Measured, query: usize| {
        let sum: Option<f64> = fold.seeds.iter().map(|seed| seed.of_query(query)[metric]).sum();
        sum.map(|sum| sum / num_seeds as f64)
    };
    let means: Vec<f64> = folds
        .iter()
        .flat_map(|fold| (0..fold.ensemble.num_queries()).filter_map(move |query| of_query(fold, query)))
        .collect();
    let of_seed = |seed: usize| {
        eval::Summary::of(folds.iter().flat_map(|fold| fold.seeds[seed].of_metric(metric)).flatten()).mean
    };
    let seeds = eval::Summary::of((0..num_seeds).map(of_seed));
    Figures {
        one: eval::Summary::of(means.into_iter()),
        // The standard error of the seeds' mean is their deviation over √n.
        seed_deviation: seeds.std_error * (num_seeds as f64).sqrt(),
        ensemble: eval::Summary::of(folds.iter().flat_map(|fold| fold.ensemble.of_metric(metric)).flatten()),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<22} {:>7}", "", "queries")?;
        for (metric, _) in &self.all.metrics {
            write!(f, " {:>16}", metric.to_string())?;
        }
        writeln!(f)?;
        for row in self.folds.iter().chain([&self.all]) {
            let name = row.fold.map_or("all folds".to_owned(), |fold| format!("fold {fold}"));
            row.line(f, &name, |figures| with_error(figures.one))?;
            if row.seeds > 1 {
                row.line(f, &format!("  ensemble of {}", row.seeds), |figures| with_error(figures.ensemble))?;
            }
        }
        if self.all.seeds > 1 {
            self.all.line(f, "  deviation of seeds", |figures| figure(figures.seed_deviation, 0))?;
        }
        Ok(())
    }
}

impl Row {
    fn line(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        value: impl Fn(&Figures) -> String,
    ) -> fmt::Result {
        write!(f, "{name:<22} {:>7}", self.queries)?;
        for (_, figures) in &self.metrics {
            write!(f, " {:>16}", value(figures))?;
        }
        writeln!(f)
    }
}

fn with_error(summary: eval::Summary) -> String {
    format!("{} ± {}", figure(summary.mean, 0), figure(summary.std_error, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DatasetBuilder, Document};

    /// Queries of two documents, the first of which is relevant; the last query has none.
    fn part(queries: usize) -> Dataset {
        let mut builder = DatasetBuilder::new(0);
        for query in 0..=queries {
            builder.start_query(query.to_string());
            for label in [f32::from(u8::from(query < queries)), 0.0] {
                builder.push(Document { label: Some(label), ..Document::default() });
            }
        }
        builder.finish()
    }

    /// Scores that rank the first document first where `right`.
    fn scores(right: &[bool]) -> Vec<f32> {
        right.iter().flat_map(|&right| if right { [2.0, 1.0] } else { [1.0, 2.0] }).collect()
    }

    #[test]
    fn means_errors_and_deviations() {
        let (one, two) = (part(2), part(1));
        let folds = [
            FoldScores {
                fold: 1,
                data: &one,
                seeds: vec![scores(&[true, false, true]), scores(&[true, true, true])],
                kept: None,
            },
            FoldScores {
                fold: 2,
                data: &two,
                seeds: vec![scores(&[true, true]), scores(&[false, true])],
                kept: None,
            },
        ];
        let summary = Summary::new(&folds, &[Metric::Precision(1)], &Conventions::default()).unwrap();
        let figures = |row: &Row| row.metrics[0].1;
        // Query means 1, ½ and ½.
        let all = figures(&summary.all);
        assert!((all.one.mean - 2.0 / 3.0).abs() < 1e-12 && all.one.queries == 3);
        assert!((all.one.std_error - 1.0 / 6.0).abs() < 1e-12);
        // Both seeds have two of three right.
        assert_eq!((all.seed_deviation, summary.all.queries), (0.0, 5));
        let first = figures(&summary.folds[0]);
        assert_eq!((first.one.mean, first.ensemble.queries), (0.75, 2));
        assert!((first.seed_deviation - 0.125f64.sqrt()).abs() < 1e-12);
        let table = summary.to_string();
        for text in ["fold 2", "ensemble of 2", "0.6667 ± 0.1667", "deviation of seeds"] {
            assert!(table.contains(text), "{table}");
        }
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["folds"][0]["metrics"]["p@1"]["mean"], 0.75);
    }
}
