//! Writing a store: the features first, as they come, then everything else.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytemuck::{Zeroable, bytes_of, cast_slice};
use memmap2::Mmap;
use tempfile::NamedTempFile;

use super::header::{ALIGNMENT, HEADER_LENGTH, Header, MAGIC, NO_INDEX, SECTIONS, Section, VERSION};
use crate::data::sink::Sink;
use crate::data::{Absent, Dataset};
use crate::{Error, Result, files};

/// A store on its way: a temporary file beside its path, gone unless finished.
pub struct Writer {
    path: PathBuf,
    file: NamedTempFile,
    length: u64,
    checksum: u32,
    sections: [[u64; 2]; SECTIONS],
}

impl Writer {
    /// Starts a store that will stand at `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let mut writer = Writer {
            path: path.to_path_buf(),
            file: files::temporary_beside(path)?,
            length: 0,
            checksum: 0,
            sections: [[HEADER_LENGTH, 0]; SECTIONS],
        };
        // The header itself comes last.
        writer.write(&[0; HEADER_LENGTH as usize])?;
        writer.checksum = 0;
        Ok(writer)
    }

    /// Writes everything of `data` but its features, which were appended before, and gives the file its name.
    pub fn finish(mut self, data: &Dataset) -> Result<()> {
        let (query_ids, query_id_ends) = data.query_ids.parts();
        let (document_ids, document_id_ends) = data.document_ids.parts();
        self.section(Section::Offsets, &[cast_slice(&data.offsets)])?;
        self.section(Section::Labels, &[cast_slice(&data.labels)])?;
        self.section(Section::Positions, &[cast_slice(&data.positions)])?;
        self.section(Section::QueryIds, &[query_ids])?;
        self.section(Section::QueryIdEnds, &[cast_slice(query_id_ends)])?;
        self.section(Section::DocumentIds, &[document_ids])?;
        self.section(Section::DocumentIdEnds, &[cast_slice(document_id_ends)])?;
        let initial: Vec<&[u8]> = data.initial_scores.iter().map(|scores| cast_slice(scores)).collect();
        self.section(Section::InitialScores, &initial)?;
        let columns = data.columns;
        let mut header = Header {
            magic: MAGIC,
            version: VERSION,
            body_checksum: self.checksum,
            num_features: columns.count,
            file_length: self.length,
            num_queries: data.num_queries() as u64,
            num_documents: data.num_documents() as u64,
            absent_cells: columns.absent_cells,
            first_index: columns.first_index,
            least: columns.least.unwrap_or(NO_INDEX),
            largest: columns.largest.unwrap_or(NO_INDEX),
            absent: match columns.absent {
                Absent::Missing => 0,
                Absent::Zero => 1,
            },
            num_initial: data.num_initial() as u32,
            has_labels: u32::from(!data.labels.is_empty()),
            sections: self.sections,
            ..Header::zeroed()
        };
        header.header_checksum = header.checksum();
        let path = &self.path;
        let file = self.file.as_file_mut();
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(bytes_of(&header)))
            .map_err(|e| Error::io("write", path, e))?;
        files::persist(self.file, &self.path)
    }

    /// The features appended so far, as an unnamed store that vanishes with the value.
    pub fn into_spooled(self) -> Result<Spooled> {
        // SAFETY: the temporary is ours alone, and nothing writes to it from here on.
        let map =
            unsafe { Mmap::map(self.file.as_file()) }.map_err(|e| Error::io("read", self.file.path(), e))?;
        Ok(Spooled { map, _file: self.file })
    }

    fn section(&mut self, section: Section, parts: &[&[u8]]) -> Result<()> {
        let padding = (ALIGNMENT - self.length % ALIGNMENT) % ALIGNMENT;
        self.write(&[0; ALIGNMENT as usize][..padding as usize])?;
        let start = self.length;
        for part in parts {
            self.write(part)?;
        }
        self.sections[section as usize] = [start, self.length - start];
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io("write", &self.path, e))?;
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }
}

impl Sink for Writer {
    fn append(&mut self, values: &[f32]) -> Result<()> {
        self.write(cast_slice(values))?;
        self.sections[Section::Features as usize][1] = self.length - HEADER_LENGTH;
        Ok(())
    }
}

/// Features on the disk that are still to be rearranged.
pub struct Spooled {
    map: Mmap,
    _file: NamedTempFile,
}

impl Spooled {
    /// The values as they were appended.
    pub fn features(&self) -> &[f32] {
        cast_slice(&self.map[HEADER_LENGTH as usize..])
    }
}
