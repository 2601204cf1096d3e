//! `setrank train`.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use setrank::config::{FORMAT_VERSION, ModelConfig};
use setrank::data::batch::Batcher;
use setrank::data::initial::{self, InitialSources};
use setrank::data::letor::Labels;
use setrank::data::{Dataset, Normalize};
use setrank::files::write_atomically;
use setrank::model::SetRank;
use setrank::train::checkpoint::{self, Checkpoint};
use setrank::train::config::{Layout, Ordinal};
use setrank::train::log::EventWriter;
use setrank::train::optimizer::Schedule;
use setrank::train::state::{STATE, State, fingerprint};
use setrank::train::trainer::Stop;
use setrank::train::{TrainConfig, Trainer};

use self::flags::Flags;
use self::observer::Reporter;
use super::source::{self, TextArgs};
use super::{compute, interrupt};

pub(super) mod flags;
mod observer;

/// File name of the effective configuration in a model folder.
const TRAIN_CONFIG: &str = "train.toml";

/// Keys that may change when a run is resumed: none of them alters a step, but for the last digits of another device.
const FREE_ON_RESUME: [&str; 12] = [
    "train",
    "valid",
    "max_set_size",
    "max_seconds",
    "patience",
    "threads",
    "device",
    "kernels",
    "fuse",
    "graphs",
    "init",
    "valid_init",
];

/// Keys that alter the steps only where the schedule looks ahead.
const LENGTH: [&str; 2] = ["epochs", "max_steps"];

/// Keys of which a model may have less than was asked for: what its data had no use for, or what was a rule and is in
/// its outcome.
const DEPENDS_ON_DATA: [&str; 6] = ["indicators", "ordinal", "top_k", "absent", "fill", "size"];

/// Arguments of `setrank train`.
#[derive(clap::Args)]
pub struct Args {
    /// Model folder to write
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// TOML file with values for any of the flags, named as they are, with `_` for `-`; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Go on with the run in the model folder, under its own configuration; the result has the same bits as
    /// that of an uninterrupted run
    #[arg(long)]
    resume: bool,

    /// Replace the model that the folder holds
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,

    #[command(flatten)]
    flags: Flags,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mut config = configuration(&args)?;
    if config.train.is_empty() {
        bail!("no training data: give --train FILE");
    }
    compute::set_up(config.threads, config.asked())?;
    if args.output.exists() && !args.output.is_dir() {
        bail!("{} is a file: -o takes the folder of a model", args.output.display());
    }
    let _lock = lock(&args.output)?;
    // The model that is trained on decides how text is read: the folder's own, or the one to start from.
    let of_model = if args.resume { Some(&args.output) } else { config.from.as_ref() };
    let of_model = of_model.map(|folder| checkpoint::load_config(folder)).transpose()?;
    let data = Data::open(&config, of_model.as_ref())?;
    let (model, state) = if args.resume {
        resumed(&args.output, &config, &data)?
    } else {
        check_new(&args, &data)?;
        config.settle_size(data.train.num_queries());
        new_run(&config, &data)?
    };
    train(&config, &args.output, &data, model, state)
}

/// The values given in the TOML file and, over them, as flags.
pub(super) fn given_layers(file: Option<&Path>, flags: &Flags) -> anyhow::Result<Vec<toml::Table>> {
    let mut layers = Vec::new();
    if let Some(path) = file {
        let layer = read_toml(path)?;
        // Each value alone, so that the message names it.
        for (key, value) in &layer {
            let alone = toml::Table::from_iter([(key.clone(), value.clone())]);
            TrainConfig::from_layers(&[alone]).with_context(|| format!("{}: `{key}`", path.display()))?;
        }
        layers.push(layer);
    }
    layers.push(toml::Table::try_from(flags)?);
    Ok(layers)
}

pub(super) fn read_toml(path: &Path) -> anyhow::Result<toml::Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.parse().with_context(|| format!("{}: not TOML", path.display()))
}

/// Flags over TOML over preset; a resumed run's own configuration is the lowest layer.
fn configuration(args: &Args) -> anyhow::Result<TrainConfig> {
    let mut layers = given_layers(args.config.as_deref(), &args.flags)?;
    if !args.resume {
        let config = TrainConfig::from_layers(&layers)?;
        return match config.from.clone() {
            Some(_) if args.flags.fill.is_some() || args.flags.size.is_some() => {
                bail!("--from takes over the model's size and normalisation: leave --size and --fill out")
            }
            Some(folder) => warm_start(config, &folder, &layers),
            None => Ok(config),
        };
    }
    let path = args.output.join(TRAIN_CONFIG);
    let own = read_toml(&path).context("nothing to resume")?;
    let before = toml::Table::try_from(TrainConfig::from_layers(std::slice::from_ref(&own))?)?;
    let given: Vec<String> = layers.iter().flat_map(toml::Table::keys).cloned().collect();
    layers.insert(0, own);
    let config = TrainConfig::from_layers(&layers)?;
    let after = toml::Table::try_from(&config)?;
    for key in given.iter().map(String::as_str).filter(|key| before.get(*key) != after.get(*key)) {
        let is_free =
            FREE_ON_RESUME.contains(&key) || (LENGTH.contains(&key) && config.schedule == Schedule::Constant);
        if !is_free {
            let value =
                |table: &toml::Table| table.get(key).map_or("not set".to_owned(), ToString::to_string);
            bail!(
                "--resume: `{key}` was {} and cannot become {}; start a new run, or one --from this model",
                value(&before),
                value(&after)
            );
        }
    }
    Ok(config)
}

