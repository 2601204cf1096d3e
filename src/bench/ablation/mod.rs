//! What fusion is worth: the rungs of `--fuse` one beside the other.
//!
//! Without a GPU by counting: `counts.tsv` has what the emulator of `tools/emulator` counts of each kernel of a training step of
//! the model of full size, a document. A test writes it and holds it to the kernels. What a card would make of the counts is
//! predicted by its [`Rates`]: a kernel takes at least as long as the slowest of its products, bytes, exponentials, requests and
//! cycles of shared memory, and a step the sum over its kernels.

mod table;

use std::fmt;

use serde::Serialize;

pub use table::{Counts, Kernels, Rung, Table};

use super::{Mode, floor};
use crate::config::{Encoder, ModelConfig};
use crate::device::choice::{Fusion, MatrixKernels};

/// Encoders that are counted.
pub const ENCODERS: [Encoder; 2] = [Encoder::Msab, Encoder::Imsab];

/// Documents of each set, of the batches that are counted.
pub const REFERENCE_SIZES: [usize; 2] = [40, 384];

/// The rungs, the least fused first: what is fused, and by which matrix instructions.
pub const RUNGS: [(Fusion, MatrixKernels); 5] = [
    (Fusion::None, MatrixKernels::Mma),
    (Fusion::Flash, MatrixKernels::Mma),
    (Fusion::Attention, MatrixKernels::Mma),
    (Fusion::All, MatrixKernels::Mma),
    (Fusion::All, MatrixKernels::Wgmma),
];

/// What tables call a rung: what is fused, and its matrix instructions where they are not warps'.
pub fn label((fuse, matrix): (Fusion, MatrixKernels)) -> String {
    match matrix {
        MatrixKernels::Mma => fuse.name().to_owned(),
        MatrixKernels::Wgmma => format!("{}, {}", fuse.name(), matrix.name()),
    }
}

/// The model that is counted: of full size, with Istella's features.
pub fn reference(encoder: Encoder) -> ModelConfig {
    ModelConfig {
        num_features: 220,
        hidden_size: 256,
        num_heads: 8,
        num_blocks: 6,
        ffn_size: 1024,
        num_inducing: 20,
        encoder,
        ..ModelConfig::default()
    }
}

/// What a card does in a second, at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Operations of matrix products by warps, and by warpgroups.
    pub operations: [f64; 2],
    /// Bytes of its memory.
    pub bytes: f64,
    /// Bytes that warps ask of its L2 cache.
    pub requests: f64,
    /// Exponentials.
    pub exponentials: f64,
    /// Cycles of shared memory, of all multiprocessors.
    pub wavefronts: f64,
}

impl Rates {
    /// An H100, as others measured it: a large product by wgmma 798e12, of which mma.sync reaches about 0.65; a large copy; 132
    /// multiprocessors at 1.7 GHz. None of it was measured by this program.
    pub const H100: Rates = Rates {
        operations: [0.65 * 798e12, 798e12],
        bytes: 3.0e12,
        requests: 5.5e12,
        exponentials: 3.6e12,
        wavefronts: 132.0 * 1.7e9,
    };

    /// Operations of products by these instructions.
    fn operations_by(&self, matrix: MatrixKernels) -> f64 {
        match matrix {
            MatrixKernels::Mma => self.operations[0],
            MatrixKernels::Wgmma => self.operations[1],
        }
    }

    /// Seconds that what was counted of a kernel takes at least, and what takes them.
    pub fn least(&self, kernel: &str, counts: &Counts) -> (f64, &'static str) {
        let by_wgmma = kernel.contains("_wgmma");
        let matrix = if by_wgmma { MatrixKernels::Wgmma } else { MatrixKernels::Mma };
        [
            (counts.operations() / self.operations_by(matrix), "products"),
            (counts.unique / self.bytes, "bytes"),
            (counts.requested / self.requests, "requests"),
            (counts.exponentials / self.exponentials, "exponentials"),
            (counts.wavefronts / self.wavefronts, "wavefronts"),
        ]
        .into_iter()
        .fold((0.0, "nothing"), |most, one| if one.0 > most.0 { one } else { most })
    }
}

/// What one kernel costs in a step, of a document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelCost {
    /// Its name.
    pub kernel: String,
    /// What was counted.
    #[serde(flatten)]
    pub counts: Counts,
    /// Nanoseconds at least, at the rates of an H100.
    pub least_ns: f64,
    /// What takes them.
    pub limit: &'static str,
}

