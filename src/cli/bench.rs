//! `setrank bench`.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Serialize;
use setrank::bench::{
    Growth, HandOver, Latencies, Layout, Mode, Plan, SizeSource, Sweep, largest, machine, peak,
};
use setrank::config::{Encoder, Input, ModelConfig};
use setrank::data::layout::MAX_CELLS;
use setrank::data::normalize::{Kind, Normalize};
use setrank::device::choice::Device;
use setrank::files::{check_writable, write_atomically};

use super::ablate;
use super::compute::{self, ComputeArgs};

/// Documents of each set where nothing says how many.
const DEFAULT_SIZE: usize = 40;

/// Blocks where nothing says how many.
const DEFAULT_BLOCKS: usize = 6;

/// Steps, and queries of each size whose latency is measured, where nothing says how many.
const DEFAULT_STEPS: [u32; 2] = [10, 200];

/// Flags that say nothing of the sizes of sets.
const BESIDE_SIZES: [&str; 26] = [
    "layout",
    "pad_to",
    "features",
    "encoder",
    "hidden",
    "heads",
    "blocks",
    "ffn",
    "inducing",
    "input",
    "rbf_centers",
    "steps",
    "warmup",
    "peak_side",
    "peak",
    "rounds",
    "json",
    "sweep",
    "output",
    "device",
    "kernels",
    "fuse",
    "graphs",
    "threads",
    "latency",
    "ablate",
];