/// The configuration of a run that starts from the model in `folder`: what the model is, it stays.
fn warm_start(mut config: TrainConfig, folder: &Path, layers: &[toml::Table]) -> anyhow::Result<TrainConfig> {
    let asked = config.clone();
    config.adopt(&checkpoint::load_config(folder)?);
    let (asked, adopted) = (toml::Table::try_from(asked)?, toml::Table::try_from(&config)?);
    let given =
        layers.iter().flat_map(toml::Table::keys).filter(|key| !DEPENDS_ON_DATA.contains(&key.as_str()));
    for key in given {
        if asked[key] != adopted[key] {
            bail!(
                "--from: the model in {} has `{key}` {}, not {}",
                folder.display(),
                adopted[key],
                asked[key]
            );
        }
    }
    Ok(config)
}

/// Training and validation data with their initial rankings.
pub struct Data {
    pub train: Dataset,
    pub valid: Option<Dataset>,
}

impl Data {
    fn open(config: &TrainConfig, of_model: Option<&ModelConfig>) -> anyhow::Result<Self> {
        let text = text_args(config);
        let mut train = match of_model {
            Some(model) => {
                source::open_for_model(&config.train, &text, Labels::Required, model.raw_features())?
            }
            None => source::open(&config.train, &text, Labels::Required)?,
        };
        let columns = train.columns();
        let sources = |files: &[PathBuf]| InitialSources {
            files: files.to_vec(),
            features: config.init_feature.clone(),
        };
        initial::attach(&mut train, &sources(&config.init))?;
        if config.valid.is_empty() {
            if !config.valid_init.is_empty() {
                bail!("--valid-init without --valid");
            }
            return Ok(Data { train, valid: None });
        }
        if config.init.len() != config.valid_init.len() {
            bail!(
                "{} --init and {} --valid-init: training and validation data need the same initial rankings",
                config.init.len(),
                config.valid_init.len()
            );
        }
        let text = TextArgs { query_sizes: config.valid_query_sizes.clone(), ..text };
        let features = of_model.map_or(columns.into(), |model| model.raw_features());
        let mut valid = source::open_for_model(&config.valid, &text, Labels::Required, features)?;
        initial::attach(&mut valid, &sources(&config.valid_init))?;
        if valid.num_initial() != train.num_initial() {
            bail!(
                "the training data has {} initial ranking(s), the validation data {}",
                train.num_initial(),
                valid.num_initial()
            );
        }
        Ok(Data { train, valid: Some(valid) })
    }

    /// Stands for the data in the state of a run.
    fn fingerprint(&self) -> u32 {
        let valid = self.valid.as_ref().map_or(0, fingerprint);
        fingerprint(&self.train).rotate_left(1) ^ valid
    }
}

/// How `config` has the text of training data read.
pub(super) fn text_args(config: &TrainConfig) -> TextArgs {
    TextArgs {
        query_sizes: config.query_sizes.clone(),
        features: (config.features > 0).then_some(config.features),
        index_base: Some(config.index_base),
        absent: config.absent,
        label_offset: Some(config.label_offset),
    }
}

/// Refuses to replace a model unasked, and flags that the data cannot serve.
fn check_new(args: &Args, data: &Data) -> anyhow::Result<()> {
    if args.output.join(checkpoint::CONFIG).exists() && !args.overwrite {
        bail!(
            "{} holds a model already: give --resume to go on with its run, or --overwrite to replace it",
            args.output.display()
        );
    }
    let flags = &args.flags;
    let needs_ranking = [
        ("--ordinal", flags.ordinal.is_some_and(|o| o != Ordinal::None)),
        ("--top-k", flags.top_k > Some(0)),
    ];
    if flags.select.is_some() && data.valid.is_none() {
        bail!("--select needs validation data: give --valid");
    }
    if data.train.num_features() == 0 {
        bail!("the training data has no feature");
    }
    if let Some((flag, _)) = needs_ranking.iter().find(|(_, given)| *given)
        && data.train.num_initial() == 0
    {
        bail!("{flag} needs an initial ranking: give one with --init or --init-feature");
    }
    Ok(())
}

/// The model of a new run, and its first state.
pub fn new_run(config: &TrainConfig, data: &Data) -> anyhow::Result<(SetRank, State)> {
    let (model, parameters) = match &config.from {
        Some(folder) => {
            let Checkpoint { mut model, parameters } = Checkpoint::load(folder)?;
            model.set_dropout(config.dropout)?;
            (model, parameters)
        }
        None => {
            let model = SetRank::new(model_config(config, &data.train)?)?;
            let parameters = model.layout().init(config.seed);
            (model, parameters)
        }
    };
    let state = State::new(parameters, data.fingerprint(), config_fingerprint(config)?);
    Ok((model, state))
}

