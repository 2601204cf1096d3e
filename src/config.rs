//! What a model is: the keys of a checkpoint's `config.json`.

use serde::{Deserialize, Serialize};

use crate::data::normalize::{Kind, Normalize, WithinSet};
use crate::data::{Absent, RawFeatures};
use crate::{Error, Result};

/// The newest `format_version` that this program writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// More parameters than any use; a mistyped size is not to ask for terabytes.
const MAX_PARAMETERS: u128 = 1 << 29;

/// How the blocks attend (paper, sections 4.3.1 and 4.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Encoder {
    /// Multi-head self-attention blocks: every document attends to every other.
    Msab,
    /// Induced multi-head self-attention blocks: documents exchange through `M` inducing points.
    #[default]
    Imsab,
}

impl Encoder {
    /// As flags and files write it.
    pub fn name(self) -> &'static str {
        match self {
            Encoder::Msab => "msab",
            Encoder::Imsab => "imsab",
        }
    }
}

/// The layer that takes features to the hidden width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// ReLU(x·Wᵀ + b)
    #[default]
    Linear,
    /// Radial basis functions of each feature, then two layers.
    Rbf,
}

/// Where ordinal embeddings are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum OrdinalAt {
    /// To the output of the input layer.
    #[default]
    Input,
    /// To the input of each block, its residual included.
    EveryBlock,
}

/// Where a training set's ranks start in the ordinal table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OrdinalStart {
    /// At a random row, one draw a set and step; evaluation starts at 0.
    #[default]
    Sampled,
    /// Always at row 0.
    Zero,
}

/// Ordinal embeddings of the initial rankings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrdinalConfig {
    /// Number of initial rankings, each with a table of its own.
    pub rankings: usize,
    /// Rows of a table: the largest set that has ranks.
    pub n_max: usize,
    /// Where the embeddings are added.
    pub at: OrdinalAt,
    /// Where ranks start in training.
    pub start: OrdinalStart,
}

impl Default for OrdinalConfig {
    fn default() -> Self {
        OrdinalConfig { rankings: 1, n_max: 500, at: OrdinalAt::Input, start: OrdinalStart::Sampled }
    }
}

/// The configuration of a model; absent keys have the defaults of [`ModelConfig::default`], unknown keys are
/// refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Version of the checkpoint format.
    pub format_version: u32,
    /// Raw features of a document, `F`.
    pub num_features: usize,
    /// Hidden width, `C`.
    pub hidden_size: usize,
    /// Attention heads, `H`; divides `C`.
    pub num_heads: usize,
    /// Blocks, `L`.
    pub num_blocks: usize,
    /// Inner width of the row-wise feed-forward network, `G`.
    pub ffn_size: usize,
    /// Kind of block.
    pub encoder: Encoder,
    /// Inducing points of an induced block, `M`.
    pub num_inducing: usize,
    /// Kind of input layer.
    pub input: Input,
    /// Centres a feature of the rbf input, `K`.
    pub rbf_centers: usize,
    /// Whether q, k and v pass through a ReLU.
    pub qkv_relu: bool,
    /// Whether both attentions of an induced block have a feed-forward network of their own; else one follows.
    /// An `msab` block is the same either way.
    pub inner_ffn: bool,
    /// Dropout of the attention weights in training, in [0, 1).
    pub dropout: f64,
    /// Added to the variance in LayerNorm.
    pub layer_norm_eps: f64,
    /// Ordinal embeddings, where the model takes initial rankings.
    pub ordinal: Option<OrdinalConfig>,
    /// Only this many documents of the first initial ranking are reranked.
    pub top_k: Option<usize>,
    /// The raw index of the first feature: 0 or 1.
    pub index_base: u32,
    /// What an absent feature index means.
    pub absent: Absent,
    /// Normalisation of raw features.
    pub normalize: Normalize,
    /// A record of the training; free keys.
    pub training: serde_json::Map<String, serde_json::Value>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            format_version: FORMAT_VERSION,
            num_features: 0,
            hidden_size: 256,
            num_heads: 8,
            num_blocks: 6,
            ffn_size: 1024,
            encoder: Encoder::Imsab,
            num_inducing: 20,
            input: Input::Linear,
            rbf_centers: 100,
            qkv_relu: false,
            inner_ffn: true,
            dropout: 0.0,
            layer_norm_eps: 1e-5,
            ordinal: None,
            top_k: None,
            index_base: 1,
            absent: Absent::Missing,
            normalize: Normalize::default(),
            training: serde_json::Map::new(),
        }
    }
}

