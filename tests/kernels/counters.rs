//! Budgets: what the emulator counts is what `counters.txt` says.
//!
//! Counters do not depend on the schedule, so that any change is one of the kernel, its plan or the counting.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use setrank::device::Limits;
use setrank::ops::attention::Heads;
use setrank::ops::attention::check::Problem;
use setrank_emulator::emulate::{self, Config, Copies, Counters, Schedule};
use setrank_emulator::kernels::Kernels;

use crate::launches;

const ACCEPT: &str = "SETRANK_ACCEPT_COUNTERS";

const HEADER: &str = "\
# What the emulator counts, on cards of compute capability 9.0. Bytes in thousands: requested (asked for by lanes) and unique
# (distinct), read and written; 32-byte sectors a request; wavefronts of shared memory a matrix product; conflicts
# (wavefronts over the least possible); products of warps (m16n8k16) and the share of them that multiplies documents
# with documents; exponentials a pair of documents; barriers a block.
# Written by: SETRANK_ACCEPT_COUNTERS=1 cargo test --features cuda --test kernels counters
";

fn count(problem: &Problem, config: Config) -> (String, Counters) {
    let mut launch = launches::set_attention(problem, &Limits::SM_90);
    let counters = emulate::run(&Kernels::repository(), &mut launch, &config.counting()).unwrap();
    (launch.kernel, counters)
}

fn table() -> String {
    let mut text = format!("{HEADER}\n");
    for width in [32, 64] {
        for sizes in [&[1; 64][..], &[40; 32], &[128; 4], &[500, 360]] {
            let heads = Heads { count: 8, width };
            let problem = Problem::random(sizes, heads, 1);
            let (kernel, found) = count(&problem, Config::default().workers(2));
            let pairs = (heads.count * sizes.iter().map(|n| n * n).sum::<usize>()) as f64;
            // 2·D multiply-adds a pair of documents; 2048 in a product.
            let useful = pairs * (2 * width) as f64 / 2048.0;
            let per = |a: u64, b: u64| a as f64 / b as f64;
            let thousands = |bytes: u64| bytes as f64 / 1e3;
            let shape = if sizes.iter().all(|size| *size == sizes[0]) {
                format!("{}x{}", sizes.len(), sizes[0])
            } else {
                sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
            };
            writeln!(
                text,
                "{kernel} {shape}: requested {:.1} + {:.1}, unique {:.1} + {:.1}, sectors {:.2}, wavefronts {:.3}, conflicts \
                 {:.3}, products {} ({:.0} %), exponentials {:.2}, barriers {:.2}",
                thousands(found.requested_read),
                thousands(found.requested_written),
                thousands(found.unique_read),
                thousands(found.unique_written),
                per(found.sectors, found.requests),
                per(found.wavefronts, found.mma),
                per(found.wavefronts, found.ideal_wavefronts),
                found.mma,
                100.0 * useful / found.mma as f64,
                found.exponentials as f64 / pairs,
                per(found.barriers, found.blocks),
            )
            .expect("a string takes all");
        }
    }
    text
}

#[test]
fn counters_are_as_budgeted() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/counters.txt");
    let found = table();
    if env::var_os(ACCEPT).is_some() {
        fs::write(&path, found).unwrap();
        return;
    }
    let budget = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == budget, "the counters changed; if that is meant, set {ACCEPT}=1. Now:\n{found}");
}

#[test]
fn counters_do_not_depend_on_the_schedule() {
    let problem = Problem::random(&[70, 3], Heads { count: 2, width: 32 }, 1);
    let of = |config: Config| Counters { switches: 0, ..count(&problem, config).1 };
    let first = of(Config::default());
    assert!(first.mma > 0 && first.unique_read > 0);
    for schedule in Schedule::ALL {
        for copies in Copies::ALL {
            let config = Config::default().schedule(schedule).copies(copies).seed(3).workers(2);
            assert_eq!(of(config), first, "{config:?}");
        }
    }
}

#[test]
fn what_is_read_is_read_once() {
    let heads = Heads { count: 8, width: 32 };
    let problem = Problem::random(&[40, 7], heads, 1);
    let (_, found) = count(&problem, Config::default());
    let values = 47 * heads.hidden() as u64;
    // q, k and v in bf16, and a tile of 16 bytes a set; heads in bf16 and log-sum-exp in f32.
    assert_eq!(found.unique_read, 3 * 2 * values + 2 * 16);
    assert_eq!(found.unique_written, 2 * values + 4 * 47 * 8);
    assert_eq!(found.requested_written, found.unique_written);
}
