//! What kernels do wrong is reported: where, and what.

use std::sync::LazyLock;

use crate::common::{Misuse, compile, launch, run};
use crate::vectors::words;
use setrank_emulator::emulate::{Config, Copies, Fault, Schedule};
use setrank_emulator::launch::Launch;

static MISUSE: LazyLock<Misuse> = LazyLock::new(|| Misuse::of("misuse.cu"));

/// Reported with every schedule and time of copies.
fn always(threads: u32, kernel: &str, a: i32, fault: Fault, text: &str) {
    MISUSE.always(&launch(kernel, threads, &words(128), 128, a, 0), fault, text);
}

#[test]
fn addresses_outside_of_memory() {
    let reported = |kernel, a, text| always(32, kernel, a, Fault::IllegalAddress, text);
    reported("shared_beyond", 16384 - 124, "bytes 16384 to 16388 of the block's 16384 bytes");
    reported("shared_without_base", 0, "bytes -");
    reported("global_beyond", 97, "store_global of 4 bytes at byte 512 of `output` of 512 bytes");
    reported("global_before", 0, "load_global of 4 bytes at byte -4 of `input`");
    reported("global_across_the_end", 64, "load_constant of 8 bytes at byte 512 of `input`");
    reported("global_null", 0, "the null pointer");
    reported("atomic_beyond", 128, "atomic_add_global of 4 bytes at byte 512");
    reported("copy_beyond", 4, "cp_async_16 of 16 bytes at byte 512 of `input`");
    reported("bulk_beyond", 116, "bulk_store of 64 bytes at byte 464 of `output`");
}

#[test]
fn misaligned_addresses() {
    let reported = |kernel, text| always(32, kernel, 0, Fault::Misaligned, text);
    reported("shared_misaligned", "not aligned to 4");
    reported("global_misaligned", "not aligned to 16");
    reported("copy_misaligned", "not aligned to 16");
    reported("bulk_misaligned", "not aligned to 16");
}

#[test]
fn bytes_of_the_same_word_have_exact_bounds() {
    // 127 words are 508 bytes: eight at byte 504 cross the end, in the middle of a unit of 16.
    let of = launch("global_across_the_end", 1, &words(127), 1, 63, 0);
    let report = run(&MISUSE.kernels, &of, &Config::default()).unwrap_err();
    MISUSE.check(&of, &report, Fault::IllegalAddress, "byte 504 of `input` of 508 bytes");
}

#[test]
fn raw_accesses_and_deep_stacks() {
    for config in Config::matrix(&[1]) {
        let report = run(&MISUSE.kernels, &launch("raw_access", 32, &[], 1, 0, 0), &config).unwrap_err();
        assert_eq!(report.fault, Fault::IllegalAddress);
        assert!(report.text.contains("not made through ptx::"), "{report}");
        assert!(report.text.contains("in kernel raw_access, block (0, 0, 0), thread"), "{report}");
        let report = run(&MISUSE.kernels, &launch("deep_stack", 32, &[], 1, 1000, 0), &config).unwrap_err();
        assert!(report.text.contains("stack overflows"), "{report}");
    }
    let shallow = launch("deep_stack", 32, &[], 1, 10, 0);
    assert_eq!(run(&MISUSE.kernels, &shallow, &Config::default()), Ok(vec![55]));
}

#[test]
fn shared_memory_that_is_not_written() {
    let reported =
        |kernel| always(32, kernel, 0, Fault::LaunchFailed, "read before anything is written to it");
    reported("unwritten");
    reported("half_written");
    reported("unwritten_matrix");
    // In order, thread 0 reads what thread 1 has not written yet; reversed, thread 1 has.
    let of = launch("missing_barrier", 64, &[], 64, 0, 0);
    for schedule in Schedule::ALL {
        let report = run(&MISUSE.kernels, &of, &Config::default().schedule(schedule)).unwrap_err();
        MISUSE.check(&of, &report, Fault::LaunchFailed, "read before anything is written to it");
    }
}

#[test]
fn copies_that_are_not_waited_for() {
    let reported = |kernel, text| always(32, kernel, 0, Fault::LaunchFailed, text);
    for kernel in ["copy_not_waited", "copy_not_committed", "copy_of_wrong_group"] {
        reported(kernel, "is read while a cp_async_16 into it is under way (kernels/misuse.cu:");
    }
    reported(
        "copy_overwritten",
        "is overwritten while a cp_async_16 into it is under way (kernels/misuse.cu:",
    );
    reported("copy_twice", "is overwritten while a cp_async_16 into it is under way (kernels/misuse.cu:");
}

