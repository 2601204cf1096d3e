//! The buffers of a pass over one batch, all in one arena.

use half::bf16;

use super::flow::Flow;
use super::sizes::{self, Extent};
use crate::config::{Encoder, Input, ModelConfig};
use crate::device::{Arena, Buffer, DeviceError, Limits};
use crate::model::setrank::Keep;
use crate::ops::attention::AttentionScratch;

/// What forward computes; of a pass that backward follows, all that backward needs.
#[derive(Debug)]
pub struct Activations {
    /// Scores `[N]`.
    pub scores: Buffer<f32>,
    /// Input of each block and output of the last `[N, C]`; two in turn where no backward follows.
    pub(super) hidden: Vec<Buffer<bf16>>,
    /// Inner rows of the network that is being computed `[rows, G]`.
    pub(super) inner: Buffer<bf16>,
    /// Of the attention that is being computed.
    pub(super) attention: AttentionScratch,
    /// q of each block's inducing points `[H, M, D]`.
    pub(super) point_queries: Vec<Buffer<bf16>>,
    /// What is kept.
    pub(super) keep: Keep,
    pub(super) embedding: EmbeddingActivations,
    pub(super) blocks: Vec<BlockActivations>,
}

/// What the input layer keeps.
#[derive(Debug)]
pub(super) enum EmbeddingActivations {
    /// Where ordinals are added to the layer's output, that output without them `[N, C]`: backward has to know where
    /// ReLU cut.
    Linear { before_ordinals: Option<Buffer<bf16>> },
    Rbf {
        /// ReLU's output `[N, 4C]`.
        hidden: Buffer<bf16>,
        /// Its LayerNorm `[N, 4C]`.
        normalized: Buffer<bf16>,
        /// The second layer's output `[N, C]`.
        output: Buffer<bf16>,
        /// Of both LayerNorms `[N, 2]`.
        statistics: [Buffer<f32>; 2],
    },
}

/// What a block keeps; an MSAB has only `attend`. The network of `inner_ffn = false` is that of `attend`: it stands there.
#[derive(Debug)]
pub(super) struct BlockActivations {
    /// What attention takes of the block's input, `[3, H, N, D]`: q, k and v of an MSAB; of an IMSAB k and v of `induce` and q of
    /// `attend`, which are parts of it.
    pub projected: Buffer<bf16>,
    pub induce: Option<InduceActivations>,
    pub attend: MabActivations,
}

/// MAB(I, X).
#[derive(Debug)]
pub(super) struct InduceActivations {
    pub mab: MabActivations,
    /// Its output `[B·M, C]`.
    pub out: Buffer<bf16>,
}

#[derive(Debug)]
pub(super) struct MabActivations {
    /// `[3, H, N, D]` within a set, else q `[H, rows of A, D]`.
    pub queries: Buffer<bf16>,
    /// k and v `[2, H, Nk, D]`; none within a set.
    pub keys_values: Option<Buffer<bf16>>,
    /// `[Nq, C]`
    pub heads: Buffer<bf16>,
    /// `[H, Nq]`
    pub log_sum_exp: Buffer<f32>,
    /// `[Nq, 2]`
    pub statistics: Buffer<f32>,
    /// The network behind it, where there is one.
    pub ffn: Option<FfnActivations>,
}

#[derive(Debug)]
pub(super) struct FfnActivations {
    /// What it takes, LayerNorm(A + heads) `[rows, C]`.
    pub attended: Buffer<bf16>,
    /// fc2's results `[rows, C]`
    pub output: Buffer<bf16>,
    /// `[rows, 2]`
    pub statistics: Buffer<f32>,
}

