//! A linear layer by blocks of few rows, forward and the gradient of its input, and several layers at once.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{LinearForward, LinearInput};
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::linear::check::few_rows::{OF_GROUP, OF_INPUT_GROUPS, group, input_group, problems};
use setrank::ops::linear::check::{Answer, InputFinish, Problem, Product};
use setrank::ops::linear::{
    Activation, BlockSize, LayerForward, LayerInput, Layout, LinearShape, linear_backward_input_layers,
    linear_forward_layers,
};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::linear::{rows_finished_behind_the_last, rows_stored_behind_the_last};

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

/// Layers, the gradients of whose inputs are one launch.
struct InputGroup([Problem; 3]);

/// Names of the buffers of each layer of such a launch: dy, W and dx.
const INPUT_LAYERS: [[&str; 3]; 3] =
    [["dy", "weight", "dx"], ["dy 1", "weight 1", "dx 1"], ["dy 2", "weight 2", "dx 2"]];

impl family::Problem for InputGroup {
    fn launch(&self, _limits: &Limits) -> Launch {
        of_inputs(&self.0.each_ref())
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let of = |(number, problem): (usize, &Problem)| problem.deviations(&added_to(launch, number));
        self.0.iter().enumerate().flat_map(of).collect()
    }
}

/// The launch of the gradients of the inputs of layers, up to three.
pub fn of_inputs(problems: &[&Problem]) -> Launch {
    let plan = problems[0].plan().unwrap();
    let mut buffers = Vec::new();
    for (number, (problem, [dy, weight, dx])) in problems.iter().zip(INPUT_LAYERS).enumerate() {
        let at = number * size_of::<LinearInput>();
        let before: Vec<f32> = problem.added.iter().map(|value| value.to_f32()).collect();
        buffers.extend([
            (at + offset_of!(LinearInput, dy), dy, given(&problem.laid_out(&problem.dy))),
            (at + offset_of!(LinearInput, weight), weight, given(&problem.weight)),
            (at + offset_of!(LinearInput, dx), dx, given(&before)),
        ]);
    }
    family::launch(plan.input_layers(problems.len()).unwrap(), &plan.input_layers_numbers(), buffers)
}

/// What such a launch left of the layer of this number.
pub fn added_to(launch: &Launch, number: usize) -> Answer {
    let [.., dx] = INPUT_LAYERS[number];
    vec![family::result::<f32>(launch, dx).into_iter().map(f64::from).collect()]
}

