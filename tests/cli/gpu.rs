//! Models on a GPU, through the command line: the release's own path to the driver, on the mock driver.
#![cfg(all(feature = "cuda", target_os = "linux", target_arch = "x86_64"))]

use serde_json::Value;
use setrank_emulator::driver;

use crate::common::{Folder, contains, with_data};

/// A model that kernels compute, as small as they go.
const MODEL: &str = "--blocks 1 --ffn 64 --inducing 4 --valid valid.txt --loss softmax_cross_entropy";

/// A benchmark of such a model that ends at once.
const BENCH: &str =
    "--hidden 64 --heads 2 --blocks 1 --ffn 64 --inducing 4 --features 9 --steps 2 --warmup 1";

/// How far losses may be apart. By how much they are exactly is the business of the kernels' own tests: here, that it is
/// the same run, which another seed or another batch would not be.
const SAME_RUN: f64 = 0.02;

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
    let sets = if more.contains("--batch-sets") { "" } else { "--batch-sets 4" };
    format!("train --train train.txt -o {output} --device {device} {MODEL} {sets} {width} {hidden} {more}")
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
        assert!((expected - found).abs() <= SAME_RUN * expected.abs(), "{found} instead of {expected}");
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

/// The demo's model, as everyone meets it first.
#[test]
fn the_demo_trains_on_a_gpu() {
    let folder = Folder::new();
    let demo = |device: &str| format!("demo --queries 24 --epochs 1 -o {device} --device {device}");
    folder.ok(&demo("cpu"));
    let told = on(&folder, "workers=2", &demo("cuda")).unwrap();
    contains(&told, &["SetRank", "features: "]);
    let [cpu, gpu] = ["cpu", "cuda"].map(|device| losses(&folder, &format!("{device}/model")));
    assert_eq!((cpu.len(), gpu.len()), (3, 3));
    for (cpu, gpu) in cpu.iter().zip(&gpu) {
        assert!((cpu - gpu).abs() <= SAME_RUN * cpu.abs(), "{gpu} instead of {cpu}");
    }
}

#[test]
fn auto_takes_a_gpu_that_computes_the_model() {
    let folder = with_data();
    let told = on(&folder, "workers=2", &train("model", "auto", "--max-steps 1")).unwrap();
    contains(&told, &["device: GPU (", "features: ", " resident on the GPU"]);
    let told = on(&folder, "workers=2", &train("noisy", "auto", "--max-steps 1 --noise 0.1")).unwrap();
    contains(&told, &["device: GPU (", "features: streamed", "as --noise changes them"]);
    let told = on(&folder, "", &train("other", "auto", "--max-steps 1 --heads 4 --overwrite")).unwrap();
    contains(&told, &["device: CPU (", "a head is 16 wide"]);
    let listed = on(&folder, "", "info --devices").unwrap();
    contains(&listed, &["auto: cuda: "]);
}

