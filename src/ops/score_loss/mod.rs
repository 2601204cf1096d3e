//! The score head, the losses of sets and both gradients in one kernel on a GPU, where that pays.

pub mod check;
mod device;
mod plan;

pub use device::{ScoreLossResults, score_losses};
pub use plan::{ScoreLossPlan, score_loss_scratch_len};
