//! Fixed inputs of micro-kernels, and what they must give by the PTX manual: each function of `kernels/ptx.cuh` is in one
//! of them. The kernels are those of `tools/emulator/tests/kernels`; the emulator's own tests use the same vectors.

use std::fmt;

mod block;
pub mod cluster;
mod copies;
mod memory;
mod plain;
pub mod warp;
mod wgmma;

/// A word that a kernel has to write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// This one.
    Word(u32),
    /// An f32 at most so far from a number.
    Near {
        /// The number.
        value: f64,
        /// How far.
        within: f64,
    },
}

impl Expected {
    /// Whether a word will do.
    pub fn allows(self, word: u32) -> bool {
        match self {
            Expected::Word(expected) => word == expected,
            Expected::Near { value, within } => (f64::from(f32::from_bits(word)) - value).abs() <= within,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Word(word) => write!(f, "{word:#010x}"),
            Expected::Near { value, within } => write!(f, "{value:e} ± {within:.1e}"),
        }
    }
}

/// A launch of a micro-kernel, and what it has to write.
#[derive(Clone, Debug)]
pub struct Vector {
    /// Its name.
    pub kernel: &'static str,
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Words of the input.
    pub input: Vec<u32>,
    /// The kernel's two integers.
    pub numbers: [i32; 2],
    /// Words of the output, of which those behind `expected` depend on the order of threads.
    pub output_words: usize,
    /// The first words of the output.
    pub expected: Vec<Expected>,
    /// The input as a matrix of 16-bit values, where the kernel takes a tensor map of it.
    pub matrix: Option<Matrix>,
}

/// A matrix, row-major, of which boxes of so many rows and 64 columns are copied; or one in panels, of which boxes are.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Columns, of all panels.
    pub columns: usize,
    /// Rows of a box.
    pub box_rows: u32,
    /// The panels.
    pub panels: Option<InPanels>,
}

/// How a matrix stands in panels of so many columns, and how many a box has.
#[derive(Clone, Copy, Debug)]
pub struct InPanels {
    /// Columns of a panel.
    pub width: usize,
    /// Panels of a box.
    pub of_box: u32,
    /// Whether a panel stands behind the other, and not beside it, in rows of all columns.
    pub apart: bool,
}

impl Vector {
    /// A launch of one block that has to write these words.
    fn new(kernel: &'static str, threads: u32, input: &[u32], numbers: [i32; 2], expected: Vec<u32>) -> Self {
        let output_words = expected.len();
        let expected = expected.into_iter().map(Expected::Word).collect();
        let input = input.to_vec();
        Vector { kernel, blocks: 1, threads, input, numbers, output_words, expected, matrix: None }
    }

    /// Which of the words that were written are wrong.
    pub fn wrong(&self, output: &[u32]) -> Vec<usize> {
        let is_wrong = |&at: &usize| !output.get(at).is_some_and(|&word| self.expected[at].allows(word));
        (0..self.expected.len()).filter(is_wrong).collect()
    }
}

/// A micro-kernel, and its vectors.
#[derive(Clone, Copy, Debug)]
pub struct Micro {
    /// The file that it is in, without `.cu`.
    pub source: &'static str,
    /// Its name.
    pub kernel: &'static str,
    /// Makes its vectors.
    pub vectors: fn() -> Vec<Vector>,
}

/// Bytes of shared memory that are enough for each of them.
pub const SHARED_BYTES: u32 = 40 << 10;

/// All of them; those in `…_sm90` run on compute capability 9.0 alone.
pub const ALL: [Micro; 20] = [
    Micro { source: "plain", kernel: "copy", vectors: plain::copy },
    Micro { source: "plain", kernel: "add", vectors: plain::add },
    Micro { source: "memory", kernel: "every_width", vectors: memory::every_width },
    Micro { source: "memory", kernel: "atomics", vectors: memory::atomics },
    Micro { source: "memory", kernel: "arithmetic", vectors: memory::arithmetic },
    Micro { source: "warp", kernel: "ldmatrix", vectors: warp::ldmatrix },
    Micro { source: "warp", kernel: "ldmatrix_transposed", vectors: warp::ldmatrix_transposed },
    Micro { source: "warp", kernel: "mma", vectors: warp::mma },
    Micro { source: "warp", kernel: "passes", vectors: warp::passes },
    Micro { source: "block", kernel: "ring", vectors: block::ring },
    Micro { source: "block", kernel: "producer", vectors: block::producer },
    Micro { source: "copies", kernel: "groups", vectors: copies::groups },
    Micro { source: "warp_sm90", kernel: "stmatrix", vectors: warp::stmatrix },
    Micro { source: "warp_sm90", kernel: "stmatrix_transposed", vectors: warp::stmatrix_transposed },
    Micro { source: "copies_sm90", kernel: "bulk", vectors: copies::bulk },
    Micro { source: "cluster_sm90", kernel: "boxes", vectors: cluster::boxes },
    Micro { source: "cluster_sm90", kernel: "panels_of_32", vectors: cluster::panels_of_32 },
    Micro { source: "cluster_sm90", kernel: "panels_of_64", vectors: cluster::panels_of_64 },
    Micro { source: "wgmma_sm90", kernel: "wgmma", vectors: wgmma::wgmma },
    Micro { source: "wgmma_sm90", kernel: "wgmma_groups", vectors: wgmma::groups },
];

/// The files that they are in, without `.cu`.
pub fn sources() -> Vec<&'static str> {
    let mut sources: Vec<&str> = ALL.iter().map(|micro| micro.source).collect();
    sources.dedup();
    sources
}

/// Words that all differ.
pub fn words(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ 0x5a5a_5a5a).collect()
}
