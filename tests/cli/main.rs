//! The commands, as a person calls them: one file a command or family.

mod bench;
mod common;
mod eval;
mod import;
mod rank;
mod train;
