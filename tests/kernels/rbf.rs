//! The rbf input.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{RbfBackwardCenters, RbfBackwardWeights, RbfForward};
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::linear::check::Answer;
use setrank::ops::linear::{Activation, DeviceLinear};
use setrank::ops::partial_sums::PendingSums;
use setrank::ops::rbf::check::{PRODUCTS, Problem, Product, shapes, wide_shape};
use setrank::ops::rbf::{DeviceRbf, RbfBlocks, RbfShape, rbf_backward, rbf_forward};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::linear::sum_of_parts;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "rbf", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = self.plan().unwrap();
        let RbfShape { rows, outputs, .. } = self.shape;
        let (x, weight) = (given(&self.x()), given(&self.weight()));
        match self.product {
            Product::Forward(activation) => {
                let buffers = vec![
                    (offset_of!(RbfForward, x), "x", x),
                    (offset_of!(RbfForward, centers), "centers", given(&self.centers)),
                    (offset_of!(RbfForward, weight), "weight", weight),
                    (offset_of!(RbfForward, bias), "bias", given(&self.bias)),
                    (offset_of!(RbfForward, y), "y", poisoned::<bf16>(rows * outputs)),
                ];
                family::launch(plan.forward(self.blocks).unwrap(), &plan.forward_numbers(activation), buffers)
            }
            Product::Weights => {
                let parts = plan.weight_parts();
                let of_weight = poisoned::<f32>(parts * outputs * self.shape.width());
                let buffers = vec![
                    (offset_of!(RbfBackwardWeights, dy), "dy", given(&self.dy)),
                    (offset_of!(RbfBackwardWeights, x), "x", x),
                    (offset_of!(RbfBackwardWeights, centers), "centers", given(&self.centers)),
                    (offset_of!(RbfBackwardWeights, d_weight), "d_weight", of_weight),
                    (offset_of!(RbfBackwardWeights, d_bias), "d_bias", poisoned::<f32>(parts * outputs)),
                ];
                family::launch(
                    plan.backward_weights(self.matrix()).unwrap(),
                    &plan.backward_weights_numbers(),
                    buffers,
                )
            }
            Product::Centers => {
                let of_centers = poisoned::<f32>(plan.center_parts() * self.shape.columns());
                let buffers = vec![
                    (offset_of!(RbfBackwardCenters, dy), "dy", given(&self.dy)),
                    (offset_of!(RbfBackwardCenters, x), "x", x),
                    (offset_of!(RbfBackwardCenters, centers), "centers", given(&self.centers)),
                    (offset_of!(RbfBackwardCenters, weight), "weight", weight),
                    (offset_of!(RbfBackwardCenters, d_centers), "d_centers", of_centers),
                ];
                family::launch(
                    plan.backward_centers(self.matrix()).unwrap(),
                    &plan.backward_centers_numbers(),
                    buffers,
                )
            }
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let answer: Answer = match self.product {
            Product::Forward(_) => {
                vec![family::result::<bf16>(launch, "y").into_iter().map(bf16::to_f64).collect()]
            }
            Product::Weights => vec![
                sum_of_parts(launch, "d_weight", &self.d_weight),
                sum_of_parts(launch, "d_bias", &self.d_bias),
            ],
            Product::Centers => vec![sum_of_parts(launch, "d_centers", &self.d_centers)],
        };
        self.deviations(&answer)
    }
}

