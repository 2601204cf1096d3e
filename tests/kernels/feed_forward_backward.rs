//! Backward of the row-wise network in one kernel.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{FeedForwardBackward, LinearBackwardInput, LinearForward};
use setrank::device::check::Deviation;
use setrank::device::{Buffer, Limits};
use setrank::ops::feed_forward::check::SHAPES;
use setrank::ops::feed_forward::check::backward::{Problem, RESULTS};
use setrank::ops::feed_forward::{FeedForwardShape, feed_forward_backward};
use setrank::ops::linear::{Activation, DeviceLinear, InputFinish, Layout, LinearPlan, LinearShape};
use setrank_emulator::emulate::{self, Config, Sums};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::device::on_gpu;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::feed_forward::{a_missing_barrier, a_wait_for_too_few_copies, rows_behind_the_last};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "feed_forward_backward", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

/// The buffers of the results.
const BUFFERS: [&str; 3] = ["hidden", "d_hidden", "dx"];

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let shape = self.shape;
        let buffers = vec![
            (offset_of!(FeedForwardBackward, x), "x", given(&self.x)),
            (offset_of!(FeedForwardBackward, dy), "dy", given(&self.dy)),
            (offset_of!(FeedForwardBackward, weight1), "weight1", given(&self.weights[0])),
            (offset_of!(FeedForwardBackward, bias1), "bias1", given(&self.bias)),
            (offset_of!(FeedForwardBackward, weight2), "weight2", given(&self.weights[1])),
            (offset_of!(FeedForwardBackward, hidden), "hidden", poisoned::<bf16>(shape.inner_values())),
            (offset_of!(FeedForwardBackward, d_hidden), "d_hidden", poisoned::<bf16>(shape.inner_values())),
            (offset_of!(FeedForwardBackward, dx), "dx", poisoned::<bf16>(shape.values())),
        ];
        let plan = shape.backward_plan().expect("a problem has rows");
        family::launch(plan, &shape.backward_numbers(), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rows = |name| family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect();
        self.deviations(&BUFFERS.map(rows).into())
    }
}

/// Bugs are planted in the narrowest kernel, where others have none of their own: they are the same template.
const NARROW: &str = "feed_forward_backward_c64";

