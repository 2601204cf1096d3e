//! Files of scores: one finite number a line, one line a document, in the order of the original file.

use std::path::Path;

use crate::data::Dataset;
use crate::data::initial::read_values;
use crate::{Error, Result};

/// Reads the scores of `data` from `path` into row order `[N]`.
///
/// They are kept in float64, since other rankers write scores that differ only past float32.
pub fn read(path: &Path, data: &Dataset) -> Result<Vec<f64>> {
    let scores = read_values(path, parse)?;
    let positions = data.positions();
    if scores.len() != positions.len() {
        return Err(Error::data(format!(
            "{} has {} scores, the data has {} documents: it must hold one for each, in the order of the \
             original file",
            path.display(),
            scores.len(),
            positions.len()
        )));
    }
    Ok(positions.iter().map(|&position| scores[position as usize]).collect())
}

fn parse(text: &[u8]) -> Result<f64, &'static str> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    number.filter(|number| number.is_finite()).ok_or("expected a score: one finite number a line")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DatasetBuilder, Document};

    #[test]
    fn numbers_in_any_usual_form_are_read() {
        for (text, value) in [("1", 1.0), ("-2.5", -2.5), ("3e-3", 3e-3), ("+4", 4.0)] {
            assert_eq!(parse(text.as_bytes()), Ok(value));
        }
        for text in ["x", "", "nan", "inf", "1e999", "1 2", "NULL", "0x1", "\u{ff11}"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(b"\xff").is_err());
    }

    #[test]
    fn counts_must_agree() {
        let mut builder = DatasetBuilder::new(0);
        builder.start_query("1");
        builder.push(Document::default());
        let data = builder.finish();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "1\n2\n").unwrap();
        let message = read(file.path(), &data).unwrap_err().to_string();
        assert!(message.contains("has 2 scores, the data has 1 documents"), "{message}");
        std::fs::write(file.path(), "1\r\n\n").unwrap();
        assert_eq!(read(file.path(), &data).unwrap(), [1.0]);
    }
}
