//! Backward of the row-wise network by matrix instructions of warpgroups.

use std::mem::offset_of;

use setrank::device::Limits;
use setrank::device::abi::FeedForwardBackwardWgmma;
use setrank::ops::check::Deviation;
use setrank::ops::feed_forward::check::backward::{
    Problem, but_for_the_widest, problems, problems_with_projection,
};
use setrank::ops::feed_forward::check::warpgroups::SHAPES;
use setrank::ops::feed_forward::{Blocks, FeedForwardShape};
use setrank::ops::linear::Layout;
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::attention::counted::row;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch};
use crate::feed_forward::{
    a_period_left_out, added_rows_of_the_first_block, pairs_that_lanes_do_not_swap, rows_behind_the_last,
    weights_that_are_too_short,
};
use crate::feed_forward_backward::{ROWS, buffers, numbers, stays_in_its_row};
use crate::feed_forward_sm90::{
    every_row, rows_behind_the_last_that_are_stored, rows_that_products_may_not_see, weight_maps,
};
use crate::ladder::ladder;

ladder!(FAMILY, of_sm_90);

pub const FAMILY: Family = Family {
    name: "feed_forward_backward_sm90",
    cases,
    counted,
    bugs: &BUGS,
    wrong_launches: &WRONG_LAUNCHES,
};

/// Bugs are planted in the narrowest kernel, where others have none of their own: they are the same template.
const NARROW: &str = "feed_forward_backward_wgmma_c64";

