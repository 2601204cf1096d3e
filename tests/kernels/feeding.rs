//! How batches come to the GPU: with features that stay there or that come with them, and without anybody waiting.

use half::bf16;
use setrank::config::{ModelConfig, OrdinalAt, OrdinalConfig, OrdinalStart};
use setrank::data::augment::Augment;
use setrank::data::batch::{Batch, Batcher, Extent, Shuffle};
use setrank::data::initial::{self, InitialSources};
use setrank::data::normalize::{Kind, WithinSet};
use setrank::data::synth::{self, Like};
use setrank::data::{Dataset, Normalize};
use setrank::device::{Gpu, Limits, Uploads};
use setrank::model::gpu::{DeviceBatch, Kept, Resident, Source};
use setrank::model::setrank::{Keep, SetRank, TrainingStep};
use setrank::ops::loss::Loss;
use setrank::train::Learner;
use setrank::train::learner::{CpuLearner, Feeding, GpuLearner, Objective};
use setrank::train::optimizer::AdamConfig;
use setrank::train::state::Weights;
use setrank_emulator::driver::{self, Configuration, Streams};

fn data(queries: usize) -> Dataset {
    let mut data = synth::dataset(Like::Yahoo, queries, 1, Some(9)).unwrap();
    let sources = InitialSources { files: Vec::new(), features: vec!["3".parse().unwrap()] };
    initial::attach(&mut data, &sources).unwrap();
    data
}

/// A model that cuts the sets of `data`, and compares the documents of a set.
fn model_of(data: &Dataset) -> ModelConfig {
    let features = data.num_features();
    let mut normalize = Normalize::fit(Kind::ZScore, data.features(), features, true).unwrap();
    normalize.within_set = WithinSet::ZScore;
    ModelConfig {
        num_features: features,
        hidden_size: 64,
        num_heads: 2,
        num_blocks: 1,
        ffn_size: 64,
        num_inducing: 5,
        normalize,
        top_k: Some(6),
        ordinal: Some(OrdinalConfig {
            rankings: 1,
            n_max: 40,
            at: OrdinalAt::Input,
            start: OrdinalStart::Zero,
        }),
        ..ModelConfig::default()
    }
}

fn learner(gpu: Gpu, model: &ModelConfig) -> GpuLearner {
    let adam = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let objective = Objective { loss: Loss::SoftmaxCrossEntropy, clip: 1.0, adam, ema: 0.9 };
    let model = SetRank::new(model.clone()).unwrap();
    let parameters: Vec<f32> = model.layout().init(1);
    let weights = Weights { average: Some(parameters.clone()), ..Weights::new(parameters) };
    GpuLearner::new(gpu, model, weights, objective).unwrap()
}

/// Queues step number `step`, on three sets.
fn queue(learner: &mut GpuLearner, batcher: &Batcher<'_>, step: u64) {
    let first = 3 * (step as usize % (batcher.sets().len() / 3));
    let queries = &batcher.sets()[first..first + 3];
    let shuffle = Some(Shuffle { seed: 7, epoch: step });
    let mut batch = Batch::default();
    if learner.needs_features() {
        batcher.fill(&mut batch, queries, shuffle);
    } else {
        batcher.fill_without_features(&mut batch, queries, shuffle);
    }
    learner.begin().unwrap();
    learner.accumulate(&batch, 3, TrainingStep { seed: 1, step }).unwrap();
    learner.finish(1e-2).unwrap();
}

/// Columns within the sets, and share of the features that is dropped.
type Features = (WithinSet, f64);

const CONSTANT: Features = (WithinSet::ZScore, 0.0);

