//! The PTX interpreter against the definitions of its instructions, and what it must report.

mod arithmetic;
mod barriers;
mod compiler;
mod faults;
mod floats;
mod flow;
mod harness;
mod language;
mod memory;
mod modules;
mod warps;
mod wrappers;