impl ModelConfig {
    /// Width of a head, `D`.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Width of a normalised document: the raw features, the indicators of missing values and the columns within the
    /// set.
    pub fn input_size(&self) -> usize {
        self.normalize.output_width(self.num_features)
    }

    /// The number of parameters but for biases and norms, in numbers that no size can overflow.
    fn parameters_about(&self) -> u128 {
        let [c, g, m, k] =
            [self.hidden_size, self.ffn_size, self.num_inducing, self.rbf_centers].map(|size| size as u128);
        let features = self.input_size() as u128;
        let input = match self.input {
            Input::Linear => features * c,
            Input::Rbf => features * k * (4 * c + 1) + 4 * c * c,
        };
        let ordinals = self.ordinal.map_or(0, |o| o.rankings as u128 * o.n_max as u128 * c);
        let block = match self.encoder {
            Encoder::Msab => 3 * c * c + 2 * c * g,
            Encoder::Imsab => m * c + 6 * c * c + 4 * c * g,
        };
        input + ordinals + self.num_blocks as u128 * block
    }

    /// The raw features that the model reads.
    pub fn raw_features(&self) -> RawFeatures {
        RawFeatures { first_index: self.index_base, count: self.num_features as u32, absent: self.absent }
    }

    /// Number of initial rankings that the model takes.
    pub fn num_rankings(&self) -> usize {
        self.ordinal.map_or(0, |ordinal| ordinal.rankings)
    }

    /// Checks every value's range and that they agree with each other.
    pub fn validate(&self) -> Result<()> {
        let positive = [
            ("num_features", self.num_features),
            ("hidden_size", self.hidden_size),
            ("num_heads", self.num_heads),
            ("ffn_size", self.ffn_size),
            ("num_inducing", self.num_inducing),
            ("rbf_centers", self.rbf_centers),
            ("ordinal.rankings", self.ordinal.map_or(1, |o| o.rankings)),
            ("ordinal.n_max", self.ordinal.map_or(1, |o| o.n_max)),
            ("top_k", self.top_k.unwrap_or(1)),
        ];
        for (name, value) in positive {
            if value == 0 || value > 1 << 20 {
                return Err(Error::config(format!("{name} is {value}: it must be 1 to {}", 1 << 20)));
            }
        }
        if self.format_version != FORMAT_VERSION {
            return Err(Error::config(format!(
                "format_version is {}: this program reads version {FORMAT_VERSION}",
                self.format_version
            )));
        }
        if self.num_blocks > 1 << 10 {
            return Err(Error::config(format!(
                "num_blocks is {}: it must be 0 to {}",
                self.num_blocks,
                1 << 10
            )));
        }
        if !self.hidden_size.is_multiple_of(self.num_heads) {
            return Err(Error::config(format!(
                "hidden_size {} is not a multiple of num_heads {}",
                self.hidden_size, self.num_heads
            )));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::config(format!("dropout is {}: it must be in [0, 1)", self.dropout)));
        }
        // Below, f32 takes it for 0, and a row of equal values has no deviation.
        let least = f64::from(f32::MIN_POSITIVE);
        if !(self.layer_norm_eps >= least && self.layer_norm_eps < 1.0) {
            return Err(Error::config(format!(
                "layer_norm_eps is {}: it must be at least {least:.2e} and less than 1",
                self.layer_norm_eps
            )));
        }
        if self.index_base > 1 {
            return Err(Error::config(format!("index_base is {}: it must be 0 or 1", self.index_base)));
        }
        self.normalize.validate(self.num_features)?;
        let parameters = self.parameters_about();
        if parameters > MAX_PARAMETERS {
            return Err(Error::config(format!(
                "the model would have about {parameters} parameters: at most {MAX_PARAMETERS} are possible"
            )));
        }
        let normalize = &self.normalize;
        let in_range = normalize.kind == Kind::MinMax && normalize.within_set == WithinSet::None;
        if self.input == Input::Rbf && !in_range {
            return Err(Error::config(
                "the rbf input needs features in [0, 1]: use it with --normalize minmax --within-set none",
            ));
        }
        Ok(())
    }
}
