//! Rows of features whose layout may still change while they are read.

use super::line::{Chunk, Entry};
use crate::Result;
use crate::data::Absent;
use crate::data::sink::Sink;

/// Which raw index a row starts with, and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub first: u32,
    pub width: u32,
}

/// Rows of one layout.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub layout: Layout,
    pub rows: u64,
}

/// What a cell without a value holds.
pub fn fill(absent: Absent) -> f32 {
    match absent {
        Absent::Missing => f32::NAN,
        Absent::Zero => 0.0,
    }
}

/// Values that go to the sink at once: bounds the memory however wide the rows are, and few enough to stay in the
/// cache of a core on their way.
const BLOCK_VALUES: usize = 1 << 16;

/// Appends the documents of `chunk` to `sink` as rows of `layout`; `block` is memory for them on their way.
pub fn append_rows(
    sink: &mut impl Sink,
    chunk: &Chunk,
    layout: Layout,
    absent: Absent,
    block: &mut Vec<f32>,
) -> Result<()> {
    let width = layout.width as usize;
    if width == 0 {
        return Ok(());
    }
    let rows_at_once = (BLOCK_VALUES / width).max(1);
    let mut start = 0;
    for ends in chunk.entry_ends.chunks(rows_at_once) {
        block.clear();
        block.resize(ends.len() * width, fill(absent));
        for (row, &end) in block.chunks_exact_mut(width).zip(ends) {
            for &Entry { index, value } in &chunk.entries[start..end] {
                row[(index - layout.first) as usize] = value;
            }
            start = end;
        }
        sink.append(block)?;
    }
    Ok(())
}

/// Appends the rows `order` of `values`, which stand in `segments`, to `sink` as rows of `layout`.
///
/// A segment's layout never reaches beyond the final one. `check` is called now and then; its error ends the work.
pub fn rearrange(
    sink: &mut impl Sink,
    values: &[f32],
    segments: &[Segment],
    order: impl Iterator<Item = u64>,
    layout: Layout,
    absent: Absent,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let width = layout.width as usize;
    if width == 0 {
        return Ok(());
    }
    // Row number and value number at which each segment starts.
    let mut starts = Vec::with_capacity(segments.len());
    let (mut row, mut value) = (0, 0);
    for segment in segments {
        starts.push((row, value));
        row += segment.rows;
        value += segment.rows as usize * segment.layout.width as usize;
    }
    let block_values = (BLOCK_VALUES / width).max(1) * width;
    let mut block = Vec::with_capacity(block_values);
    for row in order {
        let number = starts.partition_point(|&(first, _)| first <= row) - 1;
        let (first_row, first_value) = starts[number];
        let from = segments[number].layout;
        let start = first_value + (row - first_row) as usize * from.width as usize;
        let cells = &values[start..start + from.width as usize];
        let shift = (from.first - layout.first) as usize;
        let row_start = block.len();
        block.resize(row_start + width, fill(absent));
        block[row_start + shift..row_start + shift + cells.len()].copy_from_slice(cells);
        if block.len() >= block_values {
            sink.append(&block)?;
            block.clear();
            check()?;
        }
    }
    sink.append(&block)
}
