//! A training step and a scoring pass of both encoders on the processor, in documents a second on all threads: 16 sets of
//! Yahoo's sizes, a model of 2 blocks that is as wide as the full one. `setrank bench` measures others, and more of them.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use setrank::bench::SizeSource;
use setrank::config::{Encoder, ModelConfig};
use setrank::data::batch::Batch;
use setrank::model::SetRank;
use setrank::model::scorer::{CpuScorer, Scorer};
use setrank::model::setrank::TrainingStep;
use setrank::ops::loss::Loss;
use setrank::rng::{Rng, Stream};
use setrank::train::config::Preset;
use setrank::train::learner::Objective;
use setrank::train::state::Weights;
use setrank::train::{CpuLearner, TrainConfig};

const SETS: usize = 16;
const FEATURES: usize = 64;

fn batch() -> Batch {
    let mut rng = Rng::new(1, Stream::Benchmark, 1);
    let mut batch = Batch { offsets: vec![0], ..Batch::default() };
    for size in SizeSource::Yahoo.sizes(Some(SETS), 1).unwrap() {
        batch.offsets.push(batch.offsets[batch.offsets.len() - 1] + size);
    }
    let documents = batch.offsets[SETS];
    batch.rows = (0..documents).collect();
    batch.features = (0..documents * FEATURES).map(|_| rng.normal() as f32).collect();
    batch.labels = (0..documents).map(|_| rng.below(5) as f32).collect();
    batch
}

fn steps(criterion: &mut Criterion) {
    let batch = batch();
    let recommended = TrainConfig::preset(Preset::Default);
    for encoder in [Encoder::Msab, Encoder::Imsab] {
        let config = ModelConfig { num_features: FEATURES, num_blocks: 2, encoder, ..ModelConfig::default() };
        let model = SetRank::new(config).unwrap();
        let parameters = model.layout().init(1);
        let mut group = criterion.benchmark_group(encoder.name());
        group.sample_size(10).throughput(Throughput::Elements(batch.rows.len() as u64));
        for loss in [Loss::SoftmaxCrossEntropy, Loss::LambdaLoss] {
            let objective = Objective { loss, clip: recommended.clip, adam: recommended.adam(), ema: 0.0 };
            let mut learner = CpuLearner::new(model.clone(), Weights::new(parameters.clone()), objective);
            let mut step = 0;
            group.bench_function(format!("train, {loss:?}"), |bencher| {
                bencher.iter(|| {
                    learner.begin();
                    learner.accumulate(&batch, SETS, TrainingStep { seed: 1, step });
                    step += 1;
                    learner.finish(1e-4)
                });
            });
        }
        let mut scorer = CpuScorer::new(&model, &parameters);
        group.bench_function("score", |bencher| {
            bencher.iter(|| {
                scorer.begin(&batch).unwrap();
                scorer.finish().unwrap()[0]
            });
        });
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
