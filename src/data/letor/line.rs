//! Lines of LETOR text, parsed into a [`Chunk`].

use std::ops::Range;

use super::marks::{Marked, Marks};
use super::pairs::{self, Run as PairRun};
use super::word::{self, Repeated};
use super::{IndexBase, Labels, LetorOptions, MAX_INDEX};
use crate::data::number::{Flaw, byte, ends_token, scan, scan_digits};

/// What the token of a query's id begins with.
const QID: &[u8] = b"qid:";

/// One feature as the text gives it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Raw index.
    pub index: u32,
    /// Value, missing = NaN.
    pub value: f32,
}

/// Neighbouring documents of one query.
#[derive(Debug)]
pub struct Run {
    /// Where its id stands in [`Chunk::query_ids`].
    pub id: Range<usize>,
    pub documents: u64,
    pub first_line: u64,
    pub last_line: u64,
}

/// What is wrong with a line.
#[derive(Clone, Debug)]
pub struct LineError {
    /// Number of the line inside the chunk, from 0.
    pub line: u64,
    pub token: String,
    pub reason: String,
}

/// The place of a token.
#[derive(Clone, Debug)]
pub struct Place {
    /// Number of the line inside the chunk, from 0.
    pub line: u64,
    pub token: String,
}

/// Everything a piece of text holds, up to its end or its first error.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Number of lines.
    pub lines: u64,
    /// Ids of all runs, one after the other.
    pub query_ids: String,
    /// Queries in order; empty where set sizes come from a companion file.
    pub runs: Vec<Run>,
    /// Whether the documents have labels; `None` without documents.
    pub labelled: Option<bool>,
    /// Where the first document begins.
    pub first_document: Option<Place>,
    /// One a document where they have labels.
    pub labels: Vec<f32>,
    /// Ids of all documents, one after the other: each valid UTF-8.
    pub ids: Vec<u8>,
    /// Where the id of each document ends.
    pub id_ends: Vec<usize>,
    /// Features of all documents; ascending indices inside a document.
    pub entries: Vec<Entry>,
    /// Where the features of each document end.
    pub entry_ends: Vec<usize>,
    /// The least index.
    pub least: Option<u32>,
    /// The largest index.
    pub largest: Option<u32>,
    /// The first index 0, where the base is still to be found.
    pub zero: Option<Place>,
    /// The first index that equals the declared width, where the base is still to be found.
    pub at_width: Option<Place>,
    /// Number of values that a later one of the same document and index replaced.
    pub duplicates: u64,
    /// The line of the first of them.
    pub first_duplicate: Option<u64>,
    /// The error that ended the parsing.
    pub error: Option<LineError>,
    /// Marks of the text, of no use once it is parsed but for their memory.
    marks: Marks,
}

impl Chunk {
    /// Parses `text`, which holds whole lines, in the memory of the chunk `used`, which is not needed any more.
    pub fn parse(text: &[u8], options: &LetorOptions, used: Chunk) -> Chunk {
        let mut chunk = used.emptied();
        let mut marks = std::mem::take(&mut chunk.marks);
        let mut parser = Parser {
            text,
            marked: marks.mark(text),
            query: None,
            at: 0,
            bounds: Bounds::new(options),
            labels: options.labels,
            sized: !options.query_sizes.is_empty(),
            label_offset: options.label_offset,
            chunk,
        };
        // Eight bytes a pair is a fair guess: it spares most of the growing.
        parser.chunk.entries.reserve(text.len() / 8);
        while parser.at < text.len() {
            if let Err(error) = parser.line() {
                parser.chunk.drop_unfinished_document();
                parser.chunk.error = Some(error);
                break;
            }
            parser.chunk.lines += 1;
        }
        let chunk = parser.chunk;
        Chunk { marks, ..chunk }
    }

    /// An empty chunk with the memory of this one, which saves the system from handing out new pages.
    fn emptied(self) -> Chunk {
        let Chunk {
            mut query_ids,
            mut runs,
            mut labels,
            mut ids,
            mut id_ends,
            mut entries,
            mut entry_ends,
            marks,
            ..
        } = self;
        query_ids.clear();
        runs.clear();
        labels.clear();
        ids.clear();
        id_ends.clear();
        entries.clear();
        entry_ends.clear();
        Chunk { query_ids, runs, labels, ids, id_ends, entries, entry_ends, marks, ..Chunk::default() }
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.entry_ends.len()
    }

    fn drop_unfinished_document(&mut self) {
        self.entries.truncate(self.entry_ends.last().copied().unwrap_or(0));
        self.ids.truncate(self.id_ends.last().copied().unwrap_or(0));
    }
}

