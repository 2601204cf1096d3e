//! What kernels do wrong with clusters and copies of boxes is reported: where, and what.

use std::sync::LazyLock;

use crate::common::{Misuse, launch_of, run};
use crate::vectors::{self, Vector};
use setrank_emulator::emulate::{Config, Fault};
use setrank_emulator::launch::Launch;

static MISUSE: LazyLock<Misuse> = LazyLock::new(|| Misuse::of("misuse_cluster.cu"));

/// A cluster of two blocks of a warp, and a matrix.
fn of(kernel: &'static str) -> Launch {
    let known = vectors::cluster::boxes().remove(0);
    launch_of(&Vector { kernel, threads: 32, ..known })
}

fn always(kernel: &'static str, fault: Fault, text: &str) {
    MISUSE.always(&of(kernel), fault, text);
}

#[test]
fn blocks_that_are_not_there() {
    always("to_no_block", Fault::LaunchFailed, "there is no block 2 in a cluster of 2");
    always("to_an_exited_block", Fault::LaunchFailed, "block 1 of the cluster has exited");
    always("boxes_to_no_block", Fault::LaunchFailed, "to blocks 5 of a cluster of 2");
}

#[test]
fn boxes_that_cannot_be_copied() {
    always("no_map", Fault::LaunchFailed, "of what is no tensor map");
    always("panels_of_a_matrix", Fault::LaunchFailed, "of 3 dimensions, by a map of 2");
    always("box_misaligned", Fault::Misaligned, "is not aligned to 128");
    always("mbarrier_not_fenced", Fault::LaunchFailed, "has not called fence_mbarrier_init since");
    always("over_what_the_other_has_stored", Fault::LaunchFailed, "has not called fence_proxy_async since");
}

/// Whether it shows depends on who comes first.
#[test]
fn what_is_too_early_shows_in_some_schedule() {
    for (kernel, text) in [
        ("before_the_other_is_ready", "no mbarrier has been made of byte 2048"),
        ("not_waited_for", "is read while a tensor_load into it is under way"),
    ] {
        let of = of(kernel);
        let mut reports =
            Config::matrix(&[1, 2]).filter_map(|config| run(&MISUSE.kernels, &of, &config).err());
        assert!(reports.any(|report| report.text.contains(text)), "{kernel}");
    }
}

#[test]
fn blocks_that_wait_for_each_other() {
    let of = of("apart");
    for config in Config::matrix(&[1]) {
        let report = run(&MISUSE.kernels, &of, &config).unwrap_err();
        assert!(report.text.contains("deadlock: no thread of the cluster can go on"), "{report}");
    }
}

#[test]
fn grids_that_are_no_whole_clusters() {
    let of = Launch { grid: [3, 1, 1], ..of("apart") };
    let report = run(&MISUSE.kernels, &of, &Config::default()).unwrap_err();
    assert!(report.text.contains("a grid of 3 blocks in x: no multiple of its clusters' 2"), "{report}");
}
