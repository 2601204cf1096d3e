//! `setrank bench`: its figures, its allocations, and every way to get it wrong.

use serde_json::Value;

use crate::common::{Folder, TINY, contains};

/// Keys that programs read, in their order.
const CONTRACT: [&str; 10] = [
    "docs",
    "docs_per_s",
    "median_s",
    "min_s",
    "flops_per_doc",
    "gflops",
    "peak_gflops",
    "share",
    "peak_rss_bytes",
    "allocations_per_step",
];

/// A benchmark that ends at once.
fn quick(arguments: &str) -> String {
    let peak = if arguments.contains("--peak-side") { "" } else { "--peak-side 32" };
    format!("bench {arguments} {} --features 6 --steps 3 --warmup 2 {peak}", TINY.join(" "))
}

fn json(folder: &Folder, arguments: &str) -> Value {
    serde_json::from_str(&folder.ok(&quick(&format!("{arguments} --json")))).unwrap()
}

#[test]
fn figures_are_written_for_programs_and_people() {
    let folder = Folder::new();
    for mode in ["train", "infer"] {
        let report = json(&folder, &format!("{mode} --sizes 5 --sets 3 --threads 1"));
        let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
        assert_eq!(keys[..CONTRACT.len()], CONTRACT);
        assert_eq!((&report["docs"], &report["sets"]), (&15.into(), &3.into()));
        assert_eq!((&report["mode"], &report["encoder"]), (&mode.into(), &"imsab".into()));
        assert!(
            CONTRACT.iter().all(|key| report[key].as_f64().is_some_and(|value| value >= 0.0)),
            "{report}"
        );
        let table = folder.ok(&quick(&format!("{mode} --sizes 5 --encoder msab")));
        contains(
            &table,
            &["msab", "32 sets, 160 documents", "a second", "MFLOP a document", "GFLOP/s", "MiB"],
        );
    }
    assert!(json(&folder, "infer --sizes 2 --peak-side 0")["peak_gflops"].is_null());
    folder.ok(&quick("infer --sizes 2 --rounds 3 --json report.json"));
    let report: Value = serde_json::from_str(&folder.text("report.json")).unwrap();
    assert!(report["rounds_s"].as_array().unwrap().len() == 3 && report["steps"] == 9, "{report}");
    assert!(report.get("gpu").is_none());
    assert!(json(&folder, "infer --sizes 2 --input rbf --rbf-centers 3")["docs"] == 64);
}

#[test]
fn a_warm_step_allocates_nothing() {
    let folder = Folder::new();
    for mode in ["train", "infer"] {
        for encoder in ["msab", "imsab"] {
            for threads in [1, 2.min(std::thread::available_parallelism().map_or(1, usize::from))] {
                let arguments = format!("{mode} --encoder {encoder} --sizes yahoo --threads {threads}");
                let allocations = || json(&folder, &arguments)["allocations_per_step"].as_f64().unwrap();
                // On a busy machine the pool's queues take memory now and then; a step's own would show in every try.
                let found: Vec<f64> =
                    std::iter::repeat_with(allocations).take(5).take_while(|&of| of > 0.0).collect();
                assert!(found.len() < 5, "{mode} {encoder}, {threads} threads: {found:?} allocations a step");
            }
        }
    }
}

#[test]
fn sizes_come_from_numbers_names_and_files() {
    let folder = Folder::new();
    let sizes = |arguments: &str| -> Vec<usize> {
        let out = folder.ok(&format!("bench infer --print-sizes {arguments}"));
        out.lines().map(|line| line.parse().unwrap()).collect()
    };
    assert_eq!(sizes("--sizes 7 --sets 2"), [7, 7]);
    folder.file("sizes", "3\n1\n12\n");
    assert_eq!(sizes("--sizes-file sizes"), [3, 1, 12]);
    assert_eq!(sizes("--sizes-file sizes --sets 2"), [3, 1]);
    assert_eq!(sizes("--sizes-file sizes --batch-docs 4"), [3, 1]);
    folder.file("many", "1\n".repeat(1048577));
    assert_eq!(sizes("--sizes-file many --batch-docs 3"), [1, 1, 1]);
    assert_eq!(sizes("--sizes-file many --sets 2"), [1, 1]);
    assert_eq!(sizes("--sizes 40 --batch-docs 99"), [40, 40]);
    let istella = sizes("--sizes istella");
    assert_eq!((istella.len(), istella.iter().max()), (32, Some(&500)));
    assert_eq!(istella, sizes("--sizes istella --sets 32"));
    assert_ne!(istella, sizes("--sizes istella --seed 2"));
}

