//! Steps on a GPU, timed by events, and what its memory and its products reach.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use half::bf16;

use super::hand_over::{HandedOver, Layout as HandOverLayout};
use super::machine;
use super::plan::{Mode, Plan};
use super::report::{GpuFigures, KernelFigures, Measured};
use super::trial::{batch, not_finite};
use crate::Result;
use crate::data::batch::{Batch, Extent};
use crate::device::choice::KernelChoice;
use crate::device::{Arena, Buffer, DeviceError, Event, Gpu, Uploads};
use crate::model::gpu::{Activations, DeviceBatch, GpuSetRank, Grids, Kept, Parameters, Source, room, sizes};
use crate::model::setrank::{Keep, SetRank, TrainingStep};
use crate::ops::linear::{Activation, DeviceLinear, Layout, LinearShape, linear_forward};
use crate::ops::optimizer::round_parameters;
use crate::rng::{Rng, Stream};
use crate::train::Learner;
use crate::train::learner::{GpuLearner, Objective};
use crate::train::state::Weights;

/// Steps in which every launch is timed, at most.
const PROFILED: usize = 3;

/// How long a card computes before it is timed: one that has idled begins at a low clock.
const WARM: Duration = Duration::from_millis(200);

/// Steps of training that may be queued.
const AHEAD: usize = 2;

/// A step that is taken again and again.
trait Step {
    fn gpu(&self) -> &Gpu;

    /// Queues step number `number`.
    fn queue(&mut self, number: u64) -> Result<()>;

    /// Waits for all steps.
    fn settle(&mut self) -> Result<()>;
}

/// The training step, on features that stay on the GPU.
struct Training {
    learner: GpuLearner,
    batch: Batch,
    seed: u64,
    lr: f64,
    queued: VecDeque<u64>,
}

impl Training {
    fn finish(&mut self) -> Result<()> {
        let (Some(step), Some(outcome)) = (self.queued.pop_front(), self.learner.outcome(true)?) else {
            return Ok(());
        };
        if outcome.losses.iter().all(|loss| loss.is_finite()) && outcome.gradient_norm.is_finite() {
            return Ok(());
        }
        Err(not_finite(step))
    }
}

impl Step for Training {
    fn gpu(&self) -> &Gpu {
        self.learner.gpu()
    }

    fn queue(&mut self, number: u64) -> Result<()> {
        self.learner.begin()?;
        let training = TrainingStep { seed: self.seed, step: number };
        self.learner.accumulate(&self.batch, Extent::of(&self.batch).sets, training)?;
        self.learner.finish(self.lr)?;
        self.queued.push_back(number);
        if self.queued.len() > AHEAD { self.finish() } else { Ok(()) }
    }

    fn settle(&mut self) -> Result<()> {
        while !self.queued.is_empty() {
            self.finish()?;
        }
        Ok(self.gpu().synchronize()?)
    }
}

/// The forward pass, on a batch that is there; where it is there in grids, each step takes it out of them.
struct Scoring {
    kept: Option<Kept>,
    batch: DeviceBatch,
    activations: Activations,
    params: Parameters,
    model: GpuSetRank,
    gpu: Gpu,
}

impl Scoring {
    fn new(
        gpu: Gpu,
        model: &SetRank,
        parameters: &[f32],
        batch: &Batch,
        handed_over: Option<&HandedOver>,
    ) -> Result<Self, DeviceError> {
        let model = GpuSetRank::new(model.config())?;
        let (config, layout) = (model.config(), &model.layouts().device);
        let (extent, keep) = (Extent::of(batch), Keep::Nothing);
        let mut arena = gpu.arena("the model's parameters", Parameters::bytes(layout))?;
        let mut params = Parameters::new(&mut arena, layout)?;
        gpu.upload(&mut params.values, &model.layouts().to_device(parameters))?;
        round_parameters(&gpu, &mut params.rounded, &params.values)?;
        let mut arena = gpu.arena("the batch", sizes::scoring(config, extent, gpu.limits()))?;
        let uploads = &mut Uploads::default();
        let grids =
            handed_over.map(|handed_over| Grids::new(&gpu, config, handed_over.grids())).transpose()?;
        let kept = grids.map(Kept::Grids);
        let batch = DeviceBatch::new(&gpu, &mut arena, uploads, config, batch, keep, kept.as_ref())?;
        let activations = Activations::new(&mut arena, config, extent, keep, gpu.limits())?;
        Ok(Scoring { kept, batch, activations, params, model, gpu })
    }
}

impl Step for Scoring {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn queue(&mut self, _: u64) -> Result<()> {
        let Scoring { kept, batch, activations, params, model, gpu } = self;
        if let Some(Kept::Grids(grids)) = kept {
            batch.unpad(gpu, grids)?;
        }
        Ok(model.scores(gpu, activations, params, batch)?)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(self.gpu.synchronize()?)
    }
}

