//! Files of scores: one finite number a line, one line a document, in the order of the original file.

use std::path::Path;

use crate::data::Dataset;
use crate::{Error, Result};

/// Characters of an offending token that a message shows.
const SHOWN: usize = 40;

/// Reads the scores of `data` from `path` into row order `[N]`.
///
/// They are kept in float64, since other rankers write scores that differ only past float32.
pub fn read(path: &Path, data: &Dataset) -> Result<Vec<f64>> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    let scores = parse(&String::from_utf8_lossy(&bytes), &path.display().to_string())?;
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

fn parse(text: &str, file: &str) -> Result<Vec<f64>> {
    let parse_line = |(index, line): (usize, &str)| match line.trim().parse::<f64>() {
        Ok(score) if score.is_finite() => Ok(score),
        _ => Err(Error::Parse {
            file: file.to_owned(),
            line: index as u64 + 1,
            token: line.chars().take(SHOWN).collect(),
            reason: "expected a score: one finite number a line".to_owned(),
        }),
    };
    // Blank lines at the end do no harm.
    text.trim_end().lines().enumerate().map(parse_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DatasetBuilder, Document};

    #[test]
    fn numbers_in_any_usual_form_are_read() {
        assert_eq!(parse("1\n-2.5\r\n 3e-3 \n+4\n\n", "f").unwrap(), [1.0, -2.5, 3e-3, 4.0]);
        assert_eq!(parse("", "f").unwrap(), [0.0; 0]);
    }

    #[test]
    fn everything_else_is_refused_with_its_line() {
        for token in ["x", "", "nan", "inf", "1e999", "1 2", "NULL", "0x1"] {
            let message = parse(&format!("1\n{token}\n3\n"), "scores.txt").unwrap_err().to_string();
            assert!(message.starts_with("scores.txt:2: expected a score"), "{message}");
            assert!(message.ends_with(&format!("(at `{token}`)")), "{message}");
        }
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
        std::fs::write(file.path(), "1\n").unwrap();
        assert_eq!(read(file.path(), &data).unwrap(), [1.0]);
    }
}
