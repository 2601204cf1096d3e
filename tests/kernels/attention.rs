//! Set attention, forward.

use std::mem::offset_of;

use half::bf16;
use proptest::prelude::*;
use setrank::device::Limits;
use setrank::device::abi::SetAttentionForward;
use setrank::device::check::Deviation;
use setrank::ops::attention::check::{Answer, Problem};
use setrank::ops::attention::{Heads, SetAttentionPlan};
use setrank_emulator::emulate::{self, Config, Copies, Schedule};
use setrank_emulator::kernels::{Kernels, Sources};
use setrank_emulator::launch::Launch;
use setrank_emulator::sanitize::{Finding, Program, Sanitizer};

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "attention", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, limits: &Limits) -> Launch {
        let plan = SetAttentionPlan::new(self.offsets(), self.heads(), limits).unwrap();
        let rows = self.rows();
        let launch = plan.forward().expect("a problem has documents");
        let buffers = vec![
            (offset_of!(SetAttentionForward, qkv), "qkv", given(self.qkv())),
            (offset_of!(SetAttentionForward, tiles), "tiles", given(&plan.tiles)),
            (
                offset_of!(SetAttentionForward, output),
                "output",
                poisoned::<bf16>(rows * self.heads().hidden()),
            ),
            (
                offset_of!(SetAttentionForward, log_sum_exp),
                "log_sum_exp",
                poisoned::<f32>(rows * self.heads().count),
            ),
        ];
        family::launch(launch, &plan.forward_numbers(), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let [heads, log_sum_exp] = self.deviations(&answer(launch));
        vec![("heads", heads), ("log-sum-exp", log_sum_exp)]
    }
}

/// What a launch left in its buffers.
fn answer(launch: &Launch) -> Answer {
    let heads: Vec<bf16> = family::result(launch, "output");
    let log_sum_exp: Vec<f32> = family::result(launch, "log_sum_exp");
    Answer {
        heads: heads.into_iter().map(bf16::to_f64).collect(),
        log_sum_exp: log_sum_exp.into_iter().map(f64::from).collect(),
    }
}

/// A head width, a card, and whether sets are short: a case for each kernel.
const KERNELS: [(usize, Limits, bool); 4] = [
    (32, Limits::SM_90, true),
    (32, Limits::SM_90, false),
    (64, Limits::SM_89, false),
    (64, Limits::SM_90, false),
];

/// Sizes that reach every path of a case.
fn sizes(short: bool) -> &'static [usize] {
    if short { &[1, 2, 17, 31, 32, 33, 128, 64, 65, 0, 40] } else { &[1, 2, 17, 31, 33, 64, 0, 200, 65] }
}

const BUGS: [Bug; 13] = [
    Bug {
        what: "a missing barrier",
        file: "attention.cu",
        right: "        ptx::barrier();\n",
        wrong: "",
        kernels: "",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "a wait for too few copies",
        file: "attention.cu",
        right: "ptx::cp_async_wait<STAGES - 2>();",
        wrong: "ptx::cp_async_wait<STAGES - 1>();",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "copies that are no group",
        file: "attention.cu",
        right: "        ptx::cp_async_commit();\n",
        wrong: "",
        kernels: "",
        found_by: &["is under way"],
    },
    Bug {
        what: "a tile that is replaced while it is read",
        file: "attention.cu",
        right: "        ptx::barrier();\n        load(number + STAGES - 1);",
        wrong: "        load(number + STAGES - 1);\n        ptx::barrier();",
        kernels: "set_attention_forward_d64",
        found_by: &["is under way"],
    },
    Bug {
        what: "keys behind the set that count",
        file: "attention.cu",
        right: "if (valid < KEY_ROWS) mask_keys(scores, valid, lane);",
        wrong: "(void)valid;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "loads behind the set",
        file: "tile.cuh",
        right: "const bool inside = row < valid;",
        wrong: "const bool inside = valid > 0;",
        kernels: "",
        found_by: &["of `qkv` of"],
    },
    Bug {
        what: "a wrong stride",
        file: "attention.cu",
        right: "p.qkv + ((heads + head) * rows + tile.set_begin) * D",
        wrong: "p.qkv + ((heads + head) * (rows + 1) + tile.set_begin) * D",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows that are written behind the set",
        file: "attention.cu",
        right: "        if (row < tile.query_rows) {",
        wrong: "        if (row >= 0) {",
        kernels: "",
        found_by: &["of `output` of"],
    },
    Bug {
        what: "results that are not waited for",
        file: "attention.cu",
        right: "    ptx::sync_warp();\n",
        wrong: "",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a largest score of half the keys",
        file: "attention.cu",
        right: "                most = fmaxf(most, ptx::shuffle_xor(most, 2));\n",
        wrong: "",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a sum of a quarter of the keys",
        file: "attention.cu",
        right: "            sum += ptx::shuffle_xor(sum, 1);\n            sum += ptx::shuffle_xor(sum, 2);\n",
        wrong: "",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "values that are not transposed",
        file: "attention.cu",
        right: "ptx::ldmatrix_x4_transposed(fragment",
        wrong: "ptx::ldmatrix_x4(fragment",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "scores that are not rescaled",
        file: "attention.cu",
        right: "output[m][d][2 * half] *= shrink;",
        wrong: "",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 8] = [
    WrongLaunch {
        what: "too little shared memory",
        change: |launch| launch.shared_bytes -= 16,
        kernels: "",
        found_by: &["bytes of shared memory"],
    },
    WrongLaunch {
        what: "a kernel of more stages than there is memory for",
        change: |launch| launch.shared_bytes -= 8 << 10,
        kernels: "",
        found_by: &["bytes of shared memory"],
    },
    WrongLaunch {
        what: "a block too few",
        change: |launch| launch.grid[0] -= 1,
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "a block too many",
        change: |launch| launch.grid[0] += 1,
        kernels: "",
        found_by: &["of `tiles` of"],
    },
    WrongLaunch {
        what: "a head too few",
        change: |launch| launch.grid[1] -= 1,
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "a warp too few",
        change: |launch| launch.block[0] -= 32,
        kernels: "",
        found_by: &["is read before anything is written to it"],
    },
    WrongLaunch {
        what: "more threads than the kernel is for",
        change: |launch| launch.block[0] += 32,
        kernels: "",
        found_by: &["its __launch_bounds__ allow 128"],
    },
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(8192),
        kernels: "",
        found_by: &["of `qkv` of 8192 bytes"],
    },
];

