//! How speed and memory grow with the size of a set, of a batch, of the model, and what padding costs: the same benchmark
//! along one axis, for both encoders.

use serde::Serialize;

use super::chart::{Chart, Line};
use super::hand_over::{HandOver, Layout};
use super::plan::{Mode, Plan};
use super::report::{Measured, Report, largest};
use super::trial::Trial;
use crate::config::Encoder;
#[cfg(feature = "cuda")]
use crate::device::Gpu;
use crate::{Error, Result};

/// Documents of a set along [`Sweep::Sizes`].
const SIZES: [usize; 10] = [10, 20, 40, 80, 120, 200, 360, 500, 1000, 2000];

/// Documents of every batch along [`Sweep::Sizes`], about: a whole number of sets.
const DOCUMENTS: usize = 4000;

/// Largest batch along [`Sweep::Documents`], in copies of the plan's sets; the others are halves of it.
const LARGEST_COPIES: usize = 16;

/// Blocks along [`Sweep::Blocks`].
const BLOCKS: [usize; 6] = [1, 2, 3, 4, 6, 12];

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sweep {
    /// Documents of a set, 10 to 2000, about 4000 documents a batch.
    Sizes,
    /// Documents of a batch: 1, 2, 4, 8, 16 times the sets given.
    Documents,
    /// Blocks of the model, 1 to 12.
    Blocks,
    /// Rows handed over for the same sets: ragged, in buckets, padded, under a mask as long as the next power of two.
    Layouts,
}

impl Sweep {
    /// What is varied, for the axis of a picture.
    pub fn axis(self) -> &'static str {
        match self {
            Sweep::Sizes => "Documents of a set",
            Sweep::Documents => "Documents of a batch",
            Sweep::Blocks => "Blocks",
            Sweep::Layouts => "Rows handed over, padding included",
        }
    }

    /// The plans along the axis and their places on it, ascending; all else is as in `base`.
    fn plans(self, base: &Plan) -> Vec<(usize, Plan)> {
        let with_sizes = |sizes: Vec<usize>| Plan { sizes, ..base.clone() };
        match self {
            Sweep::Sizes => SIZES
                .into_iter()
                .map(|size| (size, with_sizes(vec![size; (DOCUMENTS + size / 2) / size])))
                .collect(),
            Sweep::Documents => (0..=LARGEST_COPIES.ilog2())
                .map(|power| with_sizes(base.sizes.repeat(1 << power)))
                .map(|plan| (plan.sizes.iter().sum(), plan))
                .collect(),
            Sweep::Blocks => BLOCKS
                .into_iter()
                .map(|blocks| {
                    let mut plan = base.clone();
                    plan.config.num_blocks = blocks;
                    (blocks, plan)
                })
                .collect(),
            Sweep::Layouts => {
                let longest = base.sizes.iter().copied().max().unwrap_or(1);
                let layouts = [Layout::Ragged, Layout::Bucketed, Layout::Padded, Layout::Masked];
                let with_layout = |layout| {
                    let pad_to = (layout == Layout::Masked).then(|| longest.next_power_of_two());
                    Plan { hand_over: HandOver { layout, pad_to }, ..base.clone() }
                };
                layouts.map(with_layout).map(|plan| (plan.hand_over.rows(&plan.sizes), plan)).into()
            }
        }
    }

    /// The plans of MSAB and then of IMSAB.
    fn plans_of_both(self, base: &Plan) -> Vec<(usize, Plan)> {
        let of = |encoder| {
            self.plans(base).into_iter().map(move |(at, mut plan)| {
                plan.config.encoder = encoder;
                (at, plan)
            })
        };
        of(Encoder::Msab).chain(of(Encoder::Imsab)).collect()
    }

    /// Says what cannot be measured before minutes have gone by.
    ///
    /// # Errors
    /// As [`Plan::run`], with the place.
    pub fn check(self, base: &Plan) -> Result<()> {
        #[cfg(feature = "cuda")]
        let gpu = base.device.kernels().map(Gpu::first).transpose()?;
        for (at, plan) in self.plans_of_both(base) {
            let fits = |plan: &Plan| -> Result<()> {
                let _model = plan.model()?;
                #[cfg(feature = "cuda")]
                gpu.iter().try_for_each(|gpu| super::gpu::check(gpu, plan, &_model))?;
                Ok(())
            };
            let place = format!("{} {at}", self.axis().to_lowercase());
            fits(&plan).map_err(|error| Error::config(format!("{place}: {error}")))?;
        }
        Ok(())
    }
}