/// The model that `config` asks for, its normalisation fitted on `train`.
pub(super) fn model_config(config: &TrainConfig, train: &Dataset) -> setrank::Result<ModelConfig> {
    let columns = train.columns();
    Ok(ModelConfig {
        format_version: FORMAT_VERSION,
        num_features: train.num_features(),
        hidden_size: config.hidden,
        num_heads: config.heads,
        num_blocks: config.blocks,
        ffn_size: config.ffn,
        encoder: config.encoder,
        num_inducing: config.inducing,
        input: config.input,
        rbf_centers: config.rbf_centers,
        qkv_relu: config.qkv_relu,
        inner_ffn: config.inner_ffn,
        dropout: config.dropout,
        layer_norm_eps: config.layer_norm_eps,
        ordinal: config.ordinal_config(train.num_initial()),
        top_k: (config.top_k > 0 && train.num_initial() > 0).then_some(config.top_k),
        index_base: columns.first_index,
        absent: columns.absent,
        normalize: Normalize::fit_with(
            config.normalize_settings(),
            train.features(),
            train.num_features(),
            train.labels(),
        )?,
        training: serde_json::Map::new(),
    })
}

/// The model and state of the run in `folder`.
fn resumed(folder: &Path, config: &TrainConfig, data: &Data) -> anyhow::Result<(SetRank, State)> {
    // The best model so far, which the run may leave as it is.
    let model = Checkpoint::load(folder)?.model;
    let state = State::load(folder, model.layout().len())?;
    if state.progress.data != data.fingerprint() {
        bail!("--resume: the data is not that of the run in {}", folder.display());
    }
    if state.progress.config != config_fingerprint(config)? {
        bail!(
            "--resume: {} and {STATE} in {} are not of the same run; start it anew with --overwrite",
            TRAIN_CONFIG,
            folder.display()
        );
    }
    Ok((model, state))
}

/// Stands for a configuration, but for what may change when a run is resumed.
fn config_fingerprint(config: &TrainConfig) -> anyhow::Result<u32> {
    let mut table = toml::Table::try_from(config)?;
    FREE_ON_RESUME.iter().chain(&LENGTH).for_each(|key| {
        table.remove(*key);
    });
    Ok(crc32c::crc32c(table.to_string().as_bytes()))
}

/// Keeps others from training into the same folder, as long as it lives: a lock of the folder itself.
pub(super) fn lock(folder: &Path) -> anyhow::Result<Option<File>> {
    // Where folders cannot be opened there is no such lock.
    let Ok(handle) = File::open(folder) else { return Ok(None) };
    match handle.try_lock() {
        Err(TryLockError::WouldBlock) => bail!("another run is training into {}", folder.display()),
        // A file system without locks.
        Err(TryLockError::Error(_)) => Ok(None),
        Ok(()) => Ok(Some(handle)),
    }
}

/// Trains, and leaves model, state and logs in `folder`.
pub fn train(
    config: &TrainConfig,
    folder: &Path,
    data: &Data,
    model: SetRank,
    state: State,
) -> anyhow::Result<()> {
    let train = Batcher::new(&data.train, model.config())?;
    let valid = data.valid.as_ref().map(|valid| Batcher::new(valid, model.config())).transpose()?;
    let resumed_at = state.progress.step;
    let of_model = model.config().clone();
    let mut trainer = Trainer::new(config, model, train, valid, state)?;
    // From here on there is something to keep, be it only the log of a run that diverged.
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    if resumed_at == 0 {
        // Of a run that this one replaces: its state must not be resumed under the new configuration.
        EventWriter::remove_all(folder)?;
        match std::fs::remove_file(folder.join(STATE)) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("cannot replace {STATE} in {}", folder.display()));
            }
            _ => {}
        }
    }
    let toml = toml::to_string(config)?;
    write_atomically(&folder.join(TRAIN_CONFIG), |w| w.write_all(toml.as_bytes()))?;
    compute::choose(config.asked(), &of_model)?;
    if let Some(feeding) = trainer.feeding() {
        tell!("{feeding}");
    }
    if config.layout == Layout::Bucketed {
        let padding = trainer.padding();
        tell!(
            "batches of sets of like sizes: padded to the longest, they would have {padding:.2} rows a document"
        );
    }
    let mut reporter = Reporter::new(folder, resumed_at, &trainer)?;
    let stop = trainer.run(folder, &mut reporter, interrupt::cooperate())?;
    reporter.finish()?;
    let why = match stop {
        Stop::Epochs => "all epochs are done",
        Stop::Steps => "all steps are done",
        Stop::Patience => "no better model for a while",
        Stop::Seconds => "the time is up; go on with --resume",
        Stop::Interrupted => "interrupted; go on with --resume",
    };
    tell!("{why}. Model: {}", folder.display());
    Ok(())
}
