//! Models on a GPU, through the command line: the release's own path to the driver, on the mock driver.
#![cfg(all(feature = "cuda", target_os = "linux", target_arch = "x86_64"))]

use serde_json::Value;
use setrank_emulator::driver;

use crate::common::{Folder, contains, with_data};

/// A model that kernels compute, as small as they go.
const MODEL: &str =
    "--blocks 1 --ffn 64 --inducing 4 --batch-sets 4 --valid valid.txt --loss softmax_cross_entropy";

/// Runs on a mock GPU; what it printed, and whether it was all right.
fn on(folder: &Folder, device: &str, arguments: &str) -> Result<String, String> {
    let output = folder
        .command(arguments)
        .env("LD_LIBRARY_PATH", driver::directory())
        .env("SETRANK_MOCK_DEVICE", device)
        .output()
        .unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    if output.status.success() {
        return Ok(out + &err);
    }
    assert_eq!(output.status.code(), Some(1), "{err}");
    Err(err)
}

/// The losses of the steps of a run.
fn losses(folder: &Folder, model: &str) -> Vec<f64> {
    let log = folder.text(&format!("{model}/log.jsonl"));
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter_map(|record| record["loss"].as_f64()).collect()
}

fn train(output: &str, device: &str, more: &str) -> String {
    let width = if more.contains("--heads") { "" } else { "--heads 2" };
    let hidden = if more.contains("--hidden") { "" } else { "--hidden 64" };
    format!("train --train train.txt -o {output} --device {device} {MODEL} {width} {hidden} {more}")
}

#[test]
fn a_gpu_trains_evaluates_and_ranks_as_the_processor_does() {
    let folder = with_data();
    let steps = "--max-steps 3 --patience 0";
    folder.ok(&train("cpu", "cpu", steps));
    on(&folder, "workers=2", &train("gpu", "cuda", steps)).unwrap();
    let (expected, found) = (losses(&folder, "cpu"), losses(&folder, "gpu"));
    assert_eq!((expected.len(), found.len()), (3, 3));
    for (expected, found) in expected.iter().zip(&found) {
        // By how much exactly is the business of the kernels' own tests: here, that it is the same run.
        assert!((expected - found).abs() <= 0.02 * expected.abs(), "{found} instead of {expected}");
    }
    // Both read what the other has written, and a run goes on on the other device.
    let ndcg = |out: String| -> f64 {
        serde_json::from_str::<Value>(&out).unwrap()["metrics"]["ndcg@10"]["mean"].as_f64().unwrap()
    };
    let eval = "eval --model gpu --data valid.txt --metrics ndcg@10 --json";
    let by_cpu = ndcg(folder.ok(eval));
    let by_gpu = ndcg(on(&folder, "workers=2", &format!("{eval} --device cuda")).unwrap());
    assert!((by_cpu - by_gpu).abs() < 0.02, "{by_gpu} instead of {by_cpu}");
    let scores = on(&folder, "workers=2", "rank --model cpu --data valid.txt --device cuda").unwrap();
    let lines = |text: &str| -> Vec<f64> { text.lines().map(|line| line.parse().unwrap()).collect() };
    let (by_cpu, by_gpu) = (lines(&folder.ok("rank --model cpu --data valid.txt")), lines(&scores));
    let largest = by_cpu.iter().fold(0.0f64, |most, score| most.max(score.abs()));
    let off = by_cpu.iter().zip(&by_gpu).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
    assert!(by_cpu.len() == by_gpu.len() && off <= 0.05 * largest, "{off} of {largest}");
    let resume = "train --resume --max-steps 4";
    folder.ok(&format!("{resume} -o gpu --device cpu"));
    on(&folder, "workers=2", &format!("{resume} -o cpu --device cuda")).unwrap();
    assert_eq!((losses(&folder, "cpu").len(), losses(&folder, "gpu").len()), (4, 4));
}

#[test]
fn auto_takes_a_gpu_that_computes_the_model() {
    let folder = with_data();
    let told = on(&folder, "workers=2", &train("model", "auto", "--max-steps 1")).unwrap();
    contains(&told, &["device: GPU (", "features: streamed", "as --noise or --feature-dropout changes them"]);
    let told = on(&folder, "", &train("other", "auto", "--max-steps 1 --heads 4 --overwrite")).unwrap();
    contains(&told, &["device: CPU (", "a head is 16 wide"]);
    let listed = on(&folder, "", "info --devices").unwrap();
    contains(&listed, &["auto: cuda: "]);
}

#[test]
fn what_a_gpu_cannot_do_is_said() {
    let folder = with_data();
    for (device, more, parts) in [
        ("", "--heads 4", &["a head is 16 wide", "32 or 64", "--device cpu"][..]),
        ("", "--hidden 96 --heads 3", &["hidden_size is 96", "multiple of 64 up to 512"]),
        ("memory=1140K", "", &["documents in 4 set(s) needs", "are free: use --batch-docs"]),
        ("memory=1M", "", &["the model's parameters, gradients and moments needs"]),
        ("launch-fails-at=20", "", &["CUDA_ERROR_LAUNCH_FAILED"]),
        ("out-of-memory-at=2", "", &["a batch of ", "set(s) needs"]),
    ] {
        let said = on(&folder, device, &train("model", "cuda", &format!("--max-steps 2 {more}")));
        contains(&said.unwrap_err(), parts);
    }
    let none = folder.fails(&train("model", "cuda", "--max-steps 1"));
    contains(&none, &["--device cuda", "there is no NVIDIA driver"]);
    let bench = on(&folder, "", "bench train --device cuda");
    contains(&bench.unwrap_err(), &["measures the processor alone"]);
}

/// A run that diverges ends in words.
#[test]
fn what_is_not_finite_ends_the_run() {
    let folder = with_data();
    let diverges = train("model", "cuda", "--max-steps 6 --lr 1e38 --clip 0 --ema 0");
    contains(&on(&folder, "workers=2", &diverges).unwrap_err(), &["step ", "is NaN"]);
}

/// A run that the GPU lets down in the middle leaves what was saved before, and can be gone on with as if nothing had
/// happened.
#[test]
fn a_gpu_that_fails_in_the_middle_leaves_what_was_saved() {
    let folder = with_data();
    let train = |output: &str, steps: u64| {
        let constant = "--noise 0 --feature-dropout 0";
        train(output, "cuda", &format!("--max-steps {steps} --valid-every 2 --patience 0 {constant}"))
    };
    contains(&on(&folder, "", &train("whole", 4)).unwrap(), &["features: ", " resident on the GPU"]);
    let saved =
        |model: &str| ["model", "state"].map(|name| folder.bytes(&format!("{model}/{name}.safetensors")));
    assert_eq!(losses(&folder, "whole").len(), 4);
    for (device, model, parts) in [
        ("launch-fails-at=80", "kernel", &["launching ", "CUDA_ERROR_LAUNCH_FAILED"][..]),
        ("out-of-memory-at=4", "memory", &["a batch of ", "set(s) needs ", " are free"]),
    ] {
        on(&folder, "", &train(model, 2)).unwrap();
        let before = saved(model);
        let resume = format!("train --resume --max-steps 4 -o {model}");
        let said = on(&folder, device, &resume).unwrap_err();
        contains(&said, parts);
        assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
        assert!(saved(model) == before, "{device}: {said}");
        folder.ok(&format!("eval --model {model} --data valid.txt"));
        on(&folder, "", &resume).unwrap();
        assert_eq!(losses(&folder, model), losses(&folder, "whole"));
        assert!(saved(model) == saved("whole"), "{device}");
    }
}
