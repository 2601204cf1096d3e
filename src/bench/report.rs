//! What a benchmark found.

use std::fmt;

use serde::Serialize;

use super::floor::{self, Rates};
use super::hand_over::{HandOver, Layout};
use super::machine;
use super::plan::{Mode, Plan};
use crate::config::Encoder;
use crate::device::choice::{Fusion, MatrixKernels};
use crate::ops::simd::level;

/// What was found of a [`Plan`] before anything is computed from it.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Seconds of each timed step, at least one.
    pub seconds: Vec<f64>,
    /// Those of each in which its batch was unpadded, where that is handed over padded.
    pub unpadding_s: Vec<f64>,
    pub allocations_per_step: Option<f64>,
    pub peak_rss_bytes: Option<u64>,
    pub gpu: Option<GpuFigures>,
}

/// What was found of a GPU, as it takes steps of one [`Plan`].
#[derive(Clone, Debug, Serialize)]
pub struct GpuFigures {
    /// Its name.
    pub name: String,
    /// The matrix instructions that its kernels were asked to use.
    pub matrix_kernels: MatrixKernels,
    /// How much they were asked to fuse.
    pub fuse: Fusion,
    /// Whether passes are launched as graphs.
    pub graphs: bool,
    /// Kernels that a step launches, those of graphs among them.
    pub launches_per_step: f64,
    /// Graphs that a step launches.
    pub graph_launches_per_step: f64,
    /// Bytes of its memory that were taken at the most, by the driver's count.
    pub device_bytes: usize,
    /// BW: bytes a second that a large copy on it reads and writes.
    pub copy_bytes_per_s: f64,
    /// E: exponentials a second, by its clock.
    pub exponentials_per_s: f64,
    /// Documents a second at the [`floor`], where the peak is known.
    pub floor_docs_per_s: Option<f64>,
    /// The share of it that a step of median length reaches.
    pub share_of_floor: Option<f64>,
    /// What each kernel takes of a step, the longest first; in steps of their own, with an event around every launch.
    pub kernels: Vec<KernelFigures>,
    /// Seconds of such a step.
    pub profiled_step_s: f64,
    /// Those of them that are no kernel's: copies, clearing, and gaps.
    pub between_kernels_s: f64,
}

/// What one kernel takes of a step.
#[derive(Clone, Debug, Serialize)]
pub struct KernelFigures {
    /// Its name.
    pub kernel: String,
    /// Launches a step.
    pub launches: f64,
    /// Seconds a step.
    pub seconds: f64,
}

impl Measured {
    /// Adds what was found of the same plan at another time.
    pub fn add(&mut self, other: Measured) {
        self.seconds.extend(other.seconds);
        self.unpadding_s.extend(other.unpadding_s);
        self.allocations_per_step = largest([self.allocations_per_step, other.allocations_per_step]);
        self.peak_rss_bytes = self.peak_rss_bytes.max(other.peak_rss_bytes);
        // The fastest copy, and of all else the newest.
        let copies = [&self.gpu, &other.gpu].map(|gpu| gpu.as_ref().map(|gpu| gpu.copy_bytes_per_s));
        self.gpu = other.gpu;
        if let (Some(gpu), Some(fastest)) = (&mut self.gpu, largest(copies)) {
            gpu.copy_bytes_per_s = fastest;
        }
    }
}

/// The figures of one [`Plan`]. As JSON its keys are these names, in this order.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Documents of a step.
    pub docs: usize,
    /// Documents a second, in a step of median length.
    pub docs_per_s: f64,
    /// Median of the steps' seconds.
    pub median_s: f64,
    /// Seconds of the fastest step.
    pub min_s: f64,
    /// Operations a document, as [`flops`](crate::model::flops) counts them.
    pub flops_per_doc: f64,
    /// 10⁹ operations a second, in a step of median length.
    pub gflops: f64,
    /// The same of a large product of matrices in this process, where that was measured.
    pub peak_gflops: Option<f64>,
    /// `gflops / peak_gflops`.
    pub share: Option<f64>,
    /// The most memory that the process held while this was measured; absent where the system does not tell.
    pub peak_rss_bytes: Option<u64>,
    /// Allocations a timed step, of several rounds the most; absent where the program does not count them.
    pub allocations_per_step: Option<f64>,
    /// What a step does.
    pub mode: Mode,
    /// Kind of block.
    pub encoder: Encoder,
    /// Sets of the batch.
    pub sets: usize,
    /// Steps that were timed.
    pub steps: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// The processor.
    pub cpu: String,
    /// Its widest vector instructions.
    pub isa: &'static str,
    /// Medians of the seconds of each round's steps, in order.
    pub rounds_s: Vec<f64>,
    /// How its batch was handed over.
    pub layout: Layout,
    /// Rows a document that was handed over, padding included.
    pub rows_per_doc: f64,
    /// Median of the seconds in which the batch of a step was unpadded: a part of the step, but on a GPU, where the host
    /// does it meanwhile; absent where it is handed over ragged.
    pub unpadding_s: Option<f64>,
    /// What was found of the GPU, where one took the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFigures>,
    #[serde(skip)]
    plan: Plan,
}

