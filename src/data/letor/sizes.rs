//! Companion files that hold the sizes of the sets (LightGBM's `.query`).

use std::path::Path;

use crate::data::input::Input;
use crate::{Error, Result};

/// The sizes in `path`: positive whole numbers between blanks or line ends.
pub fn read(path: &Path) -> Result<Vec<u64>> {
    let mut input = Input::open(path)?;
    let name = input.name().to_owned();
    let mut sizes = Vec::new();
    let mut line = 1;
    loop {
        let pieces = input.pieces(1, 1 << 20)?;
        let Some(piece) = pieces.first() else { break };
        for text in piece.split_inclusive(|&b| b == b'\n') {
            for token in text.split(u8::is_ascii_whitespace).filter(|token| !token.is_empty()) {
                let token = String::from_utf8_lossy(token);
                let size = token.parse().ok().filter(|&size: &u64| size > 0);
                sizes.push(size.ok_or_else(|| Error::Parse {
                    file: name.clone(),
                    line,
                    token: token.chars().take(60).collect(),
                    reason: "the size of a set is a positive whole number".to_owned(),
                })?);
            }
            line += 1;
        }
    }
    Ok(sizes)
}

/// Checks that the sizes of `sizes_name` sum up to the number of `documents` in `data_name`.
pub fn check(sizes: &[u64], sizes_name: &str, documents: u64, data_name: &str) -> Result<()> {
    let sum = sizes.iter().fold(0u64, |sum, &size| sum.saturating_add(size));
    if sum == documents {
        return Ok(());
    }
    Err(Error::data(format!(
        "the set sizes in {sizes_name} sum up to {sum}, but {data_name} has {documents} documents"
    )))
}