/// What was counted of a rung, a document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Kernels that a step of six blocks launches, the zeroing of gradients among them.
    pub launches: f64,
    /// Sums over the kernels.
    #[serde(flatten)]
    pub counts: Counts,
    /// Documents a second at the rates of an H100.
    pub predicted_docs_per_s: f64,
    /// The share of what the step's [`floor`] allows at the same rates.
    pub share_of_floor: f64,
    /// Its kernels, those that take longest first.
    pub kernels: Vec<KernelCost>,
}

/// What was measured of a rung on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Documents a second.
    pub docs_per_s: f64,
    /// Kernels that a step launches.
    pub launches: f64,
    /// The share of the step's floor, at the rates that were measured.
    pub share_of_floor: Option<f64>,
}

/// One rung.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What is fused.
    pub fuse: Fusion,
    /// By which matrix instructions.
    pub matrix: MatrixKernels,
    /// Of a batch that was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<Cost>,
    /// On a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Timing>,
}

/// The rungs of a training step of one batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ablation {
    /// Kind of block.
    pub encoder: Encoder,
    /// C
    pub hidden_size: usize,
    /// L
    pub num_blocks: usize,
    /// Sets of the batch.
    pub sets: usize,
    /// Their documents.
    pub docs: usize,
    /// The GPU that it was measured on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The least fused first.
    pub rungs: Vec<Line>,
}

impl Line {
    fn label(&self) -> String {
        label((self.fuse, self.matrix))
    }
}

impl Ablation {
    /// What is counted of the model of `config` on sets of these sizes: of each rung nothing, unless it is the model that
    /// [`reference()`] gives, on sets of one of [`REFERENCE_SIZES`].
    pub fn new(config: &ModelConfig, sizes: &[usize]) -> Self {
        let encoder = config.encoder;
        let is_counted = *config == reference(encoder) && sizes.windows(2).all(|pair| pair[0] == pair[1]);
        let size = sizes.first().copied().filter(|_| is_counted);
        let table = Table::counted();
        let line = |(fuse, matrix)| {
            let of_rung = |rung: &&Rung| {
                (rung.encoder, Some(rung.size), rung.kernels()) == (encoder, size, (fuse, matrix))
            };
            let counted = table.rungs().iter().find(of_rung).map(|rung| cost(rung, &Rates::H100));
            Line { fuse, matrix, counted, measured: None }
        };
        Ablation {
            encoder,
            hidden_size: config.hidden_size,
            num_blocks: config.num_blocks,
            sets: sizes.len(),
            docs: sizes.iter().sum(),
            gpu: None,
            rungs: RUNGS.map(line).into(),
        }
    }

    /// Whether there are counts.
    pub fn is_counted(&self) -> bool {
        self.rungs.iter().any(|rung| rung.counted.is_some())
    }
}

fn cost(rung: &Rung, rates: &Rates) -> Cost {
    let config = reference(rung.encoder);
    let of_step = rung.step(config.num_blocks);
    let mut kernels: Vec<KernelCost> = of_step
        .into_iter()
        .map(|(kernel, counts)| {
            let (seconds, limit) = rates.least(&kernel, &counts);
            KernelCost { kernel, counts, least_ns: 1e9 * seconds, limit }
        })
        .collect();
    kernels.sort_by(|a, b| b.least_ns.total_cmp(&a.least_ns));
    let seconds = 1e-9 * kernels.iter().map(|kernel| kernel.least_ns).sum::<f64>();
    let sum = |sum: Counts, kernel: &KernelCost| sum.zip(&kernel.counts, |sum, more| sum + more);
    let (Rates { bytes, exponentials, .. }, operations) = (*rates, rates.operations_by(rung.matrix));
    let sets = [rung.size; 16];
    let floor = floor::seconds(&config, Mode::Train, &sets, floor::Rates { operations, bytes, exponentials });
    Cost {
        launches: rung.launches,
        counts: kernels.iter().fold(Counts::default(), sum),
        predicted_docs_per_s: 1.0 / seconds,
        share_of_floor: floor / (sets.len() * rung.size) as f64 / seconds,
        kernels,
    }
}

