//! Bugs planted in kernels, plans and launches: each has to be caught, or the ladder proves nothing.

use setrank::device::Limits;
use setrank::ops::attention::Heads;
use setrank::ops::attention::check::Problem;
use setrank_emulator::emulate::{self, Config};
use setrank_emulator::kernels::{Kernels, Sources};
use setrank_emulator::launch::Launch;

use crate::launches;

/// A bug in the source: what, in which file, the right text and the wrong one.
type Bug = (&'static str, &'static str, &'static str, &'static str);

/// A bug in the launch: what, and how to make it.
type Change = (&'static str, fn(&mut Launch));

const BUGS: [Bug; 13] = [
    ("a missing barrier", "attention.cu", "        ptx::barrier();\n", ""),
    (
        "a wait for too few copies",
        "attention.cu",
        "ptx::cp_async_wait<STAGES - 2>();",
        "ptx::cp_async_wait<STAGES - 1>();",
    ),
    ("copies that are no group", "attention.cu", "        ptx::cp_async_commit();\n", ""),
    (
        "a tile that is replaced while it is read",
        "attention.cu",
        "        ptx::barrier();\n        load(number + STAGES - 1);",
        "        load(number + STAGES - 1);\n        ptx::barrier();",
    ),
    (
        "keys behind the set that count",
        "attention.cu",
        "if (valid < KEY_ROWS) mask_keys(scores, valid, lane);",
        "(void)valid;",
    ),
    (
        "loads behind the set",
        "tile.cuh",
        "const bool inside = row < valid;",
        "const bool inside = valid > 0;",
    ),
    (
        "a wrong stride",
        "attention.cu",
        "p.qkv + ((heads + head) * rows + tile.set_begin) * D",
        "p.qkv + ((heads + head) * (rows + 1) + tile.set_begin) * D",
    ),
    (
        "rows that are written behind the set",
        "attention.cu",
        "        if (row < tile.query_rows) {",
        "        if (row >= 0) {",
    ),
    ("results that are not waited for", "attention.cu", "    ptx::sync_warp();\n", ""),
    (
        "a largest score of half the keys",
        "attention.cu",
        "                most = fmaxf(most, ptx::shuffle_xor(most, 2));\n",
        "",
    ),
    (
        "a sum of a quarter of the keys",
        "attention.cu",
        "            sum += ptx::shuffle_xor(sum, 1);\n            sum += ptx::shuffle_xor(sum, 2);\n",
        "",
    ),
    (
        "values that are not transposed",
        "attention.cu",
        "ptx::ldmatrix_x4_transposed(fragment",
        "ptx::ldmatrix_x4(fragment",
    ),
    ("scores that are not rescaled", "attention.cu", "output[m][d][2 * half] *= shrink;", ""),
];

fn problem() -> Problem {
    Problem::random(&[150, 3, 200], Heads { count: 2, width: 32 }, 21)
}

/// How a launch of wrong code is found out: by a report, or by wrong results in some schedule.
fn caught(kernels: &Kernels, problem: &Problem, launch: &Launch) -> Option<String> {
    Config::matrix(&[1]).find_map(|config| {
        let mut launch = launch.clone();
        match emulate::run(kernels, &mut launch, &config) {
            Err(report) => Some(report.text),
            Ok(_) => {
                let wrong = problem.deviations(&launches::answer(&launch)).map(|found| !found.is_allowed());
                wrong.contains(&true).then(|| "wrong results".to_owned())
            }
        }
    })
}

#[test]
fn bugs_in_the_kernel_are_caught() {
    let problem = problem();
    let launch = launches::set_attention(&problem, &Limits::SM_90);
    let sources = Sources::repository(&["attention.cu"]).unwrap();
    assert_eq!(caught(&sources.compile().unwrap(), &problem, &launch), None, "without a bug");
    for (bug, file, right, wrong) in BUGS {
        let kernels = sources.clone().replace(file, right, wrong).unwrap().compile().unwrap();
        let how = caught(&kernels, &problem, &launch).unwrap_or_else(|| panic!("not caught: {bug}"));
        println!("{bug}: {how}");
    }
}

#[test]
fn bugs_in_the_launch_are_caught() {
    let problem = problem();
    let right = launches::set_attention(&problem, &Limits::SM_90);
    let kernels = Kernels::repository();
    assert_eq!(caught(&kernels, &problem, &right), None, "without a bug");
    let changes: [Change; 8] = [
        ("too little shared memory", |launch| launch.shared_bytes -= 16),
        ("a kernel of more stages than there is memory for", |launch| launch.shared_bytes -= 8 << 10),
        ("a block too few", |launch| launch.grid[0] -= 1),
        ("a block too many", |launch| launch.grid[0] += 1),
        ("a head too few", |launch| launch.grid[1] -= 1),
        ("a warp too few", |launch| launch.block[0] -= 32),
        ("more threads than the kernel is for", |launch| launch.block[0] += 32),
        ("a buffer that is too short", |launch| launch.buffers[0].bytes.truncate(8192)),
    ];
    for (bug, change) in changes {
        let mut launch = right.clone();
        change(&mut launch);
        assert!(caught(&kernels, &problem, &launch).is_some(), "not caught: {bug}");
    }
}