/// Graphs change no bit of a run, which may go on without them; and are a matter of GPUs.
#[test]
fn graphs_are_asked_for_and_change_nothing() {
    let folder = with_data();
    let steps = "--max-steps 4 --patience 0 --dropout 0.1 --accumulate 2";
    for (output, more) in [("plain", ""), ("graphs", "--graphs")] {
        on(&folder, "workers=2", &train(output, "cuda", &format!("{steps} {more}"))).unwrap();
    }
    let model = |name: &str| std::fs::read(folder.path().join(name).join("model.safetensors")).unwrap();
    assert!(model("plain") == model("graphs"));
    assert!(folder.text("plain/train.toml").contains("graphs = false"));
    assert!(folder.text("graphs/train.toml").contains("graphs = true"));
    for output in ["plain", "graphs"] {
        on(&folder, "workers=2", &format!("train --resume -o {output} --max-steps 6 --graphs=false"))
            .unwrap();
    }
    assert!(model("plain") == model("graphs"));
    assert!(folder.text("graphs/train.toml").contains("graphs = false"));
    let rank = |more: &str| on(&folder, "", &format!("rank --model plain --data valid.txt {more}"));
    assert_eq!(rank("--device cuda --graphs"), rank("--device cuda"));
    for refused in [rank("--device cpu --graphs"), rank("--graphs")] {
        contains(&refused.unwrap_err(), &["--graphs", "graphs are of a GPU's launches: use --device cuda"]);
    }
    contains(&folder.fails(&train("other", "auto", "--graphs")), &["--graphs", "there is no NVIDIA driver"]);
    let waited = folder
        .command("rank --model plain --data valid.txt --device cuda --graphs")
        .env("LD_LIBRARY_PATH", driver::directory())
        .env("CUDA_LAUNCH_BLOCKING", "1")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(waited.stdout).unwrap(), rank("--device cuda").unwrap());
    let told = String::from_utf8(waited.stderr).unwrap();
    contains(&told, &["graphs: none, as CUDA_LAUNCH_BLOCKING=1 has each launch waited for"]);
    for (mode, graphs) in [("train", 2.0), ("infer", 1.0)] {
        let bench = |more: &str| -> Value {
            let batch = "--encoder msab --sizes 40 --sets 2 --peak-side 64 --json";
            let command = format!("bench {mode} --device cuda {BENCH} {batch} {more}");
            serde_json::from_str(&on(&folder, "workers=2", &command).unwrap()).unwrap()
        };
        let (plain, with_graphs) = (bench(""), bench("--graphs"));
        let of = |report: &Value, key: &str| report["gpu"][key].clone();
        assert_eq!(of(&plain, "launches_per_step"), of(&with_graphs, "launches_per_step"));
        assert_eq!([of(&plain, "graphs"), of(&with_graphs, "graphs")], [false, true]);
        let launched = [&plain, &with_graphs].map(|report| of(report, "graph_launches_per_step"));
        assert_eq!(launched, [0.0, graphs], "{mode}");
    }
    let table = on(&folder, "", &format!("bench infer --device cuda {BENCH} --sets 2 --peak 1 --graphs"));
    contains(&table.unwrap(), &["fused: all, graphs", "a step, in 1.0 graphs"]);
}

#[test]
fn kernels_by_wgmma_are_for_9_0_alone() {
    let folder = with_data();
    folder.ok(&train("model", "cpu", "--max-steps 1"));
    let rank = "rank --model model --data valid.txt --kernels wgmma";
    let scores = |device: &str, more: &str| on(&folder, device, &format!("{rank} {more}"));
    assert_eq!(scores("cc=9.0", "--device cuda").unwrap().lines().count(), {
        folder.ok("rank --model model --data valid.txt").lines().count()
    });
    let refused = scores("cc=8.0", "--device cuda").unwrap_err();
    contains(&refused, &["--kernels wgmma", "compute capability 8.0", "run on 9.0 alone: use --kernels mma"]);
    contains(&scores("cc=9.0", "").unwrap_err(), &["kernels by wgmma run on a GPU"]);
    for (device, listed) in [("cc=9.0", "kernels by mma or wgmma\n"), ("cc=8.0", "kernels by mma\n")] {
        contains(&on(&folder, device, "info --devices").unwrap(), &[listed]);
    }
}

