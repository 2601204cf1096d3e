//! LETOR text: SVMlight with query ids, as learning-to-rank sets are published.
//!
//! ```text
//! 2 qid:10 1:0.03 2:17 5:NULL #docid = GX029-35-5894638 inc = 0.02
//! ```
//!
//! A line is a document: label, `qid:` and the id of its query, then pairs `index:value`. Rules, the same
//! wherever text is read:
//!
//! - Any run of blanks and tabs separates; blank lines, CRLF, a missing last line end and a byte order mark
//!   are fine. Everything after `#` is a comment, but `#docid = ID` names the document.
//! - Numbers are decimal: `3 +0.5 1e-5 1. .50 -0`. NaN, NULL, an infinity (any case) and any magnitude from
//!   1e300 on – Istella writes 1.79769313486e+308 – are missing. Other values have to fit a 32-bit float, to
//!   which the decimal is rounded once.
//! - Labels may be fractional; a negative one means unjudged. Ids are texts: `7` and `07` differ.
//! - Indices may come in any order; of two equal ones in a line the last counts, with one warning a run. The
//!   largest legal index is [`MAX_INDEX`], so that a typing error cannot fill the disk.
//! - Columns are counted from 0 where index 0 occurs, else from 1, unless [`LetorOptions::index_base`] says;
//!   their number is [`LetorOptions::features`], else what the largest index needs.
//! - An index that a line does not mention is [`Absent::Missing`] or [`Absent::Zero`].
//! - Documents of a query that do not stand together are regrouped, with a warning: queries stand in the
//!   order of their first documents, and documents in file order inside their query. Several files are read
//!   as if they were one.
//! - Without `qid:` the sizes of the sets come from companion files ([`LetorOptions::query_sizes`]), and the
//!   queries are called 1, 2, ….
//! - Where labels are [`Labels::Optional`] all lines may begin with `qid:` (with companion files: with a pair).
//!
//! Files are memory-mapped: they must not change while they are read. `.gz` and `.zst` are decompressed, `-`
//! is the standard input. Pieces of about [`LetorOptions::chunk_size`] bytes are parsed in parallel; neither
//! their size nor the number of threads makes a difference to what comes out.

mod collect;
mod layout;
mod line;
mod marks;
mod pairs;
mod query_ids;
mod render;
pub mod sizes;
mod usual;
mod word;

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use self::collect::{Collected, Collector};
use self::layout::rearrange;
use self::line::Chunk;
use super::input::Input;
use super::sink::{Discard, Sink};
use super::store::Writer;
use super::{Absent, Dataset, initial};
use crate::{Error, Result};

pub use self::render::{check_ids, write};

/// The largest feature index that a text may have.
pub const MAX_INDEX: u32 = 1_000_000;

/// What the first column stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum IndexBase {
    /// 0 where index 0 occurs, else 1.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// Features are counted from 0.
    #[serde(rename = "0")]
    #[value(name = "0")]
    Zero,
    /// Features are counted from 1: index 0 is an error.
    #[serde(rename = "1")]
    #[value(name = "1")]
    One,
}

/// Whether the documents need labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// A line without label is an error.
    #[default]
    Required,
    /// Either all lines have a label or none.
    Optional,
}

/// How LETOR text is to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct LetorOptions {
    /// What the first column stands for.
    pub index_base: IndexBase,
    /// Number of columns; without it, as many as the largest index needs.
    pub features: Option<u32>,
    /// What an index that a line does not mention means.
    pub absent: Absent,
    /// Added to every label.
    pub label_offset: f32,
    /// Files with the sizes of the sets: one for each input file, or one for all together.
    pub query_sizes: Vec<PathBuf>,
    /// Whether the documents need labels.
    pub labels: Labels,
    /// Bytes of text that are parsed in one go.
    pub chunk_size: usize,
}

impl Default for LetorOptions {
    fn default() -> Self {
        LetorOptions {
            index_base: IndexBase::Auto,
            features: None,
            absent: Absent::Missing,
            label_offset: 0.0,
            query_sizes: Vec::new(),
            labels: Labels::Required,
            chunk_size: 1 << 16,
        }
    }
}

/// Told the number of input bytes read so far, as they stand in the files; an error it gives ends the reading.
pub type Progress<'a> = &'a (dyn Fn(u64) -> Result<()> + Sync);

/// Reads text files into memory.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.txt");
/// std::fs::write(&path, "1 qid:7 1:0.5 2:3\n0 qid:7 2:4\n")?;
/// let data = setrank::data::letor::read(&[path], &Default::default())?;
/// assert_eq!((data.num_queries(), data.num_documents(), data.num_features()), (1, 2, 2));
/// assert!(data.query(0).document(1)[0].is_nan());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(inputs: &[PathBuf], options: &LetorOptions) -> Result<Dataset> {
    read_with(inputs, options, &|_| Ok(()))
}

/// Reads text files into memory and tells how far it is.
pub fn read_with(inputs: &[PathBuf], options: &LetorOptions, progress: Progress) -> Result<Dataset> {
    let (collected, mut features) = collect(inputs, options, Vec::new(), progress)?;
    if collected.needs_rearranging() {
        let spooled = std::mem::take(&mut features);
        arrange(&mut features, &spooled, &collected, &|| progress(collected.bytes))?;
    }
    Ok(dataset(collected, features))
}

