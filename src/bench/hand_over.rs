//! How a benchmark's batch is handed over: ragged, or in grids that every step first turns into a ragged batch.

use std::time::Instant;

use serde::Serialize;

use super::plan::Plan;
use crate::data::batch::Batch;
use crate::data::layout::Grid;
use crate::rng::{Rng, Stream};
use crate::{Error, Result};

/// Grids of [`Layout::Bucketed`].
const BUCKETS: usize = 8;

/// In what the sets of a batch come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Rows of documents alone.
    #[default]
    Ragged,
    /// Sets of like sizes together in 8 grids, each padded to its longest set.
    Bucketed,
    /// A grid padded to the longest set, with lengths.
    Padded,
    /// A grid with a mask, documents in any of a set's cells.
    Masked,
}

impl Layout {
    /// As flags and files write it.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Ragged => "ragged",
            Layout::Bucketed => "bucketed",
            Layout::Padded => "padded",
            Layout::Masked => "masked",
        }
    }
}

/// How a batch is handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandOver {
    /// In what its sets come.
    pub layout: Layout,
    /// Cells of each set of a padded or masked batch; `None` = as many as the longest has documents.
    pub pad_to: Option<usize>,
}

impl HandOver {
    /// Rows that sets of these `sizes` have, padding included.
    pub fn rows(self, sizes: &[usize]) -> usize {
        let longest = sizes.iter().copied().max().unwrap_or(0);
        match self.layout {
            Layout::Ragged => sizes.iter().sum(),
            Layout::Bucketed => {
                let mut sizes = sizes.to_vec();
                sizes.sort_unstable();
                buckets(&sizes).map(|bucket| bucket.len() * bucket[bucket.len() - 1]).sum()
            }
            Layout::Padded | Layout::Masked => sizes.len() * self.pad_to.unwrap_or(longest),
        }
    }

    /// Refuses fewer cells than the longest of `sizes` has documents, and cells where there is no choice.
    ///
    /// # Errors
    /// See there.
    pub fn check(self, sizes: &[usize]) -> Result<()> {
        let Some(cells) = self.pad_to else { return Ok(()) };
        let longest = sizes.iter().copied().max().unwrap_or(0);
        if matches!(self.layout, Layout::Ragged | Layout::Bucketed) {
            return Err(Error::config(format!(
                "--pad-to is of batches by --layout padded and masked: a {} one has no fixed length",
                self.layout.name()
            )));
        }
        if cells < longest {
            return Err(Error::config(format!("--pad-to {cells}: the longest set has {longest} documents")));
        }
        Ok(())
    }
}

/// Sets in the order of their sizes, in about equally many a bucket.
fn buckets<T>(sets: &[T]) -> impl Iterator<Item = &[T]> {
    sets.chunks(sets.len().div_ceil(BUCKETS).max(1))
}

/// The batch of a plan, as it is handed over.
#[derive(Debug)]
pub(super) struct HandedOver(Vec<Grid>);

impl HandedOver {
    /// `None` where it comes as it is computed.
    ///
    /// # Errors
    /// As [`HandOver::check`].
    pub fn new(plan: &Plan, batch: &Batch) -> Result<Option<Self>> {
        let HandOver { layout, pad_to } = plan.hand_over;
        let longest = plan.sizes.iter().copied().max().unwrap_or(0);
        let n_max = pad_to.unwrap_or(longest);
        let grids = match layout {
            Layout::Ragged => return Ok(None),
            Layout::Padded => vec![Grid::padded(batch, n_max)?],
            Layout::Masked => vec![Grid::masked(batch, mask(plan, n_max), n_max)?],
            Layout::Bucketed => {
                let mut sets: Vec<usize> = (0..plan.sizes.len()).collect();
                sets.sort_by_key(|&set| plan.sizes[set]);
                let padded = |bucket: &[usize]| {
                    let longest = bucket.iter().map(|&set| plan.sizes[set]).max().unwrap_or(0);
                    Grid::padded(&of_sets(batch, bucket), longest)
                };
                buckets(&sets).map(padded).collect::<Result<_, _>>()?
            }
        };
        Ok(Some(HandedOver(grids)))
    }

    /// As it comes.
    #[cfg(feature = "cuda")]
    pub fn grids(&self) -> &[Grid] {
        &self.0
    }

