//! Scores by a GPU.

use std::collections::VecDeque;

use super::activations::Activations;
use super::batch::DeviceBatch;
use super::parameters::Parameters;
use super::room::Room;
use super::setrank::GpuSetRank;
use super::sizes::{self, Extent};
use crate::Result;
use crate::config::ModelConfig;
use crate::data::batch::Batch;
use crate::device::{DeviceError, Downloads, Gpu, Queued, Uploads};
use crate::model::scorer::Scorer;
use crate::model::setrank::Keep;
use crate::ops::optimizer::round_parameters;

/// A model that scores on a GPU.
#[derive(Debug)]
pub struct GpuScorer {
    // Dropped before the GPU that it is of.
    scoring: Scoring,
    room: Room,
    uploads: Uploads,
    params: Parameters,
    model: GpuSetRank,
    gpu: Gpu,
}

impl GpuScorer {
    /// The model of `config` with `parameters` laid out as its table says, on a GPU.
    pub fn new(gpu: Gpu, config: &ModelConfig, parameters: &[f32]) -> Result<Self, DeviceError> {
        let model = GpuSetRank::new(config)?;
        let layout = &model.layouts().device;
        let mut arena = gpu.arena("the model's parameters", Parameters::bytes(layout))?;
        let mut params = Parameters::new(&mut arena, layout)?;
        gpu.upload(&mut params.values, &model.layouts().to_device(parameters))?;
        round_parameters(&gpu, &mut params.rounded, &params.values)?;
        let (scoring, room, uploads) = Default::default();
        Ok(GpuScorer { scoring, room, uploads, params, model, gpu })
    }
}

impl Scorer for GpuScorer {
    fn runs_ahead(&self) -> bool {
        true
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        let GpuScorer { scoring, room, uploads, params, model, gpu } = self;
        Ok(scoring.begin(gpu, room, uploads, model, params, batch)?)
    }

    fn finish(&mut self) -> Result<&[f32]> {
        Ok(self.scoring.finish(&self.gpu)?)
    }
}

/// Batches that are being scored.
#[derive(Debug, Default)]
pub struct Scoring {
    begun: VecDeque<Queued<f32>>,
    downloads: Downloads<f32>,
    scores: Vec<f32>,
}

impl Scoring {
    /// Queues the scores of a batch.
    pub fn begin(
        &mut self,
        gpu: &Gpu,
        room: &mut Room,
        uploads: &mut Uploads,
        model: &GpuSetRank,
        params: &Parameters,
        batch: &Batch,
    ) -> Result<(), DeviceError> {
        let config = model.config();
        let (extent, keep) = (Extent::of(batch), Keep::Nothing);
        let arena = room.arena(gpu, extent, |extent| sizes::scoring(config, extent, gpu.limits()), false)?;
        let batch = DeviceBatch::new(gpu, arena, uploads, config, batch, keep, None)?;
        let mut activations = Activations::new(arena, config, extent, keep, gpu.limits())?;
        model.scores(gpu, &mut activations, params, &batch)?;
        self.begun.push_back(self.downloads.queue(gpu, &activations.scores)?);
        Ok(())
    }

    /// The scores `[N]` of the oldest batch that was begun, once they are there; none where none was.
    pub fn finish(&mut self, gpu: &Gpu) -> Result<&[f32], DeviceError> {
        self.scores = match self.begun.pop_front() {
            Some(queued) => self.downloads.wait(gpu, queued)?,
            None => Vec::new(),
        };
        Ok(&self.scores)
    }
}
