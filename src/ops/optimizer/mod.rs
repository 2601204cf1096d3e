//! Adam on a GPU: the norm of the gradients, a step of the parameters, and their copy in bf16.

pub mod check;
mod device;
mod plan;

pub use device::{DeviceWeights, adam_step, gradient_norm, round_parameters};
pub use plan::{AdamStep, OptimizerPlan, gradient_norm_scratch_len};
