//! `setrank crossval`, as a person calls it.

use serde_json::Value;

use crate::common::{Folder, TINY, contains, letor};

/// A folder with `p1.txt` to `p4.txt`, whose queries have ids of their own.
fn with_parts() -> Folder {
    let folder = Folder::new();
    for part in 1..=4 {
        let text = letor(10, part).replace("qid:", &format!("qid:p{part}-"));
        folder.file(&format!("p{part}.txt"), text);
    }
    folder
}

fn usage(more: &str) -> String {
    let tiny = TINY.join(" ");
    format!("crossval p1.txt p2.txt p3.txt p4.txt -o cv {tiny} --batch-sets 4 --epochs 2 --seeds 2 {more}")
}

/// The report, less its seconds.
fn json(text: &str) -> Value {
    let mut report: Value = serde_json::from_str(text).unwrap();
    report["seconds"].take();
    report["runs"].as_array_mut().unwrap().iter_mut().for_each(|run| {
        run["seconds"].take();
    });
    report
}

#[test]
fn a_fold_is_what_train_and_eval_make_of_its_parts() {
    let folder = with_parts();
    let report = json(&folder.ok(&usage("--folds 2 --json --jobs 2 --metrics ndcg@10,map")));
    let tiny = TINY.join(" ");
    folder.ok(&format!(
        "train --train p2.txt p3.txt --valid p4.txt -o own {tiny} --batch-sets 4 --epochs 2 --seed 2"
    ));
    let (own, of_fold) =
        (folder.bytes("own/model.safetensors"), folder.bytes("cv/fold2/seed2/model.safetensors"));
    assert!(own == of_fold);
    let models = "--model cv/fold2/seed1 --model cv/fold2/seed2";
    let eval = |models: &str, part: &str| -> Value {
        let out = folder.ok(&format!("eval {models} --data {part} --metrics ndcg@10,map --json"));
        serde_json::from_str::<Value>(&out).unwrap()["metrics"].clone()
    };
    for (part, file) in [("test", "p1.txt"), ("validation", "p4.txt")] {
        for metric in ["ndcg@10", "map"] {
            let figures = &report[part]["all"]["metrics"][metric];
            assert_eq!(figures["ensemble"], eval(models, file)[metric], "{part} {metric}");
            let [one, two] = ["seed1", "seed2"].map(|seed| {
                eval(&format!("--model cv/fold2/{seed}"), file)[metric]["mean"].as_f64().unwrap()
            });
            assert!((figures["mean"].as_f64().unwrap() - (one + two) / 2.0).abs() < 1e-12);
            let deviation = (one - two).abs() / 2f64.sqrt();
            assert!((figures["seed_deviation"].as_f64().unwrap() - deviation).abs() < 1e-12);
            assert_eq!(report[part]["folds"][0]["metrics"][metric], *figures);
        }
    }
    assert_eq!(report["runs"][0]["queries"], 20);
}

#[test]
fn finished_runs_are_not_done_again_and_a_changed_configuration_is_refused() {
    let folder = with_parts();
    let (first, told) = folder.ok_with_stderr(&usage("--folds 1,3 --json"));
    assert_eq!(told.matches("best in epoch").count(), 4);
    // One run is lost half-way: only that one is done again.
    std::fs::remove_file(folder.path().join("cv/fold3/seed1/result.json")).unwrap();
    let (again, told) = folder.ok_with_stderr(&usage("--folds 1,3 --json --threads 3"));
    assert_eq!(told.matches("best in epoch").count(), 1);
    contains(&told, &["fold 3 seed 1"]);
    assert_eq!(json(&first), json(&again));
    // Other metrics need no training.
    let (table, told) = folder.ok_with_stderr(&usage("--folds 1,3 --metrics map"));
    assert!(!told.contains("best in epoch"));
    contains(&table, &["fold 3", "ensemble of 2", "deviation of seeds", "validation", "test"]);

    contains(&folder.fails(&usage("--lr 0.1")), &["`lr` ", ", not 0.1", "--overwrite"]);
    let other_parts = usage("").replace("p1.txt p2.txt", "p2.txt p1.txt");
    contains(&folder.fails(&other_parts), &["`parts`"]);
    let part = folder.text("p2.txt");
    folder.file("p2.txt", letor(9, 77));
    contains(&folder.fails(&usage("--folds 1")), &["fold 1, seed 1", "of other data"]);
    folder.file("p2.txt", part);
    let (_, told) = folder.ok_with_stderr(&usage("--lr 0.1 --overwrite --folds 1"));
    assert_eq!(told.matches("best in epoch").count(), 2);
    assert!(!folder.path().join("cv/fold3").exists());
}

#[test]
fn parts_to_test_on_are_not_opened_for_validation_only() {
    let folder = with_parts();
    folder.file("p4.txt", "this is no data\n");
    let report = json(&folder.ok(&usage("--folds 1 --validation-only --json")));
    assert_eq!(report["test"], Value::Null);
    assert!(report["validation"]["all"]["metrics"]["ndcg@10"]["mean"].as_f64().unwrap() > 0.0);
    contains(&folder.fails(&usage("--folds 1")), &["p4.txt"]);
}

