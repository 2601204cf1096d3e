//! Parts of a data set: some of its queries, written as a store of their own.

use std::path::Path;

use super::sink::Sink;
use super::store::Writer;
use super::{Columns, Dataset};
use crate::rng::{Rng, Stream};
use crate::{Error, Result};

/// Splits the queries at random: the numbers of those that stay and of those that go to the `share`, both
/// ascending. The share is rounded to whole queries; a side without any is an error.
pub fn split_queries(num_queries: usize, share: f64, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
    if !(share > 0.0 && share < 1.0) {
        return Err(Error::config(format!("a share is between 0 and 1, not {share}")));
    }
    let count = (num_queries as f64 * share).round() as usize;
    if count == 0 || count == num_queries {
        return Err(Error::data(format!(
            "a share of {share} of {num_queries} queries leaves one side without any"
        )));
    }
    let mut queries: Vec<usize> = (0..num_queries).collect();
    Rng::new(seed, Stream::Split, 0).shuffle(&mut queries);
    let mut kept = queries.split_off(count);
    kept.sort_unstable();
    queries.sort_unstable();
    Ok((kept, queries))
}

/// Writes the queries numbered `queries` of `data` as the store `path`, with their labels, ids and initial
/// scores. Their documents keep their order in the original file, and are counted anew.
pub fn write_subset(data: &Dataset, queries: &[usize], path: &Path) -> Result<()> {
    let mut writer = Writer::create(path)?;
    for &query in queries {
        writer.append(data.query(query).features())?;
    }
    writer.finish(&without_features(data, queries))
}

/// The queries numbered `queries`, all but their features.
fn without_features(data: &Dataset, queries: &[usize]) -> Dataset {
    let rows: Vec<usize> = queries.iter().flat_map(|&query| data.rows(query)).collect();
    let pick = |values: &[f32]| rows.iter().map(|&row| values[row]).collect::<Vec<f32>>();
    let mut offsets = vec![0];
    offsets.extend(queries.iter().scan(0, |end, &query| {
        *end += data.rows(query).len() as u64;
        Some(*end)
    }));
    Dataset {
        columns: subset_columns(data, rows.len()),
        features: Vec::new().into(),
        offsets: offsets.into(),
        labels: if data.labels.is_empty() { Vec::new() } else { pick(&data.labels) }.into(),
        positions: ranks(rows.iter().map(|&row| data.positions[row])).into(),
        query_ids: queries.iter().map(|&query| data.query_ids.get(query)).collect(),
        document_ids: rows.iter().map(|&row| data.document_ids.get(row)).collect(),
        initial_scores: data.initial_scores.iter().map(|scores| pick(scores).into()).collect(),
    }
}

/// Columns of a part: as wide as the whole. Which cells of it were absent is not known, only whether any was.
fn subset_columns(data: &Dataset, documents: usize) -> Columns {
    let columns = data.columns;
    let cells = documents as u64 * u64::from(columns.count);
    Columns { absent_cells: columns.absent_cells.min(cells), ..columns }
}

/// Place of each position in their ascending order.
fn ranks(positions: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut order: Vec<(u64, usize)> = positions.zip(0..).collect();
    order.sort_unstable();
    let mut ranks = vec![0; order.len()];
    for (rank, (_, row)) in (0..).zip(order) {
        ranks[row] = rank;
    }
    ranks
}
