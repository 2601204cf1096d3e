//! The row-wise network in one kernel.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{FeedForward, FeedForwardProjection, FeedForwardScale, LinearForward};
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::feed_forward::check::{Problem, SHAPES, projecting};
use setrank::ops::feed_forward::{Blocks, FeedForwardShape, Kept, Projection, feed_forward};
use setrank::ops::layer_norm::DeviceNorm;
use setrank::ops::linear::{Activation, BlockSize, DeviceLinear, Layout, LinearPlan, LinearShape};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::attention::counted::row;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::layer_norm;
use crate::linear::rows_stored_behind_the_last;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "feed_forward", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

/// The numbers of a launch's parameter.
pub fn numbers(problem: &Problem) -> FeedForward {
    let (shape, period) = (problem.shape, problem.before.period());
    let numbers = shape.numbers(period, problem.eps());
    match &problem.projection {
        Some(layer) => shape.projecting(numbers, layer.outputs(), layer.layout, layer.activation).unwrap(),
        None => numbers,
    }
}

/// The buffers of a launch whose parameter has a `FeedForward` at byte `network` of it, and pointers to weights at these, fc1's,
/// fc2's and a projection's.
pub fn buffers(
    problem: &Problem,
    network: usize,
    weights: [usize; 3],
) -> Vec<(usize, &'static str, Vec<u8>)> {
    let (shape, norm) = (problem.shape, &problem.before);
    let [before, behind] = [offset_of!(FeedForward, before), offset_of!(FeedForward, behind)];
    let [scale, shift] = [offset_of!(FeedForwardScale, scale), offset_of!(FeedForwardScale, shift)];
    let statistics = offset_of!(FeedForwardScale, statistics);
    let mut buffers = vec![
        (offset_of!(FeedForward, x), "x", given(&norm.x)),
        (offset_of!(FeedForward, bias1), "bias1", given(&problem.biases[0])),
        (offset_of!(FeedForward, bias2), "bias2", given(&problem.biases[1])),
        (offset_of!(FeedForward, added), "added", given(&norm.added)),
        (before + scale, "scale before", given(&norm.weight)),
        (before + shift, "shift before", given(&norm.bias)),
        (before + statistics, "statistics before", poisoned::<f32>(2 * shape.rows)),
        (behind + scale, "scale", given(&problem.norm[0])),
        (behind + shift, "shift", given(&problem.norm[1])),
        (behind + statistics, "statistics", poisoned::<f32>(2 * shape.rows)),
        (offset_of!(FeedForward, y), "y", poisoned::<bf16>(shape.values())),
    ];
    if problem.keeps {
        let (attended, output) = (offset_of!(FeedForward, attended), offset_of!(FeedForward, output));
        buffers.push((attended, "attended", poisoned::<bf16>(shape.values())));
        buffers.push((output, "output", poisoned::<bf16>(shape.values())));
    }
    if let Some(layer) = &problem.projection {
        let begin = offset_of!(FeedForward, projection);
        let [bias, out] = [offset_of!(FeedForwardProjection, bias), offset_of!(FeedForwardProjection, out)];
        buffers.push((begin + bias, "the projection's bias", given(&layer.bias)));
        buffers.push((begin + out, "projection", poisoned::<bf16>(shape.rows * layer.outputs())));
    }
    buffers.iter_mut().for_each(|(at, ..)| *at += network);
    let [weight1, weight2, of_projection] = weights;
    buffers.push((weight1, "weight1", given(&problem.weights[0])));
    buffers.push((weight2, "weight2", given(&problem.weights[1])));
    if let Some(layer) = &problem.projection {
        buffers.push((of_projection, "the projection's weight", given(&layer.weight)));
    }
    buffers
}

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let of_projection = offset_of!(FeedForward, projection) + offset_of!(FeedForwardProjection, weight);
        let weights = [offset_of!(FeedForward, weight1), offset_of!(FeedForward, weight2), of_projection];
        let plan = self.shape.plan(self.blocks).expect("a problem has rows");
        family::launch(plan, &numbers(self), buffers(self, 0, weights))
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rows = |name| -> Vec<f64> {
            family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect()
        };
        let [behind, before] = ["statistics", "statistics before"].map(|name| -> Vec<f64> {
            family::result::<f32>(launch, name).into_iter().map(f64::from).collect()
        });
        let kept = self.keeps.then(|| ["attended", "output"].map(rows));
        let projection = self.projection.as_ref().map(|_| rows("projection"));
        self.deviations(&self.answer(rows("y"), [&behind, &before], kept, projection))
    }
}

