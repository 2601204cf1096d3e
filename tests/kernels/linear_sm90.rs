//! Wide linear layers by matrix instructions of warpgroups.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{
    LINEAR_LAYERS, LINEAR_SM90_COLUMNS, LINEAR_SM90_ROWS, LinearBackwardInput, LinearBackwardInputWgmma,
    LinearBackwardWeights, LinearBackwardWeightsWgmma, LinearForward, LinearForwardWgmma, LinearWeights,
    LinearWeightsMaps,
};
use setrank::device::choice::MatrixKernels;
use setrank::device::{Boxes, Buffer, Gpu, Limits, TensorMap};
use setrank::ops::check::Deviation;
use setrank::ops::linear::check::warpgroups::{group, problems};
use setrank::ops::linear::check::{InputFinish, Problem, Product};
use setrank::ops::linear::{
    Activation, BlockSize, DeviceLinear, InputGradient, LayerGradients, Layout, LinearShape, WeightsPlan,
    linear_backward_input, linear_backward_weights, linear_backward_weights_by, linear_forward,
};
use setrank::ops::partial_sums::PendingSums;
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::{self, Config, Sums};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::{Launch, panels_map};

use crate::attention::counted::row;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::linear::{LAYERS, deviations_of_layers, rows_stored_behind_the_last};
use crate::warpgroups::{
    UNWRITTEN, a_block_that_exits_too_early, a_shared_operand_for_one_block, fewer_bytes_than_come,
    mbarriers_that_copies_do_not_see, mbarriers_that_the_other_block_has_not_made,
    operands_that_are_replaced, operands_that_one_block_alone_gets_back, the_first_blocks_rows_for_both,
    the_other_phase,
};

ladder!(FAMILY, of_sm_90);

