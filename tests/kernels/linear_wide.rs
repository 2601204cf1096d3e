//! Linear layers by large blocks.

use half::bf16;
use setrank::device::Limits;
use setrank::ops::linear::check::wide::{group, problems};
use setrank::ops::linear::check::{InputFinish, Problem, Product};
use setrank::ops::linear::{Activation, BlockSize, Layout, LinearShape};
use setrank_emulator::emulate::Sums;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch};
use crate::ladder::ladder;
use crate::linear::{Group, rows_stored_behind_the_last};

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "linear_wide", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

const BUGS: [Bug; 11] = [
    Bug {
        what: "a missing barrier",
        file: "wide.cuh",
        right: "        ptx::barrier();\n        if (step + 1",
        wrong: "        if (step + 1",
        kernels: "",
        found_by: &["is read before anything is written to it", "is under way"],
    },
    Bug {
        what: "a wait for too few copies",
        file: "wide.cuh",
        right: "        ptx::cp_async_wait<0>();\n        // All copies",
        wrong: "        ptx::cp_async_wait<1>();\n        // All copies",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "one stage for all steps",
        file: "wide.cuh",
        right: "step % 2 * BYTES",
        wrong: "step % 1 * BYTES",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "a bias of other columns",
        file: "linear_wide.cu",
        right: "p.bias + place.column + place.warp_column * WARP_TILE",
        wrong: "p.bias + place.column",
        kernels: "linear_wide_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "what finishes a gradient in the place of operands that others still read",
        file: "linear_wide.cu",
        right: "    ptx::barrier();\n    gemm::finish",
        wrong: "    gemm::finish",
        kernels: "linear_wide_backward_input",
        found_by: &["is under way", WRONG_RESULTS],
    },
    Bug {
        what: "what finishes a gradient read before it is there",
        file: "gemm.cuh",
        right: "        ptx::cp_async_wait<0>();\n        ptx::barrier();\n        for_pairs",
        wrong: "        ptx::barrier();\n        for_pairs",
        kernels: "linear_wide_backward_input",
        found_by: &["is under way"],
    },
    Bug {
        what: "a mask in the place of what others still add",
        file: "gemm.cuh",
        right: "        // The next matrix takes its place.\n        ptx::barrier();\n",
        wrong: "",
        kernels: "linear_wide_backward_input",
        found_by: &["is under way", WRONG_RESULTS],
    },
    rows_stored_behind_the_last("linear_wide_forward", &["store_global of 16 bytes at byte"]),
    Bug {
        what: "rows of the next part",
        file: "linear_wide.cu",
        right: "end = min(layer.rows, first + layer.rows_of_part)",
        wrong: "end = layer.rows",
        kernels: "linear_wide_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients of a bias in the place of other outputs",
        file: "linear_wide.cu",
        right: "layer.d_bias + part * outputs + of_warp",
        wrong: "layer.d_bias + part * outputs + output",
        kernels: "linear_wide_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the outputs of one warp for all",
        file: "linear_wide.cu",
        right: "gemm::next(Of::left(step), of_outputs)",
        wrong: "gemm::next(Of::left(step), 0)",
        kernels: "linear_wide_weights",
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
        found_by: &["of `x` of 4096 bytes", "of `dy` of 4096 bytes"],
    },
];

fn cases() -> Vec<Case> {
    let of_layers = problems(150, 1).map(|problem| Case::new(Limits::SM_90, problem));
    // Of two parts, of one that ends in the middle of a step, and of a row.
    let of_weights = Case::new(Limits::SM_90, Group(group([300, 70, 1], 1)));
    of_layers.into_iter().chain([of_weights]).collect()
}

fn counted() -> Vec<Counted> {
    let of = |product, layout, [inputs, outputs]: [usize; 2]| {
        let shape = LinearShape { rows: 1280, inputs, outputs };
        let problem = Problem::random(shape, layout, product, 1).by(BlockSize::Wide);
        Counted {
            shape: format!("1280x{inputs}x{outputs}"),
            problem: Box::new(problem),
            useful_products: (1280 * inputs * outputs) as f64 / 2048.0,
        }
    };
    vec![
        of(Product::Forward(Activation::Relu), Layout::Heads { width: 32 }, [256, 768]),
        of(Product::Input(InputFinish::Added), Layout::Heads { width: 32 }, [256, 768]),
        of(Product::Weights, Layout::Rows, [256, 1024]),
    ]
}

/// The bits do not depend on how large blocks are, at any number of rows.
#[test]
fn results_are_those_of_smaller_blocks() {
    for (rows, sums) in [(1, Sums::Hopper), (63, Sums::Ampere), (128, Sums::Nearest), (129, Sums::Hopper)] {
        for mut problem in problems(rows, 2) {
            let result = if matches!(problem.product, Product::Forward(_)) { "y" } else { "dx" };
            let found = family::result::<bf16>(&family::emulated(&problem, sums), result);
            problem.blocks = BlockSize::Many;
            let expected = family::result::<bf16>(&family::emulated(&problem, sums), result);
            assert!(found == expected, "{rows} rows, {:?}, {sums:?}", problem.product);
        }
    }
}
