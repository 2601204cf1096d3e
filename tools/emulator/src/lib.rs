//! Runs setrank's CUDA kernels on the CPU, for its tests.
//!
//! The kernels' sources are compiled as C++ against `include/emulator`, which supplies the names of `kernels/ptx.cuh`; each
//! CUDA thread is a fiber. [`emulate::run`] runs a [`launch::Launch`] and gives [`emulate::Counters`], or an
//! [`emulate::Report`] of what the kernel did wrong.

pub mod compile;
pub mod emulate;
mod ffi;
pub mod kernels;
pub mod launch;
pub mod sanitize;
