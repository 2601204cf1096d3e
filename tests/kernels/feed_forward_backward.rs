//! Backward of the row-wise network in one kernel.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{
    FeedForwardBackward, FeedForwardNorm, FeedForwardProjected, LinearBackwardInput, LinearForward,
};
use setrank::device::{Buffer, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::feed_forward::check::SHAPES;
use setrank::ops::feed_forward::check::backward::{
    Problem, but_for_the_widest, problems, problems_with_projection,
};
use setrank::ops::feed_forward::{Blocks, FeedForwardShape, RowsGradient, feed_forward_backward};
use setrank::ops::layer_norm::{NormBackward, check};
use setrank::ops::linear::{
    Activation, BlockSize, DeviceLinear, Layout, LinearPlan, LinearShape, PendingInput,
};
use setrank::ops::partial_sums::PendingSums;
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::attention::counted::row;
use crate::device::on_gpu;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::feed_forward::{
    a_missing_barrier, a_period_left_out, a_wait_for_too_few_copies, added_rows_of_the_first_block,
    pairs_that_lanes_do_not_swap, rows_behind_the_last, weights_that_are_too_short,
};
use crate::ladder::ladder;
use crate::layer_norm;
use crate::linear::{rows_finished_behind_the_last, rows_stored_behind_the_last};

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "feed_forward_backward", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

/// The buffers of rows that a launch leaves, in the order of a problem's results.
pub const ROWS: [&str; 4] = ["hidden", "d_hidden", "dy", "d"];

/// The names of a LayerNorm's buffers.
struct Names {
    x: &'static str,
    added: &'static str,
    weight: &'static str,
    statistics: &'static str,
    parts: &'static str,
}

const BEFORE: Names = Names {
    x: "before x",
    added: "before added",
    weight: "before weight",
    statistics: "before statistics",
    parts: "before parts",
};
const BEHIND: Names = Names {
    x: "behind x",
    added: "behind added",
    weight: "behind weight",
    statistics: "behind statistics",
    parts: "behind parts",
};

/// The numbers of a launch's parameter.
pub fn numbers(problem: &Problem) -> FeedForwardBackward {
    let mut numbers = problem.shape.backward_numbers(problem.before.period());
    numbers.given = i32::from(problem.is_given);
    if let Some(projected) = &problem.projected {
        numbers.projected.outputs = projected.shape.outputs as i32;
        numbers.projected.width = projected.plan().unwrap().width() as i32;
    }
    numbers
}

/// The buffers of a launch whose parameter has a `FeedForwardBackward` at byte `network` of it, and pointers to weights at
/// these, fc1's, fc2's and a projection's.
pub fn buffers(
    problem: &Problem,
    network: usize,
    weights: [usize; 3],
) -> Vec<(usize, &'static str, Vec<u8>)> {
    let shape = problem.shape;
    let d = if problem.is_given { given(&problem.behind.dy) } else { poisoned::<bf16>(shape.values()) };
    let mut buffers = vec![
        (offset_of!(FeedForwardBackward, bias1), "bias1", given(&problem.bias)),
        (offset_of!(FeedForwardBackward, d), "d", d),
        (offset_of!(FeedForwardBackward, dy), "dy", poisoned::<bf16>(shape.values())),
        (offset_of!(FeedForwardBackward, hidden), "hidden", poisoned::<bf16>(shape.inner_values())),
        (offset_of!(FeedForwardBackward, d_hidden), "d_hidden", poisoned::<bf16>(shape.inner_values())),
    ];
    for (at, names, norm) in [
        (offset_of!(FeedForwardBackward, before), BEFORE, &problem.before),
        (offset_of!(FeedForwardBackward, behind), BEHIND, &problem.behind),
    ] {
        let parts = poisoned::<f32>(shape.backward_scratch_len(problem.blocks) / 2);
        buffers.extend([
            (at + offset_of!(FeedForwardNorm, x), names.x, given(&norm.x)),
            (at + offset_of!(FeedForwardNorm, added), names.added, given(&norm.added)),
            (at + offset_of!(FeedForwardNorm, weight), names.weight, given(&norm.weight)),
            (at + offset_of!(FeedForwardNorm, statistics), names.statistics, given(&norm.statistics())),
            (at + offset_of!(FeedForwardNorm, parts), names.parts, parts),
        ]);
    }
    if let Some(projected) = &problem.projected {
        let at = offset_of!(FeedForwardBackward, projected) + offset_of!(FeedForwardProjected, d);
        buffers.push((at, "projected d", given(&projected.laid_out(&projected.dy))));
    }
    buffers.iter_mut().for_each(|(at, ..)| *at += network);
    let [weight1, weight2, projection] = weights;
    buffers.push((weight1, "weight1", given(&problem.weights[0])));
    buffers.push((weight2, "weight2", given(&problem.weights[1])));
    if let Some(projected) = &problem.projected {
        buffers.push((projection, "projection", given(&projected.weight)));
    }
    buffers
}

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = self.shape.backward_plan(self.blocks).expect("a problem has rows");
        let projection =
            offset_of!(FeedForwardBackward, projected) + offset_of!(FeedForwardProjected, weight);
        let weights =
            [offset_of!(FeedForwardBackward, weight1), offset_of!(FeedForwardBackward, weight2), projection];
        family::launch(plan, &numbers(self), buffers(self, 0, weights))
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rows = |name| family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect();
        let sums = [(BEHIND, &self.behind), (BEFORE, &self.before)]
            .map(|(names, norm)| layer_norm::gradients(norm, &family::result::<f32>(launch, names.parts)));
        self.deviations(&ROWS.map(rows).into_iter().chain(sums.into_iter().flatten()).collect())
    }
}

