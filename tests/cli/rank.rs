//! `setrank rank` and `eval --model`, as a person calls them.

use crate::common::{Folder, contains, letor, with_data};

/// A folder with a trained `model`.
fn trained(more: &str) -> Folder {
    let folder = with_data();
    folder.train("model", more);
    folder
}

fn scores(folder: &Folder, arguments: &str) -> Vec<f32> {
    let out = folder.ok(&format!("rank {arguments}"));
    out.lines().map(|line| line.parse().unwrap()).collect()
}

/// NDCG@10 of `eval … --json`.
fn ndcg(folder: &Folder, arguments: &str) -> serde_json::Value {
    let out = folder.ok(&format!("eval {arguments} --metrics ndcg@10 --json"));
    serde_json::from_str(&out).unwrap()
}

#[test]
fn text_store_stdin_and_unlabelled_text_score_alike() {
    let folder = trained("");
    let expected = scores(&folder, "--model model --data valid.txt");
    assert_eq!(expected.len(), folder.text("valid.txt").lines().count());
    folder.ok("import valid.txt -o valid.sets");
    assert_eq!(scores(&folder, "--model model --data valid.sets"), expected);
    let output = folder
        .command("rank --model model --data -")
        .write_stdin(folder.bytes("valid.txt"))
        .output()
        .unwrap();
    let of_stdin: Vec<f32> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(of_stdin, expected);
    let unlabelled: String = folder
        .text("valid.txt")
        .lines()
        .map(|line| format!("{}\n", line.split_once(' ').unwrap().1))
        .collect();
    folder.file("unlabelled.txt", unlabelled);
    assert_eq!(scores(&folder, "--model model --data unlabelled.txt"), expected);
    folder.ok("rank --model model --data valid.txt -o scores.txt");
    assert_eq!(
        ndcg(&folder, "--scores scores.txt --data valid.txt"),
        ndcg(&folder, "--model model --data valid.sets")
    );
}

