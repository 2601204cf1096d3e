//! Which device computes a model, and why.

use crate::config::ModelConfig;
use crate::device::choice::{Asked, Device, DeviceChoice, KernelChoice, check};
use crate::device::{DeviceError, probe};
#[cfg(feature = "cuda")]
use crate::model::gpu::limits::check as computes;

/// A device, and why it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// What computes.
    pub device: Device,
    /// Why.
    pub reason: String,
}

/// Takes what was asked for, for the model of `config`; an error where it cannot be had.
///
/// # Errors
///
/// Why no GPU computes the model, where one was asked for, or kernels that only it has.
pub fn choose(asked: Asked, config: &ModelConfig) -> Result<Chosen, DeviceError> {
    check(asked)?;
    match asked.device {
        DeviceChoice::Cpu => Ok(Chosen { device: Device::Cpu, reason: "as asked for".into() }),
        DeviceChoice::Cuda => {
            gpu_for(config).map(|name| Chosen { device: Device::Gpu(asked.kernels), reason: name })
        }
        // The processor has no kernels.
        DeviceChoice::Auto if !asked.kernels.is_default() => {
            choose(Asked { device: DeviceChoice::Cuda, ..asked }, config)
        }
        DeviceChoice::Auto => Ok(best(gpu_for(config), asked.kernels)),
    }
}

/// What `auto` takes where the model is one that kernels compute.
pub fn best_here() -> Chosen {
    best(probe::first_usable().map(|gpu| gpu.name).map_err(DeviceError::from), KernelChoice::default())
}

fn best(gpu: Result<String, DeviceError>, kernels: KernelChoice) -> Chosen {
    match gpu {
        Ok(name) => Chosen { device: Device::Gpu(kernels), reason: name },
        Err(reason) => Chosen { device: Device::Cpu, reason: reason.to_string() },
    }
}

/// The name of a GPU that computes the model of `config`.
fn gpu_for(config: &ModelConfig) -> Result<String, DeviceError> {
    let gpu = probe::first_usable()?;
    computes(config)?;
    Ok(gpu.name)
}

#[cfg(not(feature = "cuda"))]
fn computes(_: &ModelConfig) -> Result<(), DeviceError> {
    Err(crate::device::Unavailable::NotBuilt.into())
}