/// One place on the axis.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The place.
    pub at: usize,
    /// What was measured there.
    pub report: Report,
}

/// What a sweep found.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    /// What grew.
    pub sweep: Sweep,
    /// What a step did.
    pub mode: Mode,
    /// MSAB's points and then IMSAB's, ascending.
    pub points: Vec<Point>,
}

impl Growth {
    /// Measures along `sweep`, both encoders, all places `rounds` times one after the other, so that what else the
    /// machine does meanwhile hits all alike; the steps of all rounds count together. `progress` is told what is
    /// known of a place after each of its rounds. `peak` measures what a large product of matrices reaches, in 10⁹
    /// operations a second, or says `None`; it is asked before each round and at the end, and the largest counts.
    ///
    /// # Errors
    /// As [`Plan::run`], and where `rounds` is 0.
    pub fn measure(
        sweep: Sweep,
        base: &Plan,
        rounds: usize,
        peak: impl Fn() -> Result<Option<f64>>,
        mut progress: impl FnMut(usize, &Report),
    ) -> Result<Self> {
        if rounds == 0 {
            return Err(Error::config("rounds is 0: it must be at least 1"));
        }
        let plans = sweep.plans_of_both(base);
        sweep.check(base)?;
        let mut found: Vec<Option<Measured>> = vec![None; plans.len()];
        let mut best_peak = None;
        for _ in 0..rounds {
            best_peak = largest([best_peak, peak()?]);
            for ((at, plan), found) in plans.iter().zip(&mut found) {
                let measured = Trial::new(plan)?.measure()?;
                match found {
                    Some(found) => found.add(measured),
                    None => *found = Some(measured),
                }
                progress(*at, &Report::new(plan, found.clone().expect("just measured")));
            }
        }
        best_peak = largest([best_peak, peak()?]);
        let points = plans.iter().zip(found).map(|((at, plan), found)| Point {
            at: *at,
            report: Report::new(plan, found.expect("at least one round")).with_peak(best_peak),
        });
        Ok(Growth { sweep, mode: base.mode, points: points.collect() })
    }

    /// Documents a second along the axis; along [`Sweep::Layouts`] beside what they would be if rows of padding were
    /// computed as documents are: those of the ragged batch, divided by the rows a document.
    pub fn speed(&self) -> Chart {
        let mut chart = self.chart("Documents a second", |report| Some(report.docs_per_s));
        if self.sweep == Sweep::Layouts {
            for encoder in [Encoder::Msab, Encoder::Imsab] {
                let of_encoder = || self.points.iter().filter(|point| point.report.encoder == encoder);
                chart.lines.push(Line {
                    name: format!("{}, were padding computed", encoder.name()),
                    points: of_encoder()
                        .filter_map(|p| Some((p.at as f64, self.were_padding_computed(p)?)))
                        .collect(),
                });
            }
        }
        chart
    }

    /// Documents a second of the ragged batch, if it had the rows of this one.
    fn were_padding_computed(&self, point: &Point) -> Option<f64> {
        let is_ragged = |other: &&Point| {
            (other.report.encoder, other.report.layout) == (point.report.encoder, Layout::Ragged)
        };
        let ragged = self.points.iter().find(is_ragged)?;
        Some(ragged.report.docs_per_s / point.report.rows_per_doc)
    }

    /// 10⁹ operations a second along the axis, of those that [`flops`](crate::model::flops) counts.
    pub fn rate(&self) -> Chart {
        self.chart("GFLOP/s", |report| Some(report.gflops))
    }

