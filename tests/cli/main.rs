//! The commands, as a person calls them: one file a command or family.

mod bench;
mod common;
mod crossval;
mod devices;
mod eval;
mod gpu;
mod import;
mod importance;
mod rank;
mod train;