const BUGS: [Bug; 42] = [
    Bug {
        what: "weights of fc1 that are given back before they are multiplied again",
        file: "feed_forward_backward_sm90.cu",
        right: "            second.release();\n            cut();\n            ptx::wgmma_fence(results, d_hidden);\n            multiply_d_hidden();\n",
        wrong: "            second.release();\n            ring.release();\n            cut();\n            ptx::wgmma_fence(results, d_hidden);\n            multiply_d_hidden();\n",
        kernels: NARROW,
        found_by: &["one arrival more", "is overwritten while", "is read while a tensor_load"],
    },
    Bug {
        what: "weights of fc1 that are kept",
        file: "feed_forward_backward_sm90.cu",
        right: "            ring.release();\n            ring = second;\n",
        wrong: "            ring = second;\n",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "registers that are not fenced",
        file: "feed_forward_backward_sm90.cu",
        right: "            ptx::wgmma_fence(d_inner);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["wgmma_fence has not had the registers of d"],
    },
    Bug {
        what: "a gradient that is not fenced",
        file: "feed_forward_backward_sm90.cu",
        right: "            cut();\n            ptx::wgmma_fence(results, d_hidden);\n",
        wrong: "            cut();\n            ptx::wgmma_fence(results);\n",
        kernels: NARROW,
        found_by: &["registers of a were written since wgmma_fence had them"],
    },
    Bug {
        what: "results that are not waited for",
        file: "feed_forward_backward_sm90.cu",
        right: "            ptx::wgmma_wait<0>(results);\n            ring.release();\n",
        wrong: "            ring.release();\n",
        kernels: NARROW,
        found_by: &["under way", "is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "fc2's weights that are not turned",
        file: "feed_forward_backward_sm90.cu",
        right: "multiply_rows<C, true>(d_inner,",
        wrong: "multiply_rows<C, false>(d_inner,",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first 64 columns of C for all",
        file: "feed_forward_backward_sm90.cu",
        right: "TO_NEXT = units(TILE) << 16;",
        wrong: "TO_NEXT = 0;",
        kernels: "feed_forward_backward_wgmma_c128",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a step of inner columns for all",
        file: "feed_forward_backward_sm90.cu",
        right: "d_hidden[k], weights + units(k * Tile<64>::bytes(16))",
        wrong: "d_hidden[k], weights",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first chunk's bias for all",
        file: "feed_forward_backward_sm90.cu",
        right: "load_pair(p.bias1 + chunk, d)",
        wrong: "load_pair(p.bias1, d)",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a gradient that passes where the ReLU cut",
        file: "feed_forward_backward_sm90.cu",
        right: "bf16_low(hidden[k][i]) > 0.0f ? d_inner[d][e] : 0.0f",
        wrong: "d_inner[d][e]",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows whose places are taken while they are multiplied",
        file: "feed_forward_backward_sm90.cu",
        right: "        ptx::barrier_sync(MULTIPLIED, threads());\n        add_to_rows();\n        before_backward",
        wrong: "        add_to_rows();\n        before_backward",
        kernels: NARROW,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it", "fence_proxy_async", WRONG_RESULTS],
    },
    Bug {
        what: "no residual",
        file: "feed_forward_backward_sm90.cu",
        right: "results[d][2 * half] + bf16_low(other)",
        wrong: "results[d][2 * half]",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the gradient of dy in its place",
        file: "feed_forward_backward_sm90.cu",
        right: "                ptx::store_shared(dy.at(row, lane % 8), packed);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "dy behind the last",
        file: "feed_forward_backward_sm90.cu",
        right: "                if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.dy + at), packed);",
        wrong: "                ptx::store_global(reinterpret_cast<uint4 *>(p.dy + at), packed);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "d behind the last",
        file: "feed_forward_backward_sm90.cu",
        right: "                if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.d + at), packed);",
        wrong: "                ptx::store_global(reinterpret_cast<uint4 *>(p.d + at), packed);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of x that are not there",
        file: "feed_forward_backward_sm90.cu",
        right: "                ptx::store_shared(x.at(row, lane % 8), loaded.of.x);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "rows behind the last that count",
        file: "norm_rows.cuh",
        right: "row + i < rows.valid ? packed : make_uint4(0, 0, 0, 0)",
        wrong: "packed",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    rows_behind_the_last(NARROW, &["of `behind statistics` of"]),
    a_period_left_out(NARROW, &["of `before added` of"]),
    added_rows_of_the_first_block(NARROW),
    Bug {
        what: "dx that other lanes have not put there",
        file: "feed_forward_backward_sm90.cu",
        right: "        ptx::sync_warp();\n    }\n\n    // Of the LayerNorm before it.",
        wrong: "    }\n\n    // Of the LayerNorm before it.",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums that are not waited for",
        file: "feed_forward_backward_sm90.cu",
        right: "            ptx::barrier_sync(SUMMED, threads());\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[
            WRONG_RESULTS,
            "is read before anything is written to it",
            "a second time before it is complete",
        ],
    },
    Bug {
        what: "sums of the first warpgroup alone",
        file: "feed_forward_backward_sm90.cu",
        right: "sums, threads() / 32, C,",
        wrong: "sums, GROUP / 32, C,",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of a warpgroup without rows",
        file: "feed_forward_backward_sm90.cu",
        right: "return min(MULTIPLIERS, (of_block + ROWS - 1) / ROWS) * GROUP;",
        wrong: "return MULTIPLIERS * GROUP;",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "parts of a block without rows",
        file: "feed_forward_backward_sm90.cu",
        right: "(p.rows + BLOCK_ROWS - 1) / BLOCK_ROWS);",
        wrong: "gridDim.x);",
        kernels: NARROW,
        found_by: &["of `behind parts` of"],
    },
    Bug {
        what: "a place of sums that weights do not wait for",
        file: "ring_sm90.cuh",
        right: "is_lent ? 0 : 1",
        wrong: "1",
        kernels: NARROW,
        found_by: &["deadlock", "is overwritten while", "one arrival more", WRONG_RESULTS],
    },
    Bug {
        what: "a place of sums that is not given back",
        file: "feed_forward_backward_sm90.cu",
        right: "        // Copies may write where its sums were.\n        ring.release();\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "a place of sums that a warpgroup without rows keeps",
        file: "feed_forward_sm90.cuh",
        right: "        if constexpr (LENDS) lent().release();\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "a projection that adds nothing",
        file: "feed_forward_backward_sm90.cu",
        right: "        if (is_projected()) add_projected();\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "a gradient that is not given",
        file: "feed_forward_backward_sm90.cu",
        right: "p.given != 0 && row < valid",
        wrong: "row < valid",
        kernels: "feed_forward_backward_wgmma_c192",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a gradient that has not landed",
        file: "feed_forward_backward_sm90.cu",
        right: "        ptx::cp_async_wait<0>();\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is under way"],
    },
    Bug {
        what: "sums in the place of a projection's weights that others still read",
        file: "feed_forward_backward_sm90.cu",
        right: "        ptx::barrier_sync(MULTIPLIED, threads());\n        add_to_rows();\n    }",
        wrong: "        add_to_rows();\n    }",
        kernels: NARROW,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it", "cp_async_16 into it is under way"],
    },
    Bug {
        what: "a projection's weights that are kept",
        file: "feed_forward_backward_sm90.cu",
        right: "            ring.release();\n            ring.advance();\n            ring.wait();\n",
        wrong: "            ring.advance();\n            ring.wait();\n",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "a projection's weights that are not waited for",
        file: "feed_forward_backward_sm90.cu",
        right: "            ring.advance();\n            ring.wait();\n",
        wrong: "            ring.advance();\n",
        kernels: NARROW,
        found_by: &["is read before anything is written to it", "is under way"],
    },
    Bug {
        what: "a projection's rows that are not fenced",
        file: "feed_forward_backward_sm90.cu",
        right: "            ptx::wgmma_fence(results, d_hidden);\n            multiply_d_hidden();\n            ptx::wgmma_wait",
        wrong: "            ptx::wgmma_fence(results);\n            multiply_d_hidden();\n            ptx::wgmma_wait",
        kernels: NARROW,
        found_by: &["wgmma_fence has not had the registers of a", "registers of a were written since"],
    },
    Bug {
        what: "the first columns of a projection for all",
        file: "feed_forward_backward_sm90.cu",
        right: "gradient.columns(first, behind)",
        wrong: "gradient.columns(first, 0)",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first weights of a projection for all",
        file: "feed_forward_backward_sm90.cu",
        right: "ring.load1(p.projection, column);",
        wrong: "ring.load1(p.projection, 0);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows behind the last of a projection",
        file: "feed_forward_sm90.cuh",
        right: "min(row_of_pairs(half), valid - 1)",
        wrong: "row_of_pairs(half)",
        kernels: NARROW,
        found_by: &["of `projected d` of"],
    },
    Bug {
        what: "a projection's loads that a warpgroup without rows does not follow",
        file: "feed_forward_backward_sm90.cu",
        right: "(2 * p.network.inner + p.network.projected.outputs) / CHUNK",
        wrong: "2 * p.network.inner / CHUNK",
        kernels: NARROW,
        found_by: &["deadlock", "the block ends before"],
    },
    rows_that_products_may_not_see(NARROW),
    pairs_that_lanes_do_not_swap(NARROW),
    rows_behind_the_last_that_are_stored(NARROW),
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::a_cluster_too_few(NARROW),
    WrongLaunch::a_block_too_many(NARROW, &["no multiple of its clusters' 2"]),
    WrongLaunch::too_little_shared_memory(NARROW),
    weights_that_are_too_short(NARROW),
];

