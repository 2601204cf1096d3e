//! Runs the PTX that nvcc emits: the second oracle for kernels, since it executes the `asm` texts that the emulator
//! replaces by functions of its own.
//!
//! It knows what nvcc 13.0 emits for compute_80. Each warp's lanes run in lock step and come together again where the
//! code does; blocks run one after the other. Besides what cards would trap it faults on reads of registers and of shared
//! memory that nothing wrote, on asynchronous copies that are not waited for, and on warp-wide instructions without the
//! whole warp. Approximate functions are correctly rounded, and sums of matrix products are kept in f64.
//!
//! Not known, and so refused when a module is parsed: sm_90's instructions, carries (`add.cc`), directed roundings of
//! f64, recursive and indirect calls, variables of the module that point to others. Threads may end early, so a barrier
//! that some lanes of a warp skip can pass unnoticed where those run to the end before the others come to it.

mod access;
mod block;
mod collective;
mod compare;
mod control;
mod convert;
mod coverage;
mod decode;
mod error;
mod execute;
mod float;
mod floating;
mod flow;
mod integer;
mod lanes;
mod lexer;
mod logic;
mod memory;
mod module;
mod moves;
mod parser;
mod program;
mod syntax;
mod types;
mod warp;

pub use coverage::{Coverage, Executed};
pub use error::{Fault, FaultKind, ParseError, Place};
pub use module::{Module, Options};