/// All losses of a few steps of which two are always under way, the parameters behind them, and scores of other data.
fn run(
    configuration: &Configuration,
    resident: bool,
    (within_set, feature_dropout): Features,
) -> (Vec<f64>, Vec<f32>, Vec<f32>) {
    let (data, other) = (data(12), data(20));
    let mut config = model_of(&data);
    config.normalize.within_set = within_set;
    let train = Batcher::new(&data, &config).unwrap().with_augment(Augment { noise: 0.0, feature_dropout });
    let valid = Batcher::new(&other, &config).unwrap();
    driver::with(configuration, |_| {
        let mut learner = learner(Gpu::new(0).unwrap(), &config);
        if resident {
            let largest = Extent { documents: 18, sets: 3, ..Extent::default() };
            let feeding = learner.prepare(&train, largest, Some(&valid)).unwrap();
            assert!(matches!(feeding, Some(Feeding::Resident { .. })), "{feeding:?}");
        }
        let mut losses = Vec::new();
        for step in 0..6 {
            queue(&mut learner, &train, step);
            if step >= 2 {
                losses.extend(learner.outcome(true).unwrap().unwrap().losses);
            }
        }
        while let Some(outcome) = learner.outcome(true).unwrap() {
            losses.extend(outcome.losses);
        }
        let scores = learner.score(&valid).unwrap();
        (losses, learner.snapshot().unwrap().parameters.clone(), scores)
    })
    .unwrap()
}

#[test]
fn resident_and_streamed_features_give_the_same_bits() {
    let random = |seed| Configuration { streams: Streams::Random, seed, ..Configuration::default() };
    let first = run(&Configuration::default(), true, CONSTANT);
    assert!(first.0.len() == 18 && first.0.iter().all(|loss| *loss > 0.0), "{:?}", first.0);
    for (configuration, resident) in
        [(Configuration::default(), false), (random(1), true), (random(2), false), (random(3), false)]
    {
        assert!(run(&configuration, resident, CONSTANT) == first, "{configuration}, resident: {resident}");
    }
}

/// The GPU drops what the processor drops: columns within the sets too, and no indicators of missing values.
#[test]
fn features_are_dropped_alike_resident_and_streamed() {
    let data = data(12);
    let config = model_of(&data);
    assert!(config.input_size() > 2 * data.num_features(), "some values are missing");
    let plain = Configuration::default();
    let undropped = run(&plain, true, CONSTANT);
    for (within_set, rate) in [(WithinSet::None, 0.2), (WithinSet::ZScore, 0.2), (WithinSet::Both, 0.7)] {
        let [resident, streamed] = [true, false].map(|resident| run(&plain, resident, (within_set, rate)));
        assert!(resident == streamed, "{within_set:?}: {:?}, {:?}", resident.0, streamed.0);
        assert!(resident.0 != undropped.0 && resident.0.iter().all(|loss| *loss > 0.0));
    }
}

/// Batches in which features are dropped bring the rows that they are drawn by, and no more.
#[test]
fn dropping_takes_what_the_formula_says() {
    let data = data(12);
    let config = model_of(&data);
    for extent in [
        Extent { documents: 18, sets: 3, ..Extent::default() },
        Extent { documents: 1000, sets: 40, ..Extent::default() },
    ] {
        let bytes = |dropout| {
            DeviceBatch::bytes(
                &config,
                extent,
                Keep::ForBackward,
                Source::Resident { dropout },
                &Limits::SM_90,
            )
        };
        assert_eq!(bytes(true) - bytes(false), (4 * extent.documents).next_multiple_of(256));
    }
    let shuffle = Some(Shuffle { seed: 1, epoch: 2 });
    let sent = [0.0, 0.2].map(|feature_dropout| {
        let train =
            Batcher::new(&data, &config).unwrap().with_augment(Augment { noise: 0.0, feature_dropout });
        let mut batch = Batch::default();
        train.fill_without_features(&mut batch, &train.sets()[..12], shuffle);
        assert_eq!(batch.feature_dropout.is_some(), feature_dropout > 0.0);
        driver::with(&Configuration::default(), |driver| {
            let gpu = Gpu::new(0).unwrap();
            let mut uploads = Uploads::default();
            let kept = Kept::Resident(Resident::new(&gpu, &mut uploads, &config, &train).unwrap());
            let source = Source::of(&batch, Some(&kept));
            let bytes =
                DeviceBatch::bytes(&config, Extent::of(&batch), Keep::ForBackward, source, gpu.limits());
            let mut arena = gpu.arena("a batch", bytes).unwrap();
            let before = driver.counters().bytes_to_device;
            let keep = Keep::ForBackward;
            DeviceBatch::new(&gpu, &mut arena, &mut uploads, &config, &batch, keep, Some(&kept)).unwrap();
            driver.counters().bytes_to_device - before
        })
        .unwrap()
    });
    let documents: usize = data.queries().map(|query| query.rows().len().min(6)).sum();
    assert_eq!(sent[1] - sent[0], (4 * documents).next_multiple_of(256) as u64);
}