#[test]
fn divergent_warps() {
    let reported = |threads, kernel, text| always(threads, kernel, 0, Fault::LaunchFailed, text);
    reported(32, "divergent_shuffle", "divergent warp: this lane is at shuffle_xor while lanes ");
    reported(32, "divergent_barrier", "divergent warp: this lane is at barrier while lanes ");
    reported(32, "early_exit", "ballot needs all 32 lanes of the warp");
    reported(48, "small_warp", "ballot needs all 32 lanes of the warp: only lanes 0000ffff have not exited");
}

#[test]
fn barriers_that_cannot_be_complete() {
    let reported = |threads, kernel, text| always(threads, kernel, 0, Fault::LaunchFailed, text);
    reported(96, "barrier_counts", "barrier_sync: barrier 1 for ");
    reported(96, "barrier_of_half_warps", "48 threads: not a multiple of 32");
    reported(32, "barrier_of_none", "there is no barrier 16");
    reported(64, "barrier_twice", "warp 0 comes to barrier 1 a second time before it is complete");
    reported(96, "barrier_missed", "deadlock: no thread of the block can go on");
    let of = launch("barrier_missed", 96, &[], 1, 0, 0);
    let report = run(&MISUSE.kernels, &of, &Config::default()).unwrap_err();
    let line = MISUSE.marked_lines("barrier_missed")[0];
    assert!(report.text.contains("threads 0-31: exited"), "{report}");
    let waiting =
        format!("threads 32-95: at barrier_sync (kernels/misuse.cu:{line}), barrier 1, where 64 of 96");
    assert!(report.text.contains(&waiting), "{report}");
}

#[test]
fn loops_without_end() {
    for kernel in ["endless_wait", "endless_wait_shared", "endless_meetings"] {
        let of = launch(kernel, 32, &[], 1, 0, 0);
        let report = run(&MISUSE.kernels, &of, &Config::default()).unwrap_err();
        MISUSE.check(&of, &report, Fault::LaunchFailed, "endless loop");
    }
}

#[test]
fn mbarriers() {
    let reported = |kernel, text| always(64, kernel, 0, Fault::LaunchFailed, text);
    reported("mbarrier_not_made", "no mbarrier has been made of byte 0");
    reported("mbarrier_twice", "is part of an mbarrier");
    reported("mbarrier_overwritten", "is part of an mbarrier");
    reported("mbarrier_read", "is part of an mbarrier");
    reported("mbarrier_of_none", "0 arrivals");
    reported("mbarrier_arrivals", "one arrival more than the 1 of phase 0");
    reported(
        "mbarrier_deadlock",
        "for phase 0 of the mbarrier at byte 8192, which misses 1 arrivals and 0 bytes",
    );
}

#[test]
fn bulk_copies() {
    let reported = |kernel, text| always(64, kernel, 0, Fault::LaunchFailed, text);
    reported("bulk_not_fenced_init", "thread 0, which made it, has not called fence_mbarrier_init");
    reported("bulk_not_waited", "is read while a bulk_load into it is under way (kernels/misuse.cu:");
    reported("bulk_too_many_bytes", "got 32 bytes more than it expects");
    reported("bulk_too_few_bytes", "which misses 0 arrivals and 32 bytes");
    reported("bulk_left_alone", "the block ends before its mbarrier's phase is complete");
    reported(
        "bulk_load_over_stores",
        "was written by thread 1, which has not called fence_proxy_async since",
    );
    reported(
        "bulk_store_not_fenced",
        "was written by thread 0, which has not called fence_proxy_async since",
    );
    reported("bulk_store_overwritten", "is overwritten while a bulk_store reads it (kernels/misuse.cu:");
    reported("bulk_store_of_newest_group", "is overwritten while a bulk_store reads it (kernels/misuse.cu:");
    reported("bulk_store_left_alone", "it needs bulk_wait_read");
    reported("bulk_bytes", "24 bytes: not a positive multiple of 16");
}

#[test]
fn launches_after_a_report_are_as_before_it() {
    let correct = compile("block.cu");
    let of = launch("ring", 128, &[], 128, 3, 0);
    let wrong = [
        ("barrier_missed", 96),
        ("divergent_shuffle", 32),
        ("bulk_left_alone", 64),
        ("mbarrier_deadlock", 64),
        ("copy_not_waited", 128),
        ("raw_access", 1024),
        ("deep_stack", 1024),
    ];
    for config in Config::matrix(&[1]) {
        let expected = run(&correct, &of, &config);
        assert!(expected.is_ok());
        for (kernel, threads) in wrong {
            let report = run(&MISUSE.kernels, &launch(kernel, threads, &words(512), 128, 1000, 0), &config);
            assert!(report.is_err(), "{kernel}");
            assert_eq!(run(&correct, &of, &config), expected, "after {kernel}");
        }
    }
}

