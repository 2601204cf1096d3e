//! Making batches, in documents a second: normalised and shuffled as in training, without features as a GPU has them, and
//! out of and into padded and masked grids.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use setrank::config::ModelConfig;
use setrank::data::augment::Augment;
use setrank::data::batch::{Batch, Batcher, Extent, Shuffle};
use setrank::data::layout::Grid;
use setrank::data::normalize::{Fill, Kind, Settings, WithinSet};
use setrank::data::synth::{self, Like};
use setrank::data::{Dataset, Normalize};
use setrank::rng::{Rng, Stream};
use setrank::train::TrainConfig;
use setrank::train::config::{Layout, Preset};
use setrank::train::epoch::Epoch;

const QUERIES: usize = 64;

fn data() -> Dataset {
    synth::dataset(Like::Mslr, QUERIES, 1, Some(120)).unwrap()
}

fn model(data: &Dataset, within_set: WithinSet) -> ModelConfig {
    let settings = Settings { kind: Kind::Log1pZScore, fill: Fill::Worst, indicators: true, within_set };
    let normalize =
        Normalize::fit_with(settings, data.features(), data.num_features(), data.labels()).unwrap();
    ModelConfig { num_features: data.num_features(), normalize, ..ModelConfig::default() }
}

fn fill(criterion: &mut Criterion) {
    let data = data();
    let shuffle = Some(Shuffle { seed: 1, epoch: 0 });
    let mut group = criterion.benchmark_group("fill");
    group.sample_size(20).throughput(Throughput::Elements(data.num_documents() as u64));
    for (name, within_set) in [("normalised", WithinSet::None), ("within the set", WithinSet::Both)] {
        let config = model(&data, within_set);
        let batcher = Batcher::new(&data, &config).unwrap();
        let mut batch = Batch::default();
        group.bench_function(name, |bencher| {
            bencher.iter(|| batcher.fill(black_box(&mut batch), batcher.sets(), shuffle));
        });
        group.bench_function(format!("{name}, features elsewhere"), |bencher| {
            bencher.iter(|| batcher.fill_without_features(black_box(&mut batch), batcher.sets(), shuffle));
        });
        let batcher = batcher.with_augment(Augment { noise: 0.1, feature_dropout: 0.2 });
        group.bench_function(format!("{name}, disturbed"), |bencher| {
            bencher.iter(|| batcher.fill(black_box(&mut batch), batcher.sets(), shuffle));
        });
    }
    group.finish();
}

fn grids(criterion: &mut Criterion) {
    let data = data();
    let config = model(&data, WithinSet::None);
    let batcher = Batcher::new(&data, &config).unwrap();
    let mut ragged = Batch::default();
    batcher.fill(&mut ragged, batcher.sets(), None);
    let n_max = Extent::of(&ragged).longest;
    let mut rng = Rng::new(1, Stream::Benchmark, 0);
    let anywhere = |ends: &[usize]| {
        let mut cells: Vec<bool> = (0..n_max).map(|cell| cell < ends[1] - ends[0]).collect();
        rng.shuffle(&mut cells);
        cells
    };
    let mask: Vec<bool> = ragged.offsets.windows(2).flat_map(anywhere).collect();
    let mut group = criterion.benchmark_group("grids");
    group.sample_size(20).throughput(Throughput::Elements(ragged.rows.len() as u64));
    group.bench_function("pad", |bencher| bencher.iter(|| Grid::padded(black_box(&ragged), n_max).unwrap()));
    let padded = Grid::padded(&ragged, n_max).unwrap();
    let masked = Grid::masked(&ragged, mask, n_max).unwrap();
    let mut batch = Batch::default();
    for (name, grid) in [("unpad", padded), ("unmask", masked)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                batch.clear();
                black_box(&grid).append_to(&mut batch).unwrap();
            });
        });
    }
    group.finish();
}

fn epochs(criterion: &mut Criterion) {
    let data = data();
    let config = model(&data, WithinSet::None);
    let batcher = Batcher::new(&data, &config).unwrap();
    let mut group = criterion.benchmark_group("epoch");
    group.sample_size(20).throughput(Throughput::Elements(QUERIES as u64));
    for layout in [Layout::Ragged, Layout::Bucketed] {
        let config = TrainConfig { batch_docs: 400, layout, ..TrainConfig::preset(Preset::Default) };
        group.bench_function(format!("{layout:?}"), |bencher| {
            bencher.iter(|| Epoch::new(black_box(&config), &batcher, 1).num_steps());
        });
    }
    group.finish();
}

criterion_group!(benches, fill, grids, epochs);
criterion_main!(benches);
