//! Choices on which evaluators differ, and which move the figures by points.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What a query without a relevant document counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EmptyQueries {
    /// 0, and counted (the evaluator of MSLR-WEB and of the SetRank paper).
    Zero,
    /// 1, and counted (LightGBM, XGBoost).
    One,
    /// Left out of the mean.
    #[default]
    Skip,
}

/// What the ideal ranking is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Ideal {
    /// All judged documents of the query.
    #[default]
    Full,
    /// Only those that were kept for reranking.
    List,
}

/// What a label y is worth in NDCG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Gain {
    /// 2^y − 1
    #[default]
    Exp,
    /// y
    Linear,
}

impl Gain {
    /// The gain of a label of 0 or more.
    #[inline]
    pub fn of(self, label: f32) -> f64 {
        match self {
            Gain::Exp => f64::from(label).exp2() - 1.0,
            Gain::Linear => f64::from(label),
        }
    }
}

/// The conventions under which metrics are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conventions {
    /// Queries without a relevant document.
    pub empty_queries: EmptyQueries,
    /// What the ideal ranking of NDCG, and the number of relevant documents in MAP, are taken from.
    pub ideal: Ideal,
    /// Gain of NDCG.
    pub gain: Gain,
    /// Least label that is relevant to MAP, MRR and precision; positive.
    pub relevant_from: f32,
    /// Largest grade of ERR; `None` = the larger of 4 and the largest label.
    pub max_grade: Option<f32>,
}

impl Default for Conventions {
    fn default() -> Self {
        Conventions {
            empty_queries: EmptyQueries::default(),
            ideal: Ideal::default(),
            gain: Gain::default(),
            relevant_from: 1.0,
            max_grade: None,
        }
    }
}

impl Conventions {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<()> {
        if !(self.relevant_from.is_finite() && self.relevant_from > 0.0) {
            return Err(Error::config(format!(
                "relevant-from must be a positive label, not {}",
                self.relevant_from
            )));
        }
        match self.max_grade {
            Some(grade) if !(grade > 0.0 && grade <= super::metrics::MAX_EXPONENT) => {
                Err(Error::config(format!("max-grade must be above 0 and at most 31, not {grade}")))
            }
            _ => Ok(()),
        }
    }
}
