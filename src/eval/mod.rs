//! How good a ranking is, and whether one is better than another.
//!
//! Flow: scores ([`scores`]) → a value a query and metric ([`mod@evaluate`], by the formulas of [`metrics`] under
//! the [`conventions`] chosen) → means ([`report`]) or the paired difference of two rankings ([`comparison`],
//! tested as in [`significance`]). [`ensemble`] makes one ranking of several models.

pub mod comparison;
pub mod conventions;
pub mod ensemble;
pub mod evaluate;
pub mod importance;
pub mod metrics;
pub mod report;
pub mod scores;
pub mod significance;

pub use conventions::{Conventions, EmptyQueries, Gain, Ideal};
pub use evaluate::{Evaluation, Summary, evaluate, mean_ndcg};
pub use metrics::Metric;
