//! The schedule: embed → blocks → scores, and its mirror.

use super::block::{BatchSets, Block, BlockActivations, BlockGradients};
use super::embedding::{Embedding, EmbeddingActivations};
use super::layout::{BlockSlots, ParamLayout};
use super::mab::{Pass, Scratch};
use super::packed::PackedWeights;
use crate::Result;
use crate::config::{ModelConfig, OrdinalAt};
use crate::ops::attention::Heads;
use crate::ops::dropout::Dropout;
use crate::ops::gemm::Write;
use crate::ops::linear::{self, Activation, WeightJob};
use crate::ops::{Scalar, embed};

/// The model without its parameters: what is computed, and the table of what it is computed with.
#[derive(Clone, Debug)]
pub struct SetRank {
    config: ModelConfig,
    layout: ParamLayout,
}

/// What the model reads of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    /// Normalised features `[N, F]`, indicators of missing values included.
    pub features: &'a [T],
    /// Where each set begins and the last ends, `[B + 1]`.
    pub offsets: &'a [usize],
    /// For each initial ranking the row of its ordinal table for each document `[R][N]`; −1 = none.
    pub ordinals: &'a [Vec<i32>],
}

/// Numbers the step for dropout; evaluation has none.
#[derive(Clone, Copy, Debug)]
pub struct TrainingStep {
    /// The run's seed.
    pub seed: u64,
    /// The optimiser step.
    pub step: u64,
}

/// All buffers of a forward and backward pass, reused from batch to batch.
#[derive(Clone, Debug, Default)]
pub struct Workspace<T> {
    scores: Vec<T>,
    /// Input of each block and output of the last; two in turn where no backward follows.
    hidden: Vec<Vec<T>>,
    embedding: EmbeddingActivations<T>,
    blocks: Vec<BlockActivations<T>>,
    block_gradients: BlockGradients<T>,
    inducing_offsets: Vec<usize>,
    d_hidden: Vec<T>,
    scratch: Scratch<T>,
}

impl<T: Default> Workspace<T> {
    /// Of passes that all have the same parameters, whose weights are packed once: twice their memory.
    pub fn of_same_parameters() -> Self {
        let mut workspace = Self::default();
        workspace.scratch.packed = PackedWeights::kept();
        workspace
    }
}

impl<T> Workspace<T> {
    /// Scores `[N]` of the last forward pass.
    pub fn scores(&self) -> &[T] {
        &self.scores
    }
}

impl<T: Scalar> Workspace<T> {
    /// Bytes of packed weights, which are among those of [`bytes`](Self::bytes) that do not grow with the batch.
    pub fn packed_bytes(&self) -> usize {
        self.scratch.packed.bytes()
    }

    /// Bytes held by the buffers that grow with the batch, and by all others.
    pub fn bytes(&self) -> (usize, usize) {
        let hidden: usize = self.hidden.iter().map(|rows| size_of_val(&**rows)).sum();
        let blocks: usize = self.blocks.iter().map(BlockActivations::bytes).sum();
        let own = size_of_val(&*self.scores) + size_of_val(&*self.d_hidden);
        let (scratch, block_gradients) = (self.scratch.bytes(), self.block_gradients.bytes());
        let of_batch = hidden + blocks + own + self.embedding.bytes() + scratch.0 + block_gradients.0;
        (of_batch, scratch.1 + block_gradients.1)
    }
}

/// Whether forward keeps what backward needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// One block's buffers serve all blocks.
    Nothing,
    /// Backward may follow.
    ForBackward,
}

