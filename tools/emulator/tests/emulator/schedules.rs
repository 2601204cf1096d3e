//! Schedules differ, and the same seed gives the same one.

use std::collections::HashSet;
use std::sync::LazyLock;

use crate::common::{compile, launch, run};
use setrank_emulator::emulate::{Config, Copies, Schedule};
use setrank_emulator::kernels::Kernels;

static KERNELS: LazyLock<Kernels> = LazyLock::new(|| compile("order.cu"));

/// The threads of a block in the order in which they pass a place twice.
fn order(config: Config) -> Vec<u32> {
    let of = launch("order", 128, &[], 257, 0, 0);
    run(&KERNELS, &of, &config).unwrap()[1..].to_vec()
}

#[test]
fn schedules_are_what_they_are_called() {
    let in_order = order(Config::default());
    assert_eq!(in_order[..128], (0..128).collect::<Vec<_>>());
    let reversed = order(Config::default().schedule(Schedule::Reversed));
    assert_eq!(reversed[..128], (0..128).rev().collect::<Vec<_>>());
    for schedule in Schedule::ALL {
        let mut threads = order(Config::default().schedule(schedule));
        threads.sort();
        assert_eq!(threads, (0..256).map(|i| i / 2).collect::<Vec<_>>());
    }
}

#[test]
fn random_schedules_follow_their_seed() {
    for schedule in [Schedule::Random, Schedule::Pct] {
        let config = Config::default().schedule(schedule);
        let orders: HashSet<_> = (0..20).map(|seed| order(config.seed(seed))).collect();
        assert_eq!(orders.len(), 20, "{schedule:?}");
        for seed in 0..3 {
            assert_eq!(order(config.seed(seed)), order(config.seed(seed)), "{schedule:?}");
        }
    }
    // Without chance, the seed is nothing.
    for schedule in [Schedule::InOrder, Schedule::Reversed] {
        let config = Config::default().schedule(schedule);
        assert_eq!(order(config.seed(1)), order(config.seed(2)));
    }
}

#[test]
fn the_order_of_blocks_follows_the_schedule() {
    let blocks = |config: Config| {
        let mut of = launch("blocks", 1, &[], 65, 0, 0);
        of.grid = [8, 4, 2];
        run(&KERNELS, &of, &config).unwrap()[1..].to_vec()
    };
    let all: Vec<u32> = (0..64).collect();
    assert_eq!(blocks(Config::default()), all);
    assert_eq!(
        blocks(Config::default().schedule(Schedule::Reversed)),
        all.iter().rev().copied().collect::<Vec<_>>()
    );
    let random = blocks(Config::default().schedule(Schedule::Random));
    assert_ne!(random, all);
    let mut sorted = random.clone();
    sorted.sort();
    assert_eq!(sorted, all);
    assert_ne!(blocks(Config::default().schedule(Schedule::Random).seed(1)), random);
}

#[test]
fn bulk_copies_land_at_different_times() {
    // How many of the loads had landed when the thread that issued them looked, with atomics between.
    let landed = |copies, seed| {
        let of = launch("landing", 32, &[1; 256], 1, 0, 0);
        let config = Config::default().schedule(Schedule::Random).copies(copies).seed(seed);
        run(&KERNELS, &of, &config).unwrap()[0]
    };
    assert_eq!(landed(Copies::AtIssue, 0), 8);
    assert_eq!(landed(Copies::AtWait, 0), 0);
    let random: HashSet<_> = (0..20).map(|seed| landed(Copies::AtRandom, seed)).collect();
    assert!(random.len() > 2, "{random:?}");
    assert_eq!(landed(Copies::AtRandom, 7), landed(Copies::AtRandom, 7));
}

#[test]
fn a_matrix_has_each_case_once() {
    let all: Vec<_> = Config::matrix(&[1, 2, 3]).collect();
    for (i, config) in all.iter().enumerate() {
        assert!(!all[..i].contains(config));
    }
    // Two schedules without chance, with two times of copies without chance: one seed; all others three.
    assert_eq!(all.len(), 2 * (2 + 3) + 2 * 3 * 3);
    assert_eq!(Config::matrix(&[]).count(), 0);
}