    /// Makes `batch` the ragged batch of it, and tells how many seconds that took.
    pub fn unpad(&self, batch: &mut Batch) -> Result<f64> {
        let started = Instant::now();
        batch.clear();
        self.0.iter().try_for_each(|grid| grid.append_to(batch))?;
        Ok(started.elapsed().as_secs_f64())
    }
}

/// A random mask of the plan's sets.
fn mask(plan: &Plan, n_max: usize) -> Vec<bool> {
    let of_set = |(set, &size): (usize, &usize)| {
        let mut cells: Vec<bool> = (0..n_max).map(|cell| cell < size).collect();
        // Sequences from 0 on are of the peak's matrices and of documents.
        Rng::new(plan.seed, Stream::Benchmark, u64::MAX - set as u64).shuffle(&mut cells);
        cells
    };
    plan.sizes.iter().enumerate().flat_map(of_set).collect()
}

/// Those of the sets of a batch without rankings.
fn of_sets(batch: &Batch, sets: &[usize]) -> Batch {
    let width = batch.features.len() / batch.rows.len().max(1);
    let mut part = Batch { offsets: vec![0], ..Batch::default() };
    for &set in sets {
        let rows = batch.offsets[set]..batch.offsets[set + 1];
        part.rows.extend_from_slice(&batch.rows[rows.clone()]);
        part.features.extend_from_slice(&batch.features[rows.start * width..rows.end * width]);
        part.labels.extend_from_slice(&batch.labels[rows]);
        part.offsets.push(part.rows.len());
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Mode;
    use crate::bench::trial::batch;
    use crate::config::ModelConfig;
    use crate::device::choice::Device;

    #[test]
    fn every_layout_has_the_rows_it_says_and_the_documents_of_the_batch() {
        let config = ModelConfig { num_features: 3, hidden_size: 4, num_heads: 1, ..ModelConfig::default() };
        let plan = Plan {
            mode: Mode::Infer,
            config,
            sizes: (0..19).map(|set| 1 + set * 7 % 11).collect(),
            seed: 1,
            steps: 1,
            warmup: 1,
            device: Device::Cpu,
            hand_over: HandOver::default(),
        };
        let ragged = batch(&plan);
        assert!(HandedOver::new(&plan, &ragged).unwrap().is_none());
        assert_eq!(plan.hand_over.rows(&plan.sizes), ragged.rows.len());
        for (layout, pad_to) in [
            (Layout::Padded, None),
            (Layout::Padded, Some(16)),
            (Layout::Masked, Some(11)),
            (Layout::Masked, Some(13)),
            (Layout::Bucketed, None),
        ] {
            let plan = Plan { hand_over: HandOver { layout, pad_to }, ..plan.clone() };
            plan.hand_over.check(&plan.sizes).unwrap();
            let handed_over = HandedOver::new(&plan, &ragged).unwrap().unwrap();
            let rows: usize = handed_over.0.iter().map(|grid| grid.labels.len()).sum();
            assert_eq!(plan.hand_over.rows(&plan.sizes), rows, "{layout:?}");
            let mut unpadded = Batch::default();
            for _ in 0..2 {
                assert!(handed_over.unpad(&mut unpadded).unwrap() >= 0.0);
            }
            if layout == Layout::Bucketed {
                assert!(handed_over.0.len() > 1 && rows < plan.sizes.len() * 11);
                let sizes: Vec<usize> = unpadded.offsets.windows(2).map(|ends| ends[1] - ends[0]).collect();
                assert!(sizes.is_sorted());
                let mut documents: Vec<(usize, u32)> = unpadded
                    .rows
                    .iter()
                    .zip(&unpadded.labels)
                    .map(|(&row, label)| (row, label.to_bits()))
                    .collect();
                documents.sort_unstable();
                assert!(
                    documents.into_iter().eq(ragged.labels.iter().map(|label| label.to_bits()).enumerate())
                );
            } else {
                assert_eq!(unpadded, ragged, "{layout:?}");
            }
        }
        for (layout, pad_to) in
            [(Layout::Padded, 10), (Layout::Masked, 1), (Layout::Ragged, 11), (Layout::Bucketed, 20)]
        {
            assert!(HandOver { layout, pad_to: Some(pad_to) }.check(&plan.sizes).is_err());
        }
    }
}
