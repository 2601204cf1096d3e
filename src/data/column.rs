//! Columns that are either owned or a view of a memory-mapped file.

use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::Pod;
use memmap2::Mmap;

/// A read-only array: a `Vec`, or an aligned range of a memory-mapped file.
#[derive(Debug)]
pub struct Column<T: Pod>(Source<T>);

#[derive(Debug)]
enum Source<T> {
    Owned(Vec<T>),
    Mapped { map: Arc<Mmap>, bytes: Range<usize> },
}

impl<T: Pod> Column<T> {
    /// A view of `bytes` of `map`, or `None` where the range lies outside of it, is not a whole number of
    /// values or is not aligned for them.
    pub fn mapped(map: Arc<Mmap>, bytes: Range<usize>) -> Option<Self> {
        bytemuck::try_cast_slice::<u8, T>(map.get(bytes.clone())?).ok()?;
        Some(Column(Source::Mapped { map, bytes }))
    }
}

impl<T: Pod> From<Vec<T>> for Column<T> {
    fn from(values: Vec<T>) -> Self {
        Column(Source::Owned(values))
    }
}

impl<T: Pod> Deref for Column<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Source::Owned(values) => values,
            Source::Mapped { map, bytes } => bytemuck::cast_slice(&map[bytes.clone()]),
        }
    }
}

/// A column of texts: all bytes in one column, and where each text ends.
#[derive(Debug)]
pub struct TextColumn {
    bytes: Column<u8>,
    ends: Column<u64>,
}

impl TextColumn {
    /// Checks that `ends` never decrease, stay inside of `bytes` and cut it only between characters.
    pub fn new(bytes: Column<u8>, ends: Column<u64>) -> Option<Self> {
        let text = std::str::from_utf8(&bytes).ok()?;
        let mut start = 0;
        for &end in ends.iter() {
            let end = usize::try_from(end).ok()?;
            text.get(start..end)?;
            start = end;
        }
        (start == text.len()).then_some(TextColumn { bytes, ends })
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text number `index`.
    pub fn get(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        std::str::from_utf8(&self.bytes[start..self.ends[index] as usize]).expect("checked when opened")
    }

    /// The bytes of all texts, one after the other, and where each ends.
    pub fn parts(&self) -> (&[u8], &[u64]) {
        (&self.bytes, &self.ends)
    }
}

impl<S: AsRef<str>> FromIterator<S> for TextColumn {
    fn from_iter<I: IntoIterator<Item = S>>(texts: I) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for text in texts {
            bytes.extend_from_slice(text.as_ref().as_bytes());
            ends.push(bytes.len() as u64);
        }
        TextColumn { bytes: bytes.into(), ends: ends.into() }
    }
}
