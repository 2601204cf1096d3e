//! LayerNorm of a residual sum and the linear layer behind it on a GPU: one kernel where rows are few, and else two.

pub mod check;
mod device;
mod plan;

pub use device::{NormForward, norm_linear_forward, norm_linear_forward_by};
pub use plan::NormLinearPlan;
