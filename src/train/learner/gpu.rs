//! The numbers of a training step on a GPU.

use std::collections::VecDeque;

use super::{Learner, Objective, Outcome};
use crate::Result;
use crate::data::batch::{Batch, Batcher};
use crate::device::{Arena, Buffer, DeviceError, Gpu, Staging};
use crate::model::gpu::scorer;
use crate::model::gpu::{
    Activations, DeviceBatch, Extent, GpuSetRank, Layouts, Parameters, Room, Scratch, sizes,
};
use crate::model::scorer::{self as scoring, Scorer};
use crate::model::setrank::{Keep, SetRank, TrainingStep};
use crate::ops::loss::{DeviceLabels, set_losses};
use crate::ops::optimizer::{
    AdamStep, DeviceWeights, adam_step, gradient_norm, gradient_norm_scratch_len, round_parameters,
};
use crate::train::optimizer::Adam;
use crate::train::state::Weights;

/// A model that learns on a GPU. Steps are only queued: up to as many as the trainer lets be pending.
#[derive(Debug)]
pub struct GpuLearner {
    // What is on the GPU is dropped before it.
    pending: VecDeque<Step>,
    current: Step,
    idle: Vec<Staging<f32>>,
    room: Room,
    state: DeviceState,
    schedule: GpuSetRank,
    model: SetRank,
    objective: Objective,
    steps: u64,
    /// The weights as they were last asked for.
    snapshot: Weights,
    gpu: Gpu,
}

/// What a run changes, on the GPU.
#[derive(Debug)]
struct DeviceState {
    params: Parameters,
    first: Buffer<f32>,
    second: Buffer<f32>,
    average: Option<Parameters>,
    gradients: Buffer<f32>,
    norm: Buffer<f32>,
    norm_scratch: Buffer<f32>,
}

/// What comes back of a step.
#[derive(Debug, Default)]
struct Step {
    /// For each batch the number of its sets, and their losses at the beginning of pinned memory.
    losses: Vec<(usize, Staging<f32>)>,
    norm: Option<Staging<f32>>,
}

/// Sets whose losses one piece of pinned memory takes; larger batches have larger ones.
const LOSSES: usize = 256;

impl DeviceState {
    fn new(gpu: &Gpu, layouts: &Layouts, weights: &Weights) -> Result<Self, DeviceError> {
        let len = layouts.device.len();
        let flat = len * size_of::<f32>();
        let averages = usize::from(weights.average.is_some());
        let scratch = gradient_norm_scratch_len(len);
        let bytes = (1 + averages) * Parameters::bytes(&layouts.device)
            + Arena::bytes_for([flat, flat, flat, size_of::<f32>(), scratch * size_of::<f32>()]);
        let mut arena = gpu.arena("the model's parameters, gradients and moments", bytes)?;
        let parameters = |arena: &mut Arena, values: &[f32]| -> Result<Parameters, DeviceError> {
            let mut params = Parameters::new(arena, &layouts.device)?;
            gpu.upload(&mut params.values, &layouts.to_device(values))?;
            round_parameters(gpu, &mut params.rounded, &params.values)?;
            Ok(params)
        };
        let params = parameters(&mut arena, &weights.parameters)?;
        let average = weights.average.as_ref().map(|average| parameters(&mut arena, average)).transpose()?;
        let mut state = DeviceState {
            params,
            average,
            first: arena.take(len)?,
            second: arena.take(len)?,
            gradients: arena.take(len)?,
            norm: arena.take(1)?,
            norm_scratch: arena.take(scratch)?,
        };
        gpu.upload(&mut state.first, &layouts.to_device(&weights.adam.first))?;
        gpu.upload(&mut state.second, &layouts.to_device(&weights.adam.second))?;
        Ok(state)
    }
}

impl GpuLearner {
    /// A learner that goes on from `weights`, laid out as the model's table says.
    ///
    /// # Errors
    ///
    /// A model that no kernel computes, and too little memory.
    pub fn new(
        gpu: Gpu,
        model: SetRank,
        weights: Weights,
        objective: Objective,
    ) -> Result<Self, DeviceError> {
        let schedule = GpuSetRank::new(model.config())?;
        let state = DeviceState::new(&gpu, schedule.layouts(), &weights)?;
        Ok(GpuLearner {
            pending: VecDeque::new(),
            current: Step::default(),
            idle: Vec::new(),
            room: Room::default(),
            state,
            schedule,
            model,
            objective,
            steps: weights.adam.step,
            snapshot: weights,
            gpu,
        })
    }

    /// The gradient of the parameters so far, as the processor lays it out; waits for it.
    pub fn gradients(&self) -> Result<Vec<f32>, DeviceError> {
        Ok(self.schedule.layouts().to_host(&self.gpu.download(&self.state.gradients)?))
    }

    /// Pinned memory for at least `len` values; for one, exactly.
    fn staging(&mut self, len: usize) -> Result<Staging<f32>, DeviceError> {
        let fits = |staging: &Staging<f32>| staging.len() >= len && (len == 1) == (staging.len() == 1);
        if let Some(at) = self.idle.iter().position(fits) {
            return Ok(self.idle.swap_remove(at));
        }
        self.gpu.staging(len)
    }

