//! What training is made of: batches, ordinal starts, accumulated gradients, selection.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use setrank::config::{ModelConfig, OrdinalAt, OrdinalConfig, OrdinalStart};
use setrank::data::augment::Augment;
use setrank::data::batch::{Batch, Batcher, Shuffle};
use setrank::data::initial::{self, InitialSources};
use setrank::data::normalize::{Kind, Settings, WithinSet};
use setrank::data::synth::{self, Like};
use setrank::data::{Dataset, Normalize};
use setrank::device::choice::DeviceChoice;
use setrank::model::SetRank;
use setrank::model::scorer::{self, CpuScorer};
use setrank::train::config::{Layout, Preset, Select};
use setrank::train::state::State;
use setrank::train::trainer::{Observer, StepReport, Stop, ValidationReport};
use setrank::train::{Checkpoint, TrainConfig, Trainer};

fn data(queries: usize, seed: u64) -> Dataset {
    let mut data = synth::dataset(Like::Mslr, queries, seed, Some(12)).unwrap();
    let sources =
        InitialSources { files: Vec::new(), features: vec!["3".parse().unwrap(), "7:asc".parse().unwrap()] };
    initial::attach(&mut data, &sources).unwrap();
    data
}

fn model(train: &Dataset, ordinal: Option<OrdinalConfig>) -> ModelConfig {
    ModelConfig {
        num_features: train.num_features(),
        hidden_size: 8,
        num_heads: 2,
        num_blocks: 1,
        ffn_size: 8,
        num_inducing: 3,
        ordinal,
        normalize: Normalize::fit(Kind::Log1pZScore, train.features(), train.num_features(), true).unwrap(),
        ..ModelConfig::default()
    }
}

fn config() -> TrainConfig {
    TrainConfig {
        batch_sets: 8,
        epochs: 2,
        patience: 0,
        lr: 0.01,
        clip: 0.0,
        device: DeviceChoice::Cpu,
        ..TrainConfig::preset(Preset::Default)
    }
}

/// Scores by the processor.
fn scores_of(model: &SetRank, parameters: &[f32], batcher: &Batcher<'_>) -> Vec<f32> {
    scorer::score(&mut CpuScorer::new(model, parameters), batcher, |_| {}).unwrap()
}

/// Remembers what it is told.
#[derive(Default)]
struct Memory {
    steps: Vec<StepReport>,
    validations: Vec<ValidationReport>,
}

impl Observer for Memory {
    fn step(&mut self, report: &StepReport) -> setrank::Result<()> {
        self.steps.push(*report);
        Ok(())
    }
    fn validation(&mut self, report: &ValidationReport) -> setrank::Result<()> {
        self.validations.push(*report);
        Ok(())
    }
}

fn train(
    config: &TrainConfig,
    model: &ModelConfig,
    data: &Dataset,
    valid: &Dataset,
    folder: &Path,
) -> (Stop, Memory, Vec<f32>) {
    let set_rank = SetRank::new(model.clone()).unwrap();
    let state = State::new(set_rank.layout().init(config.seed), 0, 0);
    let batchers = [data, valid].map(|data| Batcher::new(data, model).unwrap());
    let [batcher, valid] = batchers;
    let mut trainer = Trainer::new(config, set_rank, batcher, Some(valid), state).unwrap();
    let mut memory = Memory::default();
    let stop = trainer.run(folder, &mut memory, &AtomicBool::new(false)).unwrap();
    (stop, memory, trainer.weights().unwrap().parameters.clone())
}

