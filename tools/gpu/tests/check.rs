//! The check of a GPU, tried on the mock driver: that it passes there, and that it says what is wrong.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use setrank_emulator::driver;

const PROGRAM: &str = env!("CARGO_BIN_EXE_setrank-gpu-check");

/// The program on a mock GPU as configured.
fn on(device: &str, arguments: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments.split_whitespace());
    command.env("LD_LIBRARY_PATH", driver::directory()).env("SETRANK_MOCK_DEVICE", device);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a check says, and its exit code.
fn said(device: &str, check: &str) -> (String, String, Option<i32>) {
    let output = on(device, &format!("run {check} --small"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["name"], check);
    let of = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    (of("status"), of("message"), output.status.code())
}

/// The folder as pack.sh fills it, but for what the stage does not run.
fn packed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(source.join("check.sh"), folder.path().join("check.sh")).unwrap();
    fs::create_dir(folder.path().join("stage")).unwrap();
    for file in fs::read_dir(source.join("stage")).unwrap() {
        let file = file.unwrap();
        if file.path().is_file() {
            fs::copy(file.path(), folder.path().join("stage").join(file.file_name())).unwrap();
        }
    }
    std::os::unix::fs::symlink(PROGRAM, folder.path().join("setrank-gpu-check")).unwrap();
    folder
}

/// Runs a stage; its report, the names of its files, and whether it says that all is well.
fn stage(device: &str, with_driver: bool) -> (Value, Vec<String>, bool) {
    let folder = packed();
    let mut command = Command::new(folder.path().join("check.sh"));
    command.args(["--stage", "triage", "--small", "--out"]).arg(folder.path().join("out"));
    command.env_remove("LD_LIBRARY_PATH").env("SETRANK_MOCK_DEVICE", device);
    if with_driver {
        command.env("LD_LIBRARY_PATH", driver::directory());
    }
    let output = command.output().unwrap();
    let file = folder.path().join("out/triage.json");
    let report = fs::read(file).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let files = fs::read_dir(folder.path().join("out")).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    (serde_json::from_slice(&report).unwrap(), files, output.status.success())
}

/// Names of the results of a status.
fn of_status<'a>(report: &'a Value, status: &str) -> Vec<&'a str> {
    let results = report["results"].as_array().unwrap().iter();
    results.filter(|row| row["status"] == status).map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn the_triage_passes_on_the_mock_driver() {
    let (report, files, is_well) = stage("", true);
    assert!(is_well && files.len() <= 8, "{report:#}");
    let names = text(&on("", "list").stdout);
    let mut expected: Vec<&str> = names.lines().chain(["machine"]).collect();
    let mut passed = of_status(&report, "passed");
    expected.sort_unstable();
    passed.sort_unstable();
    assert_eq!(passed, expected, "{report:#}");
}

#[test]
fn a_fault_is_reported() {
    let (report, _, is_well) = stage("launch-fails-at=2", true);
    assert!(!is_well);
    // Of the kernels that are launched once nothing is seen.
    let errors = of_status(&report, "error");
    assert!(errors.contains(&"add") && errors.contains(&"step/msab"), "{report:#}");
    assert!(of_status(&report, "passed").contains(&"copy"), "{report:#}");
}

/// Every launch is waited for: a fault is that of the launch that has it, not of the one before.
#[test]
fn a_fault_names_its_kernel() {
    for (number, kernel) in [(1, "layer_norm_forward_narrow"), (2, "layer_norm_backward_narrow")] {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "layer_norm/1", "--small"]).env("CUDA_LAUNCH_BLOCKING", "1");
        command.env("LD_LIBRARY_PATH", driver::directory());
        let output =
            command.env("SETRANK_MOCK_DEVICE", format!("launch-fails-at={number}")).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let message = report["message"].as_str().unwrap();
        assert!(message.contains(kernel) && message.contains("CUDA_ERROR_LAUNCH_FAILED"), "{message}");
        assert!(!message.contains("it may be of an earlier launch"), "{message}");
    }
}

/// What graphs compute is held against launches one by one, and where there can be no graph that is said.
#[test]
fn graphs_are_held_against_launches() {
    // A launch of the first learner's, which has no graphs.
    let lost = on("launch-lost-at=40", "run graphs/msab --small");
    let report: Value = serde_json::from_slice(&lost.stdout).unwrap();
    assert_eq!((&report["status"], lost.status.code()), (&"failed".into(), Some(1)), "{report}");
    let what = report["mismatches"][0]["what"].as_str().unwrap();
    assert!(what.ends_with("of steps that are graphs, or not finite"), "{what}");
    let mut command = Command::new(PROGRAM);
    command.args(["run", "graphs/imsab", "--small"]).env("CUDA_LAUNCH_BLOCKING", "1");
    let output = command.env("LD_LIBRARY_PATH", driver::directory()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["status"], "skipped");
    assert!(report["message"].as_str().unwrap().contains("each launch is waited for"), "{report}");
}

#[test]
fn without_a_driver_it_says_so() {
    let (report, _, is_well) = stage("", false);
    assert!(!is_well);
    assert_eq!(of_status(&report, "error"), ["machine"]);
    assert!(report.to_string().contains("there is no NVIDIA driver"), "{report:#}");
}

#[test]
fn what_is_wrong_is_said_in_words() {
    for (device, check, status, part) in [
        ("launch-fails-at=1", "copy", "error", "CUDA_ERROR_LAUNCH_FAILED"),
        ("devices=0", "copy", "error", "finds no GPU"),
        ("cc=7.5", "copy", "error", "compute capability 7.5"),
        ("driver=12080", "copy", "error", "install driver 580"),
        ("cc=8.0", "ptx/bulk", "skipped", "these instructions are 9.0's"),
        ("cc=8.0", "attention_sm90/40", "skipped", "this family has no kernel for it"),
        ("memory=256K", "step/msab", "error", "of GPU memory"),
    ] {
        let (found, message, code) = said(device, check);
        assert_eq!(
            (found.as_str(), code),
            (status, Some(if status == "error" { 2 } else { 0 })),
            "{message}"
        );
        assert!(message.contains(part), "{device}: {message}");
    }
    let unknown = on("", "run nothing");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("there is no check `nothing`"));
}