const BUGS: [Bug; 15] = [
    rows_finished_behind_the_last("linear_few_rows_input_32"),
    Bug {
        what: "a mask that is added",
        file: "linear_few_rows.cu",
        right: "gemm::finish_pairs(results, masked,",
        wrong: "gemm::finish_pairs(results, false,",
        kernels: "linear_few_rows_input_32",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a mask for what is not yet added",
        file: "linear_few_rows.cu",
        right: "const bool masked = pass != 0;",
        wrong: "const bool masked = pass == 0;",
        kernels: "linear_few_rows_input_32",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns of the first warp for all",
        file: "few_rows.cuh",
        right: "first = place.of_warp / 8",
        wrong: "first = 0",
        kernels: "linear_few_rows",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first layer for all",
        file: "linear_few_rows.cu",
        right: "forward<16>(p.layers[blockIdx.y])",
        wrong: "forward<16>(p.layers[0])",
        kernels: "linear_few_rows_layers",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first layer's gradient for all",
        file: "linear_few_rows.cu",
        right: "add_input(p.layers[blockIdx.y])",
        wrong: "add_input(p.layers[0])",
        kernels: "linear_input_layers",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a gradient that replaces what was there",
        file: "linear_few_rows.cu",
        right: "before.y + high",
        wrong: "high",
        kernels: "linear_input_layers",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients of rows behind the last",
        file: "linear_few_rows.cu",
        right: "if (at >= valid) return;",
        wrong: "if (at > valid) return;",
        kernels: "linear_input_layers",
        found_by: &["load_global of 8 bytes at byte"],
    },
    Bug {
        what: "a gradient of other columns",
        file: "linear_few_rows.cu",
        right: "place.of_warp + (lane & 3) * 2",
        wrong: "(lane & 3) * 2",
        kernels: "linear_input_layers",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "weights that are not transposed, or are",
        file: "linear_few_rows.cu",
        right: "multiply<false, !FORWARD>",
        wrong: "multiply<false, FORWARD>",
        kernels: "",
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
    rows_stored_behind_the_last("linear_few_rows", &["store_global of 8 bytes at byte", WRONG_RESULTS]),
    Bug {
        what: "a bias of other columns",
        file: "few_rows.cuh",
        right: "bias + place.column + place.of_warp",
        wrong: "bias + place.column",
        kernels: "linear_few_rows_16",
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
    let layers = Case::new(Limits::SM_90, Group(group(45, 1)));
    let inputs =
        OF_INPUT_GROUPS.map(|layout| Case::new(Limits::SM_90, InputGroup(input_group(45, layout, 1))));
    let problems = problems(45, 1).map(|problem| Case::new(Limits::SM_90, problem));
    problems.into_iter().chain([layers]).chain(inputs).collect()
}

fn counted() -> Vec<Counted> {
    let (forward, input) = (Product::Forward(Activation::Relu), Product::Input(InputFinish::Added));
    let mut counted: Vec<Counted> = [
        (BlockSize::Few, forward, 500, 256, 1024),
        (BlockSize::Fewest, forward, 500, 256, 256),
        (BlockSize::Few, input, 1280, 256, 1024),
        (BlockSize::Fewest, input, 500, 256, 768),
    ]
    .map(|(blocks, product, rows, inputs, outputs)| {
        let shape = LinearShape { rows, inputs, outputs };
        let problem = Problem::random(shape, Layout::Rows, product, 1).by(blocks);
        Counted {
            shape: format!("{rows}x{inputs}x{outputs}"),
            problem: Box::new(problem),
            useful_products: (rows * inputs * outputs) as f64 / 2048.0,
        }
    })
    .into();
    let of = |shape: LinearShape, problem: Box<dyn family::Problem>| {
        let LinearShape { rows, inputs, outputs } = shape;
        let useful_products = (3 * rows * inputs * outputs) as f64 / 2048.0;
        Counted { shape: format!("3 of {rows}x{inputs}x{outputs}"), problem, useful_products }
    };
    let problems = group(20, 1);
    counted.push(of(problems[0].shape, Box::new(Group(problems))));
    let problems = input_group(20, OF_INPUT_GROUPS[0], 1);
    counted.push(of(problems[0].shape, Box::new(InputGroup(problems))));
    counted
}

/// The bits do not depend on how many rows a block has, at any number of rows.
#[test]
fn results_are_those_of_blocks_of_many_rows() {
    for (rows, sums) in
        [1, 15, 16, 17, 31, 32, 33, 127].into_iter().zip([Sums::Hopper, Sums::Ampere].into_iter().cycle())
    {
        for problem in problems(rows, 2) {
            assert_same_bits(problem, sums);
        }
        let shape = LinearShape { rows, inputs: 64, outputs: 128 };
        for finish in InputFinish::ALL {
            let problem = Problem::random(shape, Layout::Rows, Product::Input(finish), 3);
            [BlockSize::Few, BlockSize::Fewest]
                .into_iter()
                .for_each(|blocks| assert_same_bits(problem.clone().by(blocks), sums));
        }
    }
}

fn assert_same_bits(problem: Problem, sums: Sums) {
    let name = if matches!(problem.product, Product::Forward(_)) { "y" } else { "dx" };
    let what = format!("{:?}, {:?}, {:?}, {sums:?}", problem.shape, problem.blocks, problem.product);
    let found = family::bytes(&family::emulated(&problem, sums), name);
    let expected = family::bytes(&family::emulated(&problem.by(BlockSize::Many), sums), name);
    assert_eq!(found, expected, "{what}");
}

/// What is not finite stays where it is, or is cut off, as by blocks of many rows.
#[test]
fn what_is_not_finite_stays_in_its_place() {
    let (rows, inputs) = (33, 64);
    let shape = LinearShape { rows, inputs, outputs: 64 };
    let product = Product::Input(InputFinish::AddedAndMasked);
    let mut problem = Problem::random(shape, Layout::Rows, product, 4);
    problem.mask.fill(bf16::ONE);
    problem.added[5] = bf16::NAN;
    problem.mask[6] = bf16::NAN;
    problem.dy[3 * 64] = bf16::INFINITY;
    for blocks in [BlockSize::Few, BlockSize::Fewest] {
        let problem = problem.clone().by(blocks);
        let found = family::result::<bf16>(&family::emulated(&problem, Sums::Nearest), "dx");
        let is_bad = |(at, value): (usize, &bf16)| {
            assert_eq!(value.is_finite(), at != 5 && at / inputs != 3, "{blocks:?}, {at}: {value}");
        };
        found.iter().enumerate().for_each(is_bad);
        assert_eq!(found[6], bf16::ZERO);
        assert_same_bits(problem, Sums::Nearest);
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

/// Gradients are right at any number of rows, of one layer as of several, whose bits they have.
#[test]
fn gradients_of_several_layers_are_those_of_each() {
    for (rows, sums) in [1, 15, 16, 17, 33, 128]
        .into_iter()
        .zip([Sums::Hopper, Sums::Ampere, Sums::Nearest].into_iter().cycle())
    {
        for layout in OF_INPUT_GROUPS {
            let group = InputGroup(input_group(rows, layout, 2));
            let found = family::emulated(&group, sums);
            for (name, deviation) in family::Problem::deviations(&group, &found) {
                assert!(deviation.is_allowed(), "{name}: {rows} rows, {layout:?}, {sums:?}: {deviation:?}");
            }
            for (problem, [.., dx]) in group.0.iter().zip(INPUT_LAYERS) {
                let alone = family::result::<f32>(&family::emulated(problem, sums), "dx");
                assert!(
                    family::result::<f32>(&found, dx) == alone,
                    "{dx}: {rows} rows, {layout:?}, {sums:?}"
                );
            }
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

/// The same of gradients of inputs, and what does not fit is refused.
#[test]
fn gradients_of_any_number_of_layers_are_computed() {
    driver::with(&Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("layers", 1 << 18).unwrap();
        let shape = LinearShape { rows: 1, inputs: 64, outputs: 64 };
        let mut dy: Buffer<bf16> = arena.take(64).unwrap();
        let mut weight: Buffer<bf16> = arena.take(64 * 64).unwrap();
        gpu.upload(&mut dy, &[bf16::ONE; 64]).unwrap();
        gpu.upload(&mut weight, &[bf16::ONE; 64 * 64]).unwrap();
        let mut layers: Vec<LayerInput> = (0..17u8)
            .map(|number| {
                let mut dx = arena.take(64).unwrap();
                gpu.upload(&mut dx, &[f32::from(number); 64]).unwrap();
                LayerInput { dx, dy: dy.alias(), weight: weight.alias() }
            })
            .collect();
        let before = driver.counters().launches;
        let of = |layers: &mut [LayerInput]| linear_backward_input_layers(&gpu, layers, Layout::Rows, shape);
        of(&mut []).unwrap();
        of(&mut layers).unwrap();
        assert_eq!(driver.counters().launches - before, 2);
        for (layer, before) in layers.iter().zip(0u8..) {
            assert_eq!(gpu.download(&layer.dx).unwrap(), [f32::from(before) + 64.0; 64]);
        }
        let of_width = |width| {
            linear_backward_input_layers(&gpu, &mut [], Layout::Heads { width }, shape)
                .unwrap_err()
                .to_string()
        };
        assert!(of_width(48).contains("a head is 32 or 64 wide, not 48"));
        for (spoil, says) in [
            (
                (|layers, _| layers[1].dx = layers[0].dx.alias()) as fn(&mut [LayerInput], &Buffer<bf16>),
                "linear layers, gradients of the inputs: dx [N, in] and dx [N, in] share memory",
            ),
            (
                |layers, _| layers[1].dx = layers[1].dx.part(0..32).unwrap(),
                "dx [N, in] has 32 values, not 64",
            ),
            (|layers, _| layers[0].dy = layers[0].weight.alias(), "dy [N, out] has 4096 values, not 64"),
            (|layers, dy| layers[0].weight = dy.alias(), "W [out, in] has 64 values, not 4096"),
        ] {
            let alias = |layer: &LayerInput| LayerInput {
                dx: layer.dx.alias(),
                dy: layer.dy.alias(),
                weight: layer.weight.alias(),
            };
            let mut spoiled: Vec<LayerInput> = layers.iter().take(2).map(alias).collect();
            spoil(&mut spoiled, &dy);
            let error = of(&mut spoiled).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    })
    .unwrap();
}
