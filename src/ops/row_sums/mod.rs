//! What gradients need on a GPU besides products: ReLU's backward pass, and sums over what all sets share.

pub mod check;
mod device;
mod plan;

pub use device::{add_repeats, relu_backward, sum_repeats};
pub use plan::{ReluBackwardPlan, RepeatsPlan};
