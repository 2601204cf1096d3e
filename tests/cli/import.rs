//! `setrank import`, `export`, `split` and `info`, through the command line.

use std::path::Path;

use crate::common::{Folder, contains};
use assert_cmd::Command;

const TEXT: &str =
    "1 qid:1 1:0.5 2:3 #docid = A\n0 qid:1 1:2 4:1e-7\n\n# note\n2 qid:2 2:NULL 3:-0\n0 qid:2 1:1\n";

#[test]
fn info_describes_a_store_as_it_does_the_text() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    folder.ok("import data.txt -o data.sets");
    let lines = folder.ok("info data.sets");
    assert!(lines.starts_with("queries: 2\ndocuments: 4\nfeatures: 4\nlabels: 0 2, 1 1, 2 1\n"), "{lines}");
    contains(
        &lines,
        &["set sizes: min 2, mean 2, median 2, max 2\n", "missing share: 0.625\n", "initial rankings: 0\n"],
    );
    assert_eq!(folder.ok("info data.txt"), lines);
    let json: serde_json::Value = serde_json::from_str(&folder.ok("info data.sets --json")).unwrap();
    assert_eq!(
        (&json["queries"], &json["labels"]["0"], &json["largest_index"]),
        (&2.into(), &2.into(), &4.into())
    );
}

#[test]
fn info_lists_the_configuration_of_a_model() {
    let folder = Folder::new();
    folder.folder("model");
    contains(&folder.fails("info model"), &["config.json"]);
    folder.file("model/config.json", "{\"format_version\": 1, \"num_features\": 4}");
    let defaults = [
        "parameters: ",
        "format version: 1",
        "num features: 4",
        "hidden size: 256",
        "num heads: 8",
        "num blocks: 6",
        "ffn size: 1024",
        "encoder: imsab",
        "num inducing: 20",
        "input: linear",
        "rbf centers: 100",
        "qkv relu: false",
        "inner ffn: true",
        "dropout: 0",
        "layer norm eps: 1e-5",
        "ordinal: none",
        "top k: none",
        "index base: 1",
        "absent: missing",
        "normalize: none",
    ];
    contains(&folder.ok("info model"), &defaults);
}

#[test]
fn export_and_import_give_the_same_store() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    for options in ["--absent missing", "--absent zero", "--features 6", "--index-base 0"] {
        folder.ok(&format!("import data.txt -o a.sets {options}"));
        folder.ok("export a.sets -o again.txt");
        assert_eq!(folder.ok("export a.sets -o -").as_bytes(), folder.bytes("again.txt"));
        folder.ok(&format!("import again.txt -o b.sets {options}"));
        folder.ok("export b.sets -o third.txt");
        assert_eq!(folder.bytes("again.txt"), folder.bytes("third.txt"), "{options}");
    }
    folder.file("dense.txt", "1 qid:1 1:0.1 2:NULL #docid = D\n0 qid:1 1:3e30 2:-0\n");
    folder.ok("import dense.txt -o a.sets");
    folder.ok("export a.sets -o again.txt");
    assert_eq!(folder.text("again.txt"), "1 qid:1 1:0.1 2:NULL #docid = D\n0 qid:1 1:3e30 2:-0\n");
    folder.ok("import again.txt -o b.sets");
    assert_eq!(folder.bytes("a.sets"), folder.bytes("b.sets"));
}

#[test]
fn text_comes_from_stdin_too() {
    let folder = Folder::new();
    folder.command("import - -o data.sets").write_stdin(TEXT).assert().success();
    contains(&folder.ok("info data.sets"), &["documents: 4"]);
    let wrong = folder.command("info -").write_stdin("x").output().unwrap();
    contains(&String::from_utf8_lossy(&wrong.stderr), &["<stdin>:1: "]);
}

#[test]
fn split_makes_two_stores() {
    let folder = Folder::new();
    let lines: String = (0..80).map(|i| format!("{} qid:{} 1:{i}\n", i % 3, i / 4)).collect();
    folder.file("data.txt", lines);
    folder.file("scores", (0..80).map(|i| format!("{i}\n")).collect::<String>());
    folder.ok("import data.txt -o data.sets --init scores");
    folder.ok("split data.sets --valid 0.25 --seed 3");
    contains(&folder.ok("info data.train.sets"), &["queries: 15\n", "initial rankings: 1\n"]);
    contains(&folder.ok("info data.valid.sets"), &["queries: 5\n", "initial rankings: 1\n"]);
    folder.ok("split data.txt --valid 0.25 --seed 3 -o other");
    folder.ok("split data.sets --valid 0.25 --seed 4 -o third");
    let ids = |name| folder.ok(&format!("export {name} -o -"));
    assert_eq!(ids("other.valid.sets"), ids("data.valid.sets"));
    assert_ne!(ids("third.valid.sets"), ids("data.valid.sets"));
    contains(&folder.fails("split data.sets --valid 0.001"), &["0.001", "20 queries"]);
    contains(&folder.fails("split data.sets --valid 1.5"), &["between 0 and 1"]);
}