/// A step only queues. What it waits for has been done long before: the copy of the batch before the last out of pinned
/// memory, and, once the step's outcome is asked for, its losses and the gradient's norm.
#[test]
fn a_step_waits_for_nothing_new() {
    let data = data(12);
    let config = model_of(&data);
    let train = Batcher::new(&data, &config).unwrap();
    for resident in [true, false] {
        driver::with(&Configuration::default(), |driver| {
            let mut learner = learner(Gpu::new(0).unwrap(), &config);
            if resident {
                learner
                    .prepare(&train, Extent { documents: 18, sets: 3, ..Extent::default() }, None)
                    .unwrap();
            }
            // The largest batch first, then kernels and buffers are there.
            for step in 0..4 {
                queue(&mut learner, &train, step);
            }
            while learner.outcome(true).unwrap().is_some() {}
            for step in 0..2 {
                queue(&mut learner, &train, step);
            }
            for step in 2..5 {
                let before = driver.counters();
                queue(&mut learner, &train, step);
                let queued = driver.counters();
                let launches = queued.launches - before.launches;
                assert_eq!(queued.synchronizations - before.synchronizations, 1, "resident: {resident}");
                assert!(launches > 20 && queued.pending > 2 * launches, "{queued:?}");
                assert_eq!(queued.allocations, before.allocations);
                learner.outcome(true).unwrap().unwrap();
                let settled = driver.counters();
                assert_eq!(settled.synchronizations - queued.synchronizations, 2, "resident: {resident}");
                // The steps behind it are still to come.
                assert!(settled.pending > 2 * launches, "{settled:?}");
            }
        })
        .unwrap();
    }
}

/// A batch is one copy, and with resident features a small one.
#[test]
fn features_that_stay_are_uploaded_once() {
    let data = data(12);
    let config = model_of(&data);
    let train = Batcher::new(&data, &config).unwrap();
    driver::with(&Configuration::default(), |driver| {
        let mut learner = learner(Gpu::new(0).unwrap(), &config);
        let bytes = |run: &mut dyn FnMut()| {
            let before = driver.counters().bytes_to_device;
            run();
            driver.counters().bytes_to_device - before
        };
        let streamed = bytes(&mut || queue(&mut learner, &train, 0));
        let largest = Extent { documents: 18, sets: 3, ..Extent::default() };
        let mut feeding = None;
        let all = bytes(&mut || feeding = learner.prepare(&train, largest, None).unwrap());
        let Some(Feeding::Resident { bytes: resident_bytes }) = feeding else { panic!("{feeding:?}") };
        assert!(all > 0 && resident_bytes as u64 >= all && resident_bytes as u64 <= all + 256, "{all}");
        let gathered = bytes(&mut || queue(&mut learner, &train, 0));
        let documents: usize = train.sets()[..3].iter().map(|&query| train.set_size(query)).sum();
        let width = config.input_size().next_multiple_of(64);
        assert!(
            streamed >= (2 * documents * width) as u64 && gathered < streamed / 10,
            "{streamed} {gathered}"
        );
    })
    .unwrap();
}