#[test]
fn a_training_batch_is_a_shuffle_of_its_sets() {
    let data = data(10, 1);
    let config = model(&data, None);
    let batcher = Batcher::new(&data, &config).unwrap();
    let (mut plain, mut shuffled, mut again) = (Batch::default(), Batch::default(), Batch::default());
    let queries = [7, 2, 4];
    batcher.fill(&mut plain, &queries, None);
    batcher.fill(&mut shuffled, &queries, Some(Shuffle { seed: 3, epoch: 1 }));
    assert_eq!((&plain.offsets, plain.queries.as_slice()), (&shuffled.offsets, &queries[..]));
    assert_ne!(plain.rows, shuffled.rows);
    let width = config.input_size();
    for set in plain.offsets.windows(2) {
        let sorted = |batch: &Batch| {
            let mut rows = batch.rows[set[0]..set[1]].to_vec();
            rows.sort_unstable();
            rows
        };
        assert_eq!(sorted(&plain), sorted(&shuffled));
    }
    for (place, row) in shuffled.rows.iter().enumerate() {
        let from = plain.rows.iter().position(|other| other == row).unwrap();
        assert_eq!(shuffled.labels[place], plain.labels[from]);
        assert_eq!(shuffled.features[place * width..][..width], plain.features[from * width..][..width]);
    }
    batcher.fill(&mut again, &queries, Some(Shuffle { seed: 3, epoch: 2 }));
    assert_ne!(again.rows, shuffled.rows, "every epoch has its own order");
}

#[test]
fn sampled_starts_shift_all_rankings_of_a_set_alike_and_reach_both_ends() {
    let data = data(6, 2);
    let n_max = 14;
    let ordinal = OrdinalConfig { rankings: 2, n_max, at: OrdinalAt::Input, start: OrdinalStart::Sampled };
    let config = model(&data, Some(ordinal));
    let batcher = Batcher::new(&data, &config).unwrap();
    let (mut plain, mut batch) = (Batch::default(), Batch::default());
    let mut seen = vec![std::collections::BTreeSet::new(); data.num_queries()];
    let queries: Vec<usize> = (0..data.num_queries()).collect();
    batcher.fill(&mut plain, &queries, None);
    for epoch in 0..400 {
        batcher.fill(&mut batch, &queries, Some(Shuffle { seed: 1, epoch }));
        for (set, seen) in seen.iter_mut().enumerate() {
            let mut shifts = std::collections::BTreeSet::new();
            for place in batch.offsets[set]..batch.offsets[set + 1] {
                let from = plain.rows.iter().position(|&row| row == batch.rows[place]).unwrap();
                for (shifted, ordinals) in batch.ordinals.iter().zip(&plain.ordinals) {
                    if ordinals[from] >= 0 {
                        shifts.insert(shifted[place] - ordinals[from]);
                    } else {
                        assert_eq!(shifted[place], -1);
                    }
                }
            }
            assert_eq!(shifts.len(), 1, "one start a set and step");
            seen.extend(shifts);
        }
    }
    for (query, seen) in seen.iter().enumerate() {
        let ranks = plain.ordinals.iter().flat_map(|o| &o[plain.offsets[query]..plain.offsets[query + 1]]);
        let last = n_max as i32 - 1 - ranks.max().unwrap();
        assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&last)));
    }
    // Evaluation starts at 0, and so does training where it is told to.
    assert!(plain.ordinals.iter().all(|ordinals| ordinals.contains(&0)));
    let zero = OrdinalConfig { start: OrdinalStart::Zero, ..ordinal };
    let batcher = Batcher::new(&data, &model(&data, Some(zero))).unwrap();
    batcher.fill(&mut batch, &queries, Some(Shuffle { seed: 1, epoch: 5 }));
    assert!(batch.ordinals.iter().all(|ordinals| ordinals.contains(&0)));
}

#[test]
fn unjudged_documents_have_no_rank_and_cut_ones_are_gone() {
    let mut builder = setrank::data::DatasetBuilder::new(1);
    builder.start_query("q");
    for (score, label) in [(5.0, 0.0), (4.0, -1.0), (3.0, 2.0), (2.0, 0.0), (1.0, 1.0)] {
        builder.push(setrank::data::Document { features: &[score], label: Some(label), id: "" });
    }
    let mut data = builder.finish();
    let sources = InitialSources { files: Vec::new(), features: vec!["1".parse().unwrap()] };
    initial::attach(&mut data, &sources).unwrap();
    let ordinal = OrdinalConfig { n_max: 3, ..OrdinalConfig::default() };
    let config = ModelConfig { top_k: Some(4), ..model(&data, Some(ordinal)) };
    let batcher = Batcher::new(&data, &config).unwrap();
    let mut batch = Batch::default();
    batcher.fill(&mut batch, &[0], None);
    assert_eq!((&batch.rows[..], &batch.ordinals[0][..]), (&[0, 1, 2, 3][..], &[0, -1, 1, 2][..]));
    let mut scores = [0.5, -1e30, 0.25, 7.0, 0.0];
    batcher.rank_dropped_below(&mut scores);
    assert!(scores[4] < -1e30 && scores[4].is_finite());
}

