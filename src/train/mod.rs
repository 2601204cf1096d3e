//! Training: optimiser, schedule, trainer, checkpoints and logs.

pub mod checkpoint;
pub mod optimizer;

pub use checkpoint::Checkpoint;
