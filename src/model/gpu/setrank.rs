//! The schedule: embed → blocks → scores, and losses and its mirror.

use std::ops::Range;

use half::bf16;

use super::activations::{Activations, Losses, Scratch};
use super::batch::DeviceBatch;
use super::block::{self, Block};
use super::embedding::Embedding;
use super::flow::Flow;
use super::limits;
use super::mab::{Backward, Pass};
use super::parameters::{Layouts, Parameters};
use crate::config::{ModelConfig, OrdinalAt};
use crate::device::{Buffer, DeviceError, Gpu};
use crate::model::layout::BlockSlots;
use crate::model::setrank::{Keep, TrainingStep};
use crate::ops::attention::{AttentionScratch, Heads};
use crate::ops::dropout::Dropout;
use crate::ops::embed::{embed_backward, embed_forward};
use crate::ops::loss::{Loss, set_losses};
use crate::ops::partial_sums::PendingSums;
use crate::ops::score::{score_backward, score_forward};
use crate::ops::score_loss::{ScoreLossPlan, ScoreLossResults, score_losses};

/// What is learned of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The loss of a set.
    pub loss: Loss,
    /// What its gradients are multiplied by.
    pub scale: f32,
}

/// The model without its parameters, as a GPU computes it.
#[derive(Clone, Debug)]
pub struct GpuSetRank {
    config: ModelConfig,
    layouts: Layouts,
}

