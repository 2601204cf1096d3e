//! Attention over sets by matrix instructions of warpgroups.

mod backward;
mod bugs;

use half::bf16;
use setrank::device::Limits;
use setrank::ops::attention::check::{Answer, Problem};
use setrank::ops::attention::{Heads, Roles};
use setrank::ops::check::Deviation;
use setrank_emulator::emulate::{self, Config};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::attention::{forward, rising};
use crate::family::{self, Case, Counted, Family};
use crate::ladder::ladder;

ladder!(FAMILY, of_sm_90);

pub const FAMILY: Family = Family {
    name: "attention_sm90",
    cases,
    counted,
    bugs: &bugs::IN_SOURCES,
    wrong_launches: &bugs::IN_LAUNCHES,
};

/// A problem whose sets are all warpgroups', be they as small as they may.
struct ByWarpgroups(Problem);

impl family::Problem for ByWarpgroups {
    fn launch(&self, limits: &Limits) -> Launch {
        let ByWarpgroups(problem) = self;
        let warpgroups = problem.warpgroups(limits);
        let launch = warpgroups.launch(problem.heads(), problem.dropout().is_some());
        let (tiles, blocks) = (&warpgroups.tiles, &warpgroups.blocks);
        let plan = problem.plan(limits).unwrap();
        forward::with_buffers(problem, &plan, launch.expect("a problem has queries"), tiles, blocks)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        family::Problem::deviations(&self.0, launch)
    }
}

fn documents(sizes: &[usize], count: usize, width: usize, rate: f64) -> Problem {
    Problem::random(Roles::Documents, sizes, Heads { count, width }, width as u64).with_dropout(rate)
}

/// A card with so many KiB of shared memory for all blocks of a multiprocessor, and so many of those.
fn card(kib: u32, multiprocessors: u32) -> Limits {
    Limits { shared_per_multiprocessor: kib << 10, multiprocessors, ..Limits::SM_90 }
}

fn cases() -> Vec<Case> {
    forward_cases().into_iter().chain(backward::cases()).collect()
}

/// Of forward: sets whose keys stay, and sets for which they go round, with warpgroups that wait for others in the last pass;
/// whole ones, and ranges of queries; last chunks of every number of steps.
fn forward_cases() -> Vec<Case> {
    let case = |limits, sizes: &[usize], width, rate| {
        Case::new(limits, ByWarpgroups(rising(documents(sizes, 2, width, rate))))
    };
    vec![
        case(card(228, 1), &[1, 17, 0, 112, 64], 32, 0.0),
        case(card(16, 1), &[200, 40], 32, 0.3),
        case(card(228, 132), &[34, 210], 64, 0.0),
        case(card(16, 1), &[200, 50], 64, 0.3),
    ]
}

fn counted() -> Vec<Counted> {
    // The last as Istella's are.
    let shapes: [(&str, &[usize], usize); 3] =
        [("360", &[360], 8), ("500", &[500], 8), ("mixed", &[439, 371, 330, 282, 123], 1)];
    let of = |width| {
        shapes.map(move |(shape, sizes, count)| Counted {
            shape: shape.into(),
            problem: Box::new(ByWarpgroups(documents(sizes, count, width, 0.0))),
            // Of scores, and of weights with values; 2048 multiply-adds in a product of a warp.
            useful_products: (count * 2 * width * sizes.iter().map(|n| n * n).sum::<usize>()) as f64 / 2048.0,
        })
    };
    [32, 64].into_iter().flat_map(of).chain(backward::counted()).collect()
}

/// Runs a problem on the emulator.
fn run(problem: &Problem, config: &Config) -> Answer {
    let mut launch = family::Problem::launch(&ByWarpgroups(problem.clone()), &Limits::SM_90);
    emulate::run(&Kernels::repository(), &mut launch, config).unwrap_or_else(|report| panic!("{report}"));
    forward::answer(&launch)
}

/// Longer than any ring.
#[test]
fn a_long_set() {
    let problem = documents(&[1000], 1, 32, 0.0);
    for deviation in problem.deviations(&run(&problem, &Config::default().workers(2))) {
        assert!(deviation.is_allowed(), "{deviation:?}");
    }
}

#[test]
fn what_is_not_finite_stays_in_its_set() {
    let config = Config::default().workers(2);
    let heads = Heads { count: 1, width: 32 };
    let problem = documents(&[20, 70, 5], heads.count, heads.width, 0.0);
    let clean = run(&problem, &config);
    for bad in [bf16::NAN, bf16::INFINITY] {
        for part in 0..3 {
            let mut problem = problem.clone();
            let [q, kv] = problem.qkv_mut();
            let (values, row) = if part == 0 { (q, 0) } else { (kv, (part - 1) * 95) };
            values[(row + 30) * heads.width + 3] = bad;
            let found = run(&problem, &config);
            let of_others = |values: &[f64]| [&values[..20 * 32], &values[90 * 32..]].concat();
            assert_eq!(of_others(&clean.heads), of_others(&found.heads), "{bad} in part {part}");
            let exact = problem.exact();
            let differ = |(found, exact): (&f64, &f64)| found.is_finite() != exact.is_finite();
            assert!(!found.heads.iter().zip(&exact.heads).any(differ), "{bad} in part {part}");
        }
    }
}
