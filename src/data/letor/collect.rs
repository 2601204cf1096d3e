//! Puts the parsed chunks of all input files together, in order.

use super::layout::{Layout, Segment, append_rows};
use super::line::{Chunk, LineError, Place, Run, mixed_labels};
use super::query_ids::QueryIds;
use super::{IndexBase, LetorOptions};
use crate::data::Columns;
use crate::data::column::TextColumn;
use crate::data::sink::Sink;
use crate::{Error, Result};

/// A line of one of the input files.
#[derive(Clone, Debug)]
struct At {
    file: usize,
    line: u64,
    token: String,
}

/// Documents collected so far.
pub struct Collector<'a, S> {
    options: &'a LetorOptions,
    sink: S,
    layout: Option<Layout>,
    segments: Vec<Segment>,
    /// Rows on their way to the sink.
    block: Vec<f32>,

    files: Vec<String>,
    lines: u64,

    documents: u64,
    labelled: Option<bool>,
    labels: Vec<f32>,
    ids: Vec<u8>,
    id_ends: Vec<u64>,

    query_ids: QueryIds,
    /// Where the last document of each query stands: file and line.
    last_places: Vec<(usize, u64)>,
    /// Query number and number of documents of each run of documents.
    runs: Vec<(usize, u64)>,
    regrouped: u64,
    first_regrouped: Option<String>,
    first_joined: Option<String>,

    least: Option<u32>,
    largest: Option<u32>,
    zero: Option<At>,
    at_width: Option<At>,
    present: u64,
    duplicates: u64,
    first_duplicate: Option<String>,
}

/// Everything but the features in row order; the features stand in the sink as they came.
pub struct Collected {
    pub columns: Columns,
    /// Layouts of the rows in the sink.
    pub segments: Vec<Segment>,
    /// Rows of the sink in row order; `None` where they stand in it already.
    pub order: Option<Vec<u64>>,
    pub offsets: Vec<u64>,
    pub labels: Vec<f32>,
    pub query_ids: TextColumn,
    pub document_ids: TextColumn,
    /// Number of input bytes.
    pub bytes: u64,
}

impl Collected {
    /// The layout of the finished rows.
    pub fn layout(&self) -> Layout {
        Layout { first: self.columns.first_index, width: self.columns.count }
    }

    /// Whether the rows of the sink are not yet those of the finished data.
    pub fn needs_rearranging(&self) -> bool {
        self.order.is_some() || self.segments.iter().any(|segment| segment.layout != self.layout())
    }

    /// Rows of the sink in row order.
    pub fn order(&self) -> impl Iterator<Item = u64> + '_ {
        let documents = *self.offsets.last().expect("never empty");
        (0..documents).map(|row| self.order.as_ref().map_or(row, |order| order[row as usize]))
    }
}

impl<'a, S: Sink> Collector<'a, S> {
    pub fn new(options: &'a LetorOptions, sink: S) -> Self {
        Collector {
            options,
            sink,
            layout: None,
            segments: Vec::new(),
            block: Vec::new(),
            files: Vec::new(),
            lines: 0,
            documents: 0,
            labelled: None,
            labels: Vec::new(),
            ids: Vec::new(),
            id_ends: Vec::new(),
            query_ids: QueryIds::default(),
            last_places: Vec::new(),
            runs: Vec::new(),
            regrouped: 0,
            first_regrouped: None,
            first_joined: None,
            least: None,
            largest: None,
            zero: None,
            at_width: None,
            present: 0,
            duplicates: 0,
            first_duplicate: None,
        }
    }

    /// The chunks from here on are of the file `name`.
    pub fn start_file(&mut self, name: &str) {
        self.files.push(name.to_owned());
        self.lines = 0;
    }

