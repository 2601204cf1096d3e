//! Measuring how fast the model trains and scores on this machine: `setrank bench`.
//!
//! A [`Plan`] says what is measured; [`run`](Plan::run) makes one batch up and takes the same step on it again and
//! again: for training the step of the trainer, for scoring the forward pass of the scorer. The [`Report`] holds
//! documents a second, operations a second, their share of what a large product of matrices reaches in the same
//! process, memory, and allocations; of a GPU also the share of its [`floor`], launches, and the time of each kernel. The batch may
//! be [handed over](hand_over) padded; [`latency`] is that of single queries.

pub mod ablation;
pub mod allocations;
pub mod chart;
pub mod floor;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod hand_over;
pub mod latency;
pub mod machine;
pub mod peak;
pub mod plan;
pub mod report;
pub mod sizes;
pub mod sweep;
mod trial;

pub use hand_over::{HandOver, Layout};
pub use latency::Latencies;
pub use plan::{Mode, Plan};
pub use report::{Report, largest};
pub use sizes::SizeSource;
pub use sweep::{Growth, Sweep};