const BUGS: [Bug; 16] = [
    a_missing_barrier(NARROW),
    a_wait_for_too_few_copies(NARROW),
    Bug {
        what: "one stage for all steps",
        file: "feed_forward_backward.cu",
        right: "Place<C>::STAGES + number % 2 *",
        wrong: "Place<C>::STAGES + number % 1 *",
        kernels: NARROW,
        found_by: &["is read before anything is written to it", "is under way", WRONG_RESULTS],
    },
    Bug {
        what: "inner columns behind the last",
        file: "feed_forward_backward.cu",
        right: "const bool busy = chunk + column_warp * 32 < p.inner;",
        wrong: "const bool busy = true;",
        kernels: NARROW,
        found_by: &["of `bias1` of"],
    },
    Bug {
        what: "weights of inner columns behind the last",
        file: "feed_forward_backward.cu",
        right: "if (column >= p.inner) continue;",
        wrong: "",
        kernels: NARROW,
        found_by: &["cp_async_16 of 16 bytes at byte"],
    },
    Bug {
        what: "a step of inner columns behind the last",
        file: "feed_forward_backward.cu",
        right: "const int steps = min(p.inner - chunk, CHUNK) / 64;",
        wrong: "const int steps = CHUNK / 64;",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS, "is read before anything is written to it"],
    },
    Bug {
        what: "a gradient that passes where the ReLU cut",
        file: "feed_forward_backward.cu",
        right: "(above[0] >> number & 1) != 0 ? low : 0.0f",
        wrong: "low",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "one bit for all pairs",
        file: "feed_forward_backward.cu",
        right: "                ++number;\n                own.put",
        wrong: "                own.put",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "inner rows that are stored before they are there",
        file: "feed_forward_backward.cu",
        right: "        ptx::sync_warp();\n#pragma unroll\n        for (int i = 0; i < WARP_ROWS / 8",
        wrong: "#pragma unroll\n        for (int i = 0; i < WARP_ROWS / 8",
        kernels: NARROW,
        found_by: &["is read before anything is written to it", WRONG_RESULTS],
    },
    Bug {
        what: "inner rows behind the last",
        file: "feed_forward_backward.cu",
        right: "            if (at < valid) {\n                const auto value",
        wrong: "            {\n                const auto value",
        kernels: NARROW,
        found_by: &["store_global of 16 bytes at byte"],
    },
    Bug {
        what: "the gradient of the inner rows in the place of these",
        file: "feed_forward_backward.cu",
        right: "own.store(p.d_hidden + inner_rows",
        wrong: "own.store(p.hidden + inner_rows",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first half of C twice",
        file: "feed_forward_backward.cu",
        right: "tile(Place<C>::DY, k + i), row, gemm::next(half, i)",
        wrong: "tile(Place<C>::DY, k + i), row, gemm::next(half, 0)",
        kernels: "feed_forward_backward_c128",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns of the first tile for all",
        file: "gemm.cuh",
        right: "next(tile, column / 64)",
        wrong: "next(tile, 0)",
        kernels: "feed_forward_backward_c192",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "no residual",
        file: "feed_forward_backward.cu",
        right: "low + bf16_low(other)",
        wrong: "low",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    rows_behind_the_last(NARROW, &["of `dx` of"]),
    Bug {
        what: "rows that are stored before they are there",
        file: "feed_forward_backward.cu",
        right: "    ptx::barrier();\n    store_rows",
        wrong: "    store_rows",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 3] = [
    // A block too many has no rows, and harms nothing.
    WrongLaunch::a_block_too_few(NARROW),
    WrongLaunch::too_little_shared_memory(NARROW),
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[4].bytes.truncate(512),
        kernels: NARROW,
        found_by: &["cp_async_16 of 16 bytes at byte"],
    },
];

fn cases() -> Vec<Case> {
    SHAPES.into_iter().map(|shape| Case::new(Limits::SM_90, Problem::random(shape, 1))).collect()
}

fn counted() -> Vec<Counted> {
    let shape = FeedForwardShape { rows: 256, width: 256, inner: 1024 };
    let FeedForwardShape { rows, width, inner } = shape;
    vec![Counted {
        shape: format!("{rows}x{width}x{inner}"),
        problem: Box::new(Problem::random(shape, 1)),
        useful_products: (3 * rows * width * inner) as f64 / (16.0 * 8.0 * 16.0),
    }]
}

/// What a launch of the family leaves.
fn results_of(mut launch: Launch, sums: Sums) -> Launch {
    emulate::run(&Kernels::repository(), &mut launch, &Config::default().sums(sums))
        .unwrap_or_else(|report| panic!("{report}"));
    launch
}

