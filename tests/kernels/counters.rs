//! Budgets: what the emulator counts is what `counters.txt` says.
//!
//! Counters do not depend on the schedule, so that any change is one of the kernel, its plan or the counting.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use setrank::device::Limits;
use setrank_emulator::emulate::{self, Config, Copies, Counters, Schedule};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::family::{self, ACCEPT_COUNTERS as ACCEPT, Counted};

const HEADER: &str = "\
# What the emulator counts, on cards of compute capability 9.0 unless a shape says otherwise. Bytes in thousands, read and
# written: requested (of each request of a warp the 32-byte sectors) and unique (distinct); sectors a request; wavefronts of
# shared memory; conflicts (wavefronts over the least possible); products of warps (m16n8k16) and the share of them that is
# not spent on padding; exponentials; barriers a block.
# Written by: SETRANK_ACCEPT_COUNTERS=1 cargo test --features cuda --test kernels counters
";

fn count(mut launch: Launch, config: Config) -> (String, Counters) {
    let counters = emulate::run(&Kernels::repository(), &mut launch, &config.counting()).unwrap();
    (launch.kernel, counters)
}

fn table() -> String {
    let mut text = format!("{HEADER}\n");
    for Counted { shape, problem, useful_products } in
        family::ALL.iter().flat_map(|family| (family.counted)())
    {
        let (kernel, found) = count(problem.launch(&Limits::SM_90), Config::default().workers(2));
        let per = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
        let thousands = |bytes: u64| bytes as f64 / 1e3;
        write!(
            text,
            "{kernel} {shape}: requested {:.1} + {:.1}, unique {:.1} + {:.1}, sectors {:.2}, wavefronts {}, conflicts {:.3}",
            thousands(found.requested_read),
            thousands(found.requested_written),
            thousands(found.unique_read),
            thousands(found.unique_written),
            per(found.sectors, found.requests),
            found.wavefronts,
            per(found.wavefronts, found.ideal_wavefronts),
        )
        .expect("a string takes all");
        if found.mma > 0 {
            write!(text, ", products {} ({:.0} %)", found.mma, 100.0 * useful_products / found.mma as f64)
                .expect("a string takes all");
        }
        writeln!(
            text,
            ", exponentials {}, barriers {:.2}",
            found.exponentials,
            per(found.barriers, found.blocks)
        )
        .expect("a string takes all");
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
    for family in family::ALL {
        for case in (family.cases)() {
            let of = |config: Config| Counters { switches: 0, ..count(case.launch(), config).1 };
            let first = of(Config::default());
            assert!(first.unique_read > 0 && first.unique_written > 0, "{}", family.name);
            for schedule in [Schedule::Reversed, Schedule::Pct] {
                let config = Config::default().schedule(schedule).copies(Copies::AtRandom).seed(3).workers(2);
                assert_eq!(of(config), first, "{}: {config:?}", family.name);
            }
        }
    }
}