#[test]
fn growth_is_written_as_data_tables_and_pictures() {
    let folder = Folder::new();
    let (out, err) = folder
        .ok_with_stderr(&quick("infer --sweep documents --sizes 2 --sets 1 --rounds 2 -o results/here"));
    assert!(out.is_empty() && err.lines().count() == 20, "{err}");
    let growth: Value = serde_json::from_str(&folder.text("results/here/infer-documents.json")).unwrap();
    let places: Vec<u64> =
        growth["points"].as_array().unwrap().iter().map(|point| point["at"].as_u64().unwrap()).collect();
    assert_eq!(places, [2, 4, 8, 16, 32, 2, 4, 8, 16, 32]);
    assert!(growth["points"][9]["report"]["share"].as_f64().unwrap() > 0.0);
    contains(&folder.text("results/here/infer-documents.md"), &["| msab | 2 |", "| imsab | 32 |"]);
    for picture in ["speed", "rate", "share", "memory"] {
        let svg = folder.text(&format!("results/here/infer-documents-{picture}.svg"));
        contains(&svg, &["<svg", "Documents of a batch", "imsab"]);
    }
}

#[test]
fn padding_stands_beside_the_layout_that_has_it() {
    let folder = Folder::new();
    folder.file("sizes", "3\n1\n12\n");
    for (layout, rows) in [
        ("ragged", 16.0),
        ("bucketed", 16.0),
        ("padded", 36.0),
        ("masked", 36.0),
        ("padded --pad-to 14", 42.0),
        ("masked --pad-to 20", 60.0),
    ] {
        for mode in ["train", "infer"] {
            let batch = format!("{mode} --sizes-file sizes --layout {layout}");
            let report = json(&folder, &batch);
            let name = layout.split(' ').next().unwrap();
            assert_eq!((&report["layout"], &report["docs"]), (&name.into(), &16.into()));
            assert_eq!(report["rows_per_doc"], rows / 16.0, "{layout}");
            assert_eq!(report["unpadding_s"].is_null(), name == "ragged");
            contains(&folder.ok(&quick(&batch)), &[name, "rows a document"]);
        }
    }
    folder.ok(&quick("infer --sweep layouts --sizes-file sizes --rounds 1 -o results"));
    contains(
        &folder.text("results/infer-layouts.md"),
        &["| msab | 36 |", "| padded | 2.25 |", "| masked | 3.00 |"],
    );
    contains(&folder.text("results/infer-layouts-speed.svg"), &["padding included", "were padding computed"]);
}

#[test]
fn single_queries_have_their_latency() {
    let folder = Folder::new();
    let quick = |more: &str| {
        format!(
            "bench infer --latency {} --features 6 --steps 5 --warmup 1 --rounds 2 {more}",
            TINY.join(" ")
        )
    };
    let found: Value = serde_json::from_str(&folder.ok(&quick("--json"))).unwrap();
    assert_eq!((&found["encoder"], &found["device"]), (&"imsab".into(), &"cpu".into()));
    let latencies = found["latencies"].as_array().unwrap();
    for (latency, docs) in latencies.iter().zip([10, 100, 500]) {
        assert_eq!((&latency["docs"], &latency["queries"]), (&docs.into(), &10.into()));
        let [min, p50, p99, max] =
            ["min_s", "p50_s", "p99_s", "max_s"].map(|key| latency[key].as_f64().unwrap());
        assert!(0.0 < min && min <= p50 && p50 <= p99 && p99 <= max, "{latency}");
        assert_eq!(latency["rounds_s"].as_array().unwrap().len(), 2);
        assert!(latency["spread"].as_f64().unwrap() >= 0.0);
    }
    assert_eq!(latencies.len(), 3);
    contains(
        &folder.ok(&quick("--encoder msab")),
        &["msab, one query at a time, on the cpu", "p99, ms", "500"],
    );
}

