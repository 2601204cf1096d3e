//! SetRank: the table of its parameters, and its forward and backward pass over a ragged batch.

pub mod block;
pub mod device;
pub mod embedding;
pub mod flops;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod layout;
pub mod mab;
pub mod memory;
pub mod network;
pub mod packed;
pub mod scorer;
pub mod setrank;

pub use layout::{ParamLayout, Parameter};
pub use setrank::{Inputs, SetRank, Workspace};
