//! Scores by a GPU.

use super::activations::Activations;
use super::batch::DeviceBatch;
use super::parameters::Parameters;
use super::room::Room;
use super::setrank::GpuSetRank;
use super::sizes::{self, Extent};
use crate::Result;
use crate::config::ModelConfig;
use crate::data::batch::Batch;
use crate::device::{DeviceError, Gpu};
use crate::model::scorer::Scorer;
use crate::model::setrank::Keep;
use crate::ops::optimizer::round_parameters;

/// A model that scores on a GPU.
#[derive(Debug)]
pub struct GpuScorer {
    // Dropped before the GPU that it is of.
    room: Room,
    params: Parameters,
    model: GpuSetRank,
    scores: Vec<f32>,
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
        Ok(GpuScorer { room: Room::default(), params, model, scores: Vec::new(), gpu })
    }
}

impl Scorer for GpuScorer {
    fn score(&mut self, batch: &Batch) -> Result<&[f32]> {
        self.scores = score(&self.gpu, &mut self.room, &self.model, &self.params, batch)?;
        Ok(&self.scores)
    }
}

/// Scores `[N]` of a batch.
pub fn score(
    gpu: &Gpu,
    room: &mut Room,
    model: &GpuSetRank,
    params: &Parameters,
    batch: &Batch,
) -> Result<Vec<f32>, DeviceError> {
    let config = model.config();
    let extent = Extent::of(batch);
    let bytes = sizes::activations(config, extent, Keep::Nothing) + DeviceBatch::bytes(config, extent);
    let arena = room.arena(gpu, bytes, extent)?;
    let batch = DeviceBatch::new(gpu, arena, config, batch)?;
    let mut activations = Activations::new(arena, config, extent, Keep::Nothing)?;
    model.forward(gpu, &mut activations, params, &batch, None)?;
    gpu.download(&activations.scores)
}