impl fmt::Display for Ablation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_counted() {
            let (encoder, size) = (self.encoder.name(), self.docs / self.sets.max(1));
            writeln!(
                f,
                "{encoder}, sets of {size}: counted on the emulator, a document, and predicted by the rates of an H100:\n"
            )?;
            let head = ["--fuse", "launches", "requested", "unique", "MFLOP", "M docs/s", "of floor"];
            writeln!(
                f,
                "{:<12}{:>10}{:>11}{:>11}{:>8}{:>10}{:>10}",
                head[0], head[1], head[2], head[3], head[4], head[5], head[6]
            )?;
            for line in &self.rungs {
                let Some(cost) = &line.counted else { continue };
                writeln!(
                    f,
                    "{:<12}{:>10}{:>8.0} KB{:>8.0} KB{:>8.1}{:>10.2}{:>8.0} %",
                    line.label(),
                    cost.launches,
                    cost.counts.requested / 1e3,
                    cost.counts.unique / 1e3,
                    cost.counts.operations() / 1e6,
                    cost.predicted_docs_per_s / 1e6,
                    100.0 * cost.share_of_floor,
                )?;
            }
        }
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let gap = if self.is_counted() { "\n" } else { "" };
        writeln!(
            f,
            "{gap}measured on {gpu}:\n\n{:<12}{:>10}{:>14}{:>10}{:>8}",
            "--fuse", "launches", "docs/s", "of floor", ""
        )?;
        let first = self.rungs.iter().find_map(|rung| rung.measured).map(|timing| timing.docs_per_s);
        for line in &self.rungs {
            let Some(timing) = line.measured else { continue };
            let share =
                timing.share_of_floor.map_or("–".to_owned(), |share| format!("{:.0} %", 100.0 * share));
            let times = first.map_or(1.0, |first| timing.docs_per_s / first);
            writeln!(
                f,
                "{:<12}{:>10.0}{:>14.0}{share:>10}{times:>7.2}×",
                line.label(),
                timing.launches,
                timing.docs_per_s
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rung_is_counted_and_each_is_faster_than_the_one_below() {
        for encoder in ENCODERS {
            for size in REFERENCE_SIZES {
                let found = Ablation::new(&reference(encoder), &[size; 3]);
                let costs: Vec<&Cost> = found.rungs.iter().filter_map(|rung| rung.counted.as_ref()).collect();
                assert_eq!(costs.len(), RUNGS.len());
                for pair in costs.windows(2) {
                    assert!(
                        pair[1].predicted_docs_per_s > pair[0].predicted_docs_per_s,
                        "{encoder:?} {size}"
                    );
                    assert!(pair[1].launches <= pair[0].launches, "{encoder:?} {size}");
                }
                let text = found.to_string();
                assert!(text.contains("flash") && !text.contains("measured"), "{text}");
            }
        }
    }

    #[test]
    fn other_batches_are_not_counted() {
        let config = reference(Encoder::Msab);
        for (config, sizes) in [
            (&config, &[40, 39][..]),
            (&config, &[41]),
            (&ModelConfig { num_blocks: 5, ..config.clone() }, &[40]),
        ] {
            assert!(!Ablation::new(config, sizes).is_counted());
        }
    }

    #[test]
    fn a_kernel_takes_as_long_as_its_slowest_part() {
        let operations = [4096.0, 8192.0];
        let rates = Rates { operations, bytes: 2.0, requests: 4.0, exponentials: 1.0, wavefronts: 1.0 };
        let counts =
            Counts { requested: 4.0, unique: 3.0, products: 1.0, exponentials: 0.5, wavefronts: 0.0 };
        let least = |counts| rates.least("x", &counts);
        assert_eq!(least(counts), (1.5, "bytes"));
        assert_eq!(least(Counts { requested: 8.0, ..counts }), (2.0, "requests"));
        let many = Counts { products: 9.0, ..counts };
        assert_eq!((least(many), rates.least("x_wgmma", &many)), ((9.0, "products"), (4.5, "products")));
    }

    #[test]
    fn what_is_measured_stands_beside() {
        let mut found = Ablation::new(&reference(Encoder::Msab), &[7]);
        found.gpu = Some("A card".into());
        for (rung, docs_per_s) in found.rungs.iter_mut().zip([1e6, 2e6, 3e6, 4e6]) {
            rung.measured = Some(Timing { docs_per_s, launches: 59.0, share_of_floor: Some(0.5) });
        }
        let text = found.to_string();
        assert!(text.starts_with("measured on A card") && text.contains("4.00×"), "{text}");
    }
}
