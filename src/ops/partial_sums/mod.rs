//! Sums of parts on a GPU: the second step of every sum over rows there, always in the same order.

pub mod check;
mod device;
mod pending;
mod plan;

pub use device::{SumOfParts, partial_sums};
pub use pending::PendingSums;
pub use plan::PartialSumsPlan;
