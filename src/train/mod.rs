//! Training: configuration, optimiser, the loop, checkpoints and logs.

pub mod average;
pub mod checkpoint;
pub mod config;
pub mod crossval;
pub mod epoch;
pub mod learner;
pub mod log;
pub mod optimizer;
pub mod state;
pub mod trainer;

pub use checkpoint::Checkpoint;
pub use config::TrainConfig;
pub use learner::{CpuLearner, Learner};
pub use trainer::Trainer;
