//! The kernels: on the emulator and in the PTX interpreter, with planted bugs, through the driver's interface; what nvcc
//! made of them, their sources, and the logic of build.rs.

mod attention;
mod build_script;
mod built;
mod counters;
mod cubin;
mod family;
mod host;
mod ladder;
mod resources;
mod sass;
mod sources;
