//! What a benchmark found.

use std::fmt;

use serde::Serialize;

use super::machine;
use super::plan::{Mode, Plan};
use crate::config::Encoder;
use crate::ops::simd::level;

/// What was found of a [`Plan`] before anything is computed from it.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Seconds of each timed step, at least one.
    pub seconds: Vec<f64>,
    pub allocations_per_step: Option<f64>,
    pub peak_rss_bytes: Option<u64>,
}

impl Measured {
    /// Adds what was found of the same plan at another time.
    pub fn add(&mut self, other: Measured) {
        self.seconds.extend(other.seconds);
        self.allocations_per_step = largest([self.allocations_per_step, other.allocations_per_step]);
        self.peak_rss_bytes = self.peak_rss_bytes.max(other.peak_rss_bytes);
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
}

impl Report {
    /// The figures of `plan`.
    pub(super) fn new(plan: &Plan, measured: Measured) -> Self {
        let Measured { mut seconds, allocations_per_step, peak_rss_bytes } = measured;
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
        }
    }

    /// The encoder as flags and files write it.
    pub fn encoder_name(&self) -> &'static str {
        match self.encoder {
            Encoder::Msab => "msab",
            Encoder::Imsab => "imsab",
        }
    }

    /// The same beside what a large product of matrices reaches, in 10⁹ operations a second, where that was measured.
    pub fn with_peak(self, peak_gflops: Option<f64>) -> Self {
        Report { peak_gflops, share: peak_gflops.map(|peak| self.gflops / peak), ..self }
    }
}

/// The largest of those that were measured.
pub fn largest(measured: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    measured.into_iter().flatten().reduce(f64::max)
}

/// Of ascending numbers, at least one.
fn median(sorted: &[f64]) -> f64 {
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
            .peak_rss_bytes
            .map_or_else(unknown, |bytes| format!("{:.0} MiB at most", bytes as f64 / f64::from(1 << 20)));
        let allocations =
            self.allocations_per_step.map_or_else(|| "not counted".to_owned(), |n| format!("{n:.1}"));
        let rows = [
            ("model", format!("{}, {what}", self.encoder_name())),
            ("batch", format!("{} sets, {} documents", self.sets, self.docs)),
            ("machine", format!("{} ({}), {} thread(s)", self.cpu, self.isa, self.threads)),
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
            ("allocations", format!("{allocations} a step")),
        ];
        for (name, value) in rows {
            writeln!(f, "{name:<12} {value}")?;
        }
        Ok(())
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
            allocations_per_step: Some(allocations),
            peak_rss_bytes: peak,
        };
        let mut rounds = measured(&[4.0, 1.0], 2.0, Some(5));
        rounds.add(measured(&[3.0], 0.5, Some(7)));
        assert_eq!((&rounds.seconds[..], rounds.allocations_per_step), (&[4.0, 1.0, 3.0][..], Some(2.0)));
        assert_eq!(rounds.peak_rss_bytes, Some(7));
    }
}
