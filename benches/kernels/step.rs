//! A whole training step and a scoring pass of both encoders: sets of 40 documents, a model of two blocks of full size, as
//! `train_step` has them on the processor. What a step has in memory exceeds any cache. `setrank bench` measures other sizes,
//! deeper models, and each kernel's share.

use criterion::Criterion;
use setrank::config::{Encoder, ModelConfig};
use setrank::data::batch::{Batch, Extent};
use setrank::device::{Gpu, Uploads};
use setrank::model::gpu::{Activations, DeviceBatch, GpuSetRank, Parameters, sizes};
use setrank::model::setrank::{Keep, SetRank, TrainingStep};
use setrank::ops::optimizer::round_parameters;
use setrank::rng::{Rng, Stream};
use setrank::train::config::Preset;
use setrank::train::learner::{GpuLearner, Objective};
use setrank::train::state::Weights;
use setrank::train::{Learner, TrainConfig};
use setrank::{Error, Result};

use crate::card::{Card, FEATURES, SIZES, offsets};
use crate::timing::{Measured, elapsed, timed};

/// Steps of training that may be queued.
const AHEAD: u64 = 2;

/// Random features and labels of so many sets.
fn batch(sets: usize) -> Batch {
    let mut rng = Rng::new(1, Stream::Benchmark, 1);
    let documents = sets * SIZES[0];
    Batch {
        queries: (0..sets).collect(),
        offsets: offsets(sets, SIZES[0]),
        rows: (0..documents).collect(),
        features: (0..documents * FEATURES).map(|_| rng.normal() as f32).collect(),
        labels: (0..documents).map(|_| rng.below(5) as f32).collect(),
        ..Batch::default()
    }
}

/// Another use of the card's GPU, by the same kernels: learners have one of their own.
fn gpu(card: &Card) -> Result<Gpu> {
    let gpu = Gpu::new(card.gpu.info().ordinal)?;
    Ok(if card.gpu.limits().wgmma { gpu.with_wgmma()? } else { gpu })
}

/// The step of `setrank train` on features that stay on the GPU.
fn learner(card: &Card, model: &SetRank, batch: &Batch) -> Result<GpuLearner> {
    let recommended = TrainConfig::preset(Preset::Default);
    let (loss, clip) = (recommended.loss, recommended.clip);
    let objective = Objective { loss, clip, adam: recommended.adam(), ema: 0.0 };
    let weights = Weights::new(model.layout().init(1));
    let mut learner = GpuLearner::new(gpu(card)?, model.clone(), weights, objective)?;
    learner.keep_features(batch)?;
    Ok(learner)
}

/// A batch on the GPU, and what scores it.
struct Scoring {
    batch: DeviceBatch,
    activations: Activations,
    params: Parameters,
    model: GpuSetRank,
}

impl Scoring {
    fn new(gpu: &Gpu, model: &SetRank, batch: &Batch) -> Result<Self> {
        let (parameters, model) = (model.layout().init(1), GpuSetRank::new(model.config())?);
        let (config, layout) = (model.config(), &model.layouts().device);
        let (extent, keep) = (Extent::of(batch), Keep::Nothing);
        let mut arena = gpu.arena("the model's parameters", Parameters::bytes(layout))?;
        let mut params = Parameters::new(&mut arena, layout)?;
        gpu.upload(&mut params.values, &model.layouts().to_device(&parameters))?;
        round_parameters(gpu, &mut params.rounded, &params.values)?;
        let mut arena = gpu.arena("the batch", sizes::scoring(config, extent, gpu.limits()))?;
        let uploads = &mut Uploads::default();
        let batch = DeviceBatch::new(gpu, &mut arena, uploads, config, batch, keep, None)?;
        let activations = Activations::new(&mut arena, config, extent, keep, gpu.limits())?;
        Ok(Scoring { batch, activations, params, model })
    }
}

/// Training and scoring by both encoders.
pub fn steps(criterion: &mut Criterion, card: &Card) {
    let sets = card.sets(SIZES[0]);
    let (batch, documents) = (batch(sets), sets * SIZES[0]);
    for encoder in [Encoder::Msab, Encoder::Imsab] {
        let config = ModelConfig { num_features: FEATURES, num_blocks: 2, encoder, ..ModelConfig::default() };
        let model = SetRank::new(config).expect("a model of full size");
        let group = &card.group(encoder.name());
        let (mut training, mut step) = (None, 0);
        Measured::rows(group, "train", documents).steps(criterion, &card.gpu, |count| {
            let learner = match &mut training {
                Some(learner) => learner,
                None => training.insert(learner(card, &model, &batch)?),
            };
            let mut queued = 0;
            let start = learner.gpu().record()?;
            for _ in 0..count {
                learner.begin()?;
                learner.accumulate(&batch, sets, TrainingStep { seed: 1, step })?;
                learner.finish(1e-6)?;
                (step, queued) = (step + 1, queued + 1);
                if queued > AHEAD {
                    learner.outcome(true)?;
                    queued -= 1;
                }
            }
            let end = learner.gpu().record()?;
            while learner.outcome(true)?.is_some() {}
            Ok::<_, Error>(elapsed(learner.gpu(), &start, &end)?)
        });
        drop(training);
        let mut scoring = None;
        Measured::rows(group, "score", documents).steps(criterion, &card.gpu, |count| {
            let Scoring { batch, activations, params, model } = match &mut scoring {
                Some(scoring) => scoring,
                None => scoring.insert(Scoring::new(&card.gpu, &model, &batch)?),
            };
            timed(&card.gpu, count, || model.scores(&card.gpu, activations, params, batch))
                .map_err(Error::from)
        });
    }
}