impl Activations {
    /// Takes the buffers of a batch out of `arena`: [`sizes::activations`] bytes.
    pub fn new(
        arena: &mut Arena,
        config: &ModelConfig,
        extent: Extent,
        keep: Keep,
        limits: &Limits,
    ) -> Result<Self, DeviceError> {
        let n = extent.documents;
        let c = config.hidden_size;
        let scores = arena.take(n)?;
        let (blocks, rows) = sizes::kept(config, keep);
        let point_queries = (0..sizes::point_queries(config))
            .map(|_| arena.take(config.num_inducing * c))
            .collect::<Result<Vec<_>, _>>()?;
        let hidden = (0..rows).map(|_| arena.take(n * c)).collect::<Result<_, _>>()?;
        let embedding = EmbeddingActivations::new(arena, config, n, keep)?;
        let blocks = (0..blocks)
            .map(|t| BlockActivations::new(arena, config, extent, point_queries.get(t)))
            .collect::<Result<_, _>>()?;
        let inner = arena.take(sizes::inner(config, extent, keep))?;
        let of_attention = sizes::attention(config, extent, limits);
        let attention = AttentionScratch::new(arena, of_attention, keep == Keep::ForBackward)?;
        Ok(Activations { scores, hidden, inner, attention, point_queries, keep, embedding, blocks })
    }
}

impl EmbeddingActivations {
    /// The layer's output before ordinals are added, where that is kept.
    pub fn before_ordinals(&self) -> Option<&Buffer<bf16>> {
        match self {
            EmbeddingActivations::Linear { before_ordinals } => before_ordinals.as_ref(),
            EmbeddingActivations::Rbf { .. } => None,
        }
    }

    fn new(arena: &mut Arena, config: &ModelConfig, n: usize, keep: Keep) -> Result<Self, DeviceError> {
        let c = config.hidden_size;
        Ok(match config.input {
            Input::Linear => {
                let apart = keep == Keep::ForBackward && sizes::adds_ordinals(config);
                EmbeddingActivations::Linear {
                    before_ordinals: apart.then(|| arena.take(n * c)).transpose()?,
                }
            }
            Input::Rbf => EmbeddingActivations::Rbf {
                hidden: arena.take(n * 4 * c)?,
                normalized: arena.take(n * 4 * c)?,
                output: arena.take(n * c)?,
                statistics: [arena.take(n * 2)?, arena.take(n * 2)?],
            },
        })
    }
}

impl BlockActivations {
    /// Of an IMSAB with q of its points.
    fn new(
        arena: &mut Arena,
        config: &ModelConfig,
        extent: Extent,
        point_queries: Option<&Buffer<bf16>>,
    ) -> Result<Self, DeviceError> {
        let (n, c) = (extent.documents, config.hidden_size);
        let projected = arena.take(3 * n * c)?;
        let Some(point_queries) = point_queries else {
            let attend = MabActivations::new(arena, config, n, projected.alias(), None, true)?;
            return Ok(BlockActivations { projected, induce: None, attend });
        };
        let points = extent.points(config);
        let [keys_values, queries] = [projected.part(0..2 * n * c)?, projected.part(2 * n * c..3 * n * c)?];
        let (asking, inner_ffn) = (point_queries.alias(), config.inner_ffn);
        let mab = MabActivations::new(arena, config, points, asking, Some(keys_values), inner_ffn)?;
        let induce = Some(InduceActivations { mab, out: arena.take(points * c)? });
        let of_points = Some(arena.take(2 * points * c)?);
        let attend = MabActivations::new(arena, config, n, queries, of_points, true)?;
        Ok(BlockActivations { projected, induce, attend })
    }

    /// Makes it that of a block with this q of its points: one block's buffers may serve all.
    pub fn turn_to(&mut self, point_queries: &Buffer<bf16>) {
        if let Some(induce) = &mut self.induce {
            induce.mab.queries = point_queries.alias();
        }
    }
}

