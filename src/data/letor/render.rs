//! Writing LETOR text.

use std::io::{self, Write};

use crate::data::{Absent, Dataset};
use crate::{Error, Result};

/// Writes `data` as text from which [`read`](super::read) makes the same data, given the width, the first index
/// and the meaning of absent features.
///
/// Documents stand in the order of the original file where that keeps the queries together, else query by
/// query. Numbers are the shortest that read back as the same float. Where no feature was absent in the data
/// every feature is written; else absent ones – missing under [`Absent::Missing`], 0 under [`Absent::Zero`] –
/// are left out. A missing value that is written is `NULL`. Text cannot hold initial rankings.
pub fn write(data: &Dataset, out: &mut dyn Write) -> io::Result<()> {
    let columns = data.columns();
    let queries = query_of_rows(data);
    for row in document_order(data, &queries) {
        let query = data.query(queries[row]);
        let document = row - query.rows().start;
        if let Some(labels) = query.labels() {
            write_number(out, labels[document])?;
            out.write_all(b" ")?;
        }
        write!(out, "qid:{}", query.id())?;
        for (index, &value) in (columns.first_index..).zip(query.document(document)) {
            let absent = match columns.absent {
                Absent::Missing => value.is_nan(),
                Absent::Zero => value.to_bits() == 0,
            };
            if absent && columns.absent_cells > 0 {
                continue;
            }
            write!(out, " {index}:")?;
            write_number(out, value)?;
        }
        let id = query.document_id(document);
        if !id.is_empty() {
            write!(out, " #docid = {id}")?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Checks that the ids of `data` can stand in text: not empty for a query, without blanks, `#` not in a query's.
pub fn check_ids(data: &Dataset) -> Result<()> {
    let splits = |id: &str| id.contains([' ', '\t', '\r', '\n']);
    for query in data.queries() {
        if query.id().is_empty() || splits(query.id()) || query.id().contains('#') {
            return Err(Error::data(format!("the query id `{}` cannot stand in LETOR text", query.id())));
        }
        for document in 0..query.len() {
            if splits(query.document_id(document)) {
                return Err(Error::data(format!(
                    "the document id `{}` cannot stand in LETOR text",
                    query.document_id(document)
                )));
            }
        }
    }
    Ok(())
}

/// The shortest decimal that reads back as `value`; `NULL` for NaN.
fn write_number(out: &mut dyn Write, value: f32) -> io::Result<()> {
    let magnitude = value.abs();
    if value.is_nan() {
        out.write_all(b"NULL")
    } else if magnitude != 0.0 && !(1e-5..1e16).contains(&magnitude) {
        write!(out, "{value:e}")
    } else {
        write!(out, "{value}")
    }
}

/// Query number of each row.
fn query_of_rows(data: &Dataset) -> Vec<usize> {
    data.queries().flat_map(|query| std::iter::repeat_n(query.index(), query.len())).collect()
}

/// Rows in the order of the original file, or in row order where that would take a query apart.
fn document_order(data: &Dataset, queries: &[usize]) -> Vec<usize> {
    let rows: Vec<usize> = (0..data.num_documents()).collect();
    let original = data.in_original_order(&rows);
    let runs = original.chunk_by(|&a, &b| queries[a] == queries[b]).count();
    let sets = data.queries().filter(|query| !query.is_empty()).count();
    if runs == sets { original } else { rows }
}
