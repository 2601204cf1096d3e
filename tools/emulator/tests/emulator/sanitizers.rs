//! The sanitizers find planted bugs, and nothing in correct kernels.

use std::fs;

use crate::common::{launch, launch_of, output, source};
use crate::vectors::{cluster, words};
use setrank_emulator::emulate::{Config, Copies, Fault, Schedule};
use setrank_emulator::kernels::Sources;
use setrank_emulator::launch::Launch;
use setrank_emulator::sanitize::{Finding, Outcome, Program, Sanitizer};

/// All kernels are in one program: compiling it is what takes time.
fn sources() -> Sources {
    let files = [
        "block.cu",
        "cluster_sm90.cu",
        "copies.cu",
        "copies_sm90.cu",
        "memory.cu",
        "misuse.cu",
        "races.cu",
        "warp.cu",
        "warp_sm90.cu",
    ];
    Sources::read(&files.map(source)).unwrap_or_else(|e| panic!("{e}"))
}

fn program(sanitizer: Sanitizer) -> Program {
    Program::new(&sources(), sanitizer).unwrap_or_else(|e| panic!("{e}"))
}

/// The lines of a kernel of races.cu that end in a mark.
fn marked(kernel: &str, mark: &str) -> Vec<u32> {
    let text = fs::read_to_string(source("races.cu")).unwrap();
    let mut inside = false;
    let mut lines = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.starts_with("KERNEL") {
            inside = line.contains(&format!(" {kernel}("));
        }
        if inside && line.ends_with(&format!("// {mark}")) {
            lines.push(number);
        }
    }
    lines
}

fn has_place(finding: &Finding, lines: &[u32]) -> bool {
    finding.places.iter().any(|place| place.file == "kernels/races.cu" && lines.contains(&place.line))
}

fn run(program: &Program, of: &Launch, config: &Config) -> (Outcome, Launch) {
    let mut of = of.clone();
    let outcome = program.run(&mut of, config).unwrap_or_else(|e| panic!("{e}"));
    (outcome, of)
}

#[test]
fn races_are_found() {
    let program = program(Sanitizer::Thread);
    let kernels = [
        ("race_of_neighbours", 64),
        ("race_of_stages", 64),
        ("race_of_copies", 64),
        ("race_of_rows", 32),
        ("race_of_bulk", 64),
        ("race_of_products", 128),
    ];
    for (kernel, threads) in kernels {
        let of = launch(kernel, threads, &words(256), 128, 0, 0);
        // In this order the outputs are right: only the race is wrong.
        let (outcome, _) = run(&program, &of, &Config::default().copies(Copies::AtIssue));
        assert!(matches!(outcome.result, Some(Ok(_))), "{kernel}: {:?}", outcome.result);
        let races = outcome.findings.iter().filter(|finding| finding.kind == "data race");
        let (written, read) = (marked(kernel, "written"), marked(kernel, "read"));
        let mut at_both = races.filter(|race| has_place(race, &written) && has_place(race, &read));
        assert!(at_both.next().is_some(), "{kernel}: {:#?}", outcome.findings);
    }
}

#[test]
fn accesses_outside_of_variables_are_found() {
    let program = program(Sanitizer::Address);
    let of = |a| launch("local_overflow", 32, &words(8), 32, a, 0);
    let (outcome, right) = run(&program, &of(7), &Config::default());
    assert!(matches!(outcome.result, Some(Ok(_))) && outcome.findings.is_empty(), "{outcome:#?}");
    assert_eq!(output(&right), [words(8)[7]; 32]);
    let (outcome, _) = run(&program, &of(8), &Config::default());
    let lines = marked("local_overflow", "found");
    let found =
        |kind: &str| outcome.findings.iter().any(|one| one.kind.contains(kind) && has_place(one, &lines));
    assert!(found("out of bounds") || found("stack-buffer-overflow"), "{outcome:#?}");
}

#[test]
fn undefined_behaviour_is_found() {
    let program = program(Sanitizer::Address);
    let of = launch("signed_overflow", 1, &[], 1, i32::MAX, 1);
    let (outcome, _) = run(&program, &of, &Config::default());
    let lines = marked("signed_overflow", "found");
    let mut found = outcome.findings.iter().filter(|one| one.kind.starts_with("signed integer overflow"));
    assert!(found.any(|one| has_place(one, &lines)), "{outcome:#?}");
}

#[test]
fn reports_of_the_emulator_come_through() {
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        let program = program(sanitizer);
        let of = launch("global_beyond", 32, &[], 32, 1, 0);
        let (outcome, _) = run(&program, &of, &Config::default());
        assert_eq!(outcome.findings, []);
        let report = outcome.result.unwrap().unwrap_err();
        assert_eq!(report.fault, Fault::IllegalAddress);
        assert!(report.text.contains("byte 128 of `output` of 128 bytes"), "{report}");
    }
}

#[test]
fn correct_kernels_pass() {
    let input = words(4096);
    let cases = [
        launch("ring", 128, &[], 128, 3, 0),
        launch("ring", 128, &[], 128, 3, 70),
        launch("producer", 64, &[], 32, 6, 0),
        launch("groups", 64, &input, 4 * 256, 4, 10),
        launch("bulk", 128, &input, 5 * 128, 5, 0),
        launch("ldmatrix_transposed", 32, &input, 128, 5, 3),
        launch("stmatrix", 32, &input, 128, 5, 3),
        launch("stmatrix_transposed", 32, &input, 128, 5, 3),
        launch("mma", 32, &input, 128, 2, 0),
        launch("passes", 32, &input, 256, 7, 0),
        launch("every_width", 64, &input, 480, 0, 0),
        launch("in_place", 32, &[], 32, 0, 0),
        launch_of(&cluster::boxes().remove(1)),
    ];
    let kernels = sources().compile().unwrap();
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        let program = program(sanitizer);
        for of in &cases {
            let expected = crate::common::run(&kernels, of, &Config::default()).unwrap();
            for config in [
                Config::default().copies(Copies::AtIssue),
                Config::default(),
                Config::default().schedule(Schedule::Random).copies(Copies::AtRandom).seed(3),
            ] {
                // Two blocks, one after the other in the same fibers.
                let mut of = of.clone();
                of.grid = [2, 1, 1];
                let (outcome, of) = run(&program, &of, &config);
                let passed = matches!(outcome.result, Some(Ok(_))) && outcome.findings.is_empty();
                assert!(passed, "{sanitizer:?} {} with {config:?}: {outcome:#?}", of.kernel);
                assert_eq!(output(&of), expected, "{}", of.kernel);
            }
        }
    }
}

#[test]
fn atomics_are_no_races() {
    let of = launch("atomics", 64, &[], 66, 0, 0);
    for schedule in Schedule::ALL {
        let (outcome, of) = run(&program(Sanitizer::Thread), &of, &Config::default().schedule(schedule));
        assert_eq!(outcome.findings, []);
        assert_eq!(output(&of)[..2], [64, 64 * 63 / 2]);
    }
}