#[test]
fn initial_scores_are_stored_and_counted() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    folder.file("four", "1\n2\nNULL\n4\n");
    folder.file("three", "1\n2\n3\n");
    folder.ok("import data.txt -o data.sets --init four --init four");
    contains(&folder.ok("info data.sets"), &["initial rankings: 2\n"]);
    folder.ok("import data.sets -o data.sets --init four");
    contains(&folder.ok("info data.sets"), &["initial rankings: 1\n"]);
    let before = folder.bytes("data.sets");
    let message = folder.fails("import data.txt -o data.sets --init three");
    contains(&message, &["three", "3 scores", "4 documents"]);
    assert_eq!(folder.bytes("data.sets"), before);
}

#[test]
fn set_sizes_that_do_not_fit_are_refused() {
    let folder = Folder::new();
    folder.file("data.txt", "1 1:1\n0 1:2\n");
    folder.file("data.query", "2\n");
    folder.file("bad.query", "5\n");
    folder.ok("import data.txt -o data.sets --query-sizes data.query");
    let message = folder.fails("import data.txt -o x.sets --query-sizes bad.query");
    contains(&message, &["bad.query", "data.txt", "5", "2 documents"]);
    contains(&folder.fails("import data.txt -o x.sets"), &["data.txt:1:", "--query-sizes"]);
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    folder.ok("import data.txt -o data.sets");
    folder.folder("sub");
    contains(&folder.fails("import none.txt -o x.sets"), &["none.txt"]);
    contains(&folder.fails("import sub -o x.sets"), &["sub", "folder"]);
    assert_eq!(
        folder.fails("info none.sets"),
        "error: cannot read none.sets: No such file or directory (os error 2)\n"
    );

    let bytes = folder.bytes("data.sets");
    folder.file("cut.sets", &bytes[..bytes.len() - 3]);
    contains(&folder.fails("info cut.sets"), &["cut.sets", "truncated"]);
    let mut newer = bytes.clone();
    newer[8] = 2;
    folder.file("newer.sets", newer);
    contains(&folder.fails("info newer.sets"), &["newer.sets", "version 2"]);
    let mut altered = bytes;
    altered[300] ^= 1;
    folder.file("altered.sets", altered);
    contains(&folder.fails("export altered.sets -o x.txt"), &["altered.sets", "checksum"]);
    folder.file("binary", b"\x7fELF\0\0\0");
    contains(&folder.fails("info binary"), &["binary"]);
    assert_eq!(folder.run("import data.txt").status.code(), Some(2));
}

#[test]
fn what_cannot_be_written_is_named_and_the_file_before_stays() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    folder.folder("sub");
    contains(&folder.fails("import data.txt -o sub"), &["sub"]);
    contains(&folder.fails("import data.txt -o none/x.sets"), &["none/x.sets"]);
    folder.file("wrong.txt", "1 qid:1 1:1\n1 qid:1 1:one\n");
    folder.file("x.sets", "before");
    contains(&folder.fails("import wrong.txt -o x.sets"), &["wrong.txt:2:", "1:one"]);
    assert_eq!(folder.bytes("x.sets"), b"before");
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_behind() {
    let folder = Folder::new();
    folder.file("x.sets", "before");
    let lines: String = (0..40_000).map(|i| format!("1 qid:{i} 1:{i} 8:1\n")).collect();
    folder.file("large.txt", lines);
    let before = folder.contents();
    // A limit on the size of files gives the same kind of error as a full disk once its signal is ignored.
    let script = format!("trap '' XFSZ; ulimit -f 100; exec '{}' \"$@\"", env!("CARGO_BIN_EXE_setrank"));
    for arguments in [&["import", "large.txt", "-o", "x.sets"][..], &["split", "large.txt", "-o", "y"]] {
        let output = Command::new("sh")
            .current_dir(folder.path())
            .args(["-c", &script, "setrank"])
            .args(arguments)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        contains(&message, &["cannot write"]);
        assert!(folder.contents() == before, "{arguments:?} left something behind");
    }
}

#[test]
fn options_that_contradict_a_store_are_refused() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    folder.ok("import data.txt -o data.sets");
    for (options, part) in [
        ("--absent zero", "--absent"),
        ("--features 9", "4 features"),
        ("--index-base 0", "counted from 1"),
        ("--label-offset -1", "--label-offset"),
        ("--query-sizes data.txt", "--query-sizes"),
    ] {
        contains(&folder.fails(&format!("info data.sets {options}")), &["data.sets", part]);
    }
    folder.ok("info data.sets --absent missing --features 4 --index-base auto");
    folder.file("more.txt", TEXT);
    contains(&folder.fails("import data.sets more.txt -o x.sets"), &["data.sets"]);
}

