//! Padded and masked batches: lossless both ways, and padding that nothing sees.

use proptest::prelude::*;
use setrank::config::{Encoder, ModelConfig, OrdinalConfig};
use setrank::data::batch::Batch;
use setrank::data::layout::{Grid, Occupied};
use setrank::data::{Dataset, DatasetBuilder, Document};
use setrank::eval::{Conventions, Metric, evaluate};
use setrank::model::SetRank;
use setrank::model::scorer::{CpuScorer, Scorer};
use setrank::model::setrank::TrainingStep;
use setrank::ops::loss::Loss;
use setrank::rng::{Rng, Stream};
use setrank::train::config::Preset;
use setrank::train::learner::{Learner, Objective};
use setrank::train::state::Weights;
use setrank::train::{CpuLearner, TrainConfig};

const FEATURES: usize = 3;
const RANKINGS: usize = 2;
const N_MAX: usize = 40;

/// A batch of sets of these sizes: every array filled.
fn batch(sizes: &[usize], seed: u64) -> Batch {
    let mut rng = Rng::new(seed, Stream::Synth, 2);
    let mut batch = Batch { offsets: vec![0], ordinals: vec![Vec::new(); RANKINGS], ..Batch::default() };
    for (set, &size) in sizes.iter().enumerate() {
        batch.queries.push(7 * set + 1);
        for document in 0..size {
            batch.rows.push(100 * set + size - document);
            batch.features.extend((0..FEATURES).map(|_| rng.normal() as f32));
            batch.labels.push(rng.below(6) as f32 - 1.0);
            batch
                .ordinals
                .iter_mut()
                .for_each(|ordinals| ordinals.push(rng.below(N_MAX as u32 + 1) as i32 - 1));
        }
        batch.offsets.push(batch.rows.len());
    }
    batch
}

/// Any mask of sets of these sizes.
fn mask(sizes: &[usize], n_max: usize, seed: u64) -> Vec<bool> {
    let mut rng = Rng::new(seed, Stream::Synth, 3);
    let of_set = |&size: &usize| {
        let mut cells: Vec<bool> = (0..n_max).map(|cell| cell < size).collect();
        rng.shuffle(&mut cells);
        cells
    };
    sizes.iter().flat_map(of_set).collect()
}

/// The same with what would spoil anything that read it in every cell that is no document.
fn poisoned(mut grid: Grid) -> Grid {
    let documents: Vec<bool> = match &grid.occupied {
        Occupied::Mask(mask) => mask.clone(),
        Occupied::Lengths(lengths) => {
            lengths.iter().flat_map(|&length| (0..grid.n_max).map(move |cell| cell < length)).collect()
        }
    };
    for cell in (0..documents.len()).filter(|&cell| !documents[cell]) {
        grid.features[cell * FEATURES..(cell + 1) * FEATURES].fill(f32::NAN);
        grid.labels[cell] = f32::NAN;
        grid.rows[cell] = usize::MAX;
        grid.ordinals.iter_mut().for_each(|ordinals| ordinals[cell] = i32::MIN);
    }
    grid
}

fn model(encoder: Encoder) -> (SetRank, Vec<f32>) {
    let model = SetRank::new(ModelConfig {
        num_features: FEATURES,
        hidden_size: 16,
        num_heads: 2,
        num_blocks: 2,
        ffn_size: 32,
        num_inducing: 3,
        encoder,
        ordinal: Some(OrdinalConfig { rankings: RANKINGS, n_max: N_MAX, ..OrdinalConfig::default() }),
        ..ModelConfig::default()
    })
    .unwrap();
    let mut rng = Rng::new(5, Stream::Synth, 0);
    let mut parameters: Vec<f32> = model.layout().init(5);
    parameters.iter_mut().for_each(|parameter| *parameter += (0.05 * rng.normal()) as f32);
    (model, parameters)
}

/// Bits of numbers: NaN equals itself, and 0 is not −0.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn scores(encoder: Encoder, batch: &Batch) -> Vec<f32> {
    let (model, parameters) = model(encoder);
    let mut scorer = CpuScorer::new(&model, &parameters);
    scorer.begin(batch).unwrap();
    scorer.finish().unwrap().to_vec()
}

/// Losses of the sets, the gradient's norm, its part of Adam's first moments, and the weights after a step.
fn step(encoder: Encoder, loss: Loss, batch: &Batch) -> (Vec<u64>, u64, Vec<u32>, Vec<u32>) {
    let (model, parameters) = model(encoder);
    let adam = TrainConfig::preset(Preset::Default).adam();
    let objective = Objective { loss, clip: 0.0, adam, ema: 0.0 };
    let mut learner = CpuLearner::new(model, Weights::new(parameters), objective);
    learner.begin();
    let sets = batch.offsets.len() - 1;
    let losses = learner.accumulate(batch, sets, TrainingStep { seed: 1, step: 0 });
    let losses = losses.iter().map(|loss| loss.to_bits()).collect();
    let norm = learner.finish(1e-2).to_bits();
    let weights = learner.snapshot().unwrap();
    (losses, norm, bits(&weights.adam.first), bits(&weights.parameters))
}

