//! The emulator: its functions, what it reports, what it counts, and how it runs what a test compiles. One program, so that it
//! is linked once.

mod common;
mod counters;
mod kernels_changed;
mod misuse;
mod misuse_cluster;
mod misuse_wgmma;
mod names;
mod primitives;
mod sanitizers;
mod schedules;
mod sums;
#[path = "../../../gpu/src/vectors/mod.rs"]
mod vectors;
