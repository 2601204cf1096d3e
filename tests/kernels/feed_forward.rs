//! The row-wise network in one kernel.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{FeedForward, FeedForwardScale, LinearForward};
use setrank::device::check::Deviation;
use setrank::device::choice::MatrixKernels;
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::feed_forward::check::{Problem, SHAPES, problems};
use setrank::ops::feed_forward::{FeedForwardShape, Kept, feed_forward};
use setrank::ops::layer_norm::DeviceNorm;
use setrank::ops::linear::{Activation, BlockSize, DeviceLinear, Layout, LinearPlan, LinearShape};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::layer_norm;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "feed_forward", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

/// The buffers of a launch whose parameter has a `FeedForward` at byte `network` of it, and pointers to weights at these.
pub fn buffers(
    problem: &Problem,
    network: usize,
    weights: [usize; 2],
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
    buffers.iter_mut().for_each(|(at, ..)| *at += network);
    let names = ["weight1", "weight2"];
    buffers.extend((0..2).map(|of| (weights[of], names[of], given(&problem.weights[of]))));
    buffers
}

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = self.shape.plan(MatrixKernels::Mma).expect("a problem has rows");
        let weights = [offset_of!(FeedForward, weight1), offset_of!(FeedForward, weight2)];
        let numbers = self.shape.numbers(self.before.period(), self.eps());
        family::launch(plan, &numbers, buffers(self, 0, weights))
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rows = |name| -> Vec<f64> {
            family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect()
        };
        let [behind, before] = ["statistics", "statistics before"].map(|name| -> Vec<f64> {
            family::result::<f32>(launch, name).into_iter().map(f64::from).collect()
        });
        let kept = self.keeps.then(|| ["attended", "output"].map(rows));
        self.deviations(&Problem::answer(rows("y"), [&behind, &before], kept))
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

