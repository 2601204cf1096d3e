//! The flags of `setrank train`: one for each key of [`TrainConfig`](setrank::train::TrainConfig). What is not
//! given is left to the TOML file and the preset.

use std::path::PathBuf;

use serde::Serialize;
use setrank::config::{Encoder, Input, OrdinalStart};
use setrank::data::Absent;
use setrank::data::initial::InitialFeature;
use setrank::data::letor::IndexBase;
use setrank::data::normalize::{Fill, Kind, WithinSet};
use setrank::device::choice::{DeviceChoice, Fusion, MatrixKernels};
use setrank::eval::Gain;
use setrank::ops::loss::Loss;
use setrank::train::config::{Layout, Ordinal, Preset, Select, Size};
use setrank::train::optimizer::Schedule;

/// Flags given on the command line, as a layer over TOML and preset.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Flags {
    /// Where values not given come from: the paper's text, the authors' code, or what we recommend
    /// [default: default]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,

    /// Training data: a .sets file, or LETOR text files
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<PathBuf>,
    /// Validation data, which selects the model; without it the last model is kept
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<PathBuf>,
    /// Set sizes of training text without `qid:`
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub query_sizes: Vec<PathBuf>,
    /// Set sizes of validation text without `qid:`
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid_query_sizes: Vec<PathBuf>,
    /// Number of features of the text; 0 = as many as the largest index needs
    #[arg(long, value_name = "N", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<u32>,
    /// First feature index of the text; the model keeps it [default: auto]
    #[arg(long, value_name = "BASE", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_base: Option<IndexBase>,
    /// What a feature that a line does not mention means; the model keeps it [default: missing]
    #[arg(long, value_name = "MEANING", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<Absent>,
    /// Added to every label of the text; what is negative then is unjudged
    #[arg(long, value_name = "X", allow_hyphen_values = true, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_offset: Option<f32>,
    /// Scores of an initial ranking of the training data, one a document; may be repeated
    #[arg(long, value_name = "FILE", help_heading = "Initial rankings")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init: Vec<PathBuf>,
    /// The same for the validation data, in the same order
    #[arg(long, value_name = "FILE", help_heading = "Initial rankings")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid_init: Vec<PathBuf>,
    /// A raw feature that serves as initial ranking, `I`, `I:desc` or `I:asc` (smaller is better); may be repeated
    #[arg(long, value_name = "I[:asc|desc]", help_heading = "Initial rankings")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_feature: Vec<InitialFeature>,
    /// Rerank only the first K documents of the first initial ranking; 0 = all
    #[arg(long, value_name = "K", help_heading = "Initial rankings")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Whether and where ranks are embedded [default: input]
    #[arg(long, help_heading = "Initial rankings")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<Ordinal>,
    /// Where ranks start in training [default: sampled]
    #[arg(long, help_heading = "Initial rankings")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinal_start: Option<OrdinalStart>,
    /// Rows of an ordinal table: the longest ranking [default: 500]
    #[arg(long, value_name = "N", help_heading = "Initial rankings")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_max: Option<usize>,

    /// Kind of block: msab attends to all documents, imsab through inducing points [default: imsab]
    #[arg(long, help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder: Option<Encoder>,
    /// How large the model is where the following four are 0; auto is small below 5,000 training queries
    /// [default: auto]
    #[arg(long, help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Hidden width C; 0 = as --size says [default: 0]
    #[arg(long, value_name = "C", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<usize>,
    /// Attention heads H, a divisor of C; 0 = as --size says [default: 0]
    #[arg(long, value_name = "H", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Blocks L; 0 = as --size says [default: 0]
    #[arg(long, value_name = "L", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<usize>,
    /// Inner width G of the feed-forward networks; 0 = as --size says [default: 0]
    #[arg(long, value_name = "G", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ffn: Option<usize>,
    /// Inducing points M of an imsab block [default: 20]
    #[arg(long, value_name = "M", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inducing: Option<usize>,
    /// Input layer: linear, or radial basis functions of each feature (needs --normalize minmax --within-set none)
    /// [default: linear]
    #[arg(long, help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
    /// Centres a feature of the rbf input [default: 100]
    #[arg(long, value_name = "K", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rbf_centers: Option<usize>,
    /// Whether q, k and v pass through a ReLU [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_relu: Option<bool>,
    /// Whether both attentions of an imsab block have a feed-forward network of their own [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inner_ffn: Option<bool>,
    /// Dropout of attention weights in training [default: 0]
    #[arg(long, value_name = "P", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Added to the variance in LayerNorm [default: 1e-5]
    #[arg(long, value_name = "X", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_norm_eps: Option<f64>,
    /// Normalisation of the features, fitted on training data [default: log1p-zscore]
    #[arg(long, help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<Kind>,
    /// What a missing value becomes: 0 after normalisation, the feature's least or largest value in training, or the
    /// one of the two that goes with lower labels [default: worst]
    #[arg(long, help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<Fill>,
    /// Whether features with missing values get a 0/1 column "missing" [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indicators: Option<bool>,
    /// More columns for each feature that tell its place in the set: its z-score or rank among the documents, or both
    /// [default: both]
    #[arg(long, value_name = "KIND", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within_set: Option<WithinSet>,
    /// Model folder to start from: parameters and normalisation are taken over
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,

    /// Standard deviation of normal noise added to normalised features in training [default: 0]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// Probability with which a feature of a document is set to 0, after normalisation, in training [default: 0.2]
    #[arg(long, value_name = "P", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feature_dropout: Option<f64>,
    /// The loss [default: lambda_loss]
    #[arg(long, help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Learning rate of Adam [default: 1e-3]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// How the learning rate moves after the warm-up [default: constant]
    #[arg(long, help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Steps over which the learning rate rises [default: 0]
    #[arg(long, value_name = "N", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Decay of Adam's first moment [default: 0.9]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f32>,
    /// Decay of Adam's second moment [default: 0.999]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f32>,
    /// Added to the root of Adam's second moment [default: 1e-8]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adam_eps: Option<f32>,
    /// Decoupled weight decay [default: 0]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// Decay of a running average of the weights, which is validated and kept in their place; 0 = none
    /// [default: 0.99]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// Largest norm of the gradient, which is scaled down to it; 0 = any [default: 5]
    #[arg(long, value_name = "X", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Sets of a batch [default: 32]
    #[arg(long, value_name = "B", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_sets: Option<usize>,
    /// Documents of a batch at most: it has as many sets as fit, whatever --batch-sets says; 0 = --batch-sets sets
    /// [default: 0]
    #[arg(long, value_name = "N", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_docs: Option<usize>,
    /// Which sets share a batch: ragged takes any, in a random order; bucketed those of like sizes, in batches in a random
    /// order. No batch is padded either way [default: ragged]
    #[arg(long, help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Refuse data with a set of more than N documents, after --top-k, which cuts sets; 0 = any [default: 0]
    #[arg(long, value_name = "N", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_set_size: Option<usize>,
    /// Batches whose gradients make one step [default: 1]
    #[arg(long, value_name = "N", help_heading = "Optimisation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// Passes over the training data at most; 0 = no limit [default: 100]
    #[arg(long, value_name = "N", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Steps at most; 0 = no limit [default: 0]
    #[arg(long, value_name = "N", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// Seconds at most, after which the run is saved and can be resumed; 0 = no limit [default: 0]
    #[arg(long, value_name = "S", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seconds: Option<f64>,
    /// Steps between two validations; 0 = at the end of each epoch [default: 0]
    #[arg(long, value_name = "N", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_every: Option<u64>,
    /// What selects the model on validation data: a metric, or `loss` [default: ndcg@10]
    #[arg(long, value_name = "METRIC", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub select: Option<Select>,
    /// What a label is worth in the NDCG that selects [default: exp]
    #[arg(long, help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// Validations without a better model before the run ends; 0 = never [default: 12]
    #[arg(long, value_name = "N", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// Seed of everything random [default: 0]
    #[arg(long, value_name = "S", help_heading = "Course", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Threads; results do not depend on it; 0 = one a core [default: 0]
    #[arg(long, value_name = "N", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Where to compute [default: auto]
    #[arg(long, help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceChoice>,
    /// Matrix instructions of a GPU's kernels; wgmma runs on compute capability 9.0, and no card has shown yet that it is
    /// faster [default: mma]
    #[arg(long, help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<MatrixKernels>,
    /// How much a GPU's kernels fuse, to find out what it is worth; less than all is slower [default: all]
    #[arg(long, help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuse: Option<Fusion>,
    /// Whether each pass's launches go to a GPU as one graph; results are the same, and no card has shown yet that it is
    /// faster [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", help_heading = "Course")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphs: Option<bool>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};
    use setrank::train::TrainConfig;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: Flags,
    }

    #[test]
    fn every_key_has_a_flag_and_every_flag_a_key() {
        let flags: BTreeSet<String> = Cli::command()
            .get_arguments()
            .filter_map(|argument| argument.get_long().map(|long| long.replace('-', "_")))
            .filter(|name| name != "help")
            .collect();
        let mut config = TrainConfig::preset(Preset::Default);
        config.from = Some(PathBuf::from("model"));
        config.absent = Some(Absent::Missing);
        let keys: BTreeSet<String> =
            toml::Table::try_from(config).unwrap().into_iter().map(|(k, _)| k).collect();
        assert_eq!(flags, keys);
    }

    #[test]
    fn defaults_in_the_help_are_those_of_the_default_preset() {
        let mut config = TrainConfig::preset(Preset::Default);
        config.absent = Some(Absent::Missing);
        let keys = toml::Table::try_from(config).unwrap();
        for argument in Cli::command().get_arguments() {
            let help = argument.get_help().unwrap().to_string();
            let Some((_, told)) = help.rsplit_once("[default: ") else { continue };
            let told = told.trim_end_matches(']');
            let value = &keys[&argument.get_long().unwrap().replace('-', "_")];
            let same = match value {
                toml::Value::String(text) => text == told,
                toml::Value::Float(number) => {
                    let told: f64 = told.parse().unwrap();
                    (number - told).abs() <= 1e-6 * told.abs()
                }
                other => other.to_string() == told,
            };
            assert!(same, "--{}: {told}, not {value}", argument.get_long().unwrap());
        }
    }

    #[test]
    fn given_flags_become_a_layer() {
        let cli =
            Cli::parse_from(["train", "--lr", "0.1", "--qkv-relu", "--init-feature", "3:asc", "--seed", "9"]);
        let layer = toml::Table::try_from(&cli.flags).unwrap();
        let config = TrainConfig::from_layers(&[layer]).unwrap();
        assert_eq!((config.lr, config.qkv_relu, config.seed), (0.1, true, 9));
        assert_eq!(config.init_feature[0].to_string(), "3:asc");
        assert_eq!(config.batch_sets, 32);
    }
}