/// Runs a problem on the emulator and holds the results against the rule.
fn check(problem: &Problem, limits: &Limits, config: &Config) {
    let mut launch = family::Problem::launch(problem, limits);
    let config = config.shared_limit(limits.shared_per_block);
    emulate::run(&Kernels::repository(), &mut launch, &config)
        .unwrap_or_else(|report| panic!("{config:?}: {report}"));
    assert_right(problem, &launch, &format!("{} {config:?}", launch.kernel));
}

fn assert_right(problem: &Problem, launch: &Launch, what: &str) {
    for (result, deviation) in ["heads", "log-sum-exp"].into_iter().zip(problem.deviations(&answer(launch))) {
        assert!(deviation.is_allowed(), "{what}: {result}: {deviation:?}");
    }
}

fn cases() -> Vec<Case> {
    KERNELS
        .into_iter()
        .map(|(width, limits, short)| {
            let problem = Problem::random(sizes(short), Heads { count: 2, width }, width as u64);
            Case::new(limits, problem)
        })
        .collect()
}

fn counted() -> Vec<Counted> {
    let shapes: [(&str, &[usize]); 5] = [
        ("64x1", &[1; 64]),
        ("32x40", &[40; 32]),
        ("4x128", &[128; 4]),
        ("500", &[500]),
        ("500+360", &[500, 360]),
    ];
    let mut all = Vec::new();
    for width in [32, 64] {
        for (shape, sizes) in shapes {
            let heads = Heads { count: 8, width };
            let pairs = (heads.count * sizes.iter().map(|n| n * n).sum::<usize>()) as f64;
            all.push(Counted {
                shape: shape.into(),
                problem: Box::new(Problem::random(sizes, heads, 1)),
                // 2·D multiply-adds a pair of documents; 2048 in a product.
                useful_products: pairs * (2 * width) as f64 / 2048.0,
            });
        }
    }
    all
}

#[test]
fn large_sets() {
    for (width, limits, _) in KERNELS {
        let problem = Problem::random(&[500, 360], Heads { count: 1, width }, 7);
        check(&problem, &limits, &Config::default().workers(2));
        let random = Config::default().schedule(Schedule::Pct).copies(Copies::AtRandom);
        check(&problem, &limits, &random.seed(2).workers(2));
    }
}

#[test]
fn the_bits_do_not_depend_on_schedule_workers_or_batch() {
    let heads = Heads { count: 2, width: 32 };
    let problem = Problem::random(&[70, 200], heads, 3);
    let run = |problem: &Problem, config: Config| {
        let mut launch = family::Problem::launch(problem, &Limits::SM_90);
        emulate::run(&Kernels::repository(), &mut launch, &config).unwrap();
        answer(&launch)
    };
    let first_run = run(&problem, Config::default());
    for config in Config::matrix(&[5]) {
        assert_eq!(run(&problem, config.workers(2)), first_run, "{config:?}");
    }
    // Each set alone; the first one's plan has fewer stages.
    let rows = problem.rows();
    let part_of = |first: usize, last: usize| -> Vec<bf16> {
        (0..6)
            .flat_map(|part| {
                let begin = part * rows;
                problem.qkv()[(begin + first) * heads.width..(begin + last) * heads.width].to_vec()
            })
            .collect()
    };
    for (first, last) in [(0, 70), (70, 270)] {
        let alone = Problem::new(vec![0, last - first], heads, part_of(first, last)).unwrap();
        let alone = run(&alone, Config::default());
        assert_eq!(alone.heads, first_run.heads[first * heads.hidden()..last * heads.hidden()]);
    }
}

