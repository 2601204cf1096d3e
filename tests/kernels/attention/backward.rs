//! Backward: the kernels for all gradients of few points and of sets that stay on the chip, and those of others for the
//! gradient of q, and for those of k and v.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{AttentionBackward, AttentionBlock, AttentionTile};
use setrank::device::{Gpu, Limits, Plan};
use setrank::ops::attention::check::{BackwardProblem, Problem};
use setrank::ops::attention::{AttentionPlan, Heads, Roles};
use setrank::ops::check::Deviation;
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::{self, Config, Copies, Schedule};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use super::forward::combined;
use super::{KERNELS, LONGEST, ROLES, rising};
use crate::device::on_gpu;
use crate::family::{self, given, poisoned};

/// What the kernel for all gradients is to do: of few points, or of sets that stay on the chip.
pub struct Whole(pub BackwardProblem);

/// What combines the parts of the sets is to do, behind the kernel that leaves them.
pub struct Combine(pub BackwardProblem);

/// What the kernel for the gradient of q is to do.
pub struct Queries(pub BackwardProblem);

/// What the kernel for the gradients of k and v is to do.
pub struct Keys(pub BackwardProblem);

/// What the kernels are to do on a card where one does all sets, or none of them.
pub fn launches(limits: &Limits, problem: BackwardProblem) -> (Option<Whole>, Option<(Queries, Keys)>) {
    let plan = problem.forward().plan(limits).unwrap();
    match (plan.backward(false), plan.d_keys(false)) {
        (Some(_), None) => (Some(Whole(problem)), None),
        (None, Some(_)) => (None, Some((Queries(problem.clone()), Keys(problem)))),
        (resident, streamed) => panic!("sets of both kinds, or none: {resident:?}, {streamed:?}"),
    }
}

impl family::Problem for Whole {
    fn launch(&self, limits: &Limits) -> Launch {
        let problem = &self.0;
        let plan = problem.forward().plan(limits).unwrap();
        let launch = plan.backward(problem.forward().dropout().is_some());
        of_whole_sets(problem, &plan, launch, &plan.backward_sets, Some(&plan.backward_blocks))
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        all_deviations(&self.0, &combined(combining(&self.0, launch), launch))
    }
}

fn all_deviations(problem: &BackwardProblem, launch: &Launch) -> Vec<(&'static str, Deviation)> {
    let d_q = problem.deviation_of_queries(&wide(launch, "d_q"));
    let [d_k, d_v] = problem.deviations_of_keys(&wide(launch, "d_kv"));
    vec![("d q", d_q), ("d k", d_k), ("d v", d_v)]
}

impl family::Problem for Combine {
    fn launch(&self, limits: &Limits) -> Launch {
        let mut before = Whole(self.0.clone()).launch(limits);
        emulate::run(&Kernels::repository(), &mut before, &Config::default()).unwrap();
        combining(&self.0, &before).expect("a problem of long sets")
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        all_deviations(&self.0, launch)
    }
}

/// The launch that combines what `before` left of parts, where there are any.
fn combining(problem: &BackwardProblem, before: &Launch) -> Option<Launch> {
    let forward = problem.forward();
    let plan = forward.plan(&Limits::SM_90).unwrap();
    let buffers = vec![
        (offset_of!(AttentionBackward, partials), "partials", family::bytes(before, "partials")?),
        (offset_of!(AttentionBackward, q), "q", given(forward.q())),
        (offset_of!(AttentionBackward, kv), "kv", given(forward.kv())),
        (offset_of!(AttentionBackward, tiles), "tiles", given(&plan.parts.tiles)),
        (offset_of!(AttentionBackward, blocks), "blocks", given(&plan.parts.sets)),
        (offset_of!(AttentionBackward, d_q), "d_q", family::bytes(before, "d_q")?),
        (offset_of!(AttentionBackward, d_kv), "d_kv", family::bytes(before, "d_kv")?),
    ];
    Some(launch(problem, &plan, plan.combine_backward(), buffers))
}

