//! Counters of accesses that can be told by hand, and that they do not depend on how a launch is run.

use std::sync::LazyLock;

use crate::common::{compile, count, launch};
use crate::vectors::words;
use setrank_emulator::emulate::{Config, Counters, Schedule};
use setrank_emulator::kernels::Kernels;

static KERNELS: LazyLock<Kernels> = LazyLock::new(|| compile("counted.cu"));

/// Of one warp.
fn of_warp(kernel: &str, a: i32) -> Counters {
    count(&KERNELS, &launch(kernel, 32, &words(4096), 4096, a, 0), Config::default())
}

/// Wavefronts, and those without conflicts.
fn shared(kernel: &str, a: i32) -> (u64, u64) {
    let counters = of_warp(kernel, a);
    (counters.wavefronts, counters.ideal_wavefronts)
}

#[test]
fn words_of_a_warp() {
    // Stored and loaded: each twice.
    assert_eq!(shared("shared_words", 1), (2, 2));
    assert_eq!(shared("shared_words", 2), (2 * 2, 2));
    assert_eq!(shared("shared_words", 3), (2, 2));
    assert_eq!(shared("shared_words", 8), (2 * 8, 2));
    assert_eq!(shared("shared_words", 32), (2 * 32, 2));
    assert_eq!(shared("shared_words", 33), (2, 2));
    // All lanes at one word: a broadcast.
    assert_eq!(shared("shared_words", 0), (2, 2));
    for lanes in [1, 31, 32] {
        assert_eq!(shared("shared_broadcast", lanes), (2, 2));
    }
    assert_eq!(shared("shared_halves", 0), (1, 1));
}

#[test]
fn wide_accesses_are_served_in_parts() {
    // 256 bytes in two halves of a warp, 512 bytes in four quarters.
    assert_eq!(shared("shared_wide", 1), (2 + 4, 2 + 4));
    // Every second unit: in each part half of the banks are asked twice.
    assert_eq!(shared("shared_wide", 2), (2 * 2 + 4 * 2, 2 + 4));
    // 128 bytes apart: 16 and 8 lanes of a part at the same banks.
    assert_eq!(shared("shared_wide", 16).0 - 4 * 8, 2 * 16);
    assert_eq!(shared("shared_wide", 0), (2 + 4, 1 + 1));
}

#[test]
fn rows_of_matrices() {
    // The stores of the rows, and ldmatrix: the same rows, eight at a time.
    assert_eq!(shared("shared_rows", 16), (4 + 4, 4 + 4));
    assert_eq!(shared("shared_rows", 64), (4 * 4 + 4 * 4, 4 + 4));
    assert_eq!(shared("shared_rows", 128), (4 * 8 + 4 * 8, 4 + 4));
    assert_eq!(shared("shared_rows", 80), (4 + 4, 4 + 4));
}

#[test]
fn operands_of_warpgroups() {
    let of = |a| {
        let counters = count(&KERNELS, &launch("wgmma_operands", 128, &[], 1, a, 0), Config::default());
        (counters.mma, counters.wavefronts, counters.ideal_wavefronts)
    };
    let (none, wavefronts, ideal) = of(0);
    // 4·32/8 products of a warp; b has 1 KB and a 2 KB, which the warps read together.
    assert_eq!(none, 0);
    assert_eq!(of(1), (16, wavefronts + 8, ideal + 8));
    assert_eq!(of(2), (16, wavefronts + 8 + 16, ideal + 8 + 16));
}

#[test]
fn atomics_of_one_word_are_served_one_by_one() {
    assert_eq!(shared("shared_atomics", 0), (1 + 32, 1 + 1));
}

