//! `setrank eval`, `compare` and `synth`, as a person calls them.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use tempfile::TempDir;

const DATA: &str = "1 qid:1 1:1 2:0\n0 qid:1 1:0 2:1\n0 qid:2 1:3\n2 qid:3 1:1\n0 qid:3 1:2\n-1 qid:3 1:2\n";

fn setrank(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_setrank"));
    command.args(arguments);
    command
}

fn stdout(arguments: &[&str]) -> String {
    let output = setrank(arguments).assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap()
}

fn failure(arguments: &[&str], code: i32) -> String {
    let assert = setrank(arguments).assert().code(code);
    assert!(assert.get_output().stdout.is_empty());
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Files { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn eval_prints_json_a_table_and_a_file_of_queries() {
    let files = Files::new();
    let data = files.write("data.txt", DATA);
    let scores = files.write("scores.txt", "1\n2\n0\n3\n2\n9\n");
    let per_query = files.path("queries.tsv").display().to_string();
    let all =
        ["eval", "--scores", &scores, "--data", &data, "--metrics", "mrr,p@1", "--per-query", &per_query];
    let json = stdout(&[&all[..], &["--json"]].concat());
    assert_eq!(
        json,
        "{\"queries\":3,\"empty_queries\":\"skip\",\"ideal\":\"full\",\"metrics\":{\
         \"mrr\":{\"mean\":0.75,\"std_error\":0.25,\"queries\":2},\
         \"p@1\":{\"mean\":0.5,\"std_error\":0.5,\"queries\":2}}}\n"
    );
    assert_eq!(
        read(&files.path("queries.tsv")),
        "qid\tdocuments\tmrr\tp@1\n1\t2\t0.5\t0\n2\t1\tNA\tNA\n3\t3\t1\t1\n"
    );
    let table = stdout(&[&all[..], &["--empty-queries", "one"]].concat());
    assert!(table.contains("0.8333") && table.contains("empty queries: one"), "{table}");
}

#[test]
fn eval_names_what_is_wrong() {
    let files = Files::new();
    let data = files.write("data.txt", DATA);
    let short = files.write("short.txt", "1\n2\n");
    let broken = files.write("broken.txt", "1\n2\nx\n3\n2\n9\n");
    assert!(
        failure(&["eval", "--scores", &short, "--data", &data], 1).contains("has 2 scores, the data has 6")
    );
    assert!(
        failure(&["eval", "--scores", &broken, "--data", &data], 1)
            .contains("broken.txt:3: expected a score")
    );
    assert!(failure(&["eval", "--data", &data], 2).contains("--model"));
    assert!(
        failure(&["eval", "--data", &data, "--model", "m", "--scores", &short], 2).contains("cannot be used")
    );
    let message = failure(&["eval", "--scores", &short, "--data", &data, "--metrics", "ndgc@10"], 2);
    assert!(message.contains("`ndgc@10` is no metric"), "{message}");
}

#[test]
fn compare_tests_the_paired_difference() {
    let files = Files::new();
    let data = files.write("data.txt", DATA);
    let a = files.write("a.txt", "1\n2\n0\n3\n2\n9\n");
    let b = files.write("b.txt", "2\n1\n0\n3\n2\n9\n");
    let json = stdout(&["compare", "--data", &data, &a, &b, "--metrics", "p@1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let p1 = &json["metrics"]["p@1"];
    assert_eq!((&p1["a"], &p1["b"], &p1["difference"]), (&0.5.into(), &1.0.into(), &0.5.into()));
    assert_eq!((&p1["wins"], &p1["ties"], &p1["losses"]), (&1.into(), &1.into(), &0.into()));
    assert_eq!((&p1["queries"], &p1["randomization_p"]), (&2.into(), &1.0.into()));
    assert_eq!((&json["queries"], &json["empty_queries"]), (&3.into(), &"skip".into()));
    let table = stdout(&["compare", "--data", &data, &a, &b]);
    assert!(table.contains("1/1/0") && table.contains("gain: exp"), "{table}");
}

#[test]
fn synth_writes_text_and_stores_that_others_read() {
    let files = Files::new();
    let make = |name: &str, seed: &str| {
        let path = files.path(name).display().to_string();
        let size = ["--queries", "4", "--max-docs", "7", "--seed", seed, "-o", &path];
        stdout(&[&["synth", "--like", "mslr"], &size[..]].concat());
        path
    };
    let (text, again, store) = (make("a.txt", "3"), make("b.txt", "3"), make("a.sets", "3"));
    assert_eq!(read(Path::new(&text)), read(Path::new(&again)));
    assert_ne!(read(Path::new(&text)), read(Path::new(&make("c.txt", "4"))));
    let documents = read(Path::new(&text)).lines().count();
    let scores = files.write("scores.txt", &"0\n".repeat(documents));
    let of = |data: &str| stdout(&["eval", "--scores", &scores, "--data", data, "--json"]);
    assert_eq!(of(&text), of(&store));
    let printed =
        stdout(&["synth", "--like", "mslr", "--queries", "4", "--max-docs", "7", "--seed", "3", "-o", "-"]);
    assert_eq!(printed, read(Path::new(&text)));
}