#[test]
fn accumulated_batches_make_the_step_of_one_large_batch() {
    let (data, valid, folder) = (data(20, 3), data(6, 4), tempfile::tempdir().unwrap());
    let model = model(&data, None);
    // A large ε: Adam would blow the rounding of gradients that are 0 in theory up to whole steps.
    let large = TrainConfig { adam_eps: 1.0, ..config() };
    let small = TrainConfig { batch_sets: 2, accumulate: 4, ..large.clone() };
    let [(_, steps, large), (_, small_steps, small)] =
        [&large, &small].map(|config| train(config, &model, &data, &valid, folder.path()));
    assert_eq!((steps.steps.len(), small_steps.steps.len()), (6, 6));
    for (a, b) in large.iter().zip(&small) {
        assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    }
    assert!((steps.steps[0].loss - small_steps.steps[0].loss).abs() < 1e-5);
    assert!((steps.steps[0].gradient_norm / small_steps.steps[0].gradient_norm - 1.0).abs() < 1e-4);
}

#[test]
fn batches_are_bounded_by_documents() {
    for layout in [Layout::Ragged, Layout::Bucketed] {
        batches_of_a_layout_are_bounded_by_documents(layout);
    }
}

fn batches_of_a_layout_are_bounded_by_documents(layout: Layout) {
    let (data, valid, folder) = (data(20, 3), data(6, 4), tempfile::tempdir().unwrap());
    let model = model(&data, None);
    let largest = (0..20).map(|query| data.rows(query).len()).max().unwrap();
    let bounded = TrainConfig { batch_docs: 2 * largest, layout, ..config() };
    let (_, memory, parameters) = train(&bounded, &model, &data, &valid, folder.path());
    assert!(memory.steps.iter().all(|step| step.documents <= 2 * largest && step.loss.is_finite()));
    for epoch in [1, 2] {
        let of_epoch = memory.steps.iter().filter(|step| step.epoch == epoch);
        assert_eq!(of_epoch.map(|step| step.documents).sum::<usize>(), data.num_documents());
    }
    // Stopped in the second epoch, and taken up again.
    let half = memory.steps.iter().filter(|step| step.epoch == 1).count() as u64 + 2;
    let (_, first, _) =
        train(&TrainConfig { max_steps: half, ..bounded.clone() }, &model, &data, &valid, folder.path());
    assert_eq!(first.steps.len() as u64, half);
    let set_rank = SetRank::new(model.clone()).unwrap();
    let state = State::load(folder.path(), set_rank.layout().len()).unwrap();
    let [batcher, of_valid] = [&data, &valid].map(|data| Batcher::new(data, &model).unwrap());
    let mut trainer = Trainer::new(&bounded, set_rank, batcher, Some(of_valid), state).unwrap();
    trainer.run(folder.path(), &mut Memory::default(), &AtomicBool::new(false)).unwrap();
    assert_eq!(trainer.weights().unwrap().parameters, parameters, "resumed");
    // One set alone is too large.
    let tight = TrainConfig { batch_docs: largest - 1, layout, ..config() };
    let set_rank = SetRank::new(model.clone()).unwrap();
    let state = State::new(set_rank.layout().init(0), 0, 0);
    let error = Trainer::new(&tight, set_rank, Batcher::new(&data, &model).unwrap(), None, state).err();
    let message = error.unwrap().to_string();
    assert!(
        message.contains(&format!("--batch-docs {}", largest - 1)) && message.contains("alone has"),
        "{message}"
    );
}