    /// The share along the axis of what a large product of matrices reaches, in percent; of the floor, on a GPU.
    pub fn share(&self) -> Chart {
        let on_gpu = self.points.iter().any(|point| point.report.gpu.is_some());
        let y = if on_gpu { "Share of the floor, %" } else { "Share of the peak, %" };
        self.chart(y, |report| {
            let share = match &report.gpu {
                Some(gpu) => gpu.share_of_floor,
                None => report.share,
            };
            share.map(|share| 100.0 * share)
        })
    }

    /// The most memory of the process, or of the GPU, along the axis, in MiB.
    pub fn memory(&self) -> Chart {
        self.chart("Memory, MiB", |report| Some(report.memory_bytes()? as f64 / f64::from(1 << 20)))
    }

    fn chart(&self, y: &str, value: impl Fn(&Report) -> Option<f64>) -> Chart {
        let mode = match self.mode {
            Mode::Train => "Training",
            Mode::Infer => "Scoring",
        };
        let line = |encoder: Encoder| {
            let of_encoder = self.points.iter().filter(|point| point.report.encoder == encoder);
            Line {
                name: encoder.name().to_owned(),
                points: of_encoder.filter_map(|p| Some((p.at as f64, value(&p.report)?))).collect(),
            }
        };
        Chart {
            title: mode.to_owned(),
            x: self.sweep.axis().to_owned(),
            y: y.to_owned(),
            lines: vec![line(Encoder::Msab), line(Encoder::Imsab)],
        }
    }

    /// A Markdown table.
    pub fn markdown(&self) -> String {
        let axis = self.sweep.axis().to_lowercase();
        let mut columns =
            vec!["encoder", &axis, "docs", "docs/s", "docs/s, fastest step", "GFLOP/s", "share of peak"];
        columns.extend(["memory, MiB", "allocations a step"]);
        let on_gpu = self.points.iter().any(|point| point.report.gpu.is_some());
        if on_gpu {
            columns.push("share of floor");
        }
        if self.sweep == Sweep::Layouts {
            columns.extend([
                "layout",
                "rows a document",
                "unpadding, % of a step",
                "docs/s, were padding computed",
            ]);
        }
        let row = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
        let mut table = row(&columns) + "|---" + &"|---:".repeat(columns.len() - 1) + "|\n";
        for point in &self.points {
            let cells = self.cells(point, on_gpu);
            table += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
        }
        table
    }

