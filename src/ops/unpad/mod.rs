//! The documents of batches in grids, padded or masked, as rows of their own on a GPU.

pub mod check;
mod device;
mod plan;

pub use device::{DeviceGrid, unpad};
pub use plan::{UnpadPlan, UnpadShape};