#[test]
fn what_is_not_finite_stays_in_its_set() {
    for (width, limits, _) in KERNELS {
        let heads = Heads { count: 2, width };
        for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
            for part in 0..3 {
                let mut problem = Problem::random(&[3, 70, 5], heads, 9);
                let clean = family::Problem::launch(&problem, &limits);
                let row = (part * heads.count + 1) * problem.rows() + 10;
                problem.qkv_mut()[row * width + 3] = bad;
                let run = |mut launch| {
                    emulate::run(&Kernels::repository(), &mut launch, &Config::default()).unwrap();
                    answer(&launch)
                };
                let (clean, found) = (run(clean), run(family::Problem::launch(&problem, &limits)));
                let of_others =
                    |values: &[f64]| [&values[..3 * heads.hidden()], &values[73 * heads.hidden()..]].concat();
                assert_eq!(of_others(&clean.heads), of_others(&found.heads), "{bad} in part {part}");
                let wrong = |found: &f64, exact: &f64| found.is_finite() != exact.is_finite();
                let exact = problem.exact();
                let differ = found.heads.iter().zip(&exact.heads).filter(|(a, b)| wrong(a, b)).count();
                assert_eq!(differ, 0, "{bad} in part {part}, width {width}");
            }
        }
    }
}

#[test]
fn small_errors_in_long_sets_are_found() {
    let problem = Problem::random(&[1, 300], Heads { count: 2, width: 32 }, 1);
    let right = problem.exact();
    assert!(problem.deviations(&right)[0].is_allowed());
    let mut wrong = right.clone();
    wrong.heads[64..].iter_mut().for_each(|value| *value *= 1.03);
    assert!(!problem.deviations(&wrong)[0].is_allowed(), "{:?}", problem.deviations(&wrong));
}

/// The first keys have no weight: what is summed before the others come is nothing, not NaN.
#[test]
fn keys_that_are_infinitely_far() {
    let heads = Heads { count: 1, width: 32 };
    let random = Problem::random(&[130], heads, 1);
    for far in [64, 130] {
        let mut qkv = random.qkv().to_vec();
        for row in 0..130 {
            qkv[row * 32] = bf16::ONE;
            if row < far {
                qkv[(130 + row) * 32] = bf16::NEG_INFINITY;
            }
        }
        let problem = Problem::new(vec![0, 130], heads, qkv).unwrap();
        let mut launch = family::Problem::launch(&problem, &Limits::SM_90);
        emulate::run(&Kernels::repository(), &mut launch, &Config::default()).unwrap();
        for (result, deviation) in family::Problem::deviations(&problem, &launch) {
            assert!(deviation.is_allowed(), "{far} keys: {result}: {deviation:?}");
        }
    }
}

#[test]
fn scores_of_any_size() {
    for scale in [0.0, 1e-3, 30.0] {
        let mut problem = Problem::random(&[65, 3], Heads { count: 1, width: 32 }, 4);
        problem.qkv_mut().iter_mut().for_each(|value| *value = bf16::from_f64(value.to_f64() * scale));
        check(&problem, &Limits::SM_90, &Config::default());
    }
}

#[test]
fn a_race_is_found() {
    let sources = Sources::repository(&["attention.cu"]).unwrap();
    let sources = sources.replace("attention.cu", "    ptx::sync_warp();\n", "").unwrap();
    let program = Program::new(&sources, Sanitizer::Thread).unwrap();
    let problem = Problem::random(&[40], Heads { count: 1, width: 32 }, 5);
    let mut launch = family::Problem::launch(&problem, &Limits::SM_90);
    let outcome = program.run(&mut launch, &Config::default()).unwrap();
    let race = |finding: &Finding| {
        finding.kind.contains("data race")
            && finding.places.iter().any(|place| place.file.ends_with("attention.cu"))
    };
    assert!(outcome.findings.iter().any(race), "{outcome:#?}");
}

#[test]
fn what_is_read_is_read_once() {
    let heads = Heads { count: 8, width: 32 };
    let mut launch = family::Problem::launch(&Problem::random(&[40, 7], heads, 1), &Limits::SM_90);
    let found = emulate::run(&Kernels::repository(), &mut launch, &Config::default().counting()).unwrap();
    let values = 47 * heads.hidden() as u64;
    // q, k and v in bf16, and a tile of 16 bytes a set; heads in bf16 and log-sum-exp in f32.
    assert_eq!(found.unique_read, 3 * 2 * values + 2 * 16);
    assert_eq!(found.unique_written, 2 * values + 4 * 47 * 8);
    assert_eq!(found.requested_written, found.unique_written);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_sizes(
        sizes in proptest::collection::vec(prop_oneof![0usize..5, 0usize..200], 1..6),
        case in 0usize..KERNELS.len(),
        seed in any::<u64>(),
    ) {
        prop_assume!(sizes.iter().sum::<usize>() > 0);
        let (width, limits, _) = KERNELS[case];
        let problem = Problem::random(&sizes, Heads { count: 2, width }, seed);
        let configs: Vec<Config> = Config::matrix(&[seed]).collect();
        check(&problem, &limits, &configs[seed as usize % configs.len()]);
    }
}
