//! Forward.

use std::mem::offset_of;

use half::bf16;
use proptest::prelude::*;
use setrank::device::abi::{AttentionBlock, AttentionForward, AttentionTile};
use setrank::device::{Limits, Plan};
use setrank::ops::attention::check::{Answer, Problem};
use setrank::ops::attention::{AttentionPlan, ForwardGroups, Heads, Roles};
use setrank::ops::check::Deviation;
use setrank_emulator::emulate::{self, Config, Copies, Schedule};
use setrank_emulator::kernels::{Kernels, Sources};
use setrank_emulator::launch::Launch;
use setrank_emulator::sanitize::{Finding, Program, Sanitizer};

use super::{KERNELS, LONGEST, ROLES};
use crate::device::on_gpu;
use crate::family::{self, Problem as _, given, poisoned};

impl family::Problem for Problem {
    fn launch(&self, limits: &Limits) -> Launch {
        let plan = self.plan(limits).unwrap();
        let launch = plan.forward(self.dropout().is_some()).expect("a problem has queries");
        let ForwardGroups { tiles, blocks, .. } = &plan.forward_groups;
        with_buffers(self, &plan, launch, tiles, blocks)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let [heads, log_sum_exp] = self.deviations(&answer(&combined(combining(self, launch), launch)));
        vec![("heads", heads), ("log-sum-exp", log_sum_exp)]
    }
}

/// What combines the parts of the sets is to do, behind the kernel that leaves them.
pub struct Combine(pub Problem);

impl family::Problem for Combine {
    fn launch(&self, limits: &Limits) -> Launch {
        let mut before = self.0.launch(limits);
        emulate::run(&Kernels::repository(), &mut before, &Config::default()).unwrap();
        combining(&self.0, &before).expect("a problem of long sets")
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let [heads, log_sum_exp] = self.0.deviations(&answer(launch));
        vec![("heads", heads), ("log-sum-exp", log_sum_exp)]
    }
}

/// The launch that combines what `before` left of parts, where there are any.
fn combining(problem: &Problem, before: &Launch) -> Option<Launch> {
    let plan = problem.plan(&Limits::SM_90).unwrap();
    let buffers = vec![
        (offset_of!(AttentionForward, partials), "partials", family::bytes(before, "partials")?),
        (offset_of!(AttentionForward, tiles), "tiles", given(&plan.parts.tiles)),
        (offset_of!(AttentionForward, blocks), "blocks", given(&plan.parts.sets)),
        (offset_of!(AttentionForward, output), "output", family::bytes(before, "output")?),
        (offset_of!(AttentionForward, log_sum_exp), "log_sum_exp", family::bytes(before, "log_sum_exp")?),
    ];
    Some(family::launch(plan.combine_forward()?, &plan.forward_numbers(problem.dropout()), buffers))
}

/// What there is once parts are combined: what `before` left, where there are none.
pub fn combined(combining: Option<Launch>, before: &Launch) -> Launch {
    let Some(mut launch) = combining else { return before.clone() };
    emulate::run(&Kernels::repository(), &mut launch, &Config::default()).unwrap();
    launch
}

/// A launch of a forward kernel of these tables.
pub fn with_buffers(
    problem: &Problem,
    plan: &AttentionPlan,
    launch: Plan,
    tiles: &[AttentionTile],
    blocks: &[AttentionBlock],
) -> Launch {
    let heads = problem.heads();
    let mut buffers = vec![
        (offset_of!(AttentionForward, q), "q", given(problem.q())),
        (offset_of!(AttentionForward, kv), "kv", given(problem.kv())),
        (offset_of!(AttentionForward, tiles), "tiles", given(tiles)),
        (offset_of!(AttentionForward, blocks), "blocks", given(blocks)),
        (offset_of!(AttentionForward, output), "output", poisoned::<bf16>(plan.output_rows * heads.hidden())),
        (
            offset_of!(AttentionForward, log_sum_exp),
            "log_sum_exp",
            poisoned::<f32>(plan.output_rows * heads.count),
        ),
    ];
    let numbers = plan.forward_numbers(problem.dropout());
    if numbers.parts > 0 {
        let partials = poisoned::<f32>(plan.scratch_len().partials);
        buffers.push((offset_of!(AttentionForward, partials), "partials", partials));
    }
    family::launch(launch, &numbers, buffers)
}