impl SetRank {
    /// The model that `config` describes.
    pub fn new(config: ModelConfig) -> Result<Self> {
        config.validate()?;
        let layout = ParamLayout::new(&config);
        Ok(SetRank { config, layout })
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Cuts lists to the first `top_k` documents of the first initial ranking, or not (`None` or 0); no parameter depends on it.
    pub fn set_top_k(&mut self, top_k: Option<usize>) {
        self.config.top_k = top_k.filter(|&k| k > 0);
    }

    /// Trains on with another dropout of the attention weights; no parameter depends on it.
    pub fn set_dropout(&mut self, dropout: f64) -> Result<()> {
        self.config.dropout = dropout;
        self.config.validate()
    }

    /// Its table of parameters.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// Scores `[N]` of the batch's documents, left in `workspace`.
    ///
    /// `params` is laid out as [`ParamLayout`] says; every set has at least one document.
    pub fn forward<T: Scalar>(
        &self,
        workspace: &mut Workspace<T>,
        params: &[T],
        inputs: Inputs<'_, T>,
        keep: Keep,
        training: Option<TrainingStep>,
    ) {
        assert_eq!(inputs.ordinals.len(), self.config.num_rankings(), "initial rankings");
        let blocks = self.layout.blocks.len();
        let (saved, rows) = match keep {
            Keep::Nothing => (blocks.min(1), 2),
            Keep::ForBackward => (blocks, blocks + 1),
        };
        workspace.blocks.resize_with(saved, BlockActivations::default);
        workspace.hidden.resize_with(rows, Vec::new);
        self.place_inducing(workspace, inputs.offsets);

        let Workspace { scores, hidden, embedding, blocks: kept, inducing_offsets, scratch, .. } = workspace;
        self.embedding(params).forward(&mut hidden[0], embedding, scratch, inputs.features, keep);
        if self.ordinal_at(OrdinalAt::Input) {
            self.add_ordinals(&mut hidden[0], params, inputs.ordinals);
        }
        let sets = BatchSets { documents: inputs.offsets, inducing: inducing_offsets };
        for (t, slots) in self.layout.blocks.iter().enumerate() {
            let (from, to) = (t % rows, (t + 1) % rows);
            if self.ordinal_at(OrdinalAt::EveryBlock) {
                self.add_ordinals(&mut hidden[from], params, inputs.ordinals);
            }
            let mut out = std::mem::take(&mut hidden[to]);
            let block = self.block(t, slots, params, sets, keep, training);
            block.forward(&mut out, &mut kept[t % saved], scratch, &hidden[from]);
            hidden[to] = out;
        }
        let last = &hidden[blocks % rows];
        scores.resize(last.len() / self.config.hidden_size, T::ZERO);
        let score = &self.layout.score;
        let [weight] = scratch.packed.forward([score], params);
        linear::product(scores, Write::Set, last, weight, score.of(params).finish(Activation::Identity));
    }

    /// gradients += d loss / d params, given d loss / d scores `[N]`, after [`forward`](Self::forward) on the same
    /// inputs with [`Keep::ForBackward`].
    pub fn backward<T: Scalar>(
        &self,
        workspace: &mut Workspace<T>,
        params: &[T],
        gradients: &mut [T],
        inputs: Inputs<'_, T>,
        d_scores: &[T],
        training: Option<TrainingStep>,
    ) {
        let blocks = self.layout.blocks.len();
        let Workspace {
            hidden,
            embedding,
            blocks: kept,
            block_gradients,
            inducing_offsets,
            d_hidden,
            scratch,
            ..
        } = workspace;
        scratch.threads.prepare();
        let score =
            WeightJob { gradients: self.layout.score.of_mut(gradients), dy: d_scores, x: &hidden[blocks] };
        linear::backward_weights([score], &scratch.threads);
        d_hidden.resize(hidden[blocks].len(), T::ZERO);
        let score = self.layout.score.of(params);
        linear::backward_input(d_hidden, Write::Set, d_scores, score, &mut scratch.packed.places[0]);
        let sets = BatchSets { documents: inputs.offsets, inducing: inducing_offsets };
        for (t, slots) in self.layout.blocks.iter().enumerate().rev() {
            let block = self.block(t, slots, params, sets, Keep::ForBackward, training);
            block.backward(d_hidden, &kept[t], block_gradients, scratch, gradients, &hidden[t]);
            if self.ordinal_at(OrdinalAt::EveryBlock) {
                self.add_ordinal_gradients(gradients, d_hidden, inputs.ordinals);
            }
        }
        if self.ordinal_at(OrdinalAt::Input) {
            self.add_ordinal_gradients(gradients, d_hidden, inputs.ordinals);
        }
        self.embedding(params).backward(d_hidden, embedding, scratch, gradients, inputs.features);
    }

    fn embedding<'a, T>(&'a self, params: &'a [T]) -> Embedding<'a, T> {
        Embedding {
            slots: &self.layout.input,
            params,
            num_features: self.config.input_size(),
            eps: self.config.layer_norm_eps,
        }
    }

    fn block<'a, T>(
        &'a self,
        index: usize,
        slots: &'a BlockSlots,
        params: &'a [T],
        sets: BatchSets<'a>,
        keep: Keep,
        training: Option<TrainingStep>,
    ) -> Block<'a, T> {
        let config = &self.config;
        let dropout = [0, 1].map(|attention| {
            let step = training?;
            Dropout::new(config.dropout, step.seed, step.step, 2 * index + attention)
        });
        let heads = Heads { count: config.num_heads, width: config.head_size() };
        let pass = Pass { params, heads, qkv_relu: config.qkv_relu, eps: config.layer_norm_eps, keep };
        Block { pass, slots, sets, dropout }
    }

    fn ordinal_at(&self, place: OrdinalAt) -> bool {
        self.config.ordinal.is_some_and(|ordinal| ordinal.at == place)
    }

    fn add_ordinals<T: Scalar>(&self, x: &mut [T], params: &[T], ordinals: &[Vec<i32>]) {
        for (table, indices) in self.layout.ordinals.iter().zip(ordinals) {
            embed::forward(x, table.of(params), indices, self.config.hidden_size);
        }
    }

    fn add_ordinal_gradients<T: Scalar>(&self, gradients: &mut [T], dx: &[T], ordinals: &[Vec<i32>]) {
        for (table, indices) in self.layout.ordinals.iter().zip(ordinals) {
            embed::backward(table.of_mut(gradients), dx, indices, self.config.hidden_size);
        }
    }

    fn place_inducing<T>(&self, workspace: &mut Workspace<T>, offsets: &[usize]) {
        workspace.inducing_offsets.clear();
        workspace.inducing_offsets.extend((0..offsets.len()).map(|set| set * self.config.num_inducing));
    }
}
