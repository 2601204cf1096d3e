//! The score of each document on a GPU: a linear layer with one output.

pub mod check;
mod device;
mod plan;

pub use device::{score_backward, score_forward};
pub use plan::{ScorePlan, score_scratch_len};