/// Refuses a batch that the GPU has not the memory for, and a model that no kernel computes.
pub(super) fn check(gpu: &Gpu, plan: &Plan, model: &SetRank) -> Result<(), DeviceError> {
    let (config, layouts) = (model.config(), GpuSetRank::new(model.config())?);
    let extent = Extent::of_sizes(plan.sizes.iter().copied());
    let len = layouts.layouts().device.len();
    let ragged = plan.hand_over.layout == HandOverLayout::Ragged;
    let source = if ragged { Source::Resident { dropout: false } } else { Source::Grids };
    let grids = if ragged { 0 } else { 4 * plan.hand_over.rows(&plan.sizes) * config.input_size() };
    let bytes_of = |extent| match plan.mode {
        // Parameters, rounded ones, gradients, two moments.
        Mode::Train => 18 * len + grids + sizes::step(config, extent, gpu.limits(), source),
        Mode::Infer => 6 * len + grids + sizes::scoring(config, extent, gpu.limits()),
    };
    room::check(gpu, extent, bytes_of, true)
}

/// On the first GPU that can be used.
pub(super) struct GpuTrial<'a> {
    plan: &'a Plan,
    step: Box<dyn Step>,
    /// Steps taken so far.
    taken: u64,
    /// Bytes that were free before anything was there.
    free: usize,
}

impl<'a> GpuTrial<'a> {
    pub fn new(plan: &'a Plan, model: SetRank, objective: Objective, lr: f64) -> Result<Self> {
        let gpu = Gpu::first(plan.device.kernels().unwrap_or_default())?;
        check(&gpu, plan, &model)?;
        let free = gpu.memory()?.0;
        let (mut batch, seed) = (batch(plan), plan.seed);
        let handed_over = HandedOver::new(plan, &batch)?;
        if let Some(handed_over) = &handed_over {
            handed_over.unpad(&mut batch)?;
        }
        let parameters = model.layout().init(seed);
        let step: Box<dyn Step> = match plan.mode {
            Mode::Train => {
                let mut learner = GpuLearner::new(gpu, model, Weights::new(parameters), objective)?;
                match &handed_over {
                    Some(handed_over) => learner.keep_grids(handed_over.grids())?,
                    None => learner.keep_features(&batch)?,
                }
                Box::new(Training { learner, batch, seed, lr, queued: VecDeque::new() })
            }
            Mode::Infer => Box::new(Scoring::new(gpu, &model, &parameters, &batch, handed_over.as_ref())?),
        };
        Ok(GpuTrial { plan, step, taken: 0, free })
    }

    /// Takes the steps of warm-up, those that count, and a few whose launches are timed one by one.
    pub fn measure(&mut self) -> Result<Measured> {
        machine::restart_peak_rss();
        self.warm_up()?;
        let count = |gpu: &Gpu| [gpu.launches(), gpu.graph_launches()];
        let before = count(self.step.gpu());
        let events = self.take(self.plan.steps)?;
        let gpu = self.step.gpu();
        let after = count(gpu);
        let per_step = |which: usize| (after[which] - before[which]) as f64 / self.plan.steps as f64;
        let [launches_per_step, graph_launches_per_step] = [0, 1].map(per_step);
        let between = |events: &[Event]| gpu.milliseconds(&events[0], &events[1]).map(f64::from);
        let seconds: Vec<f64> =
            events.windows(2).map(|pair| between(pair).map(|ms| ms / 1e3)).collect::<Result<_, _>>()?;
        let device_bytes = self.free.saturating_sub(gpu.memory()?.0);

        let profiled = self.plan.steps.min(PROFILED);
        gpu.start_profile();
        let events = self.take(profiled)?;
        let gpu = self.step.gpu();
        let kernels = gpu.end_profile()?.into_iter().map(|time| KernelFigures {
            kernel: time.kernel.to_owned(),
            launches: time.launches as f64 / profiled as f64,
            seconds: time.seconds / profiled as f64,
        });
        let kernels: Vec<KernelFigures> = kernels.collect();
        let whole = f64::from(gpu.milliseconds(&events[0], &events[profiled])?) / 1e3 / profiled as f64;
        let unpadding = kernels.iter().filter(|kernel| kernel.kernel.starts_with("unpad"));
        let unpadding_s: f64 = unpadding.map(|kernel| kernel.seconds).sum();
        let of_kernels: f64 = kernels.iter().map(|kernel| kernel.seconds).sum();
        Ok(Measured {
            seconds,
            unpadding_s: (unpadding_s > 0.0).then_some(unpadding_s).into_iter().collect(),
            allocations_per_step: None,
            peak_rss_bytes: machine::peak_rss(),
            gpu: Some(GpuFigures {
                name: gpu.info().name.clone(),
                matrix_kernels: gpu.kernels().matrix,
                fuse: gpu.kernels().fuse,
                graphs: gpu.launches_graphs(),
                launches_per_step,
                graph_launches_per_step,
                device_bytes,
                copy_bytes_per_s: copy_bytes_per_s(gpu)?,
                exponentials_per_s: gpu.exponentials_per_s()?,
                floor_docs_per_s: None,
                share_of_floor: None,
                kernels,
                profiled_step_s: whole,
                between_kernels_s: whole - of_kernels,
            }),
        })
    }

