//! Training: optimiser, schedule, trainer, checkpoints and logs.

pub mod checkpoint;
pub mod log;
pub mod optimizer;

pub use checkpoint::Checkpoint;