impl family::Problem for Queries {
    fn launch(&self, limits: &Limits) -> Launch {
        let problem = &self.0;
        let plan = problem.forward().plan(limits).unwrap();
        let mut buffers = inputs(problem);
        buffers.extend([
            (offset_of!(AttentionBackward, output), "output", given(problem.heads())),
            (offset_of!(AttentionBackward, tiles), "tiles", given(&plan.d_query_tiles)),
            (offset_of!(AttentionBackward, delta), "delta", poisoned::<f32>(problem.log_sum_exp().len())),
            (offset_of!(AttentionBackward, d_q), "d_q", poisoned::<bf16>(problem.d_heads().len())),
        ]);
        launch(problem, &plan, plan.d_queries(problem.forward().dropout().is_some()), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let delta: Vec<f32> = family::result(launch, "delta");
        let delta: Vec<f64> = delta.into_iter().map(f64::from).collect();
        let d_q = self.0.deviation_of_queries(&wide(launch, "d_q"));
        vec![("d q", d_q), ("delta", self.0.deviation_of_delta(&delta))]
    }
}

impl family::Problem for Keys {
    fn launch(&self, limits: &Limits) -> Launch {
        let problem = &self.0;
        let plan = problem.forward().plan(limits).unwrap();
        let delta: Vec<f32> = problem.exact().delta.into_iter().map(|value| value as f32).collect();
        let mut buffers = inputs(problem);
        buffers.extend([
            (offset_of!(AttentionBackward, tiles), "tiles", given(&plan.d_key_tiles)),
            (offset_of!(AttentionBackward, delta), "delta", given(&delta)),
            (offset_of!(AttentionBackward, d_kv), "d_kv", poisoned::<bf16>(problem.forward().kv().len())),
        ]);
        launch(problem, &plan, plan.d_keys(problem.forward().dropout().is_some()), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let [d_k, d_v] = self.0.deviations_of_keys(&wide(launch, "d_kv"));
        vec![("d k", d_k), ("d v", d_v)]
    }
}

/// A launch of a kernel for all gradients of these sets, which may be shared out to blocks.
pub fn of_whole_sets(
    problem: &BackwardProblem,
    plan: &AttentionPlan,
    of: Option<Plan>,
    sets: &[AttentionTile],
    blocks: Option<&[AttentionBlock]>,
) -> Launch {
    let mut buffers = inputs(problem);
    buffers.extend([
        (offset_of!(AttentionBackward, output), "output", given(problem.heads())),
        (offset_of!(AttentionBackward, tiles), "tiles", given(sets)),
        (offset_of!(AttentionBackward, d_q), "d_q", poisoned::<bf16>(problem.d_heads().len())),
        (offset_of!(AttentionBackward, d_kv), "d_kv", poisoned::<bf16>(problem.forward().kv().len())),
    ]);
    buffers.extend(blocks.map(|blocks| (offset_of!(AttentionBackward, blocks), "blocks", given(blocks))));
    if !plan.parts.tiles.is_empty() {
        let partials = poisoned::<f32>(plan.scratch_len().partials);
        buffers.push((offset_of!(AttentionBackward, partials), "partials", partials));
    }
    launch(problem, plan, of, buffers)
}

type Buffers = Vec<(usize, &'static str, Vec<u8>)>;

/// What all kernels read.
fn inputs(problem: &BackwardProblem) -> Buffers {
    vec![
        (offset_of!(AttentionBackward, q), "q", given(problem.forward().q())),
        (offset_of!(AttentionBackward, kv), "kv", given(problem.forward().kv())),
        (offset_of!(AttentionBackward, d_output), "d_output", given(problem.d_heads())),
        (offset_of!(AttentionBackward, log_sum_exp), "log_sum_exp", given(problem.log_sum_exp())),
    ]
}

fn launch(problem: &BackwardProblem, plan: &AttentionPlan, launch: Option<Plan>, buffers: Buffers) -> Launch {
    let numbers = plan.backward_numbers(problem.relu(), problem.forward().dropout());
    family::launch(launch.expect("a problem has rows"), &numbers, buffers)
}

fn wide(launch: &Launch, name: &str) -> Vec<f64> {
    let values: Vec<bf16> = family::result(launch, name);
    values.into_iter().map(bf16::to_f64).collect()
}

/// Runs the kernels on the emulator, on a card of these limits, holds the results against the rule, and gives the
/// launches.
fn check_on(limits: &Limits, problem: BackwardProblem, config: &Config) -> Vec<Launch> {
    let config = config.shared_limit(limits.shared_per_block);
    let hold = |problem: &dyn family::Problem| {
        let mut launch = problem.launch(limits);
        emulate::run(&Kernels::repository(), &mut launch, &config)
            .unwrap_or_else(|report| panic!("{config:?}: {report}"));
        for (result, deviation) in problem.deviations(&launch) {
            assert!(deviation.is_allowed(), "{}, {config:?}: {result}: {deviation:?}", launch.kernel);
        }
        launch
    };
    match launches(limits, problem) {
        (Some(whole), _) => vec![hold(&whole)],
        (None, Some((queries, _))) => {
            let of_queries = hold(&queries);
            // With what its results are held against, which is known by now.
            vec![of_queries, hold(&Keys(queries.0))]
        }
        (None, None) => vec![],
    }
}

/// The same on a card with as much memory as there may be.
fn check(problem: BackwardProblem, config: &Config) -> Vec<Launch> {
    check_on(&Limits::SM_90, problem, config)
}

fn problem(roles: Roles, sizes: &[usize], heads: Heads, dropout: bool) -> Problem {
    Problem::random(roles, sizes, heads, 2).with_dropout(if dropout { 0.5 } else { 0.0 })
}

#[test]
fn every_role_of_every_kernel() {
    for (width, dropout) in KERNELS {
        for roles in ROLES {
            for relu in [false, true] {
                let forward = problem(roles, &[3, 70, 1], Heads { count: 2, width }, dropout);
                check(BackwardProblem::new(forward, relu, 1), &Config::default());
            }
        }
    }
}

#[test]
fn large_sets() {
    for (width, dropout) in KERNELS {
        let forward = problem(Roles::Documents, &[300, 360], Heads { count: 1, width }, dropout);
        let config = Config::default().schedule(Schedule::Pct).copies(Copies::AtRandom);
        check(BackwardProblem::new(forward, false, 3), &config.seed(2).workers(2));
    }
}

/// Sizes at which a set takes more warps, or its warps more keys in turn, on both sides; on cards of every size.
#[test]
fn where_groups_change() {
    let sizes: [(Limits, usize, &[usize]); 6] = [
        (Limits::SM_90, 32, &[16, 48, 49, 96, 97, 192, 193, 384, 385]),
        (Limits::SM_80, 32, &[32, 33, 496]),
        (Limits::SM_89, 32, &[16, 17, 32, 33, 80, 81, 176]),
        (Limits::SM_90, 64, &[8, 9, 48, 49, 96, 97, 384]),
        (Limits::SM_80, 64, &[32, 33, 64, 65, 144, 145, 288]),
        (Limits::SM_89, 64, &[16, 17, 32, 33, 80, 81, 160]),
    ];
    for (number, (limits, width, sizes)) in sizes.into_iter().enumerate() {
        let forward = problem(Roles::Documents, sizes, Heads { count: 1, width }, number % 2 == 1);
        let problem = BackwardProblem::new(forward, number % 3 == 0, 8);
        assert_eq!(check_on(&limits, problem, &Config::default().workers(2)).len(), 1);
    }
}

/// Every number of points, with sets of every number of warps.
#[test]
fn few_points() {
    for points in [1, 8, 9, 16, 17, 25, 32] {
        for roles in [Roles::Induce { points }, Roles::Attend { points }] {
            let (width, dropout) = KERNELS[points % 4];
            let forward = problem(roles, &[1, 8, 193, 400], Heads { count: 1, width }, dropout);
            check(BackwardProblem::new(forward, false, 8), &Config::default());
        }
    }
}

/// As long as sets get: more tiles of queries and of keys than anywhere else.
#[test]
fn the_longest_set() {
    for roles in LONGEST {
        let forward = problem(roles, &[4096], Heads { count: 1, width: 32 }, false);
        check(BackwardProblem::new(forward, false, 3), &Config::default().workers(2));
    }
}

/// The points of a set without documents get a gradient: 0.
#[test]
fn points_that_nobody_attends_to() {
    for ((width, dropout), points) in KERNELS.into_iter().zip([20, 100, 100, 20]) {
        let forward = problem(Roles::Attend { points }, &[0, 5, 0], Heads { count: 2, width }, dropout);
        let launches = check(BackwardProblem::new(forward, true, 4), &Config::default());
        let d_kv = wide(&launches[0], "d_kv");
        let of_sets = d_kv.chunks_exact(points * width).collect::<Vec<_>>();
        assert!(
            of_sets
                .iter()
                .enumerate()
                .all(|(at, set)| (at % 3 == 1) == set.iter().any(|&value| value != 0.0))
        );
    }
}

/// A score of 0, as keys behind the set have it, would weigh e^200 where all scores are far below 0.
#[test]
fn sums_that_are_tiny() {
    for (width, dropout) in KERNELS {
        let mut forward = problem(Roles::Documents, &[70, 20], Heads { count: 1, width }, dropout);
        let [q, kv] = forward.qkv_mut();
        let far = bf16::from_f64(200.0f64.sqrt() / (width as f64).powf(0.25));
        q.iter_mut().for_each(|value| *value = far);
        kv[..90 * width].iter_mut().for_each(|value| *value = -far);
        check(BackwardProblem::new(forward, false, 7), &Config::default());
    }
}

#[test]
fn what_is_not_finite_stays_in_its_set() {
    for (width, dropout) in KERNELS {
        let heads = Heads { count: 2, width };
        let clean = problem(Roles::Documents, &[3, 70, 5], heads, dropout);
        let results = |forward: Problem| {
            let whole = Whole(BackwardProblem::new(forward, false, 5));
            let mut launch = family::Problem::launch(&whole, &Limits::SM_90);
            emulate::run(&Kernels::repository(), &mut launch, &Config::default()).unwrap();
            ["d_q", "d_kv"].map(|name| family::result::<u16>(&launch, name)).concat()
        };
        let expected = results(clean.clone());
        for part in 0..3 {
            let mut bad = clean.clone();
            let [q, kv] = bad.qkv_mut();
            let (values, begin) = if part == 0 { (q, 0) } else { (kv, (part - 1) * 2 * 78) };
            values[(begin + 78 + 10) * width + 3] = bf16::NAN;
            let found = results(bad);
            for (rows, clean) in found.chunks_exact(78 * width).zip(expected.chunks_exact(78 * width)) {
                let others = |rows: &[u16]| [&rows[..3 * width], &rows[73 * width..]].concat();
                assert_eq!(others(rows), others(clean), "part {part}, width {width}");
            }
            assert!(found != expected);
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_schedule_or_workers() {
    for roles in [Roles::Documents, Roles::Induce { points: 20 }, Roles::Attend { points: 20 }] {
        let problem = || {
            let forward = problem(roles, &[70, 130], Heads { count: 2, width: 32 }, true);
            BackwardProblem::new(forward, true, 6)
        };
        let first = check(problem(), &Config::default());
        for config in Config::matrix(&[5]) {
            assert!(check(problem(), &config.workers(2)) == first, "{config:?}");
        }
    }
}

/// More parts than warps that combine them, of sets that are cut and one that is not.
#[test]
fn sets_of_many_parts() {
    for roles in [Roles::Induce { points: 20 }, Roles::Attend { points: 28 }] {
        let forward = Problem::random(roles, &[1030, 40, 5200], Heads { count: 1, width: 32 }, 4);
        let problem = BackwardProblem::new(rising(forward.with_dropout(0.2)), true, 9);
        let (heads, gradients) = on_gpu(|gpu| {
            (problem.forward().solve(&gpu).unwrap(), problem.hold(&gpu, "of many parts").unwrap())
        });
        assert!(
            problem.forward().deviations(&heads).into_iter().all(|deviation| deviation.is_allowed()),
            "{roles:?}"
        );
        assert!(gradients.iter().all(|checked| checked.deviation.is_allowed()), "{gradients:?}");
    }
}

/// Sets that stay on the chip beside one that does not: each is some kernel's.
#[test]
fn sets_of_both_kinds() {
    driver::with(&Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        for (width, sizes) in [(32, [40, 520, 3, 100]), (64, [40, 400, 3, 100])] {
            let forward = problem(Roles::Documents, &sizes, Heads { count: 1, width }, true);
            for checked in BackwardProblem::new(forward, true, 9).hold(&gpu, "of both kinds").unwrap() {
                assert!(checked.deviation.is_allowed(), "{checked:?}");
            }
        }
    })
    .unwrap();
}