    /// Number of documents so far.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Appends chunks that follow each other in the current file.
    pub fn append(&mut self, chunks: &[Chunk]) -> Result<()> {
        for chunk in chunks {
            self.append_documents(chunk)?;
        }
        let layout = self.layout_so_far();
        if self.layout.replace(layout) != Some(layout) {
            self.segments.push(Segment { layout, rows: 0 });
        }
        if !S::KEEPS {
            return Ok(());
        }
        for chunk in chunks {
            self.segments.last_mut().expect("just pushed").rows += chunk.documents() as u64;
            append_rows(&mut self.sink, chunk, layout, self.options.absent, &mut self.block)?;
        }
        Ok(())
    }

    /// Appends everything of `chunk` but its features; an error in it comes last, so that the first one of
    /// the file is told however the file was cut.
    fn append_documents(&mut self, chunk: &Chunk) -> Result<()> {
        if let (Some(labelled), Some(first)) = (chunk.labelled, &chunk.first_document)
            && *self.labelled.get_or_insert(labelled) != labelled
        {
            return Err(self.error(&first.clone().because(mixed_labels(labelled))));
        }
        self.labels.extend_from_slice(&chunk.labels);
        let start = self.ids.len() as u64;
        self.ids.extend_from_slice(&chunk.ids);
        self.id_ends.extend(chunk.id_ends.iter().map(|&end| start + end as u64));
        self.documents += chunk.documents() as u64;
        for run in &chunk.runs {
            self.append_run(&chunk.query_ids[run.id.clone()], run);
        }
        self.append_indices(chunk)?;
        if let Some(error) = &chunk.error {
            return Err(self.error(error));
        }
        self.lines += chunk.lines;
        Ok(())
    }

    fn append_run(&mut self, id: &str, run: &Run) {
        let &Run { documents, first_line, last_line, .. } = run;
        let file = self.files.len() - 1;
        let number = self.query_ids.number(id);
        if number == self.last_places.len() {
            self.last_places.push((0, 0));
        }
        let known = self.last_places[number];
        self.last_places[number] = (file, self.lines + last_line + 1);
        match self.runs.last_mut() {
            Some((current, count)) if *current == number => {
                *count += documents;
                if known.0 != file {
                    let (before, here) = (&self.files[known.0], &self.files[file]);
                    self.first_joined
                        .get_or_insert_with(|| format!("query {id} of {before} goes on in {here}"));
                }
            }
            _ => {
                if known.1 > 0 {
                    self.regrouped += 1;
                    let (files, line) = (&self.files, self.lines + first_line + 1);
                    self.first_regrouped.get_or_insert_with(|| {
                        let (before, here) = (&files[known.0], &files[file]);
                        format!("query {id} ends at {before}:{} and goes on at {here}:{line}", known.1)
                    });
                }
                self.runs.push((number, documents));
            }
        }
    }

    fn append_indices(&mut self, chunk: &Chunk) -> Result<()> {
        self.present += chunk.entries.len() as u64;
        self.least = [self.least, chunk.least].into_iter().flatten().min();
        self.largest = self.largest.max(chunk.largest);
        if self.zero.is_none() {
            self.zero = chunk.zero.as_ref().map(|place| self.at(place));
        }
        if self.at_width.is_none() {
            self.at_width = chunk.at_width.as_ref().map(|place| self.at(place));
        }
        if let (Some(zero), Some(at_width), Some(width)) = (&self.zero, &self.at_width, self.options.features)
        {
            return Err(Error::Parse {
                file: self.files[at_width.file].clone(),
                line: at_width.line,
                token: at_width.token.clone(),
                reason: format!(
                    "index {width} is beyond the {width} features that were declared, counted from 0 because index 0 \
                     occurs at {}:{}",
                    self.files[zero.file], zero.line
                ),
            });
        }
        self.duplicates += chunk.duplicates;
        if self.first_duplicate.is_none() {
            let place = |line| format!("{}:{}", self.files[self.files.len() - 1], self.lines + line + 1);
            self.first_duplicate = chunk.first_duplicate.map(place);
        }
        Ok(())
    }