/// Arguments of `setrank bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What a step does
    mode: Mode,

    /// Documents of each set: a number for all, or the sizes of a public data set: istella (360 on average, at most
    /// 500), mslr (120, 1251), yahoo (24, 139) [default: 40]
    #[arg(long, value_name = "N|istella|mslr|yahoo", conflicts_with = "sizes_file", help_heading = "Batch")]
    sizes: Option<SizeSource>,
    /// File of set sizes, one a line; their first --sets, or all
    #[arg(long, value_name = "FILE", help_heading = "Batch")]
    sizes_file: Option<PathBuf>,
    /// Sets of the batch [default: 32, or all of the file]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch")]
    sets: Option<u32>,
    /// As many sets as have at most N documents together, instead of --sets
    #[arg(long, value_name = "N", conflicts_with = "sets", value_parser = clap::value_parser!(u32).range(1..=1 << 30), help_heading = "Batch")]
    batch_docs: Option<u32>,
    /// Print the sizes, one a line, and measure nothing
    #[arg(long, conflicts_with_all = BESIDE_SIZES, help_heading = "Batch")]
    print_sizes: bool,
    /// How the batch is handed over: ragged; padded to its longest set, with lengths; masked, documents anywhere; bucketed, in 8
    /// padded grids of sets of like sizes. All but the first are turned into a ragged batch in every step [default: ragged]
    #[arg(long, help_heading = "Batch")]
    layout: Option<Layout>,
    /// Rows that each set has with --layout padded or masked [default: as many as the longest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_CELLS as i64), help_heading = "Batch")]
    pad_to: Option<u32>,
    /// Features of a document
    #[arg(long, value_name = "N", default_value_t = 220, value_parser = clap::value_parser!(u32).range(..=1 << 24), help_heading = "Batch")]
    features: u32,
    /// Seed of parameters, features, labels and the order of the sets
    #[arg(long, value_name = "S", default_value_t = 1, help_heading = "Batch")]
    seed: u64,

    /// Kind of block
    #[arg(long, default_value = "imsab", conflicts_with = "sweep", help_heading = "Model")]
    encoder: Encoder,
    /// Hidden width C
    #[arg(long, value_name = "C", default_value_t = 256, help_heading = "Model")]
    hidden: usize,
    /// Attention heads H, a divisor of C
    #[arg(long, value_name = "H", default_value_t = 8, help_heading = "Model")]
    heads: usize,
    /// Blocks L [default: 6]
    #[arg(long, value_name = "L", help_heading = "Model")]
    blocks: Option<usize>,
    /// Inner width G of the feed-forward networks
    #[arg(long, value_name = "G", default_value_t = 1024, help_heading = "Model")]
    ffn: usize,
    /// Inducing points M of an imsab block
    #[arg(long, value_name = "M", default_value_t = 20, help_heading = "Model")]
    inducing: usize,
    /// Input layer
    #[arg(long, default_value = "linear", help_heading = "Model")]
    input: Input,
    /// Centres a feature of the rbf input K
    #[arg(long, value_name = "K", default_value_t = 100, help_heading = "Model")]
    rbf_centers: usize,

    /// Steps that are timed [default: 10, of --latency 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Measuring")]
    steps: Option<u32>,
    /// Steps before that are not
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Measuring")]
    warmup: u32,
    /// Side of the product of two matrices that measures the peak, on a GPU of the largest one; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = peak::SIDE as u32, value_parser = clap::value_parser!(u32).range(0..=32768), help_heading = "Measuring")]
    peak_side: u32,
    /// 10¹² operations a second that the machine can do in products of bf16 matrices, where that is known better than this
    /// program can measure it
    #[arg(long, value_name = "TFLOPS", value_parser = positive, conflicts_with = "peak_side", help_heading = "Measuring")]
    peak: Option<f64>,
    /// Write one JSON object instead of a table, to stdout or to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Measuring")]
    json: Option<PathBuf>,

    /// Measure how long single queries of 10, 100 and 500 documents take, from features to scores, each --steps times a round
    #[arg(
        long,
        conflicts_with_all = ["sizes", "sizes_file", "sets", "batch_docs", "print_sizes", "layout", "pad_to", "sweep", "output", "peak", "peak_side"],
        help_heading = "Measuring"
    )]
    latency: bool,
    /// Measure both encoders while something grows; the flags that it decides itself are refused
    #[arg(
        long,
        value_name = "WHAT",
        requires = "output",
        conflicts_with = "json",
        help_heading = "Measuring"
    )]
    sweep: Option<Sweep>,
    /// Compare how much kernels fuse, each rung of --fuse, and the last by --kernels wgmma too: measured on a GPU; counted, and
    /// predicted for an H100, of a training step of full size on sets of 40 or 384 documents
    #[arg(long, conflicts_with_all = ["sweep", "output", "print_sizes", "latency", "layout", "pad_to", "kernels", "fuse"], help_heading = "Measuring")]
    ablate: bool,
    /// How often all of it is measured, a sweep along all places; the steps of all rounds count together [default: 3 of a
    /// sweep, of --latency and on a GPU, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Measuring")]
    rounds: Option<u32>,
    /// Folder for what a sweep finds: MODE-WHAT.json, .md, -speed.svg, -rate.svg, -share.svg, -memory.svg
    #[arg(short, long, value_name = "DIR", requires = "sweep", help_heading = "Measuring")]
    output: Option<PathBuf>,

    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (threads, cores) = (args.compute.threads.map_or(0, usize::from), machine::cores());
    if threads > cores {
        bail!(
            "--threads {threads}: this machine has {cores} core(s), and more threads would only wait for each other"
        );
    }
    refuse_what_a_sweep_decides(&args)?;
    if args.latency && args.mode == Mode::Train {
        bail!("--latency is that of scoring: setrank bench infer --latency");
    }
    let plan = plan(&args)?;
    let mut out = std::io::stdout().lock();
    if args.print_sizes {
        for size in &plan.sizes {
            writeln!(out, "{size}")?;
        }
        return Ok(out.flush()?);
    }
    args.compute.set_up()?;
    let plan = Plan { device: compute::choose(args.compute.asked(), &plan.config)?, ..plan };
    let on_gpu = plan.device.is_gpu();
    let side = args.peak_side as usize;
    if !on_gpu {
        peak::check_memory(side)?;
    }
    let measure_peak = || match args.peak {
        Some(tera) => Ok(Some(1e3 * tera)),
        None if side == 0 => Ok(None),
        None if on_gpu => peak_of_gpu(side).map(Some),
        None => Ok(Some(peak::gflops(side))),
    };
    if let Some(path) = args.json.as_deref().filter(|path| *path != Path::new("-")) {
        check_writable(path)?;
    }
    let default_rounds = if on_gpu || args.sweep.is_some() || args.latency { 3 } else { 1 };
    let rounds = args.rounds.map_or(default_rounds, |rounds| rounds as usize);
    if args.latency {
        return write_out(args.json.as_deref(), &mut out, &Latencies::measure(&plan, rounds)?);
    }
    if let (Some(sweep), Some(folder)) = (args.sweep, &args.output) {
        return grow(sweep, &plan, rounds, measure_peak, folder);
    }
    if args.ablate {
        let measuring = [
            ("--rounds", args.rounds.is_some()),
            ("--steps", args.steps.is_some()),
            ("--peak", args.peak.is_some()),
        ];
        if let Some((name, _)) = measuring.iter().find(|(_, given)| *given && !on_gpu) {
            bail!("{name} says how a GPU is measured: without one, --ablate tells what was counted");
        }
        let found = ablate::run(&plan, rounds, measure_peak)?;
        return write_out(args.json.as_deref(), &mut out, &found);
    }
    plan.check()?;
    // Before and after: what else the machine does meanwhile would make a single figure too low.
    let before = measure_peak()?;
    let report = plan.run(rounds)?;
    let report = report.with_peak(largest([before, measure_peak()?]));
    write_out(args.json.as_deref(), &mut out, &report)
}

