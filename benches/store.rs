//! Stores: written, opened with all checksums, and read through the map, in bytes a second; made-up data like Istella's.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use setrank::data::store;
use setrank::data::subset::write_subset;
use setrank::data::synth::{self, Like};

const QUERIES: usize = 40;

fn stores(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let [whole, half] = ["whole.sets", "half.sets"].map(|name| folder.path().join(name));
    let data = synth::dataset(Like::Istella, QUERIES, 1, Some(200)).unwrap();
    store::write(&data, &whole).unwrap();
    let bytes = std::fs::metadata(&whole).unwrap().len();
    let mut group = criterion.benchmark_group("store");
    group.sample_size(10).throughput(Throughput::Bytes(bytes));
    group.bench_function("write", |bencher| bencher.iter(|| store::write(black_box(&data), &whole).unwrap()));
    group.bench_function("open", |bencher| bencher.iter(|| store::open(black_box(&whole)).unwrap()));
    let opened = store::open(&whole).unwrap();
    group.bench_function("read", |bencher| {
        bencher.iter(|| black_box(&opened).features().iter().filter(|value| value.is_nan()).count());
    });
    let queries: Vec<usize> = (0..QUERIES).step_by(2).collect();
    let documents: usize = queries.iter().map(|&query| opened.rows(query).len()).sum();
    group.throughput(Throughput::Bytes((4 * documents * opened.num_features()) as u64));
    group.bench_function("write half of it", |bencher| {
        bencher.iter(|| write_subset(&opened, black_box(&queries), &half).unwrap());
    });
    group.finish();
}

criterion_group!(benches, stores);
criterion_main!(benches);