/// How much kernels fuse changes no run, but for the last digits; and is a matter of GPUs.
#[test]
fn a_run_goes_on_however_much_is_fused() {
    let folder = with_data();
    let steps = "--max-steps 3 --patience 0";
    folder.ok(&train("cpu", "cpu", steps));
    on(&folder, "workers=2", &train("gpu", "cuda", &format!("{steps} --fuse none"))).unwrap();
    assert!(folder.text("gpu/train.toml").contains("fuse = \"none\""));
    on(&folder, "workers=2", "train --resume -o gpu --max-steps 4 --fuse flash").unwrap();
    assert!(folder.text("gpu/train.toml").contains("fuse = \"flash\""));
    let (expected, found) = (losses(&folder, "cpu"), losses(&folder, "gpu"));
    assert_eq!((expected.len(), found.len()), (3, 4));
    for (expected, found) in expected.iter().zip(&found) {
        assert!((expected - found).abs() <= SAME_RUN * expected.abs(), "{found} instead of {expected}");
    }
    let refused =
        |more: &str| on(&folder, "cc=9.0", &format!("rank --model gpu --data valid.txt {more}")).unwrap_err();
    contains(&refused("--fuse none"), &["--fuse none", "only a GPU's kernels are fused: use --device cuda"]);
    let wgmma = refused("--device cuda --kernels wgmma --fuse flash");
    contains(&wgmma, &["--kernels wgmma --fuse flash", "use --fuse attention or all, or --kernels mma"]);
    let here = folder.fails(&train("other", "auto", "--fuse attention"));
    contains(&here, &["--fuse attention", "there is no NVIDIA driver"]);
    // A rung is what its kernels are.
    let all = [
        "attention_naive_softmax",
        "attention_d_keys_d32",
        "attention_backward_d32",
        "feed_forward_c64",
        "feed_forward_backward_c64",
    ];
    for (fuse, expected) in [
        ("none", [1, 0, 0, 0, 0]),
        ("flash", [0, 1, 0, 0, 0]),
        ("attention", [0, 0, 1, 0, 0]),
        ("all", [0, 0, 1, 1, 1]),
    ] {
        let file = format!("{fuse}.json");
        let batch = "--encoder msab --sizes 40 --sets 2 --peak-side 64";
        let command = format!("bench train --device cuda {BENCH} {batch} --json {file} --fuse {fuse}");
        on(&folder, "multiprocessors=1,workers=2", &command).unwrap();
        let report: Value = serde_json::from_str(&folder.text(&file)).unwrap();
        assert_eq!(report["gpu"]["fuse"], fuse);
        let kernels = report["gpu"]["kernels"].as_array().unwrap();
        let has = all.map(|name| usize::from(kernels.iter().any(|kernel| kernel["kernel"] == name)));
        assert_eq!(has, expected, "{fuse}: {kernels:?}");
    }
    // What does not fit counts the pairs.
    let bench = format!("bench infer --device cuda {BENCH} --encoder msab --sizes 300 --sets 2");
    on(&folder, "memory=2M", &bench).unwrap();
    let large = on(&folder, "memory=2M", &format!("{bench} --fuse none")).unwrap_err();
    contains(&large, &["a batch of 600 documents in 2 set(s) needs", "use --fuse flash", "--batch-docs 3"]);
}

#[test]
fn what_a_gpu_cannot_do_is_said() {
    let folder = with_data();
    for (device, more, parts) in [
        ("", "--heads 4", &["a head is 16 wide", "32 or 64", "--device cpu"][..]),
        ("", "--hidden 96 --heads 3", &["hidden_size is 96", "multiple of 64 up to 512"]),
        ("memory=1350K", "--batch-sets 12", &["documents in 12 set(s) needs", "are free: use --batch-docs"]),
        // Of the longest set.
        ("memory=1140K", "", &["documents in 1 set(s) needs", "are free: use --top-k", "--device cpu"]),
        ("memory=1M", "", &["the model's parameters, gradients and moments would take"]),
        ("launch-fails-at=20", "", &["CUDA_ERROR_LAUNCH_FAILED"]),
        ("out-of-memory-at=2", "", &["the features of ", " documents would take"]),
        ("out-of-memory-at=3", "", &["a batch of ", "set(s) would take"]),
    ] {
        let said = on(&folder, device, &train("model", "cuda", &format!("--max-steps 2 {more}")));
        contains(&said.unwrap_err(), parts);
    }
    // Of what is to be validated, which is more than what is learned from.
    folder.file("pair.txt", "1 qid:1 1:0.5 5:0.5\n0 qid:1 1:0.1 5:0.5\n");
    let document = |query: usize| format!("{} qid:{query} 1:0.{query} 5:0.5\n", query % 2);
    folder.file("wide.txt", (1..13).map(|query| document(query).repeat(40)).collect::<String>());
    let of_pair = train("model", "cuda", "--max-steps 1")
        .replace("train.txt", "pair.txt")
        .replace("valid.txt", "wide.txt");
    let said = on(&folder, "memory=1290K", &of_pair).unwrap_err();
    contains(&said, &["documents in 12 set(s) needs", "are free: use --top-k", "--device cpu"]);
    // What no training can do is said as on the processor; what no set may be on this card, before a step is taken.
    let lines = |labels: usize, documents: usize| -> String {
        (0..documents).map(|number| format!("{} qid:1 1:0.{number} 2:0.5\n", number % labels)).collect()
    };
    for (name, text, parts) in [
        ("irrelevant", lines(1, 20), &["the training data has no relevant document"][..]),
        ("long", lines(2, 12_669), &["a set has at most 12668 documents, not 12669: use --top-k 12668"]),
    ] {
        folder.file(&format!("{name}.txt"), text);
        let command = train("model", "cuda", "--max-steps 1");
        let command = ["train.txt", "valid.txt"]
            .iter()
            .fold(command, |command, file| command.replace(file, &format!("{name}.txt")));
        contains(&on(&folder, "cc=8.9", &command).unwrap_err(), parts);
    }
    let none = folder.fails(&train("model", "cuda", "--max-steps 1"));
    contains(&none, &["--device cuda", "there is no NVIDIA driver"]);
    let bench = on(&folder, "memory=3M", &format!("bench train --device cuda {BENCH} --sizes 40"));
    contains(&bench.unwrap_err(), &["a batch of 1280 documents in 32 set(s) needs", "use --batch-docs"]);
    let bench = on(&folder, "", &format!("bench infer --device cuda {BENCH} --sizes 40 --batch-docs 39"));
    contains(&bench.unwrap_err(), &["--batch-docs 39: the first set has more documents"]);
}