#[test]
fn words_of_global_memory() {
    let sectors = |a| of_warp("global_words", a).sectors - 4;
    assert_eq!(
        (sectors(1), sectors(2), sectors(4), sectors(8), sectors(16), sectors(0)),
        (4, 8, 16, 32, 32, 1)
    );
    let counters = of_warp("global_words", 2);
    assert_eq!(counters.requests, 2);
    assert_eq!((counters.requested_read, counters.requested_written), (8 * 32, 128));
    assert_eq!((counters.unique_read, counters.unique_written), (128, 128));
    let broadcast = of_warp("global_words", 0);
    assert_eq!((broadcast.requested_read, broadcast.unique_read), (32, 4));
    // Two warps: twice the requests, of the same bytes when they read the same.
    let two = count(&KERNELS, &launch("global_words", 64, &words(64), 64, 0, 0), Config::default());
    assert_eq!((two.requests, two.sectors, two.unique_read, two.unique_written), (4, 2 + 8, 4, 256));
}

#[test]
fn divergent_lanes_make_requests_by_how_often_they_were_there() {
    // Each lane loads twice in four rounds: its first loads are one request, its second ones another.
    let counters = of_warp("global_divergent", 4);
    assert_eq!((counters.requests, counters.sectors, counters.requested_read), (2, 8, 256));
    // In three rounds, even lanes load twice and odd ones once.
    let counters = of_warp("global_divergent", 3);
    assert_eq!((counters.requests, counters.sectors, counters.requested_read), (2, 8, 256));
}

#[test]
fn atomics_of_global_memory_read_and_write() {
    let counters = of_warp("global_atomics", 0);
    assert_eq!((counters.requests, counters.sectors), (1, 1));
    assert_eq!((counters.requested_read, counters.requested_written), (32, 32));
    assert_eq!((counters.unique_read, counters.unique_written), (4, 4));
}

#[test]
fn copies_stage_in_shared_memory() {
    let counters = of_warp("copies", 20);
    assert_eq!((counters.requests, counters.sectors, counters.requested_read), (1, 10, 320));
    assert_eq!((counters.wavefronts, counters.ideal_wavefronts), (4, 4));
    let none = of_warp("copies", 0);
    assert_eq!((none.requests, none.requested_read, none.wavefronts), (0, 0, 4));
    let bulk = of_warp("bulk", 320);
    assert_eq!((bulk.requests, bulk.sectors, bulk.requested_read, bulk.unique_read), (1, 10, 320, 320));
    assert_eq!((bulk.wavefronts, bulk.ideal_wavefronts), (3, 3));
}

#[test]
fn operations_are_counted_always() {
    let mut of = launch("operations", 64, &[], 64, 3, 0);
    of.grid = [5, 1, 1];
    let counters = setrank_emulator::emulate::run(&KERNELS, &mut of, &Config::default()).unwrap();
    assert_eq!((counters.blocks, counters.threads), (5, 5 * 64));
    assert_eq!((counters.mma, counters.barriers), (5 * 2 * 6, 5 * 6));
    assert_eq!(counters.exponentials, 5 * 64 * 12);
    assert_eq!((counters.requested_written, counters.requests, counters.wavefronts), (0, 0, 0));
}

#[test]
fn counters_depend_on_the_launch_only() {
    let other = [("groups", compile("copies.cu"), 64), ("ring", compile("block.cu"), 128)];
    for (kernel, kernels, threads) in &other {
        let mut of = launch(kernel, *threads, &words(4096), 4096, 4, 40);
        of.grid = [3, 1, 1];
        let first = count(kernels, &of, Config::default());
        assert!(first.wavefronts > 0);
        for config in Config::matrix(&[1, 2, 3]) {
            for workers in [1, 3] {
                let counters =
                    Counters { switches: first.switches, ..count(kernels, &of, config.workers(workers)) };
                assert_eq!(counters, first, "{kernel} with {config:?}");
            }
        }
    }
    // Where lanes of a warp meet at different times.
    let first = of_warp("global_divergent", 5);
    for schedule in Schedule::ALL {
        let config = Config::default().schedule(schedule).seed(5);
        let counters = count(&KERNELS, &launch("global_divergent", 32, &words(4096), 4096, 5, 0), config);
        assert_eq!(Counters { switches: first.switches, ..counters }, first);
    }
}
