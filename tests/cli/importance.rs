//! `setrank importance`, as a person calls it.

use serde_json::Value;

use crate::common::{contains, with_data};

#[test]
fn the_feature_that_tells_the_label_is_found() {
    let folder = with_data();
    folder.train("model", "--epochs 30 --lr 0.01");
    folder.file("names.tsv", "feature\tname\n1\tsignal\tx\n3\t<noise>\n");
    let usage = "importance --model model --data valid.txt --repeats 3";
    let (out, told) = folder.ok_with_stderr(&format!("{usage} --names names.tsv --svg bars.svg"));
    contains(&told, &["names.tsv: 2 names for 5 features"]);
    let rows: Vec<&str> = out.lines().skip(3).collect();
    assert_eq!(rows.len(), 5);
    assert!(rows[0].ends_with("  signal") && rows[0].contains(" ± "), "{out}");
    contains(&out, &["Drop of ndcg@10", "empty queries: skip", "  <noise>", "  5"]);
    contains(&folder.text("bars.svg"), &["signal", "&lt;noise&gt;", "</svg>"]);

    folder.file("names.txt", "first\nsecond\n");
    let json: Value =
        serde_json::from_str(&folder.ok(&format!("{usage} --names names.txt --json --threads 3"))).unwrap();
    assert_eq!(json["features"][0]["name"], "first");
    assert_eq!(json["features"][0]["feature"], 1);
    assert!(json["features"][0]["within_set"]["mean"].as_f64().unwrap() > 0.0);
    // Equal seeds, equal bits.
    let table = |more: &str| folder.ok(&format!("{usage} {more}"));
    assert_eq!(table("--seed 4"), table("--seed 4 --threads 1"));
    assert_ne!(table("--seed 4"), table("--seed 5"));
    table("--model model --metric map");
}

#[test]
fn what_is_wrong_is_named() {
    let folder = with_data();
    folder.train("model", "");
    folder.file("names.tsv", "1\tone\ntwo\ttwo\n");
    let usage = "importance --model model --data valid.txt";
    contains(&folder.fails(&format!("{usage} --names names.tsv")), &["names.tsv:2", "a tab and a name"]);
    contains(&folder.fails(&format!("{usage} --names missing.tsv")), &["missing.tsv"]);
    folder.file("bare.txt", "qid:1 1:1 5:2\n");
    contains(&folder.fails("importance --model model --data bare.txt"), &["bare.txt", "label"]);
    for (names, parts) in [
        ("\n\n", &["names.tsv", "no name"][..]),
        ("feature\tname\n", &["names.tsv", "no name"]),
        ("rank\tvalue\n1\tone\n", &["names.tsv:1", "a tab and a name"]),
        ("1\tone\n1\tuno\n", &["names.tsv:2", "feature 1 has a name already"]),
        ("1\t0.25\n2\t-3e-4\n", &["names.tsv", "second column holds numbers"]),
    ] {
        folder.file("names.tsv", names);
        contains(&folder.fails(&format!("{usage} --names names.tsv")), parts);
    }
    for repeats in ["0", "1001", "18446744073709551615"] {
        assert_eq!(folder.run(&format!("{usage} --repeats {repeats}")).status.code(), Some(2));
    }
    for (label, part) in [(0, "no document is relevant"), (-1, "no document is judged")] {
        folder.file("flat.txt", format!("{label} qid:1 1:1 5:2\n"));
        contains(&folder.fails("importance --model model --data flat.txt"), &[part, "--label-offset"]);
    }
}
