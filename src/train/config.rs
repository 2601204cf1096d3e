//! Everything that a training run can be told. The keys are the command line's flags with `_` for `-`; the same
//! table is read from TOML, laid over a preset, and written into the model folder as `train.toml`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::optimizer::{AdamConfig, Schedule};
use crate::config::{Encoder, Input, ModelConfig, OrdinalAt, OrdinalConfig, OrdinalStart};
use crate::data::Absent;
use crate::data::augment::Augment;
use crate::data::initial::InitialFeature;
use crate::data::letor::IndexBase;
use crate::data::normalize::{Fill, Kind, Settings, WithinSet};
use crate::device::choice::{Asked, DeviceChoice, Fusion, KernelChoice, MatrixKernels};
use crate::eval::{Gain, Metric};
use crate::ops::loss::Loss;
use crate::{Error, Result};

/// A starting point for all values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// As the paper describes its model.
    Paper,
    /// As the authors' published code trains.
    Authors,
    /// What we recommend.
    #[default]
    Default,
}

/// Whether and where initial rankings are embedded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Ordinal {
    /// Not at all; they may still cut the lists.
    None,
    /// Added to the output of the input layer.
    #[default]
    Input,
    /// Added to the input of every block.
    EveryBlock,
}

/// How large the model is where `hidden`, `heads`, `blocks` and `ffn` are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Small below 5,000 training queries, else full.
    #[default]
    Auto,
    /// C 64, 2 heads, 2 blocks, G 128: heads of 32, as kernels compute them.
    Small,
    /// C 256, 8 heads, 6 blocks, G 1024.
    Full,
}

/// Training queries from which on [`Size::Auto`] is full.
const FULL_FROM_QUERIES: usize = 5000;

/// Which sets share a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Any, in a random order.
    #[default]
    Ragged,
    /// Those of like sizes, in batches in a random order.
    Bucketed,
}

/// What decides which model is kept and when to stop, measured on validation data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Select {
    /// The largest mean of a metric.
    Metric(Metric),
    /// The smallest loss.
    Loss,
}

impl FromStr for Select {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "loss" => Ok(Select::Loss),
            _ => text.parse().map(Select::Metric).map_err(|e: Error| format!("{e}; or `loss`")),
        }
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Select::Metric(metric) => metric.fmt(f),
            Select::Loss => f.write_str("loss"),
        }
    }
}

impl Serialize for Select {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Select {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The configuration of a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Where the values not given come from.
    pub preset: Preset,

    /// Training data: one store, or text files.
    pub train: Vec<PathBuf>,
    /// Validation data; without it the last model is kept.
    pub valid: Vec<PathBuf>,
    /// Set sizes of training text without `qid:`.
    pub query_sizes: Vec<PathBuf>,
    /// Set sizes of validation text without `qid:`.
    pub valid_query_sizes: Vec<PathBuf>,
    /// Features of the text; 0 = as many as the largest index needs.
    pub features: u32,
    /// First feature index of the text.
    pub index_base: IndexBase,
    /// What an absent feature index of the text means: missing, unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<Absent>,
    /// Added to every label of the text.
    pub label_offset: f32,
    /// Files of initial scores of the training data.
    pub init: Vec<PathBuf>,
    /// Files of initial scores of the validation data, in the same order.
    pub valid_init: Vec<PathBuf>,
    /// Raw features that serve as initial rankings: `I`, `I:asc` or `I:desc`.
    pub init_feature: Vec<InitialFeature>,
    /// Documents of the first initial ranking that are reranked; 0 = all.
    pub top_k: usize,

    /// Kind of block.
    pub encoder: Encoder,
    /// How large the model is where the following four are 0.
    pub size: Size,
    /// Hidden width `C`.
    pub hidden: usize,
    /// Attention heads `H`.
    pub heads: usize,
    /// Blocks `L`.
    pub blocks: usize,
    /// Inner width of the feed-forward network `G`.
    pub ffn: usize,
    /// Inducing points `M`.
    pub inducing: usize,
    /// Kind of input layer.
    pub input: Input,
    /// Centres a feature of the rbf input `K`.
    pub rbf_centers: usize,
    /// Whether q, k and v pass through a ReLU.
    pub qkv_relu: bool,
    /// Whether both attentions of an induced block have a network of their own.
    pub inner_ffn: bool,
    /// Dropout of attention weights.
    pub dropout: f64,
    /// LayerNorm's eps.
    pub layer_norm_eps: f64,
    /// Whether and where initial rankings are embedded.
    pub ordinal: Ordinal,
    /// Where ranks start in training.
    pub ordinal_start: OrdinalStart,
    /// Rows of an ordinal table.
    pub n_max: usize,
    /// Normalisation of the features.
    pub normalize: Kind,
    /// What a missing value becomes.
    pub fill: Fill,
    /// Whether features with missing values get a 0/1 column "missing".
    pub indicators: bool,
    /// Columns that compare the documents of a set.
    pub within_set: WithinSet,
    /// Standard deviation of the noise on normalised features in training.
    pub noise: f64,
    /// Share of the normalised features that training hides.
    pub feature_dropout: f64,

