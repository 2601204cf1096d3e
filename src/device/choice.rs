//! What can be asked to compute: a device, and which kernels on a GPU.

use std::env;

use serde::{Deserialize, Serialize};

use super::probe::GpuInfo;
use super::{DeviceError, Unavailable, probe};

/// Where the computation runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// The best device that this build and machine have.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

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

/// How much of a model its kernels fuse, for those who want to know what fusion is worth: each rung has what the one below
/// has. This is the one place that says what a rung means; the card's limits bring it to the plans.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// Attention's scores and weights go through memory, and every product is a kernel; backward computes the weights again.
    /// All else is layer by layer.
    None,
    /// Attention's scores never leave the chip, but the keys of more than 192 documents are streamed through it, and backward
    /// is two kernels that each compute the weights anew. All else is layer by layer.
    Flash,
    /// Sets stay on the chip where they fit, and backward of one that does, or of few points, is one kernel.
    Attention,
    /// The row-wise network with the LayerNorms around it is one kernel too, and so is its backward but for the gradients of
    /// weights, where that pays, or else, of few rows, a LayerNorm and the layer behind it. So are scores, losses and both
    /// gradients of these.
    #[default]
    All,
}

impl Fusion {
    /// As it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Fusion::None => "none",
            Fusion::Flash => "flash",
            Fusion::Attention => "attention",
            Fusion::All => "all",
        }
    }
}

/// Which kernels compute on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelChoice {
    /// Their matrix instructions.
    pub matrix: MatrixKernels,
    /// How much each of them does.
    pub fuse: Fusion,
    /// Whether a pass's launches are recorded and launched as one graph, piece by piece otherwise: the bits are the same.
    pub graphs: bool,
}

impl KernelChoice {
    /// Whether the processor's own code will do: nothing is asked that only kernels have.
    pub fn is_default(self) -> bool {
        self == KernelChoice::default()
    }
}

/// What is asked to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Where.
    pub device: DeviceChoice,
    /// By which kernels, on a GPU.
    pub kernels: KernelChoice,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// A GPU, by these kernels.
    Gpu(KernelChoice),
}

impl Device {
    /// Whether it is a GPU.
    pub fn is_gpu(self) -> bool {
        self.kernels().is_some()
    }

    /// The kernels of a GPU.
    pub fn kernels(self) -> Option<KernelChoice> {
        match self {
            Device::Cpu => None,
            Device::Gpu(kernels) => Some(kernels),
        }
    }
}

/// Whether the driver is told by `CUDA_LAUNCH_BLOCKING=1` to wait for each launch: no graph is launched then.
pub fn launches_are_waited_for() -> bool {
    env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value == "1")
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

/// Refuses what no model can be computed by.
///
/// # Errors
///
/// Why there is no GPU, where one was asked for, or none with the kernels that were.
pub fn check(asked: Asked) -> Result<(), DeviceError> {
    let KernelChoice { matrix, fuse, .. } = asked.kernels;
    let wgmma = matrix == MatrixKernels::Wgmma;
    if wgmma && fuse < Fusion::Attention {
        return Err(Unavailable::WgmmaUnfused.into());
    }
    if asked.device == DeviceChoice::Cpu {
        return match asked.kernels {
            kernels if kernels.is_default() => Ok(()),
            _ if wgmma => Err(Unavailable::WgmmaOnCpu.into()),
            _ if fuse != Fusion::default() => Err(Unavailable::FuseOnCpu.into()),
            _ => Err(Unavailable::GraphsOnCpu.into()),
        };
    }
    if asked.device == DeviceChoice::Auto && asked.kernels.is_default() {
        return Ok(());
    }
    let gpu = probe::first_usable()?;
    if wgmma { Ok(check_wgmma(&gpu)?) } else { Ok(()) }
}
