//! Runs setrank's CUDA kernels on the CPU, for its tests.
//!
//! Two ways, which share nothing but the [`launch::Launch`] that they run:
//!
//! - [`emulate::run`] runs the kernels' sources, compiled as C++ against `include/emulator`, which supplies the names of
//!   `kernels/ptx.cuh`; each CUDA thread is a fiber. It gives [`emulate::Counters`], or an [`emulate::Report`] of what the
//!   kernel did wrong.
//! - [`ptx::Module`] interprets the PTX that nvcc makes of the same sources, inline assembly included.

pub mod compile;
pub mod emulate;
mod ffi;
pub mod kernels;
pub mod launch;
pub mod ptx;
