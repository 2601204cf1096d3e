//! What kernels do wrong with products of warpgroups is reported: where, and what.

use std::sync::LazyLock;

use crate::common::{Misuse, launch, run};
use crate::vectors::words;
use setrank_emulator::emulate::{Config, Copies, Fault};

static MISUSE: LazyLock<Misuse> = LazyLock::new(|| Misuse::of("misuse_wgmma.cu"));

/// Reported with every schedule and time of copies.
fn always_of(threads: u32, kernel: &str, fault: Fault, text: &str) {
    MISUSE.always(&launch(kernel, threads, &words(128), 128, 0, 0), fault, text);
}

fn always(kernel: &str, text: &str) {
    always_of(128, kernel, Fault::LaunchFailed, text);
}

#[test]
fn registers_that_are_not_fenced() {
    always("no_fence", "wgmma_fence has not had the registers of d");
    always("a_not_fenced", "wgmma_fence has not had the registers of a");
    always("a_written_behind_the_fence", "registers of a were written since wgmma_fence had them");
    always("d_written_behind_the_fence", "registers of d were written since wgmma_fence had them");
    always("used_again_without_a_fence", "wgmma_fence has not had the registers of d since they were used");
}

#[test]
fn registers_that_are_not_waited_for() {
    always("fenced_while_under_way", "that is under way");
    for (kernel, which) in [("a_written_while_under_way", "a"), ("d_written_while_under_way", "d")] {
        always(
            kernel,
            &format!("registers of {which} were written while a wgmma_m64k16_bf16 (kernels/misuse_wgmma.cu:"),
        );
    }
    always("waited_for_too_few", "of these results is still under way");
    always("not_committed", "of these results is still under way");
    always("left_alone", "it needs wgmma_wait");
}

/// Not a report: what is read depends on when the results land, and one of the times shows it.
#[test]
fn results_that_are_read_too_early_show() {
    let of = launch("read_while_under_way", 128, &[], 128, 0, 0);
    let with = |copies| run(&MISUSE.kernels, &of, &Config::default().copies(copies)).unwrap();
    assert_eq!(with(Copies::AtIssue), [0; 128]);
    assert_eq!(with(Copies::AtWait), [u32::MAX; 128]);
}

#[test]
fn shared_memory_that_is_not_ready() {
    always("operand_not_fenced", "which has not called fence_proxy_async since");
    always("operand_unwritten", "is read before anything is written to it");
    always("operand_under_way", "is read while a cp_async_16 into it is under way");
    always(
        "operand_overwritten",
        "is overwritten while a wgmma_m64k16_bf16 reads it (kernels/misuse_wgmma.cu:",
    );
    always_of(128, "operand_beyond", Fault::IllegalAddress, "of the block's 16384 bytes of shared memory");
    always_of(128, "operand_misaligned", Fault::Misaligned, "not in the first row of a multiple of 512");
}

#[test]
fn what_warps_do_apart() {
    always("operands_of_lanes", "this lane gives other operands than lanes ");
    always("operands_of_warps", "of the warpgroup gives other operands than another one");
    always("warps_apart", "divergent warpgroup: warp ");
    always("warp_without", "wgmma_fence: warp 3 of the warpgroup has exited without it");
    always_of(64, "half_a_warpgroup", Fault::LaunchFailed, "needs a warpgroup of four warps");
}

#[test]
fn numbers_of_registers() {
    always("too_many_registers", "264 registers: not a multiple of 8 from 24 to 256");
    always_of(256, "too_many_together", Fault::LaunchFailed, "registers_increase: ");
    always("registers_of_a_warp", "divergent warpgroup: warp ");
}
