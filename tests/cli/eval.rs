//! `setrank eval`, `compare` and `synth`, as a person calls them.

use crate::common::{Folder, contains};

const DATA: &str = "1 qid:1 1:1 2:0\n0 qid:1 1:0 2:1\n0 qid:2 1:3\n2 qid:3 1:1\n0 qid:3 1:2\n-1 qid:3 1:2\n";

/// A folder with `data.txt`.
fn judged() -> Folder {
    let folder = Folder::new();
    folder.file("data.txt", DATA);
    folder
}

#[test]
fn eval_prints_json_a_table_and_a_file_of_queries() {
    let folder = judged();
    folder.file("scores.txt", "1\n2\n0\n3\n2\n9\n");
    let all = "eval --scores scores.txt --data data.txt --metrics mrr,p@1 --per-query queries.tsv";
    assert_eq!(
        folder.ok(&format!("{all} --json")),
        "{\"queries\":3,\"empty_queries\":\"skip\",\"ideal\":\"full\",\"metrics\":{\
         \"mrr\":{\"mean\":0.75,\"std_error\":0.25,\"queries\":2},\
         \"p@1\":{\"mean\":0.5,\"std_error\":0.5,\"queries\":2}}}\n"
    );
    assert_eq!(
        folder.text("queries.tsv"),
        "qid\tdocuments\tmrr\tp@1\n1\t2\t0.5\t0\n2\t1\tNA\tNA\n3\t3\t1\t1\n"
    );
    let once = folder.ok("eval --scores scores.txt --data data.txt --metrics mrr,MRR,mrr --json");
    assert_eq!(once.matches("mrr").count(), 1);
    contains(&folder.ok(&format!("{all} --empty-queries one")), &["0.8333", "empty queries: one"]);
}

#[test]
fn eval_names_what_is_wrong() {
    let folder = judged();
    folder.file("short.txt", "1\n2\n");
    folder.file("broken.txt", "1\n2\nx\n3\n2\n9\n");
    contains(&folder.fails("eval --scores short.txt --data data.txt"), &["has 2 scores, the data has 6"]);
    contains(&folder.fails("eval --scores broken.txt --data data.txt"), &["broken.txt:3: expected a score"]);
    folder.file("unjudged.txt", "-1 qid:1 1:1\n-1 qid:1 1:2\n");
    contains(&folder.fails("eval --scores short.txt --data unjudged.txt"), &["no document is judged"]);
    for (usage, part) in [
        ("eval --data data.txt", "--model"),
        ("eval --data data.txt --model m --scores short.txt", "cannot be used"),
        ("eval --data data.txt --scores short.txt --device auto", "cannot be used"),
        ("eval --data data.txt --scores short.txt --fuse none", "cannot be used"),
        ("eval --data data.txt --scores short.txt --graphs", "cannot be used"),
        ("eval --scores short.txt --data data.txt --metrics ndgc@10", "`ndgc@10` is no metric"),
    ] {
        let output = folder.run(usage);
        assert_eq!(output.status.code(), Some(2), "{usage}");
        contains(&String::from_utf8(output.stderr).unwrap(), &[part]);
    }
}

#[test]
fn compare_tests_the_paired_difference() {
    let folder = judged();
    folder.file("a.txt", "1\n2\n0\n3\n2\n9\n");
    folder.file("b.txt", "2\n1\n0\n3\n2\n9\n");
    let json = folder.ok("compare --data data.txt a.txt b.txt --metrics p@1 --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let p1 = &json["metrics"]["p@1"];
    assert_eq!((&p1["a"], &p1["b"], &p1["difference"]), (&0.5.into(), &1.0.into(), &0.5.into()));
    assert_eq!((&p1["wins"], &p1["ties"], &p1["losses"]), (&1.into(), &1.into(), &0.into()));
    assert_eq!((&p1["queries"], &p1["randomization_p"]), (&2.into(), &1.0.into()));
    assert_eq!((&json["queries"], &json["empty_queries"]), (&3.into(), &"skip".into()));
    contains(&folder.ok("compare --data data.txt a.txt b.txt"), &["1/1/0", "gain: exp"]);
}

#[test]
fn synth_writes_text_and_stores_that_others_read() {
    let folder = Folder::new();
    let make = |name: &str, seed: u64| {
        folder.ok(&format!("synth --like mslr --queries 4 --max-docs 7 --seed {seed} -o {name}"))
    };
    for (name, seed) in [("a.txt", 3), ("b.txt", 3), ("c.txt", 4), ("a.sets", 3)] {
        make(name, seed);
    }
    let text = folder.text("a.txt");
    assert_eq!(text, folder.text("b.txt"));
    assert_ne!(text, folder.text("c.txt"));
    folder.file("scores.txt", "0\n".repeat(text.lines().count()));
    let of = |data: &str| folder.ok(&format!("eval --scores scores.txt --data {data} --json"));
    assert_eq!(of("a.txt"), of("a.sets"));
    assert_eq!(make("-", 3), text);
}