/// Which indices may occur.
struct Bounds {
    base: IndexBase,
    width: Option<u32>,
    /// Indices from here …
    least: u32,
    /// … to here need no closer look.
    largest: u32,
}

impl Bounds {
    fn new(options: &LetorOptions) -> Self {
        let width = options.features;
        let (least, largest) = match (options.index_base, width) {
            (IndexBase::Zero, None) => (0, MAX_INDEX),
            (_, None) => (1, MAX_INDEX),
            (IndexBase::One, Some(width)) => (1, width.min(MAX_INDEX)),
            // Under `auto` the index that equals the width is legal in a 1-based file only: look closer.
            (IndexBase::Zero, Some(width)) => (0, width - 1),
            (IndexBase::Auto, Some(width)) => (1, width - 1),
        };
        Bounds { base: options.index_base, width, least, largest }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    marked: Marked<'a>,
    at: usize,
    /// The `qid:` token of the last run, where it is short.
    query: Option<Repeated>,
    bounds: Bounds,
    labels: Labels,
    sized: bool,
    label_offset: f32,
    chunk: Chunk,
}

impl<'a> Parser<'a> {
    #[inline(always)]
    fn peek(&self) -> u8 {
        byte(self.text, self.at)
    }

    #[inline(always)]
    fn skip_blanks(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r') {
            self.at += 1;
        }
    }