    /// The cells of a point's row.
    fn cells(&self, point: &Point, on_gpu: bool) -> Vec<String> {
        let absent = || "–".to_owned();
        let percent = |share: Option<f64>, decimals: usize| {
            share.map_or_else(absent, |share| format!("{:.decimals$} %", 100.0 * share))
        };
        let Point { at, report } = point;
        let mut cells = vec![
            report.encoder.name().to_owned(),
            at.to_string(),
            report.docs.to_string(),
            format!("{:.0}", report.docs_per_s),
            format!("{:.0}", report.docs as f64 / report.min_s),
            format!("{:.1}", report.gflops),
            percent(report.share, 0),
            report
                .memory_bytes()
                .map_or_else(absent, |bytes| format!("{:.0}", bytes as f64 / f64::from(1 << 20))),
            report.allocations_per_step.map_or_else(absent, |count| format!("{count:.1}")),
        ];
        if on_gpu {
            cells.push(percent(report.gpu.as_ref().and_then(|gpu| gpu.share_of_floor), 0));
        }
        if self.sweep == Sweep::Layouts {
            cells.push(report.layout.name().to_owned());
            cells.push(format!("{:.2}", report.rows_per_doc));
            cells.push(percent(report.unpadding_s.map(|seconds| seconds / report.median_s), 2));
            cells.push(self.were_padding_computed(point).map_or_else(absent, |speed| format!("{speed:.0}")));
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::device::choice::Device;

    fn base() -> Plan {
        let config = ModelConfig {
            num_features: 3,
            hidden_size: 4,
            num_heads: 1,
            num_blocks: 1,
            ffn_size: 4,
            num_inducing: 2,
            ..ModelConfig::default()
        };
        Plan {
            mode: Mode::Infer,
            config,
            sizes: vec![2, 3],
            seed: 1,
            steps: 1,
            warmup: 1,
            device: Device::Cpu,
            hand_over: HandOver::default(),
        }
    }

    #[test]
    fn each_axis_grows_alone() {
        let sizes = Sweep::Sizes.plans(&base());
        assert_eq!(sizes.len(), SIZES.len());
        for (size, plan) in &sizes {
            assert!(plan.sizes.iter().all(|n| n == size));
            assert!((3900..=4100).contains(&plan.sizes.iter().sum::<usize>()), "{size}");
        }
        let documents: Vec<usize> = Sweep::Documents.plans(&base()).iter().map(|(at, _)| *at).collect();
        assert_eq!(documents, [5, 10, 20, 40, 80]);
        for (blocks, plan) in Sweep::Blocks.plans(&base()) {
            assert_eq!((plan.config.num_blocks, &plan.sizes), (blocks, &vec![2, 3]));
        }
    }

    #[test]
    fn growth_is_measured_drawn_and_told() {
        let mut told = Vec::new();
        let peaks = std::cell::Cell::new(0.0);
        let peak = || {
            peaks.set(peaks.get() + 1.0);
            Ok(Some(10.0 / peaks.get()))
        };
        let growth =
            Growth::measure(Sweep::Blocks, &base(), 2, peak, |_, report| told.push(report.steps)).unwrap();
        assert_eq!(growth.points.len(), 2 * BLOCKS.len());
        assert_eq!(told, [[1; 2 * BLOCKS.len()], [2; 2 * BLOCKS.len()]].concat());
        assert!(growth.points.iter().all(|point| point.report.peak_gflops == Some(10.0)));
        assert_eq!(peaks.get(), 3.0);
        assert!(Growth::measure(Sweep::Blocks, &base(), 0, || Ok(None), |_, _| ()).is_err());
        let speed = growth.speed();
        assert_eq!((&speed.lines[0].name[..], &speed.lines[1].name[..]), ("msab", "imsab"));
        assert!(speed.lines.iter().all(|line| line.points.iter().map(|p| p.0).eq(BLOCKS.map(|b| b as f64))));
        let table = growth.markdown();
        assert_eq!(table.lines().count(), 2 + 2 * BLOCKS.len());
        assert!(table.contains("| msab | 12 | 5 |"), "{table}");
    }

    #[test]
    fn layouts_stand_beside_their_padding() {
        let base = Plan { sizes: vec![2, 3, 1, 5, 5, 1, 2, 2, 9], ..base() };
        let growth = Growth::measure(Sweep::Layouts, &base, 1, || Ok(None), |_, _| ()).unwrap();
        let layouts: Vec<(usize, Layout)> =
            growth.points[..4].iter().map(|point| (point.at, point.report.layout)).collect();
        // Buckets of two sets: 1 1, 2 2, 2 3, 5 5, 9.
        let expected =
            [(30, Layout::Ragged), (31, Layout::Bucketed), (81, Layout::Padded), (144, Layout::Masked)];
        assert_eq!(layouts, expected);
        let speed = growth.speed();
        let [msab, _, computed, _] = &speed.lines[..] else { panic!("four lines") };
        assert_eq!(computed.points[0], msab.points[0]);
        assert!((computed.points[3].1 / msab.points[0].1 - 30.0 / 144.0).abs() < 1e-12);
        let table = growth.markdown();
        assert!(table.contains("| masked | 4.80 |") && table.contains("| ragged | 1.00 | – |"), "{table}");
        let bars: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(bars, [14; 10]);
    }

    #[test]
    fn a_sweep_that_will_not_fit_ends_before_it_begins() {
        let huge = Plan { sizes: vec![1 << 20; 1 << 14], ..base() };
        let measured = Growth::measure(Sweep::Documents, &huge, 1, || panic!("measured"), |_, _| ());
        assert!(measured.unwrap_err().to_string().contains("GiB"));
    }
}