pub const FAMILY: Family =
    Family { name: "linear_sm90", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

const FORWARD: &str = "linear_wgmma_forward";
const INPUT: &str = "linear_wgmma_backward_input";
const WEIGHTS: &str = "linear_wgmma_weights";

const BUGS: [Bug; 36] = [
    mbarriers_that_copies_do_not_see(""),
    mbarriers_that_the_other_block_has_not_made(""),
    a_block_that_exits_too_early(""),
    the_other_phase(""),
    fewer_bytes_than_come(""),
    operands_that_are_replaced(""),
    operands_that_one_block_alone_gets_back(""),
    Bug {
        what: "operands that are kept",
        file: "wide_sm90.cuh",
        right: "        ring.release();\n        ring.advance();\n",
        wrong: "        ring.advance();\n",
        kernels: "",
        found_by: &["deadlock"],
    },
    Bug {
        what: "operands that are given back before they are multiplied",
        file: "wide_sm90.cuh",
        right: "        ptx::wgmma_wait<0>(results[0]);\n        if constexpr (SUMS) ptx::wgmma_wait<0>(sums);\n        ring.release();\n",
        wrong: "        ring.release();\n        ptx::wgmma_wait<0>(results[0]);\n        if constexpr (SUMS) ptx::wgmma_wait<0>(sums);\n",
        kernels: "",
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "results that are not waited for",
        file: "wide_sm90.cuh",
        right: "ptx::wgmma_wait<0>(results[0]);",
        wrong: "ptx::wgmma_wait<1>(results[0]);",
        kernels: "",
        found_by: &["of these results is still under way"],
    },
    Bug {
        what: "registers that are not fenced",
        file: "wide_sm90.cuh",
        right: "        ptx::wgmma_fence(results[0]);\n",
        wrong: "",
        kernels: "",
        found_by: &["wgmma_fence has not had the registers of d"],
    },
    Bug {
        what: "sums that are not fenced",
        file: "wide_sm90.cuh",
        right: "        if constexpr (SUMS) ptx::wgmma_fence(sums);\n",
        wrong: "",
        kernels: WEIGHTS,
        found_by: &["wgmma_fence has not had the registers of d"],
    },
    Bug {
        what: "ones that products may not see",
        file: "wide_sm90.cuh",
        right: "        ptx::fence_proxy_async();\n",
        wrong: "",
        kernels: WEIGHTS,
        found_by: &["which has not called fence_proxy_async since"],
    },
    Bug {
        what: "too few ones",
        file: "wide_sm90.cuh",
        right: "thread < ONES_BYTES / 16",
        wrong: "thread < ONES_BYTES / 32",
        kernels: WEIGHTS,
        found_by: &[UNWRITTEN],
    },
    Bug {
        what: "a block's own operand for both",
        file: "wide_sm90.cuh",
        right: "ptx::tensor_load(at(), map, 0, row, panel, full(), 1 << ptx::cluster_rank());",
        wrong: "ptx::tensor_load(at(), map, 0, row, panel, full(), ALL_BLOCKS);",
        kernels: "",
        found_by: &["bytes more than it expects", "under way", "is overwritten while", UNWRITTEN],
    },
    a_shared_operand_for_one_block(""),
    Bug {
        what: "both parts of the columns' operand in the place of one",
        file: "wide_sm90.cuh",
        right: "at() + OWN + ptx::cluster_rank() * PART;",
        wrong: "at() + OWN + PART;",
        kernels: "",
        found_by: &[UNWRITTEN, "under way", "is overwritten while"],
    },
    Bug {
        what: "the first 16 of the inner dimension for the next",
        file: "wide_sm90.cuh",
        right: "k / 2 * second + k % 2 * next;",
        wrong: "k / 2 * second;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first slot for all steps",
        file: "wide_sm90.cuh",
        right: "units(ring.offset());",
        wrong: "units(0);",
        kernels: "",
        found_by: &[WRONG_RESULTS, "under way", UNWRITTEN, "is overwritten while"],
    },
    Bug {
        what: "the columns of a tile for those of the next",
        file: "wide_sm90.cuh",
        right: "units(STEP / 16 * bytes) << 16;",
        wrong: "units(bytes) << 16;",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the weights of a tile for those of the next",
        file: "wide_sm90.cuh",
        right: "units(STEP / 16 * bytes) << 16;",
        wrong: "units(bytes) << 16;",
        kernels: INPUT,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the other block's weights",
        file: "linear_sm90.cu",
        right: "place.panel() * 64, step);",
        wrong: "place.column, step);",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    the_first_blocks_rows_for_both(FORWARD),
    Bug {
        what: "what finishes a gradient in the place of operands that others still read",
        file: "wide_sm90.cuh",
        right: "{ ptx::barrier_sync(1, MULTIPLIERS * GROUP); }",
        wrong: "{}",
        kernels: INPUT,
        found_by: &[
            "is overwritten while a wgmma_m64k16_bf16 reads it",
            "under way",
            "fence_proxy_async",
            WRONG_RESULTS,
        ],
    },
    Bug {
        what: "a bias of other columns",
        file: "linear_sm90.cu",
        right: "layer.bias + place.column",
        wrong: "layer.bias",
        kernels: FORWARD,
        found_by: &[WRONG_RESULTS],
    },
    rows_stored_behind_the_last(FORWARD, &["store_global of 16 bytes at byte"]),
    Bug {
        what: "what finishes a gradient read before it is there",
        file: "linear_sm90.cu",
        right: "        ptx::cp_async_wait<0>();\n",
        wrong: "",
        kernels: INPUT,
        found_by: &["is under way"],
    },
    Bug {
        what: "a mask in the place of what others still add",
        file: "linear_sm90.cu",
        right: "        // The next matrix takes its place.\n        ptx::sync_warp();\n",
        wrong: "",
        kernels: INPUT,
        found_by: &["is under way", WRONG_RESULTS],
    },
    Bug {
        what: "rows of the next part",
        file: "linear_sm90.cu",
        right: "end = min(layer.rows, first + layer.rows_of_part)",
        wrong: "end = layer.rows",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first block's outputs for both",
        file: "linear_sm90.cu",
        right: "(pair / columns * BLOCKS + rank) * ROWS;",
        wrong: "pair / columns * BLOCKS * ROWS;",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "outputs of other panels",
        file: "linear_sm90.cu",
        right: "ring.load_left(maps.dy, row, output / width);",
        wrong: "ring.load_left(maps.dy, row, output / 64);",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the other block's inputs",
        file: "linear_sm90.cu",
        right: "input / 64 + rank * (PART / TILE));",
        wrong: "input / 64);",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "narrow panels as wide ones",
        file: "wide_sm90.cuh",
        right: "narrow ? operand(Tile<32>{at}) : operand(Tile<64>{at})",
        wrong: "operand(Tile<64>{at})",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS, "where its units of permuted pieces are to begin"],
    },
    Bug {
        what: "the outputs of one warpgroup for both",
        file: "linear_sm90.cu",
        right: "in_columns(multiplier() * TILE, width == 32)",
        wrong: "in_columns(0, width == 32)",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients of a bias in the place of other outputs",
        file: "linear_sm90.cu",
        right: "layer.d_bias + part * outputs + of_warp",
        wrong: "layer.d_bias + part * outputs + output",
        kernels: WEIGHTS,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "what other lanes have copied read before they say so",
        file: "linear_sm90.cu",
        right: "        ptx::cp_async_wait<0>();\n        ptx::sync_warp();\n",
        wrong: "        ptx::cp_async_wait<0>();\n",
        kernels: INPUT,
        found_by: &[WRONG_RESULTS, "is under way"],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::a_cluster_too_few(""),
    WrongLaunch::a_block_too_many("", &["no multiple of its clusters' 2"]),
    WrongLaunch::too_little_shared_memory(""),
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(4096),
        kernels: "",
        found_by: &["of `x` of 4096 bytes", "of `dy` of 4096 bytes"],
    },
];

/// A matrix's tensor map.
pub fn map(Boxes { panels, size: [box_panels, box_rows] }: Boxes) -> TensorMap {
    let sizes = [panels.count, panels.rows, panels.width];
    panels_map(sizes, [panels.stride, panels.row_stride], [box_panels, box_rows, panels.width as u32])
}

/// A product that warpgroups compute.
struct ByWarpgroups(Problem);

impl family::Problem for ByWarpgroups {
    fn launch(&self, _limits: &Limits) -> Launch {
        let ByWarpgroups(problem) = self;
        let (plan, LinearShape { rows, inputs, outputs }) = (problem.plan().unwrap(), problem.shape);
        let (dy, weight) = (given(&problem.laid_out(&problem.dy)), given(&problem.weight));
        match problem.product {
            Product::Forward(activation) => {
                let at = offset_of!(LinearForwardWgmma, layer);
                let buffers = vec![
                    (offset_of!(LinearForwardWgmma, x), "x", given(&problem.x)),
                    (offset_of!(LinearForwardWgmma, weight), "weight", weight),
                    (at + offset_of!(LinearForward, bias), "bias", given(&problem.bias)),
                    (at + offset_of!(LinearForward, y), "y", poisoned::<bf16>(rows * outputs)),
                ];
                let maps = plan.forward_boxes().map(map);
                let parameter = LinearForwardWgmma::new(maps, plan.forward_numbers(activation));
                family::launch(plan.forward(problem.blocks).unwrap(), &parameter, buffers)
            }
            Product::Input(finish) => {
                let at = offset_of!(LinearBackwardInputWgmma, layer);
                let mut buffers = vec![
                    (offset_of!(LinearBackwardInputWgmma, dy), "dy", dy),
                    (offset_of!(LinearBackwardInputWgmma, weight), "weight", weight),
                    (at + offset_of!(LinearBackwardInput, dx), "dx", poisoned::<bf16>(rows * inputs)),
                ];
                if finish.adds() {
                    let added = given(&problem.added);
                    buffers.push((at + offset_of!(LinearBackwardInput, added), "added", added));
                }
                if finish.masks() {
                    let mask = given(&problem.mask);
                    buffers.push((at + offset_of!(LinearBackwardInput, mask), "mask", mask));
                }
                let maps = plan.input_boxes().map(map);
                let parameter = LinearBackwardInputWgmma::new(maps, plan.backward_input_numbers());
                family::launch(plan.backward_input(problem.blocks).unwrap(), &parameter, buffers)
            }
            Product::InputAdded | Product::Weights => panic!("other launches are of these"),
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        family::Problem::deviations(&self.0, launch)
    }
}

/// Layers whose parameters' gradients warpgroups compute at once.
struct Group<const COUNT: usize> {
    layers: [Problem; COUNT],
    /// Rows of a part of each; the plan's where there is none.
    rows_of_part: Option<usize>,
}

impl<const COUNT: usize> family::Problem for Group<COUNT> {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = WeightsPlan::new(self.layers.iter().map(|problem| (problem.shape, problem.layout)));
        let plan = plan.unwrap();
        let mut products = plan.numbers();
        let mut launch = plan.launch(MatrixKernels::Wgmma).unwrap();
        let mut maps = [[[0; 16]; 2]; LINEAR_LAYERS as usize];
        let (mut buffers, mut blocks) = (Vec::new(), 0);
        for (number, problem) in self.layers.iter().enumerate() {
            let LinearShape { rows, inputs, outputs } = problem.shape;
            let of_layer = &mut products.layers[number];
            if let Some(rows) = self.rows_of_part {
                (of_layer.rows_of_part, of_layer.first_block) = (rows as i32, blocks);
            }
            let parts = rows.div_ceil(of_layer.rows_of_part as usize);
            let tiles = (inputs as u32 / LINEAR_SM90_COLUMNS) * (outputs as u32 / LINEAR_SM90_ROWS);
            blocks += (parts * tiles as usize) as i32;
            maps[number] = plan.boxes(number).map(map);
            let of_maps =
                offset_of!(LinearBackwardWeightsWgmma, maps) + number * size_of::<LinearWeightsMaps>();
            let at = offset_of!(LinearBackwardWeightsWgmma, products)
                + offset_of!(LinearBackwardWeights, layers)
                + number * size_of::<LinearWeights>();
            let [dy, x, d_weight, d_bias] = LAYERS[number];
            let of_dy = given(&problem.laid_out(&problem.dy));
            buffers.extend([
                (of_maps + offset_of!(LinearWeightsMaps, dy), dy, of_dy),
                (of_maps + offset_of!(LinearWeightsMaps, x), x, given(&problem.x)),
                (
                    at + offset_of!(LinearWeights, d_weight),
                    d_weight,
                    poisoned::<f32>(parts * outputs * inputs),
                ),
                (at + offset_of!(LinearWeights, d_bias), d_bias, poisoned::<f32>(parts * outputs)),
            ]);
        }
        launch.grid = [blocks as u32, 1, 1];
        family::launch(launch, &LinearBackwardWeightsWgmma::new(maps, products), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        deviations_of_layers(launch, &self.layers)
    }
}

/// Of a full block and one with a row more than a warpgroup has; and of parts with a step more than are on their way at once, one
/// that ends in the middle of a step, and one of a row.
fn cases() -> Vec<Case> {
    let case = |problem| Case::new(Limits::SM_90, ByWarpgroups(problem));
    let of_weights = Group { layers: group([330, 70, 1], 1), rows_of_part: Some(320) };
    problems(193, 1).into_iter().map(case).chain([Case::new(Limits::SM_90, of_weights)]).collect()
}

fn counted() -> Vec<Counted> {
    let of = |product, layout, [inputs, outputs]: [usize; 2]| {
        let shape = LinearShape { rows: 1280, inputs, outputs };
        let problem = Problem::random(shape, layout, product, 1).by(BlockSize::Warpgroups);
        let problem: Box<dyn family::Problem> = match product {
            Product::Weights => Box::new(Group { layers: [problem], rows_of_part: None }),
            _ => Box::new(ByWarpgroups(problem)),
        };
        Counted {
            shape: format!("1280x{inputs}x{outputs}"),
            problem,
            useful_products: (1280 * inputs * outputs) as f64 / 2048.0,
        }
    };
    vec![
        of(Product::Forward(Activation::Relu), Layout::Heads { width: 32 }, [256, 768]),
        of(Product::Input(InputFinish::Added), Layout::Heads { width: 32 }, [256, 768]),
        of(Product::Weights, Layout::Rows, [256, 1024]),
    ]
}

/// By what is counted: products without padding but for the sums of a bias; two thirds of the operands that blocks of warps ask
/// for, besides what each result asks of bias and added gradient; and about a cycle of shared memory a product, besides what of
/// each goes by way of it.
#[test]
fn counters_reach_their_aims() {
    for (kernel, of_warps, shape, results, [asked, asked_by_warps, by_way], most) in [
        (FORWARD, "linear_wide_forward", "1280x256x768", 1280.0 * 768.0, [0.25, 0.0625, 0.0], 1.01),
        (INPUT, "linear_wide_backward_input", "1280x256x768", 1280.0 * 256.0, [2.0, 2.0, 4.0], 1.01),
        // Every block sums up a bias's gradient, of operands that are read again for it.
        (WEIGHTS, "linear_wide_weights", "1280x256x1024", 256.0 * 1024.0, [0.0; 3], 1.11),
    ] {
        let (found, of_warps) = (row(kernel, shape), row(of_warps, shape));
        let share = (found.requested - asked * results) / (of_warps.requested - asked_by_warps * results);
        assert!(share <= 0.67, "{kernel}: {share} of what {of_warps:?} asks for");
        let wavefronts = found.wavefronts - by_way * results / 128.0;
        assert!(wavefronts <= most * found.products, "{kernel}: {wavefronts} wavefronts");
        assert!(found.products <= of_warps.products, "{kernel}: {} products", found.products);
        assert!(found.conflicts <= 1.01, "{kernel}: {}", found.conflicts);
    }
}

/// One row, and a row more and less than warpgroups, blocks and parts have.
#[test]
fn any_number_of_rows() {
    for rows in [1, 63, 64, 65, 127, 128, 129, 257, 500] {
        let of_layers = problems(rows, 2).map(|problem| Case::new(Limits::SM_90, ByWarpgroups(problem)));
        let of_weights = Group { layers: group([rows; 3], 2), rows_of_part: None };
        for case in of_layers.into_iter().chain([Case::new(Limits::SM_90, of_weights)]) {
            let mut launch = case.launch();
            emulate::run(&Kernels::repository(), &mut launch, &Config::default().workers(2))
                .unwrap_or_else(|report| panic!("{rows} rows: {report}"));
            assert_eq!(case.wrong(&launch), [], "{rows} rows, {}", launch.kernel);
        }
    }
}

/// Where cards add both alike, the bits are those of blocks of warps.
#[test]
fn results_are_those_of_the_kernels_of_warps() {
    for (rows, finish) in [(1, InputFinish::Plain), (129, InputFinish::Added), (257, InputFinish::Masked)] {
        for mut problem in problems(rows, 3) {
            if matches!(problem.product, Product::Input(_)) {
                problem.product = Product::Input(finish);
            }
            let result = if matches!(problem.product, Product::Forward(_)) { "y" } else { "dx" };
            let by_warps = problem.by(BlockSize::Wide);
            let expected = family::bytes(&family::emulated(&by_warps, Sums::Nearest), result);
            let by_warpgroups = ByWarpgroups(by_warps.by(BlockSize::Warpgroups));
            let found = family::bytes(&family::emulated(&by_warpgroups, Sums::Nearest), result);
            assert!(found == expected, "{rows} rows, {:?}", by_warpgroups.0.product);
        }
    }
    let layers = || group([300, 70, 1], 3);
    let expected = family::emulated(&crate::linear::Group(layers()), Sums::Nearest);
    let found = family::emulated(&Group { layers: layers(), rows_of_part: None }, Sums::Nearest);
    for [_, _, d_weight, d_bias] in LAYERS {
        for name in [d_weight, d_bias] {
            assert!(family::bytes(&found, name) == family::bytes(&expected, name), "{name}");
        }
    }
}

/// What is not finite in a row stays in it, and a NaN is not masked by a ReLU.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let shape = LinearShape { rows: 130, inputs: 64, outputs: 256 };
    let product = Product::Forward(Activation::Relu);
    let mut problem = Problem::random(shape, Layout::Rows, product, 3).by(BlockSize::Warpgroups);
    problem.x[64 * 7 + 5] = bf16::NAN;
    problem.x[64 * 129 + 1] = bf16::INFINITY;
    let launch = family::emulated(&ByWarpgroups(problem), Sums::Hopper);
    for (at, y) in family::result::<bf16>(&launch, "y").chunks(256).enumerate() {
        match at {
            7 => assert!(y.iter().all(|y| y.is_nan())),
            129 => assert!(y.iter().all(|y| *y == bf16::ZERO || *y == bf16::INFINITY)),
            _ => assert!(y.iter().all(|y| y.is_finite()), "row {at}"),
        }
    }
}

#[test]
fn cards_without_such_instructions_are_refused() {
    let compute_capability = (8, 0);
    driver::with(&Configuration { compute_capability, ..Configuration::default() }, |_| {
        let gpu = Gpu::new(0).unwrap();
        let refused = "compute capability 8.0, but kernels by wgmma run on 9.0 alone";
        for problem in problems(1, 1) {
            let error = problem.solve(&gpu).unwrap_err().to_string();
            assert!(error.contains(refused), "{error}");
        }
        let mut arena = gpu.arena("a layer", 1 << 21).unwrap();
        let shape = LinearShape { rows: 1, inputs: 256, outputs: 256 };
        let layer = LayerGradients {
            gradients: [arena.take(256 * 256).unwrap(), arena.take(256).unwrap()],
            dy: arena.take(256).unwrap(),
            layout: Layout::Rows,
            x: arena.take(256).unwrap(),
            shape,
        };
        let scratch = arena.take(WeightsPlan::scratch_len_of(&[shape])).unwrap();
        let error = PendingSums::of(&gpu, &scratch, |sums| {
            linear_backward_weights_by(&gpu, MatrixKernels::Wgmma, &[layer], sums)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains(refused), "{error}");
    })
    .unwrap();
}

/// Layers of a GPU for which warpgroups are asked, launched by its own choice: one of them has no rows.
#[test]
fn a_gpu_takes_them_where_they_are_asked_for() {
    driver::with(&Configuration { multiprocessors: Some(1), ..Configuration::default() }, |_| {
        let gpu = Gpu::new(0).unwrap().with_wgmma().unwrap();
        let mut arena = gpu.arena("layers", 1 << 24).unwrap();
        let shape = LinearShape { rows: 70, inputs: 256, outputs: 256 };
        let mut one = |len: usize| {
            let mut buffer: Buffer<bf16> = arena.take(len).unwrap();
            gpu.upload(&mut buffer, &vec![bf16::ONE; len]).unwrap();
            buffer
        };
        let [x, dy, weight] = [one(70 * 256), one(70 * 256), one(256 * 256)];
        let [no_x, no_dy] = [(); 2].map(|()| x.part(0..0).unwrap());
        let mut bias: Buffer<f32> = arena.take(256).unwrap();
        gpu.upload(&mut bias, &[0.5; 256]).unwrap();
        let [mut y, mut dx] = [(); 2].map(|()| arena.take::<bf16>(70 * 256).unwrap());
        let gradients = [(); 2].map(|()| [arena.take::<f32>(256 * 256).unwrap(), arena.take(256).unwrap()]);
        let empty = LinearShape { rows: 0, ..shape };
        let scratch = arena.take(WeightsPlan::scratch_len_of(&[empty, shape])).unwrap();
        let [of_none, mut of_some] = gradients;
        of_some.iter_mut().for_each(|buffer| gpu.zero(buffer).unwrap());
        let layout = Layout::Rows;
        gpu.start_profile();
        let layer = DeviceLinear { weight: &weight, bias: &bias };
        linear_forward(&gpu, &mut y, layout, &x, layer, Activation::Identity, shape).unwrap();
        linear_backward_input(&gpu, &mut dx, &dy, layout, &weight, InputGradient::PLAIN, shape).unwrap();
        let layers = [
            LayerGradients { gradients: of_none, dy: no_dy, layout, x: no_x, shape: empty },
            LayerGradients { gradients: of_some, dy, layout, x, shape },
        ];
        PendingSums::of(&gpu, &scratch, |sums| linear_backward_weights(&gpu, &layers, sums)).unwrap();
        let launched = gpu.end_profile().unwrap();
        for kernel in [FORWARD, INPUT, WEIGHTS] {
            assert!(launched.iter().any(|time| time.kernel == kernel), "{kernel}: {launched:?}");
        }
        let [d_weight, d_bias] = &layers[1].gradients;
        assert_eq!(gpu.download(&y).unwrap(), [bf16::from_f32(256.5); 70 * 256]);
        assert_eq!(gpu.download(&dx).unwrap(), [bf16::from_f32(256.0); 70 * 256]);
        assert_eq!(gpu.download(d_weight).unwrap(), [70.0; 256 * 256]);
        assert_eq!(gpu.download(d_bias).unwrap(), [70.0; 256]);
    })
    .unwrap();
}
