//! The model's operations on the processor, one group each, forward and backward: 1280 documents in 32 sets at the full
//! size's widths, in documents a second on all threads.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use setrank::ops::attention::{self, Attention, Heads, QkvGradients, Rows};
use setrank::ops::embed;
use setrank::ops::feed_forward::Forward;
use setrank::ops::gemm::{Aligned, Write};
use setrank::ops::layer_norm::{self, Norm, Saved};
use setrank::ops::linear::{self, Activation, WeightGradients, WeightJob, Weights};
use setrank::ops::loss::{Loss, Scratch};
use setrank::ops::rbf::{self, Rbf};
use setrank::ops::rows::{RowsMut, TILE, for_tiles};
use setrank::ops::scratch::PerThread;
use setrank::rng::{Rng, Stream};

const SETS: usize = 32;
const SIZE: usize = 40;
const ROWS: usize = SETS * SIZE;
/// C, G, and the documents' features.
const HIDDEN: usize = 256;
const INNER: usize = 1024;
const FEATURES: usize = 220;
const HEADS: Heads = Heads { count: 8, width: 32 };
/// Inducing points.
const POINTS: usize = 20;

fn normals(len: usize, sequence: u64) -> Vec<f32> {
    let mut rng = Rng::new(1, Stream::Benchmark, sequence);
    (0..len).map(|_| rng.normal() as f32).collect()
}

fn threads() -> PerThread {
    let mut threads = PerThread::default();
    threads.prepare();
    threads
}

/// Offsets of sets of this size.
fn offsets(size: usize) -> Vec<usize> {
    (0..=SETS).map(|set| set * size).collect()
}

/// Times `routine`, which computes all documents once.
fn measure(criterion: &mut Criterion, family: &str, name: &str, mut routine: impl FnMut()) {
    let mut group = criterion.benchmark_group(family);
    group.sample_size(10).throughput(Throughput::Elements(ROWS as u64));
    group.bench_function(name, |bencher| bencher.iter(&mut routine));
    group.finish();
}

fn embed(criterion: &mut Criterion) {
    let (mut rows, mut table) = (normals(ROWS * HIDDEN, 0), normals(500 * HIDDEN, 1));
    let indices: Vec<i32> = (0..ROWS).map(|row| (row * 37 % 500) as i32).collect();
    measure(criterion, "embed", "forward", || embed::forward(black_box(&mut rows), &table, &indices, HIDDEN));
    measure(criterion, "embed", "backward", || {
        embed::backward(black_box(&mut table), &rows, &indices, HIDDEN)
    });
}

fn linear(criterion: &mut Criterion) {
    let (x, dy) = (normals(ROWS * HIDDEN, 0), normals(ROWS * 3 * HIDDEN, 1));
    let (weight, bias) = (normals(3 * HIDDEN * HIDDEN, 2), normals(3 * HIDDEN, 3));
    let layer = Weights { weight: &weight, bias: &bias };
    let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
    let (mut d_weight, mut d_bias) = (vec![0.0; weight.len()], vec![0.0; bias.len()]);
    let (mut buffer, threads) = (Aligned::default(), threads());
    measure(criterion, "linear", "forward", || {
        linear::forward(black_box(&mut y), &x, layer, Activation::Identity, &mut buffer);
    });
    measure(criterion, "linear", "backward_input", || {
        linear::backward_input(black_box(&mut dx), Write::Set, &dy, layer, &mut buffer);
    });
    measure(criterion, "linear", "backward_weights", || {
        let gradients = WeightGradients { weight: black_box(&mut d_weight), bias: &mut d_bias };
        linear::backward_weights([WeightJob { gradients, dy: &dy, x: &x }], &threads);
    });
}

fn rbf(criterion: &mut Criterion) {
    // A tenth of the features, as the full width takes a second.
    let (features, per_feature) = (FEATURES / 10, 100);
    let x: Vec<f32> = normals(ROWS * features, 0).iter().map(|x| 0.5 + 0.2 * x).collect();
    let centers: Vec<f32> = normals(features * per_feature, 1).iter().map(|x| 0.5 + 0.3 * x).collect();
    let (weight, bias) = (normals(HIDDEN * centers.len(), 2), normals(HIDDEN, 3));
    let layer = Weights { weight: &weight, bias: &bias };
    let rbf = Rbf { centers: &centers, layer, features };
    let (mut y, dy) = (vec![0.0; ROWS * HIDDEN], normals(ROWS * HIDDEN, 4));
    let (mut d_weight, mut d_bias) = (vec![0.0; weight.len()], vec![0.0; bias.len()]);
    let mut d_centers = vec![0.0; centers.len()];
    let (mut buffer, threads) = (Aligned::default(), threads());
    measure(criterion, "rbf", "forward", || {
        let weight = layer.pack_forward(&mut buffer);
        rbf::forward(black_box(&mut y), &x, &rbf, weight, Activation::Identity, &threads);
    });
    measure(criterion, "rbf", "backward", || {
        let gradients = WeightGradients { weight: black_box(&mut d_weight), bias: &mut d_bias };
        rbf::backward(gradients, &mut d_centers, &dy, &x, &rbf, &threads);
    });
}

