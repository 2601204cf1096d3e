//! Attention that is not fused.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{AttentionNaiveProduct, AttentionNaiveScores, AttentionNaiveWeights};
use setrank::device::choice::Fusion;
use setrank::device::{Limits, Plan};
use setrank::ops::attention::check::{BackwardProblem, Problem, Step, StepProblem};
use setrank::ops::attention::{Heads, Roles, RowKernel};
use setrank::ops::check::Deviation;
use setrank_emulator::launch::Launch;

use crate::device::on_gpu;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "attention_naive", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

type Buffers = Vec<(usize, &'static str, Vec<u8>)>;

/// What a step launches.
fn plan_of(problem: &StepProblem) -> Plan {
    let (plan, dropout) = (problem.plan(), problem.problem().forward().dropout().is_some());
    let launch = match problem.step() {
        Step::Scores | Step::DWeights => plan.scores(),
        Step::Softmax => plan.weights(RowKernel::Softmax, dropout),
        Step::Weights => plan.weights(RowKernel::Weights, dropout),
        Step::DScores => plan.weights(RowKernel::DScores, dropout),
        step => plan.product(step.is_transposed()),
    };
    launch.expect("a problem has rows")
}

/// One half of keys and values, keys first.
fn half(problem: &StepProblem, number: usize) -> &[bf16] {
    let kv = problem.problem().forward().kv();
    &kv[number * kv.len() / 2..][..kv.len() / 2]
}

fn of_scores(problem: &StepProblem) -> Launch {
    let (plan, backward) = (problem.plan(), problem.problem());
    let of_q = problem.step() == Step::Scores;
    let (queries, keys) = if of_q {
        (backward.forward().q(), half(problem, 0))
    } else {
        (backward.d_heads(), half(problem, 1))
    };
    let buffers = vec![
        (offset_of!(AttentionNaiveScores, queries), "queries", given(queries)),
        (offset_of!(AttentionNaiveScores, keys), "keys", given(keys)),
        (offset_of!(AttentionNaiveScores, tiles), "tiles", given(&plan.query_tiles)),
        (offset_of!(AttentionNaiveScores, pairs), "pairs", given(&plan.pairs)),
        (offset_of!(AttentionNaiveScores, scores), "results", poisoned::<f32>(plan.values())),
    ];
    family::launch(plan_of(problem), &plan.scores_numbers(of_q), buffers)
}

fn of_weights(problem: &StepProblem) -> Launch {
    let (plan, backward) = (problem.plan(), problem.problem());
    let sums = backward.log_sum_exp();
    let sums = if problem.step() == Step::Softmax { poisoned::<f32>(sums.len()) } else { given(sums) };
    let mut buffers: Buffers = vec![
        (offset_of!(AttentionNaiveWeights, scores), "scores", given(problem.scores())),
        (offset_of!(AttentionNaiveWeights, tiles), "tiles", given(&plan.query_tiles)),
        (offset_of!(AttentionNaiveWeights, pairs), "pairs", given(&plan.pairs)),
        (offset_of!(AttentionNaiveWeights, log_sum_exp), "log_sum_exp", sums),
        (offset_of!(AttentionNaiveWeights, weights), "results", poisoned::<bf16>(plan.values())),
    ];
    if problem.step() == Step::DScores {
        buffers.extend([
            (offset_of!(AttentionNaiveWeights, d_weights), "d_weights", given(problem.d_weights())),
            (offset_of!(AttentionNaiveWeights, output), "output", given(backward.heads())),
            (offset_of!(AttentionNaiveWeights, d_output), "d_output", given(backward.d_heads())),
        ]);
    }
    family::launch(plan_of(problem), &plan.weights_numbers(backward.forward().dropout()), buffers)
}

fn of_product(problem: &StepProblem) -> Launch {
    let (plan, backward, step) = (problem.plan(), problem.problem(), problem.step());
    let q = backward.forward().q();
    let (rows, relu, len) = match step {
        Step::DValues => (backward.d_heads(), half(problem, 1), half(problem, 1).len()),
        Step::DKeys => (q, half(problem, 0), half(problem, 0).len()),
        Step::DQueries => (half(problem, 0), q, backward.d_heads().len()),
        _ => (half(problem, 1), q, backward.d_heads().len()),
    };
    let tiles = if step.is_transposed() { &plan.key_tiles } else { &plan.query_tiles };
    let mut buffers: Buffers = vec![
        (offset_of!(AttentionNaiveProduct, weights), "weights", given(problem.weights())),
        (offset_of!(AttentionNaiveProduct, rows), "rows", given(rows)),
        (offset_of!(AttentionNaiveProduct, tiles), "tiles", given(tiles)),
        (offset_of!(AttentionNaiveProduct, pairs), "pairs", given(&plan.pairs)),
        (offset_of!(AttentionNaiveProduct, output), "results", poisoned::<bf16>(len)),
    ];
    if backward.relu() && step != Step::Heads {
        buffers.push((offset_of!(AttentionNaiveProduct, relu), "relu", given(relu)));
    }
    family::launch(plan_of(problem), &plan.product_numbers(step.is_of_scores()), buffers)
}

impl family::Problem for StepProblem {
    fn launch(&self, _: &Limits) -> Launch {
        match self.step() {
            Step::Scores | Step::DWeights => of_scores(self),
            Step::Softmax | Step::Weights | Step::DScores => of_weights(self),
            _ => of_product(self),
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let single = |name| family::result::<f32>(launch, name).into_iter().map(f64::from).collect();
        let found = match self.step() {
            Step::Scores | Step::DWeights => vec![single("results")],
            step => {
                let values =
                    family::result::<bf16>(launch, "results").into_iter().map(bf16::to_f64).collect();
                let sums = (step == Step::Softmax).then(|| single("log_sum_exp"));
                std::iter::once(values).chain(sums).collect()
            }
        };
        self.deviations(&found)
    }
}

const BUGS: [Bug; 23] = [
    Bug {
        what: "products before their operands have landed",
        file: "attention_naive.cu",
        right: "        ptx::cp_async_wait<0>();\n        // All queries and keys have landed.\n        ptx::barrier();\n",
        wrong: "        ptx::barrier();\n",
        kernels: "attention_naive_scores",
        found_by: &["is under way"],
    },
    Bug {
        what: "products before others' copies have landed",
        file: "attention_naive.cu",
        right: "        // All weights and rows have landed.\n        ptx::barrier();\n",
        wrong: "        // All weights and rows have landed.\n",
        kernels: "attention_naive_product_transposed",
        found_by: &["is read before anything is written to it", "is under way", WRONG_RESULTS],
    },
    Bug {
        what: "tiles that are replaced while they are read",
        file: "attention_naive.cu",
        right: "        // All warps are done with the tiles that the next ones replace.\n        ptx::barrier();\n",
        wrong: "",
        kernels: "attention_naive_product_d",
        found_by: &["is under way", WRONG_RESULTS],
    },
    Bug {
        what: "rows that are loaded from behind the set",
        file: "tile.cuh",
        right: "const bool inside = row < valid;",
        wrong: "const bool inside = valid > 0;",
        kernels: "attention_naive_scores",
        found_by: &["of `queries` of", "of `keys` of"],
    },
    Bug {
        what: "queries of each set where all share them",
        file: "attention_naive.cu",
        right: "head * query_rows + tile.query_begin",
        wrong: "head * query_rows + tile.output_begin",
        kernels: "attention_naive_product_transposed_d64",
        found_by: &[WRONG_RESULTS, "of `rows` of"],
    },
    Bug {
        what: "a gradient that is laid out as queries are",
        file: "attention_naive.cu",
        right: "    if (by_heads) return",
        wrong: "    if (by_heads || heads > 0) return",
        kernels: "attention_naive_scores_d64",
        found_by: &[WRONG_RESULTS, "of `queries` of"],
    },
    Bug {
        what: "scores that are written behind the keys",
        file: "attention_naive.cu",
        right: "row < tile.query_rows && column < pairs.stride",
        wrong: "row < tile.query_rows",
        kernels: "attention_naive_scores",
        found_by: &["of `results` of", WRONG_RESULTS],
    },
    Bug {
        what: "pairs of the first set",
        file: "attention_naive.cu",
        right: "p.head_pairs + pairs.begin + (tile",
        wrong: "p.head_pairs + (tile",
        kernels: "attention_naive_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "keys behind the set that count",
        file: "attention_naive.cu",
        right: "scores[e] = key + e < rows.tile.key_rows ? scores[e] : -INFINITE;",
        wrong: "",
        kernels: "attention_naive_softmax",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a sum that is not brought to a new scale",
        file: "attention_naive.cu",
        right: "            sum *= ptx::exp2(top - higher);\n",
        wrong: "",
        kernels: "attention_naive_softmax",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a largest score of the lane alone",
        file: "attention_naive.cu",
        right: "for (int mask = 16; mask > 0; mask /= 2) reference",
        wrong: "for (int mask = 16; mask > 16; mask /= 2) reference",
        kernels: "attention_naive_softmax",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "weights that are not divided by their sum",
        file: "attention_naive.cu",
        right: "(DROPOUT ? p.dropout.keep : 1.0f) / sum",
        wrong: "DROPOUT ? p.dropout.keep : 1.0f",
        kernels: "attention_naive_softmax",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a natural logarithm for one of base 2",
        file: "attention_naive.cu",
        right: "p.log_sum_exp + place) * LOG2_E;\n        rows.store",
        wrong: "p.log_sum_exp + place);\n        rows.store",
        kernels: "attention_naive_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "what stands behind the keys",
        file: "attention_naive.cu",
        right: "values[e] = key + e < tile.key_rows ? values[e] : 0.0f;",
        wrong: "values[e] = values[e];",
        kernels: "attention_naive_weights",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a draw of other keys",
        file: "attention_naive.cu",
        right: "query, key / AT_ONCE",
        wrong: "query, key",
        kernels: "attention_naive_softmax_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a gradient without dropout",
        file: "attention_naive.cu",
        right: "!DROPOUT ? 1.0f",
        wrong: "!DROPOUT || p.width > 0 ? 1.0f",
        kernels: "attention_naive_d_scores_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a delta of half the row",
        file: "attention_naive.cu",
        right: "if (2 * lane < p.width)",
        wrong: "if (4 * lane < p.width)",
        kernels: "attention_naive_d_scores",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "weights of the next query",
        file: "attention_naive.cu",
        right: "inside ? tile.query_rows - (TRANSPOSED ? first : 0) : 0",
        wrong: "tile.query_rows - (TRANSPOSED ? first : 0)",
        kernels: "attention_naive_product_d",
        found_by: &[WRONG_RESULTS, "of `weights` of"],
    },
    Bug {
        what: "weights that are not transposed",
        file: "attention_naive.cu",
        right: "gemm::left_fragment<TRANSPOSED>",
        wrong: "gemm::left_fragment<false>",
        kernels: "attention_naive_product_transposed",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums without the last step",
        file: "attention_naive.cu",
        right: "if (first + k >= inner) continue;",
        wrong: "if (first + k + 16 > inner) continue;",
        kernels: "attention_naive_product",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a gradient that passes where the ReLU cut",
        file: "attention_naive.cu",
        right: "p.relu + (head * p.query_rows + tile.query_begin) * D",
        wrong: "nullptr",
        kernels: "attention_naive_product_d64",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "results side by side that stand apart",
        file: "attention_naive.cu",
        right: "stride = by_heads ? D : heads * D;",
        wrong: "stride = D;",
        kernels: "attention_naive_product_d32",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums that are not scaled",
        file: "attention_naive.cu",
        right: "{p.factor, p.factor}",
        wrong: "{1.0f, 1.0f}",
        kernels: "attention_naive_product_transposed_d64",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 6] = [
    WrongLaunch::too_little_shared_memory("attention_naive_scores"),
    WrongLaunch::too_little_shared_memory("attention_naive_product"),
    WrongLaunch::a_block_too_few(""),
    WrongLaunch::a_block_too_many("", &["of `tiles` of"]),
    WrongLaunch {
        what: "a head too few",
        change: |launch| launch.grid[1] -= 1,
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "results that are too short",
        change: |launch| {
            let results = launch.buffers.iter_mut().find(|buffer| buffer.name == "results");
            results.expect("every launch has them").bytes.truncate(1024);
        },
        kernels: "",
        found_by: &["store_global of"],
    },
];

/// Every kernel, and between them every role: sets of no tile, of one and of several of queries and of keys, rows of which a
/// lane has several pieces, keys that end in each half of a piece.
fn cases() -> Vec<Case> {
    let documents = (Roles::Documents, &[1, 2, 33, 0, 130][..]);
    let induce = (Roles::Induce { points: 20 }, &[1, 2, 130][..]);
    let attend = (Roles::Attend { points: 20 }, &[1, 0, 70][..]);
    [
        (documents, 32, 0.0, Step::Scores),
        (induce, 64, 0.0, Step::DWeights),
        (documents, 32, 0.0, Step::Softmax),
        (induce, 32, 0.3, Step::Softmax),
        (induce, 32, 0.0, Step::Weights),
        (documents, 32, 0.3, Step::Weights),
        (attend, 64, 0.0, Step::DScores),
        (documents, 32, 0.3, Step::DScores),
        (documents, 32, 0.0, Step::Heads),
        (induce, 64, 0.0, Step::DQueries),
        (attend, 32, 0.0, Step::DValues),
        (induce, 64, 0.0, Step::DKeys),
    ]
    .into_iter()
    .map(|((roles, sizes), width, rate, step)| {
        let problem = Problem::random(roles, sizes, Heads { count: 2, width }, width as u64);
        Case::new(Limits::SM_90, StepProblem::new(problem.with_dropout(rate), true, step).unwrap())
    })
    .collect()
}

/// A set of Istella's mean size, of one head.
fn counted() -> Vec<Counted> {
    let documents = 360;
    let of = |step: Step| {
        let problem = Problem::random(Roles::Documents, &[documents], Heads { count: 1, width: 32 }, 1);
        let has_products = !matches!(step, Step::Softmax | Step::Weights | Step::DScores);
        Counted {
            shape: "360, one head".into(),
            problem: Box::new(StepProblem::new(problem, false, step).unwrap()),
            useful_products: if has_products { (documents * documents * 32) as f64 / 2048.0 } else { 0.0 },
        }
    };
    [Step::Scores, Step::Softmax, Step::Heads, Step::Weights, Step::DScores, Step::DValues].map(of).into()
}

/// Runs a problem on the tests' GPU, forward and backward, and holds it against the rule.
fn check(problem: &Problem, relu: bool) {
    check_forward(problem);
    let backward = on_gpu(|gpu| BackwardProblem::new(problem.clone(), relu, 1).hold(&gpu, "").unwrap());
    for checked in backward {
        assert!(checked.deviation.is_allowed(), "{:?}: {checked:?}", problem.roles());
    }
}

fn check_forward(problem: &Problem) {
    for deviation in on_gpu(|gpu| problem.deviations(&problem.solve(&gpu).unwrap())) {
        assert!(deviation.is_allowed(), "{deviation:?}");
    }
}

fn heads_of(problem: &Problem) -> Vec<f64> {
    on_gpu(|gpu| problem.solve(&gpu).unwrap().heads)
}

/// More keys than anywhere else, of few queries, and the other way round.
#[test]
fn long_sets() {
    let heads = Heads { count: 1, width: 32 };
    for roles in [Roles::Induce { points: 3 }, Roles::Attend { points: 3 }] {
        check(&Problem::random(roles, &[4096], heads, 8).with_fusion(Fusion::None), false);
    }
}

/// Keys that have no weight, before others and alone, and scores from denormal numbers to 10,000 and more.
#[test]
fn scores_of_any_size() {
    let heads = Heads { count: 1, width: 32 };
    let random =
        |sizes: &[usize]| Problem::random(Roles::Documents, sizes, heads, 4).with_fusion(Fusion::None);
    for far in [64, 130] {
        let mut problem = random(&[130]);
        let [q, kv] = problem.qkv_mut();
        for row in 0..130 {
            q[row * 32] = bf16::ONE;
            if row < far {
                kv[row * 32] = bf16::NEG_INFINITY;
            }
        }
        check_forward(&problem);
    }
    for scale in [0.0, 1e-39, 1e-3, 30.0, 100.0] {
        let mut problem = random(&[65, 3]);
        for values in problem.qkv_mut() {
            values.iter_mut().for_each(|value| *value = bf16::from_f64(value.to_f64() * scale));
        }
        check_forward(&problem);
    }
}

/// What is not finite stays in its set, whose results do not depend on the batch around it either.
#[test]
fn sets_are_apart() {
    let heads = Heads { count: 2, width: 64 };
    let random =
        |sizes: &[usize]| Problem::random(Roles::Documents, sizes, heads, 9).with_fusion(Fusion::None);
    let clean = heads_of(&random(&[3, 70, 5]));
    for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        for part in 0..3 {
            let mut problem = random(&[3, 70, 5]);
            let [q, kv] = problem.qkv_mut();
            let (values, part_rows) = if part == 0 { (q, 0) } else { (kv, (part - 1) * 2 * 78) };
            values[(part_rows + 78 + 10) * 64 + 3] = bad;
            let found = heads_of(&problem);
            let of_others = |values: &[f64]| [&values[..3 * 128], &values[73 * 128..]].concat();
            assert_eq!(of_others(&clean), of_others(&found), "{bad} in part {part}");
            let exact = problem.exact();
            let same = found.iter().zip(&exact.heads).all(|(a, b)| a.is_finite() == b.is_finite());
            assert!(same, "{bad} in part {part}");
        }
    }
    let mut alone = random(&[70]);
    let problem = random(&[3, 70, 5]);
    for (to, (from, parts)) in alone.qkv_mut().into_iter().zip([(problem.q(), 2), (problem.kv(), 4)]) {
        for (to, from) in to.chunks_exact_mut(70 * 64).zip(from.chunks_exact(78 * 64)).take(parts) {
            to.copy_from_slice(&from[3 * 64..73 * 64]);
        }
    }
    assert_eq!(heads_of(&alone), clean[3 * 128..73 * 128]);
}
