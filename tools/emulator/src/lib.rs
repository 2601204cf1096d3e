//! Runs setrank's CUDA kernels on the CPU, for its tests.

pub mod launch;
pub mod ptx;