/// In what the kernels of both directions share, here and in the next two: each is to find it in its own.
pub const fn a_missing_barrier(kernels: &'static str) -> Bug {
    Bug {
        what: "a missing barrier between steps",
        file: "feed_forward.cuh",
        right: "    ptx::barrier();\n    weights.load(weights.step + 1);",
        wrong: "    weights.load(weights.step + 1);",
        kernels,
        found_by: &["is read before anything is written to it", "is under way"],
    }
}

pub const fn a_wait_for_too_few_copies(kernels: &'static str) -> Bug {
    Bug {
        what: "a wait for too few copies",
        file: "feed_forward.cuh",
        right: "ptx::cp_async_wait<0>();",
        wrong: "ptx::cp_async_wait<1>();",
        kernels,
        found_by: &["is under way"],
    }
}

/// In what kernels of warps and of warpgroups share: LayerNorms, and pairs that lanes swap.
pub const fn a_period_left_out(kernels: &'static str, found_by: &'static [&'static str]) -> Bug {
    Bug {
        what: "added rows that do not come again",
        file: "norm_rows.cuh",
        right: "    if (++of_added == period) of_added = 0;",
        wrong: "    ++of_added;",
        kernels,
        found_by,
    }
}

pub const fn added_rows_of_the_first_block(kernels: &'static str) -> Bug {
    Bug {
        what: "added rows of the first block",
        file: "norm_rows.cuh",
        right: "return (first + begin) % period;",
        wrong: "return begin % period;",
        kernels,
        found_by: &[WRONG_RESULTS],
    }
}

pub const fn rows_behind_the_last(kernels: &'static str, found_by: &'static [&'static str]) -> Bug {
    Bug {
        what: "rows behind the last that are read",
        file: "norm_rows.cuh",
        right: "return first + min(row, valid - 1);",
        wrong: "return first + row;",
        kernels,
        found_by,
    }
}

pub const fn pairs_that_lanes_do_not_swap(kernels: &'static str) -> Bug {
    Bug {
        what: "pairs that lanes do not swap",
        file: "gemm.cuh",
        right: "    swap(pairs[1], pairs[3], upper, 2);\n",
        wrong: "",
        kernels,
        found_by: &[WRONG_RESULTS],
    }
}

/// Bugs are planted in the narrowest kernel: the others are the same template.
const NARROW: &str = "feed_forward_c64";
const FEW_ROWS: &str = "feed_forward_few_rows_c64";

const BUGS: [Bug; 29] = [
    a_missing_barrier(NARROW),
    a_wait_for_too_few_copies(NARROW),
    Bug {
        what: "one stage for all steps",
        file: "feed_forward.cu",
        right: "Shared<C, ROWS>::STAGES + (number + 1) % 2 *",
        wrong: "Shared<C, ROWS>::STAGES + (number + 1) % 1 *",
        kernels: NARROW,
        found_by: &["is read before anything is written to it", "is under way", WRONG_RESULTS],
    },
    Bug {
        what: "inner columns behind the last",
        file: "feed_forward.cu",
        right: "chunk + column < p.inner",
        wrong: "chunk + column >= 0",
        kernels: NARROW,
        found_by: &["of `bias1` of"],
    },
    Bug {
        what: "weights of inner columns behind the last",
        file: "feed_forward.cuh",
        right: "weight.columns(first, column), inner - first);",
        wrong: "weight.columns(first, column), CHUNK);",
        kernels: NARROW,
        found_by: &["of `weight1` of"],
    },
    Bug {
        what: "a step of inner columns behind the last",
        file: "feed_forward.cu",
        right: "const int steps = min(p.inner - chunk, CHUNK) / 64;",
        wrong: "const int steps = CHUNK / 64;",
        kernels: NARROW,
        found_by: &["of `weight2` of", WRONG_RESULTS],
    },
    Bug {
        what: "no ReLU",
        file: "feed_forward.cu",
        right: "p.bias1 + chunk + column, true, lane",
        wrong: "p.bias1 + chunk + column, false, lane",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums that take the place of inner rows that are read",
        file: "feed_forward.cu",
        right: "    // All threads are done with inner rows, whose place sums take.\n    ptx::barrier();\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "no residual",
        file: "feed_forward.cu",
        right: "low = bf16_low(f) + bf16_low(other);",
        wrong: "low = bf16_low(f);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "one place for all sums",
        file: "feed_forward.cu",
        right: "sum_rows<C, ROWS>(sum, pass);",
        wrong: "sum_rows<C, ROWS>(sum, 0);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of columns that are not waited for",
        file: "feed_forward.cu",
        right: "    ptx::barrier();\n#pragma unroll\n    for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {\n#pragma unroll\n        for (int half = 0; half < 2; ++half) {\n            // A lane has",
        wrong: "#pragma unroll\n    for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {\n#pragma unroll\n        for (int half = 0; half < 2; ++half) {\n            // A lane has",
        kernels: NARROW,
        found_by: &["is read before anything is written to it", WRONG_RESULTS],
    },
    Bug {
        what: "a sum of two warps",
        file: "feed_forward.cu",
        right: "load_shared<float>(sums + (at * COLUMN_WARPS + (part.lane & 3)) * 4)",
        wrong: "load_shared<float>(sums + (at * COLUMN_WARPS + (part.lane & 1)) * 4)",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    rows_stored_behind_the_last(NARROW, &["store_global of 8 bytes at byte", WRONG_RESULTS]),
    Bug {
        what: "halves of pieces that lanes do not swap",
        file: "gemm.cuh",
        right: "keeps_second ? first : second, mask",
        wrong: "keeps_second ? second : first, mask",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "halves of pieces in each other's place",
        file: "gemm.cuh",
        right: "= to(row, d + (lane & 1)) + (lane & 2) * 2;",
        wrong: "= to(row, d + (lane & 1)) + (2 - (lane & 2)) * 2;",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    pairs_that_lanes_do_not_swap("feed_forward_c128"),
    Bug {
        what: "columns of the first tile for all",
        file: "feed_forward.cu",
        right: "column + piece / 8 * 64",
        wrong: "column",
        kernels: "feed_forward_c128",
        found_by: &[WRONG_RESULTS],
    },
    rows_behind_the_last(NARROW, &["of `x` of"]),
    added_rows_of_the_first_block(NARROW),
    Bug {
        what: "rows of the LayerNorm before that nobody puts there",
        file: "norm_rows.cuh",
        right: "            ptx::store_shared(place(row + i), packed);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "another row's statistics",
        file: "norm_rows.cuh",
        right: "if (lane == i) of_lane = statistics;",
        wrong: "of_lane = statistics;",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "statistics behind the last",
        file: "norm_rows.cuh",
        right: "lane < NORM_ROWS && row + lane < stored",
        wrong: "lane < NORM_ROWS",
        kernels: NARROW,
        found_by: &["of `statistics before` of"],
    },
    Bug {
        what: "rows of the LayerNorm before that are half of the warp's",
        file: "feed_forward.cuh",
        right: "const int warp = ptx::thread() / 32;\n    return",
        wrong: "const int warp = ptx::thread() / 64;\n    return",
        kernels: NARROW,
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "rows of y that a projection does not see",
        file: "feed_forward.cu",
        right: "        ptx::store_shared(part.pair(Shared<C, ROWS>::X, at, d), ptx::pack_bf16(low, high));\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    a_period_left_out(NARROW, &["of `added` of"]),
    Bug {
        what: "the first columns' weights for all of a projection",
        file: "feed_forward.cu",
        right: "behind / PROJECTION_STEPS * C",
        wrong: "behind / PROJECTION_STEPS * 0",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "weights of a projection behind the last",
        file: "feed_forward.cu",
        right: "behind < p.projection.outputs / 64)",
        wrong: "behind <= p.projection.outputs / 64)",
        kernels: NARROW,
        found_by: &["of `the projection's weight` of"],
    },
    Bug {
        what: "a projection without its ReLU",
        file: "feed_forward.cu",
        right: "p.projection.relu != 0",
        wrong: "false",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "few rows that are all each warp's",
        file: "feed_forward.cuh",
        right: "constexpr int WARP_ROWS = ROWS / 2;",
        wrong: "constexpr int WARP_ROWS = ROWS;",
        kernels: FEW_ROWS,
        found_by: &["is read before anything is written to it", "is under way", WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 3] = [
    // A block too many has no rows, and harms nothing.
    WrongLaunch::a_block_too_few(NARROW),
    WrongLaunch::too_little_shared_memory(NARROW),
    weights_that_are_too_short(NARROW),
];

pub const fn weights_that_are_too_short(kernels: &'static str) -> WrongLaunch {
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| {
            let weight1 = launch.buffers.iter_mut().find(|buffer| buffer.name == "weight1");
            weight1.expect("a network has weights").bytes.truncate(512);
        },
        kernels,
        found_by: &["of `weight1` of 512 bytes"],
    }
}

fn cases() -> Vec<Case> {
    let all = [Blocks::Many, Blocks::Few].into_iter().flat_map(|blocks| projecting(blocks, SHAPES, 1));
    all.map(|problem| Case::new(Limits::SM_90, problem)).collect()
}

fn counted() -> Vec<Counted> {
    let shape = FeedForwardShape { rows: 256, width: 256, inner: 1024 };
    let FeedForwardShape { rows, width, inner } = shape;
    let alone = || Problem::random(shape, rows, true, 1);
    let products = |inner: usize| (2 * rows * width * inner) as f64 / (16.0 * 8.0 * 16.0);
    vec![
        Counted {
            shape: format!("{rows}x{width}x{inner}"),
            problem: Box::new(alone()),
            useful_products: products(inner),
        },
        Counted {
            shape: format!("{rows}x{width}x{inner}"),
            problem: Box::new(alone().by(Blocks::Few)),
            useful_products: products(inner),
        },
        Counted {
            shape: format!("{rows}x{width}x{inner} and {}", 3 * width),
            problem: Box::new(alone().projecting(3, 32, Activation::Relu, 1)),
            useful_products: products(inner) + products(3 * width) / 2.0,
        },
    ]
}

/// By what is counted: products without padding; weights are asked for once for the rows of a block, and rows once; and of
/// shared memory no more than fragments take, a quarter of a cycle a product for weights that come in, inner rows and x.
#[test]
fn counters_reach_their_aims() {
    for (shape, outputs, most) in [("256x256x1024", 0.0, 1.61), ("256x256x1024 and 768", 768.0, 1.53)] {
        let row = row("feed_forward_c256", shape);
        let (rows, width, inner, of_block) = (256.0, 256.0, 1024.0, 128.0);
        let weights = 2.0 * width * (2.0 * inner + outputs) * rows / of_block;
        let asked = weights + 4.0 * rows * width;
        assert!(row.requested <= 1.05 * asked, "{} bytes are asked for, not {asked}", row.requested);
        let products = rows * width * (2.0 * inner + outputs) / 2048.0;
        assert_eq!(row.products, products);
        assert!(row.wavefronts <= most * products, "{} wavefronts", row.wavefronts);
        assert!(row.conflicts <= 1.01, "{}", row.conflicts);
    }
}

/// A linear layer of x by a kernel of its own.
fn linear(
    x: &[bf16],
    [weight, bias]: [Vec<u8>; 2],
    shape: LinearShape,
    layout: Layout,
    activation: Activation,
    sums: Sums,
) -> Vec<bf16> {
    let plan = LinearPlan::new(shape, layout).unwrap();
    let buffers = vec![
        (offset_of!(LinearForward, x), "x", given(x)),
        (offset_of!(LinearForward, weight), "weight", weight),
        (offset_of!(LinearForward, bias), "bias", bias),
        (offset_of!(LinearForward, y), "y", poisoned::<bf16>(shape.rows * shape.outputs)),
    ];
    let launch =
        family::launch(plan.forward(BlockSize::Many).unwrap(), &plan.forward_numbers(activation), buffers);
    family::result::<bf16>(&family::run(launch, sums), "y")
}

/// LayerNorm and two linear layers round as this kernel does: the same bits.
#[test]
fn results_are_those_of_three_kernels() {
    let all_sums = [Sums::Nearest, Sums::Hopper, Sums::Ampere, Sums::Nearest];
    let shapes = SHAPES.into_iter().zip(all_sums);
    for ((shape, sums), blocks) in shapes.flat_map(|of| [(of, Blocks::Many), (of, Blocks::Few)]) {
        let FeedForwardShape { rows, width, inner } = shape;
        let problem = Problem::random(shape, rows, true, 2).by(blocks);
        let layer = |x: &[bf16], at: usize, activation| {
            let [inputs, outputs] = if at == 0 { [width, inner] } else { [inner, width] };
            let parameters = [given(&problem.weights[at]), given(&problem.biases[at])];
            linear(x, parameters, LinearShape { rows, inputs, outputs }, Layout::Rows, activation, sums)
        };
        let norm = family::emulated(&layer_norm::ForwardOf(problem.before.clone()), sums);
        let attended = family::result::<bf16>(&norm, "y");
        let hidden = layer(&attended, 0, Activation::Relu);
        let expected = layer(&hidden, 1, Activation::Identity);
        let found = family::emulated(&problem, sums);
        let of = |name| family::result::<u32>(&found, name);
        let case = format!("{shape:?}, {blocks:?}, {sums:?}");
        assert!(of("statistics before") == family::result::<u32>(&norm, "statistics"), "{case}");
        for (name, expected) in [("attended", attended), ("output", expected)] {
            assert!(family::result::<bf16>(&found, name) == expected, "{name}: {case}");
        }
    }
}

/// What a linear layer's kernel makes of the results, and nothing else changes.
#[test]
fn projections_are_those_of_a_kernel_of_their_own() {
    let cases = SHAPES.into_iter().zip([(32, 3), (64, 2), (64, 3), (32, 3)]).zip([
        Sums::Hopper,
        Sums::Nearest,
        Sums::Ampere,
        Sums::Hopper,
    ]);
    for ((shape, (width, times)), sums) in cases {
        for (rows, activation, blocks) in [
            (1, Activation::Relu, Blocks::Many),
            (15, Activation::Identity, Blocks::Few),
            (15, Activation::Identity, Blocks::Many),
            (31, Activation::Relu, Blocks::Few),
            (32, Activation::Identity, Blocks::Few),
            (33, Activation::Relu, Blocks::Few),
            (127, Activation::Relu, Blocks::Many),
            (128, Activation::Identity, Blocks::Many),
            (129, Activation::Relu, Blocks::Many),
            (500, Activation::Identity, Blocks::Many),
        ] {
            let problem = || {
                let shape = FeedForwardShape { rows, inner: 64, ..shape };
                Problem::random(shape, rows, true, 4).by(blocks)
            };
            let projecting = || problem().projecting(times, width, activation, 4);
            projects_as_a_kernel_of_its_own(problem(), projecting(), sums, |problem| problem);
        }
    }
}

/// By the kernel that `of` takes problems to, the same but that the latter projects its results.
pub fn projects_as_a_kernel_of_its_own<P: family::Problem>(
    without: Problem,
    projecting: Problem,
    sums: Sums,
    of: impl Fn(Problem) -> P,
) {
    let (shape, blocks, layer) =
        (projecting.shape, projecting.blocks, projecting.projection.clone().unwrap());
    let [apart, found] = [without, projecting].map(|problem| family::emulated(&of(problem), sums));
    let case = format!("{shape:?}, {blocks:?}, {:?}, {:?}, {sums:?}", layer.layout, layer.activation);
    for name in ["y", "attended", "output", "statistics", "statistics before"] {
        assert!(family::bytes(&found, name) == family::bytes(&apart, name), "{name}: {case}");
    }
    let parameters = [given(&layer.weight), given(&layer.bias)];
    let of_layer = shape.projection(layer.outputs()).unwrap();
    let y = family::result::<bf16>(&apart, "y");
    let expected = linear(&y, parameters, of_layer, layer.layout, layer.activation, sums);
    assert!(family::result::<bf16>(&found, "projection") == expected, "{case}");
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    stays_in_its_row(|problem| problem);
}

/// By the kernel that `of` takes a problem to.
pub fn stays_in_its_row<P: family::Problem>(of: impl Fn(Problem) -> P) {
    let shape = FeedForwardShape { rows: 133, width: 64, inner: 64 };
    let problem = || Problem::random(shape, 133, false, 3);
    let mut bad = problem();
    bad.before.x[3 * 64 + 5] = bf16::INFINITY;
    let [clean, found] = [problem(), bad]
        .map(|problem| family::result::<bf16>(&family::emulated(&of(problem), Sums::Nearest), "y"));
    for (row, (clean, found)) in clean.chunks(64).zip(found.chunks(64)).enumerate() {
        assert!(
            if row == 3 { found.iter().all(|value| value.is_nan()) } else { clean == found },
            "row {row}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    driver::with(&Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("a network", 1 << 18).unwrap();
        let mut rows = |len: usize| -> Buffer<bf16> { arena.take(len).unwrap() };
        let (x, added, mut y, short, weight) = (rows(128), rows(64), rows(128), rows(64), rows(64 * 64));
        let mut output = rows(128);
        let mut sums = |len: usize| -> Buffer<f32> { arena.take(len).unwrap() };
        let (bias, mut before, mut behind) = (sums(64), sums(4), sums(4));
        let layers = [DeviceLinear { weight: &weight, bias: &bias }; 2];
        let norm = DeviceNorm { weight: &bias, bias: &bias, eps: 1e-5 };
        let shape = FeedForwardShape { rows: 2, width: 64, inner: 64 };
        let mut of =
            |x: &Buffer<bf16>, added: &Buffer<bf16>, mut kept: Option<Buffer<bf16>>, norms, shape| {
                let kept = kept.as_mut().map(|attended| Kept { attended, output: &mut output });
                let (blocks, statistics) = (Blocks::Many, [&mut before, &mut behind]);
                feed_forward(&gpu, blocks, &mut y, kept, statistics, x, added, layers, norms, None, shape)
            };
        let norms = [norm; 2];
        of(&x, &added, None, norms, shape).unwrap();
        let (wide, more) =
            (FeedForwardShape { width: 320, ..shape }, FeedForwardShape { inner: 128, ..shape });
        let none = added.part(0..0).unwrap();
        for (error, says) in [
            (of(&x, &added, None, norms, wide), "at most 256 columns, not 320"),
            (of(&x, &added, None, norms, more), "fc1 [G, C] has 4096 values, not 8192"),
            (of(&short, &added, None, norms, shape), "x [rows, C] has 64 values, not 128"),
            (of(&x, &none, None, norms, shape), "added [period, C] has 0 values"),
            (
                of(&x, &added, None, [norm, DeviceNorm { eps: 1e-6, ..norm }], shape),
                "eps of 0.00001 and 0.000001",
            ),
            (of(&x, &added, Some(short.alias()), norms, shape), "the network's rows [rows, C] has 64 values"),
            (of(&x, &added, Some(x.alias()), norms, shape), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        of(&x, &added, None, norms, FeedForwardShape { rows: 0, ..shape }).unwrap_err();
        gpu.synchronize().unwrap();
    })
    .unwrap();
}

#[test]
fn projections_that_do_not_fit_are_refused() {
    driver::with(&Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("a network", 1 << 18).unwrap();
        let mut rows = |len: usize| -> Buffer<bf16> { arena.take(len).unwrap() };
        let (x, added, mut y, weight, out) = (rows(128), rows(64), rows(128), rows(128 * 64), rows(2 * 128));
        let mut sums = |len: usize| -> Buffer<f32> { arena.take(len).unwrap() };
        let (bias, mut before, mut behind) = (sums(128), sums(4), sums(4));
        let (narrow, of_layer) = (bias.part(0..64).unwrap(), weight.part(0..64 * 64).unwrap());
        let layers = [DeviceLinear { weight: &of_layer, bias: &narrow }; 2];
        let norms = [DeviceNorm { weight: &narrow, bias: &narrow, eps: 1e-5 }; 2];
        let shape = FeedForwardShape { rows: 2, width: 64, inner: 64 };
        let mut of = |weight: &Buffer<bf16>, bias: &Buffer<f32>, mut out: Buffer<bf16>, width| {
            let (layer, activation) = (DeviceLinear { weight, bias }, Activation::Identity);
            let projection = Projection { layer, activation, layout: Layout::Heads { width }, out: &mut out };
            let statistics = [&mut before, &mut behind];
            let (blocks, projection) = (Blocks::Many, Some(projection));
            feed_forward(&gpu, blocks, &mut y, None, statistics, &x, &added, layers, norms, projection, shape)
        };
        of(&weight, &bias, out.alias(), 32).unwrap();
        let (half, none) = (bias.part(0..32).unwrap(), bias.part(0..0).unwrap());
        for (error, says) in [
            (
                of(&weight, &half, out.alias(), 32),
                "its results of 64 columns to a multiple of them, not to 32",
            ),
            (of(&weight, &none, out.alias(), 32), "not to 0"),
            (of(&weight, &bias, out.alias(), 48), "a head is 32 or 64 wide, not 48"),
            (of(&of_layer, &bias, out.alias(), 32), "weight [P, C] has 4096 values, not 8192"),
            (of(&weight, &narrow, out.alias(), 32), "weight [P, C] has 8192 values, not 4096"),
            (
                of(&weight, &bias, out.part(0..128).unwrap(), 32),
                "the projection [rows, P] has 128 values, not 256",
            ),
            (of(&weight, &bias, weight.part(0..256).unwrap(), 32), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}