/// Bugs are planted in the narrowest kernel, where others have none of their own: they are the same template.
const NARROW: &str = "feed_forward_backward_c64";

const BUGS: [Bug; 32] = [
    a_missing_barrier(NARROW),
    a_wait_for_too_few_copies(NARROW),
    Bug {
        what: "one stage for all steps",
        file: "feed_forward_backward.cu",
        right: "Place<C, ROWS>::STAGES + (number + 1) % 2 *",
        wrong: "Place<C, ROWS>::STAGES + (number + 1) % 1 *",
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
        what: "the first half of C twice",
        file: "feed_forward_backward.cu",
        right: "tile<ROWS>(At::DY, k + i), row, gemm::next(half, i)",
        wrong: "tile<ROWS>(At::DY, k + i), row, gemm::next(half, 0)",
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
        right: "            low += bf16_low(other);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "one stage for all steps of a projection",
        file: "feed_forward_backward.cu",
        right: "Of::INNER + of_step % 2 * BYTES",
        wrong: "Of::INNER + of_step % 1 * BYTES",
        kernels: NARROW,
        found_by: &["is under way", WRONG_RESULTS],
    },
    Bug {
        what: "sums of columns that are not waited for",
        file: "feed_forward_backward.cu",
        right: "    ptx::barrier();\n    layer_norm::store_sums",
        wrong: "    layer_norm::store_sums",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    rows_stored_behind_the_last(NARROW, &["store_global of 16 bytes at byte", WRONG_RESULTS]),
    pairs_that_lanes_do_not_swap(NARROW),
    Bug {
        what: "the gradient of the inner rows in the place of these",
        file: "feed_forward_backward.cu",
        right: "inner_rows(p.d_hidden, chunk)",
        wrong: "inner_rows(p.hidden, chunk)",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a projection that adds nothing",
        file: "feed_forward_backward.cu",
        right: "            gemm::multiply<false, true>(results, left, row, projected.right(left), lane, column);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows behind the last that count",
        file: "norm_rows.cuh",
        right: "row + i < rows.valid ? packed : make_uint4(0, 0, 0, 0)",
        wrong: "packed",
        kernels: "feed_forward_backward_c256",
        found_by: &[WRONG_RESULTS],
    },
    rows_finished_behind_the_last(NARROW),
    Bug {
        what: "rows of a gradient behind the last, four fragments at a time",
        file: "gemm.cuh",
        right: "if (row < valid) {\n                const auto four",
        wrong: "{\n                const auto four",
        kernels: "feed_forward_backward_c128",
        found_by: &["load_global of 16 bytes at byte", WRONG_RESULTS],
    },
    rows_behind_the_last(NARROW, &["of `behind statistics` of"]),
    added_rows_of_the_first_block(NARROW),
    Bug {
        what: "rows of x that are not there",
        file: "feed_forward_backward.cu",
        right: "            ptx::store_shared(piece<ROWS>(Place<C, ROWS>::X, row, lane), loaded.of.x);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "the gradient of LayerNorm's rows in the place of its own",
        file: "feed_forward_backward.cu",
        right: "            ptx::store_shared(piece<ROWS>(Place<C, ROWS>::DY, row, lane), packed);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is read before anything is written to it", WRONG_RESULTS],
    },
    Bug {
        what: "dy behind the last",
        file: "feed_forward_backward.cu",
        right: "            if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.dy + at), packed);",
        wrong: "            ptx::store_global(reinterpret_cast<uint4 *>(p.dy + at), packed);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "d behind the last",
        file: "feed_forward_backward.cu",
        right: "            if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.d + at), packed);",
        wrong: "            ptx::store_global(reinterpret_cast<uint4 *>(p.d + at), packed);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows that others have not added to, and weights that they still read",
        file: "feed_forward_backward.cu",
        right: "    // All threads have added, and are done with inner rows and weights.\n    ptx::barrier();\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS, "is read before anything is written to it"],
    },
    Bug {
        what: "a gradient that is not given",
        file: "feed_forward_backward.cu",
        right: "if (p.given != 0) {",
        wrong: "if (true) {",
        kernels: "feed_forward_backward_c192",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a gradient's pairs that lanes do not swap",
        file: "gemm.cuh",
        right: "            swap(pairs[0], pairs[1], lane & 1, 1);\n        }\n#pragma",
        wrong: "        }\n#pragma",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows that others have not put there, and operands that they still read",
        file: "feed_forward_backward.cu",
        right: "        // All threads are done with the operands, and d's rows are there.\n        ptx::barrier();\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is under way", "is read before anything is written to it", WRONG_RESULTS],
    },
    a_period_left_out(NARROW, &["of `before added` of"]),
    Bug {
        what: "few rows that are all each warp's",
        file: "feed_forward.cuh",
        right: "constexpr int WARP_ROWS = ROWS / 2;",
        wrong: "constexpr int WARP_ROWS = ROWS;",
        kernels: "feed_forward_backward_few_rows_c64",
        found_by: &["is read before anything is written to it", "is under way", WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 3] = [
    // A block too many has no rows, and harms nothing.
    WrongLaunch::a_block_too_few(NARROW),
    WrongLaunch::too_little_shared_memory(NARROW),
    weights_that_are_too_short(NARROW),
];

fn cases() -> Vec<Case> {
    let all =
        [Blocks::Many, Blocks::Few].into_iter().flat_map(|blocks| but_for_the_widest(blocks, SHAPES, 1));
    all.map(|problem| Case::new(Limits::SM_90, problem)).collect()
}

fn counted() -> Vec<Counted> {
    let shape = FeedForwardShape { rows: 256, width: 256, inner: 1024 };
    let FeedForwardShape { rows, width, inner } = shape;
    let alone = || Problem::random(shape, rows, 1);
    let projected = alone().with_projection(3 * width, Layout::Heads { width: 32 }, true);
    let name = format!("{rows}x{width}x{inner}");
    [
        (name.clone(), alone(), 3 * inner),
        (name.clone(), alone().by(Blocks::Few), 3 * inner),
        (name + " and 768", projected, 3 * inner + 3 * width),
    ]
    .into_iter()
    .map(|(shape, problem, of_row_and_column)| Counted {
        shape,
        problem: Box::new(problem),
        useful_products: (rows * width * of_row_and_column) as f64 / (16.0 * 8.0 * 16.0),
    })
    .collect()
}

/// As forward's; fc1's weights are asked for twice, and inner rows' gradient goes by way of shared memory.
#[test]
fn counters_reach_their_aims() {
    for (shape, outputs, most) in [("256x256x1024", 0.0, 1.69), ("256x256x1024 and 768", 768.0, 1.65)] {
        let row = row("feed_forward_backward_c256", shape);
        let (rows, width, inner, of_block) = (256.0, 256.0, 1024.0, 128.0);
        let weights = 2.0 * width * (3.0 * inner + outputs) * rows / of_block;
        let asked = weights + 2.0 * rows * (5.0 * width + outputs);
        assert!(row.requested <= 1.05 * asked, "{} bytes are asked for, not {asked}", row.requested);
        let products = rows * width * (3.0 * inner + outputs) / 2048.0;
        assert_eq!(row.products, products);
        assert!(row.wavefronts <= most * products, "{} wavefronts", row.wavefronts);
        assert!(row.conflicts <= 1.01, "{}", row.conflicts);
    }
}

/// The networks of six blocks, behind five of which there is a projection, spend at most 1.6 cycles of shared memory a product.
#[test]
fn networks_of_a_step_reach_their_aim() {
    let [mut wavefronts, mut products] = [0.0; 2];
    for kernel in ["feed_forward_c256", "feed_forward_backward_c256"] {
        for (shape, blocks) in [("256x256x1024", 1.0), ("256x256x1024 and 768", 5.0)] {
            let row = row(kernel, shape);
            wavefronts += blocks * row.wavefronts;
            products += blocks * row.products;
        }
    }
    assert!(wavefronts <= 1.6 * products, "{wavefronts} wavefronts, {products} products");
}

/// What the kernel of LayerNorm's backward alone leaves of a gradient.
fn norm_alone(problem: &check::Problem, d: &[bf16], sums: Sums) -> Vec<bf16> {
    let problem = check::Problem { dy: d.to_vec(), ..problem.clone() };
    let launch = family::Problem::launch(&layer_norm::BackwardOf(problem), &Limits::SM_90);
    family::result::<bf16>(&family::run(launch, sums), "d")
}

/// What the kernel of the gradient of a layer's input alone leaves, finished by a matrix at this place of its parameter.
fn input_alone(
    plan: LinearPlan,
    [dy, weight]: [&[bf16]; 2],
    (finish, other): (usize, &[bf16]),
    sums: Sums,
) -> Vec<bf16> {
    let buffers = vec![
        (offset_of!(LinearBackwardInput, dy), "dy", given(dy)),
        (offset_of!(LinearBackwardInput, weight), "weight", given(weight)),
        (finish, "other", given(other)),
        (offset_of!(LinearBackwardInput, dx), "dx", poisoned::<bf16>(other.len())),
    ];
    let (launch, numbers) = (plan.backward_input(BlockSize::Many).unwrap(), plan.backward_input_numbers());
    family::result::<bf16>(&family::run(family::launch(launch, &numbers, buffers), sums), "dx")
}

/// What apart kernels leave in the buffers of [`ROWS`].
fn alone(problem: &Problem, sums: Sums) -> [Vec<bf16>; 4] {
    let FeedForwardShape { rows, width, inner } = problem.shape;
    let plan =
        |inputs, outputs| LinearPlan::new(LinearShape { rows, inputs, outputs }, Layout::Rows).unwrap();
    let [added, mask] = [offset_of!(LinearBackwardInput, added), offset_of!(LinearBackwardInput, mask)];
    // Zeros that are added change no bits.
    let mut d = problem.given();
    if let Some(projected) = &problem.projected {
        let dy = projected.laid_out(&projected.dy);
        d = input_alone(projected.plan().unwrap(), [&dy, &projected.weight], (added, &d), sums);
    }
    let dy = norm_alone(&problem.behind, &d, sums);
    let fc1 = plan(width, inner);
    let buffers = vec![
        (offset_of!(LinearForward, x), "x", given(problem.rows())),
        (offset_of!(LinearForward, weight), "weight", given(&problem.weights[0])),
        (offset_of!(LinearForward, bias), "bias", given(&problem.bias)),
        (offset_of!(LinearForward, y), "y", poisoned::<bf16>(problem.shape.inner_values())),
    ];
    let numbers = fc1.forward_numbers(Activation::Relu);
    let launch = family::run(family::launch(fc1.forward(BlockSize::Many).unwrap(), &numbers, buffers), sums);
    let hidden = family::result::<bf16>(&launch, "y");
    let [weight1, weight2] = problem.weights.each_ref().map(|weight| &weight[..]);
    let d_hidden = input_alone(plan(inner, width), [&dy, weight2], (mask, &hidden), sums);
    let dx = input_alone(fc1, [&d_hidden, weight1], (added, &dy), sums);
    let d = norm_alone(&problem.before, &dx, sums);
    [hidden, d_hidden, dy, d]
}

/// Gradients by way of a projection, LayerNorm's backward, a layer's forward, and the gradients of its input round as this
/// kernel does: the same bits.
#[test]
fn results_are_those_of_apart_kernels() {
    let all_sums = [Sums::Nearest, Sums::Hopper, Sums::Ampere, Sums::Nearest];
    for blocks in [Blocks::Many, Blocks::Few] {
        for problems in [problems(blocks, SHAPES, 2), problems_with_projection(blocks, SHAPES, 2)] {
            for (problem, sums) in problems.into_iter().zip(all_sums) {
                has_the_bits_of_apart_kernels(&problem, sums);
            }
        }
    }
}

/// A row, and a row more and less than fragments and blocks have, behind which attention's projection is.
#[test]
fn any_number_of_rows_behind_which_there_is_a_projection() {
    let all_sums = [Sums::Nearest, Sums::Hopper, Sums::Ampere, Sums::Nearest];
    let rows = [(Blocks::Many, &[1, 15, 127, 128, 129, 500][..]), (Blocks::Few, &[15, 31, 32, 33])];
    for (blocks, rows) in
        rows.into_iter().flat_map(|(blocks, rows)| rows.iter().map(move |&rows| (blocks, rows)))
    {
        for (number, sums) in all_sums.into_iter().enumerate() {
            let width = 64 * (number + 1);
            let layout = Layout::Heads { width: if number % 2 == rows % 2 { 32 } else { 64 } };
            let shape = FeedForwardShape { rows, width, inner: 64 };
            let problem = Problem::random(shape, rows, 4).by(blocks);
            has_the_bits_of_apart_kernels(&problem.with_projection(3 * width, layout, true), sums);
        }
    }
}

fn has_the_bits_of_apart_kernels(problem: &Problem, sums: Sums) {
    let found = family::run(family::Problem::launch(problem, &Limits::SM_90), sums);
    for (buffer, expected) in ROWS.into_iter().zip(alone(problem, sums)) {
        let same = family::result::<bf16>(&found, buffer) == expected;
        let projected = problem.projected.as_ref().map(|projected| projected.shape);
        let Problem { shape, blocks, .. } = problem;
        assert!(same, "{buffer}: {shape:?}, {blocks:?}, behind it {projected:?}, {sums:?}");
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    stays_in_its_row(ROWS, |problem| problem);
}

/// In the buffers of these names, by the kernel that `of` takes a problem to.
pub fn stays_in_its_row<P: family::Problem, const BUFFERS: usize>(
    buffers: [&str; BUFFERS],
    of: impl Fn(Problem) -> P,
) {
    let shape = FeedForwardShape { rows: 133, width: 64, inner: 64 };
    let problem = || Problem::random(shape, 133, 3);
    let results = |problem: Problem| {
        let launch = family::run(of(problem).launch(&Limits::SM_90), Sums::Nearest);
        buffers.map(|name| family::result::<u16>(&launch, name))
    };
    let mut bad = problem();
    bad.behind.added[3 * 64 + 5] = bf16::NAN;
    bad.behind.dy[3 * 64 + 7] = bf16::INFINITY;
    for (clean, found) in results(problem()).iter().zip(results(bad)) {
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
        let (x, heads, short, weight2) = (rows(128), rows(128), rows(64), rows(64 * 64));
        let (mut d, mut dy, mut hidden, mut d_hidden) = (rows(128), rows(128), rows(128), rows(128));
        let mut sums = |len: usize| -> Buffer<f32> { arena.take(len).unwrap() };
        let (bias, gamma, statistics, scratch) = (sums(64), sums(64), sums(4), sums(256));
        let fc1 = DeviceLinear { weight: &weight2, bias: &bias };
        let shape = FeedForwardShape { rows: 2, width: 64, inner: 64 };
        let mut norm = |added| {
            let (statistics, weight, gradients) = (&statistics, gamma.alias(), [sums(64), sums(64)]);
            NormBackward { x: &heads, added, statistics, weight, gradients }
        };
        let [before, behind, without, too_short] =
            [Some(&short), Some(&x), None, Some(&short)].map(&mut norm);
        let mut of_gradient = |gradient: RowsGradient<'_>,
                               before: &NormBackward<'_>,
                               behind: &NormBackward<'_>,
                               scratch: &Buffer<f32>,
                               shape| {
            let inner = [&mut hidden, &mut d_hidden];
            let dy = &mut dy;
            PendingSums::of(&gpu, scratch, |sums| {
                let blocks = Blocks::Many;
                feed_forward_backward(
                    &gpu, blocks, gradient, dy, inner, before, behind, fc1, &weight2, sums, shape,
                )
            })
        };
        let projected = |dy: &Buffer<bf16>, weight: &Buffer<bf16>, layout, outputs| {
            let shape = LinearShape { rows: 2, inputs: 64, outputs };
            PendingInput { dy: dy.alias(), layout, weight: weight.alias(), shape }
        };
        let heads_of = |width| Layout::Heads { width };
        for (is_given, projected, says) in [
            (false, None, "the gradient is given, or comes by way of a projection, or both"),
            (true, Some(projected(&x, &weight2, heads_of(16), 64)), "a head is 32 or 64 wide, not 16"),
            (true, Some(projected(&x, &weight2, heads_of(32), 96)), "outputs are a multiple of 64"),
            (
                true,
                Some(projected(&x, &weight2, heads_of(32), 128)),
                "the projection's gradient [rows, out] has 128 values, not 256",
            ),
            (
                true,
                Some(projected(&x, &x, heads_of(32), 64)),
                "the projection's weight [out, C] has 128 values, not 4096",
            ),
            (true, Some(projected(&d, &weight2, heads_of(32), 64)), "share memory"),
            (false, Some(projected(&x, &weight2, heads_of(64), 64)), ""),
        ] {
            let gradient = RowsGradient { d: &mut d, is_given, projected: projected.as_ref() };
            let error =
                of_gradient(gradient, &before, &behind, &scratch, shape).map_err(|error| error.to_string());
            match says {
                "" => error.unwrap(),
                says => assert!(error.unwrap_err().contains(says), "{says}"),
            }
        }
        let mut of = |d: &mut Buffer<bf16>,
                      before: &NormBackward<'_>,
                      behind: &NormBackward<'_>,
                      scratch: &Buffer<f32>,
                      shape| {
            of_gradient(RowsGradient { d, is_given: true, projected: None }, before, behind, scratch, shape)
        };
        of(&mut d, &before, &behind, &scratch, shape).unwrap();
        let wide = FeedForwardShape { width: 320, ..shape };
        let more = FeedForwardShape { inner: 128, ..shape };
        for (error, says) in [
            (of(&mut d, &before, &behind, &scratch, wide), "at most 256 columns, not 320"),
            (of(&mut d, &before, &behind, &scratch, more), "fc1 [G, C] has 4096 values, not 8192"),
            (of(&mut d, &before, &without, &scratch, shape), "both LayerNorms add rows"),
            (of(&mut d, &without, &behind, &scratch, shape), "both LayerNorms add rows"),
            (of(&mut d, &before, &too_short, &scratch, shape), "both LayerNorms add rows"),
            (
                of(&mut d.part(0..64).unwrap(), &before, &behind, &scratch, shape),
                "d [rows, C] has 64 values, not 128",
            ),
            (of(&mut x.alias(), &before, &behind, &scratch, shape), "share memory"),
            (
                of(&mut d, &before, &behind, &scratch.part(0..252).unwrap(), shape),
                "scratch has 252 values, not 256 or more",
            ),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    });
}