/// Writes what was found as a table, or as one JSON object to stdout (`-`) or into a file.
fn write_out(
    json: Option<&Path>,
    out: &mut impl Write,
    found: &(impl Serialize + Display),
) -> anyhow::Result<()> {
    match json {
        None => write!(out, "{found}")?,
        Some(path) => {
            let json = serde_json::to_string(found)? + "\n";
            if path == Path::new("-") {
                out.write_all(json.as_bytes())?;
            } else {
                write_atomically(path, |file| file.write_all(json.as_bytes()))?;
            }
        }
    }
    Ok(out.flush()?)
}

#[cfg(feature = "cuda")]
fn peak_of_gpu(side: usize) -> setrank::Result<f64> {
    setrank::bench::gpu::gflops(side)
}

#[cfg(not(feature = "cuda"))]
fn peak_of_gpu(_: usize) -> setrank::Result<f64> {
    Err(setrank::device::DeviceError::from(setrank::device::Unavailable::NotBuilt).into())
}

/// Reads a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    if number > 0.0 && number.is_finite() { Ok(number) } else { Err("it has to be above 0".to_owned()) }
}

/// Refuses flags that would change nothing, as the sweep varies what they set.
fn refuse_what_a_sweep_decides(args: &Args) -> anyhow::Result<()> {
    let batch = [
        ("--sizes", args.sizes.is_some()),
        ("--sizes-file", args.sizes_file.is_some()),
        ("--sets", args.sets.is_some()),
        ("--batch-docs", args.batch_docs.is_some()),
    ];
    let blocks = [("--blocks", args.blocks.is_some())];
    let layouts = [("--layout", args.layout.is_some()), ("--pad-to", args.pad_to.is_some())];
    let decided: &[(&str, bool)] = match args.sweep {
        Some(Sweep::Sizes) => &batch,
        Some(Sweep::Blocks) => &blocks,
        Some(Sweep::Layouts) => &layouts,
        Some(Sweep::Documents) | None => &[],
    };
    if let (Some(sweep), Some((name, _))) = (args.sweep, decided.iter().find(|(_, given)| *given)) {
        bail!("{name} cannot be used with --sweep {}, which decides it itself", flag(&sweep));
    }
    Ok(())
}