/// The batch as data with labels.
fn dataset(batch: &Batch) -> Dataset {
    let mut data = DatasetBuilder::new(FEATURES);
    for (set, ends) in batch.offsets.windows(2).enumerate() {
        data.start_query(set.to_string());
        for row in ends[0]..ends[1] {
            let features = &batch.features[row * FEATURES..(row + 1) * FEATURES];
            data.push(Document { features, label: Some(batch.labels[row]), id: "" });
        }
    }
    data.finish()
}

fn metrics(batch: &Batch, scores: &[f32]) -> Vec<u64> {
    let metrics = ["ndcg@10", "map", "err", "mrr", "p@3"].map(|name| name.parse::<Metric>().unwrap());
    let found = evaluate(&dataset(batch), scores, None, &metrics, &Conventions::default()).unwrap();
    let sets = batch.offsets.len() - 1;
    (0..sets)
        .flat_map(|set| found.of_query(set).to_vec())
        .map(|value| value.unwrap_or(-1.0).to_bits())
        .collect()
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1usize..4, 1..N_MAX], 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_batch_comes_back_as_it_went(sizes in sizes(), more in 0usize..9, seed in any::<u64>()) {
        let batch = batch(&sizes, seed);
        let n_max = sizes.iter().max().unwrap() + more;
        let padded = Grid::padded(&batch, n_max).unwrap();
        let masked = Grid::masked(&batch, mask(&sizes, n_max, seed), n_max).unwrap();
        for grid in [padded, masked] {
            prop_assert_eq!(grid.features.len(), sizes.len() * n_max * FEATURES);
            let cells = grid.cells().unwrap();
            cells.check_lengths(&sizes).unwrap();
            // Scores too: out to the cells and back.
            let scores: Vec<f32> = (0..cells.documents()).map(|document| document as f32).collect();
            let in_cells = cells.scatter(&scores, 1, f32::NAN).unwrap();
            prop_assert_eq!(in_cells.iter().filter(|score| score.is_nan()).count(), cells.cells() - scores.len());
            let mut back = Vec::new();
            cells.gather(&mut back, &in_cells, 1).unwrap();
            prop_assert_eq!(back, scores);
            prop_assert_eq!(poisoned(grid.clone()).batch().unwrap(), batch.clone());
            // And a grid comes back as it went, but for what its padding held.
            let again = match &grid.occupied {
                Occupied::Lengths(_) => Grid::padded(&batch, n_max),
                Occupied::Mask(mask) => Grid::masked(&batch, mask.clone(), n_max),
            };
            prop_assert_eq!(again.unwrap(), grid);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_sees_padding(
        encoder in prop_oneof![Just(Encoder::Msab), Just(Encoder::Imsab)],
        loss in prop::sample::select(Loss::ALL.to_vec()),
        sizes in sizes(),
        more in 0usize..9,
        seed in any::<u64>(),
    ) {
        let ragged = batch(&sizes, seed);
        let n_max = sizes.iter().max().unwrap() + more;
        let of_ragged = scores(encoder, &ragged);
        let padded = Grid::padded(&ragged, n_max).unwrap();
        let masked = Grid::masked(&ragged, mask(&sizes, n_max, seed), n_max).unwrap();
        for grid in [padded, masked] {
            let cells = grid.cells().unwrap();
            let batch = poisoned(grid).batch().unwrap();
            let found = scores(encoder, &batch);
            prop_assert_eq!(bits(&found), bits(&of_ragged));
            prop_assert!(step(encoder, loss, &batch) == step(encoder, loss, &ragged));
            let in_cells = cells.scatter(&found, 1, f32::NAN).unwrap();
            let mut back = Vec::new();
            cells.gather(&mut back, &in_cells, 1).unwrap();
            prop_assert_eq!(metrics(&batch, &back), metrics(&ragged, &of_ragged));
        }
    }
}

/// Without this, a model that read no features would pass the above.
#[test]
fn what_a_document_holds_is_seen() {
    let ragged = batch(&[3, 5], 1);
    for encoder in [Encoder::Msab, Encoder::Imsab] {
        let mut grid = Grid::padded(&ragged, 6).unwrap();
        grid.features[2 * FEATURES] = f32::NAN;
        let spoilt = grid.batch().unwrap();
        assert!(scores(encoder, &spoilt)[..3].iter().all(|score| score.is_nan()));
        let mut grid = Grid::padded(&ragged, 6).unwrap();
        grid.labels[2] += 1.0;
        let (changed, before) = (grid.batch().unwrap(), step(encoder, Loss::SoftmaxCrossEntropy, &ragged));
        assert_ne!(step(encoder, Loss::SoftmaxCrossEntropy, &changed).0, before.0);
    }
}