/// A layer's forward, and the gradients of its input, round as this kernel does: the same bits.
#[test]
fn results_are_those_of_three_kernels() {
    for (shape, sums) in SHAPES.into_iter().zip([Sums::Nearest, Sums::Hopper, Sums::Ampere, Sums::Nearest]) {
        let problem = Problem::random(shape, 2);
        let FeedForwardShape { rows, width, inner } = shape;
        let plan =
            |inputs, outputs| LinearPlan::new(LinearShape { rows, inputs, outputs }, Layout::Rows).unwrap();
        let fc1 = plan(width, inner);
        let buffers = vec![
            (offset_of!(LinearForward, x), "x", given(&problem.x)),
            (offset_of!(LinearForward, weight), "weight", given(&problem.weights[0])),
            (offset_of!(LinearForward, bias), "bias", given(&problem.bias)),
            (offset_of!(LinearForward, y), "y", poisoned::<bf16>(shape.inner_values())),
        ];
        let numbers = fc1.forward_numbers(Activation::Relu);
        let launch = results_of(family::launch(fc1.forward().unwrap(), &numbers, buffers), sums);
        let hidden = family::result::<bf16>(&launch, "y");
        let input = |plan: LinearPlan, dy: &[bf16], weight: &[bf16], finish, other: &[bf16]| {
            let buffers = vec![
                (offset_of!(LinearBackwardInput, dy), "dy", given(dy)),
                (offset_of!(LinearBackwardInput, weight), "weight", given(weight)),
                (offset_of!(LinearBackwardInput, other), "other", given(other)),
                (offset_of!(LinearBackwardInput, dx), "dx", poisoned::<bf16>(other.len())),
            ];
            let numbers = plan.backward_input_numbers(finish);
            let launch = results_of(family::launch(plan.backward_input().unwrap(), &numbers, buffers), sums);
            family::result::<bf16>(&launch, "dx")
        };
        let d_hidden =
            input(plan(inner, width), &problem.dy, &problem.weights[1], InputFinish::Masked, &hidden);
        let dx = input(fc1, &d_hidden, &problem.weights[0], InputFinish::Added, &problem.dy);
        let found = results_of(family::Problem::launch(&problem, &Limits::SM_90), sums);
        for ((name, buffer), expected) in RESULTS.iter().zip(BUFFERS).zip([hidden, d_hidden, dx]) {
            assert!(family::result::<bf16>(&found, buffer) == expected, "{name}: {shape:?}, {sums:?}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let shape = FeedForwardShape { rows: 133, width: 64, inner: 64 };
    let mut problem = Problem::random(shape, 3);
    let of = |problem: &Problem| {
        let launch = results_of(family::Problem::launch(problem, &Limits::SM_90), Sums::Nearest);
        BUFFERS.map(|name| family::result::<u16>(&launch, name))
    };
    let clean = of(&problem);
    problem.x[3 * 64 + 5] = bf16::NAN;
    problem.dy[3 * 64 + 7] = bf16::INFINITY;
    for (clean, found) in clean.iter().zip(of(&problem)) {
        for (row, (clean, found)) in clean.chunks(64).zip(found.chunks(64)).enumerate() {
            assert_eq!(clean != found, row == 3, "row {row}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    on_gpu(|gpu| {
        let mut arena = gpu.arena("a network", 1 << 18).unwrap();
        let mut rows = |len: usize| -> Buffer<bf16> { arena.take(len).unwrap() };
        let (x, dy, short, weight) = (rows(128), rows(128), rows(64), rows(64 * 64));
        let (mut dx, mut hidden, mut d_hidden) = (rows(128), rows(128), rows(128));
        let bias: Buffer<f32> = arena.take(64).unwrap();
        let fc1 = DeviceLinear { weight: &weight, bias: &bias };
        let shape = FeedForwardShape { rows: 2, width: 64, inner: 64 };
        let mut of = |x: &Buffer<bf16>, dy: &Buffer<bf16>, shape| {
            feed_forward_backward(&gpu, &mut dx, &mut hidden, &mut d_hidden, dy, x, fc1, &weight, shape)
        };
        for (error, says) in [
            (of(&x, &dy, FeedForwardShape { width: 320, ..shape }), "at most 256 columns, not 320"),
            (of(&x, &dy, FeedForwardShape { inner: 128, ..shape }), "fc1 [G, C] has 4096 values, not 8192"),
            (of(&short, &dy, shape), "x [rows, C] has 64 values, not 128"),
            (of(&x, &short, shape), "dy [rows, C] has 64 values, not 128"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        of(&x, &dy, FeedForwardShape { rows: 0, ..shape }).unwrap_err();
        let mut same = x.part(0..128).unwrap();
        let error =
            feed_forward_backward(&gpu, &mut same, &mut hidden, &mut d_hidden, &dy, &x, fc1, &weight, shape)
                .unwrap_err()
                .to_string();
        assert!(error.contains("share memory"), "{error}");
        gpu.synchronize().unwrap();
    });
}
