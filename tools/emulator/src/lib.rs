//! Runs setrank's CUDA kernels on the CPU, for its tests.
//!
//! Two ways, which share nothing but the [`launch::Launch`] that they run:
//!
//! - [`emulate::run`] runs the kernels' sources, compiled as C++ against `include/emulator`, which supplies the names of
//!   `kernels/ptx.cuh`; each CUDA thread is a fiber. It gives [`emulate::Counters`], or an [`emulate::Report`] of what the
//!   kernel did wrong. [`sanitize::Program`] runs it once more with its kernels compiled for the compiler's sanitizers,
//!   [`kernels::Sources`] compiles kernels into which a test has planted a bug.
//! - [`ptx::Module`] interprets the PTX that nvcc makes of the same sources, inline assembly included.
//!
//! [`driver`] is a mock `libcuda.so` over the emulator, for the host path.

pub mod compile;
pub mod driver;
pub mod emulate;
mod ffi;
pub mod kernels;
pub mod launch;
mod memory;
pub mod ptx;
pub mod sanitize;
