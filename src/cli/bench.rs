//! `setrank bench`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use setrank::bench::{Mode, Plan, SizeSource, machine, peak};
use setrank::config::{Encoder, Input, ModelConfig};
use setrank::data::normalize::{Kind, Normalize};

use super::compute::ComputeArgs;

/// Arguments of `setrank bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What a step does
    mode: Mode,

    /// Documents of each set: a number for all, or the sizes of a public data set: istella (360 on average, at most
    /// 500), mslr (120, 1251), yahoo (24, 139)
    #[arg(
        long,
        value_name = "N|istella|mslr|yahoo",
        default_value = "40",
        conflicts_with = "sizes_file",
        help_heading = "Batch"
    )]
    sizes: SizeSource,
    /// File of set sizes, one a line; their first --sets, or all
    #[arg(long, value_name = "FILE", help_heading = "Batch")]
    sizes_file: Option<PathBuf>,
    /// Sets of the batch [default: 32, or all of the file]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch")]
    sets: Option<u32>,
    /// Print the sizes, one a line, and measure nothing
    #[arg(long, help_heading = "Batch")]
    print_sizes: bool,
    /// Features of a document
    #[arg(long, value_name = "N", default_value_t = 220, help_heading = "Batch")]
    features: usize,
    /// Seed of parameters, features, labels and the order of the sets
    #[arg(long, value_name = "S", default_value_t = 1, help_heading = "Batch")]
    seed: u64,

    /// Kind of block
    #[arg(long, default_value = "imsab", help_heading = "Model")]
    encoder: Encoder,
    /// Hidden width C
    #[arg(long, value_name = "C", default_value_t = 256, help_heading = "Model")]
    hidden: usize,
    /// Attention heads H, a divisor of C
    #[arg(long, value_name = "H", default_value_t = 8, help_heading = "Model")]
    heads: usize,
    /// Blocks L
    #[arg(long, value_name = "L", default_value_t = 6, help_heading = "Model")]
    blocks: usize,
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

    /// Steps that are timed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Measuring")]
    steps: u32,
    /// Steps before that are not
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Measuring")]
    warmup: u32,
    /// Side of the product of two matrices that measures the peak; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = peak::SIDE as u32, value_parser = clap::value_parser!(u32).range(0..=32768), help_heading = "Measuring")]
    peak_side: u32,
    /// Write one JSON object instead of a table
    #[arg(long, help_heading = "Measuring")]
    json: bool,

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
    let plan = plan(&args)?;
    let mut out = std::io::stdout().lock();
    if args.print_sizes {
        for size in &plan.sizes {
            writeln!(out, "{size}")?;
        }
        return Ok(out.flush()?);
    }
    args.compute.set_up()?;
    let report = plan.run()?;
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(out.flush()?)
}

fn plan(args: &Args) -> anyhow::Result<Plan> {
    let source = args.sizes_file.clone().map_or_else(|| args.sizes.clone(), SizeSource::File);
    let mut config = ModelConfig {
        num_features: args.features,
        hidden_size: args.hidden,
        num_heads: args.heads,
        num_blocks: args.blocks,
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
            center: vec![0.0; args.features],
            scale: vec![1.0; args.features],
            ..Normalize::default()
        };
    }
    config.validate()?;
    Ok(Plan {
        mode: args.mode,
        config,
        sizes: source.sizes(args.sets.map(|sets| sets as usize), args.seed)?,
        seed: args.seed,
        steps: args.steps as usize,
        warmup: args.warmup as usize,
        peak_side: args.peak_side as usize,
    })
}