#[test]
fn parts_may_be_stores_and_bring_their_rankings() {
    let folder = with_parts();
    let text = json(&folder.ok(&usage("--json --folds 1 --init-feature 2:asc")));
    for part in 1..=4 {
        folder.ok(&format!("import p{part}.txt -o p{part}.sets"));
    }
    let stores = usage("--json --folds 1 --init-feature 2:asc --overwrite").replace(".txt", ".sets");
    assert_eq!(text, json(&folder.ok(&stores)));
    contains(&folder.text("cv/fold1/seed1/config.json"), &["\"ordinal\": {"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = with_parts();
    folder.folder("full");
    folder.file("full/letter.txt", "dear");
    // Other ids, the same documents.
    folder.file("copy.txt", folder.text("p2.txt").replace("qid:p2", "qid:copy"));
    folder.file("flat.txt", "0 qid:1 1:1 5:2\n");
    for (usage, parts) in [
        (usage("--train p1.txt"), &["`train`", "in turn"][..]),
        (usage("--seed 4"), &["`seed`", "--seeds"]),
        (usage("--from cv"), &["`from`"]),
        (usage("--folds 5"), &["--folds 5", "1 to 4"]),
        (usage("").replace(" p3.txt p4.txt", ""), &["2 part(s)", "at least 3"]),
        (usage("").replace("-o cv", "-o full"), &["something else"]),
        (usage("").replace("-o cv", "-o p1.txt"), &["p1.txt is a file"]),
        (usage("").replace("p3.txt", "missing.txt"), &["missing.txt"]),
        (usage("").replace("p3.txt", "./p1.txt"), &["parts 1 and 3", "same file", "p1.txt and ./p1.txt"]),
        (usage("").replace("p4.txt", "copy.txt"), &["parts 2 and 4", "same data", "p2.txt and copy.txt"]),
        (usage("").replace("p1.txt", "flat.txt"), &["fold 2 tests on part 1", "flat.txt", "no relevant"]),
        (usage("--heads 3 --folds 1 --validation-only").replace("--heads 2", ""), &["num_heads 3"]),
    ] {
        contains(&refusal(&folder, &usage), parts);
    }
    for flag in ["--seeds", "--jobs"] {
        for value in ["0", "1001", "99999999999"] {
            let once = usage("").replace("--seeds 2", "");
            assert_eq!(
                folder.run(&format!("{once} {flag} {value}")).status.code(),
                Some(2),
                "{flag} {value}"
            );
        }
    }
}

#[test]
fn parts_that_do_not_suit_a_later_fold_are_found_before_the_first_run() {
    let folder = with_parts();
    folder.file("wide.txt", "1 qid:w 1:1 7:2\n0 qid:w 1:2 6:1\n");
    folder.file("large.txt", "40 qid:l 1:1 5:2\n0 qid:l 1:2\n");
    // Fold 1 trains on the first two parts: with a wide part among them all is well.
    let wide = usage("").replace("p1.txt", "wide.txt");
    contains(&folder.fails(&wide), &["fold 2 tests on part 1, wide.txt", "feature 7", "--features 7"]);
    folder.ok(&format!("{wide} --features 7 --folds 2 --validation-only"));
    std::fs::remove_dir_all(folder.path().join("cv")).unwrap();
    let large = usage("").replace("p1.txt", "large.txt");
    contains(&folder.fails(&large), &["fold 2 tests on part 1, large.txt", "40", "--gain linear"]);
    folder.file("halves.txt", "0.5 qid:h 1:1 5:1\n0 qid:h 1:2\n");
    let halves = usage("--select map").replace("p2.txt", "halves.txt");
    contains(&folder.fails(&halves), &["fold 4 validates on part 2", "no validation query counts for map"]);
    folder.file("long.txt", "1 qid:l 1:1 5:1\n0 qid:l 1:2\n".repeat(30));
    let long = usage("--batch-docs 50").replace("--batch-sets 4 ", "").replace("p4.txt", "long.txt");
    let parts = ["fold 3 trains on part 4, long.txt", "--batch-docs 50: query l alone has 60 documents"];
    contains(&folder.fails(&long), &parts);
    let ranked = usage("--init-feature 1 --n-max 2");
    contains(&folder.fails(&ranked), &["fold 1 trains on part 1", "n_max"]);
}

#[test]
fn the_help_has_no_flag_that_is_always_refused() {
    let help = Folder::new().ok("crossval --help");
    for flag in [
        "--train ",
        "--valid ",
        "--query-sizes",
        "--init ",
        "--valid-init",
        "--from",
        "--seed ",
        "--max-seconds",
    ] {
        assert!(!help.contains(flag), "{flag}");
    }
    contains(&help, &["--seeds", "--init-feature", "--valid-every", "--max-steps"]);
}

/// The message of a command that fails; unlike elsewhere the folder of the runs may have been made.
fn refusal(folder: &Folder, usage: &str) -> String {
    let output = folder.run(usage);
    assert_eq!(output.status.code(), Some(1), "{usage}");
    assert!(output.stdout.is_empty(), "{usage}");
    String::from_utf8(output.stderr).unwrap()
}
