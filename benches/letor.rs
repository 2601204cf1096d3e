//! Throughput of parsing LETOR text, of reading it into memory and into a store, and of opening the store.
//!
//! Texts made up here, and the real sets of `../shared/data` where that folder is.

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use setrank::data::letor::{self, LetorOptions};
use setrank::data::store;
use setrank::rng::{Rng, Stream};

/// Text in the manner of MSLR-WEB: 136 features, counts and decimals mixed.
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

/// Text in the manner of Istella: 220 features, small integers, short decimals, and its word for missing.
fn istella(documents: usize) -> String {
    let mut rng = Rng::new(3, Stream::Synth, 0);
    let mut text = String::new();
    for document in 0..documents {
        write!(text, "{} qid:{}", rng.below(5), document / 300).unwrap();
        for index in 1..=220 {
            match rng.below(8) {
                0 => write!(text, " {index}:{}", rng.below(1_000_000)),
                1 | 2 => write!(text, " {index}:{:.3}", rng.uniform()),
                3 => write!(text, " {index}:1.79769313486e+308"),
                _ => write!(text, " {index}:{}", rng.below(3)),
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

/// The parts of the real sets that are large enough to time.
const REAL_SETS: [(&str, &[&str]); 4] = [
    ("mq2007agg", &["A1.txt", "A2.txt", "A3.txt", "A4.txt", "A5.txt"]),
    ("mslr_union", &["S1.txt", "S2.txt", "S3.txt", "S4.txt", "S5.txt"]),
    ("mq2008", &["S1.txt", "S2.txt", "S3.txt", "S4.txt", "S5.txt"]),
    ("usptact", &["train.sorted.ltr"]),
];

/// Times reading, importing and opening `inputs`.
fn measure(criterion: &mut Criterion, name: &str, inputs: &[PathBuf], folder: &Path) {
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let options = LetorOptions::default();
    let bytes = inputs.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    let output = folder.join("data.sets");
    letor::import(inputs, &options, &output, &[], &|_| Ok(())).unwrap();
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).throughput(Throughput::Bytes(bytes));
    group.bench_function("parse, one thread", |bencher| {
        let parse = || letor::check(black_box(inputs), &options, &|_| Ok(())).unwrap();
        bencher.iter(|| one_thread.install(parse))
    });
    group.bench_function("read, one thread", |bencher| {
        bencher.iter(|| one_thread.install(|| letor::read(black_box(inputs), &options)).unwrap())
    });
    group
        .bench_function("read", |bencher| bencher.iter(|| letor::read(black_box(inputs), &options).unwrap()));
    group.bench_function("import", |bencher| {
        bencher.iter(|| letor::import(inputs, &options, &output, &[], &|_| Ok(())).unwrap())
    });
    let stored = std::fs::metadata(&output).unwrap().len();
    group.throughput(Throughput::Bytes(stored));
    group.bench_function("open", |bencher| bencher.iter(|| store::open(black_box(&output)).unwrap()));
    group.finish();
}

fn made_up(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let texts = [("dense", dense(20_000)), ("istella", istella(20_000)), ("sparse", sparse(100_000))];
    for (name, text) in texts {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        measure(criterion, name, &[path], folder.path());
    }
}

fn real(criterion: &mut Criterion) {
    let sets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let folder = tempfile::tempdir().unwrap();
    for (name, parts) in REAL_SETS {
        let inputs: Vec<PathBuf> = parts.iter().map(|part| sets.join(name).join(part)).collect();
        if inputs.iter().all(|path| path.is_file()) {
            measure(criterion, name, &inputs, folder.path());
        } else {
            eprintln!("skipped: {name} is not in {}", sets.display());
        }
    }
}

criterion_group!(benches, made_up, real);
criterion_main!(benches);