/// A run that cannot go on for its weights names the tensor.
#[test]
fn weights_that_are_not_finite_are_named() {
    let (data, folder) = (data(8, 3), tempfile::tempdir().unwrap());
    let (model, config) = (model(&data, None), config());
    for value in [f32::NAN, f32::INFINITY] {
        let set_rank = SetRank::new(model.clone()).unwrap();
        let layout = set_rank.layout();
        let mut parameters = layout.init(0);
        let last = layout.parameters().last().unwrap();
        parameters[last.offset] = value;
        let says = format!("`{}` holds {value} at 0", last.name);
        let state = State::new(parameters, 0, 0);
        let batcher = Batcher::new(&data, &model).unwrap();
        let mut trainer = Trainer::new(&config, set_rank, batcher, None, state).unwrap();
        let stop = trainer.run(folder.path(), &mut Memory::default(), &AtomicBool::new(false));
        let message = stop.err().unwrap().to_string();
        assert!(message.contains("step 1: the loss of query") && message.contains(&says), "{message}");
    }
}

#[test]
fn a_set_that_is_too_large_is_refused_where_nothing_cuts_it() {
    let data = data(20, 3);
    let sizes: Vec<usize> = (0..20).map(|query| data.rows(query).len()).collect();
    let longest = sizes.iter().max().unwrap();
    let query = data.query(sizes.iter().position(|size| size == longest).unwrap()).id().to_owned();
    let config = model(&data, None);
    let batcher = Batcher::new(&data, &config).unwrap();
    for most in [0, *longest, usize::MAX] {
        batcher.check_set_sizes(most).unwrap();
    }
    let message = batcher.check_set_sizes(longest - 1).unwrap_err().to_string();
    for part in [format!("query {query} has {longest} documents"), format!("--top-k {}", longest - 1)] {
        assert!(message.contains(&part), "{message}");
    }
    let cut = ModelConfig { top_k: Some(longest - 1), ..config };
    Batcher::new(&data, &cut).unwrap().check_set_sizes(longest - 1).unwrap();
}

#[test]
fn clipping_bounds_the_first_update_and_decay_shrinks_weights() {
    let (data, valid, folder) = (data(8, 3), data(6, 4), tempfile::tempdir().unwrap());
    let model = model(&data, None);
    let norm = |parameters: &[f32]| parameters.iter().map(|p| p * p).sum::<f32>();
    let plain = TrainConfig { epochs: 5, ..config() };
    let decayed = TrainConfig { weight_decay: 1.0, ..plain.clone() };
    let [(_, memory, free), (_, _, small)] =
        [&plain, &decayed].map(|config| train(config, &model, &data, &valid, folder.path()));
    assert!(norm(&small) < 0.98 * norm(&free));
    // Adam's ε weighs more the smaller the clipped gradient is: a tiny clip makes tiny steps.
    let clipped = TrainConfig { clip: 1e-9, adam_eps: 1.0, ..plain };
    let (_, _, held) = train(&clipped, &model, &data, &valid, folder.path());
    let start: Vec<f32> = SetRank::new(model).unwrap().layout().init(0);
    assert!(held.iter().zip(&start).all(|(a, b)| (a - b).abs() < 1e-8));
    assert!(memory.steps[0].gradient_norm > 1e-3);
}

#[test]
fn the_best_model_is_kept_and_patience_ends_the_run() {
    let (data, valid, folder) = (data(20, 5), data(10, 6), tempfile::tempdir().unwrap());
    let model = model(&data, None);
    for select in [Select::Metric("ndcg@10".parse().unwrap()), Select::Loss] {
        let config = TrainConfig { epochs: 200, patience: 3, lr: 0.03, select, ..config() };
        let (stop, memory, _) = train(&config, &model, &data, &valid, folder.path());
        assert_eq!(stop, Stop::Patience);
        let values: Vec<f64> = memory
            .validations
            .iter()
            .map(|report| match select {
                Select::Loss => -report.valid.unwrap().loss,
                Select::Metric(_) => report.valid.unwrap().metric,
            })
            .collect();
        let best = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let first_best = values.iter().position(|&value| value == best).unwrap();
        assert_eq!(values.len(), first_best + 1 + 3);
        assert!(memory.validations[first_best].is_best);
        // The kept model is the one that was measured then.
        let kept = Checkpoint::load(folder.path()).unwrap();
        let batcher = Batcher::new(&valid, kept.model.config()).unwrap();
        let scores = scores_of(&kept.model, &kept.parameters, &batcher);
        let conventions = setrank::eval::Conventions::default();
        let ndcg = setrank::eval::mean_ndcg(&valid, &scores, None, 10, &conventions).unwrap();
        assert_eq!(ndcg, memory.validations[first_best].valid.unwrap().metric);
    }
}