#[test]
fn sources_overwritten_too_early_show() {
    // Not a report: what is copied depends on when the copy lands, and one of the times shows it.
    let kernels = compile("late.cu");
    let of = launch("late", 32, &[7; 128], 128, 0, 0);
    let with = |copies| run(&kernels, &of, &Config::default().copies(copies)).unwrap();
    assert_eq!(with(Copies::AtIssue), [7; 128]);
    assert_eq!(with(Copies::AtWait), [9; 128]);
}

#[test]
fn launches_that_no_card_allows() {
    let of = launch("barrier_of_half_warps", 96, &[], 1, 0, 0);
    let with = |change: &dyn Fn(&mut Launch), config: Config| {
        let mut of = of.clone();
        change(&mut of);
        run(&MISUSE.kernels, &of, &config).unwrap_err()
    };
    let invalid = |change: &dyn Fn(&mut Launch), config, text: &str| {
        let report = with(change, config);
        assert_eq!(report.fault, Fault::InvalidLaunch, "{report}");
        assert!(report.text.contains(text), "{report}");
    };
    let config = Config::default();
    invalid(&|of| of.grid = [0, 1, 1], config, "a grid of 0 x 1 x 1 blocks");
    invalid(&|of| of.grid = [1, 65536, 1], config, "a grid of 1 x 65536 x 1 blocks");
    invalid(&|of| of.grid = [1, 1, 65536], config, "a grid of 1 x 1 x 65536 blocks");
    invalid(&|of| of.grid = [1 << 31, 1, 1], config, "a grid of 2147483648 x 1 x 1 blocks");
    invalid(&|of| of.block = [1025, 1, 1], config, "a block of 1025 x 1 x 1 threads");
    invalid(&|of| of.block = [0, 1, 1], config, "a block of 0 x 1 x 1 threads");
    invalid(&|of| of.block = [1, 1, 65], config, "a block of 1 x 1 x 65 threads");
    invalid(&|of| of.block = [u32::MAX, u32::MAX, u32::MAX], config, "a block of");
    invalid(&|of| of.shared_bytes = 227 * 1024 + 1, config, "232449 bytes of shared memory: at most 232448");
    invalid(&|of| of.shared_bytes = 99 * 1024 + 1, config.shared_limit(99 * 1024), "at most 101376");
    let kernels = compile("warp.cu");
    let report = run(&kernels, &launch("mma", 64, &[], 1, 0, 0), &config).unwrap_err();
    assert_eq!(report.fault, Fault::InvalidLaunch);
    assert!(report.text.contains("its __launch_bounds__ allow 32"), "{report}");
}

#[test]
fn launches_that_do_not_fit_the_kernel() {
    let of = launch("atomic_beyond", 1, &[], 1, 0, 0);
    let with = |change: &dyn Fn(&mut Launch)| {
        let mut of = of.clone();
        change(&mut of);
        let report = run(&MISUSE.kernels, &of, &Config::default()).unwrap_err();
        assert_eq!(report.fault, Fault::Mismatch);
        report.text
    };
    assert_eq!(with(&|of| of.kernel = "nothing".into()), "there is no kernel `nothing`");
    assert!(with(&|of| of.parameter.push(0)).contains("takes a parameter of 24 bytes: the launch has 25"));
    assert!(with(&|of| of.pointers[0].at = 17).contains("pointer at byte 17 of the parameter to buffer 0"));
    assert!(with(&|of| of.pointers[0].buffer = 2).contains("pointer at byte 0 of the parameter to buffer 2"));
}

#[test]
fn the_first_block_that_fails_is_reported() {
    let mut of = launch("atomic_beyond", 32, &[], 1, 1, 0);
    of.grid = [64, 1, 1];
    for workers in [1, 4] {
        for schedule in Schedule::ALL {
            let config = Config::default().schedule(schedule);
            let first = run(&MISUSE.kernels, &of, &config).unwrap_err();
            let report = run(&MISUSE.kernels, &of, &config.workers(workers)).unwrap_err();
            assert_eq!(report, first);
            if schedule == Schedule::InOrder {
                assert!(report.text.contains("block (0, 0, 0), thread 0"), "{report}");
            }
        }
    }
}