#[test]
fn what_is_read_is_not_written_over() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    folder.ok("import data.txt -o data.sets");
    contains(&folder.fails("import data.txt -o data.txt"), &["data.txt is both input and output"]);
    contains(&folder.fails("export data.sets -o ./data.sets"), &["both input and output"]);
    let piped = folder.command("info -").write_stdin(folder.bytes("data.sets")).output().unwrap();
    contains(&String::from_utf8_lossy(&piped.stderr), &["a .sets file is mapped"]);
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_no_temporary_file() {
    let folder = Folder::new();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_setrank"))
        .current_dir(folder.path())
        .args("synth --like istella --queries 1000000 -o large.txt".split_whitespace())
        .spawn()
        .unwrap();
    let started = std::time::Instant::now();
    while folder.path().read_dir().unwrap().next().is_none() {
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "nothing is written");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    crate::common::interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(folder.path().read_dir().unwrap().next().is_none());
}

#[test]
fn warnings_name_the_lines() {
    let folder = Folder::new();
    folder.file("data.txt", "1 qid:1 1:1 1:2\n1 qid:2 1:1\n\n0 qid:1 1:2 1:3\n");
    let output = folder.run("import data.txt -o data.sets");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message.lines().count(), 2, "{message}");
    contains(
        &message,
        &["2 value(s)", "data.txt:1\n", "query 1 ends at data.txt:1 and goes on at data.txt:4"],
    );
}

#[test]
fn real_text_survives_the_round_trip() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if !shared.is_dir() {
        eprintln!("skipped: no folder {}", shared.display());
        return;
    }
    let folder = Folder::new();
    for name in ["mq2007agg/A1.txt", "mslr_union/S1.txt", "tfr_testdata/train.txt", "usptact/test.sorted.ltr"]
    {
        let path = shared.join(name);
        folder.ok(&format!("import {} -o a.sets", path.display()));
        folder.ok("export a.sets -o again.txt");
        folder.ok("import again.txt -o b.sets");
        assert_eq!(folder.bytes("a.sets"), folder.bytes("b.sets"), "{name}");
    }
}

/// The largest resident memory of `setrank` with these arguments, in KiB, as far as it is seen before it ends.
#[cfg(target_os = "linux")]
fn peak_memory(folder: &Folder, arguments: &str) -> u64 {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_setrank"))
        .current_dir(folder.path())
        .args(arguments.split_whitespace())
        .spawn()
        .unwrap();
    let mut peak = 0;
    loop {
        let ended = child.try_wait().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let seen = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")?.trim().parse().ok());
        peak = peak.max(seen.unwrap_or(0));
        match ended {
            Some(status) => break assert!(status.success(), "{arguments}"),
            None => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
    peak
}

#[test]
fn check_reads_without_writing() {
    let folder = Folder::new();
    folder.file("data.txt", TEXT);
    assert_eq!(folder.ok("import --check data.txt"), "2 queries, 4 documents, 4 features\n");
    assert_eq!(folder.ok("import --check data.txt --index-base 0"), "2 queries, 4 documents, 5 features\n");
    folder.file("twice.txt", "1 qid:1 3:1 3:2\n0 qid:2 1:0\n0 qid:1 1:0\n");
    let output = folder.run("import --check twice.txt");
    contains(&String::from_utf8_lossy(&output.stderr), &["twice.txt:1", "query 1 ends at twice.txt:1"]);
    folder.file("wrong.txt", "1 qid:1 3:1\n0 qid:2 1:x\n");
    contains(&folder.fails("import --check wrong.txt"), &["wrong.txt:2", "1:x"]);
    for (arguments, part) in [
        ("import data.txt", "--output"),
        ("import --check data.txt -o data.sets", "cannot be used with"),
        ("import --check data.txt --init data.txt", "cannot be used with"),
    ] {
        let output = folder.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        contains(&String::from_utf8(output.stderr).unwrap(), &[part]);
    }
    contains(&folder.fails("import --check - -"), &["stdin", "only once"]);
    folder.ok("import data.txt -o data.sets");
    contains(&folder.fails("import --check data.sets"), &["checked whenever it is opened"]);
}

#[cfg(target_os = "linux")]
#[test]
fn the_memory_of_import_does_not_grow_with_the_file() {
    let folder = Folder::new();
    let features: String = (1..=200).map(|index| format!(" {index}:0.{index:03}")).collect();
    let text = |documents: usize| -> String {
        (0..documents).map(|document| format!("1 qid:{}{features}\n", document / 100)).collect()
    };
    folder.file("small.txt", text(4_000));
    folder.file("large.txt", text(24_000));
    let peaks = ["small", "large"].map(|name| {
        let peak = peak_memory(&folder, &format!("import {name}.txt -o {name}.sets --threads 2"));
        assert!(peak > 0);
        peak
    });
    let more = std::fs::metadata(folder.path().join("large.txt")).unwrap().len()
        - std::fs::metadata(folder.path().join("small.txt")).unwrap().len();
    let grown = peaks[1].saturating_sub(peaks[0]) << 10;
    // What is held for each document is a few dozen bytes; its text has two thousand.
    assert!(grown < more / 5, "{peaks:?} KiB for {more} bytes more");
}