#[test]
fn features_are_streamed_where_they_do_not_fit_or_change() {
    let data = data(12);
    let config = model_of(&data);
    let train = Batcher::new(&data, &config).unwrap();
    let extent = Extent { documents: 18, sets: 3, ..Extent::default() };
    driver::with(&Configuration { memory: 6 << 20, ..Configuration::default() }, |driver| {
        let mut learner = learner(Gpu::new(0).unwrap(), &config);
        let allocations = driver.counters().allocations;
        let feeding =
            learner.prepare(&train, Extent { documents: 4000, sets: 3, ..Extent::default() }, None).unwrap();
        assert!(matches!(feeding, Some(Feeding::Streamed { .. })), "{feeding:?}");
        assert!(learner.needs_features() && driver.counters().allocations == allocations);
        let feeding = learner.prepare(&train, extent, None).unwrap();
        assert!(matches!(feeding, Some(Feeding::Resident { .. })) && !learner.needs_features());
        let noisy = Batcher::new(&data, &config).unwrap();
        let noisy = noisy.with_augment(Augment { noise: 0.1, feature_dropout: 0.0 });
        assert_eq!(learner.prepare(&noisy, extent, None).unwrap(), Some(Feeding::Noisy));
        assert!(learner.needs_features());
        let dropped = Batcher::new(&data, &config).unwrap();
        let dropped = dropped.with_augment(Augment { noise: 0.0, feature_dropout: 0.2 });
        let feeding = learner.prepare(&dropped, extent, None).unwrap();
        assert!(matches!(feeding, Some(Feeding::Resident { .. })) && !learner.needs_features());
    })
    .unwrap();
    let mut cpu = CpuLearner::new(
        SetRank::new(config.clone()).unwrap(),
        Weights::new(SetRank::new(config.clone()).unwrap().layout().init(1)),
        Objective {
            loss: Loss::SoftmaxCrossEntropy,
            clip: 0.0,
            adam: AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
            ema: 0.0,
        },
    );
    assert_eq!(Learner::prepare(&mut cpu, &train, extent, None).unwrap(), None);
}

/// What is put into a package is there, whatever is put in next and however late the copy runs.
#[test]
fn packages_hold_values_of_all_types() {
    driver::with(&Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("packages", 4096).unwrap();
        let mut uploads = Uploads::default();
        let mut sent = Vec::new();
        for number in 0..4 {
            let room = arena.room(1024).unwrap();
            let copied = driver.counters().bytes_to_device;
            sent.push(
                uploads
                    .send(&gpu, room, |package| {
                        let floats = package.put(&[number as f32; 3])?;
                        let rows = package.put_with(2, |to| to.fill(bf16::from_f32(number as f32)))?;
                        Ok((floats, package.put(&[number])?, rows))
                    })
                    .unwrap(),
            );
            assert_eq!(driver.counters().bytes_to_device - copied, 3 * 256);
        }
        for (number, (floats, integers, rows)) in sent.iter().enumerate() {
            assert_eq!(gpu.download(floats).unwrap(), [number as f32; 3]);
            assert_eq!(gpu.download(integers).unwrap(), [number as i32]);
            assert_eq!(gpu.download(rows).unwrap(), [bf16::from_f32(number as f32); 2]);
        }
        drop(sent);
        arena.clear().unwrap();
        let full = uploads.send(&gpu, arena.room(256).unwrap(), |package| {
            package.put(&[1.0f32; 64])?;
            package.put(&[1i32])
        });
        let full = full.unwrap_err().to_string();
        assert!(full.contains("a package needs 4 more bytes, but 0"), "{full}");
        let empty = uploads.send(&gpu, arena.room(0).unwrap(), |package| package.put::<f32>(&[])).unwrap();
        assert!(gpu.download(&empty).unwrap().is_empty());
        let mut whole = arena.take::<f32>(8).unwrap();
        gpu.zero(&mut whole).unwrap();
        uploads.fill(&gpu, &mut whole.part(4..7).unwrap(), |values| values.fill(2.0)).unwrap();
        assert_eq!(gpu.download(&whole).unwrap(), [0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0]);
    })
    .unwrap();
}
