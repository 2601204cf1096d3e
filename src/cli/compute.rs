//! Where and with how many threads to compute.

use anyhow::{Context, bail};
use clap::builder::RangedI64ValueParser;
use setrank::config::ModelConfig;
use setrank::device::choice::{self, MatrixKernels};
use setrank::ops::simd;
use setrank::train::config::DeviceChoice;

/// More threads than this only wait for each other.
const MAX_THREADS: usize = 256;

/// Reads the value of `--threads`.
pub fn thread_count() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=MAX_THREADS as i64)
}

/// Threads and device, for every command that computes.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Computing")]
pub struct ComputeArgs {
    /// Threads; results do not depend on it [default: one a core]
    #[arg(long, value_name = "N", value_parser = thread_count())]
    pub threads: Option<u16>,

    /// Where to compute; `auto` is the best that this build and machine have, and says so [default: cpu]
    #[arg(long)]
    pub device: Option<DeviceChoice>,

    #[command(flatten)]
    pub kernels: KernelArgs,
}

/// Kernels, for every command that a GPU computes.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Computing")]
pub struct KernelArgs {
    /// Matrix instructions of a GPU's kernels; wgmma runs on compute capability 9.0, and no card has shown yet that it is
    /// faster [default: mma]
    #[arg(long)]
    pub kernels: Option<MatrixKernels>,
}

impl ComputeArgs {
    /// Sets the machine up, or says why it cannot.
    pub fn set_up(self) -> anyhow::Result<()> {
        set_up(usize::from(self.threads.unwrap_or(0)), self.device(), self.kernels)
    }

    /// The device asked for.
    pub fn device(self) -> DeviceChoice {
        self.device.unwrap_or(DeviceChoice::Cpu)
    }
}

/// Starts `threads` threads (0 = one a core) and checks that `device` and its `kernels` are there.
pub fn set_up(threads: usize, device: DeviceChoice, kernels: KernelArgs) -> anyhow::Result<()> {
    if device == DeviceChoice::Cuda {
        choice::gpu().context("--device cuda")?;
    }
    choice::ask_kernels(kernels.kernels.unwrap_or_default(), device).context("--kernels wgmma")?;
    if threads > MAX_THREADS {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        bail!("--threads {threads}: at most {MAX_THREADS}; this machine has {cores} core(s)");
    }
    simd::asked()?;
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().context("cannot start the threads")
}

/// The device that computes the model of `config`, never `auto`; tells which one `auto` is.
pub fn choose(asked: DeviceChoice, config: &ModelConfig) -> anyhow::Result<DeviceChoice> {
    let chosen = choice::choose(asked, config).context("--device cuda")?;
    if asked == DeviceChoice::Auto {
        tell!("device: {} ({})", name(chosen.device), chosen.reason);
    }
    Ok(chosen.device)
}

fn name(device: DeviceChoice) -> &'static str {
    match device {
        DeviceChoice::Cuda => "GPU",
        DeviceChoice::Cpu | DeviceChoice::Auto => "CPU",
    }
}