pub const fn a_period_left_out(kernels: &'static str, found_by: &'static [&'static str]) -> Bug {
    Bug {
        what: "added rows that do not come again",
        file: "feed_forward.cuh",
        right: "static_cast<size_t>((first + row) % period)",
        wrong: "static_cast<size_t>(first + row)",
        kernels,
        found_by,
    }
}

/// Bugs are planted in the narrowest kernel: the others are the same template.
const NARROW: &str = "feed_forward_c64";

const BUGS: [Bug; 18] = [
    a_missing_barrier(NARROW),
    a_wait_for_too_few_copies(NARROW),
    Bug {
        what: "one stage for all steps",
        file: "feed_forward.cu",
        right: "Shared<C>::STAGES + (number + 1) % 2 *",
        wrong: "Shared<C>::STAGES + (number + 1) % 1 *",
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
        what: "results that take the place of weights that are read",
        file: "feed_forward.cu",
        right: "    // All threads are done with inner rows and weights, whose place f takes.\n    ptx::barrier();\n",
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
        what: "sums of columns that are not waited for",
        file: "feed_forward.cu",
        right: "    ptx::barrier();\n#pragma unroll\n    for (int m = 0; m < 4; ++m) {\n#pragma unroll\n        for (int half = 0; half < 2; ++half) {\n            const int at = row + m * 16 + half * 8 + (lane >> 2);\n            const auto all",
        wrong: "#pragma unroll\n    for (int m = 0; m < 4; ++m) {\n#pragma unroll\n        for (int half = 0; half < 2; ++half) {\n            const int at = row + m * 16 + half * 8 + (lane >> 2);\n            const auto all",
        kernels: NARROW,
        found_by: &["is read before anything is written to it", WRONG_RESULTS],
    },
    Bug {
        what: "one place for all sums",
        file: "feed_forward.cu",
        right: "sum_rows<C>(sum, pass, row,",
        wrong: "sum_rows<C>(sum, 0, row,",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows behind the last",
        file: "feed_forward.cuh",
        right: "if (row >= valid) break;",
        wrong: "if (row > valid) break;",
        kernels: NARROW,
        found_by: &["of `output` of", "of `y` of"],
    },
    Bug {
        what: "rows behind the last of the LayerNorm before",
        file: "feed_forward.cu",
        right: "row < min(valid, ROWS);",
        wrong: "row < ROWS;",
        kernels: NARROW,
        found_by: &["of `attended` of", "of `statistics before` of"],
    },
    Bug {
        what: "rows of the LayerNorm before that are not waited for",
        file: "feed_forward.cu",
        right: "ptx::cp_async_wait<1>();",
        wrong: "ptx::cp_async_wait<2>();",
        kernels: NARROW,
        found_by: &["is under way"],
    },
    Bug {
        what: "rows that others have not put there",
        file: "feed_forward.cu",
        right: "    ptx::barrier();\n    norm_before",
        wrong: "    norm_before",
        kernels: NARROW,
        found_by: &["is under way", "is read before anything is written to it"],
    },
    a_period_left_out(NARROW, &["of `added` of"]),
    Bug {
        what: "rows that are not those of the LayerNorm before",
        file: "feed_forward.cu",
        right: "            ptx::store_shared(piece(Shared<C>::X, row, lane), packed);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows that are stored before they are there",
        file: "feed_forward.cu",
        right: "    ptx::barrier();\n    const size_t to",
        wrong: "    const size_t to",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
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
    problems(SHAPES, 1).into_iter().map(|problem| Case::new(Limits::SM_90, problem)).collect()
}

fn counted() -> Vec<Counted> {
    let shape = FeedForwardShape { rows: 256, width: 256, inner: 1024 };
    let FeedForwardShape { rows, width, inner } = shape;
    vec![Counted {
        shape: format!("{rows}x{width}x{inner}"),
        problem: Box::new(Problem::random(shape, rows, true, 1)),
        useful_products: (2 * rows * width * inner) as f64 / (16.0 * 8.0 * 16.0),
    }]
}

/// LayerNorm and two linear layers round as this kernel does: the same bits.
#[test]
fn results_are_those_of_three_kernels() {
    for (shape, sums) in SHAPES.into_iter().zip([Sums::Nearest, Sums::Hopper, Sums::Ampere, Sums::Nearest]) {
        let FeedForwardShape { rows, width, inner } = shape;
        let problem = Problem::random(shape, rows, true, 2);
        let layer = |x: &[bf16], at: usize, activation| {
            let [inputs, outputs] = if at == 0 { [width, inner] } else { [inner, width] };
            let plan = LinearPlan::new(LinearShape { rows, inputs, outputs }, Layout::Rows).unwrap();
            let buffers = vec![
                (offset_of!(LinearForward, x), "x", given(x)),
                (offset_of!(LinearForward, weight), "weight", given(&problem.weights[at])),
                (offset_of!(LinearForward, bias), "bias", given(&problem.biases[at])),
                (offset_of!(LinearForward, y), "y", poisoned::<bf16>(rows * outputs)),
            ];
            let launch = family::launch(
                plan.forward(BlockSize::Many).unwrap(),
                &plan.forward_numbers(activation),
                buffers,
            );
            family::result::<bf16>(&family::run(launch, sums), "y")
        };
        let norm = family::emulated(&layer_norm::ForwardOf(problem.before.clone()), sums);
        let attended = family::result::<bf16>(&norm, "y");
        let hidden = layer(&attended, 0, Activation::Relu);
        let expected = layer(&hidden, 1, Activation::Identity);
        let found = family::emulated(&problem, sums);
        let of = |name| family::result::<u32>(&found, name);
        assert!(of("statistics before") == family::result::<u32>(&norm, "statistics"), "{shape:?}, {sums:?}");
        for (name, expected) in [("attended", attended), ("output", expected)] {
            assert!(family::result::<bf16>(&found, name) == expected, "{name}: {shape:?}, {sums:?}");
        }
    }
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
        let mut of = |x: &Buffer<bf16>,
                      added: &Buffer<bf16>,
                      mut kept: Option<Buffer<bf16>>,
                      norms,
                      shape| {
            let kept = kept.as_mut().map(|attended| Kept { attended, output: &mut output });
            let statistics = [&mut before, &mut behind];
            feed_forward(&gpu, MatrixKernels::Mma, &mut y, kept, statistics, x, added, layers, norms, shape)
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