    /// The loss.
    pub loss: Loss,
    /// Learning rate.
    pub lr: f64,
    /// How it moves.
    pub schedule: Schedule,
    /// Steps over which it rises.
    pub warmup_steps: u64,
    /// Adam's β₁.
    pub beta1: f32,
    /// Adam's β₂.
    pub beta2: f32,
    /// Adam's ε.
    pub adam_eps: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Decay of the running average of the weights, which is validated and kept; 0 = no average.
    pub ema: f64,
    /// Largest norm of the gradient; 0 = any.
    pub clip: f64,
    /// Sets of a batch.
    pub batch_sets: usize,
    /// Documents of a batch at most, which then has as many sets as fit; 0 = `batch_sets` sets.
    pub batch_docs: usize,
    /// Which sets share a batch.
    pub layout: Layout,
    /// Documents of a set at most: data with a larger one is refused; 0 = any.
    pub max_set_size: usize,
    /// Batches whose gradients make one step.
    pub accumulate: usize,
    /// Passes over the training data at most; 0 = no limit.
    pub epochs: u64,
    /// Steps at most; 0 = no limit.
    pub max_steps: u64,
    /// Seconds at most; 0 = no limit.
    pub max_seconds: f64,
    /// Steps between two validations; 0 = at the end of each epoch.
    pub valid_every: u64,
    /// What decides on validation data.
    pub select: Select,
    /// What a label is worth in the NDCG that selects.
    pub gain: Gain,
    /// Validations without a better model before training stops; 0 = never.
    pub patience: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// Model folder to start from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// Threads; 0 = one a core.
    pub threads: usize,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Matrix instructions of a GPU's kernels.
    pub kernels: MatrixKernels,
    /// How much they fuse.
    pub fuse: Fusion,
    /// Whether a pass's launches are one graph.
    pub graphs: bool,
}

impl TrainConfig {
    /// What is asked to compute.
    pub fn asked(&self) -> Asked {
        let kernels = KernelChoice { matrix: self.kernels, fuse: self.fuse, graphs: self.graphs };
        Asked { device: self.device, kernels }
    }

    /// The values of a preset.
    pub fn preset(preset: Preset) -> Self {
        // What all presets share.
        let plain = TrainConfig {
            preset,
            train: Vec::new(),
            valid: Vec::new(),
            query_sizes: Vec::new(),
            valid_query_sizes: Vec::new(),
            features: 0,
            index_base: IndexBase::Auto,
            absent: None,
            label_offset: 0.0,
            init: Vec::new(),
            valid_init: Vec::new(),
            init_feature: Vec::new(),
            top_k: 0,
            encoder: Encoder::Imsab,
            size: Size::Auto,
            hidden: 0,
            heads: 0,
            blocks: 0,
            ffn: 0,
            inducing: 20,
            input: Input::Linear,
            rbf_centers: 100,
            qkv_relu: false,
            inner_ffn: true,
            dropout: 0.0,
            layer_norm_eps: 1e-5,
            ordinal: Ordinal::Input,
            ordinal_start: OrdinalStart::Sampled,
            n_max: 500,
            normalize: Kind::Log1pZScore,
            fill: Fill::Zero,
            indicators: true,
            within_set: WithinSet::None,
            noise: 0.0,
            feature_dropout: 0.0,
            loss: Loss::SoftmaxCrossEntropy,
            lr: 5e-4,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            beta1: 0.9,
            beta2: 0.999,
            adam_eps: 1e-8,
            weight_decay: 0.0,
            ema: 0.0,
            clip: 5.0,
            batch_sets: 32,
            batch_docs: 0,
            layout: Layout::Ragged,
            max_set_size: 0,
            accumulate: 1,
            epochs: 100,
            max_steps: 0,
            max_seconds: 0.0,
            valid_every: 0,
            select: Select::Metric(Metric::Ndcg(Some(10))),
            gain: Gain::Exp,
            patience: 10,
            seed: 0,
            from: None,
            threads: 0,
            device: DeviceChoice::Auto,
            kernels: MatrixKernels::Mma,
            fuse: Fusion::All,
            graphs: false,
        };
        match preset {
            // Chosen by measurement on validation folds: docs/quality.md.
            Preset::Default => TrainConfig {
                fill: Fill::Worst,
                within_set: WithinSet::Both,
                feature_dropout: 0.2,
                loss: Loss::LambdaLoss,
                lr: 1e-3,
                ema: 0.99,
                patience: 12,
                ..plain
            },
            Preset::Paper => TrainConfig {
                size: Size::Full,
                normalize: Kind::ZScore,
                indicators: false,
                loss: Loss::AttentionRank,
                lr: 1e-3,
                clip: 0.0,
                top_k: 40,
                ..plain
            },
            Preset::Authors => TrainConfig {
                size: Size::Full,
                input: Input::Rbf,
                normalize: Kind::MinMax,
                indicators: false,
                qkv_relu: true,
                inner_ffn: false,
                layer_norm_eps: 1e-8,
                ordinal: Ordinal::EveryBlock,
                ordinal_start: OrdinalStart::Zero,
                n_max: 40,
                top_k: 40,
                select: Select::Loss,
                patience: 0,
                epochs: 0,
                max_steps: 10_000,
                valid_every: 100,
                ..plain
            },
        }
    }

