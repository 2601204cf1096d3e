//! What the warps of a warpgroup do together.

use super::{SHARED_BYTES, Vector};

const THREADS: usize = 128;
/// Rows of a and of the results.
const M: usize = 64;
/// Columns of a, rows of b.
const K: usize = 16;
/// Most fragments of results, and columns.
const FRAGMENTS: usize = 32;
const N: usize = 8 * FRAGMENTS;
/// Bytes of shared memory.
const IMAGE: usize = SHARED_BYTES as usize;
/// Where a begins there, behind the largest b: rows of 128 bytes.
const LEFT: usize = N * 128;

/// How an operand stands in shared memory: the canonical layouts of the PTX manual's "Asynchronous warpgroup-level matrix
/// shared memory layout".
#[derive(Clone, Copy)]
struct Layout {
    /// Bytes of a row of what is permuted together; 16: nothing is.
    row_bytes: usize,
    /// Whether rows are those of K, and not of M or N.
    transposed: bool,
    /// Byte offsets from unit to unit of 8 × 8 values.
    leading: usize,
    stride: usize,
    /// The first byte, and a column of K from which on it is read.
    begin: usize,
    first_column: usize,
}

impl Layout {
    /// Units one behind the other.
    fn dense(row_bytes: usize, transposed: bool, begin: usize) -> Self {
        let (leading, stride) = match (row_bytes, transposed) {
            (16, false) => (128, 256),
            (16, true) => (N * 16, 128),
            (_, false) => (16, 8 * row_bytes),
            (_, true) => (16 * row_bytes, 8 * row_bytes),
        };
        Layout { row_bytes, transposed, leading, stride, begin, first_column: 0 }
    }

    /// The byte at which the value stands that is number `outer` along M or N.
    fn place(&self, outer: usize, k: usize) -> usize {
        let (rows, leading, stride) = (self.row_bytes, self.leading, self.stride);
        let column = k + self.first_column;
        let at = match (rows, self.transposed) {
            (16, false) => outer / 8 * stride + outer % 8 * 16 + column / 8 * leading + column % 8 * 2,
            (16, true) => outer / 8 * stride + outer % 8 * 2 + column / 8 * leading + column % 8 * 16,
            (_, false) => outer / 8 * stride + outer % 8 * rows + column * 2,
            (_, true) => {
                let wide = rows / 2;
                outer / wide * leading + outer % wide * 2 + column / 8 * stride + column % 8 * rows
            }
        };
        let at = self.begin + at;
        at ^ ((at >> 7) & (rows / 16 - 1)) << 4
    }

    fn descriptor(&self) -> u64 {
        let mode = [16, 128, 64, 32].iter().position(|bytes| *bytes == self.row_bytes).unwrap_or(0) as u64;
        let start = self.begin + self.first_column * 2;
        let in_units = |bytes: usize| (bytes >> 4) as u64;
        in_units(start) | in_units(self.leading) << 16 | in_units(self.stride) << 32 | mode << 62
    }
}

/// Small whole numbers, whose sums are exact in any order.
fn a(m: usize, k: usize) -> f32 {
    ((5 * m + 3 * k + m * k) % 13) as f32 - 6.0
}

fn b(k: usize, n: usize) -> f32 {
    ((k + 11 * n + k * n) % 11) as f32 - 5.0
}

fn c(m: usize, n: usize) -> f32 {
    (m * N + n) as f32 - 2000.0
}

fn product(m: usize, n: usize) -> f32 {
    (0..K).map(|k| a(m, k) * b(k, n)).sum()
}

/// The input of a kernel where b has so many columns.
fn input(left: Layout, right: Layout, columns: usize) -> Vec<u32> {
    let bf16 = |value: f32| (value.to_bits() >> 16) as u16;
    // What no operand has is NaN.
    let mut image = vec![0x7fff_u16; IMAGE / 2];
    for k in 0..K {
        (0..M).for_each(|m| image[left.place(m, k) / 2] = bf16(a(m, k)));
        (0..columns).for_each(|n| image[right.place(n, k) / 2] = bf16(b(k, n)));
    }
    let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let mut words = Vec::new();
    for descriptor in [left, right].map(|layout| layout.descriptor()) {
        words.extend([descriptor as u32, (descriptor >> 32) as u32]);
    }
    for thread in 0..THREADS {
        for i in 0..4 {
            // Registers of a: rows groupID and, of the odd ones, 8 further; columns 8 further from the third on.
            let (row, column) = (row_of(thread, i % 2), thread % 4 * 2 + i / 2 * 8);
            words.push(pair(bf16(a(row, column)), bf16(a(row, column + 1))));
        }
    }
    for thread in 0..THREADS {
        words.extend(fragments(thread, FRAGMENTS, c));
    }
    words.extend(image.chunks_exact(2).map(|values| pair(values[0], values[1])));
    words
}

