//! The numbers of a training step on a GPU.

use std::collections::VecDeque;

use super::{Feeding, Learner, Objective, Outcome};
use crate::Result;
use crate::data::batch::{Batch, Batcher, Extent};
use crate::data::layout::Grid;
use crate::device::{Arena, Buffer, DeviceError, Downloads, Gpu, Queued, Uploads};
use crate::model::gpu::{
    Activations, DeviceBatch, GpuSetRank, Grids, Kept, Layouts, Losses, Parameters, Resident, Room, Scoring,
    Scratch, Source, Target, room, sizes,
};
use crate::model::scorer::{self, Scorer};
use crate::model::setrank::{Keep, SetRank, TrainingStep};
use crate::ops::loss::SetLossesPlan;
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
    downloads: Downloads<f32>,
    uploads: Uploads,
    /// Features of the training data, where they stay on the GPU.
    kept: Option<Kept>,
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
    /// Losses `[B]` of each batch.
    losses: Vec<Queued<f32>>,
    norm: Option<Queued<f32>>,
}

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
            downloads: Downloads::default(),
            uploads: Uploads::default(),
            kept: None,
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

    /// The GPU that it learns on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Has the features of `batch`, which is to be the only one, stay on the GPU.
    ///
    /// # Errors
    ///
    /// Too little memory, and what the driver refuses.
    pub fn keep_features(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let GpuLearner { gpu, uploads, schedule, .. } = self;
        self.kept = Some(Kept::Resident(Resident::of_batch(gpu, uploads, schedule.config(), batch)?));
        Ok(())
    }

    /// Has the features of the batch of these grids, which is to be the only one, stay on the GPU as they were handed over:
    /// each step takes its documents' rows out of them there, by lengths or mask.
    ///
    /// # Errors
    ///
    /// As [`Grids::new`].
    pub fn keep_grids(&mut self, grids: &[Grid]) -> Result<(), DeviceError> {
        self.kept = Some(Kept::Grids(Grids::new(&self.gpu, self.schedule.config(), grids)?));
        Ok(())
    }

    /// The gradient of the parameters so far, as the processor lays it out; waits for it.
    pub fn gradients(&self) -> Result<Vec<f32>, DeviceError> {
        Ok(self.schedule.layouts().to_host(&self.gpu.download(&self.state.gradients)?))
    }

    /// Where the features of batches of `train` come from, given what is free now.
    fn feeding(
        &self,
        train: &Batcher<'_>,
        largest: Extent,
        valid: Option<&Batcher<'_>>,
    ) -> Result<Feeding, DeviceError> {
        if !train.has_constant_features() {
            return Ok(Feeding::Noisy);
        }
        let (config, limits) = (self.schedule.config(), self.gpu.limits());
        let source = Source::Resident { dropout: train.drops_features() };
        let step = sizes::step(config, largest, limits, source);
        let scoring = valid.map_or(0, |valid| sizes::scoring(config, scorer::largest(valid), limits));
        let features = Resident::bytes(config, train);
        Ok(Feeding::of_constant(features, step.max(scoring), self.gpu.memory()?.0))
    }

    fn accumulate_here(
        &mut self,
        batch: &Batch,
        sets_of_step: usize,
        training: TrainingStep,
    ) -> Result<(), DeviceError> {
        let GpuLearner { gpu, room, uploads, downloads, kept, schedule, state, objective, .. } = self;
        let (config, limits, keep) = (schedule.config(), gpu.limits(), Keep::ForBackward);
        let extent = Extent::of(batch);
        let source = Source::of(batch, kept.as_ref());
        let arena = room.arena(gpu, extent, |extent| sizes::step(config, extent, limits, source), true)?;
        let batch = DeviceBatch::new(gpu, arena, uploads, config, batch, keep, kept.as_ref())?;
        let mut activations = Activations::new(arena, config, extent, keep, limits)?;
        let mut scratch = Scratch::new(arena, config, extent, limits)?;
        let mut losses = Losses::new(arena, extent)?;

        let (params, training) = (&state.params, Some(training));
        let target = Target { loss: objective.loss, scale: 1.0 / sets_of_step as f32 };
        gpu.graph("a batch's forward and backward pass", || {
            let (activations, gradients) = (&mut activations, &state.gradients);
            schedule.forward(gpu, activations, params, &batch, training)?;
            let (scratch, losses) = (&mut scratch, &mut losses);
            schedule.backward(gpu, activations, scratch, losses, params, gradients, &batch, target, training)
        })?;
        self.current.losses.push(downloads.queue(gpu, &losses.of_sets)?);
        Ok(())
    }

    fn finish_here(&mut self, lr: f64) -> Result<(), DeviceError> {
        let GpuLearner { gpu, state, objective, downloads, .. } = self;
        let DeviceState { params, first, second, average, gradients, norm, norm_scratch } = state;
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
        gpu.graph("the optimiser's step", || {
            gradient_norm(gpu, norm, gradients, norm_scratch)?;
            adam_step(gpu, weights, gradients, norm, &step)
        })?;
        self.current.norm = Some(downloads.queue(gpu, norm)?);
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

    fn prepare(
        &mut self,
        train: &Batcher<'_>,
        largest: Extent,
        valid: Option<&Batcher<'_>>,
    ) -> Result<Option<Feeding>> {
        // Known before anything runs, not in the middle of an epoch.
        let longest = train.sets().iter().map(|&query| train.set_size(query)).max().unwrap_or(0);
        SetLossesPlan::new(longest, &[0, longest])?.launch(self.objective.loss, self.gpu.limits())?;
        let (config, limits) = (self.schedule.config(), self.gpu.limits());
        let step = |extent| sizes::step(config, extent, limits, Source::Batch);
        room::check(&self.gpu, Extent::of_sizes([longest]), step, false)?;
        if let Some(valid) = valid {
            let scoring = |&extent: &Extent| sizes::scoring(config, extent, limits);
            if let Some(most) = scorer::extents(valid).into_iter().max_by_key(scoring) {
                room::check(&self.gpu, most, |extent| scoring(&extent), false)?;
            }
        }
        self.kept = None;
        let feeding = self.feeding(train, largest, valid)?;
        if let Feeding::Resident { .. } = feeding {
            let config = self.schedule.config();
            self.kept = Some(Kept::Resident(Resident::new(&self.gpu, &mut self.uploads, config, train)?));
        }
        Ok(Some(feeding))
    }

    fn needs_features(&self) -> bool {
        self.kept.is_none()
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
        let GpuLearner { gpu, downloads, .. } = self;
        let mut losses = Vec::new();
        for queued in step.losses {
            losses.extend(downloads.wait(gpu, queued)?.into_iter().map(f64::from));
        }
        let norm = step.norm.map(|queued| downloads.wait(gpu, queued)).transpose()?;
        let norm = norm.and_then(|norm| norm.first().copied());
        let gradient_norm = norm.map_or(f64::NAN, f64::from);
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
        let GpuLearner { gpu, room, uploads, state, schedule, .. } = self;
        let params = match &mut state.average {
            Some(average) => {
                round_parameters(gpu, &mut average.rounded, &average.values)?;
                average
            }
            None => &state.params,
        };
        let mut own = Borrowed { gpu, room, uploads, schedule, params, scoring: Scoring::default() };
        scorer::score(&mut own, batcher, |_| {})
    }
}

/// The learner's own model as a scorer.
struct Borrowed<'a> {
    gpu: &'a Gpu,
    room: &'a mut Room,
    uploads: &'a mut Uploads,
    schedule: &'a GpuSetRank,
    params: &'a Parameters,
    scoring: Scoring,
}

impl Scorer for Borrowed<'_> {
    fn runs_ahead(&self) -> bool {
        true
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        let Borrowed { gpu, room, uploads, schedule, params, scoring } = self;
        Ok(scoring.begin(gpu, room, uploads, schedule, params, batch)?)
    }

    fn finish(&mut self) -> Result<&[f32]> {
        Ok(self.scoring.finish(self.gpu)?)
    }
}
