//! Options for the conventions of evaluation, for every command that evaluates.

use setrank::eval::{Conventions, EmptyQueries, Gain, Ideal, Metric};

/// The conventions of evaluation.
#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Conventions of evaluation")]
pub struct MetricArgs {
    /// What a query without a relevant document counts as
    #[arg(long, value_name = "AS", default_value = "skip")]
    pub empty_queries: EmptyQueries,

    /// What the ideal ranking is made of
    #[arg(long, value_name = "OF", default_value = "full")]
    pub ideal: Ideal,

    /// What a label is worth in NDCG
    #[arg(long, default_value = "exp")]
    pub gain: Gain,

    /// Least label that is relevant to MAP, MRR and precision
    #[arg(long, value_name = "LABEL", default_value_t = 1.0)]
    pub relevant_from: f32,

    /// Largest grade of ERR [default: 4, or the largest label if that is more]
    #[arg(long, value_name = "LABEL")]
    pub max_grade: Option<f32>,
}

/// The metrics in their order, each once.
pub fn distinct(metrics: Vec<Metric>) -> Vec<Metric> {
    let mut seen = std::collections::HashSet::new();
    metrics.into_iter().filter(|metric| seen.insert(*metric)).collect()
}

impl MetricArgs {
    /// The conventions, checked.
    pub fn conventions(&self) -> setrank::Result<Conventions> {
        let conventions = Conventions {
            empty_queries: self.empty_queries,
            ideal: self.ideal,
            gain: self.gain,
            relevant_from: self.relevant_from,
            max_grade: self.max_grade,
        };
        conventions.validate()?;
        Ok(conventions)
    }
}