    /// Lays tables of given values over each other, the later over the earlier, and all over the preset that
    /// they name. A key that does not exist is an error that lists those that do.
    pub fn from_layers(layers: &[toml::Table]) -> Result<Self> {
        let preset = match layers.iter().rev().find_map(|layer| layer.get("preset")) {
            Some(name) => Preset::deserialize(name.clone())
                .map_err(|e| Error::config(format!("preset: {}", e.message())))?,
            None => Preset::default(),
        };
        let mut table = toml::Table::try_from(TrainConfig::preset(preset)).expect("plain data");
        for layer in layers {
            table.extend(layer.clone());
        }
        table.insert("preset".into(), toml::Value::try_from(preset).expect("plain data"));
        let config = TrainConfig::deserialize(table).map_err(|e| Error::config(e.message().to_owned()))?;
        config.validate()?;
        Ok(config)
    }

    /// Checks the ranges that the model's own configuration does not.
    pub fn validate(&self) -> Result<()> {
        let fail = |text: String| Err(Error::config(text));
        // At 0 a parameter whose gradient was 0 so far would become 0/0.
        for (name, value) in [("lr", self.lr), ("adam_eps", f64::from(self.adam_eps))] {
            if !(value > 0.0 && value.is_finite()) {
                return fail(format!("{name} is {value}: it must be a positive number"));
            }
        }
        for (name, value) in [
            ("beta1", f64::from(self.beta1)),
            ("beta2", f64::from(self.beta2)),
            ("feature_dropout", self.feature_dropout),
            ("ema", self.ema),
        ] {
            if !(0.0..1.0).contains(&value) {
                return fail(format!("{name} is {value}: it must be in [0, 1)"));
            }
        }
        for (name, value) in [
            ("weight_decay", f64::from(self.weight_decay)),
            ("noise", self.noise),
            ("clip", self.clip),
            ("max_seconds", self.max_seconds),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return fail(format!("{name} is {value}: it must be 0 or a positive number"));
            }
        }
        // As large as TOML can hold.
        if self.seed > i64::MAX as u64 {
            return fail(format!("seed is {}: it must be at most {}", self.seed, i64::MAX));
        }
        if self.normalize == Kind::None && matches!(self.fill, Fill::Low | Fill::High) {
            return fail(
                "fill needs a normalisation: with `normalize = \"none\"` a missing value is 0".into(),
            );
        }
        if self.batch_sets == 0 || self.accumulate == 0 {
            return fail("batch_sets and accumulate must be at least 1".into());
        }
        if self.epochs == 0 && self.max_steps == 0 && self.max_seconds == 0.0 && self.patience == 0 {
            return fail(
                "nothing would end this run: give epochs, max_steps, max_seconds or patience".into(),
            );
        }
        Ok(())
    }