#[test]
fn plain_code_scores_as_vector_instructions_do() {
    let folder = trained("");
    let expected = scores(&folder, "--model model --data valid.txt");
    let run = |level: &str| {
        let mut command = folder.command("rank --model model --data valid.txt");
        command.env("SETRANK_SIMD", level).output().unwrap()
    };
    let plain = String::from_utf8(run("portable").stdout).unwrap();
    let plain: Vec<f32> = plain.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(plain.len(), expected.len());
    for (plain, expected) in plain.iter().zip(&expected) {
        assert!((plain - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{plain} is not {expected}");
    }
    let refused = run("fastest");
    assert_eq!(refused.status.code(), Some(1));
    contains(&String::from_utf8(refused.stderr).unwrap(), &["SETRANK_SIMD=fastest", "portable"]);
}

#[test]
fn scores_follow_the_original_file_even_where_queries_are_scattered() {
    let folder = trained("");
    let text = folder.text("valid.txt");
    let in_order = scores(&folder, "--model model --data valid.txt");
    // Every second line first: queries are torn apart, documents keep their order inside a query's halves.
    let lines: Vec<&str> = text.lines().collect();
    let order: Vec<usize> = (0..lines.len()).step_by(2).chain((1..lines.len()).step_by(2)).collect();
    folder.file("scattered.txt", order.iter().map(|&line| format!("{}\n", lines[line])).collect::<String>());
    let scattered = scores(&folder, "--model model --data scattered.txt");
    for (&line, score) in order.iter().zip(scattered) {
        assert!((score - in_order[line]).abs() < 1e-4 * (1.0 + score.abs()), "line {line}");
    }
}

#[test]
fn an_ensemble_is_the_mean_of_standardised_scores() {
    let folder = trained("");
    folder.train("other", "--seed 5 --loss approx_ndcg --normalize minmax");
    let [one, other, both, again] =
        ["--model model", "--model other", "--model model --model other", "--model model --model model"]
            .map(|models| scores(&folder, &format!("{models} --data valid.txt")));
    let text = folder.text("valid.txt");
    let query = |line: usize| text.lines().nth(line).unwrap().split(' ').nth(1).unwrap();
    for begin in (0..one.len()).filter(|&line| line == 0 || query(line) != query(line - 1)) {
        let end = (begin..one.len()).find(|&line| query(line) != query(begin)).unwrap_or(one.len());
        let standardised = |scores: &[f32]| {
            let set = &scores[begin..end];
            let n = set.len() as f32;
            let mean = set.iter().sum::<f32>() / n;
            let deviation = (set.iter().map(|s| (s - mean).powi(2)).sum::<f32>() / n).sqrt();
            let scale = if set.len() > 1 { 1.0 / deviation } else { 0.0 };
            set.iter().map(|s| (s - mean) * scale).collect::<Vec<_>>()
        };
        let (one, other) = (standardised(&one), standardised(&other));
        for ((one, other), (both, again)) in
            one.iter().zip(&other).zip(both[begin..end].iter().zip(&again[begin..end]))
        {
            assert!(((one + other) / 2.0 - both).abs() < 1e-3 && (one - again).abs() < 1e-3);
        }
    }
    ndcg(&folder, "--model model --model other --data valid.txt");
    folder.file("wide.txt", letor(24, 4).replace(" 5:", " 6:"));
    folder.ok("train --train wide.txt -o wide --hidden 8 --heads 2 --blocks 1 --ffn 8 --epochs 1");
    contains(
        &folder.fails("rank --model model --model wide --data valid.txt"),
        &["do not read the same data"],
    );
}

#[test]
fn trec_runs_name_documents_and_count_ranks() {
    let folder = trained("");
    folder.file("named.txt", "1 qid:7 1:0.5 #docid = GX-1 inc = 1\n0 qid:7 1:3\n2 qid:x 1:1 # docid=B\n");
    let out = folder.ok("rank --model model --data named.txt --format trec --tag mine");
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split(' ').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 6 && row[1] == "Q0" && row[5] == "mine"));
    let ranks: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], row[3])).collect();
    assert_eq!(ranks, [("7", "1"), ("7", "2"), ("x", "1")]);
    let mut ids: Vec<&str> = rows.iter().map(|row| row[2]).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["7-2", "B", "GX-1"]);
    assert!(rows[0][4].parse::<f32>().unwrap() >= rows[1][4].parse::<f32>().unwrap());
}

#[test]
fn documents_beyond_the_top_k_keep_their_initial_order_below() {
    let folder = trained("--init-feature 1 --top-k 3");
    folder.file("set.txt", "0 qid:1 1:5 5:0\n1 qid:1 1:1\n0 qid:1 1:4\n2 qid:1 1:2\n0 qid:1 1:3\n");
    let of_k = |k: &str| scores(&folder, &format!("--model model --data set.txt --init-feature 1 {k}"));
    let cut = of_k("");
    // Kept: documents 1, 3, 5 of the initial order 5 4 3 2 1 by feature 1; then 2, then 1.
    let least = cut[0].min(cut[2]).min(cut[4]);
    assert!(cut[3] < least && cut[1] < cut[3], "{cut:?}");
    assert_ne!(of_k("--top-k 0"), cut);
    // The evaluation of the model is that of the scores it writes.
    folder.ok("rank --model model --data set.txt --init-feature 1 -o cut.txt");
    for more in ["", "--ideal list"] {
        let top = if more.is_empty() { "" } else { "--init-feature 1 --top-k 3" };
        assert_eq!(
            ndcg(&folder, &format!("--scores cut.txt --data set.txt {more} {top}")),
            ndcg(&folder, &format!("--model model --data set.txt --init-feature 1 {more}"))
        );
    }
    let of_five = |command: &str, k: &str| {
        format!("{command} --model model --data set.txt --init-feature 1 --top-k {k} --max-set-size 4")
    };
    for command in ["rank", "eval", "importance"] {
        let message = folder.fails(&of_five(command, "0"));
        contains(&message, &["--max-set-size 4: query 1 has 5 documents", "--top-k 4"]);
    }
    folder.ok(&of_five("rank", "4"));
    contains(&folder.fails("rank --model model --data set.txt"), &["initial ranking", "--init"]);
    contains(&folder.fails("eval --scores cut.txt --data set.txt --top-k 2"), &["--top-k", "--init"]);
}

