//! The library on the processor: operations, gradients, the model, training. One program, as each would compile the model
//! anew.

mod equivariance;
mod gradients;
mod layouts;
mod ops;
mod pytorch;
mod training;