/// A problem that warpgroups solve.
struct ByWarpgroups(Problem);

impl family::Problem for ByWarpgroups {
    fn launch(&self, _limits: &Limits) -> Launch {
        let ByWarpgroups(problem) = self;
        let (shape, numbers) = (problem.shape, numbers(problem));
        let parameter = FeedForwardBackwardWgmma::new(weight_maps(shape, numbers.projected.outputs), numbers);
        let weights = [
            offset_of!(FeedForwardBackwardWgmma, weight1),
            offset_of!(FeedForwardBackwardWgmma, weight2),
            offset_of!(FeedForwardBackwardWgmma, projection),
        ];
        let buffers = buffers(problem, offset_of!(FeedForwardBackwardWgmma, network), weights);
        let plan = shape.backward_plan(Blocks::Warpgroups).expect("a problem has rows");
        family::launch(plan, &parameter, buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        family::Problem::deviations(&self.0, launch)
    }
}

/// Clusters of full blocks, and with blocks of which a warpgroup has rows, or none; weights that go round, and that do not.
fn cases() -> Vec<Case> {
    but_for_the_widest(Blocks::Warpgroups, SHAPES, 1)
        .map(|problem| Case::new(Limits::SM_90, ByWarpgroups(problem)))
        .into()
}

fn counted() -> Vec<Counted> {
    let shape = FeedForwardShape { rows: 256, width: 256, inner: 1024 };
    let FeedForwardShape { rows, width, inner } = shape;
    let alone = || Problem::random(shape, rows, 1);
    let projected = alone().with_projection(3 * width, Layout::Heads { width: 32 }, true);
    let name = format!("{rows}x{width}x{inner}");
    [(name.clone(), alone(), 3 * inner), (name + " and 768", projected, 3 * inner + 3 * width)]
        .into_iter()
        .map(|(shape, problem, of_row_and_column)| Counted {
            shape,
            problem: Box::new(ByWarpgroups(problem)),
            useful_products: (rows * width * of_row_and_column) as f64 / (16.0 * 8.0 * 16.0),
        })
        .collect()
}

/// By what is counted: products without padding, and an operand's bytes once a product; each row is read once and written once.
#[test]
fn counters_reach_their_aims() {
    for (shape, outputs) in [("256x256x1024", 0.0), ("256x256x1024 and 768", 768.0)] {
        let row = row("feed_forward_backward_wgmma_c256", shape);
        let (rows, width, inner) = (256.0, 256.0, 1024.0);
        let of_projection = 2.0 * outputs * (rows + width);
        let of_network = rows * (14.125 * width + 4.0 * inner + 16.0) + 4.0 * width * inner;
        let rows_and_weights = of_network + of_projection;
        assert!(row.bytes <= 1.01 * rows_and_weights, "{} bytes, not {rows_and_weights}", row.bytes);
        let products = rows * width * (3.0 * inner + outputs) / 2048.0;
        assert!(products >= 0.95 * row.products, "{} products", row.products);
        assert!(row.wavefronts <= 1.1 * row.products, "{} wavefronts", row.wavefronts);
        // Pairs of blocks ask for weights once; the rest are rows, and parameters by warps of 16 rows.
        let asked = 2.0 * width * (2.0 * inner + outputs) + 2.0 * rows * (5.0 * width + outputs);
        assert!(row.requested <= 1.1 * asked, "{} bytes are asked for, not {asked}", row.requested);
        assert!(row.conflicts <= 1.01, "{}", row.conflicts);
    }
}

#[test]
fn any_number_of_rows() {
    every_row(8, |shape, period, at| ByWarpgroups(Problem::random(shape, period, at)));
}

#[test]
fn any_number_of_rows_behind_which_there_is_a_projection() {
    every_row(10, |shape, period, at| {
        let layout =
            [Layout::Heads { width: 32 }, Layout::Heads { width: 64 }, Layout::Rows][at as usize % 3];
        let outputs = 64 * (1 + at as usize % 5);
        ByWarpgroups(Problem::random(shape, period, at).with_projection(outputs, layout, at % 2 == 0))
    });
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    stays_in_its_row(ROWS, ByWarpgroups);
}

/// LayerNorms have the bits of the kernel of warps, and that those of LayerNorm's own; so have products, where cards add both
/// alike.
#[test]
fn rows_are_those_of_the_kernel_of_warps() {
    for of in [problems, problems_with_projection] {
        let [of_warps, of_warpgroups] =
            [Blocks::Many, Blocks::Warpgroups].map(|blocks| of(blocks, SHAPES, 2));
        for (problem, expected) in of_warpgroups.into_iter().zip(of_warps) {
            let (shape, is_projected) = (problem.shape, problem.projected.is_some());
            let expected = family::emulated(&expected, Sums::Nearest);
            let found = family::emulated(&ByWarpgroups(problem), Sums::Nearest);
            for name in ROWS.into_iter().chain(["behind parts", "before parts"]) {
                let same = family::bytes(&found, name) == family::bytes(&expected, name);
                assert!(same, "{name}: {shape:?}, behind it a projection: {is_projected}");
            }
        }
    }
}
