//! What a family was made from, in a short text: the same text, the same output.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use super::error::Error;

/// The fingerprint of a command's parts and the contents of files; the files' names count, not their folders.
pub fn of<'a>(parts: &[String], files: impl Iterator<Item = &'a Path>) -> Result<String, Error> {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    for path in files {
        path.file_name().hash(&mut hasher);
        fs::read(path).map_err(|source| Error::file("read", path, source))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}\n", hasher.finish()))
}