    /// Takes over what a model that training starts from is; its dropout may differ.
    pub fn adopt(&mut self, model: &ModelConfig) {
        self.hidden = model.hidden_size;
        self.heads = model.num_heads;
        self.blocks = model.num_blocks;
        self.ffn = model.ffn_size;
        self.encoder = model.encoder;
        self.inducing = model.num_inducing;
        self.input = model.input;
        self.rbf_centers = model.rbf_centers;
        self.qkv_relu = model.qkv_relu;
        self.inner_ffn = model.inner_ffn;
        self.layer_norm_eps = model.layer_norm_eps;
        self.top_k = model.top_k.unwrap_or(0);
        self.normalize = model.normalize.kind;
        self.indicators = model.normalize.indicators.contains(&true);
        self.within_set = model.normalize.within_set;
        // What the model has is neither of the rules, but their outcome.
        self.fill = Fill::Zero;
        self.size = Size::Auto;
        self.absent = Some(model.absent);
        match model.ordinal {
            None => self.ordinal = Ordinal::None,
            Some(ordinal) => {
                self.ordinal = match ordinal.at {
                    OrdinalAt::Input => Ordinal::Input,
                    OrdinalAt::EveryBlock => Ordinal::EveryBlock,
                };
                self.ordinal_start = ordinal.start;
                self.n_max = ordinal.n_max;
            }
        }
    }

    /// Gives `hidden`, `heads`, `blocks` and `ffn`, where they are 0, the values of the size for so many training
    /// queries.
    pub fn settle_size(&mut self, training_queries: usize) {
        let full = match self.size {
            Size::Auto => training_queries >= FULL_FROM_QUERIES,
            Size::Small => false,
            Size::Full => true,
        };
        let sizes = if full { [256, 8, 6, 1024] } else { [64, 2, 2, 128] };
        let keys = [&mut self.hidden, &mut self.heads, &mut self.blocks, &mut self.ffn];
        for (key, size) in keys.into_iter().zip(sizes) {
            if *key == 0 {
                *key = size;
            }
        }
    }

    /// What the normalisation is fitted to.
    pub fn normalize_settings(&self) -> Settings {
        Settings {
            kind: self.normalize,
            fill: self.fill,
            indicators: self.indicators,
            within_set: self.within_set,
        }
    }

    /// What is done to the features in training.
    pub fn augment(&self) -> Augment {
        Augment { noise: self.noise, feature_dropout: self.feature_dropout }
    }

    /// Adam's constants.
    pub fn adam(&self) -> AdamConfig {
        AdamConfig {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.adam_eps,
            weight_decay: self.weight_decay,
        }
    }

    /// The ordinal embeddings of a model for `rankings` initial rankings.
    pub fn ordinal_config(&self, rankings: usize) -> Option<OrdinalConfig> {
        let at = match self.ordinal {
            Ordinal::None => return None,
            Ordinal::Input => OrdinalAt::Input,
            Ordinal::EveryBlock => OrdinalAt::EveryBlock,
        };
        (rankings > 0).then_some(OrdinalConfig { rankings, n_max: self.n_max, at, start: self.ordinal_start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    #[test]
    fn later_layers_win_over_earlier_ones_and_the_preset() {
        let file = layer("preset = \"authors\"\nlr = 0.1\nhidden = 64");
        let flags = layer("lr = 0.2");
        let config = TrainConfig::from_layers(&[file, flags]).unwrap();
        assert_eq!((config.lr, config.hidden, config.batch_sets), (0.2, 64, 32));
        assert!(config.qkv_relu && config.input == Input::Rbf);
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_refused() {
        for (text, reason) in [
            ("learning_rate = 1", "learning_rate"),
            ("lr = 0", "lr is 0"),
            ("preset = \"best\"", "preset"),
            ("select = \"accuracy\"", "accuracy"),
            ("beta2 = 1.0", "beta2"),
            ("ema = 1.0", "ema"),
            ("feature_dropout = 1.5", "feature_dropout"),
            ("noise = -1.0", "noise"),
            ("normalize = \"none\"\nfill = \"high\"", "fill needs"),
            ("batch_sets = 0", "batch_sets"),
            ("epochs = 0\npatience = 0", "nothing would end"),
        ] {
            let error = TrainConfig::from_layers(&[layer(text)]).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_effective_configuration_reads_back() {
        for preset in [Preset::Paper, Preset::Authors, Preset::Default] {
            let config = TrainConfig::preset(preset);
            let table: toml::Table = toml::to_string(&config).unwrap().parse().unwrap();
            assert_eq!(TrainConfig::from_layers(&[table]).unwrap(), config);
        }
    }
}