/// What a launch left in its buffers.
pub fn answer(launch: &Launch) -> Answer {
    let heads: Vec<bf16> = family::result(launch, "output");
    let log_sum_exp: Vec<f32> = family::result(launch, "log_sum_exp");
    Answer {
        heads: heads.into_iter().map(bf16::to_f64).collect(),
        log_sum_exp: log_sum_exp.into_iter().map(f64::from).collect(),
    }
}

/// Runs a problem on the emulator.
fn run(problem: &Problem, config: &Config) -> Launch {
    let mut launch = problem.launch(&Limits::SM_90);
    emulate::run(&Kernels::repository(), &mut launch, config)
        .unwrap_or_else(|report| panic!("{config:?}: {report}"));
    launch
}

/// Runs a problem on the emulator and holds the results against the rule.
fn check(problem: &Problem, config: &Config) {
    let launch = run(problem, config);
    for (result, deviation) in family::Problem::deviations(problem, &launch) {
        let what = format!("{}, {:?}, {config:?}: {result}", launch.kernel, problem.roles());
        assert!(deviation.is_allowed(), "{what}: {deviation:?}");
    }
}

fn documents(sizes: &[usize], heads: Heads, seed: u64) -> Problem {
    Problem::random(Roles::Documents, sizes, heads, seed)
}

#[test]
fn every_role_of_every_kernel() {
    for (width, dropout) in KERNELS {
        for roles in ROLES {
            let problem = Problem::random(roles, &[3, 70, 1], Heads { count: 3, width }, 2);
            check(&problem.with_dropout(if dropout { 0.5 } else { 0.0 }), &Config::default());
        }
    }
}

#[test]
fn large_sets() {
    for (width, dropout) in KERNELS {
        let problem = documents(&[500, 360], Heads { count: 1, width }, 7);
        let problem = problem.with_dropout(if dropout { 0.1 } else { 0.0 });
        check(&problem, &Config::default().workers(2));
        let random = Config::default().schedule(Schedule::Pct).copies(Copies::AtRandom);
        check(&problem, &random.seed(2).workers(2));
    }
}

/// As long as sets get: more tiles of keys than anywhere else.
#[test]
fn the_longest_set() {
    for roles in LONGEST.into_iter().chain([Roles::Induce { points: 3 }]) {
        let problem = Problem::random(roles, &[4096], Heads { count: 1, width: 32 }, 8);
        check(&problem, &Config::default().workers(2));
    }
}

#[test]
fn the_bits_do_not_depend_on_schedule_workers_or_batch() {
    let heads = Heads { count: 2, width: 32 };
    let problem = documents(&[70, 200], heads, 3);
    let first_run = answer(&run(&problem, &Config::default()));
    for config in Config::matrix(&[5]) {
        assert_eq!(answer(&run(&problem, &config.workers(2))), first_run, "{config:?}");
    }
    // Each set alone.
    let part_of = |values: &[bf16], first: usize, last: usize| -> Vec<bf16> {
        let rows = values.chunks_exact(270 * heads.width);
        rows.flat_map(|rows| rows[first * heads.width..last * heads.width].to_vec()).collect()
    };
    for (first, last) in [(0, 70), (70, 270)] {
        let [q, kv] = [problem.q(), problem.kv()].map(|values| part_of(values, first, last));
        let alone = Problem::new(Roles::Documents, vec![0, last - first], heads, q, kv).unwrap();
        let alone = answer(&run(&alone, &Config::default()));
        assert_eq!(alone.heads, first_run.heads[first * heads.hidden()..last * heads.hidden()]);
    }
}

