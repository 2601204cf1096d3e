//! LayerNorm and the linear layer behind it in one kernel.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::NormLinear;
use setrank::device::choice::Fusion;
use setrank::device::{Buffer, DeviceError, Element, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::layer_norm::DeviceNorm;
use setrank::ops::linear::{Activation, BlockSize, DeviceLinear, Layout, LinearShape};
use setrank::ops::norm_linear::check::{Problem, answer, problems};
use setrank::ops::norm_linear::{NormForward, norm_linear_forward, norm_linear_forward_by};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::feed_forward::{a_period_left_out, added_rows_of_the_first_block, rows_behind_the_last};
use crate::ladder::ladder;
use crate::layer_norm::ForwardOf;
use crate::linear::rows_stored_behind_the_last;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "norm_linear", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let (norm, layer) = (&self.norm, &self.layer);
        let LinearShape { rows, inputs, outputs } = layer.shape;
        let buffers = vec![
            (offset_of!(NormLinear, x), "x", given(&norm.x)),
            (offset_of!(NormLinear, added), "added", given(&norm.added)),
            (offset_of!(NormLinear, scale), "scale", given(&norm.weight)),
            (offset_of!(NormLinear, shift), "shift", given(&norm.bias)),
            (offset_of!(NormLinear, statistics), "statistics", poisoned::<f32>(2 * rows)),
            (offset_of!(NormLinear, normalized), "normalized", poisoned::<bf16>(rows * inputs)),
            (offset_of!(NormLinear, weight), "weight", given(&layer.weight)),
            (offset_of!(NormLinear, bias), "bias", given(&layer.bias)),
            (offset_of!(NormLinear, y), "y", poisoned::<bf16>(rows * outputs)),
        ];
        let plan = self.plan().unwrap();
        let launch = plan.launch(layer.blocks).unwrap().expect("a problem has rows");
        family::launch(launch, &plan.numbers(norm.period(), norm.eps, self.activation), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let wide = |name| family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect();
        let statistics: Vec<f64> =
            family::result::<f32>(launch, "statistics").into_iter().map(f64::from).collect();
        self.deviations(&answer(wide("normalized"), &statistics, wide("y")))
    }
}