const BUGS: [Bug; 18] = [
    Bug {
        what: "a missing barrier",
        file: "gemm.cuh",
        right: "        ptx::barrier();\n        if (step + 1",
        wrong: "        if (step + 1",
        kernels: "rbf_forward",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "a missing barrier of wide blocks",
        file: "wide.cuh",
        right: "        ptx::barrier();\n        if (step + 1",
        wrong: "        if (step + 1",
        kernels: "rbf_wide",
        found_by: &["is read before anything is written to it", "is under way"],
    },
    Bug {
        what: "a missing barrier, backward",
        file: "wide.cuh",
        right: "        ptx::barrier();\n        if (step + 1",
        wrong: "        if (step + 1",
        kernels: "rbf_backward",
        found_by: &["is read before anything is written to it", "is under way"],
    },
    Bug {
        what: "warps that only make activations",
        file: "rbf.cu",
        right: "if ((turn == 0) == makes_first) {",
        wrong: "if (makes_first) {",
        kernels: "rbf_wide",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "activations of the next row, in wide blocks",
        file: "rbf.cu",
        right: "basis, place.row, step",
        wrong: "basis, place.row + 1, step",
        kernels: "rbf_wide",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "operands of the next rows in the place of those that others still read",
        file: "rbf.cu",
        right: "        ptx::barrier();\n        if (!busy) continue;",
        wrong: "        if (!busy) continue;",
        kernels: "rbf_backward_centers",
        found_by: &["is under way", WRONG_RESULTS],
    },
    Bug {
        what: "features behind the last row",
        file: "rbf.cuh",
        right: "if (row >= rows) return 0.0f;",
        wrong: "",
        kernels: "rbf_forward",
        found_by: &["load_constant of 2 bytes at byte"],
    },
    Bug {
        what: "centres behind the last",
        file: "rbf.cuh",
        right: "column < columns ? ptx::load_constant(centers + column) : FAR",
        wrong: "ptx::load_constant(centers + column)",
        kernels: "",
        found_by: &["of `centers` of"],
    },
    Bug {
        what: "activations behind the last centre",
        file: "rbf.cuh",
        right: ": FAR;",
        wrong: ": 0.0f;",
        kernels: "rbf_backward_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a feature that begins a column late",
        file: "rbf.cu",
        right: "rest = rest + 1 == basis.per_feature ? 0 : rest + 1;",
        wrong: "rest = rest == basis.per_feature ? 0 : rest + 1;",
        kernels: "rbf_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a bell that is too wide",
        file: "rbf.cuh",
        right: "ptx::exp2(-SHARPNESS * LOG2_E * distance * distance)",
        wrong: "ptx::exp2(-SHARPNESS * distance * distance)",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "activations of the next row",
        file: "rbf.cu",
        right: "stage.left, basis, row, step * gemm::STEP",
        wrong: "stage.left, basis, row + 1, step * gemm::STEP",
        kernels: "rbf_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of the next part",
        file: "rbf.cu",
        right: "min(p.rows, first + p.rows_of_part);\n    const int steps",
        wrong: "p.rows;\n    const int steps",
        kernels: "rbf_backward_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of the next part, for the centres",
        file: "rbf.cu",
        right: "min(p.rows, first + p.rows_of_part);\n    const Basis",
        wrong: "p.rows;\n    const Basis",
        kernels: "rbf_backward_centers",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a bias in the place of the first part's",
        file: "rbf.cu",
        right: "p.d_bias + part * outputs + of_warp",
        wrong: "p.d_bias + of_warp",
        kernels: "rbf_backward_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a feature that stays",
        file: "rbf.cu",
        right: "if (numbers[e] != number) x =",
        wrong: "if (number == ~0u) x =",
        kernels: "rbf_backward_centers",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of half the rows",
        file: "rbf.cu",
        right: "            sum += ptx::shuffle_xor(sum, 16);\n",
        wrong: "",
        kernels: "rbf_backward_centers",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients behind the last centre",
        file: "rbf.cu",
        right: "    if (own >= p.columns) return;\n",
        wrong: "",
        kernels: "rbf_backward_centers",
        found_by: &["of `d_centers` of"],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 6] = [
    WrongLaunch {
        what: "a quarter of the shared memory",
        change: |launch| launch.shared_bytes /= 4,
        kernels: "",
        found_by: &["bytes of shared memory"],
    },
    WrongLaunch {
        what: "no room for the table of columns",
        change: |launch| launch.shared_bytes -= 512,
        kernels: "rbf_backward_centers",
        found_by: &["bytes of shared memory"],
    },
    WrongLaunch::a_block_too_few("rbf_forward"),
    WrongLaunch::a_block_too_few("rbf_wide"),
    WrongLaunch {
        what: "a part too few",
        change: |launch| launch.grid[1] -= 1,
        kernels: "rbf_backward",
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(4096),
        kernels: "",
        found_by: &["of `x` of 4096 bytes", "of `dy` of 4096 bytes"],
    },
];

/// Every product; forward once with a ReLU and once without, by each size of blocks.
fn cases() -> Vec<Case> {
    let case = |product, shape| Case::new(Limits::SM_90, Problem::random(shape, product, 1));
    let [identity, relu, weights, centers] = PRODUCTS;
    let [[small, _], [_, large]] = [shapes(identity), shapes(relu)];
    let backward = [weights, centers].map(|product| shapes(product).map(|shape| case(product, shape)));
    let wide = [(identity, 133), (relu, 70)].map(|(product, rows)| {
        Case::new(Limits::SM_90, Problem::random(wide_shape(rows), product, 1).by(RbfBlocks::Wide))
    });
    let forward = [case(identity, small), case(relu, large)].into_iter().chain(wide);
    forward.chain(backward.into_iter().flatten()).collect()
}

fn counted() -> Vec<Counted> {
    let mut all = Vec::new();
    let forward = Product::Forward(Activation::Relu);
    for (product, wide) in
        [(forward, false), (forward, true), (Product::Weights, false), (Product::Centers, false)]
    {
        for (rows, features, outputs) in [(40, 4, 256), (256, 16, 512)] {
            let shape = RbfShape { rows, features, stride: 64, centers: 100, outputs };
            let problem = Problem::random(shape, product, 1);
            all.push(Counted {
                shape: format!("{rows}x{features}x100x{outputs}"),
                problem: Box::new(if wide { problem.by(RbfBlocks::Wide) } else { problem }),
                useful_products: (rows * features * 100 * outputs) as f64 / 2048.0,
            });
        }
    }
    all
}

/// The bits of forward do not depend on the blocks.
#[test]
fn wide_blocks_have_the_same_bits() {
    for (activation, rows) in [(Activation::Identity, 130), (Activation::Relu, 1)] {
        let problem = || Problem::random(wide_shape(rows), Product::Forward(activation), 3);
        let [wide, others] = [problem().by(RbfBlocks::Wide), problem()]
            .map(|problem| family::bytes(&family::emulated(&problem, Sums::Ampere), "y").unwrap());
        assert!(wide == others, "{activation:?}, {rows} rows");
    }
}

/// One centre a feature, more than 64 features, many centres, one row; more than a block's columns and outputs.
#[test]
fn any_number_of_features_and_centers() {
    for (rows, features, stride, centers, outputs) in [
        (1, 70, 128, 1, 64),
        (65, 64, 64, 2, 64),
        (9, 1, 64, 130, 64),
        (129, 1, 64, 1, 64),
        (40, 5, 64, 65, 320),
    ] {
        for product in PRODUCTS {
            let shape = RbfShape { rows, features, stride, centers, outputs };
            let case = Case::new(Limits::SM_80, Problem::random(shape, product, 2));
            let mut launch = case.launch();
            let kernels = setrank_emulator::kernels::Kernels::repository();
            setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
            assert_eq!(case.wrong(&launch), [], "{shape:?}, {product:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let gpu = &gpus[0];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("an rbf input", 1 << 20).unwrap());
        let [mine, theirs] = arenas.each_mut();
        // 21 columns of 64.
        let shape = RbfShape { rows: 3, features: 3, stride: 64, centers: 7, outputs: 64 };
        let [mut x, mut y, mut dy] = [0; 3].map(|_| mine.take::<bf16>(3 * 64).unwrap());
        let mut weight: Buffer<bf16> = mine.take(64 * 64).unwrap();
        for buffer in [&mut x, &mut dy, &mut weight] {
            gpu.zero(buffer).unwrap();
        }
        let [mut centers, mut d_centers] = [0; 2].map(|_| mine.take::<f32>(21).unwrap());
        let [mut bias, mut d_bias] = [0; 2].map(|_| mine.take::<f32>(64).unwrap());
        let mut d_weight: Buffer<f32> = mine.take(64 * 64).unwrap();
        for buffer in [&mut centers, &mut d_centers, &mut bias, &mut d_bias] {
            gpu.zero(buffer).unwrap();
        }
        gpu.upload(&mut d_weight, &[1.5; 64 * 64]).unwrap();
        gpu.upload(&mut dy, &[bf16::ONE; 3 * 64]).unwrap();
        let mut scratch: Buffer<f32> = mine.take(shape.scratch_len(gpu.limits())).unwrap();
        let their_centers: Buffer<f32> = theirs.take(21).unwrap();
        let layer = DeviceLinear { weight: &weight, bias: &bias };
        let rbf = DeviceRbf { centers: &centers, layer };

        let forward =
            |y: &mut Buffer<bf16>, rbf, shape| rbf_forward(gpu, y, &x, rbf, Activation::Relu, shape);
        forward(&mut y, rbf, shape).unwrap();
        let mut alias = x.part(0..3 * 64).unwrap();
        for (error, says) in [
            (forward(&mut alias, rbf, shape), "share memory"),
            (forward(&mut y, DeviceRbf { centers: &their_centers, layer }, shape), "a buffer of another GPU"),
            (forward(&mut y, rbf, RbfShape { centers: 8, ..shape }), "centres [F, K] has 21 values, not 24"),
            (forward(&mut y, rbf, RbfShape { outputs: 65, ..shape }), "a multiple of 64 up to 4096, not 65"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        let mut backward = |d_weight: &mut Buffer<f32>, scratch: &mut Buffer<f32>| {
            PendingSums::of(gpu, scratch, |sums| {
                rbf_backward(gpu, &mut d_centers, d_weight, &mut d_bias, &dy, &x, rbf, sums, shape)
            })
        };
        backward(&mut d_weight, &mut scratch).unwrap();
        // φ is 1 in front of F·K, and nothing is added behind it.
        for (at, found) in gpu.download(&d_weight).unwrap().into_iter().enumerate() {
            assert_eq!(found, if at % 64 < 21 { 4.5 } else { 1.5 }, "column {}", at % 64);
        }
        let mut short = scratch.part(0..64).unwrap();
        let mut inside = scratch.part(0..64 * 64).unwrap();
        for (error, says) in [
            (backward(&mut d_weight, &mut short), "scratch has 64 values, not 4181 or more"),
            (backward(&mut inside, &mut scratch), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}
