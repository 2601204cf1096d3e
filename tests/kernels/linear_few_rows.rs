//! A linear layer's forward by blocks of few rows.

use half::bf16;
use setrank::device::Limits;
use setrank::ops::linear::check::few_rows::problems;
use setrank::ops::linear::check::{Problem, Product};
use setrank::ops::linear::{Activation, BlockSize, Layout, LinearShape};
use setrank_emulator::emulate::Sums;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "linear_few_rows", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

const BUGS: [Bug; 7] = [
    Bug {
        what: "a missing barrier between steps",
        file: "linear_few_rows.cu",
        right: "        ptx::barrier();\n        fill(step + STAGES - 1);",
        wrong: "        fill(step + STAGES - 1);",
        kernels: "",
        found_by: &["is read before anything is written to it", "is under way", WRONG_RESULTS],
    },
    Bug {
        what: "a wait for too few copies",
        file: "linear_few_rows.cu",
        right: "ptx::cp_async_wait<STAGES - 2>();",
        wrong: "ptx::cp_async_wait<STAGES - 1>();",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "copies into the step that is read",
        file: "linear_few_rows.cu",
        right: "fill(step + STAGES - 1);",
        wrong: "fill(step + STAGES);",
        kernels: "linear_few_rows_32",
        found_by: &["is under way", "is read before anything is written to it", WRONG_RESULTS],
    },
    Bug {
        what: "results in the place of operands that others still read",
        file: "linear_few_rows.cu",
        right: "    ptx::barrier();\n    const Tile<64> tile",
        wrong: "    const Tile<64> tile",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows that are stored before they are there",
        file: "linear_few_rows.cu",
        right: "    ptx::barrier();\n    const auto to",
        wrong: "    const auto to",
        kernels: "",
        found_by: &[WRONG_RESULTS, "is read before anything is written to it"],
    },
    Bug {
        what: "rows behind the last",
        file: "linear_few_rows.cu",
        right: "if (at < valid) {",
        wrong: "if (at <= valid) {",
        kernels: "",
        found_by: &["store_global of 16 bytes at byte", WRONG_RESULTS],
    },
    Bug {
        what: "a bias of other columns",
        file: "linear_few_rows.cu",
        right: "p.bias + column + of_warp",
        wrong: "p.bias + column",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 3] = [
    WrongLaunch::too_little_shared_memory(""),
    WrongLaunch::a_block_too_few(""),
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(4096),
        kernels: "",
        found_by: &["of `x` of 4096 bytes"],
    },
];

fn cases() -> Vec<Case> {
    problems(45, 1).into_iter().map(|problem| Case::new(Limits::SM_90, problem)).collect()
}

fn counted() -> Vec<Counted> {
    [(BlockSize::Few, 1024), (BlockSize::Fewest, 256)]
        .map(|(blocks, outputs)| {
            let shape = LinearShape { rows: 500, inputs: 256, outputs };
            let product = Product::Forward(Activation::Relu);
            let problem = Problem::random(shape, Layout::Rows, product, 1).by(blocks);
            Counted {
                shape: format!("500x256x{outputs}"),
                problem: Box::new(problem),
                useful_products: (500 * 256 * outputs) as f64 / 2048.0,
            }
        })
        .into()
}

/// The bits do not depend on how many rows a block has, at any number of rows.
#[test]
fn results_are_those_of_blocks_of_many_rows() {
    for (rows, sums) in
        [1, 15, 16, 17, 31, 32, 33, 127].into_iter().zip([Sums::Hopper, Sums::Ampere].into_iter().cycle())
    {
        for mut problem in problems(rows, 2) {
            let found = family::result::<bf16>(&family::emulated(&problem, sums), "y");
            let blocks = std::mem::replace(&mut problem.blocks, BlockSize::Many);
            let expected = family::result::<bf16>(&family::emulated(&problem, sums), "y");
            assert!(found == expected, "{rows} rows, {blocks:?}, {sums:?}");
        }
    }
}
