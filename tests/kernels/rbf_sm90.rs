//! The rbf input by matrix instructions of warpgroups.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{RbfForward, RbfForwardWgmma};
use setrank::device::check::Deviation;
use setrank::device::{Gpu, Limits};
use setrank::ops::linear::Activation;
use setrank::ops::rbf::check::warpgroups::problems;
use setrank::ops::rbf::check::{Problem, Product};
use setrank::ops::rbf::{RbfBlocks, RbfShape};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::{self, Config, Sums};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::attention::counted::row;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::linear_sm90::map;

ladder!(FAMILY, of_sm_90);

pub const FAMILY: Family =
    Family { name: "rbf_sm90", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

const FORWARD: &str = "rbf_wgmma_forward";

const UNWRITTEN: &str = "is read before anything is written to it";

const BUGS: [Bug; 21] = [
    Bug {
        what: "mbarriers that the other block has not made yet",
        file: "wide_sm90.cuh",
        right: "    ptx::fence_mbarrier_init();\n    ptx::cluster_barrier();\n",
        wrong: "    ptx::fence_mbarrier_init();\n    ptx::barrier();\n",
        kernels: "",
        found_by: &["no mbarrier has been made of byte"],
    },
    Bug {
        what: "a block that exits while the other one tells it",
        file: "wide_sm90.cuh",
        right: "    // What the other block tells this one's mbarriers needs them until it is done.\n    ptx::cluster_barrier();\n",
        wrong: "",
        kernels: "",
        found_by: &["of the cluster has exited"],
    },
    Bug {
        what: "weights for one block alone",
        file: "wide_sm90.cuh",
        right: "full(), ALL_BLOCKS);",
        wrong: "full(), 1 << ptx::cluster_rank());",
        kernels: FORWARD,
        found_by: &["deadlock"],
    },
    Bug {
        what: "the other block's weights",
        file: "rbf_sm90.cu",
        right: "place.panel() * 64, step);",
        wrong: "place.column, step);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first block's rows for both",
        file: "wide_sm90.cuh",
        right: "(pair / tiles * BLOCKS + ptx::cluster_rank()) * ROWS;",
        wrong: "pair / tiles * BLOCKS * ROWS;",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "activations that are made of the first warp's rows",
        file: "rbf_sm90.cu",
        right: "activations(basis, place.row + warp_row());",
        wrong: "activations(basis, place.row);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "registers that are not fenced",
        file: "rbf_sm90.cu",
        right: "        ptx::wgmma_fence(results[0], left);\n",
        wrong: "        ptx::wgmma_fence(results[0]);\n",
        kernels: FORWARD,
        found_by: &["wgmma_fence has not had the registers of a"],
    },
    Bug {
        what: "activations in the place of those that are multiplied",
        file: "rbf_sm90.cu",
        right: "            activations.make(next);\n",
        wrong: "            activations.make(left);\n",
        kernels: FORWARD,
        found_by: &["is still under way", "registers of a"],
    },
    Bug {
        what: "one step's activations for all",
        file: "rbf_sm90.cu",
        right: "multiply(step + 1, odd, even);",
        wrong: "multiply(step + 1, even, odd);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS, "registers of a", "is still under way"],
    },
    Bug {
        what: "operands that are given back before they are multiplied",
        file: "rbf_sm90.cu",
        right: "        ptx::wgmma_wait<0>(results[0]);\n        ring.release();\n",
        wrong: "        ring.release();\n        ptx::wgmma_wait<0>(results[0]);\n",
        kernels: FORWARD,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "results that are not waited for",
        file: "rbf_sm90.cu",
        right: "ptx::wgmma_wait<0>(results[0]);",
        wrong: "ptx::wgmma_wait<1>(results[0]);",
        kernels: FORWARD,
        found_by: &["of these results is still under way", "still under way"],
    },
    Bug {
        what: "operands that are not waited for",
        file: "rbf_sm90.cu",
        right: "        ring.wait();\n        const uint64_t slot",
        wrong: "        const uint64_t slot",
        kernels: FORWARD,
        found_by: &[UNWRITTEN, "is under way"],
    },
    Bug {
        what: "the first slot for all steps",
        file: "rbf_sm90.cu",
        right: "units(ring.offset());",
        wrong: "units(0);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS, "under way", UNWRITTEN, "is overwritten while"],
    },
    Bug {
        what: "the centres of another step",
        file: "rbf_sm90.cu",
        right: "activations.load_centers(step + 2);",
        wrong: "activations.load_centers(step + 1);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "centres behind the last",
        file: "rbf_sm90.cu",
        right: "if ((step + 1) * STEP <= basis.columns) {",
        wrong: "if (step * STEP <= basis.columns) {",
        kernels: FORWARD,
        found_by: &["of `centers` of"],
    },
    Bug {
        what: "a feature that begins a column early",
        file: "rbf_sm90.cu",
        right: "if (d * 8 >= left) go_on(d * 8);",
        wrong: "if (d * 8 + 1 >= left) go_on(d * 8);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a feature that begins inside of a pair",
        file: "rbf_sm90.cu",
        right: "const bool begins = d * 8 + 1 >= left;",
        wrong: "const bool begins = false;",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a feature that stays",
        file: "rbf_sm90.cu",
        right: "            load(next, number + 1);\n        }",
        wrong: "        }",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns that are counted from the step before",
        file: "rbf_sm90.cu",
        right: "        left -= STEP;\n",
        wrong: "",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "results in the place of operands that others still read",
        file: "wide_sm90.cuh",
        right: "{ ptx::barrier_sync(1, MULTIPLIERS * GROUP); }",
        wrong: "{}",
        kernels: FORWARD,
        found_by: &[
            "is overwritten while a wgmma_m64k16_bf16 reads it",
            "under way",
            "fence_proxy_async",
            WRONG_RESULTS,
        ],
    },
    Bug {
        what: "a bias of other columns",
        file: "rbf_sm90.cu",
        right: "layer.bias + place.column",
        wrong: "layer.bias",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::a_cluster_too_few(FORWARD),
    WrongLaunch::a_block_too_many(FORWARD, &["no multiple of its clusters' 2"]),
    WrongLaunch::too_little_shared_memory(""),
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(4096),
        kernels: "",
        found_by: &["of `weight` of 4096 bytes"],
    },
];

/// What warpgroups compute.
struct ByWarpgroups(Problem);

impl family::Problem for ByWarpgroups {
    fn launch(&self, _limits: &Limits) -> Launch {
        let ByWarpgroups(problem) = self;
        let (plan, RbfShape { rows, outputs, .. }) = (problem.plan().unwrap(), problem.shape);
        let (x, centers, weight) = (given(&problem.x()), given(&problem.centers), given(&problem.weight()));
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
            Product::Weights | Product::Centers => panic!("kernels of warps compute these"),
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        family::Problem::deviations(&self.0, launch)
    }
}

/// Of a full block and one with a row more than a warpgroup has.
fn cases() -> Vec<Case> {
    problems(193, 1).map(|problem| Case::new(Limits::SM_90, ByWarpgroups(problem))).into()
}

fn counted() -> Vec<Counted> {
    let (rows, features, outputs) = (256, 16, 512);
    let shape = RbfShape { rows, features, stride: 64, centers: 100, outputs };
    [Product::Forward(Activation::Relu)]
        .map(|product| Counted {
            shape: format!("{rows}x{features}x100x{outputs}"),
            problem: Box::new(ByWarpgroups(Problem::random(shape, product, 1).by(RbfBlocks::Warpgroups))),
            useful_products: (rows * features * 100 * outputs) as f64 / 2048.0,
        })
        .into()
}

/// By what is counted: products without padding, as many exponentials as blocks of warps make, and less of all else.
#[test]
fn counters_reach_their_aims() {
    let shape = "256x16x100x512";
    let (outputs, results) = (512.0, 256.0 * 512.0);
    for (kernel, of_warps, by_way, most) in [(FORWARD, "rbf_wide_forward", 4.0, 0.8)] {
        let (found, of_warps) = (row(kernel, shape), row(of_warps, shape));
        let activations = 256.0 * 1600.0;
        assert!(found.exponentials == activations * outputs / 256.0, "{kernel}: {}", found.exponentials);
        assert!(found.products <= of_warps.products, "{kernel}: {} products", found.products);
        assert!(
            found.requested < of_warps.requested,
            "{kernel}: {} of {}",
            found.requested,
            of_warps.requested
        );
        let wavefronts = found.wavefronts - by_way * results / 128.0;
        assert!(wavefronts <= most * found.products, "{kernel}: {wavefronts} wavefronts");
        assert!(found.conflicts <= 1.01, "{kernel}: {}", found.conflicts);
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
    ] {
        let shape = RbfShape { rows, features, stride, centers, outputs };
        for product in [Product::Forward(Activation::Relu)] {
            let problem = Problem::random(shape, product, 2).by(RbfBlocks::Warpgroups);
            let case = Case::new(Limits::SM_90, ByWarpgroups(problem));
            let mut launch = case.launch();
            emulate::run(&Kernels::repository(), &mut launch, &Config::default().workers(2))
                .unwrap_or_else(|report| panic!("{shape:?}, {product:?}: {report}"));
            assert_eq!(case.wrong(&launch), [], "{shape:?}, {product:?}");
        }
    }
}

/// Where cards add both alike, the bits are those of blocks of warps.
#[test]
fn results_are_those_of_the_kernels_of_warps() {
    for rows in [1, 130] {
        for problem in problems(rows, 3) {
            let product = problem.product;
            let of_warps = problem.by(RbfBlocks::Wide);
            let expected = family::emulated(&of_warps, Sums::Nearest);
            let found = family::emulated(&ByWarpgroups(of_warps.by(RbfBlocks::Warpgroups)), Sums::Nearest);
            for name in ["y"] {
                let [found, expected] = [&found, &expected].map(|launch| family::bytes(launch, name));
                assert!(found == expected, "{rows} rows, {product:?}: {name}");
            }
        }
    }
}

#[test]
fn cards_without_such_instructions_are_refused() {
    let compute_capability = (8, 0);
    driver::with(&Configuration { compute_capability, ..Configuration::default() }, |_| {
        let gpu = Gpu::new(0).unwrap();
        for problem in problems(1, 1) {
            let error = problem.solve(&gpu).unwrap_err().to_string();
            assert!(
                error.contains("compute capability 8.0, but kernels by wgmma run on 9.0 alone"),
                "{error}"
            );
        }
    })
    .unwrap();
}
