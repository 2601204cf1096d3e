//! A log of JSON lines: one object a record.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{Error, Result};

/// Writes a record a line; each is in the file when [`write`](Self::write) returns.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Starts an empty log at `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::io("create", path, e))?;
        Ok(JsonLines { path: path.to_path_buf(), file })
    }

    /// Goes on with the log at `path`, or starts it, for a run that resumes at `step`.
    ///
    /// From the first record on that is of a later `step`, or was cut off by a crash, the log is dropped: the
    /// resumed run writes those steps again.
    pub fn resume(path: &Path, step: u64) -> Result<Self> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Self::create(path),
            Err(e) => return Err(Error::io("read", path, e)),
        };
        let kept = text.split_inclusive(|&byte| byte == b'\n').take_while(|line| is_up_to(line, step));
        let length = kept.map(|line| line.len() as u64).sum();
        let file = OpenOptions::new().append(true).open(path).map_err(|e| Error::io("write", path, e))?;
        file.set_len(length).map_err(|e| Error::io("write", path, e))?;
        Ok(JsonLines { path: path.to_path_buf(), file })
    }

    /// Appends `record`, which must serialise to JSON; what is not finite becomes null.
    pub fn write(&mut self, record: &impl Serialize) -> Result<()> {
        // One write a line, so that a reader who follows the file never sees half of one.
        let line = serde_json::to_string(record).map(|line| line + "\n").map_err(std::io::Error::from);
        line.and_then(|line| self.file.write_all(line.as_bytes()))
            .map_err(|e| Error::io("write", &self.path, e))
    }
}

/// Whether `line` is a whole record of no step after `step`; a record may be of no step at all.
fn is_up_to(line: &[u8], step: u64) -> bool {
    line.ends_with(b"\n")
        && serde_json::from_slice::<serde_json::Value>(line)
            .is_ok_and(|record| record["step"].as_u64().is_none_or(|of_record| of_record <= step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resumed_log_continues_after_its_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = JsonLines::resume(&path, 0).unwrap();
        log.write(&json!({"seed": 1})).unwrap();
        for step in [10, 20, 30] {
            log.write(&json!({"step": step, "loss": 1.0 / f64::from(step)})).unwrap();
        }
        let whole = fs::read_to_string(&path).unwrap();
        assert_eq!(whole.lines().nth(1), Some(r#"{"step":10,"loss":0.1}"#));
        fs::write(&path, format!("{whole}{{\"step\": 4")).unwrap();
        JsonLines::resume(&path, 99).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        let mut log = JsonLines::resume(&path, 20).unwrap();
        log.write(&json!({"step": 30, "loss": f64::NAN})).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(text.ends_with("{\"step\":20,\"loss\":0.05}\n{\"step\":30,\"loss\":null}\n"));
        JsonLines::create(&path).unwrap();
        assert!(fs::read(&path).unwrap().is_empty());
    }
}