const BUGS: [Bug; 12] = [
    Bug {
        what: "rows that others may not have put there",
        file: "norm_linear.cu",
        right: "    ptx::barrier();\n",
        wrong: "",
        kernels: "",
        found_by: &["is read before anything is written to it", "is under way", WRONG_RESULTS],
    },
    Bug {
        what: "weights that are not waited for",
        file: "norm_linear.cu",
        right: "    ptx::cp_async_wait<0>();\n",
        wrong: "",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "the first 64 columns of weights for all",
        file: "norm_linear.cu",
        right: "weight.columns(place.column, k * 64)",
        wrong: "weight.columns(place.column, 0)",
        kernels: "norm_linear_16_c128",
        found_by: &[WRONG_RESULTS],
    },
    a_period_left_out("norm_linear_16_c64", &["of `added` of"]),
    added_rows_of_the_first_block("norm_linear_16_c64"),
    rows_behind_the_last("norm_linear_16_c64", &["of `x` of"]),
    rows_stored_behind_the_last("", &["store_global of 8 bytes at byte", WRONG_RESULTS]),
    Bug {
        what: "statistics behind the last",
        file: "norm_rows.cuh",
        right: "lane < NORM_ROWS && row + lane < stored",
        wrong: "lane < NORM_ROWS",
        kernels: "norm_linear_16_c64",
        found_by: &["of `statistics` of"],
    },
    Bug {
        what: "LayerNorm's rows of the first block for all",
        file: "norm_linear.cu",
        right: "NormRows<C, OF_WARP>{place.row,",
        wrong: "NormRows<C, OF_WARP>{0,",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "LayerNorm's rows that are not stored",
        file: "norm_linear.cu",
        right: "place.column == 0 ? valid : 0",
        wrong: "place.column == 64 ? valid - 1 : 0",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first 64 columns of LayerNorm's rows for all",
        file: "norm_linear.cu",
        right: "Tiles::rows(k), 0",
        wrong: "Tiles::rows(0), 0",
        kernels: "norm_linear_16_c128",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "LayerNorm's rows where weights come in",
        file: "norm_linear.cu",
        right: "C / 64 * WEIGHT + number * ROW",
        wrong: "number * ROW",
        kernels: "norm_linear_32_c256",
        found_by: &["is under way", WRONG_RESULTS],
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
    problems(45, 1).into_iter().map(|problem| Case::new(Limits::SM_90, problem)).collect()
}

fn counted() -> Vec<Counted> {
    [(BlockSize::Few, 500, 1024), (BlockSize::Fewest, 100, 768)]
        .map(|(blocks, rows, outputs)| {
            let shape = LinearShape { rows, inputs: 256, outputs };
            let problem = Problem::random(shape, rows, (blocks, Activation::Relu, Layout::Rows), 1);
            let useful_products = (rows * 256 * outputs) as f64 / 2048.0;
            Counted { shape: format!("{rows}x256x{outputs}"), problem: Box::new(problem), useful_products }
        })
        .into()
}

/// All bits are those of LayerNorm and of a layer of its rows, at any number of rows.
#[test]
fn results_are_those_of_two_kernels() {
    for (rows, sums) in
        [1, 15, 16, 17, 31, 32, 33, 127].into_iter().zip([Sums::Hopper, Sums::Ampere].into_iter().cycle())
    {
        for problem in problems(rows, 2) {
            let found = family::emulated(&problem, sums);
            let of_norm = family::emulated(&ForwardOf(problem.norm.clone()), sums);
            let normalized = family::result::<bf16>(&of_norm, "y");
            let what = format!("{rows} rows, {}", found.kernel);
            assert!(family::result::<bf16>(&found, "normalized") == normalized, "{what}: LayerNorm's rows");
            assert_eq!(family::bytes(&found, "statistics"), family::bytes(&of_norm, "statistics"), "{what}");
            let of_layer = family::emulated(&problem.layer.of(normalized).by(BlockSize::Many), sums);
            assert_eq!(family::bytes(&found, "y"), family::bytes(&of_layer, "y"), "{what}");
        }
    }
}

/// One launch of few narrow rows, two of others and without fusion.
#[test]
fn it_is_one_launch_where_rows_are_few() {
    for (multiprocessors, fuse, rows, width, launches) in [
        (132, Fusion::All, 20, 128, 1),
        (132, Fusion::Attention, 20, 128, 2),
        (132, Fusion::All, 20, 320, 2),
        (1, Fusion::All, 20, 128, 2),
        (132, Fusion::All, 0, 128, 0),
    ] {
        let multiprocessors = Some(multiprocessors);
        driver::with(&Configuration { multiprocessors, ..Configuration::default() }, |driver| {
            let gpu = Gpu::new(0).unwrap().with_fusion(fuse);
            let before = driver.counters().launches;
            Operands::new(&gpu, rows, width).compute(&gpu, None).unwrap();
            assert_eq!(driver.counters().launches - before, launches, "{fuse:?}, {rows} rows of {width}");
        })
        .unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    driver::with(&Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        let of = |spoil: fn(&mut Operands), blocks| {
            let mut operands = Operands::new(&gpu, 2, 64);
            spoil(&mut operands);
            operands.compute(&gpu, Some(blocks))
        };
        of(|_| (), BlockSize::Few).unwrap();
        for (spoil, blocks, says) in [
            (
                (|operands| operands.shape.inputs = 320) as fn(&mut Operands),
                BlockSize::Few,
                "LayerNorm and a linear layer in one kernel: rows of at most 256 values, not 320",
            ),
            (|_| (), BlockSize::Many, "blocks of 16 or 32 rows, not 128"),
            (|operands| shorten(&mut operands.added), BlockSize::Few, "added [period, C] has 32 values"),
            (|operands| operands.shape.outputs = 64, BlockSize::Few, "W [out, C] has 8192 values, not 4096"),
            (|operands| shorten(&mut operands.x), BlockSize::Few, "x [rows, C] has 64 values, not 128"),
            (|operands| shorten(&mut operands.scale), BlockSize::Few, "γ [C] has 32 values, not 64"),
            (|operands| shorten(&mut operands.bias), BlockSize::Few, "b [out] has 64 values, not 128"),
            (|operands| shorten(&mut operands.statistics), BlockSize::Few, "statistics [rows, 2] has 2"),
            (|operands| shorten(&mut operands.y), BlockSize::Few, "y [rows, out] has 128 values, not 256"),
            (|operands| operands.rows = operands.x.alias(), BlockSize::Few, "share memory"),
            (|operands| operands.y = operands.weight.part(0..256).unwrap(), BlockSize::Few, "share memory"),
        ] {
            let error = of(spoil, blocks).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}

fn shorten<T: Element>(buffer: &mut Buffer<T>) {
    *buffer = buffer.part(0..buffer.len() / 2).unwrap();
}

/// LayerNorm, whose added rows are one that comes again, and a layer with 128 outputs.
struct Operands {
    x: Buffer<bf16>,
    added: Buffer<bf16>,
    rows: Buffer<bf16>,
    weight: Buffer<bf16>,
    y: Buffer<bf16>,
    scale: Buffer<f32>,
    statistics: Buffer<f32>,
    bias: Buffer<f32>,
    shape: LinearShape,
}

impl Operands {
    fn new(gpu: &Gpu, rows: usize, width: usize) -> Self {
        let mut arena = gpu.arena("LayerNorm and a layer", 1 << 20).unwrap();
        let outputs = 128;
        let mut bf16s = |len| arena.take(len).unwrap();
        let [x, normalized] = [(); 2].map(|()| bf16s(rows * width));
        let (added, weight, y) = (bf16s(width), bf16s(outputs * width), bf16s(rows * outputs));
        let mut f32s = |len| arena.take(len).unwrap();
        let (scale, statistics, bias) = (f32s(width), f32s(2 * rows), f32s(outputs));
        let shape = LinearShape { rows, inputs: width, outputs };
        Operands { x, added, rows: normalized, weight, y, scale, statistics, bias, shape }
    }

    /// By these blocks, or as it chooses.
    fn compute(&mut self, gpu: &Gpu, blocks: Option<BlockSize>) -> Result<(), DeviceError> {
        let Operands { x, added, rows, weight, y, scale, statistics, bias, shape } = self;
        let norm = DeviceNorm { weight: scale, bias: scale, eps: 1e-5 };
        let before = NormForward { rows, statistics, x, added, norm };
        let (layer, layout, activation) = (DeviceLinear { weight, bias }, Layout::Rows, Activation::Relu);
        match blocks {
            Some(blocks) => norm_linear_forward_by(gpu, blocks, before, y, layout, layer, activation, *shape),
            None => norm_linear_forward(gpu, before, y, layout, layer, activation, *shape),
        }
    }
}
