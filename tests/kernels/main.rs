//! The kernels: on the emulator and in the PTX interpreter, with planted bugs, through the driver's interface; what nvcc
//! made of them, their sources, and the logic of build.rs. What needs the emulator is left out on machines that it does not
//! run on.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod attention;
mod build_script;
mod built;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod counters;
mod cubin;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod family;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod host;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod ladder;
mod resources;
mod sass;
mod sources;