/// MSAB's attention among documents, and IMSAB's two between documents and inducing points.
fn attention(criterion: &mut Criterion) {
    let threads = threads();
    for (name, queries, keys, shared_queries) in
        [("documents", SIZE, SIZE, false), ("induce", POINTS, SIZE, true), ("attend", SIZE, POINTS, false)]
    {
        let (query_offsets, key_offsets) = (offsets(queries), offsets(keys));
        let asked = if shared_queries { queries } else { SETS * queries };
        let (q, kv) = (normals(asked * HIDDEN, 0), normals(SETS * keys * 2 * HIDDEN, 1));
        let part = |column| Rows { data: &kv[..], stride: 2 * HIDDEN, column };
        let attention = Attention {
            heads: HEADS,
            q: Rows { data: &q, stride: HIDDEN, column: 0 },
            k: part(0),
            v: part(HIDDEN),
            query_offsets: &query_offsets,
            key_offsets: &key_offsets,
            shared_queries,
            dropout: None,
        };
        let outputs = SETS * queries;
        let (mut out, mut lse) = (vec![0.0; outputs * HIDDEN], vec![0.0; outputs * HEADS.count]);
        let (mut d_q, mut d_kv) = (vec![0.0; outputs * HIDDEN], vec![0.0; kv.len()]);
        let d_out = normals(out.len(), 2);
        measure(criterion, "attention", &format!("{name}, forward"), || {
            attention::forward(black_box(&mut out), Some(&mut lse), &attention, &threads);
        });
        measure(criterion, "attention", &format!("{name}, backward"), || {
            let gradients = QkvGradients::Apart { q: &mut d_q[..], kv: &mut d_kv[..] };
            attention::backward(gradients, black_box(&d_out), &out, &lse, &attention, &threads);
        });
    }
}

fn layer_norm(criterion: &mut Criterion) {
    let (weight, bias) = (vec![1.0; HIDDEN], vec![0.0; HIDDEN]);
    let norm = Norm { weight: &weight, bias: &bias, eps: 1e-5 };
    let (residual, mut y, mut dy) =
        (normals(ROWS * HIDDEN, 0), normals(ROWS * HIDDEN, 1), normals(ROWS * HIDDEN, 2));
    let (mut saved, mut sums) = (Saved::default(), Vec::new());
    let (mut d_weight, mut d_bias) = (vec![0.0; HIDDEN], vec![0.0; HIDDEN]);
    measure(criterion, "layer_norm", "forward", || {
        layer_norm::forward(black_box(&mut y), Some(&residual), &mut saved, norm);
    });
    measure(criterion, "layer_norm", "backward", || {
        layer_norm::backward(black_box(&mut dy), &saved, &mut sums, norm, (&mut d_weight, &mut d_bias));
    });
}

/// LayerNorm(x + fc2(ReLU(fc1(x)))), tile by tile as scoring has it. Its backward is in `train_step`.
fn feed_forward(criterion: &mut Criterion) {
    let (fc1, fc2) = (normals(INNER * HIDDEN, 0), normals(HIDDEN * INNER, 1));
    let (bias1, bias2, weight) = (normals(INNER, 2), normals(HIDDEN, 3), vec![1.0; HIDDEN]);
    let norm = Norm { weight: &weight, bias: &bias2, eps: 1e-5 };
    let layers = [(&fc1, &bias1), (&fc2, &bias2)].map(|(weight, bias)| Weights { weight, bias });
    let (mut buffer1, mut buffer2) = (Aligned::default(), Aligned::default());
    let packed = [layers[0].pack_forward(&mut buffer1), layers[1].pack_forward(&mut buffer2)];
    let network = Forward::new(layers[0], layers[1], norm, packed);
    let (x, mut out, threads) = (normals(ROWS * HIDDEN, 4), vec![0.0; ROWS * HIDDEN], threads());
    threads.reserve::<f32>(TILE * INNER);
    measure(criterion, "feed_forward", "forward", || {
        for_tiles(0..ROWS, TILE, RowsMut::new(black_box(&mut out), HIDDEN), &|tile, out| {
            let x = &x[tile.start * HIDDEN..tile.end * HIDDEN];
            threads.with(tile.len() * INNER, |hidden| network.tile(out.data, hidden, x, None));
        });
    });
}

/// Each loss with its gradient, set by set on one thread.
fn loss(criterion: &mut Criterion) {
    let scores: Vec<f64> = normals(ROWS, 0).into_iter().map(f64::from).collect();
    let labels: Vec<f32> = (0..ROWS).map(|row| (row * 7 % 5) as f32).collect();
    let (mut gradient, mut scratch) = (vec![0.0; SIZE], Scratch::default());
    let mut group = criterion.benchmark_group("loss");
    group.sample_size(10).throughput(Throughput::Elements(ROWS as u64));
    for loss in Loss::ALL {
        group.bench_function(BenchmarkId::from_parameter(format!("{loss:?}")), |bencher| {
            bencher.iter(|| {
                let sets = scores.chunks(SIZE).zip(labels.chunks(SIZE));
                sets.map(|(scores, labels)| loss.of_set(&mut scratch, scores, labels, &mut gradient))
                    .sum::<f64>()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, embed, linear, rbf, attention, layer_norm, feed_forward, loss);
criterion_main!(benches);
