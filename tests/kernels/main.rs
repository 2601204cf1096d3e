//! What nvcc made of the kernels, their sources, and the logic of build.rs.

mod build_script;
mod built;
mod cubin;
mod resources;
mod sass;
mod sources;