#[test]
fn every_document_can_be_alone_and_every_label_zero() {
    let folder = trained("--encoder msab --loss attention_rank");
    folder.file("odd.txt", "2 qid:1 1:0.5\n0 qid:2 1:0.5\n0 qid:3 1:0.1\n0 qid:3 1:0.2\n-1 qid:4 1:3\n");
    assert!(scores(&folder, "--model model --data odd.txt").iter().all(|score| score.is_finite()));
    let report = ndcg(&folder, "--model model --data odd.txt");
    assert_eq!((&report["queries"], &report["metrics"]["ndcg@10"]["queries"]), (&4.into(), &1.into()));
    // Sets like these are trained on as well.
    folder.file(
        "train.txt",
        format!("{}{}", folder.text("train.txt"), folder.text("odd.txt").replace("qid:", "qid:z")),
    );
    folder.train("model2", "");
}

#[test]
fn what_cannot_be_ranked_is_refused() {
    let folder = trained("");
    folder.file("wide.txt", "1 qid:1 1:0.5 2:1\n0 qid:1 3:1 77:2\n");
    folder.file("zero.txt", "1 qid:1 0:0.5\n");
    folder.file("noise.txt", "hello world\n");
    folder.file("narrow.txt", "1 qid:1 1:0.5\n");
    folder.ok("import wide.txt -o wide.sets");
    folder.ok("import narrow.txt --absent zero -o zero.sets");
    for (arguments, parts) in [
        ("--model model --data missing.txt", &["missing.txt", "No such file"][..]),
        ("--model missing --data valid.txt", &["missing"]),
        ("--model . --data valid.txt", &["not a model folder"]),
        ("--model model --data wide.txt", &["wide.txt:2", "77"]),
        ("--model model --data wide.sets", &["77"]),
        ("--model model --data zero.txt", &["zero.txt:1", "0"]),
        ("--model model --data zero.sets", &["absent"]),
        ("--model model --data noise.txt", &["noise.txt:1", "hello"]),
        ("--model model --data valid.txt -o missing/scores.txt", &["missing/scores.txt"]),
        ("--model model --data valid.txt -o valid.txt/scores.txt", &["valid.txt/scores.txt"]),
        ("--model model --data valid.txt -o model", &["model", "folder"]),
        ("--model model --data valid.txt --init-feature 9", &["feature 9"]),
    ] {
        contains(&folder.fails(&format!("rank {arguments}")), parts);
    }
    for usage in
        ["rank --data valid.txt", "rank --model model", "rank --model model --data valid.txt --threads 0"]
    {
        assert_eq!(folder.run(usage).status.code(), Some(2), "{usage}");
    }
    // A narrower file is padded.
    assert_eq!(scores(&folder, "--model model --data narrow.txt").len(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported() {
    let folder = trained("");
    let message = folder.fails("rank --model model --data valid.txt -o /dev/full");
    contains(&message, &["/dev/full", "No space left"]);
    folder.ok("rank --model model --data valid.txt -o /dev/stdout");
}

#[test]
fn damaged_checkpoints_are_refused() {
    let folder = trained("");
    let weights = folder.bytes("model/model.safetensors");
    let config = folder.text("model/config.json");
    let refused = |parts: &[&str]| contains(&folder.fails("rank --model model --data valid.txt"), parts);
    for cut in [0, 4, 100, weights.len() - 1] {
        folder.file("model/model.safetensors", &weights[..cut]);
        refused(&["model.safetensors", "not a whole safetensors file"]);
    }
    let mut altered = weights.clone();
    *altered.last_mut().unwrap() ^= 1;
    folder.file("model/model.safetensors", altered);
    refused(&["model.safetensors", "checksum"]);
    folder.file("model/model.safetensors", &weights);
    for (from, to, parts) in [
        ("\"hidden_size\": 8", "\"hidden_size\": 16", &["input.weight", "[16, "][..]),
        ("\"num_blocks\": 1", "\"num_blocks\": 2", &["lacks `blocks.1"]),
        ("\"num_blocks\": 1", "\"num_blocks\": 0", &["holds `blocks.0"]),
        ("\"format_version\": 1", "\"format_version\": 2", &["config.json", "newer"]),
        ("\"num_heads\": 2", "\"num_heads\": 3", &["hidden_size 8", "num_heads 3"]),
        ("\"num_heads\"", "\"heads\"", &["config.json", "heads"]),
        ("\"imsab\"", "\"transformer\"", &["config.json", "transformer"]),
        ("\"scale\": [", "\"scale\": [1.0,", &["scale", "6 values for 5 features"]),
        ("\"num_features\": 5", "\"num_features\": 99999999", &["num_features"]),
        ("\"ffn_size\": 8", "\"ffn_size\": 1000000000", &["ffn_size"]),
        ("\"num_inducing\": 2", "\"num_inducing\": 1048576, \"rbf_centers\": 1048576", &["config.json"]),
        (
            "\"ordinal\": null",
            "\"ordinal\": {\"rankings\": 1000000, \"n_max\": 1000000}",
            &["about 8000000000", "parameters"],
        ),
        ("{", "[", &["config.json"]),
        ("\"num_heads\": 2", "\"num_heads\": \"2\"", &["config.json: key `num_heads`: invalid type: string"]),
        (
            "\"num_heads\": 2",
            "\"num_heads\": -2",
            &["config.json: key `num_heads`: invalid value: integer `-2`"],
        ),
        ("\"encoder\"", "\"coder\"", &["config.json: key `coder`: unknown field"]),
        ("\"scale\": [", "\"scale\": [null,", &["config.json: key `normalize.scale`: invalid type: null"]),
        (
            "\"ordinal\": null",
            "\"ordinal\": {\"n\": 3}",
            &["config.json: key `ordinal.n`: unknown field `n`"],
        ),
        ("\"num_features\": 5,", "", &["config.json: num_features is 0"]),
    ] {
        assert!(config.contains(from), "{from}");
        folder.file("model/config.json", config.replacen(from, to, 1));
        refused(parts);
    }
    std::fs::remove_file(folder.path().join("model/config.json")).unwrap();
    refused(&["not a model folder"]);
}

#[test]
fn what_is_read_is_not_written_over() {
    let folder = trained("");
    folder.ok("import valid.txt -o valid.sets");
    folder.ok("import train.txt -o whole.train.sets");
    folder.file("names", "1\tone\n2\ttwo\n3\tthree\n4\tfour\n5\tfive\n");
    folder.ok("rank --model model --data valid.sets -o valid.scores");
    for arguments in [
        "rank --model model --data valid.sets -o valid.sets",
        "rank --model model --data valid.txt -o ./valid.txt",
        "rank --model model --data valid.sets -o model/config.json",
        "rank --model model --model model --data valid.sets -o model/model.safetensors",
        "rank --model model --data valid.txt --init valid.scores -o valid.scores",
        "eval --model model --data valid.sets --per-query valid.sets",
        "eval --scores valid.scores --data valid.sets --per-query valid.scores",
        "importance --model model --data valid.sets --svg valid.sets",
        "importance --model model --data valid.sets --names names --svg names",
        "split whole.train.sets -o whole",
        "import valid.txt --init valid.scores -o valid.scores",
    ] {
        contains(&folder.fails(arguments), &["write to another file"]);
    }
    // A store may take the place of itself.
    folder.ok("import valid.sets --init valid.scores -o valid.sets");
    assert!(folder.ok("info valid.sets").contains("initial rankings: 1"));
}