#[test]
fn dropout_is_for_training_only() {
    let data = data(4, 7);
    let plain = model(&data, None);
    let dropped = ModelConfig { dropout: 0.5, ..plain.clone() };
    let scores = |config: &ModelConfig| {
        let model = SetRank::new(config.clone()).unwrap();
        let parameters = model.layout().init(1);
        let batcher = Batcher::new(&data, config).unwrap();
        scores_of(&model, &parameters, &batcher)
    };
    assert_eq!(scores(&plain), scores(&dropped));
}

#[test]
fn disturbed_features_are_those_of_training_only() {
    let data = data(6, 3);
    let normalize = Settings { kind: Kind::ZScore, within_set: WithinSet::ZScore, ..Settings::default() };
    let features = data.num_features();
    let config = ModelConfig {
        normalize: Normalize::fit_with(normalize, data.features(), features, data.labels()).unwrap(),
        ..model(&data, None)
    };
    let batcher = |augment| Batcher::new(&data, &config).unwrap().with_augment(augment);
    let fill = |batcher: &Batcher<'_>, epoch: Option<u64>| {
        let mut batch = Batch::default();
        batcher.fill(&mut batch, &[4, 1], epoch.map(|epoch| Shuffle { seed: 5, epoch }));
        batch
    };
    let (plain, noisy) =
        (batcher(Augment::default()), batcher(Augment { noise: 0.25, feature_dropout: 0.1 }));
    assert_eq!(fill(&plain, None).features, fill(&noisy, None).features);
    let (clean, first, again, later) =
        (fill(&plain, Some(1)), fill(&noisy, Some(1)), fill(&noisy, Some(1)), fill(&noisy, Some(2)));
    assert_eq!(first.features, again.features);
    assert_eq!(clean.rows, first.rows);
    let difference = |row: usize, column: usize| {
        first.features[row * config.input_size() + column]
            - clean.features[row * config.input_size() + column]
    };
    let (mut moved, mut dropped) = (0, 0);
    for row in 0..first.rows.len() {
        for column in 0..config.input_size() {
            let value = first.features[row * config.input_size() + column];
            dropped += usize::from(value == 0.0);
            moved += usize::from(difference(row, column) != 0.0);
            assert!(value == 0.0 || difference(row, column).abs() < 1.5);
        }
    }
    assert!(moved > first.features.len() * 8 / 10 && dropped > first.features.len() / 20);
    // Another epoch, another noise: the same document by its row.
    let of_row = |batch: &Batch| {
        let place = batch.rows.iter().position(|&row| row == clean.rows[0]).unwrap();
        batch.features[place * config.input_size()..][..features].to_vec()
    };
    assert_ne!(of_row(&first), of_row(&later));
    assert_eq!(config.input_size(), 2 * features);
}

#[test]
fn an_average_is_validated_and_kept() {
    let (train_data, valid) = (data(24, 1), data(12, 2));
    let model = model(&train_data, None);
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { ema: 0.9, epochs: 1, ..config() };
    let (_, memory, last) = train(&config, &model, &train_data, &valid, folder.path());
    let kept = Checkpoint::load(folder.path()).unwrap();
    assert_ne!(kept.parameters, last);
    // By hand: the same steps without an average, one more each time.
    let mut average = SetRank::new(model.clone()).unwrap().layout().init::<f32>(config.seed);
    for steps in 1..=memory.steps.len() as u64 {
        let shorter = TrainConfig { ema: 0.0, max_steps: steps, ..config.clone() };
        let other = tempfile::tempdir().unwrap();
        let (_, _, parameters) = train(&shorter, &model, &train_data, &valid, other.path());
        setrank::train::average::update(&mut average, &parameters, 0.9, steps);
    }
    assert_eq!(kept.parameters, average);
}
