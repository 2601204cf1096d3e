//! Which device computes, and why.

use super::Unavailable;
use super::probe;
use crate::train::config::DeviceChoice;

/// A device, and why it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Never [`DeviceChoice::Auto`].
    pub device: DeviceChoice,
    /// Why.
    pub reason: String,
}

/// Takes what was asked for; an error where it cannot be had.
///
/// # Errors
///
/// Why there is no GPU that computes models, where one was asked for.
pub fn choose(asked: DeviceChoice) -> Result<Chosen, Unavailable> {
    let cpu = |reason| Chosen { device: DeviceChoice::Cpu, reason };
    match asked {
        DeviceChoice::Cpu => Ok(cpu("as asked for".into())),
        DeviceChoice::Auto => Ok(cpu(no_gpu_for_models().to_string())),
        DeviceChoice::Cuda => Err(no_gpu_for_models()),
    }
}

/// Why no GPU computes models: there are kernels, and nothing that launches them in a model's order yet.
fn no_gpu_for_models() -> Unavailable {
    let machine = match probe::gpu(0) {
        Ok(gpu) => format!("{} runs single kernels: `setrank info --devices --check`", gpu.name),
        Err(reason) => reason.to_string(),
    };
    Unavailable::NoModels { machine }
}