/// Without a GPU the rungs are told as they were counted, each faster than the one below.
#[test]
fn rungs_of_fusion_are_compared() {
    let folder = Folder::new();
    let table = folder.ok("bench train --ablate --encoder msab --sizes 384");
    let rungs = ["none", "flash", "attention", "all"];
    assert_eq!(
        table.lines().filter(|line| rungs.iter().any(|rung| line.starts_with(rung))).count(),
        5,
        "{table}"
    );
    assert!(table.contains("predicted by the rates of an H100") && !table.contains("measured"), "{table}");
    let found: Value = serde_json::from_str(&folder.ok("bench train --ablate --json")).unwrap();
    assert!(found["encoder"] == "imsab" && found["docs"] == 1280 && found["num_blocks"] == 6, "{found}");
    let predicted: Vec<f64> = found["rungs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rung| rung["counted"]["predicted_docs_per_s"].as_f64().unwrap())
        .collect();
    assert!(predicted.len() == 5 && predicted.is_sorted(), "{predicted:?}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = Folder::new();
    folder.file("sizes", "3\n1\n12\n");
    folder.file("text", "3\nmany\n");
    folder.file("zero", "3\n\n0\n");
    folder.file("empty", "\n");
    folder.file("huge", "1048577\n");
    folder.file("sets", "1\n".repeat(1048577));
    for (arguments, parts) in [
        ("train --sizes-file text", &["text:2", "many", "positive whole number"][..]),
        ("train --sizes-file zero", &["zero:3", "positive whole number"]),
        ("train --sizes-file empty", &["empty", "no sizes"]),
        ("train --sizes-file huge", &["huge", "1048577", "at most 1048576"]),
        ("train --sizes-file sets", &["sets", "1048577 sets", "at most 1048576"]),
        ("train --sizes-file absent", &["absent"]),
        ("train --sizes-file sizes --sets 4", &["sizes", "3 sets", "4 are asked for"]),
        ("infer --threads 255", &["--threads 255", "core(s)"]),
        ("infer --device cuda", &["--device cuda"]),
        ("infer --heads 3", &["hidden_size"]),
        ("infer --features 0", &["num_features"]),
        ("infer --ffn 0", &["ffn_size"]),
        ("train --sizes 1048576 --sets 1048576", &["GiB are free"]),
        ("train --sweep blocks -o sizes", &["sizes"]),
        ("train --sweep blocks -o results --blocks 4", &["--blocks", "--sweep blocks"]),
        ("train --sweep sizes -o results --sizes 7", &["--sizes", "--sweep sizes"]),
        ("train --sweep sizes -o results --sets 3", &["--sets", "--sweep sizes"]),
        ("train --sweep sizes -o results --batch-docs 3", &["--batch-docs", "--sweep sizes"]),
        // Before anything is measured.
        (
            "train --steps 1000000 --json missing/x.json",
            &["cannot write missing/x.json", "there is no folder missing"],
        ),
        ("train --batch-docs 3", &["--batch-docs 3", "the first set has more documents"]),
        ("train --sweep sizes -o results --sizes-file sizes", &["--sizes-file", "--sweep sizes"]),
        ("infer --sweep documents -o results --sizes 1048576 --sets 65536", &["documents of a batch", "GiB"]),
        ("train --sweep sizes -o sizes", &["sizes is a file"]),
        ("train --latency", &["bench infer --latency"]),
        ("train --sweep layouts -o results --layout padded", &["--layout", "--sweep layouts"]),
        ("train --layout padded --pad-to 39", &["--pad-to 39", "longest set has 40"]),
        ("train --layout ragged --pad-to 40", &["--pad-to", "ragged"]),
        ("infer --pad-to 50", &["--pad-to", "--layout"]),
        ("train --sweep layouts -o results --pad-to 90", &["--pad-to", "--sweep layouts"]),
        ("train --ablate --sizes 41", &["on sets of 40 or 384 documents"]),
        ("train --ablate --hidden 128", &["leave --hidden", "--device cuda"]),
        ("train --ablate --sizes 40 --peak 100", &["--peak says how a GPU is measured"]),
        ("infer --ablate", &["setrank bench train --ablate"]),
        ("infer --layout masked --sets 65536 --pad-to 1048576", &["GiB are free"]),
    ] {
        contains(&folder.fails(&format!("bench {arguments}")), parts);
    }
    assert!(!folder.path().join("results").exists());
    for (arguments, part) in [
        ("", "<MODE>"),
        ("score", "train"),
        ("train --sizes 0", "1 to 1048576"),
        ("train --sizes 1048577", "1 to 1048576"),
        ("train --sizes -3", "-3"),
        ("train --sizes many", "whole number"),
        ("train --sets 0", "--sets"),
        ("train --sets 2 --batch-docs 80", "cannot be used with"),
        ("train --batch-docs 0", "--batch-docs"),
        ("train --peak much", "no number"),
        ("train --peak 0", "above 0"),
        ("train --peak 1 --peak-side 32", "cannot be used with"),
        ("train --input rbf --features 18446744073709551615", "--features"),
        ("train --steps 0", "--steps"),
        ("train --warmup 0", "--warmup"),
        ("train --threads 0", "--threads"),
        ("train --sizes 4 --sizes-file sizes", "cannot be used with"),
        ("train --sweep sizes", "--output"),
        ("train -o results", "--sweep"),
        ("train --sweep sizes -o results --json", "cannot be used with"),
        ("train --sweep sizes -o results --encoder msab", "cannot be used with"),
        ("train --sweep sizes -o results --print-sizes", "cannot be used with"),
        ("train --print-sizes --device cuda", "cannot be used with"),
        ("train --print-sizes --kernels wgmma", "cannot be used with"),
        ("train --print-sizes --fuse none", "cannot be used with"),
        ("train --print-sizes --graphs", "cannot be used with"),
        ("train --print-sizes --threads 1", "cannot be used with"),
        ("train --ablate --fuse none", "cannot be used with"),
        ("train --ablate --kernels wgmma", "cannot be used with"),
        ("train --ablate --layout padded", "cannot be used with"),
        ("train --ablate -o results", "cannot be used with"),
        ("infer --latency -o results", "cannot be used with"),
        ("train --print-sizes --layout padded", "cannot be used with"),
        ("train --print-sizes --encoder msab", "cannot be used with"),
        ("train --print-sizes --steps 3", "cannot be used with"),
        ("infer --latency --sizes 40", "cannot be used with"),
        ("infer --latency --peak-side 64", "cannot be used with"),
        ("infer --layout flat", "bucketed"),
        ("infer --layout padded --pad-to 1048577", "1048576"),
    ] {
        let output = folder.run(&format!("bench {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        contains(&String::from_utf8(output.stderr).unwrap(), &[part]);
    }
}
