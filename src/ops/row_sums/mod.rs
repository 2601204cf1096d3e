//! What gradients need on a GPU besides products: ReLU's backward pass, and sums over the sets of the
//! gradients of what they share.

pub mod check;
mod device;
mod plan;

pub use device::{Repeats, relu_backward, sum_repeats};
pub use plan::{ReluBackwardPlan, RepeatsPlan};
