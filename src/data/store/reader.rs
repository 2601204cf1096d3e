//! Opening a store: nothing of the file is trusted before it is checked.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;
use memmap2::Mmap;
use rayon::prelude::*;

use super::header::{HEADER_LENGTH, Header, MAGIC, NO_INDEX, Section, VERSION};
use crate::data::column::{Column, TextColumn};
use crate::data::{Absent, Columns, Dataset};
use crate::{Error, Result};

/// Bytes that are checked as one piece.
const PIECE: usize = 8 << 20;

/// Maps the store at `path`.
pub fn open(path: &Path) -> Result<Dataset> {
    let failed = |e| Error::io("read", path, e);
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(std::io::Error::other("it is a folder")));
    }
    // SAFETY: the map is only read, and all its values are valid for any bytes but the ids, which are checked
    // again at every use; the file has to stay as it is while it is open, as the documentation says.
    let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(failed)?);
    let damaged = |reason: &str| Error::damaged(path, reason);
    let header = checked_header(path, &map)?;
    if body_checksum(&map[HEADER_LENGTH as usize..]) != header.body_checksum {
        return Err(damaged("damaged: its content does not match its checksum; import the data again"));
    }
    Opened { map, header }.dataset().ok_or_else(|| damaged("damaged: its parts contradict each other"))
}

fn checked_header(path: &Path, map: &[u8]) -> Result<Header> {
    let damaged = |reason: String| Error::damaged(path, reason);
    let Some(bytes) = map.get(..HEADER_LENGTH as usize) else {
        return Err(damaged(format!("truncated: {} bytes are too few for a .sets file", map.len())));
    };
    let header: Header = bytemuck::pod_read_unaligned(bytes);
    if header.magic != MAGIC {
        return Err(damaged("not a .sets file".to_owned()));
    }
    if header.version != VERSION {
        return Err(damaged(format!(
            "a .sets file of version {}, but this setrank reads version {VERSION}: use a matching setrank, or \
             import the data again",
            header.version
        )));
    }
    if header.checksum() != header.header_checksum {
        return Err(damaged(
            "damaged: its header does not match its checksum; import the data again".to_owned(),
        ));
    }
    if header.file_length != map.len() as u64 {
        return Err(damaged(format!(
            "truncated or overlong: {} bytes instead of {}; copy it again or import the data again",
            map.len(),
            header.file_length
        )));
    }
    Ok(header)
}

fn body_checksum(body: &[u8]) -> u32 {
    let pieces: Vec<(u32, usize)> =
        body.par_chunks(PIECE).map(|piece| (crc32c::crc32c(piece), piece.len())).collect();
    pieces.into_iter().fold(0, |sum, (checksum, length)| crc32c::crc32c_combine(sum, checksum, length))
}

struct Opened {
    map: Arc<Mmap>,
    header: Header,
}

impl Opened {
    /// The data set, or `None` where parts of the file contradict each other.
    fn dataset(&self) -> Option<Dataset> {
        let header = &self.header;
        let (queries, documents) = (header.num_queries, header.num_documents);
        let values = documents.checked_mul(u64::from(header.num_features))?;
        let data = Dataset {
            columns: self.columns(values)?,
            features: self.column(Section::Features, values)?,
            offsets: self.column(Section::Offsets, queries.checked_add(1)?)?,
            labels: self
                .column(Section::Labels, if self.flag(header.has_labels)? { documents } else { 0 })?,
            positions: self.column(Section::Positions, documents)?,
            query_ids: self.texts(Section::QueryIds, Section::QueryIdEnds, queries)?,
            document_ids: self.texts(Section::DocumentIds, Section::DocumentIdEnds, documents)?,
            initial_scores: self.initial_scores()?,
        };
        let offsets = &data.offsets;
        let offsets_fit =
            offsets.first() == Some(&0) && offsets.last() == Some(&documents) && offsets.is_sorted();
        let labels_fit = data.labels.iter().all(|label| label.is_finite());
        let scores_fit = data.initial_scores.iter().all(|scores| scores.iter().all(|s| !s.is_infinite()));
        (offsets_fit && labels_fit && scores_fit && is_permutation(&data.positions)).then_some(data)
    }

    fn columns(&self, values: u64) -> Option<Columns> {
        let header = &self.header;
        let index = |index| (index != NO_INDEX).then_some(index);
        let columns = Columns {
            first_index: header.first_index,
            count: header.num_features,
            least: index(header.least),
            largest: index(header.largest),
            absent: if self.flag(header.absent)? { Absent::Zero } else { Absent::Missing },
            absent_cells: header.absent_cells,
        };
        let end = header.first_index.checked_add(header.num_features)?;
        let indices_fit = match (columns.least, columns.largest) {
            (Some(least), Some(largest)) => header.first_index <= least && least <= largest && largest < end,
            (None, None) => true,
            _ => false,
        };
        (indices_fit && columns.absent_cells <= values).then_some(columns)
    }

    fn flag(&self, flag: u32) -> Option<bool> {
        (flag <= 1).then_some(flag == 1)
    }

    /// The bytes of a section, which stand after the header and inside of the file.
    fn range(&self, section: Section) -> Option<Range<usize>> {
        let [start, length] = self.header.sections[section as usize];
        let end = start.checked_add(length)?;
        let inside = start >= HEADER_LENGTH && end <= self.map.len() as u64;
        inside.then_some(start as usize..end as usize)
    }

    fn column<T: Pod>(&self, section: Section, count: u64) -> Option<Column<T>> {
        let column = Column::mapped(self.map.clone(), self.range(section)?)?;
        (column.len() as u64 == count).then_some(column)
    }

    fn texts(&self, texts: Section, ends: Section, count: u64) -> Option<TextColumn> {
        let bytes = Column::mapped(self.map.clone(), self.range(texts)?)?;
        TextColumn::new(bytes, self.column(ends, count)?)
    }

    fn initial_scores(&self) -> Option<Vec<Column<f32>>> {
        let range = self.range(Section::InitialScores)?;
        let count = self.header.num_initial as usize;
        let bytes = usize::try_from(self.header.num_documents).ok()?.checked_mul(size_of::<f32>())?;
        if bytes.checked_mul(count)? != range.len() || (bytes == 0 && count > 0) {
            return None;
        }
        (0..count)
            .map(|ranking| {
                let start = range.start + ranking * bytes;
                Column::mapped(self.map.clone(), start..start + bytes)
            })
            .collect()
    }
}

fn is_permutation(positions: &[u64]) -> bool {
    let mut seen = vec![false; positions.len()];
    positions.iter().all(|&position| {
        let seen = usize::try_from(position).ok().and_then(|position| seen.get_mut(position));
        seen.is_some_and(|seen| !std::mem::replace(seen, true))
    })
}