impl GpuSetRank {
    /// The model that `config` describes; refused where no kernel computes it.
    pub fn new(config: &ModelConfig) -> Result<Self, DeviceError> {
        limits::check(config)?;
        Ok(GpuSetRank { config: config.clone(), layouts: Layouts::new(config) })
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where its parameters stand.
    pub fn layouts(&self) -> &Layouts {
        &self.layouts
    }

    /// Queues a batch's rows `[N, C]` behind the last block, which stand in `activations` afterwards: what
    /// [`backward`](Self::backward) takes.
    pub fn forward(
        &self,
        gpu: &Gpu,
        activations: &mut Activations,
        params: &Parameters,
        batch: &DeviceBatch,
        training: Option<TrainingStep>,
    ) -> Result<(), DeviceError> {
        let Activations { hidden, inner, attention, point_queries, keep, embedding, blocks: kept, .. } =
            activations;
        let pass = self.pass(gpu, params, inner, attention, *keep);
        let (rows, saved) = (hidden.len(), kept.len());
        self.embedding(pass, batch).forward(&mut hidden[0], embedding)?;
        if self.ordinal_at(OrdinalAt::Input) {
            self.add_ordinals(pass, &mut hidden[0], embedding.before_ordinals(), batch)?;
        }
        let layout = &self.layouts.device;
        block::project_points(&pass, &layout.blocks, point_queries)?;
        // A block's input is projected by the block before, if that is where it comes from as it is.
        let by_the_one_before = |t: usize| t > 0 && !self.ordinal_at(OrdinalAt::EveryBlock);
        for (t, slots) in layout.blocks.iter().enumerate() {
            let (from, to) = (t % rows, (t + 1) % rows);
            if self.ordinal_at(OrdinalAt::EveryBlock) {
                let x = if t == 0 { embedding.before_ordinals() } else { None };
                self.add_ordinals(pass, &mut hidden[from], x, batch)?;
            }
            let [x, out] = hidden
                .get_disjoint_mut([from, to])
                .map_err(|_| DeviceError::Shapes("a pass needs two rows or more".into()))?;
            if !by_the_one_before(t) {
                pass.project(block::projection(slots, &kept[t % saved])?, x)?;
            }
            let next = layout.blocks.get(t + 1).filter(|_| by_the_one_before(t + 1));
            // One block's buffers for all are done with by then.
            let then = next.map(|slots| block::projection(slots, &kept[(t + 1) % saved])).transpose()?;
            let saved = &mut kept[t % saved];
            if let Some(queries) = point_queries.get(t) {
                saved.turn_to(queries);
            }
            self.block(pass, t, slots, batch, training).forward(out, saved, x, then)?;
        }
        Ok(())
    }

    /// Queues the scores `[N]` of a batch that nothing is learned from, which stand in `activations` afterwards, as one
    /// [graph](Gpu::graph) where those were asked for.
    pub fn scores(
        &self,
        gpu: &Gpu,
        activations: &mut Activations,
        params: &Parameters,
        batch: &DeviceBatch,
    ) -> Result<(), DeviceError> {
        gpu.graph("a batch's forward pass", || {
            self.forward(gpu, activations, params, batch, None)?;
            let [weight, bias] = self.score(params)?;
            let Activations { scores, hidden, .. } = activations;
            let last = &hidden[self.layouts.device.blocks.len() % hidden.len()];
            score_forward(gpu, scores, last, &weight, &bias)
        })
    }

    /// Queues the scores `[N]` and the losses `[B]` of a batch's sets, and gradients += d Σ losses·scale / d params, after
    /// [`forward`](Self::forward) of the same batch on activations that are kept.
    #[allow(clippy::too_many_arguments)] // what a pass reads, and what it writes
    pub fn backward(
        &self,
        gpu: &Gpu,
        activations: &mut Activations,
        scratch: &mut Scratch,
        losses: &mut Losses,
        params: &Parameters,
        gradients: &Buffer<f32>,
        batch: &DeviceBatch,
        target: Target,
        training: Option<TrainingStep>,
    ) -> Result<(), DeviceError> {
        let Activations { scores, hidden, inner, attention, keep, embedding, blocks: kept, .. } = activations;
        let Scratch { documents: flow, points, d_hidden, d_projected, delta, sums } = scratch;
        if *keep != Keep::ForBackward {
            return Err(DeviceError::Shapes("backward follows a pass that kept what it needs".into()));
        }
        let mut sums = PendingSums::new(sums.part(0..sums.len())?);
        let with = &mut Backward { gradients, sums: &mut sums, d_hidden, d_projected, delta };
        let pass = self.pass(gpu, params, inner, attention, *keep);
        let layout = &self.layouts.device;
        let last = &hidden[layout.blocks.len()];
        self.loss(pass, with, &mut flow.d, scores, losses, last, batch, target)?;
        for (t, slots) in layout.blocks.iter().enumerate().rev() {
            let block = self.block(pass, t, slots, batch, training);
            block.backward(with, flow, points.as_mut(), &kept[t], &hidden[t])?;
            if self.ordinal_at(OrdinalAt::EveryBlock) {
                self.add_ordinal_gradients(gpu, gradients, flow, batch)?;
            }
        }
        if let Some(points) = points {
            block::points_backward(&pass, gradients, &layout.blocks, &points.d_queries)?;
        }
        if self.ordinal_at(OrdinalAt::Input) {
            self.add_ordinal_gradients(gpu, gradients, flow, batch)?;
        }
        self.embedding(pass, batch).backward(with, flow, embedding, &hidden[0])?;
        sums.finish(gpu)
    }

    /// Scores and losses of the last rows, and their gradient dx `[N, C]`: one kernel where that pays, else three.
    #[allow(clippy::too_many_arguments)] // as above
    fn loss(
        &self,
        pass: Pass<'_>,
        with: &mut Backward<'_>,
        dx: &mut Buffer<bf16>,
        scores: &mut Buffer<f32>,
        losses: &mut Losses,
        last: &Buffer<bf16>,
        batch: &DeviceBatch,
        Target { loss, scale }: Target,
    ) -> Result<(), DeviceError> {
        let Some(labels) = &batch.labels else {
            return Err(DeviceError::Shapes("a batch without labels cannot be learned from".into()));
        };
        let (gpu, Losses { of_sets, d_scores }) = (pass.gpu, losses);
        let [weight, bias] = self.score(pass.params)?;
        let [mut d_weight, mut d_bias] = with.gradients_at(self.layouts.device.score.ranges())?;
        let (d_weight, d_bias) = (&mut d_weight, &mut d_bias);
        if ScoreLossPlan::new(*labels.plan(), self.config.hidden_size)?.pays(loss, gpu.limits()) {
            let results = ScoreLossResults { scores, losses: of_sets, d_scores, dx, d_weight, d_bias };
            return score_losses(gpu, results, last, &weight, &bias, labels, loss, scale, with.sums);
        }
        score_forward(gpu, scores, last, &weight, &bias)?;
        set_losses(gpu, of_sets, d_scores, scores, labels, loss, scale)?;
        score_backward(gpu, dx, d_weight, d_bias, d_scores, last, &weight, with.sums)
    }

    fn pass<'a>(
        &self,
        gpu: &'a Gpu,
        params: &'a Parameters,
        inner: &'a Buffer<bf16>,
        attention: &'a AttentionScratch,
        keep: Keep,
    ) -> Pass<'a> {
        let config = &self.config;
        let heads = Heads { count: config.num_heads, width: config.head_size() };
        let (ffn_size, eps) = (config.ffn_size, config.layer_norm_eps);
        Pass { gpu, params, heads, ffn_size, qkv_relu: config.qkv_relu, eps, inner, attention, keep }
    }

    fn embedding<'a>(&'a self, pass: Pass<'a>, batch: &'a DeviceBatch) -> Embedding<'a> {
        let (slots, config) = (&self.layouts.device.input, &self.config);
        Embedding { pass, slots, config, features: &batch.features, rows: batch.extent.documents }
    }

    fn block<'a>(
        &'a self,
        pass: Pass<'a>,
        number: usize,
        slots: &'a BlockSlots,
        batch: &'a DeviceBatch,
        training: Option<TrainingStep>,
    ) -> Block<'a> {
        let dropout = [0, 1].map(|attention| {
            let step = training?;
            Dropout::new(self.config.dropout, step.seed, step.step, 2 * number + attention)
        });
        Block { pass, number, slots, sets: &batch.attentions, dropout }
    }

    /// Weight `[C]` and bias `[1]` of the score.
    fn score(&self, params: &Parameters) -> Result<[Buffer<f32>; 2], DeviceError> {
        let [weight, bias] = self.layouts.device.score.ranges();
        Ok([params.values.part(weight)?, params.values.part(bias)?])
    }

    fn ordinal_at(&self, place: OrdinalAt) -> bool {
        self.config.ordinal.is_some_and(|ordinal| ordinal.at == place)
    }

    /// y `[N, C]` = x + the rows of the ordinal tables; in place without x.
    fn add_ordinals(
        &self,
        pass: Pass<'_>,
        y: &mut Buffer<bf16>,
        x: Option<&Buffer<bf16>>,
        batch: &DeviceBatch,
    ) -> Result<(), DeviceError> {
        let Some(ordinals) = &batch.ordinals else { return Err(no_ordinals()) };
        let tables = pass.params.values.part(self.tables())?;
        embed_forward(pass.gpu, y, x, &tables, ordinals, self.config.hidden_size)
    }

    fn add_ordinal_gradients(
        &self,
        gpu: &Gpu,
        gradients: &Buffer<f32>,
        flow: &mut Flow,
        batch: &DeviceBatch,
    ) -> Result<(), DeviceError> {
        let Some(ordinals) = &batch.ordinals else { return Err(no_ordinals()) };
        flow.settle(gpu)?;
        let mut d_tables = gradients.part(self.tables())?;
        embed_backward(gpu, &mut d_tables, &flow.d, ordinals, self.config.hidden_size)
    }

    /// Where the ordinal tables stand, one behind the other.
    fn tables(&self) -> Range<usize> {
        let tables = &self.layouts.device.ordinals;
        let begin = tables.first().map_or(0, |table| table.range().start);
        begin..tables.last().map_or(begin, |table| table.range().end)
    }
}

fn no_ordinals() -> DeviceError {
    DeviceError::Shapes("the batch was made for a model without initial rankings".into())
}
