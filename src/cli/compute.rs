//! Where and with how many threads to compute.

use anyhow::{Context, bail};
use clap::builder::RangedI64ValueParser;
use setrank::config::ModelConfig;
use setrank::device::choice::{self, Asked, Device, DeviceChoice, Fusion, KernelChoice, MatrixKernels};
use setrank::model::device;
use setrank::ops::simd;

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

    /// Matrix instructions of a GPU's kernels; wgmma runs on compute capability 9.0, and no card has shown yet that it is
    /// faster [default: mma]
    #[arg(long)]
    pub kernels: Option<MatrixKernels>,

    /// How much a GPU's kernels fuse, to find out what it is worth; less than all is slower [default: all]
    #[arg(long)]
    pub fuse: Option<Fusion>,

    /// Whether each pass's launches go to a GPU as one graph; results are the same, and no card has shown yet that it is
    /// faster [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub graphs: Option<bool>,
}

impl ComputeArgs {
    /// Sets the machine up, or says why it cannot.
    pub fn set_up(self) -> anyhow::Result<()> {
        set_up(usize::from(self.threads.unwrap_or(0)), self.asked())
    }

    /// What is asked to compute.
    pub fn asked(self) -> Asked {
        let kernels = KernelChoice {
            matrix: self.kernels.unwrap_or_default(),
            fuse: self.fuse.unwrap_or_default(),
            graphs: self.graphs.unwrap_or_default(),
        };
        Asked { device: self.device.unwrap_or(DeviceChoice::Cpu), kernels }
    }
}

/// Starts `threads` threads (0 = one a core) and checks that what is `asked` to compute is there.
pub fn set_up(threads: usize, asked: Asked) -> anyhow::Result<()> {
    choice::check(asked).with_context(|| flags(asked))?;
    if threads > MAX_THREADS {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        bail!("--threads {threads}: at most {MAX_THREADS}; this machine has {cores} core(s)");
    }
    simd::asked()?;
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().context("cannot start the threads")
}

/// What computes the model of `config`; tells what `auto` is.
pub fn choose(asked: Asked, config: &ModelConfig) -> anyhow::Result<Device> {
    let chosen = device::choose(asked, config).with_context(|| flags(asked))?;
    if asked.device == DeviceChoice::Auto {
        let name = if chosen.device.is_gpu() { "GPU" } else { "CPU" };
        tell!("device: {name} ({})", chosen.reason);
    }
    let graphs = chosen.device.kernels().is_some_and(|kernels| kernels.graphs);
    if graphs && choice::launches_are_waited_for() {
        tell!("graphs: none, as CUDA_LAUNCH_BLOCKING=1 has each launch waited for");
    }
    Ok(chosen.device)
}

/// The flags that ask for it.
fn flags(asked: Asked) -> String {
    let mut flags = Vec::new();
    if asked.device == DeviceChoice::Cuda {
        flags.push("--device cuda".to_owned());
    }
    let KernelChoice { matrix, fuse, graphs } = asked.kernels;
    if matrix != MatrixKernels::default() {
        flags.push(format!("--kernels {}", matrix.name()));
    }
    if fuse != Fusion::default() {
        flags.push(format!("--fuse {}", fuse.name()));
    }
    if graphs {
        flags.push("--graphs".to_owned());
    }
    flags.join(" ")
}
