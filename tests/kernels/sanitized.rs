//! The kernels under ASan with UBSan, and under TSan.

use setrank::device::Limits;
use setrank::ops::attention::Heads;
use setrank::ops::attention::check::Problem;
use setrank_emulator::emulate::{Config, Schedule};
use setrank_emulator::kernels::Sources;
use setrank_emulator::sanitize::{Finding, Program, Sanitizer};

use crate::launches;

fn run_clean(sanitizer: Sanitizer) {
    let program = Program::new(&Sources::repository(&["attention.cu"]).unwrap(), sanitizer).unwrap();
    let short: &[usize] = &[1, 40, 0, 70];
    let cases = [
        (32, Limits::SM_90, short),
        (32, Limits::SM_90, &[130]),
        (64, Limits::SM_89, short),
        (64, Limits::SM_90, &[130]),
    ];
    for (width, limits, sizes) in cases {
        let problem = Problem::random(sizes, Heads { count: 2, width }, 5);
        for schedule in Schedule::ALL {
            let mut launch = launches::set_attention(&problem, &limits);
            let outcome = program.run(&mut launch, &Config::default().schedule(schedule).seed(3)).unwrap();
            assert!(outcome.findings.is_empty(), "{schedule:?}: {:#?}", outcome.findings);
            outcome.result.expect("the process lives").unwrap_or_else(|report| panic!("{report}"));
            for deviation in problem.deviations(&launches::answer(&launch)) {
                assert!(deviation.is_allowed(), "{schedule:?}: {deviation:?}");
            }
        }
    }
}

#[test]
fn no_access_outside_and_nothing_undefined() {
    run_clean(Sanitizer::Address);
}

#[test]
fn no_race() {
    run_clean(Sanitizer::Thread);
}

#[test]
fn a_race_is_found() {
    let sources = Sources::repository(&["attention.cu"]).unwrap();
    let sources = sources.replace("attention.cu", "    ptx::sync_warp();\n", "").unwrap();
    let program = Program::new(&sources, Sanitizer::Thread).unwrap();
    let problem = Problem::random(&[40], Heads { count: 1, width: 32 }, 5);
    let mut launch = launches::set_attention(&problem, &Limits::SM_90);
    let outcome = program.run(&mut launch, &Config::default()).unwrap();
    let race = |finding: &Finding| {
        finding.kind.contains("data race")
            && finding.places.iter().any(|place| place.file.ends_with("attention.cu"))
    };
    assert!(outcome.findings.iter().any(race), "{outcome:#?}");
}
