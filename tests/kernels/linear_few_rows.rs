//! A linear layer's forward by blocks of few rows, and several layers' at once.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::LinearForward;
use setrank::device::check::Deviation;
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::linear::check::few_rows::{OF_GROUP, group, problems};
use setrank::ops::linear::check::{Problem, Product};
use setrank::ops::linear::{Activation, BlockSize, LayerForward, Layout, LinearShape, linear_forward_layers};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "linear_few_rows", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

/// Layers whose forward is one launch.
struct Group([Problem; 3]);

/// Names of the buffers of each layer of a launch: x, W, b and y.
const LAYERS: [[&str; 4]; 3] = [
    ["x", "weight", "bias", "y"],
    ["x 1", "weight 1", "bias 1", "y 1"],
    ["x 2", "weight 2", "bias 2", "y 2"],
];

impl family::Problem for Group {
    fn launch(&self, _limits: &Limits) -> Launch {
        let (plan, LinearShape { rows, outputs, .. }) = (self.0[0].plan().unwrap(), self.0[0].shape);
        let mut buffers = Vec::new();
        for (number, (problem, [x, weight, bias, y])) in self.0.iter().zip(LAYERS).enumerate() {
            let at = number * size_of::<LinearForward>();
            buffers.extend([
                (at + offset_of!(LinearForward, x), x, given(&problem.x)),
                (at + offset_of!(LinearForward, weight), weight, given(&problem.weight)),
                (at + offset_of!(LinearForward, bias), bias, given(&problem.bias)),
                (at + offset_of!(LinearForward, y), y, poisoned::<bf16>(rows * outputs)),
            ]);
        }
        let launch = plan.forward_layers(self.0.len()).unwrap();
        family::launch(launch, &plan.layers_numbers(OF_GROUP.0), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let of = |(problem, [.., y]): (&Problem, [&str; 4])| {
            let y = family::result::<bf16>(launch, y).into_iter().map(bf16::to_f64).collect();
            problem.deviations(&vec![y])
        };
        self.0.iter().zip(LAYERS).flat_map(of).collect()
    }
}

const BUGS: [Bug; 8] = [
    Bug {
        what: "the first layer for all",
        file: "linear_few_rows.cu",
        right: "p.layers[blockIdx.y]",
        wrong: "p.layers[0]",
        kernels: "linear_few_rows_layers",
        found_by: &[WRONG_RESULTS],
    },
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
    let layers = Case::new(Limits::SM_90, Group(group(45, 1)));
    problems(45, 1).into_iter().map(|problem| Case::new(Limits::SM_90, problem)).chain([layers]).collect()
}

fn counted() -> Vec<Counted> {
    let mut counted: Vec<Counted> = [(BlockSize::Few, 1024), (BlockSize::Fewest, 256)]
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
        .into();
    let (rows, problems) = (20, group(20, 1));
    let LinearShape { inputs, outputs, .. } = problems[0].shape;
    counted.push(Counted {
        shape: format!("3 of {rows}x{inputs}x{outputs}"),
        problem: Box::new(Group(problems)),
        useful_products: (3 * rows * inputs * outputs) as f64 / 2048.0,
    });
    counted
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

/// Nor on how many layers a launch has.
#[test]
fn results_of_several_layers_are_those_of_each() {
    for (rows, sums) in [(1, Sums::Hopper), (20, Sums::Ampere), (128, Sums::Nearest)] {
        let problems = group(rows, 2);
        let expected =
            problems.each_ref().map(|problem| family::result::<bf16>(&family::emulated(problem, sums), "y"));
        let found = family::emulated(&Group(problems), sums);
        for (expected, [.., y]) in expected.into_iter().zip(LAYERS) {
            assert!(family::result::<bf16>(&found, y) == expected, "{y}: {rows} rows, {sums:?}");
        }
    }
}

/// More than one launch has room for.
#[test]
fn any_number_of_layers_is_computed() {
    driver::with(&Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("layers", 1 << 18).unwrap();
        let shape = LinearShape { rows: 1, inputs: 64, outputs: 64 };
        let mut x: Buffer<bf16> = arena.take(64).unwrap();
        let mut weight: Buffer<bf16> = arena.take(64 * 64).unwrap();
        let mut bias: Buffer<f32> = arena.take(64).unwrap();
        gpu.upload(&mut x, &[bf16::ONE; 64]).unwrap();
        gpu.upload(&mut weight, &[bf16::ONE; 64 * 64]).unwrap();
        gpu.upload(&mut bias, &[1.0; 64]).unwrap();
        let mut layers: Vec<LayerForward> = (0..17)
            .map(|_| LayerForward {
                y: arena.take(64).unwrap(),
                x: x.alias(),
                weight: weight.alias(),
                bias: bias.alias(),
            })
            .collect();
        let before = driver.counters().launches;
        let of = |layers: &mut [LayerForward]| {
            linear_forward_layers(&gpu, layers, Layout::Rows, Activation::Identity, shape)
        };
        of(&mut []).unwrap();
        of(&mut layers).unwrap();
        assert_eq!(driver.counters().launches - before, 2);
        for layer in &layers {
            assert_eq!(gpu.download(&layer.y).unwrap(), [bf16::from_f32(65.0); 64]);
        }
        layers[1].y = layers[0].y.alias();
        let error = of(&mut layers).unwrap_err().to_string();
        assert!(error.contains("linear layers, forward: y [N, out] and y [N, out] share memory"), "{error}");
        layers[1].y = layers[0].x.alias();
        let error = of(&mut layers).unwrap_err().to_string();
        assert!(error.contains("share memory"), "{error}");
        layers[1].bias = bias.part(0..32).unwrap();
        let error = of(&mut layers[1..]).unwrap_err().to_string();
        assert!(error.contains("b [out] has 32 values, not 64"), "{error}");
    })
    .unwrap();
}
