//! Input files, cut into pieces of whole lines.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use super::store::MAGIC;
use crate::{Error, Result};

/// A longer line cannot be LETOR text; reading on would only fill the memory.
const LONGEST_LINE: usize = 256 << 20;

/// One input: a file, plain or compressed, or the standard input.
pub struct Input {
    name: String,
    source: Source,
    at_start: bool,
}

enum Source {
    /// `released`: the memory before it is given back.
    Mapped {
        map: Mmap,
        at: usize,
        released: usize,
    },
    Stream {
        reader: Box<dyn Read + Send>,
        read: Arc<AtomicU64>,
        rest: Vec<u8>,
        ended: bool,
    },
}

impl Input {
    /// Opens `path`: `-` is the standard input; `.gz` and `.zst` are decompressed on the way.
    pub fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Input::stream("<stdin>".to_owned(), Box::new(std::io::stdin()), Arc::default()));
        }
        let name = path.display().to_string();
        let failed = |e| Error::io("read", path, e);
        let file = File::open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if kind.is_dir() {
            return Err(failed(std::io::Error::other("it is a folder")));
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        if kind.is_file() && extension != "gz" && extension != "zst" {
            // SAFETY: the map is only read, as bytes without any invariant; the file has to stay as it is
            // while it is read, which the documentation asks of the user.
            let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
            return Ok(Input { name, source: Source::Mapped { map, at: 0, released: 0 }, at_start: true });
        }
        let read = Arc::new(AtomicU64::new(0));
        let file = BufReader::with_capacity(1 << 17, Counted { file, read: read.clone() });
        let reader: Box<dyn Read + Send> = match &*extension {
            "gz" => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
            "zst" => Box::new(zstd::Decoder::with_buffer(file).map_err(failed)?),
            _ => Box::new(file),
        };
        Ok(Input::stream(name, reader, read))
    }

    fn stream(name: String, reader: Box<dyn Read + Send>, read: Arc<AtomicU64>) -> Self {
        let source = Source::Stream { reader, read, rest: Vec::new(), ended: false };
        Input { name, source, at_start: true }
    }

    /// The input as error messages name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of bytes read so far, as they stand in the file.
    pub fn bytes_read(&self) -> u64 {
        match &self.source {
            Source::Mapped { at, .. } => *at as u64,
            Source::Stream { read, .. } => read.load(Ordering::Relaxed),
        }
    }

    /// The next `count` pieces of about `size` bytes; fewer at the end of the input.
    pub fn pieces(&mut self, count: usize, size: usize) -> Result<Vec<Cow<'_, [u8]>>> {
        let name = &self.name;
        let too_long =
            || Error::data(format!("{name}: a line of more than {} MB is no LETOR text", LONGEST_LINE >> 20));
        let mut pieces = Vec::with_capacity(count);
        match &mut self.source {
            Source::Mapped { map, at, released } => {
                release(map, *released..*at);
                *released = *at;
                while pieces.len() < count && *at < map.len() {
                    let length = whole_lines(&map[*at..], size).unwrap_or(map.len() - *at);
                    if length > size.max(LONGEST_LINE) {
                        return Err(too_long());
                    }
                    pieces.push(Cow::Borrowed(&map[*at..*at + length]));
                    *at += length;
                }
            }
            Source::Stream { reader, rest, ended, .. } => {
                while pieces.len() < count && !(*ended && rest.is_empty()) {
                    // Read until a line ends at or after `size`.
                    let mut wanted = size + 1;
                    let length = loop {
                        while !*ended && rest.len() < wanted {
                            let missing = (wanted - rest.len()) as u64;
                            let got = reader
                                .take(missing)
                                .read_to_end(rest)
                                .map_err(|e| Error::io("read", name, e))?;
                            *ended = got == 0;
                        }
                        match whole_lines(rest, size) {
                            Some(length) => break length,
                            None if *ended => break rest.len(),
                            None if rest.len() > LONGEST_LINE => return Err(too_long()),
                            None => wanted = rest.len() + size,
                        }
                    };
                    let tail = rest.split_off(length);
                    if length > 0 {
                        pieces.push(Cow::Owned(std::mem::replace(rest, tail)));
                    }
                }
            }
        }
        if self.at_start
            && let Some(first) = pieces.first_mut()
        {
            self.at_start = false;
            check_text(name, first)?;
            skip_byte_order_mark(first);
        }
        Ok(pieces)
    }
}

/// Lets go of the memory behind `range` of `map`, which is not needed again: a large file would otherwise seem
/// to fill it.
fn release(map: &Mmap, range: Range<usize>) {
    #[cfg(unix)]
    if !range.is_empty() {
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the map is read-only and of a file, so that a dropped page is read from the file again.
        let advised = unsafe { map.unchecked_advise_range(advice, range.start, range.len()) };
        // Advice only: without it nothing goes wrong.
        let _ = advised;
    }
    #[cfg(not(unix))]
    let _ = (map, range);
}

/// Length of the piece that ends with the first line end at or after `size` bytes, if there is one.
fn whole_lines(text: &[u8], size: usize) -> Option<usize> {
    let from = size.max(1) - 1;
    let end = text.get(from..)?.iter().position(|&b| b == b'\n')?;
    Some(from + end + 1)
}

/// A NUL among the first bytes means UTF-16 or a binary file: one clear message instead of an odd token.
fn check_text(name: &str, start: &[u8]) -> Result<()> {
    if start.starts_with(&MAGIC) {
        return Err(Error::data(format!(
            "{name}: a .sets file is mapped, which a stream or a compressed file cannot be: give the path of the file"
        )));
    }
    if start[..start.len().min(512)].contains(&0) {
        return Err(Error::data(format!("{name}: binary or UTF-16, not text")));
    }
    Ok(())
}

fn skip_byte_order_mark(piece: &mut Cow<'_, [u8]>) {
    const MARK: &[u8] = b"\xEF\xBB\xBF";
    if piece.starts_with(MARK) {
        match piece {
            Cow::Borrowed(text) => *text = &text[MARK.len()..],
            Cow::Owned(text) => drop(text.drain(..MARK.len())),
        }
    }
}

/// A file that counts what was read of it, for the progress of compressed input.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