impl Report {
    /// The figures of `plan`.
    pub(super) fn new(plan: &Plan, measured: Measured) -> Self {
        let Measured { mut seconds, unpadding_s, allocations_per_step, peak_rss_bytes, gpu } = measured;
        let sorted_median = |values: &[f64]| {
            let mut values = values.to_vec();
            values.sort_unstable_by(f64::total_cmp);
            median(&values)
        };
        let rounds_s = seconds.chunks(plan.steps).map(sorted_median).collect();
        let unpadding_s = (!unpadding_s.is_empty()).then(|| sorted_median(&unpadding_s));
        seconds.sort_unstable_by(f64::total_cmp);
        let docs: usize = plan.sizes.iter().sum();
        let median_s = median(&seconds);
        let gflops = plan.flops() / median_s / 1e9;
        Report {
            docs,
            docs_per_s: docs as f64 / median_s,
            median_s,
            min_s: seconds[0],
            flops_per_doc: plan.flops() / docs as f64,
            gflops,
            peak_gflops: None,
            share: None,
            peak_rss_bytes,
            allocations_per_step,
            mode: plan.mode,
            encoder: plan.config.encoder,
            sets: plan.sizes.len(),
            steps: seconds.len(),
            threads: rayon::current_num_threads(),
            cpu: machine::cpu_name(),
            isa: level().name(),
            rounds_s,
            layout: plan.hand_over.layout,
            rows_per_doc: plan.hand_over.rows(&plan.sizes) as f64 / docs as f64,
            unpadding_s,
            gpu,
            plan: plan.clone(),
        }
    }

    /// The same beside what a large product of matrices reaches, in 10⁹ operations a second, where that was measured.
    pub fn with_peak(mut self, peak_gflops: Option<f64>) -> Self {
        self.peak_gflops = peak_gflops;
        self.share = peak_gflops.map(|peak| self.gflops / peak);
        if let Some(gpu) = &mut self.gpu {
            let seconds = peak_gflops.map(|peak| {
                let (bytes, exponentials) = (gpu.copy_bytes_per_s, gpu.exponentials_per_s);
                let rates = Rates { operations: 1e9 * peak, bytes, exponentials };
                floor::seconds(&self.plan.config, self.mode, &self.plan.sizes, rates)
            });
            gpu.floor_docs_per_s = seconds.map(|seconds| self.docs as f64 / seconds);
            gpu.share_of_floor = gpu.floor_docs_per_s.map(|floor| self.docs_per_s / floor);
        }
        self
    }

    /// How the batch was handed over, and what its padding cost or would.
    fn layout_in_words(&self) -> String {
        let name = self.layout.name();
        match self.unpadding_s {
            Some(seconds) => format!(
                "{name}, {:.2} rows a document, unpadded in {:.3} ms ({:.2} % of a step)",
                self.rows_per_doc,
                1e3 * seconds,
                100.0 * seconds / self.median_s
            ),
            None => {
                let padded = HandOver { layout: Layout::Padded, pad_to: None }.rows(&self.plan.sizes);
                format!(
                    "{name}; padded it would have {:.2} rows a document",
                    padded as f64 / self.docs as f64
                )
            }
        }
    }

    /// The most memory that was held: the GPU's, where one took the steps, else the process's.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.gpu.as_ref().map_or(self.peak_rss_bytes, |gpu| Some(gpu.device_bytes as u64))
    }

    /// How far the medians of the rounds are apart, as a share of the median of all steps.
    pub fn spread(&self) -> f64 {
        let (least, most) = self
            .rounds_s
            .iter()
            .fold((f64::INFINITY, 0.0f64), |(least, most), &round| (least.min(round), most.max(round)));
        (most - least).max(0.0) / self.median_s
    }
}

/// The largest of those that were measured.
pub fn largest(measured: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    measured.into_iter().flatten().reduce(f64::max)
}

/// Of ascending numbers, at least one.
pub(super) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { 0.5 * (sorted[middle - 1] + sorted[middle]) }
}

