//! The rungs that every family climbs; `ladder!` makes tests of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use setrank_emulator::emulate::{self, Config, Copies, Schedule, Sums};
use setrank_emulator::kernels::{Kernels, Sources};
use setrank_emulator::launch::Launch;
use setrank_emulator::ptx;
use setrank_emulator::sanitize::{Program, Sanitizer};

use crate::family::{Case, Family, WRONG_RESULTS};

/// Tests of a family, in the module that calls it.
macro_rules! ladder {
    ($family:expr) => {
        $crate::ladder::ladder!($family, of_sm_90);

        #[test]
        fn the_interpreter_agrees() {
            $crate::ladder::the_interpreter_agrees(&$family);
        }
    };
    // The interpreter knows no instructions of sm_90.
    ($family:expr, of_sm_90) => {
        #[test]
        fn right_in_every_schedule() {
            $crate::ladder::right_in_every_schedule(&$family);
        }

        #[test]
        fn no_access_outside_and_nothing_undefined() {
            $crate::ladder::sanitized(&$family, setrank_emulator::sanitize::Sanitizer::Address);
        }

        #[test]
        fn no_race() {
            $crate::ladder::sanitized(&$family, setrank_emulator::sanitize::Sanitizer::Thread);
        }

        #[test]
        fn bugs_in_the_source_are_caught() {
            $crate::ladder::bugs_in_the_source_are_caught(&$family);
        }

        #[test]
        fn bugs_in_the_launch_are_caught() {
            $crate::ladder::bugs_in_the_launch_are_caught(&$family);
        }
    };
}
pub(crate) use ladder;

fn small_cases(family: &Family) -> Vec<Case> {
    (family.cases)().into_iter().filter(|case| !case.is_large).collect()
}

/// Runs a case on the emulator.
fn emulated(case: &Case, config: &Config) -> Launch {
    let mut launch = case.launch();
    let config = config.shared_limit(case.limits.shared_per_block);
    emulate::run(&Kernels::repository(), &mut launch, &config)
        .unwrap_or_else(|report| panic!("{config:?}: {report}"));
    launch
}

/// Every case is right by the rule however matrix instructions add, and the same bits come of every schedule and every
/// time of copies.
pub fn right_in_every_schedule(family: &Family) {
    let other = Config::default().schedule(Schedule::Random).copies(Copies::AtRandom).seed(3).workers(2);
    for case in (family.cases)() {
        let first = emulated(&case, &Config::default());
        assert_eq!(case.wrong(&first), [], "{}", first.kernel);
        for config in Config::matrix(&[1]) {
            let found = emulated(&case, &config.workers(2));
            assert!(found == first, "{}: other bits with {config:?}: {:?}", found.kernel, case.wrong(&found));
        }
        // Schedules know nothing of sums: one is enough for the others.
        for sums in [Sums::Ampere, Sums::Hopper] {
            let found = emulated(&case, &other.sums(sums));
            assert_eq!(case.wrong(&found), [], "{}, {sums:?}", found.kernel);
        }
    }
}

/// The PTX that nvcc made computes the same; every kernel is run, and between them every inline assembly.
pub fn the_interpreter_agrees(family: &Family) {
    let file = format!("{}.ptx", family.name);
    let text = fs::read_to_string(Path::new(env!("SETRANK_KERNELS")).join(&file)).unwrap();
    let module = ptx::Module::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut covered: Option<ptx::Coverage> = None;
    let mut never_run: BTreeSet<&str> = module.kernels().collect();
    for case in (family.cases)() {
        let mut launch = case.launch();
        never_run.remove(&launch.kernel[..]);
        let options = ptx::Options { shared_limit: case.limits.shared_per_block, ..Default::default() };
        let coverage =
            module.run(&mut launch, &options).unwrap_or_else(|fault| panic!("{}: {fault}", launch.kernel));
        assert_eq!(case.wrong(&launch), [], "{} interpreted", launch.kernel);
        match &mut covered {
            Some(covered) => covered.merge(coverage),
            None => covered = Some(coverage),
        }
    }
    assert!(never_run.is_empty(), "without a case: {never_run:?}");
    let covered = covered.expect("a family has cases");
    let missing = covered.missing_asm();
    assert!(missing.is_empty(), "never executed: {missing:?}");
}