    fn at(&self, place: &Place) -> At {
        At { file: self.files.len() - 1, line: self.lines + place.line + 1, token: place.token.clone() }
    }

    fn error(&self, error: &LineError) -> Error {
        Error::Parse {
            file: self.files[self.files.len() - 1].clone(),
            line: self.lines + error.line + 1,
            token: error.token.clone(),
            reason: error.reason.clone(),
        }
    }

    /// The layout that holds all indices seen.
    fn layout_so_far(&self) -> Layout {
        let first = match self.options.index_base {
            IndexBase::Zero => 0,
            IndexBase::One => 1,
            IndexBase::Auto => u32::from(self.zero.is_none()),
        };
        let seen = self.largest.map_or(0, |largest| largest + 1 - first);
        Layout { first, width: self.options.features.unwrap_or(seen) }
    }

    /// The documents, regrouped by query, and the sink; `sizes` are those of the queries where the text has no ids.
    pub fn finish(self, sizes: Option<Vec<u64>>, bytes: u64) -> Result<(Collected, S)> {
        if self.documents == 0 {
            return Err(Error::data(format!("{}: no documents", self.files.join(", "))));
        }
        self.warn();
        let Layout { first, width } = self.layout.unwrap_or_else(|| self.layout_so_far());
        let (query_ids, sizes): (TextColumn, _) = match sizes {
            Some(sizes) => ((1..=sizes.len()).map(|number| number.to_string()).collect(), sizes),
            None => {
                let mut sizes = vec![0; self.query_ids.len()];
                for &(query, documents) in &self.runs {
                    sizes[query] += documents;
                }
                (self.query_ids.into_column(), sizes)
            }
        };
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let order = (self.regrouped > 0).then(|| grouped_order(&self.runs, &offsets));
        let columns = Columns {
            first_index: first,
            count: width,
            least: self.least,
            largest: self.largest,
            absent: self.options.absent,
            absent_cells: self.documents * u64::from(width) - self.present,
        };
        let ids = TextColumn::new(self.ids.into(), self.id_ends.into()).expect("every id was checked");
        let (labels, document_ids) = match &order {
            None => (self.labels, ids),
            Some(order) => {
                // Unlabelled data has no label at any row.
                let labels = order.iter().filter_map(|&row| self.labels.get(row as usize).copied()).collect();
                (labels, order.iter().map(|&row| ids.get(row as usize)).collect())
            }
        };
        let collected = Collected {
            columns,
            segments: self.segments,
            order,
            offsets,
            labels,
            query_ids,
            document_ids,
            bytes,
        };
        Ok((collected, self.sink))
    }

    fn warn(&self) {
        if let Some(first) = &self.first_duplicate {
            log::warn!(
                "{} value(s) have the index of a later one in the same line, which counts; the first at {first}",
                self.duplicates
            );
        }
        if let Some(first) = &self.first_regrouped {
            log::warn!(
                "documents of a query do not stand together {} time(s) and were regrouped; first: {first}",
                self.regrouped
            );
        }
        if let Some(first) = &self.first_joined {
            log::warn!("a query with the same id ends a file and begins the next: {first}");
        }
        if self.largest.is_none() {
            log::warn!("no document has a feature");
        }
    }
}

impl Place {
    fn because(self, reason: &str) -> LineError {
        LineError { line: self.line, token: self.token, reason: reason.to_owned() }
    }
}

/// File positions of the documents, query by query.
fn grouped_order(runs: &[(usize, u64)], offsets: &[u64]) -> Vec<u64> {
    let mut next: Vec<u64> = offsets[..offsets.len() - 1].to_vec();
    let mut order = vec![0; offsets[offsets.len() - 1] as usize];
    let mut position = 0;
    for &(query, documents) in runs {
        for _ in 0..documents {
            order[next[query] as usize] = position;
            next[query] += 1;
            position += 1;
        }
    }
    order
}
