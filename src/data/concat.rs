//! Several data sets as one.

use super::{Columns, Dataset, RawFeatures};
use crate::{Error, Result};

/// The queries of all `parts`, one part after the other, in memory; columns are matched by raw index.
///
/// It is an error if only some parts have labels, if they differ in the number of initial rankings, or if absent
/// features were read in different ways.
pub fn concat(parts: &[&Dataset]) -> Result<Dataset> {
    let columns = columns_of(parts)?;
    let documents: usize = parts.iter().map(|part| part.num_documents()).sum();
    let width = columns.count as usize;
    let mut features = vec![0.0; documents * width];
    let mut rows = features.chunks_exact_mut(width.max(1));
    let (mut offsets, mut positions) = (vec![0], Vec::with_capacity(documents));
    for part in parts {
        let alignment = part.aligned_to(RawFeatures::from(columns))?;
        let before = positions.len() as u64;
        positions.extend(part.positions().iter().map(|position| before + position));
        for query in part.queries() {
            offsets.push(before + query.rows().end as u64);
            for document in 0..query.len() {
                if let Some(row) = rows.next() {
                    alignment.read_row(query.document(document), row);
                }
            }
        }
    }
    let labels: Vec<f32> = parts.iter().flat_map(|part| part.labels.iter().copied()).collect();
    let ranking = |r: usize| -> Vec<f32> {
        parts.iter().flat_map(|part| part.initial_scores[r].iter().copied()).collect()
    };
    Ok(Dataset {
        columns,
        features: features.into(),
        offsets: offsets.into(),
        labels: labels.into(),
        positions: positions.into(),
        query_ids: parts.iter().flat_map(|part| part.queries().map(|query| query.id())).collect(),
        document_ids: parts
            .iter()
            .flat_map(|part| (0..part.num_documents()).map(|row| part.document_ids.get(row)))
            .collect(),
        initial_scores: (0..parts[0].num_initial()).map(|r| ranking(r).into()).collect(),
    })
}

/// The columns of all `parts` taken together.
///
/// # Errors
/// As [`concat()`].
pub fn columns_of(parts: &[&Dataset]) -> Result<Columns> {
    let columns = union(parts)?;
    let first = parts[0];
    if let Some(other) = parts.iter().find(|part| part.has_labels() != first.has_labels()) {
        let (with, without) = if first.has_labels() { (first, *other) } else { (*other, first) };
        return Err(Error::data(format!(
            "parts of {} and {} documents cannot be taken together: only the first have labels",
            with.num_documents(),
            without.num_documents()
        )));
    }
    if let Some(other) = parts.iter().find(|part| part.num_initial() != first.num_initial()) {
        return Err(Error::data(format!(
            "parts with {} and {} initial rankings cannot be taken together",
            first.num_initial(),
            other.num_initial()
        )));
    }
    for part in parts {
        part.aligned_to(RawFeatures::from(columns))?;
    }
    Ok(columns)
}

/// Columns that hold those of all `parts`.
fn union(parts: &[&Dataset]) -> Result<Columns> {
    let all = || parts.iter().map(|part| part.columns());
    let (Some(first_index), Some(end)) =
        (all().map(|c| c.first_index).min(), all().map(|c| c.first_index + c.count).max())
    else {
        return Err(Error::data("there is no part to take together"));
    };
    let count = end - first_index;
    let absent_cells = |part: &&Dataset| {
        let columns = part.columns();
        columns.absent_cells + u64::from(count - columns.count) * part.num_documents() as u64
    };
    // Where a part has no absent cell, how they were read made no difference.
    let telling = parts.iter().find(|part| part.columns().absent_cells > 0).unwrap_or(&parts[0]);
    Ok(Columns {
        first_index,
        count,
        least: all().filter_map(|c| c.least).min(),
        largest: all().filter_map(|c| c.largest).max(),
        absent: telling.columns().absent,
        absent_cells: parts.iter().map(absent_cells).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::letor;

    fn read(text: &str) -> Dataset {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part.txt");
        std::fs::write(&path, text).unwrap();
        letor::read(&[path], &letor::LetorOptions::default()).unwrap()
    }

    const ONE: &str = "1 qid:a 1:1 2:2 #docid = x\n0 qid:a 1:3\n0 qid:b 2:4\n2 qid:a 1:5\n";
    const TWO: &str = "0 qid:c 3:6\n1 qid:c 1:7\n";

    #[test]
    fn parts_are_read_as_their_text_would_be() {
        let together = read(&format!("{ONE}{TWO}"));
        let both = concat(&[&read(ONE), &read(TWO)]).unwrap();
        assert_eq!(both.columns(), together.columns());
        let bits = |data: &Dataset| data.features().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&both), bits(&together));
        assert_eq!(both.labels(), together.labels());
        assert_eq!(both.positions(), together.positions());
        for (a, b) in both.queries().zip(together.queries()) {
            assert_eq!((a.id(), a.rows()), (b.id(), b.rows()));
            assert!((0..a.len()).all(|document| a.document_id(document) == b.document_id(document)));
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        assert!(concat(&[]).is_err());
        let mut ranked = read(TWO);
        ranked.initial_scores.push(vec![1.0, 2.0].into());
        let message = concat(&[&read(ONE), &ranked]).unwrap_err().to_string();
        assert!(message.contains("0 and 1 initial rankings"), "{message}");
    }
}