    /// The token that starts at `start`.
    fn token(&self, start: usize) -> &'a [u8] {
        let text: &'a [u8] = self.text;
        let length = text[start..].iter().position(|&b| ends_token(b)).unwrap_or(text.len() - start);
        &text[start..start + length]
    }

    #[cold]
    fn error(&self, start: usize, reason: impl Into<String>) -> LineError {
        LineError { line: self.chunk.lines, token: shorten(self.token(start)), reason: reason.into() }
    }

    #[cold]
    fn place(&self, start: usize) -> Place {
        Place { line: self.chunk.lines, token: shorten(self.token(start)) }
    }

    /// Parses a line with its end.
    fn line(&mut self) -> Result<(), LineError> {
        self.skip_blanks();
        match self.peek() {
            b'\n' => {}
            b'#' => self.skip_line(),
            _ => self.document()?,
        }
        self.at += 1;
        Ok(())
    }

    /// Goes to the end of the line.
    fn skip_line(&mut self) {
        let rest = &self.text[self.at..];
        self.at += memchr::memchr(b'\n', rest).unwrap_or(rest.len());
    }

    fn document(&mut self) -> Result<(), LineError> {
        let start = self.at;
        let label = self.label()?;
        let labelled = label.is_some();
        if *self.chunk.labelled.get_or_insert(labelled) != labelled {
            return Err(self.error(start, mixed_labels(labelled)));
        }
        if self.chunk.first_document.is_none() {
            self.chunk.first_document = Some(self.place(start));
        }
        let id = if self.sized || self.repeats_query_id() { None } else { Some(self.query_id()?) };
        self.features()?;
        if self.peek() == b'#' {
            self.document_id()?;
            self.skip_line();
        }
        // Only now: a document with an error leaves nothing behind.
        self.chunk.labels.extend(label);
        self.chunk.id_ends.push(self.chunk.ids.len());
        self.chunk.entry_ends.push(self.chunk.entries.len());
        let line = self.chunk.lines;
        if let Some(id) = id {
            let start = self.chunk.query_ids.len();
            self.chunk.query_ids.push_str(id);
            let id = start..self.chunk.query_ids.len();
            self.chunk.runs.push(Run { id, documents: 1, first_line: line, last_line: line });
        } else if let Some(run) = self.chunk.runs.last_mut() {
            run.documents += 1;
            run.last_line = line;
        }
        Ok(())
    }

    /// The label and the blanks after it; `None` where the line begins without one.
    fn label(&mut self) -> Result<Option<f32>, LineError> {
        let start = self.at;
        let (value, end) = match self.text[start..] {
            // A grade, as most labels are.
            [digit @ b'0'..=b'9', b' ', ..] => (f32::from(digit - b'0'), start + 1),
            _ => match scan(self.text, start) {
                Ok(scanned) => scanned,
                Err(flaw) => return self.no_label(start, flaw),
            },
        };
        if value.is_nan() {
            return Err(self.error(start, "the label is missing: an unjudged document has a negative label"));
        }
        let label = value + self.label_offset;
        if !label.is_finite() {
            return Err(self.error(start, "label and offset are beyond the range of a 32-bit float"));
        }
        self.at = end;
        self.skip_blanks();
        Ok(Some(label))
    }

    /// A line that does not begin with a number: without a label where that is allowed, or an error.
    #[cold]
    fn no_label(&self, start: usize, flaw: Flaw) -> Result<Option<f32>, LineError> {
        let token = self.token(start);
        let reason = match (self.labels, flaw) {
            (_, Flaw::BeyondF32) => "the label is beyond the range of a 32-bit float",
            _ if !token.contains(&b':') => "the label is not a number",
            (Labels::Required, _) => "a line begins with a label: a number before anything else",
            (Labels::Optional, _) if self.sized || token.starts_with(QID) => return Ok(None),
            (Labels::Optional, _) => "a line begins with a label and `qid:`, or with `qid:` alone",
        };
        Err(self.error(start, reason))
    }

    /// Passes the `qid:` token if it is that of the document before, as it mostly is.
    fn repeats_query_id(&mut self) -> bool {
        let (repeats, length) = match (&self.query, self.text[self.at..].first_chunk()) {
            (Some(query), Some(window)) => (query.begins(window), query.length),
            _ => {
                let Some(run) = self.chunk.runs.last() else { return false };
                let last = &self.chunk.query_ids.as_bytes()[run.id.clone()];
                let id = self.text[self.at..].strip_prefix(QID).and_then(|id| id.strip_prefix(last));
                (id.is_some(), QID.len() + last.len())
            }
        };
        let repeats = repeats && ends_token(byte(self.text, self.at + length));
        if repeats {
            self.at += length;
        }
        repeats
    }

    /// The `qid:` token.
    fn query_id(&mut self) -> Result<&'a str, LineError> {
        let start = self.at;
        let token = self.token(start);
        let Some(id) = token.strip_prefix(QID) else {
            return Err(self.error(
                start,
                "no `qid:` after the label; where set sizes stand in a file of their own, name it with \
                 --query-sizes FILE",
            ));
        };
        if id.is_empty() {
            return Err(self.error(start, "the query id is empty"));
        }
        let Ok(id) = std::str::from_utf8(id) else {
            return Err(self.error(start, "the query id is not valid UTF-8"));
        };
        self.at = start + token.len();
        self.query = Repeated::new(token);
        Ok(id)
    }

    /// All `index:value` pairs of the line.
    fn features(&mut self) -> Result<(), LineError> {
        let first = self.chunk.entries.len();
        let (least, largest) = (self.bounds.least, self.bounds.largest);
        if self.peek() == b' ' {
            self.at += 1;
        }
        // The index that is expected first: an ascending line has no lower one.
        let mut run = PairRun { at: self.at, next: least, ascending: true };
        let outcome = loop {
            run = pairs::append(self.marked, run, least..=largest, &mut self.chunk.entries);
            match byte(self.text, run.at) {
                b'0'..=b'9' => {}
                b' ' | b'\t' | b'\r' => {
                    run.at += 1;
                    continue;
                }
                b'\n' | b'#' => break Ok(()),
                _ => break Err(self.no_pair(run.at)),
            }
            match self.pair(&mut run.at) {
                Ok(entry) => {
                    run.ascending &= entry.index >= run.next || self.chunk.entries.len() == first;
                    run.next = entry.index + 1;
                    self.chunk.entries.push(entry);
                }
                Err(error) => break Err(error),
            }
        };
        self.at = run.at;
        outcome?;
        if !run.ascending {
            self.sort_entries(first);
        }
        if let [least, .., largest] | [least @ largest] = &self.chunk.entries[first..] {
            let (least, largest) = (least.index, largest.index);
            self.chunk.least = Some(self.chunk.least.map_or(least, |seen| seen.min(least)));
            self.chunk.largest = self.chunk.largest.max(Some(largest));
        }
        Ok(())
    }

    /// Any pair that begins with a digit at `at`, which goes behind it.
    fn pair(&mut self, at: &mut usize) -> Result<Entry, LineError> {
        let start = *at;
        let mut digits = 0;
        let colon = scan_digits(self.text, start, &mut digits);
        if byte(self.text, colon) != b':' {
            return Err(self.no_pair(start));
        }
        // Beyond the largest index the value makes no difference; so many digits may have wrapped around.
        let index = if colon - start > 19 { u32::MAX } else { u32::try_from(digits).unwrap_or(u32::MAX) };
        let (value, end) = scan(self.text, colon + 1).map_err(|flaw| self.no_value(start, flaw))?;
        if index < self.bounds.least || index > self.bounds.largest {
            self.unusual_index(start, index)?;
        }
        *at = end;
        Ok(Entry { index, value })
    }

    /// An index outside of the common range: 0, the declared width, or an error.
    #[cold]
    fn unusual_index(&mut self, start: usize, index: u32) -> Result<(), LineError> {
        if index > MAX_INDEX {
            return Err(self.error(start, format!("a feature index may be {MAX_INDEX} at most")));
        }
        if index == 0 {
            if self.bounds.base == IndexBase::One {
                return Err(self.error(start, "index 0, but the features are counted from 1"));
            }
            if self.chunk.zero.is_none() {
                self.chunk.zero = Some(self.place(start));
            }
            return Ok(());
        }
        match self.bounds.width {
            Some(width) if self.bounds.base == IndexBase::Auto && index == width => {
                if self.chunk.at_width.is_none() {
                    self.chunk.at_width = Some(self.place(start));
                }
                Ok(())
            }
            Some(width) => {
                let base = if self.bounds.base == IndexBase::Zero { ", counted from 0" } else { "" };
                Err(self.error(start, format!("index {index} is beyond the {width} features that were declared or that the model has{base}")))
            }
            None => Ok(()),
        }
    }

    #[cold]
    fn no_pair(&self, start: usize) -> LineError {
        let token = self.token(start);
        if token.starts_with(QID) {
            let reason = if self.sized {
                "the text has query ids: leave --query-sizes out"
            } else {
                "`qid:` stands once, right after the label"
            };
            return self.error(start, reason);
        }
        match token.iter().position(|&b| b == b':') {
            None => self.error(start, "expected a pair index:value"),
            Some(_) => self.error(start, "a feature index is a whole number, counted from 0 or 1"),
        }
    }

    #[cold]
    fn no_value(&self, start: usize, flaw: Flaw) -> LineError {
        let token = self.token(start);
        if token.ends_with(b":") && token.iter().filter(|&&b| b == b':').count() == 1 {
            return self.error(start, "no value after the colon (a missing value is left out or NULL)");
        }
        match flaw {
            Flaw::NotANumber => self.error(start, "the value is not a number"),
            Flaw::BeyondF32 => self.error(
                start,
                "the value is beyond the range of a 32-bit float (only magnitudes from 1e300 on mean missing)",
            ),
        }
    }

    /// Sorts the features of a document from entry number `first` on; of several with one index the last stays.
    #[cold]
    fn sort_entries(&mut self, first: usize) {
        let entries = &mut self.chunk.entries;
        entries[first..].sort_by_key(|entry| entry.index);
        let before = entries.len();
        let mut kept = first;
        for next in first + 1..before {
            if entries[next].index != entries[kept].index {
                kept += 1;
            }
            entries[kept] = entries[next];
        }
        entries.truncate(kept + 1);
        if before > entries.len() {
            self.chunk.duplicates += (before - entries.len()) as u64;
            self.chunk.first_duplicate.get_or_insert(self.chunk.lines);
        }
    }

    /// The id in a comment `#docid = ID …`, appended to the chunk's ids.
    fn document_id(&mut self) -> Result<(), LineError> {
        self.at += 1;
        self.skip_blanks();
        if !self.text[self.at..].starts_with(b"docid") {
            return Ok(());
        }
        self.at += "docid".len();
        self.skip_blanks();
        if self.peek() != b'=' {
            return Ok(());
        }
        self.at += 1;
        self.skip_blanks();
        let rest = &self.text[self.at..];
        let word::Word { length, ascii } = word::first(rest);
        let id = &rest[..length];
        if !ascii && std::str::from_utf8(id).is_err() {
            return Err(self.error(self.at, "the document id is not valid UTF-8"));
        }
        self.chunk.ids.extend_from_slice(id);
        Ok(())
    }
}

/// Says that some lines have labels and others not; `labelled`: whether the line at hand has one.
pub fn mixed_labels(labelled: bool) -> &'static str {
    if labelled {
        "this line has a label, but the lines before have none"
    } else {
        "this line has no label, but the lines before have one"
    }
}

/// A token as an error shows it.
fn shorten(token: &[u8]) -> String {
    const LONGEST: usize = 60;
    if token.is_empty() {
        return "end of line".to_owned();
    }
    // Four bytes a character at most: the rest of an endless token is not even looked at.
    let text = String::from_utf8_lossy(&token[..token.len().min(4 * LONGEST)]);
    let mut shown: String = text.chars().take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown.replace(char::is_control, "\u{FFFD}")
}
