//! Backward of the row-wise network by matrix instructions of warpgroups.

use std::mem::offset_of;

use half::bf16;
use setrank::device::Limits;
use setrank::device::abi::FeedForwardBackwardWgmma;
use setrank::device::check::Deviation;
use setrank::ops::feed_forward::FeedForwardShape;
use setrank::ops::feed_forward::check::backward::Problem;
use setrank::ops::feed_forward::check::warpgroups::SHAPES;
use setrank_emulator::launch::{Launch, tensor_map};

use crate::attention::counted::row;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::feed_forward_backward::stays_in_its_row;
use crate::feed_forward_sm90::every_row;
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

const BUGS: [Bug; 14] = [
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
        right: "            ptx::wgmma_fence(results, d_hidden);\n",
        wrong: "            ptx::wgmma_fence(results);\n",
        kernels: NARROW,
        found_by: &["wgmma_fence has not had the registers of a"],
    },
    Bug {
        what: "results that are not waited for",
        file: "feed_forward_backward_sm90.cu",
        right: "            ptx::wgmma_wait<0>(results);\n",
        wrong: "",
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
        what: "pairs that lanes do not swap",
        file: "feed_forward_backward_sm90.cu",
        right: "ptx::shuffle_xor(upper ? low[1] : high[1], 2)",
        wrong: "(upper ? low[1] : high[1])",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "inner rows behind the last",
        file: "feed_forward_backward_sm90.cu",
        right: "                if (row < valid) ptx::store_global",
        wrong: "                ptx::store_global",
        kernels: NARROW,
        found_by: &["store_global of 16 bytes at byte"],
    },
    Bug {
        what: "dy whose place dx takes while it is multiplied",
        file: "feed_forward_backward_sm90.cu",
        right: "        // All of the warpgroup are done with dy, whose place dx takes.\n        ptx::barrier_sync(group(), GROUP);\n",
        wrong: "",
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
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::a_cluster_too_few(NARROW),
    WrongLaunch::a_block_too_many(NARROW, &["no multiple of its clusters' 2"]),
    WrongLaunch::too_little_shared_memory(NARROW),
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[2].bytes.truncate(512),
        kernels: NARROW,
        found_by: &["of `weight1` of 512 bytes"],
    },
];

/// A problem that warpgroups solve.
struct ByWarpgroups(Problem);

impl family::Problem for ByWarpgroups {
    fn launch(&self, _limits: &Limits) -> Launch {
        let ByWarpgroups(problem) = self;
        let shape = problem.shape;
        let FeedForwardShape { width, inner, .. } = shape;
        let [box1, box2] = shape.box_rows();
        let parameter = FeedForwardBackwardWgmma {
            weight1: tensor_map([inner, width], [box1, 64]),
            weight2: tensor_map([width, inner], [box2, 64]),
            ..shape.warpgroup_backward_numbers()
        };
        let of_inner = || poisoned::<bf16>(shape.inner_values());
        let buffers = vec![
            (offset_of!(FeedForwardBackwardWgmma, x), "x", given(problem.rows())),
            (offset_of!(FeedForwardBackwardWgmma, dy), "dy", given(&problem.behind.dy)),
            (offset_of!(FeedForwardBackwardWgmma, weight1), "weight1", given(&problem.weights[0])),
            (offset_of!(FeedForwardBackwardWgmma, bias1), "bias1", given(&problem.bias)),
            (offset_of!(FeedForwardBackwardWgmma, weight2), "weight2", given(&problem.weights[1])),
            (offset_of!(FeedForwardBackwardWgmma, hidden), "hidden", of_inner()),
            (offset_of!(FeedForwardBackwardWgmma, d_hidden), "d_hidden", of_inner()),
            (offset_of!(FeedForwardBackwardWgmma, dx), "dx", poisoned::<bf16>(shape.values())),
        ];
        family::launch(shape.warpgroup_backward_plan().expect("a problem has rows"), &parameter, buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rows = |name| family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect();
        self.0.deviations(&["hidden", "d_hidden", "dx"].map(rows).into())
    }
}

/// Clusters of full blocks, and with blocks of which a warpgroup has rows, or none; weights that go round, and that do not.
fn cases() -> Vec<Case> {
    SHAPES.map(|shape| Case::new(Limits::SM_90, ByWarpgroups(Problem::alone(shape, 1)))).into()
}

fn counted() -> Vec<Counted> {
    let shape = FeedForwardShape { rows: 256, width: 256, inner: 1024 };
    let FeedForwardShape { rows, width, inner } = shape;
    vec![Counted {
        shape: format!("{rows}x{width}x{inner}"),
        problem: Box::new(ByWarpgroups(Problem::alone(shape, 1))),
        useful_products: (3 * rows * width * inner) as f64 / (16.0 * 8.0 * 16.0),
    }]
}

/// By what is counted: products without padding, and an operand's bytes once a product; each row is read once and written once.
#[test]
fn counters_reach_their_aims() {
    let row = row("feed_forward_backward_wgmma_c256", "256x256x1024");
    let (rows, width, inner) = (256.0, 256.0, 1024.0);
    let rows_and_weights = rows * (6.0 * width + 4.0 * inner) + 4.0 * width * inner;
    assert!(row.bytes <= 1.01 * rows_and_weights, "{} bytes, not {rows_and_weights}", row.bytes);
    assert!(3.0 * rows * width * inner / 2048.0 >= 0.95 * row.products, "{} products", row.products);
    assert!(row.wavefronts <= 1.1 * row.products, "{} wavefronts", row.wavefronts);
    assert!(row.conflicts <= 1.01, "{}", row.conflicts);
}

#[test]
fn any_number_of_rows() {
    every_row(8, |shape, at| ByWarpgroups(Problem::alone(shape, at)));
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    stays_in_its_row(["hidden", "d_hidden", "dx"], ByWarpgroups);
}