    /// The plan's steps of warm-up, and as many more as a card needs to raise its clock.
    fn warm_up(&mut self) -> Result<()> {
        let started = Instant::now();
        self.take(self.plan.warmup)?;
        while started.elapsed() < WARM {
            self.take(1)?;
        }
        Ok(())
    }

    /// Takes `count` steps, with an event before each and behind the last.
    fn take(&mut self, count: usize) -> Result<Vec<Event>> {
        let mut events = vec![self.step.gpu().record()?];
        for _ in 0..count {
            self.step.queue(self.taken)?;
            self.taken += 1;
            events.push(self.step.gpu().record()?);
        }
        self.step.settle()?;
        Ok(events)
    }
}

/// Milliseconds that are enough for events to time.
const ENOUGH: f32 = 1.0;

/// Tries of which the fastest counts.
const TRIES: usize = 5;

/// Milliseconds of the fastest of a few runs of what `queue` queues, on a card that is warm.
fn fastest(gpu: &Gpu, mut queue: impl FnMut() -> Result<(), DeviceError>) -> Result<f32, DeviceError> {
    let started = Instant::now();
    loop {
        queue()?;
        gpu.synchronize()?;
        if started.elapsed() >= WARM {
            break;
        }
    }
    let mut best = f32::INFINITY;
    for _ in 0..TRIES {
        let start = gpu.record()?;
        queue()?;
        best = best.min(gpu.milliseconds(&start, &gpu.record()?)?);
    }
    Ok(best)
}

/// Bytes of the smallest and of the largest copy that measures the memory.
const COPIES: [usize; 2] = [16 << 20, 512 << 20];

/// Bytes a second, read and written together, of a large copy on the device: of sizes that double until one takes
/// long enough, or a quarter of what is free.
fn copy_bytes_per_s(gpu: &Gpu) -> Result<f64, DeviceError> {
    let most = (gpu.memory()?.0 / 4).clamp(1, COPIES[1]);
    let mut bytes = COPIES[0].min(most);
    loop {
        let mut from = gpu.arena("a copy", bytes)?;
        let mut to = gpu.arena("a copy", bytes)?;
        let mut from: Buffer<u8> = from.take(bytes)?;
        let mut to: Buffer<u8> = to.take(bytes)?;
        gpu.zero(&mut from)?;
        let ms = fastest(gpu, || gpu.copy(&mut to, &from))?;
        if ms >= ENOUGH || 2 * bytes > most {
            return Ok(2.0 * bytes as f64 / (f64::from(ms) / 1e3));
        }
        bytes *= 2;
    }
}

/// Sides of the smallest and of the largest product that measures the peak.
const SIDES: [usize; 2] = [256, 4096];

/// The rate of this program's own kernel of linear layers in a product of two square bf16 matrices, in 10⁹ operations a
/// second: of sides that double from 256 up to `side`, or until a product takes long enough. It is that kernel's, and may
/// lie below what the card can do.
///
/// # Errors
/// A GPU that cannot be used, or that has not the memory.
pub fn gflops(side: usize) -> Result<f64> {
    let gpu = Gpu::first(KernelChoice::default())?;
    let most = side.next_multiple_of(64).min(SIDES[1]);
    let mut side = SIDES[0].min(most);
    loop {
        let ms = product(&gpu, side)?;
        if ms >= ENOUGH || 2 * side > most {
            return Ok(2.0 * (side as f64).powi(3) / (f64::from(ms) / 1e3) / 1e9);
        }
        side *= 2;
    }
}

/// Milliseconds of the product of two matrices of `side` × `side`.
fn product(gpu: &Gpu, side: usize) -> Result<f32, DeviceError> {
    let (matrix, bias) = (side * side, side);
    let bytes = Arena::bytes_for([2 * matrix, 2 * matrix, 2 * matrix, 4 * bias]);
    let mut arena = gpu.arena("a product of matrices", bytes)?;
    // Numbers that are no zeros: a card is faster with those.
    let mut rng = Rng::new(0, Stream::Benchmark, 0);
    let some: Vec<bf16> = (0..1 << 12).map(|_| bf16::from_f64(rng.uniform() - 0.5)).collect();
    let values: Vec<bf16> = some.iter().copied().cycle().take(matrix).collect();
    let (mut x, mut weight) = (arena.take(matrix)?, arena.take(matrix)?);
    gpu.upload(&mut x, &values)?;
    gpu.upload(&mut weight, &values)?;
    let (mut y, mut bias): (Buffer<bf16>, Buffer<f32>) = (arena.take(matrix)?, arena.take(bias)?);
    gpu.zero(&mut bias)?;
    let shape = LinearShape { rows: side, inputs: side, outputs: side };
    fastest(gpu, || {
        let layer = DeviceLinear { weight: &weight, bias: &bias };
        linear_forward(gpu, &mut y, Layout::Rows, &x, layer, Activation::Identity, shape)
    })
}
