//! A batch that is handed over with padding: the same bits as without, whatever stands in it.

use super::*;
use setrank::data::augment::{Columns, FeatureDropout};
use setrank::data::batch::Shuffle;
use setrank::data::layout::{Grid, Occupied};

/// Losses of a few steps, and the gradients of the last, on features that `keep` has stay on the GPU.
fn steps(problem: &Problem, keep: impl Fn(&mut GpuLearner)) -> (Vec<f64>, Vec<u32>) {
    let mut found = None;
    on_gpu(|gpu| {
        let parameters: Vec<f32> = problem.parameters.iter().map(|&value| value as f32).collect();
        let adam = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
        let objective = Objective { loss: problem.loss, clip: 1.0, adam, ema: 0.0 };
        let model = problem.model.clone();
        let mut learner = GpuLearner::new(gpu, model, Weights::new(parameters), objective).unwrap();
        keep(&mut learner);
        let mut losses = Vec::new();
        for step in 0..3 {
            learner.begin().unwrap();
            let sets = problem.batch.queries.len();
            learner.accumulate(&problem.batch, sets, TrainingStep { seed: 1, step }).unwrap();
            learner.finish(1e-3).unwrap();
            losses.extend(learner.outcome(true).unwrap().unwrap().losses);
        }
        let gradients = learner.gradients().unwrap().into_iter().map(f32::to_bits).collect();
        found = Some((losses, gradients));
    });
    found.unwrap()
}

/// NaN in all cells that are no documents.
fn poisoned(mut grid: Grid) -> Grid {
    let cells = grid.cells().unwrap();
    let all: Vec<usize> = (0..cells.cells()).collect();
    let mut documents = Vec::new();
    cells.gather(&mut documents, &all, 1).unwrap();
    let is_padding = |cell: &usize| documents.binary_search(cell).is_err();
    for cell in all.iter().filter(|cell| is_padding(cell)) {
        grid.features[cell * grid.num_features..][..grid.num_features].fill(f32::NAN);
        grid.labels[*cell] = f32::NAN;
    }
    grid
}

/// The sets of a batch from number `from` up to `to`.
fn sets(batch: &Batch, from: usize, to: usize) -> Batch {
    let rows = batch.offsets[from]..batch.offsets[to];
    let width = batch.features.len() / batch.rows.len();
    Batch {
        queries: batch.queries[from..to].to_vec(),
        offsets: batch.offsets[from..=to].iter().map(|offset| offset - rows.start).collect(),
        rows: batch.rows[rows.clone()].to_vec(),
        features: batch.features[rows.start * width..rows.end * width].to_vec(),
        labels: batch.labels[rows].to_vec(),
        ..Batch::default()
    }
}

#[test]
fn padding_changes_no_bit_of_a_step() {
    for (config, seed) in [(config(), 1), (imsab(), 2)] {
        let problem = Problem::draw(config, &[3, 17, 8, 1, 33], Loss::AttentionRank, Relus::Random, seed);
        let batch = &problem.batch;
        let ragged = steps(&problem, |learner| learner.keep_features(batch).unwrap());
        let padded = |batch: &Batch, n_max| poisoned(Grid::padded(batch, n_max).unwrap());
        let mut rng = Rng::new(seed, Stream::Synth, 1);
        let mask = batch.offsets.windows(2).flat_map(|ends| {
            let mut of_set: Vec<bool> = (0..40).map(|cell| cell < ends[1] - ends[0]).collect();
            rng.shuffle(&mut of_set);
            of_set
        });
        let masked = poisoned(Grid::masked(batch, mask.collect(), 40).unwrap());
        for (layout, grids) in [
            ("padded", vec![padded(batch, 33)]),
            ("padded further", vec![padded(batch, 64)]),
            ("masked", vec![masked]),
            ("buckets", vec![padded(&sets(batch, 0, 3), 17), padded(&sets(batch, 3, 5), 33)]),
        ] {
            let found = steps(&problem, |learner| learner.keep_grids(&grids).unwrap());
            assert_eq!(found, ragged, "{layout}");
        }
    }
}

#[test]
fn grids_of_another_batch_are_refused() {
    let problem = Problem::draw(config(), &[3, 5], Loss::AttentionRank, Relus::Random, 1);
    on_gpu(|gpu| {
        let parameters: Vec<f32> = problem.parameters.iter().map(|&value| value as f32).collect();
        let adam = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
        let objective = Objective { loss: problem.loss, clip: 1.0, adam, ema: 0.0 };
        let model = problem.model.clone();
        let mut learner = GpuLearner::new(gpu, model, Weights::new(parameters), objective).unwrap();
        let whole = Grid::padded(&problem.batch, 5).unwrap();
        let fails = |learner: &mut GpuLearner, batch: &Batch, says: &str| {
            learner.begin().unwrap();
            let error = learner.accumulate(batch, 2, TRAINING).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        learner.keep_grids(&[Grid::padded(&sets(&problem.batch, 0, 1), 5).unwrap()]).unwrap();
        fails(&mut learner, &problem.batch, "grids of 3 documents");
        learner.keep_grids(std::slice::from_ref(&whole)).unwrap();
        let columns = Columns { num_features: 9, first_within_set: 9 };
        let dropout = FeatureDropout { rate: 0.5, shuffle: Shuffle { seed: 1, epoch: 1 }, columns };
        let dropped = Batch { feature_dropout: Some(dropout), ..problem.batch.clone() };
        fails(&mut learner, &dropped, "none of whose features are dropped");
        learner.begin().unwrap();
        learner.accumulate(&problem.batch, 2, TRAINING).unwrap();

        let other = Grid { num_features: 8, features: vec![0.0; 80], ..whole.clone() };
        let error = learner.keep_grids(&[other]).unwrap_err().to_string();
        assert!(error.contains("a grid has 8 features of each document, not 9"), "{error}");
        let empty = Grid { occupied: Occupied::Lengths(vec![5, 0]), ..whole };
        let error = learner.keep_grids(&[empty]).unwrap_err().to_string();
        assert!(error.contains("set 1 (from 0) has no document"), "{error}");
    });
}
