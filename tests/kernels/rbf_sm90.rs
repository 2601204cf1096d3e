//! The rbf input by matrix instructions of warpgroups.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{
    RbfBackwardCenters, RbfBackwardCentersWgmma, RbfBackwardWeights, RbfBackwardWeightsWgmma, RbfForward,
    RbfForwardWgmma,
};
use setrank::device::{Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::linear::Activation;
use setrank::ops::rbf::check::warpgroups::problems;
use setrank::ops::rbf::check::{PRODUCTS, Problem, Product};
use setrank::ops::rbf::{RbfBlocks, RbfShape};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::{self, Config, Sums};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::attention::counted::row;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::linear_sm90::map;
use crate::warpgroups::{
    UNWRITTEN, a_block_that_exits_too_early, a_shared_operand_for_one_block,
    mbarriers_that_the_other_block_has_not_made, the_first_blocks_rows_for_both,
};

ladder!(FAMILY, of_sm_90);

pub const FAMILY: Family =
    Family { name: "rbf_sm90", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

const FORWARD: &str = "rbf_wgmma_forward";
const WEIGHTS: &str = "rbf_wgmma_backward_weights";
const CENTERS: &str = "rbf_wgmma_backward_centers";

const BUGS: [Bug; 48] = [
    mbarriers_that_the_other_block_has_not_made(""),
    a_block_that_exits_too_early(""),
    a_shared_operand_for_one_block(""),
    Bug {
        what: "the other block's weights",
        file: "rbf_sm90.cu",
        right: "place.panel() * 64, step);",
        wrong: "place.column, step);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    the_first_blocks_rows_for_both(FORWARD),
    Bug {
        what: "activations of the first warp's rows",
        file: "rbf_sm90.cu",
        right: "Activations phi(basis, place.row + warp_row(), steps);",
        wrong: "Activations phi(basis, place.row, steps);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "registers that are not fenced",
        file: "rbf_left_sm90.cuh",
        right: "ptx::wgmma_fence(product[0], now);",
        wrong: "ptx::wgmma_fence(product[0]);",
        kernels: FORWARD,
        found_by: &["wgmma_fence has not had the registers of a"],
    },
    Bug {
        what: "activations in the place of those that are multiplied",
        file: "rbf_left_sm90.cuh",
        right: "left.make(next, step + 1, following);",
        wrong: "left.make(now, step + 1, following);",
        kernels: FORWARD,
        found_by: &["is still under way", "registers of a"],
    },
    Bug {
        what: "one step's activations for all",
        file: "rbf_left_sm90.cuh",
        right: "multiply(step + 1, odd, even);",
        wrong: "multiply(step + 1, even, odd);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS, "registers of a"],
    },
    Bug {
        what: "operands that are given back before they are multiplied",
        file: "rbf_left_sm90.cuh",
        right: "        ptx::wgmma_wait<0>(product[0]);\n        ring.release();\n",
        wrong: "        ring.release();\n        ptx::wgmma_wait<0>(product[0]);\n",
        kernels: FORWARD,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "results that are not waited for",
        file: "rbf_left_sm90.cuh",
        right: "ptx::wgmma_wait<0>(product[0]);",
        wrong: "ptx::wgmma_wait<1>(product[0]);",
        kernels: FORWARD,
        found_by: &["is still under way"],
    },
    Bug {
        what: "operands that are not waited for",
        file: "rbf_left_sm90.cuh",
        right: "        ring.wait();\n        ptx::wgmma_fence(product",
        wrong: "        ptx::wgmma_fence(product",
        kernels: FORWARD,
        found_by: &[UNWRITTEN, "is under way"],
    },
    Bug {
        what: "the first slot for all steps",
        file: "rbf_left_sm90.cuh",
        right: "units(ring.offset())),",
        wrong: "units(0)),",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS, "under way", UNWRITTEN, "is overwritten while"],
    },
    Bug {
        what: "the centres of one step for the next",
        file: "rbf_left_sm90.cuh",
        right: "if (step + 1 < steps) load_centers(step + 1);",
        wrong: "if (step + 1 < steps) load_centers(step);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "centres behind the last",
        file: "rbf_left_sm90.cuh",
        right: "if ((step + 1) * STEP <= basis.columns) {",
        wrong: "if (step * STEP <= basis.columns) {",
        kernels: FORWARD,
        found_by: &["of `centers` of"],
    },
    Bug {
        what: "a feature that begins a column early",
        file: "rbf_left_sm90.cuh",
        right: "if (offset >= next_begins) go_on(offset);",
        wrong: "if (offset + 1 >= next_begins) go_on(offset);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a feature that begins inside of a pair",
        file: "rbf_left_sm90.cuh",
        right: "begins = offset + 1 >= next_begins;",
        wrong: "begins = false;",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a feature that stays",
        file: "rbf_left_sm90.cuh",
        right: "            load(next, number + 1);\n        } while",
        wrong: "        } while",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns that are counted from the step before",
        file: "rbf_left_sm90.cuh",
        right: "        features.leave(STEP);\n",
        wrong: "",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a bias of other columns",
        file: "rbf_sm90.cu",
        right: "layer.bias + place.column",
        wrong: "layer.bias",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the other block's outputs",
        file: "rbf_sm90.cu",
        right: "output / 64 + ptx::cluster_rank() * (PART / TILE));",
        wrong: "output / 64);",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first warp's columns for all",
        file: "rbf_sm90.cu",
        right: "TurnedActivations phi(basis, features, of_warp,",
        wrong: "TurnedActivations phi(basis, features, column,",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "features that are not waited for",
        file: "rbf_left_sm90.cuh",
        right: "        ring.wait();\n        const Tile<64> tile = Features",
        wrong: "        const Tile<64> tile = Features",
        kernels: WEIGHTS,
        found_by: &[UNWRITTEN, WRONG_RESULTS],
    },
    Bug {
        what: "features in the place of those that others still read",
        file: "rbf_left_sm90.cuh",
        right: "                ring.wait_for_room();\n",
        wrong: "",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS, "one arrival more", "deadlock"],
    },
    Bug {
        what: "features that not all lanes have written",
        file: "ring_sm90.cuh",
        right: "        ptx::sync_warp();\n        if ((ptx::thread() & 31) == 0) ptx::mbarrier_arrive(full());",
        wrong: "        if ((ptx::thread() & 31) == 0) ptx::mbarrier_arrive(full());",
        kernels: WEIGHTS,
        found_by: &[UNWRITTEN, WRONG_RESULTS],
    },
    Bug {
        what: "a slot that is full without its features",
        file: "ring_sm90.cuh",
        right: "ptx::mbarrier_init(barriers, FILLERS);",
        wrong: "ptx::mbarrier_init(barriers, 1);",
        kernels: WEIGHTS,
        found_by: &["one arrival more", UNWRITTEN, "under way"],
    },
    Bug {
        what: "the feature of one column for both",
        file: "rbf_left_sm90.cuh",
        right: "if (half == 0 || feature[1] != feature[0]) {",
        wrong: "if (half == 0) {",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "features of the next document",
        file: "rbf_left_sm90.cuh",
        right: "step * STEP + lane() * 2, i",
        wrong: "step * STEP + lane() * 2 + 1, i",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of the next part",
        file: "rbf_sm90.cu",
        right: "end = min(layer.rows, first + layer.rows_of_part);\n    const int steps",
        wrong: "end = layer.rows;\n    const int steps",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns behind the last",
        file: "rbf_sm90.cu",
        right: "if (column + multiplier() * GROUP_ROWS >= layer.width) {",
        wrong: "if (column + multiplier() * GROUP_ROWS > layer.width) {",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS, "store_global of 4 bytes", UNWRITTEN],
    },
    Bug {
        what: "activations behind the last centre",
        file: "rbf_left_sm90.cuh",
        right: "centers[half] = basis.center(column);",
        wrong: "centers[half] = ptx::load_constant(basis.centers + column);",
        kernels: WEIGHTS,
        found_by: &["of `centers` of"],
    },
    Bug {
        what: "documents of dy that are multiplied as outputs",
        file: "rbf_sm90.cu",
        right: "multiply_made<true>(results, phi, in_columns(0, false)",
        wrong: "multiply_made<true>(results, phi, in_rows(0, false)",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "dy that is given back before it is multiplied",
        file: "rbf_left_sm90.cuh",
        right: "        ptx::wgmma_wait<0>(product[0]);\n        ring.release();\n",
        wrong: "        ring.release();\n        ptx::wgmma_wait<0>(product[0]);\n",
        kernels: WEIGHTS,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "a bias in the place of the first part's",
        file: "rbf_sm90.cu",
        right: "layer.d_bias + part * outputs + of_sums",
        wrong: "layer.d_bias + of_sums",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the same outputs' sums for all warps",
        file: "rbf_left_sm90.cuh",
        right: "ring.at() + warp_row() / WARP_ROWS * TILE};",
        wrong: "ring.at()};",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "results of one output in the place of the next",
        file: "rbf_sm90.cu",
        right: "+ e % 2, column = e / 2 * 8",
        wrong: "+ e / 2, column = e % 2 * 8",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the other block's columns",
        file: "rbf_sm90.cu",
        right: "column / 64 + rank * (PART / TILE));",
        wrong: "column / 64);",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the rows of one part for both",
        file: "rbf_sm90.cu",
        right: ", first = part * layer.rows_of_part;",
        wrong: ", first = first_of_pair;",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of the next part, for the centres",
        file: "rbf_sm90.cu",
        right: "valid = min(layer.rows - first, layer.rows_of_part);",
        wrong: "valid = layer.rows - first;",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first rows of a part for all",
        file: "rbf_sm90.cu",
        right: "first + step / steps * ROWS, outputs",
        wrong: "first, outputs",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "features of the first rows of a part",
        file: "rbf_sm90.cu",
        right: "const int row = first + tile * ROWS + warp_row();\n",
        wrong: "const int row = first + warp_row();\n",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a bell in the place of its slope",
        file: "rbf_sm90.cu",
        right: "bell(distances.y) * distances.y",
        wrong: "bell(distances.y)",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a feature that begins inside of a pair, for the centres",
        file: "rbf_left_sm90.cuh",
        right: "begins = offset + 1 >= next_begins;",
        wrong: "begins = false;",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of half the rows",
        file: "rbf_sm90.cu",
        right: "        halve<4>(d_phi, 4);\n",
        wrong: "",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of other columns",
        file: "rbf_sm90.cu",
        right: "(lane() >> 4 & 1) * 16 + (lane() >> 3 & 1) * 8",
        wrong: "(lane() >> 3 & 1) * 16 + (lane() >> 4 & 1) * 8",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums in the place of operands that others still read",
        file: "rbf_sm90.cu",
        right: "whose place sums of warps take.\n            meet();\n",
        wrong: "whose place sums of warps take.\n",
        kernels: CENTERS,
        found_by: &[
            "is overwritten while a wgmma_m64k16_bf16 reads it",
            "under way",
            "fence_proxy_async",
            WRONG_RESULTS,
        ],
    },
    Bug {
        what: "sums that are read before they are there",
        file: "rbf_sm90.cu",
        right: "            meet();\n            if (first >=",
        wrong: "            if (first >=",
        kernels: CENTERS,
        found_by: &[WRONG_RESULTS, "fence_proxy_async"],
    },
    Bug {
        what: "gradients behind the last centre",
        file: "rbf_sm90.cu",
        right: " || column + own >= layer.columns) return;",
        wrong: ") return;",
        kernels: CENTERS,
        found_by: &["of `d_centers` of", WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 7] = [
    WrongLaunch::a_cluster_too_few(""),
    WrongLaunch::a_block_too_many("", &["no multiple of its clusters' 2"]),
    WrongLaunch::too_little_shared_memory(FORWARD),
    WrongLaunch::too_little_shared_memory(CENTERS),
    WrongLaunch {
        what: "no room for a slot's features",
        change: |launch| launch.shared_bytes -= 16384,
        kernels: WEIGHTS,
        found_by: &["bytes of shared memory"],
    },
    WrongLaunch {
        what: "a part too few",
        change: |launch| launch.grid[1] -= 1,
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(4096),
        kernels: "",
        found_by: &["of `weight` of 4096 bytes", "of `dy` of 4096 bytes"],
    },
];

/// What warpgroups compute.
struct ByWarpgroups {
    problem: Problem,
    /// Rows of a part of the weights' gradient; the plan's where there is none.
    rows_of_part: Option<usize>,
}

impl ByWarpgroups {
    fn new(problem: Problem) -> Self {
        ByWarpgroups { problem: problem.by(RbfBlocks::Warpgroups), rows_of_part: None }
    }
}

impl family::Problem for ByWarpgroups {
    fn launch(&self, _limits: &Limits) -> Launch {
        let ByWarpgroups { problem, rows_of_part } = self;
        let (plan, RbfShape { rows, outputs, .. }) = (problem.plan().unwrap(), problem.shape);
        let (x, centers) = (given(&problem.x()), given(&problem.centers));
        let (dy, weight) = (given(&problem.dy), given(&problem.weight()));
        match problem.product {
            Product::Forward(activation) => {
                let at = offset_of!(RbfForwardWgmma, layer);
                let buffers = vec![
                    (offset_of!(RbfForwardWgmma, weight), "weight", weight),
                    (at + offset_of!(RbfForward, x), "x", x),
                    (at + offset_of!(RbfForward, centers), "centers", centers),
                    (at + offset_of!(RbfForward, bias), "bias", given(&problem.bias)),
                    (at + offset_of!(RbfForward, y), "y", poisoned::<bf16>(rows * outputs)),
                ];
                let maps = plan.forward_boxes().map(map);
                let parameter = RbfForwardWgmma::new(maps, plan.forward_numbers(activation));
                family::launch(plan.forward(problem.blocks).unwrap(), &parameter, buffers)
            }
            Product::Weights => {
                let mut numbers = plan.backward_weights_numbers();
                let mut launch = plan.backward_weights(problem.matrix()).unwrap();
                if let Some(rows_of_part) = rows_of_part {
                    numbers.rows_of_part = *rows_of_part as i32;
                    launch.grid[1] = rows.div_ceil(*rows_of_part) as u32;
                }
                let parts = launch.grid[1] as usize;
                let of_weight = poisoned::<f32>(parts * outputs * problem.shape.width());
                let at = offset_of!(RbfBackwardWeightsWgmma, layer);
                let buffers = vec![
                    (offset_of!(RbfBackwardWeightsWgmma, dy), "dy", dy),
                    (at + offset_of!(RbfBackwardWeights, x), "x", x),
                    (at + offset_of!(RbfBackwardWeights, centers), "centers", centers),
                    (at + offset_of!(RbfBackwardWeights, d_weight), "d_weight", of_weight),
                    (at + offset_of!(RbfBackwardWeights, d_bias), "d_bias", poisoned::<f32>(parts * outputs)),
                ];
                let parameter = RbfBackwardWeightsWgmma::new(plan.weights_boxes().map(map), numbers);
                family::launch(launch, &parameter, buffers)
            }
            Product::Centers => {
                let of_centers = poisoned::<f32>(plan.center_parts() * problem.shape.columns());
                let at = offset_of!(RbfBackwardCentersWgmma, layer);
                let buffers = vec![
                    (offset_of!(RbfBackwardCentersWgmma, dy), "dy", dy),
                    (offset_of!(RbfBackwardCentersWgmma, weight), "weight", weight),
                    (at + offset_of!(RbfBackwardCenters, x), "x", x),
                    (at + offset_of!(RbfBackwardCenters, centers), "centers", centers),
                    (at + offset_of!(RbfBackwardCenters, d_centers), "d_centers", of_centers),
                ];
                let maps = plan.centers_boxes().map(map);
                let parameter = RbfBackwardCentersWgmma::new(maps, plan.backward_centers_numbers());
                family::launch(plan.backward_centers(problem.matrix()).unwrap(), &parameter, buffers)
            }
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        family::Problem::deviations(&self.problem, launch)
    }
}

/// Forward of a full block and one with a row more than a warpgroup has; gradients of weights of parts with a step more than are
/// on their way at once, and that end in the middle of one; gradients of centres of two parts, the latter of which is shorter and
/// ends in the middle of a tile.
fn cases() -> Vec<Case> {
    let [identity, relu, weights, centers] = PRODUCTS;
    let [[many, _], [_, few]] = [relu, identity].map(|product| problems(193, product, 1));
    let of_weights = problems(330, weights, 1)
        .map(|problem| ByWarpgroups { rows_of_part: Some(320), ..ByWarpgroups::new(problem) });
    let others = [many, few].into_iter().chain(problems(261, centers, 1)).map(ByWarpgroups::new);
    others.chain(of_weights).map(|problem| Case::new(Limits::SM_90, problem)).collect()
}

/// What is counted: of 16 features with 100 centres and 512 outputs.
const COUNTED: [(Product, usize); 3] =
    [(Product::Forward(Activation::Relu), 256), (Product::Weights, 256), (Product::Centers, 512)];
const COLUMNS: usize = 1600;
const OUTPUTS: usize = 512;

fn counted() -> Vec<Counted> {
    COUNTED
        .map(|(product, rows)| {
            let shape = RbfShape { rows, features: 16, stride: 64, centers: 100, outputs: OUTPUTS };
            Counted {
                shape: format!("{rows}x16x100x{OUTPUTS}"),
                problem: Box::new(ByWarpgroups::new(Problem::random(shape, product, 1))),
                useful_products: (rows * COLUMNS * OUTPUTS) as f64 / 2048.0,
            }
        })
        .into()
}

/// By what is counted: products and exponentials of full tiles, but for the sums of a bias, and less of all else than blocks of warps
/// have. The products of the centres' gradient have blocks of 256 columns, the last of which is not full.
#[test]
fn counters_reach_their_aims() {
    let outputs = OUTPUTS as f64;
    for (kernel, of_warps, rows, columns, made, most) in [
        (FORWARD, "rbf_wide_forward", 256.0, 1600.0, outputs / 256.0, 0.76),
        (WEIGHTS, "rbf_backward_weights", 256.0, 1600.0, outputs / 256.0, 0.88),
        (CENTERS, "rbf_backward_centers", 512.0, 1792.0, 1.0, 1.09),
    ] {
        let (found, of_warps) = (
            row(kernel, &format!("{rows}x16x100x{OUTPUTS}")),
            row(of_warps, &format!("256x16x100x{OUTPUTS}")),
        );
        assert!(found.exponentials == rows * columns * made, "{kernel}: {} exponentials", found.exponentials);
        let products = rows * columns * outputs / 2048.0;
        assert!(found.products <= 1.01 * products, "{kernel}: {} products", found.products);
        let asked = [&found, &of_warps].map(|row| row.requested / row.products);
        assert!(
            asked[0] < 0.85 * asked[1],
            "{kernel}: {} bytes a product, and {} by warps",
            asked[0],
            asked[1]
        );
        assert!(found.wavefronts <= most * found.products, "{kernel}: {} wavefronts", found.wavefronts);
        assert!(found.conflicts <= 1.05, "{kernel}: {}", found.conflicts);
    }
}

/// One row, and a row more and less than warpgroups, blocks and pairs have; one centre a feature, columns at and around steps and
/// steps of 16, and one and two blocks of outputs.
#[test]
fn any_number_of_rows_features_and_centers() {
    for (rows, features, stride, centers, outputs) in [
        (1, 70, 128, 1, 256),
        (63, 64, 64, 1, 256),
        (64, 5, 64, 3, 256),
        (65, 1, 64, 100, 512),
        (127, 9, 64, 7, 256),
        (128, 13, 64, 5, 256),
        (129, 1, 64, 16, 256),
        (300, 1, 64, 17, 256),
        (257, 3, 64, 21, 256),
        (570, 40, 64, 8, 256),
        (40, 130, 192, 1, 256),
    ] {
        let shape = RbfShape { rows, features, stride, centers, outputs };
        for product in PRODUCTS {
            let problem = ByWarpgroups::new(Problem::random(shape, product, 2));
            let case = Case::new(Limits::SM_90, problem);
            let mut launch = case.launch();
            emulate::run(&Kernels::repository(), &mut launch, &Config::default().workers(2))
                .unwrap_or_else(|report| panic!("{shape:?}, {product:?}: {report}"));
            assert_eq!(case.wrong(&launch), [], "{shape:?}, {product:?}");
        }
    }
}

/// Where cards add both alike, the bits are those of blocks of warps, but of the centres' gradient, whose rows are added in another
/// order.
#[test]
fn results_are_those_of_the_kernels_of_warps() {
    for rows in [1, 130, 300] {
        for product in &PRODUCTS[..3] {
            for problem in problems(rows, *product, 3) {
                let of_warps = problem.by(RbfBlocks::Wide);
                let expected = family::emulated(&of_warps, Sums::Nearest);
                let found = family::emulated(&ByWarpgroups::new(of_warps), Sums::Nearest);
                for name in ["y", "d_weight", "d_bias"] {
                    let [found, expected] = [&found, &expected].map(|launch| family::bytes(launch, name));
                    assert!(found == expected, "{rows} rows, {product:?}: {name}");
                }
            }
        }
    }
}

/// What is not finite in a row stays in it.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let [mut problem, _] = problems(130, Product::Forward(Activation::Relu), 3);
    problem.features[7 * 7 + 5] = bf16::NAN;
    // Infinitely far from its centres, and from those behind the last.
    problem.features[9 * 7 + 6] = bf16::INFINITY;
    let launch = family::emulated(&ByWarpgroups::new(problem), Sums::Hopper);
    for (at, y) in family::result::<bf16>(&launch, "y").chunks(512).enumerate() {
        match at {
            7 => assert!(y.iter().all(|y| y.is_nan())),
            _ => assert!(y.iter().all(|y| y.is_finite()), "row {at}"),
        }
    }
}

#[test]
fn cards_without_such_instructions_are_refused() {
    let compute_capability = (8, 0);
    driver::with(&Configuration { compute_capability, ..Configuration::default() }, |_| {
        let gpu = Gpu::new(0).unwrap();
        for problem in PRODUCTS.into_iter().flat_map(|product| problems(1, product, 1)) {
            let error = problem.solve(&gpu).unwrap_err().to_string();
            let refused = "compute capability 8.0, but kernels by wgmma run on 9.0 alone";
            assert!(error.contains(refused), "{:?}: {error}", problem.product);
        }
    })
    .unwrap();
}