/// Kernels that sanitizers leave out, which are slowest of all: others have the same code. What is of one width of heads, and
/// what is of dropout or of none, the narrow kernel without and the wide one with it have between them; races are looked for
/// in narrow ones alone, but in backward by warpgroups.
fn is_like_others(kernel: &str, sanitizer: Sanitizer) -> bool {
    match sanitizer {
        Sanitizer::Address => kernel.ends_with("_d32_dropout") || kernel.ends_with("_d64"),
        Sanitizer::Thread => kernel.contains("_d64") && !kernel.contains("backward_wgmma"),
    }
}

/// Neither sanitizer finds anything.
pub fn sanitized(family: &Family, sanitizer: Sanitizer) {
    let sources = Sources::repository(&[&family.source()]).unwrap();
    let sources = sources.with(|kernel| !is_like_others(kernel, sanitizer));
    let program = Program::new(&sources, sanitizer).unwrap();
    // What is a race in one order is one in any.
    let schedules: &[Schedule] = match sanitizer {
        Sanitizer::Address => &[Schedule::Reversed, Schedule::Random],
        Sanitizer::Thread => &[Schedule::Random],
    };
    for case in small_cases(family) {
        for &schedule in schedules {
            let mut launch = case.launch();
            if is_like_others(&launch.kernel, sanitizer) {
                continue;
            }
            let outcome = program.run(&mut launch, &Config::default().schedule(schedule).seed(3)).unwrap();
            let kernel = &launch.kernel;
            assert!(outcome.findings.is_empty(), "{kernel}, {schedule:?}: {:#?}", outcome.findings);
            outcome.result.expect("the process lives").unwrap_or_else(|report| panic!("{report}"));
            assert_eq!(case.wrong(&launch), [], "{kernel}, {schedule:?}");
        }
    }
}

/// How a launch is found to be wrong, in the first schedule in which it is.
fn found(kernels: &Kernels, case: &Case, launch: &Launch) -> Option<String> {
    Config::matrix(&[1]).find_map(|config| {
        let mut launch = launch.clone();
        match emulate::run(kernels, &mut launch, &config.shared_limit(case.limits.shared_per_block)) {
            Err(report) => Some(report.text),
            Ok(_) => {
                let wrong = case.wrong(&launch);
                (!wrong.is_empty()).then(|| format!("{WRONG_RESULTS}: {wrong:?}"))
            }
        }
    })
}

/// Bugs that are not found, or not as is said of them: `all` has to stay empty.
#[derive(Default)]
struct Missed(Vec<String>);

impl Missed {
    /// Takes note of how a bug was found in a case's kernel.
    fn note(&mut self, what: &str, kernel: &str, found: Option<&str>, by: &[&str]) {
        match found {
            None => self.0.push(format!("{what} in {kernel}: not found")),
            Some(found) if by.iter().any(|part| found.contains(part)) => {}
            Some(found) => {
                let found = found.lines().next().unwrap_or_default();
                self.0.push(format!("{what} in {kernel}: found by: {found}"));
            }
        }
    }

    fn assert_none(self) {
        assert!(self.0.is_empty(), "{}", self.0.join("\n"));
    }
}

/// Bugs planted in the source are found, in every case of the kernels that have them.
pub fn bugs_in_the_source_are_caught(family: &Family) {
    let sources = Sources::repository(&[&family.source()]).unwrap();
    let cases = small_cases(family);
    let mut missed = Missed::default();
    for bug in family.bugs {
        let kernels = sources.clone().replace(bug.file, bug.right, bug.wrong).unwrap();
        let kernels = kernels.only(bug.kernels).compile().unwrap();
        let mut planted = 0;
        for case in &cases {
            let launch = case.launch();
            if launch.kernel.starts_with(bug.kernels) {
                let found = found(&kernels, case, &launch);
                missed.note(bug.what, &launch.kernel, found.as_deref(), bug.found_by);
                planted += 1;
            }
        }
        assert!(planted > 0, "{}: no kernel begins with `{}`", bug.what, bug.kernels);
    }
    missed.assert_none();
}

/// Launches that are not as planned are found out.
pub fn bugs_in_the_launch_are_caught(family: &Family) {
    let kernels = Kernels::repository();
    let cases = small_cases(family);
    let mut missed = Missed::default();
    for bug in family.wrong_launches {
        let mut planted = 0;
        for case in &cases {
            let mut launch = case.launch();
            if launch.kernel.starts_with(bug.kernels) {
                (bug.change)(&mut launch);
                let found = found(&kernels, case, &launch);
                missed.note(bug.what, &launch.kernel, found.as_deref(), bug.found_by);
                planted += 1;
            }
        }
        assert!(planted > 0, "{}: no kernel begins with `{}`", bug.what, bug.kernels);
    }
    missed.assert_none();
}