    fn accumulate_here(
        &mut self,
        batch: &Batch,
        sets_of_step: usize,
        training: TrainingStep,
    ) -> Result<(), DeviceError> {
        let extent = Extent::of(batch);
        let results = extent.sets.next_multiple_of(LOSSES);
        let mut staging = self.staging(results)?;
        let results = staging.len();
        let GpuLearner { gpu, room, schedule, state, objective, .. } = self;
        let (config, limits) = (schedule.config(), gpu.limits());
        let (n, value) = (extent.documents, size_of::<f32>());
        let bytes = DeviceBatch::bytes(config, extent)
            + DeviceLabels::bytes(n, extent.sets)
            + sizes::activations(config, extent, Keep::ForBackward)
            + sizes::scratch(config, extent, limits)
            + Arena::bytes_for([n * value, results * value]);
        let arena = room.arena(gpu, bytes, extent)?;
        let labels = DeviceLabels::new(gpu, arena, &batch.labels, &batch.offsets)?;
        let batch = DeviceBatch::new(gpu, arena, config, batch)?;
        let mut activations = Activations::new(arena, config, extent, Keep::ForBackward)?;
        let mut scratch = Scratch::new(arena, config, extent, limits)?;
        let mut d_scores = arena.take(n)?;
        let losses: Buffer<f32> = arena.take(results)?;

        let (params, training) = (&state.params, Some(training));
        schedule.forward(gpu, &mut activations, params, &batch, training)?;
        let mut of_sets = losses.part(0..extent.sets)?;
        let scale = 1.0 / sets_of_step as f32;
        set_losses(gpu, &mut of_sets, &mut d_scores, &activations.scores, &labels, objective.loss, scale)?;
        gpu.download_staged(&mut staging, &losses)?;
        schedule.backward(
            gpu,
            &activations,
            &mut scratch,
            params,
            &state.gradients,
            &batch,
            &d_scores,
            training,
        )?;
        self.current.losses.push((extent.sets, staging));
        Ok(())
    }

    fn finish_here(&mut self, lr: f64) -> Result<(), DeviceError> {
        let mut staging = self.staging(1)?;
        let GpuLearner { gpu, state, objective, .. } = self;
        let DeviceState { params, first, second, average, gradients, norm, norm_scratch } = state;
        gradient_norm(gpu, norm, gradients, norm_scratch)?;
        let step = AdamStep {
            lr,
            step: self.steps + 1,
            clip: objective.clip,
            adam: objective.adam,
            ema: objective.ema,
        };
        let weights = DeviceWeights {
            parameters: &mut params.values,
            rounded: &mut params.rounded,
            first,
            second,
            average: average.as_mut().map(|average| &mut average.values),
        };
        adam_step(gpu, weights, gradients, norm, &step)?;
        gpu.download_staged(&mut staging, norm)?;
        self.current.norm = Some(staging);
        self.steps += 1;
        self.pending.push_back(std::mem::take(&mut self.current));
        Ok(())
    }
}

impl Learner for GpuLearner {
    fn model(&self) -> &SetRank {
        &self.model
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn begin(&mut self) -> Result<()> {
        self.current = Step::default();
        Ok(self.gpu.zero(&mut self.state.gradients)?)
    }

    fn accumulate(&mut self, batch: &Batch, sets_of_step: usize, training: TrainingStep) -> Result<()> {
        Ok(self.accumulate_here(batch, sets_of_step, training)?)
    }

    fn finish(&mut self, lr: f64) -> Result<()> {
        Ok(self.finish_here(lr)?)
    }

    fn outcome(&mut self, wait: bool) -> Result<Option<Outcome>> {
        // Whether a step is done is not asked of the driver: to wait for the oldest of a few is as good.
        let Some(step) = wait.then(|| self.pending.pop_front()).flatten() else { return Ok(None) };
        let mut losses = Vec::new();
        for (sets, staging) in step.losses {
            let values = self.gpu.staged(&staging)?;
            losses.extend(values[..sets].iter().map(|&loss| f64::from(loss)));
            self.idle.push(staging);
        }
        let mut gradient_norm = f64::NAN;
        if let Some(staging) = step.norm {
            gradient_norm = f64::from(self.gpu.staged(&staging)?[0]);
            self.idle.push(staging);
        }
        Ok(Some(Outcome { losses, gradient_norm }))
    }

    fn snapshot(&mut self) -> Result<&Weights> {
        let GpuLearner { gpu, state, schedule, .. } = self;
        let values = |buffer: &Buffer<f32>| -> Result<Vec<f32>, DeviceError> {
            Ok(schedule.layouts().to_host(&gpu.download(buffer)?))
        };
        let average = state.average.as_ref().map(|average| values(&average.values)).transpose()?;
        self.snapshot = Weights {
            parameters: values(&state.params.values)?,
            adam: Adam { first: values(&state.first)?, second: values(&state.second)?, step: self.steps },
            average,
        };
        Ok(&self.snapshot)
    }

    fn score(&mut self, batcher: &Batcher<'_>) -> Result<Vec<f32>> {
        let GpuLearner { gpu, room, state, schedule, .. } = self;
        let params = match &mut state.average {
            Some(average) => {
                round_parameters(gpu, &mut average.rounded, &average.values)?;
                average
            }
            None => &state.params,
        };
        let mut scorer = Borrowed { gpu, room, schedule, params, scores: Vec::new() };
        scoring::score(&mut scorer, batcher, |_| {})
    }
}

/// The learner's own model as a scorer.
struct Borrowed<'a> {
    gpu: &'a Gpu,
    room: &'a mut Room,
    schedule: &'a GpuSetRank,
    params: &'a Parameters,
    scores: Vec<f32>,
}

impl Scorer for Borrowed<'_> {
    fn score(&mut self, batch: &Batch) -> Result<&[f32]> {
        self.scores = scorer::score(self.gpu, self.room, self.schedule, self.params, batch)?;
        Ok(&self.scores)
    }
}