/// A thread's row: 16 of each warp.
fn row_of(thread: usize, half: usize) -> usize {
    thread / 32 * 16 + thread % 32 / 4 + 8 * half
}

/// What a thread has of results, eight columns after the other.
fn fragments(thread: usize, count: usize, of: impl Fn(usize, usize) -> f32) -> Vec<u32> {
    let place = |i: usize| (row_of(thread, i % 4 / 2), i / 4 * 8 + thread % 4 * 2 + i % 2);
    (0..4 * count)
        .map(|i| {
            let (row, column) = place(i);
            of(row, column).to_bits()
        })
        .collect()
}

/// Every layout of b, and of a in shared memory; a in registers and there; every number of fragments; sums and products.
pub fn wgmma() -> Vec<Vector> {
    let plain = Layout::dense(16, false, LEFT);
    let mut cases = Vec::new();
    for (number, row_bytes) in [16, 32, 64, 128].into_iter().enumerate() {
        for transposed in [false, true] {
            let right = Layout::dense(row_bytes, transposed, 0);
            cases.push((plain, right, false, if number % 2 == 0 { 8 } else { 4 }));
            cases.push((
                Layout::dense(row_bytes, false, LEFT),
                right,
                true,
                if number % 2 == 0 { 4 } else { 8 },
            ));
        }
    }
    // The second 16 columns of rows that have more, and units that are further apart.
    for row_bytes in [64, 128] {
        let later = |begin| Layout { first_column: 16, ..Layout::dense(row_bytes, false, begin) };
        cases.push((later(LEFT), later(0), true, 8));
    }
    let far = Layout { leading: 2048, stride: 1024, ..Layout::dense(32, true, 0) };
    cases.push((plain, far, false, 8));
    // a, too, by columns; b of one fragment.
    for row_bytes in [16, 32, 64, 128] {
        let left = Layout::dense(row_bytes, true, LEFT);
        for transposed in [false, true] {
            cases.push((left, Layout::dense(128, transposed, 0), true, if transposed { 32 } else { 8 }));
        }
        cases.push((left, Layout::dense(16, false, 0), true, 1));
    }
    let far = Layout { leading: 4096, stride: 2048, ..Layout::dense(64, true, LEFT) };
    cases.push((far, Layout::dense(128, true, 0), true, 16));
    cases.push((plain, Layout::dense(16, false, 0), false, 1));
    for count in [16, 24, 32] {
        for (row_bytes, transposed) in [(128, false), (32, true)] {
            let right = Layout::dense(row_bytes, transposed, 0);
            cases.extend([false, true].map(|in_shared| (plain, right, in_shared, count)));
        }
    }
    let of = |(number, (left, right, in_shared, count)): (usize, (Layout, Layout, bool, usize))| {
        let add = number % 3 != 0;
        let sum = |m, n| if add { c(m, n) } else { 0.0 } + product(m, n);
        let expected = (0..THREADS).flat_map(|thread| fragments(thread, count, sum)).collect();
        let kinds = [right.transposed, in_shared, in_shared && left.transposed];
        let kind = (0..).zip(kinds).map(|(bit, is)| i32::from(is) << bit).sum::<i32>() + 8 * count as i32;
        Vector::new("wgmma", 128, &input(left, right, 8 * count), [kind, add.into()], expected)
    };
    cases.into_iter().enumerate().map(of).collect()
}

/// Groups that are waited for one after the other.
pub fn groups() -> Vec<Vector> {
    let [left, right] = [LEFT, 0].map(|begin| Layout::dense(128, false, begin));
    let mut expected = Vec::new();
    for thread in 0..THREADS {
        expected.extend(fragments(thread, 8, product));
        expected.extend(fragments(thread, 4, |m, n| c(m, n) + 2.0 * product(m, n)));
    }
    expected.extend((0..THREADS).flat_map(|thread| fragments(thread, 8, |m, n| 2.0 * product(m, n))));
    vec![Vector::new("wgmma_groups", 256, &input(left, right, 64), [0, 0], expected)]
}
