//! Time of set attention on the emulator: a set of 500 documents with 8 heads, without counters and with them.

use criterion::{Criterion, criterion_group, criterion_main};
use setrank::device::Limits;
use setrank::ops::attention::Heads;
use setrank::ops::attention::check::Problem;
use setrank_emulator::emulate::{self, Config, Copies, Schedule};
use setrank_emulator::kernels::Kernels;

#[path = "../tests/kernels/launches.rs"]
#[allow(dead_code, reason = "the bench makes launches and reads no answers")]
mod launches;

fn attention(criterion: &mut Criterion) {
    let problem = Problem::random(&[500], Heads { count: 8, width: 32 }, 1);
    let launch = launches::set_attention(&problem, &Limits::SM_90);
    let kernels = Kernels::repository();
    let mut group = criterion.benchmark_group("set attention, 500 documents, 8 heads");
    group.sample_size(10);
    let plain = Config::default();
    let random = plain.schedule(Schedule::Pct).copies(Copies::AtRandom);
    for (name, config) in [("in order", plain), ("counting", plain.counting()), ("random", random)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| emulate::run(&kernels, &mut launch.clone(), &config).unwrap())
        });
    }
    group.finish();
}

criterion_group!(benches, attention);
criterion_main!(benches);
