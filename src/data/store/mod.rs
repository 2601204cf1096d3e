//! `.sets` files: a data set as one memory-mapped binary file.
//!
//! Layout, all little-endian: a header of 256 bytes (magic `89 53 45 54 53 0D 0A 1A`, version, CRC-32C of the
//! header and of everything after it, sizes, the indices seen, offset and length of each section), then the
//! sections, each at a multiple of 64 bytes: float32 features `[N, F]` with NaN for missing, offsets
//! `[Q + 1]`, labels, positions in the original file, ids of queries and documents, initial scores `[R, N]`.
//!
//! A file is written beside its name and renamed when whole. Opening it verifies the checksums – in parallel,
//! at the speed of the memory – and every range, count and order in it, so that a file that was cut, altered
//! or written by a newer version is an error. While it is open it must not be changed in place.

mod header;
mod reader;
mod writer;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub(super) use self::header::MAGIC;
use super::Dataset;
use super::sink::Sink;
use crate::{Error, Result};

pub use self::reader::open;
pub(crate) use self::writer::Writer;

/// Writes `data` as a store.
///
/// ```
/// # use setrank::data::{DatasetBuilder, Document, store};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.sets");
/// let mut builder = DatasetBuilder::new(2);
/// builder.start_query("q1");
/// builder.push(Document { features: &[0.5, f32::NAN], label: Some(2.0), id: "d1" });
/// store::write(&builder.finish(), &path)?;
/// let data = store::open(&path)?;
/// assert_eq!((data.query(0).id(), data.query(0).document_id(0)), ("q1", "d1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(data: &Dataset, path: &Path) -> Result<()> {
    let mut writer = Writer::create(path)?;
    for block in data.features().chunks(1 << 20) {
        writer.append(block)?;
    }
    writer.finish(data)
}

/// Whether the file at `path` begins as a store does, whatever its name. What is no regular file – `-`, a
/// pipe – is text, and is not touched here.
pub fn is_store(path: &Path) -> Result<bool> {
    if path == Path::new("-") {
        return Ok(false);
    }
    let failed = |e| Error::io("read", path, e);
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(path).map_err(failed)?.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(failed)?;
    Ok(start == MAGIC)
}
