//! Linear layers: forward, and the gradients of input and parameters.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{LinearBackwardInput, LinearBackwardWeights, LinearForward, LinearWeights};
use setrank::device::choice::MatrixKernels;
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::linear::check::{Answer, InputFinish, PRODUCTS, Problem, Product, group, shape};
use setrank::ops::linear::{
    Activation, DeviceLinear, InputGradient, LayerGradients, Layout, LinearShape, WeightsPlan,
    linear_backward_input, linear_backward_weights, linear_forward,
};
use setrank::ops::partial_sums::PendingSums;
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::linear_few_rows;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "linear", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = self.plan().unwrap();
        let LinearShape { rows, inputs, outputs } = self.shape;
        let dy = given(&self.laid_out(&self.dy));
        match self.product {
            Product::Forward(activation) => {
                let buffers = vec![
                    (offset_of!(LinearForward, x), "x", given(&self.x)),
                    (offset_of!(LinearForward, weight), "weight", given(&self.weight)),
                    (offset_of!(LinearForward, bias), "bias", given(&self.bias)),
                    (offset_of!(LinearForward, y), "y", poisoned::<bf16>(rows * outputs)),
                ];
                family::launch(plan.forward(self.blocks).unwrap(), &plan.forward_numbers(activation), buffers)
            }
            Product::Input(finish) => {
                let mut buffers = vec![
                    (offset_of!(LinearBackwardInput, dy), "dy", dy),
                    (offset_of!(LinearBackwardInput, weight), "weight", given(&self.weight)),
                    (offset_of!(LinearBackwardInput, dx), "dx", poisoned::<bf16>(rows * inputs)),
                ];
                if finish.adds() {
                    buffers.push((offset_of!(LinearBackwardInput, added), "added", given(&self.added)));
                }
                if finish.masks() {
                    buffers.push((offset_of!(LinearBackwardInput, mask), "mask", given(&self.mask)));
                }
                let launch = plan.backward_input(self.blocks).unwrap();
                family::launch(launch, &plan.backward_input_numbers(), buffers)
            }
            Product::InputAdded => linear_few_rows::of_inputs(&[self]),
            Product::Weights => of_weights(&[self]),
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rounded = |name| family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect();
        let answer: Answer = match self.product {
            Product::Forward(_) => vec![rounded("y")],
            Product::Input(_) => vec![rounded("dx")],
            Product::InputAdded => linear_few_rows::added_to(launch, 0),
            Product::Weights => sums_of_parts(launch, self, 0),
        };
        self.deviations(&answer)
    }
}

/// Layers whose parameters' gradients one launch computes.
pub struct Group(pub [Problem; 3]);

impl family::Problem for Group {
    fn launch(&self, _limits: &Limits) -> Launch {
        of_weights(&self.0.each_ref())
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        deviations_of_layers(launch, &self.0)
    }
}

/// How far the gradients of these layers' parameters are off that one launch left in parts.
pub fn deviations_of_layers(launch: &Launch, problems: &[Problem]) -> Vec<(&'static str, Deviation)> {
    let of =
        |(number, problem): (usize, &Problem)| problem.deviations(&sums_of_parts(launch, problem, number));
    problems.iter().enumerate().flat_map(of).collect()
}

/// Names of the buffers of each layer of a launch: dy, x, and the parts of dW and db.
pub const LAYERS: [[&str; 4]; 3] = [
    ["dy", "x", "d_weight", "d_bias"],
    ["dy 1", "x 1", "d_weight 1", "d_bias 1"],
    ["dy 2", "x 2", "d_weight 2", "d_bias 2"],
];

/// The launch of the gradients of these layers' parameters.
fn of_weights(problems: &[&Problem]) -> Launch {
    let plan = WeightsPlan::new(problems.iter().map(|problem| (problem.shape, problem.layout))).unwrap();
    let mut buffers = Vec::new();
    for (number, problem) in problems.iter().enumerate() {
        let LinearShape { inputs, outputs, .. } = problem.shape;
        let at = offset_of!(LinearBackwardWeights, layers) + number * size_of::<LinearWeights>();
        let [dy, x, d_weight, d_bias] = LAYERS[number];
        buffers.extend([
            (at + offset_of!(LinearWeights, dy), dy, given(&problem.laid_out(&problem.dy))),
            (at + offset_of!(LinearWeights, x), x, given(&problem.x)),
            (
                at + offset_of!(LinearWeights, d_weight),
                d_weight,
                poisoned::<f32>(plan.parts(number) * outputs * inputs),
            ),
            (at + offset_of!(LinearWeights, d_bias), d_bias, poisoned::<f32>(plan.parts(number) * outputs)),
        ]);
    }
    family::launch(plan.launch(MatrixKernels::Mma).unwrap(), &plan.numbers(), buffers)
}