impl MabActivations {
    /// Of `rows` output rows.
    fn new(
        arena: &mut Arena,
        config: &ModelConfig,
        rows: usize,
        queries: Buffer<bf16>,
        keys_values: Option<Buffer<bf16>>,
        ffn: bool,
    ) -> Result<Self, DeviceError> {
        let c = config.hidden_size;
        Ok(MabActivations {
            queries,
            keys_values,
            heads: arena.take(rows * c)?,
            log_sum_exp: arena.take(rows * config.num_heads)?,
            statistics: arena.take(rows * 2)?,
            ffn: ffn.then(|| FfnActivations::new(arena, config, rows)).transpose()?,
        })
    }
}

impl FfnActivations {
    fn new(arena: &mut Arena, config: &ModelConfig, rows: usize) -> Result<Self, DeviceError> {
        let c = config.hidden_size;
        Ok(FfnActivations {
            attended: arena.take(rows * c)?,
            output: arena.take(rows * c)?,
            statistics: arena.take(rows * 2)?,
        })
    }
}

/// What backward needs besides the activations.
#[derive(Debug)]
pub struct Scratch {
    /// Of documents `[N, C]`.
    pub(super) documents: Flow,
    pub(super) points: Option<PointScratch>,
    /// Gradient of inner rows: `[rows, G]` of a network, `[N, 4C]` of the rbf input.
    pub(super) d_hidden: Buffer<bf16>,
    /// Gradient of q, k and v of documents `[3, H, N, D]`; in an induced block of k and v, which points ask, then of q, which asks
    /// points.
    pub(super) d_projected: Buffer<bf16>,
    /// `[H, Nq]`
    pub(super) delta: Buffer<f32>,
    /// Partial sums of parameters' gradients.
    pub(super) sums: Buffer<f32>,
}

/// The losses of a batch, and what backward begins with.
#[derive(Debug)]
pub struct Losses {
    /// `[B]`
    pub of_sets: Buffer<f32>,
    /// The gradient of what is learned by the scores `[N]`.
    pub(super) d_scores: Buffer<f32>,
}

impl Losses {
    /// Takes the buffers of a batch out of `arena`: [`sizes::losses`] bytes.
    pub fn new(arena: &mut Arena, extent: Extent) -> Result<Self, DeviceError> {
        Ok(Losses { of_sets: arena.take(extent.sets)?, d_scores: arena.take(extent.documents)? })
    }
}

/// What backward of an induced block needs besides.
#[derive(Debug)]
pub(super) struct PointScratch {
    /// Of the induced rows `[B·M, C]`.
    pub flow: Flow,
    /// Gradient of k and v of the induced rows, then of the points' q of each set `[3, H, B·M, D]`.
    pub d_projected: Buffer<bf16>,
    /// Gradient of the q of each block's points, of all sets together `[H, M, D]`.
    pub d_queries: Vec<Buffer<bf16>>,
}

impl Scratch {
    /// Takes the buffers of a batch out of `arena`: [`sizes::scratch`] bytes.
    pub fn new(
        arena: &mut Arena,
        config: &ModelConfig,
        extent: Extent,
        limits: &Limits,
    ) -> Result<Self, DeviceError> {
        let (n, c) = (extent.documents, config.hidden_size);
        let most = extent.most_rows(config);
        let documents = Flow::new(arena, n * c)?;
        let points = match config.encoder {
            Encoder::Msab => None,
            Encoder::Imsab => Some(PointScratch {
                flow: Flow::new(arena, extent.points(config) * c)?,
                d_projected: arena.take(3 * extent.points(config) * c)?,
                d_queries: (0..sizes::point_queries(config))
                    .map(|_| arena.take(config.num_inducing * c))
                    .collect::<Result<_, _>>()?,
            }),
        };
        Ok(Scratch {
            documents,
            points,
            d_hidden: arena.take(sizes::d_hidden(config, extent))?,
            d_projected: arena.take(3 * n * c)?,
            delta: arena.take(most * config.num_heads)?,
            sums: arena.take(sizes::sums(config, extent, limits))?,
        })
    }
}
