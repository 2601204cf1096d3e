//! Which device computes, and why.

use super::{DeviceError, probe};
use crate::config::ModelConfig;
use crate::train::config::DeviceChoice;

/// A device, and why it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Never [`DeviceChoice::Auto`].
    pub device: DeviceChoice,
    /// Why.
    pub reason: String,
}

/// Takes what was asked for, for the model of `config`; an error where it cannot be had.
///
/// # Errors
///
/// Why no GPU computes the model, where one was asked for.
pub fn choose(asked: DeviceChoice, config: &ModelConfig) -> Result<Chosen, DeviceError> {
    match asked {
        DeviceChoice::Cpu => Ok(Chosen { device: DeviceChoice::Cpu, reason: "as asked for".into() }),
        DeviceChoice::Cuda => gpu_for(config).map(|name| Chosen { device: DeviceChoice::Cuda, reason: name }),
        DeviceChoice::Auto => Ok(best(gpu_for(config))),
    }
}

/// What `auto` takes where the model is one that kernels compute.
pub fn best_here() -> Chosen {
    best(gpu())
}

fn best(gpu: Result<String, DeviceError>) -> Chosen {
    match gpu {
        Ok(name) => Chosen { device: DeviceChoice::Cuda, reason: name },
        Err(reason) => Chosen { device: DeviceChoice::Cpu, reason: reason.to_string() },
    }
}

/// The name of a GPU that computes the model of `config`.
fn gpu_for(config: &ModelConfig) -> Result<String, DeviceError> {
    let name = gpu()?;
    computes(config)?;
    Ok(name)
}

/// The name of the GPU that computes, if there is one.
///
/// # Errors
///
/// Why there is none.
pub fn gpu() -> Result<String, DeviceError> {
    Ok(probe::first_usable()?.name)
}

#[cfg(feature = "cuda")]
use crate::model::gpu::limits::check as computes;

#[cfg(not(feature = "cuda"))]
fn computes(_: &ModelConfig) -> Result<(), DeviceError> {
    Err(super::Unavailable::NotBuilt.into())
}
