//! NVIDIA GPUs, reached through the CUDA driver: what there is, memory on it, kernels and their launches.
//!
//! | file | what it holds |
//! |---|---|
//! | [`probe`] | which devices there are, and why one cannot be used |
//! | [`choice`] | what can be asked to compute: a device, and which kernels |
//! | [`error`] | what goes wrong, in words |
//! | [`limits`], [`plan`] | what a card allows, and how a kernel is launched: pure, tested without a card |
//! | `gpu` | a device in use: context, stream, events, copies, launches |
//! | `driver` | the driver: whether it is there, what it shows, what its errors say |
//! | `graph` | what a stream is given, recorded and launched in one piece |
//! | `launched` | the newest launch, for failures that show later |
//! | `kernels` | the code in `kernels/*.cu`, and its lookup by name |
//! | `memory` | arenas, typed buffers in them, and room for packages |
//! | `tensor_map` | matrices as kernels copy boxes of them |
//! | `operands` | what every launcher checks of its buffers |
//! | `staging`, `uploads`, `downloads` | pinned host memory, and copies by way of it that nobody waits for |
//! | `profile` | time of kernels |
//! | `abi` | the structs and constants of `kernels/*.h` |
//!
//! Without the feature `cuda` only the first five are built, and [`probe`] says so.

pub mod choice;
pub mod error;
pub mod limits;
pub mod plan;
pub mod probe;

#[cfg(feature = "cuda")]
pub mod abi;
#[cfg(feature = "cuda")]
mod downloads;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
pub mod kernels;
#[cfg(feature = "cuda")]
mod launched;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod operands;
#[cfg(feature = "cuda")]
mod profile;
#[cfg(feature = "cuda")]
mod staging;
#[cfg(feature = "cuda")]
mod tensor_map;
#[cfg(feature = "cuda")]
mod uploads;

pub use error::{Bytes, DeviceError, Unavailable};
pub use limits::Limits;
pub use plan::Plan;

#[cfg(feature = "cuda")]
pub use cudarc::driver::DeviceRepr;
#[cfg(feature = "cuda")]
pub(crate) use gpu::parameter;
#[cfg(feature = "cuda")]
pub use {
    downloads::{Downloads, Queued},
    gpu::{Event, Gpu, Parameter},
    memory::{Arena, Buffer, Element, Room},
    operands::Operands,
    profile::KernelTime,
    staging::Staging,
    tensor_map::{Boxes, Panels, TensorMap},
    uploads::{Package, Uploads},
};
