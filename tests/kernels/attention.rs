//! Set attention, forward: the emulator and the interpreter against float64.

use std::fs;
use std::path::Path;

use half::bf16;
use proptest::prelude::*;
use setrank::device::Limits;
use setrank::ops::attention::Heads;
use setrank::ops::attention::check::Problem;
use setrank_emulator::emulate::{self, Config, Copies, Schedule};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::ptx;

use crate::launches;

/// A head width, a card, and whether sets are short: a case for each kernel.
const CASES: [(usize, Limits, bool); 4] = [
    (32, Limits::SM_90, true),
    (32, Limits::SM_90, false),
    (64, Limits::SM_89, false),
    (64, Limits::SM_90, false),
];

/// Sizes that reach every path of a case.
fn sizes(short: bool) -> &'static [usize] {
    if short {
        &[1, 2, 17, 31, 32, 33, 40, 64, 65, 0, 128]
    } else {
        &[1, 2, 17, 31, 32, 33, 40, 64, 65, 0, 129]
    }
}

/// Runs a problem on the emulator and holds the results against the rule.
fn check(problem: &Problem, limits: &Limits, config: &Config) {
    let mut launch = launches::set_attention(problem, limits);
    let config = config.shared_limit(limits.shared_per_block);
    emulate::run(&Kernels::repository(), &mut launch, &config)
        .unwrap_or_else(|report| panic!("{config:?}: {report}"));
    assert_right(problem, &launch, &format!("{} {config:?}", launch.kernel));
}

fn assert_right(problem: &Problem, launch: &setrank_emulator::launch::Launch, what: &str) {
    for (result, deviation) in
        ["heads", "log-sum-exp"].into_iter().zip(problem.deviations(&launches::answer(launch)))
    {
        assert!(deviation.is_allowed(), "{what}: {result}: {deviation:?}");
    }
}

#[test]
fn every_size_in_every_schedule() {
    for (width, limits, short) in CASES {
        let problem = Problem::random(sizes(short), Heads { count: 2, width }, width as u64);
        for config in Config::matrix(&[1, 2]) {
            check(&problem, &limits, &config);
        }
    }
}

#[test]
fn large_sets() {
    for (width, limits, _) in CASES {
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
        let mut launch = launches::set_attention(problem, &Limits::SM_90);
        emulate::run(&Kernels::repository(), &mut launch, &config).unwrap();
        launches::answer(&launch)
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
                problem.qkv[(begin + first) * heads.width..(begin + last) * heads.width].to_vec()
            })
            .collect()
    };
    for (first, last) in [(0, 70), (70, 270)] {
        let alone = Problem { offsets: vec![0, last - first], heads, qkv: part_of(first, last) };
        let alone = run(&alone, Config::default());
        assert_eq!(alone.heads, first_run.heads[first * heads.hidden()..last * heads.hidden()]);
    }
}

#[test]
fn what_is_not_finite_stays_in_its_set() {
    for (width, limits, _) in CASES {
        let heads = Heads { count: 2, width };
        for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
            for part in 0..3 {
                let mut problem = Problem::random(&[3, 70, 5], heads, 9);
                let clean = launches::set_attention(&problem, &limits);
                let row = (part * heads.count + 1) * problem.rows() + 10;
                problem.qkv[row * width + 3] = bad;
                let run = |mut launch| {
                    emulate::run(&Kernels::repository(), &mut launch, &Config::default()).unwrap();
                    launches::answer(&launch)
                };
                let (clean, found) = (run(clean), run(launches::set_attention(&problem, &limits)));
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
fn scores_of_any_size() {
    for scale in [0.0, 1e-3, 30.0] {
        let mut problem = Problem::random(&[65, 3], Heads { count: 1, width: 32 }, 4);
        problem.qkv.iter_mut().for_each(|value| *value = bf16::from_f64(value.to_f64() * scale));
        check(&problem, &Limits::SM_90, &Config::default());
    }
}

#[test]
fn the_interpreter_agrees() {
    let text = fs::read_to_string(Path::new(env!("SETRANK_KERNELS")).join("attention.ptx")).unwrap();
    let module = ptx::Module::parse(&text).unwrap_or_else(|error| panic!("attention.ptx: {error}"));
    let mut covered: Option<ptx::Coverage> = None;
    for (width, limits, _) in CASES {
        for sizes in [&[1, 33, 0, 130][..], &[64, 128], &[200]] {
            let problem = Problem::random(sizes, Heads { count: 2, width }, 11);
            let mut launch = launches::set_attention(&problem, &limits);
            let options = ptx::Options { shared_limit: limits.shared_per_block, ..Default::default() };
            let coverage = module
                .run(&mut launch, &options)
                .unwrap_or_else(|fault| panic!("{}: {fault}", launch.kernel));
            assert_right(&problem, &launch, &format!("{} interpreted", launch.kernel));
            match &mut covered {
                Some(covered) => covered.merge(coverage),
                None => covered = Some(coverage),
            }
        }
    }
    let covered = covered.expect("problems were run");
    let missing = covered.missing_asm();
    assert!(missing.is_empty(), "never executed: {missing:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_sizes(
        sizes in proptest::collection::vec(prop_oneof![0usize..5, 0usize..200], 1..6),
        case in 0usize..CASES.len(),
        seed in any::<u64>(),
    ) {
        prop_assume!(sizes.iter().sum::<usize>() > 0);
        let (width, limits, _) = CASES[case];
        let problem = Problem::random(&sizes, Heads { count: 2, width }, seed);
        let configs: Vec<Config> = Config::matrix(&[seed]).collect();
        check(&problem, &limits, &configs[seed as usize % configs.len()]);
    }
}
