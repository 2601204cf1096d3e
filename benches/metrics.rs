//! Metrics of 1000 queries of MSLR's sizes, in documents a second on all threads.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use setrank::data::synth::Like;
use setrank::data::{Dataset, DatasetBuilder, Document};
use setrank::eval::{Conventions, Metric, evaluate};
use setrank::rng::{Rng, Stream};

const QUERIES: usize = 1000;

/// Sets of MSLR's sizes and grades, without features.
fn data() -> Dataset {
    let mut rng = Rng::new(1, Stream::Benchmark, 0);
    let mut data = DatasetBuilder::new(0);
    for (query, size) in Like::Mslr.sizes().quantiles(QUERIES).into_iter().enumerate() {
        data.start_query(query.to_string());
        for _ in 0..size {
            data.push(Document { features: &[], label: Some(rng.below(5) as f32), id: "" });
        }
    }
    data.finish()
}

fn metrics(criterion: &mut Criterion) {
    let data = data();
    let mut rng = Rng::new(1, Stream::Benchmark, 1);
    let scores: Vec<f32> = (0..data.num_documents()).map(|_| rng.normal() as f32).collect();
    let mut group = criterion.benchmark_group("metrics");
    group.sample_size(20).throughput(Throughput::Elements(data.num_documents() as u64));
    // Those with a cutoff sort less.
    for names in ["ndcg@10", "ndcg", "err@10", "map", "mrr", "p@10", "ndcg@1,ndcg@5,ndcg@10,err,map"] {
        let metrics: Vec<Metric> = names.split(',').map(|name| name.parse().unwrap()).collect();
        group.bench_function(names, |bencher| {
            bencher.iter(|| {
                evaluate(&data, black_box(&scores), None, &metrics, &Conventions::default())
                    .unwrap()
                    .summary(0)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, metrics);
criterion_main!(benches);