/// Reads text files into the store `output`, in bounded memory: features go to the disk as they are parsed,
/// only the columns of one value a document are held. `initial` are files of initial scores to be stored.
///
/// A second pass over the features is needed only where a later piece of the text widens the rows, brings
/// the first index 0 or continues an earlier query.
pub fn import(
    inputs: &[PathBuf],
    options: &LetorOptions,
    output: &Path,
    initial: &[PathBuf],
    progress: Progress,
) -> Result<()> {
    let (collected, mut writer) = collect(inputs, options, Writer::create(output)?, progress)?;
    if collected.needs_rearranging() {
        let spooled = writer.into_spooled()?;
        writer = Writer::create(output)?;
        arrange(&mut writer, spooled.features(), &collected, &|| progress(collected.bytes))?;
    }
    let mut data = dataset(collected, Vec::new());
    initial::attach_files(&mut data, initial)?;
    writer.finish(&data)
}

/// How much a text holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Queries.
    pub queries: usize,
    /// Documents.
    pub documents: u64,
    /// Columns of a row of features.
    pub features: u32,
}

/// Reads text files as [`import`] does, with the same warnings and errors, and keeps nothing of them but how much
/// they hold.
pub fn check(inputs: &[PathBuf], options: &LetorOptions, progress: Progress) -> Result<Counts> {
    let (collected, Discard) = collect(inputs, options, Discard, progress)?;
    Ok(Counts {
        queries: collected.query_ids.len(),
        documents: *collected.offsets.last().expect("never empty"),
        features: collected.columns.count,
    })
}

/// Writes the spooled rows in their final order and layout.
fn arrange(
    sink: &mut impl Sink,
    spooled: &[f32],
    collected: &Collected,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let (layout, absent) = (collected.layout(), collected.columns.absent);
    rearrange(sink, spooled, &collected.segments, collected.order(), layout, absent, check)
}

fn dataset(collected: Collected, features: Vec<f32>) -> Dataset {
    let documents = *collected.offsets.last().expect("never empty");
    Dataset {
        columns: collected.columns,
        features: features.into(),
        offsets: collected.offsets.into(),
        labels: collected.labels.into(),
        positions: collected.order.unwrap_or_else(|| (0..documents).collect()).into(),
        query_ids: collected.query_ids,
        document_ids: collected.document_ids,
        initial_scores: Vec::new(),
    }
}

/// Parses all inputs; their features go to `sink`.
fn collect<S: Sink>(
    inputs: &[PathBuf],
    options: &LetorOptions,
    sink: S,
    progress: Progress,
) -> Result<(Collected, S)> {
    refuse_bad_options(inputs, options)?;
    let sizes = options.query_sizes.iter().map(|path| sizes::read(path)).collect::<Result<Vec<_>>>()?;
    let chunks_at_once = 4 * rayon::current_num_threads();
    let mut collector = Collector::new(options, sink);
    let mut bytes_before = 0;
    let mut used = Vec::new();
    for (number, path) in inputs.iter().enumerate() {
        let mut input = Input::open(path)?;
        collector.start_file(input.name());
        let documents_before = collector.documents();
        let mut parsed = Vec::new();
        loop {
            // Parse a batch of pieces while the one before goes to the sink.
            let (next, appended) = rayon::join(
                || -> Result<Vec<Chunk>> {
                    let pieces = input.pieces(chunks_at_once, options.chunk_size)?;
                    used.resize_with(pieces.len(), Chunk::default);
                    let pieces = pieces.par_iter().zip(std::mem::take(&mut used));
                    Ok(pieces.map(|(piece, used)| Chunk::parse(piece, options, used)).collect())
                },
                || if parsed.is_empty() { Ok(()) } else { collector.append(&parsed) },
            );
            appended?;
            used = std::mem::replace(&mut parsed, next?);
            progress(bytes_before + input.bytes_read())?;
            if parsed.is_empty() {
                break;
            }
        }
        bytes_before += input.bytes_read();
        if sizes.len() == inputs.len() {
            let sizes_name = options.query_sizes[number].display().to_string();
            sizes::check(
                &sizes[number],
                &sizes_name,
                collector.documents() - documents_before,
                input.name(),
            )?;
        }
    }
    let sizes = (!sizes.is_empty()).then(|| sizes.concat());
    if let (Some(sizes), [path]) = (&sizes, &options.query_sizes[..]) {
        let names: Vec<String> = inputs.iter().map(|path| path.display().to_string()).collect();
        sizes::check(sizes, &path.display().to_string(), collector.documents(), &names.join(", "))?;
    }
    collector.finish(sizes, bytes_before)
}

fn refuse_bad_options(inputs: &[PathBuf], options: &LetorOptions) -> Result<()> {
    if inputs.is_empty() {
        return Err(Error::config("no input file"));
    }
    if inputs.iter().filter(|path| path.as_os_str() == "-").count() > 1 {
        return Err(Error::config("`-` stands for stdin, which can be read only once"));
    }
    if !matches!(options.query_sizes.len(), 0 | 1) && options.query_sizes.len() != inputs.len() {
        return Err(Error::config(format!(
            "--query-sizes: give one file for all, or one for each of the {} input files, not {}",
            inputs.len(),
            options.query_sizes.len()
        )));
    }
    if let Some(features) = options.features
        && !(1..=MAX_INDEX + 1).contains(&features)
    {
        return Err(Error::config(format!("--features: 1 to {}, not {features}", MAX_INDEX + 1)));
    }
    if !options.label_offset.is_finite() {
        return Err(Error::config("--label-offset: a finite number is needed"));
    }
    Ok(())
}
