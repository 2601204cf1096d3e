//! What the tests of the command line share: a folder of their own, and running `setrank` in it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use setrank::rng::{Rng, Stream};

/// Flags of a model that trains in no time.
pub const TINY: [&str; 10] =
    ["--hidden", "8", "--heads", "2", "--blocks", "1", "--ffn", "8", "--inducing", "2"];

/// A folder that goes away with the test.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn folder(&self, name: &str) {
        std::fs::create_dir(self.0.path().join(name)).unwrap();
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).unwrap()
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap()
    }

    /// The command, to be run in the folder; the arguments are split at blanks.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_setrank"));
        command.current_dir(&self.0).args(arguments.split_whitespace());
        // Cargo's search path has the mock driver on it.
        command.env_remove("LD_LIBRARY_PATH");
        command
    }

    pub fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that has to succeed; its stdout.
    pub fn ok(&self, arguments: &str) -> String {
        self.ok_with_stderr(arguments).0
    }

    /// Runs a command that has to succeed; its stdout and stderr.
    pub fn ok_with_stderr(&self, arguments: &str) -> (String, String) {
        let output = self.run(arguments);
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{arguments}: {err}");
        (out, err)
    }

    /// Runs a command that has to fail with exit code 1 and one message, leaving the folder as it was; the message.
    pub fn fails(&self, arguments: &str) -> String {
        let before = self.contents();
        let output = self.run(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {message}");
        assert!(output.stdout.is_empty(), "{arguments}");
        assert!(self.contents() == before, "{arguments} changed something");
        let one = message.starts_with("error: ") && message.matches("error: ").count() == 1;
        assert!(one && !message.contains("panicked"), "{arguments}: {message}");
        message
    }

    /// Trains a tiny model on `train.txt`, validated on `valid.txt`, into `output`; its stderr.
    pub fn train(&self, output: &str, more: &str) -> String {
        let epochs = if more.contains("--epochs") { "" } else { "--epochs 3" };
        let tiny = TINY.join(" ");
        let (out, err) = self.ok_with_stderr(&format!(
            "train --train train.txt --valid valid.txt -o {output} {tiny} --batch-sets 4 {epochs} {more}"
        ));
        assert!(out.is_empty(), "stdout is for results");
        err
    }

    /// Every file of the folder with its bytes.
    pub fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.0.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push((path.clone(), std::fs::read(path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

/// Sends Ctrl-C's signal to a running command.
#[cfg(unix)]
pub fn interrupt(child: &std::process::Child) {
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
}

/// A message has all of `parts`.
pub fn contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing from: {message}");
    }
}

/// LETOR text of `queries` queries with five features, the first of which tells the label.
pub fn letor(queries: usize, seed: u64) -> String {
    let mut rng = Rng::new(seed, Stream::Synth, 0);
    let mut text = String::new();
    for query in 1..=queries {
        for _ in 0..1 + rng.below(9) {
            let label = rng.below(3);
            let signal = f64::from(label) + rng.normal();
            write!(text, "{label} qid:{query} 1:{signal:.3}").unwrap();
            for feature in 2..=5 {
                // A tenth of the values is missing.
                if rng.below(10) > 0 {
                    write!(text, " {feature}:{:.3}", rng.normal()).unwrap();
                }
            }
            text.push('\n');
        }
    }
    text
}

/// A folder with `train.txt` and `valid.txt`.
pub fn with_data() -> Folder {
    let folder = Folder::new();
    folder.file("train.txt", letor(24, 1));
    folder.file("valid.txt", letor(12, 2));
    folder
}
