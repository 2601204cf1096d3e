//! Time of kernels on the emulator, at the sizes whose counters are budgeted: in order, with counters, and at random. On
//! machines that it does not run on there is nothing to measure.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the bench takes the families' problems, and leaves their answers and tests"
)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/attention/mod.rs"]
mod attention;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/attention_naive.rs"]
mod attention_naive;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/attention_sm90/mod.rs"]
mod attention_sm90;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/device.rs"]
mod device;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/embed.rs"]
mod embed;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/family.rs"]
mod family;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/feed_forward.rs"]
mod feed_forward;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/feed_forward_backward.rs"]
mod feed_forward_backward;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/feed_forward_backward_sm90.rs"]
mod feed_forward_backward_sm90;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/feed_forward_sm90.rs"]
mod feed_forward_sm90;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/gather.rs"]
mod gather;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/ladder.rs"]
mod ladder;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/layer_norm.rs"]
mod layer_norm;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/linear.rs"]
mod linear;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/linear_few_rows.rs"]
mod linear_few_rows;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/linear_sm90.rs"]
mod linear_sm90;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/linear_wide.rs"]
mod linear_wide;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/loss.rs"]
mod loss;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/norm_linear.rs"]
mod norm_linear;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/optimizer.rs"]
mod optimizer;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/partial_sums.rs"]
mod partial_sums;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/rbf.rs"]
mod rbf;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/rbf_sm90.rs"]
mod rbf_sm90;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/row_sums.rs"]
mod row_sums;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/score.rs"]
mod score;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/score_loss.rs"]
mod score_loss;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/unpad.rs"]
mod unpad;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/kernels/warpgroups.rs"]
mod warpgroups;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod emulated {
    use criterion::{Criterion, criterion_group};
    use setrank::device::Limits;
    use setrank_emulator::emulate::{self, Config, Copies, Schedule};
    use setrank_emulator::kernels::Kernels;

    use crate::family;

    fn families(criterion: &mut Criterion) {
        let kernels = Kernels::repository();
        for family in family::ALL {
            for counted in (family.counted)() {
                let launch = counted.problem.launch(&Limits::SM_90);
                let mut group = criterion.benchmark_group(format!("{} {}", launch.kernel, counted.shape));
                group.sample_size(10);
                let plain = Config::default();
                let random = plain.schedule(Schedule::Pct).copies(Copies::AtRandom);
                for (name, config) in
                    [("in order", plain), ("counting", plain.counting()), ("random", random)]
                {
                    group.bench_function(name, |bencher| {
                        bencher.iter(|| emulate::run(&kernels, &mut launch.clone(), &config).unwrap())
                    });
                }
                group.finish();
            }
        }
    }

    criterion_group!(benches, families);
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
criterion::criterion_main!(emulated::benches);

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {}