/// Values that are missing or infinite are made numbers before they come to the GPU.
#[test]
fn odd_features_are_learned_from_as_on_the_processor() {
    let folder = Folder::new();
    let lines = |value: &str| -> String {
        (0..20).map(|number| format!("{} qid:1 1:0.{number} 2:{value}\n", number % 3)).collect()
    };
    folder.file("valid.txt", lines("0.5"));
    for value in ["nan", "inf", "1e38"] {
        folder.file("train.txt", lines("0.5") + &lines(value).replace("qid:1", "qid:2"));
        let train = |device| train(&format!("{device}-{value}"), device, "--max-steps 2 --noise 0");
        folder.ok(&train("cpu"));
        on(&folder, "workers=2", &train("cuda")).unwrap();
        let [cpu, gpu] = ["cpu", "cuda"].map(|device| losses(&folder, &format!("{device}-{value}")));
        assert_eq!((cpu.len(), gpu.len()), (2, 2));
        for (cpu, gpu) in cpu.iter().zip(&gpu) {
            assert!((cpu - gpu).abs() <= SAME_RUN * cpu.abs(), "{value}: {gpu} instead of {cpu}");
        }
    }
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
        train(output, "cuda", &format!("--max-steps {steps} --valid-every 2 --patience 0"))
    };
    contains(&on(&folder, "", &train("whole", 4)).unwrap(), &["features: ", " resident on the GPU"]);
    let saved =
        |model: &str| ["model", "state"].map(|name| folder.bytes(&format!("{model}/{name}.safetensors")));
    assert_eq!(losses(&folder, "whole").len(), 4);
    let of_graph =
        ["in its graph (the optimiser's step, 3 kernels) or before it", "CUDA_ERROR_LAUNCH_FAILED"];
    for (device, model, more, parts) in [
        ("launch-fails-at=80", "kernel", "", &["launching ", "CUDA_ERROR_LAUNCH_FAILED"][..]),
        ("launch-fails-at=80", "graph", "--graphs", &of_graph),
        ("out-of-memory-at=4", "memory", "", &["a batch of ", "set(s) would take ", " are free"]),
    ] {
        on(&folder, "", &train(model, 2)).unwrap();
        let before = saved(model);
        let resume = format!("train --resume --max-steps 4 -o {model} {more}");
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

/// Times on an emulator mean nothing: what is counted, and that things add up.
#[test]
fn a_gpu_is_measured() {
    let folder = Folder::new();
    let bench =
        |arguments: &str| on(&folder, "memory=48M", &format!("bench {arguments} --device cuda {BENCH}"));
    for (mode, encoder) in [("train", "msab"), ("train", "imsab"), ("infer", "msab"), ("infer", "imsab")] {
        let file = format!("{mode}-{encoder}.json");
        let batch = "--sizes 40 --batch-docs 99 --rounds 2 --peak-side 64";
        let told = bench(&format!("{mode} --encoder {encoder} {batch} --json {file}")).unwrap();
        assert_eq!(told, "");
        let report: Value = serde_json::from_str(&folder.text(&file)).unwrap();
        let number = |value: &Value| value.as_f64().unwrap();
        assert_eq!((&report["docs"], &report["sets"], &report["steps"]), (&80.into(), &2.into(), &4.into()));
        assert_eq!(report["rounds_s"].as_array().unwrap().len(), 2);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs();
        assert!(close(number(&report["docs_per_s"]) * number(&report["median_s"]), 80.0), "{report}");
        assert!(close(number(&report["share"]) * number(&report["peak_gflops"]), number(&report["gflops"])));
        let gpu = &report["gpu"];
        assert_eq!(gpu["name"], "Mock H100");
        assert!(close(
            number(&gpu["share_of_floor"]) * number(&gpu["floor_docs_per_s"]),
            number(&report["docs_per_s"])
        ));
        assert!(close(number(&gpu["exponentials_per_s"]), 132.0 * 16.0 * 1.755e9));
        assert!(
            (1e5..48e6).contains(&number(&gpu["device_bytes"])) && number(&gpu["copy_bytes_per_s"]) > 0.0
        );
        let kernels = gpu["kernels"].as_array().unwrap();
        let sum = |key: &str| kernels.iter().map(|kernel| number(&kernel[key])).sum::<f64>();
        let launches = |name: &str| {
            let found = kernels.iter().find(|kernel| kernel["kernel"] == name);
            found.map_or(0.0, |kernel| number(&kernel["launches"]))
        };
        assert_eq!(sum("launches"), number(&gpu["launches_per_step"]), "{gpu}");
        let step = number(&gpu["profiled_step_s"]);
        assert!(close(sum("seconds") + number(&gpu["between_kernels_s"]), step), "{gpu}");
        assert!(kernels.iter().all(|kernel| number(&kernel["seconds"]) > 0.0), "{gpu}");
        let once = if mode == "train" { 1.0 } else { 0.0 };
        let each = ["adam_update", "gather_rows", "score_losses_softmax_cross_entropy"];
        assert_eq!(each.map(launches), [once; 3], "{gpu}");
        if (mode, encoder) == ("infer", "msab") {
            let all = [
                "linear_few_rows_16",
                "attention_forward_d32",
                "norm_linear_16_c64",
                "layer_norm_forward_narrow",
                "score_forward",
            ];
            assert_eq!((all.map(launches), sum("launches")), ([3.0, 1.0, 1.0, 1.0, 1.0], 7.0), "{gpu}");
        }
    }
    let table = bench("infer --encoder msab --sizes yahoo --sets 2 --peak 500").unwrap();
    contains(
        &table,
        &["machine      Mock H100", "500000.0 GFLOP/s", "7.0 a step", "floor ", "rounds       3"],
    );
    contains(&table, &["score_forward", "between kernels", "GB/s"]);
    let rbf = bench("infer --sizes 2 --input rbf --rbf-centers 3 --peak 500 --rounds 1 --json").unwrap();
    let rbf: Value = serde_json::from_str(&rbf).unwrap();
    assert!(rbf["gpu"]["floor_docs_per_s"].as_f64().unwrap() > 0.0 && rbf["share"].is_number());
    folder.folder("growth");
    let told = bench("infer --sweep documents --sizes 2 --sets 1 --rounds 1 --peak 1 -o growth").unwrap();
    assert_eq!(told.lines().count(), 10, "{told}");
    contains(&folder.text("growth/infer-documents.md"), &["| msab | 2 |", "| imsab | 32 |"]);
}

/// Grids stay on the GPU, and each step takes its documents out of them there.
#[test]
fn padding_is_taken_out_on_the_gpu() {
    let folder = Folder::new();
    folder.file("sizes", "3\n1\n12\n");
    for (layout, rows, kernel, launches) in [
        ("padded", 36.0, "unpad_lengths", 1.0),
        ("masked --pad-to 14", 42.0, "unpad_mask", 1.0),
        ("bucketed", 16.0, "unpad_lengths", 3.0),
    ] {
        for mode in ["train", "infer"] {
            let batch = format!("--sizes-file sizes --rounds 1 --peak 1 --json --layout {layout}");
            let found = on(&folder, "", &format!("bench {mode} --device cuda {BENCH} {batch}")).unwrap();
            let report: Value = serde_json::from_str(&found).unwrap();
            assert_eq!(report["rows_per_doc"], rows / 16.0, "{layout}");
            let kernels = report["gpu"]["kernels"].as_array().unwrap();
            let kernel_is = |name: &str| kernels.iter().find(|kernel| kernel["kernel"] == name);
            let unpad = kernel_is(kernel).unwrap_or_else(|| panic!("{layout}: {report}"));
            assert_eq!((&unpad["launches"], &unpad["seconds"]), (&launches.into(), &report["unpadding_s"]));
            assert!(kernel_is("gather_rows").is_none());
        }
    }
    let batch = "--sizes-file sizes --layout masked --pad-to 1048576";
    let error = on(&folder, "memory=48M", &format!("bench infer --device cuda {BENCH} {batch}")).unwrap_err();
    contains(&error, &["a batch of 16 documents in 3 set(s) needs"]);
}
