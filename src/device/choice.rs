//! Which device computes, and why.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::probe::GpuInfo;
use super::{DeviceError, Unavailable, probe};
use crate::config::ModelConfig;
use crate::train::config::DeviceChoice;

/// The matrix instructions of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MatrixKernels {
    /// Of a warp, `mma`: on every GPU.
    #[default]
    Mma,
    /// Of a warpgroup, `wgmma`, where there are such kernels, and `mma` elsewhere: on compute capability 9.0.
    Wgmma,
}

impl MatrixKernels {
    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            MatrixKernels::Mma => "mma",
            MatrixKernels::Wgmma => "wgmma",
        }
    }
}

/// Whether this program's GPUs use kernels by `wgmma`.
static WGMMA: AtomicBool = AtomicBool::new(false);

/// The kernels that GPUs use which are taken into use from now on.
pub fn kernels() -> MatrixKernels {
    if WGMMA.load(Ordering::Relaxed) { MatrixKernels::Wgmma } else { MatrixKernels::Mma }
}

/// Has the GPUs that this program takes into use from now on use these kernels, where `device` computes.
///
/// # Errors
///
/// Why there are none of `wgmma`, where they are asked for.
pub fn ask_kernels(kernels: MatrixKernels, device: DeviceChoice) -> Result<(), DeviceError> {
    let wgmma = kernels == MatrixKernels::Wgmma;
    if wgmma {
        if device == DeviceChoice::Cpu {
            return Err(Unavailable::WgmmaOnCpu.into());
        }
        check_wgmma(&probe::first_usable()?)?;
    }
    WGMMA.store(wgmma, Ordering::Relaxed);
    Ok(())
}

/// Refuses a device, or a build, that has no kernels by `wgmma`.
pub fn check_wgmma(gpu: &GpuInfo) -> Result<(), Unavailable> {
    gpu.check_wgmma()?;
    built_wgmma()
}

#[cfg(feature = "cuda")]
use super::kernels::check_wgmma as built_wgmma;

#[cfg(not(feature = "cuda"))]
fn built_wgmma() -> Result<(), Unavailable> {
    Err(Unavailable::NotBuilt)
}

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
    Err(Unavailable::NotBuilt.into())
}
