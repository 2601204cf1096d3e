//! Runs setrank's CUDA kernels on the CPU, for its tests.
//!
//! The kernels' sources are compiled as C++ against `include/emulator`, which supplies the names of `kernels/ptx.cuh`;
//! each CUDA thread is a fiber. [`emulate::run`] runs a [`launch::Launch`] and gives [`emulate::Counters`], or an
//! [`emulate::Report`] of what the kernel did wrong. [`sanitize::Program`] runs it once more with its kernels compiled
//! for the compiler's sanitizers, [`kernels::Sources`] compiles kernels into which a test has planted a bug.

pub mod compile;
pub mod driver;
pub mod emulate;
mod ffi;
pub mod kernels;
pub mod launch;
mod memory;
pub mod sanitize;
