//! Rows of a matrix by their numbers, on a GPU: a batch of features that stay there.

pub mod check;
mod device;
mod plan;

pub use device::{DeviceFeatureDropout, RowNumbers, gather_rows};
pub use plan::GatherPlan;