/// dW and db of layer `number` of a launch.
fn sums_of_parts(launch: &Launch, problem: &Problem, number: usize) -> Answer {
    let [_, _, d_weight, d_bias] = LAYERS[number];
    vec![sum_of_parts(launch, d_weight, &problem.d_weight), sum_of_parts(launch, d_bias, &problem.d_bias)]
}

/// What was there before, with the parts that a launch left.
pub fn sum_of_parts(launch: &Launch, name: &str, before: &[f32]) -> Vec<f64> {
    let parts = family::result::<f32>(launch, name);
    let of_value = |at: usize| parts[at..].iter().step_by(before.len());
    let sums =
        (0..before.len()).map(|at| of_value(at).chain([&before[at]]).map(|&part| f64::from(part)).sum());
    sums.collect()
}

/// In how products of warps finish gradients, by pieces of 8 bytes.
pub const fn rows_finished_behind_the_last(kernels: &'static str) -> Bug {
    Bug {
        what: "rows of a gradient behind the last",
        file: "gemm.cuh",
        right: "if (row < valid) {\n                const uint16_t *const half_piece",
        wrong: "{\n                const uint16_t *const half_piece",
        kernels,
        found_by: &["load_global of 8 bytes at byte", WRONG_RESULTS],
    }
}

/// In how all products of warps store results.
pub const fn rows_stored_behind_the_last(kernels: &'static str, found_by: &'static [&'static str]) -> Bug {
    Bug {
        what: "rows behind the last that are stored",
        file: "gemm.cuh",
        right: "const bool is_there = row < valid;",
        wrong: "const bool is_there = row <= valid;",
        kernels,
        found_by,
    }
}

const BUGS: [Bug; 13] = [
    Bug {
        what: "a missing barrier",
        file: "gemm.cuh",
        right: "        ptx::barrier();\n        if (step + 1",
        wrong: "        if (step + 1",
        kernels: "",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "a wait for too few copies",
        file: "gemm.cuh",
        right: "ptx::cp_async_wait<0>();\n        // All",
        wrong: "ptx::cp_async_wait<1>();\n        // All",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "one stage for all steps",
        file: "gemm.cuh",
        right: "step % 2 * stage_bytes",
        wrong: "step % 1 * stage_bytes",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "loads behind the rows",
        file: "gemm.cuh",
        right: "const bool inside = row + i < valid;",
        wrong: "const bool inside = valid > 0;",
        kernels: "",
        found_by: &["of `x` of", "of `dy` of"],
    },
    rows_stored_behind_the_last("linear_forward", &["store_global of 16 bytes at byte"]),
    rows_stored_behind_the_last("linear_backward_input", &["store_global of 16 bytes at byte"]),
    Bug {
        what: "a bias of other columns",
        file: "linear.cu",
        right: "p.bias + column",
        wrong: "p.bias",
        kernels: "linear_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a weight that is not transposed",
        file: "linear.cu",
        right: "multiply<false, true>",
        wrong: "multiply<false, false>",
        kernels: "linear_backward_input",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "what finishes a gradient read before it is there",
        file: "gemm.cuh",
        right: "        ptx::cp_async_wait<0>();\n        ptx::barrier();\n        for_pairs",
        wrong: "        ptx::barrier();\n        for_pairs",
        kernels: "linear_backward_input",
        found_by: &["is under way"],
    },
    Bug {
        what: "a gradient of the wrong panel",
        file: "gemm.cuh",
        right: "data + panel * panel_size",
        wrong: "data + panel * stride",
        kernels: "linear_backward_input",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of the next part",
        file: "linear.cu",
        right: "end = min(layer.rows, first + layer.rows_of_part)",
        wrong: "end = layer.rows",
        kernels: "linear_backward_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "pairs that are not swapped",
        file: "gemm.cuh",
        right: "ptx::shuffle_xor(odd ? near[0] : far[0], 1)",
        wrong: "ptx::shuffle_xor(odd ? near[0] : far[0], 2)",
        kernels: "linear_backward_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "tiles of the next part",
        file: "linear.cu",
        right: "const size_t part = block / tiles,",
        wrong: "const size_t part = block / columns,",
        kernels: "linear_backward_weights",
        found_by: &["of `d_weight", "of `d_bias", "of `dy", "of `x", WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::too_little_shared_memory(""),
    WrongLaunch::a_block_too_few(""),
    WrongLaunch::a_block_too_many("linear_backward_weights", &["store_global of"]),
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(4096),
        kernels: "",
        found_by: &["of `x` of 4096 bytes", "of `dy` of 4096 bytes"],
    },
];

/// Every product and layout but the plainest, which has fewer bugs.
fn cases() -> Vec<Case> {
    let case =
        |(product, layout)| Case::new(Limits::SM_90, Problem::random(shape(product), layout, product, 1));
    let plain = |product: &Product| *product == Product::Input(InputFinish::Plain);
    let of_layers = PRODUCTS.into_iter().filter(|(product, _)| !plain(product)).map(case);
    of_layers.chain([Case::new(Limits::SM_90, Group(group([261, 70, 130], 1)))]).collect()
}

fn counted() -> Vec<Counted> {
    let mut all = Vec::new();
    for (product, layout) in [
        (Product::Forward(Activation::Relu), Layout::Heads { width: 32 }),
        (Product::Input(InputFinish::Added), Layout::Rows),
        (Product::Weights, Layout::Rows),
    ] {
        // Gradients of parameters of layers that are wider are another family's.
        let inputs = if product == Product::Weights { 192 } else { 256 };
        for (rows, outputs) in [(40, 256), (1280, 256)] {
            let shape = LinearShape { rows, inputs, outputs };
            all.push(Counted {
                shape: format!("{rows}x{inputs}x{outputs}"),
                problem: Box::new(Problem::random(shape, layout, product, 1)),
                useful_products: (rows * inputs * outputs) as f64 / 2048.0,
            });
        }
    }
    all
}

/// One row, and a row more and less than tiles have.
#[test]
fn any_number_of_rows() {
    for rows in [1, 63, 64, 65, 127, 128, 129] {
        for (product, layout) in PRODUCTS {
            let shape = LinearShape { rows, inputs: 64, outputs: 64 };
            let case = Case::new(Limits::SM_80, Problem::random(shape, layout, product, 2));
            let mut launch = case.launch();
            let kernels = setrank_emulator::kernels::Kernels::repository();
            setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
            assert_eq!(case.wrong(&launch), [], "{rows} rows, {product:?}, {layout:?}");
        }
    }
}

/// What is not finite in a row stays in it, and a NaN is not masked by a ReLU.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let shape = LinearShape { rows: 70, inputs: 64, outputs: 64 };
    let product = Product::Forward(Activation::Relu);
    let mut problem = Problem::random(shape, Layout::Rows, product, 3);
    problem.x[64 * 7 + 5] = bf16::NAN;
    let mut launch = family::Problem::launch(&problem, &Limits::SM_90);
    let kernels = setrank_emulator::kernels::Kernels::repository();
    setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
    for (at, y) in family::result::<bf16>(&launch, "y").into_iter().enumerate() {
        assert_eq!(y.is_nan(), at / 64 == 7, "row {}", at / 64);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("a layer", 1 << 20).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let shape = LinearShape { rows: 3, inputs: 64, outputs: 128 };
        let mut x: Buffer<bf16> = mine.take(3 * 64).unwrap();
        let mut y: Buffer<bf16> = mine.take(3 * 128).unwrap();
        let mut weight: Buffer<bf16> = mine.take(128 * 64).unwrap();
        let mut bias: Buffer<f32> = mine.take(128).unwrap();
        let mut d_weight: Buffer<f32> = mine.take(128 * 64).unwrap();
        let scratch: Buffer<f32> = mine.take(WeightsPlan::scratch_len_of(&[shape])).unwrap();
        let mut d_bias: Buffer<f32> = mine.take(128).unwrap();
        let other_weight: Buffer<bf16> = theirs.take(128 * 64).unwrap();
        let gpu = &gpus[0];
        for buffer in [&mut x, &mut y, &mut weight] {
            gpu.zero(buffer).unwrap();
        }
        for buffer in [&mut bias, &mut d_weight, &mut d_bias] {
            gpu.zero(buffer).unwrap();
        }
        let rows = Layout::Rows;
        let none = Activation::Identity;

        let forward = |y: &mut Buffer<bf16>, x: &Buffer<bf16>, weight: &Buffer<bf16>, layout, shape| {
            let layer = DeviceLinear { weight, bias: &bias };
            linear_forward(gpu, y, layout, x, layer, none, shape)
        };
        let mut same = y.part(0..3 * 128).unwrap();
        forward(&mut y, &x, &weight, rows, shape).unwrap();
        for (error, says) in [
            (forward(&mut same, &y, &weight, rows, LinearShape { inputs: 128, ..shape }), "W [out, in] has"),
            (forward(&mut y, &x, &other_weight, rows, shape), "a buffer of another GPU"),
            (forward(&mut y, &x, &weight, Layout::Heads { width: 16 }, shape), "32 or 64 wide, not 16"),
            (
                forward(&mut y, &x, &weight, rows, LinearShape { rows: 4, ..shape }),
                "x [N, in] has 192 values, not 256",
            ),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        let mut dx: Buffer<bf16> = mine.take(3 * 64).unwrap();
        let input =
            |dx: &mut Buffer<bf16>, finish| linear_backward_input(gpu, dx, &y, rows, &weight, finish, shape);
        input(&mut dx, InputGradient::masked(&x)).unwrap();
        let alias = dx.part(0..3 * 64).unwrap();
        for (error, says) in [
            (input(&mut dx, InputGradient::added(&alias)), "share memory"),
            (input(&mut dx, InputGradient::added(&y)), "what is added to dx [N, in] has 384 values"),
            (input(&mut dx, InputGradient::masked(&y)), "what masks dx [N, in] has 384 values"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        let gradients = |d_weight: &Buffer<f32>, scratch: &Buffer<f32>| {
            let gradients = [d_weight.alias(), d_bias.alias()];
            let layer = LayerGradients { gradients, dy: y.alias(), layout: rows, x: x.alias(), shape };
            PendingSums::of(gpu, scratch, |sums| linear_backward_weights(gpu, &[layer], sums))
        };
        gradients(&d_weight, &scratch).unwrap();
        for (error, says) in [
            (gradients(&d_weight, &scratch.part(0..64).unwrap()), "scratch has 64 values, not 8320 or more"),
            (gradients(&scratch.part(0..128 * 64).unwrap(), &scratch), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}

/// Gradients of parameters are added to what is there, of a layer without rows none.
#[test]
fn gradients_are_added() {
    driver::with(&Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("layers", 1 << 20).unwrap();
        let shape = LinearShape { rows: 2, inputs: 64, outputs: 64 };
        let empty = LinearShape { rows: 0, ..shape };
        let [mut x, mut dy] = [arena.take::<bf16>(128).unwrap(), arena.take(128).unwrap()];
        gpu.upload(&mut x, &[bf16::ONE; 128]).unwrap();
        gpu.upload(&mut dy, &[bf16::ONE; 128]).unwrap();
        let [no_x, no_dy] = [(); 2].map(|()| x.part(0..0).unwrap());
        let scratch = arena.take(WeightsPlan::scratch_len_of(&[empty, shape])).unwrap();
        let [first, second] = [(); 2].map(|()| {
            let [mut weight, mut bias] = [arena.take::<f32>(64 * 64).unwrap(), arena.take(64).unwrap()];
            gpu.upload(&mut weight, &[1.5; 64 * 64]).unwrap();
            gpu.upload(&mut bias, &[0.5; 64]).unwrap();
            [weight, bias]
        });
        let layout = Layout::Rows;
        let layers = [
            LayerGradients { gradients: first, dy: no_dy, layout, x: no_x, shape: empty },
            LayerGradients { gradients: second, dy, layout, x, shape },
        ];
        PendingSums::of(&gpu, &scratch, |sums| linear_backward_weights(&gpu, &layers, sums)).unwrap();
        for (layer, more) in layers.iter().zip([0.0, 2.0]) {
            let [weight, bias] = &layer.gradients;
            assert_eq!(gpu.download(weight).unwrap(), [1.5 + more; 64 * 64]);
            assert_eq!(gpu.download(bias).unwrap(), [0.5 + more; 64]);
        }
    })
    .unwrap();
}
