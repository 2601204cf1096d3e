//! Throughput of reading LETOR text, on one thread and on all, and of writing and opening a store.

use std::fmt::Write;
use std::hint::black_box;
use std::path::PathBuf;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use setrank::data::letor::{self, LetorOptions};
use setrank::data::store;
use setrank::rng::{Rng, Stream};

/// Text in the manner of the public sets: 136 features, counts and decimals mixed.
fn dense(documents: usize) -> String {
    let mut rng = Rng::new(1, Stream::Synth, 0);
    let mut text = String::new();
    for document in 0..documents {
        write!(text, "{} qid:{}", rng.below(5), document / 100).unwrap();
        for index in 1..=136 {
            match index % 3 {
                0 => write!(text, " {index}:{}", rng.below(1000)),
                1 => write!(text, " {index}:{:.6}", rng.uniform()),
                _ => write!(text, " {index}:{:.4}", rng.normal() * 100.0),
            }
            .unwrap();
        }
        text.push('\n');
    }
    text
}

/// Sparse text with few features a line.
fn sparse(documents: usize) -> String {
    let mut rng = Rng::new(2, Stream::Synth, 0);
    let mut text = String::new();
    for document in 0..documents {
        write!(text, "{} qid:{}", rng.below(5), document / 20).unwrap();
        for index in (1..300).filter(|_| rng.below(20) == 0).collect::<Vec<_>>() {
            write!(text, " {index}:{:.2}", rng.uniform()).unwrap();
        }
        text.push('\n');
    }
    text
}

fn reading(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for (name, text) in [("dense", dense(20_000)), ("sparse", sparse(100_000))] {
        let path = folder.path().join(name);
        std::fs::write(&path, &text).unwrap();
        let inputs: [PathBuf; 1] = [path];
        let options = LetorOptions::default();
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function("read, one thread", |bencher| {
            bencher.iter(|| one_thread.install(|| letor::read(black_box(&inputs), &options)).unwrap())
        });
        group.bench_function("read", |bencher| {
            bencher.iter(|| letor::read(black_box(&inputs), &options).unwrap())
        });
        let output = folder.path().join("data.sets");
        group.bench_function("import", |bencher| {
            bencher.iter(|| letor::import(&inputs, &options, &output, &[], &|_| Ok(())).unwrap())
        });
        let stored = std::fs::metadata(&output).unwrap().len();
        group.throughput(Throughput::Bytes(stored));
        group.bench_function("open", |bencher| bencher.iter(|| store::open(black_box(&output)).unwrap()));
        group.finish();
    }
}

criterion_group!(benches, reading);
criterion_main!(benches);