/// A set of several parts has the bits that it has alone.
#[test]
fn parts_of_a_set_do_not_depend_on_the_batch() {
    let (heads, roles) = (Heads { count: 2, width: 32 }, Roles::Induce { points: 20 });
    let problem = Problem::random(roles, &[5, 1100, 40], heads, 3);
    let of_set = |values: &[bf16]| -> Vec<bf16> {
        values.chunks_exact(1145 * 32).flat_map(|rows| rows[5 * 32..1105 * 32].to_vec()).collect()
    };
    let alone =
        Problem::new(roles, vec![0, 1100], heads, problem.q().to_vec(), of_set(problem.kv())).unwrap();
    let [all, alone] = [problem, alone].map(|problem| on_gpu(|gpu| problem.solve(&gpu).unwrap()));
    assert_eq!(all.heads[20 * 64..40 * 64], alone.heads);
    for head in 0..2 {
        assert_eq!(all.log_sum_exp[head * 60 + 20..][..20], alone.log_sum_exp[head * 20..][..20]);
    }
}

#[test]
fn what_is_not_finite_stays_in_its_set() {
    for (width, dropout) in KERNELS {
        let heads = Heads { count: 2, width };
        for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
            for part in 0..3 {
                let problem = documents(&[3, 70, 5], heads, 9);
                let mut problem = problem.with_dropout(if dropout { 0.2 } else { 0.0 });
                let clean = answer(&run(&problem, &Config::default()));
                let [q, kv] = problem.qkv_mut();
                let (values, part_rows) = if part == 0 { (q, 0) } else { (kv, (part - 1) * 2 * 78) };
                values[(part_rows + 78 + 10) * width + 3] = bad;
                let found = answer(&run(&problem, &Config::default()));
                let of_others =
                    |values: &[f64]| [&values[..3 * heads.hidden()], &values[73 * heads.hidden()..]].concat();
                assert_eq!(of_others(&clean.heads), of_others(&found.heads), "{bad} in part {part}");
                // A value that is dropped where the CPU multiplies it by 0.
                if dropout {
                    continue;
                }
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
    let problem = documents(&[1, 300], Heads { count: 2, width: 32 }, 1);
    let right = problem.exact();
    assert!(problem.deviations(&right)[0].is_allowed());
    let mut wrong = right.clone();
    wrong.heads[64..].iter_mut().for_each(|value| *value *= 1.03);
    assert!(!problem.deviations(&wrong)[0].is_allowed(), "{:?}", problem.deviations(&wrong));
}

/// Twelve keys behind a set's last that count: no result is off by much.
#[test]
fn keys_that_hardly_count_are_found() {
    let heads = Heads { count: 2, width: 32 };
    let (mut longer, problem) = (documents(&[512], heads, 1), documents(&[500], heads, 1));
    let [q, kv] = longer.qkv_mut();
    for (to, from) in [(q, problem.q()), (kv, problem.kv())] {
        let (rows, own) = (to.chunks_exact_mut(512 * 32), from.chunks_exact(500 * 32));
        rows.zip(own).for_each(|(to, from)| to[..500 * 32].copy_from_slice(from));
    }
    let [of_longer, mut wrong] = [longer.exact(), problem.exact()];
    wrong.heads.copy_from_slice(&of_longer.heads[..500 * heads.hidden()]);
    assert!(!problem.deviations(&wrong)[0].is_allowed(), "{:?}", problem.deviations(&wrong));
}

/// The first keys have no weight: what is summed before the others come is nothing, not NaN.
#[test]
fn keys_that_are_infinitely_far() {
    for far in [64, 130] {
        let mut problem = documents(&[130], Heads { count: 1, width: 32 }, 1);
        let [q, kv] = problem.qkv_mut();
        for row in 0..130 {
            q[row * 32] = bf16::ONE;
            if row < far {
                kv[row * 32] = bf16::NEG_INFINITY;
            }
        }
        check(&problem, &Config::default());
    }
}

/// From denormal numbers to scores of 10,000 and more.
#[test]
fn scores_of_any_size() {
    for scale in [0.0, 1e-39, 1e-3, 30.0, 100.0] {
        let mut problem = documents(&[65, 3], Heads { count: 1, width: 32 }, 4);
        for values in problem.qkv_mut() {
            values.iter_mut().for_each(|value| *value = bf16::from_f64(value.to_f64() * scale));
        }
        check(&problem, &Config::default());
    }
}

#[test]
fn a_race_is_found() {
    let sources = Sources::repository(&["attention.cu"]).unwrap();
    let barrier =
        "        ptx::barrier_sync(1 + ATTENTION_FORWARD_WARPS + (threadIdx.x / 32 & -warps), 32 * warps);\n";
    let sources = sources.replace("attention_forward.cuh", barrier, "").unwrap();
    let program = Program::new(&sources.only("attention_forward_split_d32"), Sanitizer::Thread).unwrap();
    let points = Roles::Induce { points: 20 };
    let problem = Problem::random(points, &[200], Heads { count: 1, width: 32 }, 5);
    let mut launch = problem.launch(&Limits::SM_90);
    // What is waited for comes first, so that nothing but the race is wrong.
    let outcome = program.run(&mut launch, &Config::default().schedule(Schedule::Reversed)).unwrap();
    let race = |finding: &Finding| {
        finding.kind.contains("data race")
            && finding.places.iter().any(|place| place.file.ends_with("attention_tile.cuh"))
    };
    assert!(outcome.findings.iter().any(race), "{outcome:#?}");
}

#[test]
fn what_is_read_is_read_once() {
    let heads = Heads { count: 8, width: 32 };
    let mut launch = documents(&[40, 7], heads, 1).launch(&Limits::SM_90);
    let found = emulate::run(&Kernels::repository(), &mut launch, &Config::default().counting()).unwrap();
    let values = 47 * heads.hidden() as u64;
    // q, k and v in bf16, and a tile of 32 bytes and a block of 16 a set; heads in bf16 and log-sum-exp in f32.
    assert_eq!(found.unique_read, 3 * 2 * values + 2 * (32 + 16));
    assert_eq!(found.unique_written, 2 * values + 4 * 47 * 8);
    // Written once; the eight f32 that a request has at most touch one sector, or two.
    let of_sums = found.requested_written - 2 * values;
    assert!((4 * 47 * 8..=2 * 4 * 47 * 8).contains(&of_sums), "{of_sums}");
}

/// Two weights are most of a row, and are rounded to a result next to a tie, as few references would have them.
#[test]
fn a_weight_that_is_rounded_far() {
    check(
        &documents(&[102, 2, 125], Heads { count: 2, width: 32 }, 15533033441205032037),
        &Config::default(),
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_sizes(
        sizes in proptest::collection::vec(prop_oneof![0usize..5, 0usize..200], 1..6),
        kernel in 0usize..KERNELS.len(),
        role in 0usize..3,
        points in 1usize..=128,
        seed in any::<u64>(),
    ) {
        prop_assume!(sizes.iter().sum::<usize>() > 0);
        let (width, dropout) = KERNELS[kernel];
        let roles = [Roles::Documents, Roles::Induce { points }, Roles::Attend { points }][role];
        let sizes: Vec<usize> = sizes.into_iter().filter(|&size| size > 0 || role != 1).collect();
        let problem = Problem::random(roles, &sizes, Heads { count: 2, width }, seed);
        let configs: Vec<Config> = Config::matrix(&[seed]).collect();
        let problem = problem.with_dropout(if dropout { 0.4 } else { 0.0 });
        check(&problem, &configs[seed as usize % configs.len()]);
    }
}