impl fmt::Display for Report {
    /// A table for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.mode {
            Mode::Train => "training step",
            Mode::Infer => "scoring pass",
        };
        let unknown = || "unknown on this system".to_owned();
        let peak = match (self.peak_gflops, self.share) {
            (Some(peak), Some(share)) => {
                format!("{peak:.1} GFLOP/s, of which {:.1} % are used", 100.0 * share)
            }
            _ => "not measured".to_owned(),
        };
        let memory = self
            .memory_bytes()
            .map_or_else(unknown, |bytes| format!("{:.0} MiB at most", bytes as f64 / f64::from(1 << 20)));
        let machine = match &self.gpu {
            Some(gpu) => {
                let (matrix, fuse) = (gpu.matrix_kernels.name(), gpu.fuse.name());
                let graphs = if gpu.graphs { ", graphs" } else { "" };
                format!("{}, kernels by {matrix}, fused: {fuse}{graphs}", gpu.name)
            }
            None => format!("{} ({}), {} thread(s)", self.cpu, self.isa, self.threads),
        };
        let mut rows = vec![
            ("model", format!("{}, {what}", self.encoder.name())),
            ("batch", format!("{} sets, {} documents", self.sets, self.docs)),
            ("layout", self.layout_in_words()),
            ("machine", machine),
            ("documents", format!("{:.0} a second", self.docs_per_s)),
            (
                "time",
                format!(
                    "{:.2} ms (median of {}), {:.2} ms (fastest)",
                    1e3 * self.median_s,
                    self.steps,
                    1e3 * self.min_s
                ),
            ),
            (
                "arithmetic",
                format!("{:.2} MFLOP a document, {:.1} GFLOP/s", self.flops_per_doc / 1e6, self.gflops),
            ),
            ("peak", peak),
            ("memory", memory),
        ];
        if self.rounds_s.len() > 1 {
            let (rounds, spread) = (self.rounds_s.len(), 100.0 * self.spread());
            rows.push(("rounds", format!("{rounds}, their medians {spread:.1} % apart")));
        }
        match &self.gpu {
            Some(gpu) => rows.extend(gpu.rows()),
            None => {
                let allocations =
                    self.allocations_per_step.map_or_else(|| "not counted".to_owned(), |n| format!("{n:.1}"));
                rows.push(("allocations", format!("{allocations} a step")));
            }
        }
        for (name, value) in rows {
            writeln!(f, "{name:<12} {value}")?;
        }
        self.gpu.as_ref().map_or(Ok(()), |gpu| gpu.write_kernels(f))
    }
}

impl GpuFigures {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let floor = match (self.floor_docs_per_s, self.share_of_floor) {
            (Some(floor), Some(share)) => {
                format!("{floor:.0} documents a second, of which {:.1} % are reached", 100.0 * share)
            }
            _ => "not known".to_owned(),
        };
        let graphs = match self.graphs {
            true => format!(", in {:.1} graphs", self.graph_launches_per_step),
            false => String::new(),
        };
        vec![
            ("launches", format!("{:.1} a step{graphs}", self.launches_per_step)),
            ("copying", format!("{:.1} GB/s", self.copy_bytes_per_s / 1e9)),
            ("floor", floor),
        ]
    }

    fn write_kernels(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, launches: &str, seconds: f64| {
            let share = 100.0 * seconds / self.profiled_step_s;
            writeln!(f, "{name:<32} {launches:>8} {:>10.3} {share:>6.1} %", 1e3 * seconds)
        };
        row("kernels of a step: launches, ms", "", self.profiled_step_s)?;
        for kernel in &self.kernels {
            row(&kernel.kernel, &format!("{:.1}", kernel.launches), kernel.seconds)?;
        }
        row("between kernels", "", self.between_kernels_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert_eq!(median(&[1.0, 2.0, 10.0]), 2.0);
    }

    #[test]
    fn rounds_count_together() {
        let measured = |seconds: &[f64], allocations: f64, peak| Measured {
            seconds: seconds.to_vec(),
            unpadding_s: Vec::new(),
            allocations_per_step: Some(allocations),
            peak_rss_bytes: peak,
            gpu: None,
        };
        let mut rounds = measured(&[4.0, 1.0], 2.0, Some(5));
        rounds.add(measured(&[3.0], 0.5, Some(7)));
        assert_eq!((&rounds.seconds[..], rounds.allocations_per_step), (&[4.0, 1.0, 3.0][..], Some(2.0)));
        assert_eq!(rounds.peak_rss_bytes, Some(7));
    }
}
