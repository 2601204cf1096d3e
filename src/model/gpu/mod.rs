//! The model on a GPU: the schedule of `model/*.rs` over the kernels' launchers, with the same files, names and order.
//!
//! | file | what it holds |
//! |---|---|
//! | [`limits`] | which models the kernels compute |
//! | [`parameters`] | the table of parameters as kernels read it |
//! | [`batch`] | what the model reads of a batch |
//! | [`resident`], [`grids`] | features that stay on the GPU: of a data set, and of a batch with padding |
//! | [`activations`] | the buffers of a pass |
//! | [`sizes`] | how many bytes they take, as a formula |
//! | `room` | memory for one batch after the other |
//! | [`scorer`] | scores of a data set's batches |
//! | `flow` | the gradient between blocks, and what of it is yet to be computed |
//! | `setrank`, `embedding`, `block`, `mab`, `network` | forward, and backward below it, as on the processor |
//!
//! Rows are stored in bf16; sums, scores, losses and parameters in f32. A pass only queues work.

pub mod activations;
pub mod batch;
mod block;
mod embedding;
mod flow;
pub mod grids;
pub mod limits;
mod mab;
mod network;
pub mod parameters;
pub mod resident;
pub(crate) mod room;
pub mod scorer;
mod setrank;
pub mod sizes;

pub use activations::{Activations, Losses, Scratch};
pub use batch::{DeviceBatch, Kept, Source};
pub use grids::Grids;
pub use parameters::{Layouts, Parameters};
pub use resident::Resident;
pub use room::Room;
pub use scorer::{GpuScorer, Scoring};
pub use setrank::{GpuSetRank, Target};
pub use sizes::Extent;