/// Measures along `sweep` and writes what it finds into `folder`.
fn grow(
    sweep: Sweep,
    plan: &Plan,
    rounds: usize,
    measure_peak: impl Fn() -> setrank::Result<Option<f64>>,
    folder: &Path,
) -> anyhow::Result<()> {
    if folder.exists() && !folder.is_dir() {
        bail!("{} is a file: -o takes a folder", folder.display());
    }
    sweep.check(plan)?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let stem = format!("{}-{}", flag(&plan.mode), flag(&sweep));
    let path = |end| folder.join(format!("{stem}{end}"));
    ENDS.iter().try_for_each(|&end| check_writable(&path(end)))?;
    let growth = Growth::measure(sweep, plan, rounds, measure_peak, |at, report| {
        tell!("{} {at}: {} documents a second", report.encoder.name(), report.docs_per_s.round());
    })?;
    let texts = [
        serde_json::to_string_pretty(&growth)? + "\n",
        growth.markdown(),
        growth.speed().svg()?,
        growth.rate().svg()?,
        growth.share().svg()?,
        growth.memory().svg()?,
    ];
    for (end, text) in ENDS.into_iter().zip(texts) {
        write_atomically(&path(end), |out| out.write_all(text.as_bytes()))?;
    }
    Ok(())
}

/// How the names of a sweep's files end: figures, a table, and pictures.
const ENDS: [&str; 6] = [".json", ".md", "-speed.svg", "-rate.svg", "-share.svg", "-memory.svg"];

/// A value as its flag takes it.
fn flag(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn plan(args: &Args) -> anyhow::Result<Plan> {
    let of_file = args.sizes_file.clone().map(SizeSource::File);
    let source = of_file.or_else(|| args.sizes.clone()).unwrap_or(SizeSource::Fixed(DEFAULT_SIZE));
    let features = args.features as usize;
    let mut config = ModelConfig {
        num_features: features,
        hidden_size: args.hidden,
        num_heads: args.heads,
        num_blocks: args.blocks.unwrap_or(DEFAULT_BLOCKS),
        ffn_size: args.ffn,
        encoder: args.encoder,
        num_inducing: args.inducing,
        input: args.input,
        rbf_centers: args.rbf_centers,
        ..ModelConfig::default()
    };
    if args.input == Input::Rbf {
        // The batch's features lie in [0, 1] as they are.
        config.normalize = Normalize {
            kind: Kind::MinMax,
            center: vec![0.0; features],
            scale: vec![1.0; features],
            ..Normalize::default()
        };
    }
    config.validate()?;
    Ok(Plan {
        mode: args.mode,
        config,
        sizes: match args.batch_docs {
            Some(documents) => source.sizes_of(documents as usize, args.seed)?,
            None => source.sizes(args.sets.map(|sets| sets as usize), args.seed)?,
        },
        seed: args.seed,
        steps: args.steps.unwrap_or(DEFAULT_STEPS[usize::from(args.latency)]) as usize,
        warmup: args.warmup as usize,
        device: Device::Cpu,
        hand_over: HandOver {
            layout: args.layout.unwrap_or_default(),
            pad_to: args.pad_to.map(|cells| cells as usize),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_beside_what_says_something_of_them_alone() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("bench"));
        let print = command.get_arguments().find(|argument| argument.get_id() == "print_sizes").unwrap();
        let refused = command.get_arg_conflicts_with(print);
        let of_sizes = ["mode", "sizes", "sizes_file", "sets", "batch_docs", "seed", "print_sizes"];
        for argument in command.get_arguments() {
            let is_refused = refused.iter().any(|other| other.get_id() == argument.get_id());
            let id = argument.get_id().as_str();
            assert_eq!(is_refused, !of_sizes.contains(&id), "{id}");
        }
    }
}
