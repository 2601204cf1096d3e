//! An epoch of training: all sets in a random order, cut into batches, of which a step takes some.

use std::ops::Range;

use super::config::TrainConfig;
use crate::data::batch::{Batcher, Extent, padded};
use crate::rng::{Rng, Stream};
use crate::{Error, Result};

/// What a batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// So many sets.
    Sets(usize),
    /// As many sets as have at most so many documents together.
    Documents(usize),
}

impl BatchSize {
    /// That of a run.
    pub fn of(config: &TrainConfig) -> Self {
        match config.batch_docs {
            0 => BatchSize::Sets(config.batch_sets),
            documents => BatchSize::Documents(documents),
        }
    }

    /// The most that a batch of `data` can have of everything in any epoch.
    pub fn largest(self, data: &Batcher<'_>) -> Extent {
        let mut sizes: Vec<usize> = data.sets().iter().map(|&query| data.set_size(query)).collect();
        sizes.sort_unstable();
        largest(self, &sizes)
    }

    /// Refuses a size that not every set of `data` fits into.
    pub fn check(self, data: &Batcher<'_>) -> Result<()> {
        let BatchSize::Documents(most) = self else { return Ok(()) };
        match data.sets().iter().find(|&&query| data.set_size(query) > most) {
            None => Ok(()),
            Some(&query) => Err(Error::config(format!(
                "--batch-docs {most}: query {} alone has {} documents",
                data.data().query(query).id(),
                data.set_size(query)
            ))),
        }
    }
}

/// The steps of one epoch.
#[derive(Clone, Debug)]
pub struct Epoch {
    order: Vec<usize>,
    /// Of `order`.
    batches: Vec<Range<usize>>,
    batches_of_step: usize,
}

impl Epoch {
    /// Epoch number `epoch` (from 0) of a run: a pure function of its seed and data.
    pub fn new(config: &TrainConfig, data: &Batcher<'_>, epoch: u64) -> Self {
        let mut order = data.sets().to_vec();
        Rng::new(config.seed, Stream::QueryOrder, epoch).shuffle(&mut order);
        let batches = match BatchSize::of(config) {
            BatchSize::Sets(sets) => by_sets(order.len(), sets),
            BatchSize::Documents(most) => by_documents(&order, most, |query| data.set_size(query)),
        };
        Epoch { order, batches, batches_of_step: config.accumulate }
    }

    /// Number of steps.
    pub fn num_steps(&self) -> usize {
        self.batches.len().div_ceil(self.batches_of_step)
    }

    /// Queries of the batches of step number `step`, from 0.
    pub fn step(&self, step: usize) -> Vec<&[usize]> {
        let first = step * self.batches_of_step;
        let last = first.saturating_add(self.batches_of_step).min(self.batches.len());
        self.batches[first..last].iter().map(|batch| &self.order[batch.clone()]).collect()
    }
}

/// Of sets of these ascending sizes.
fn largest(size: BatchSize, sizes: &[usize]) -> Extent {
    match size {
        BatchSize::Sets(sets) => {
            let sets = sets.min(sizes.len());
            Extent::of_sizes(sizes[sizes.len() - sets..].iter().copied())
        }
        BatchSize::Documents(most) => {
            let mut sum = 0;
            let fit = sizes.iter().take_while(|&&size| {
                sum += size;
                sum <= most
            });
            // A set that is larger stands alone.
            let sets = fit.count().max(sizes.len().min(1));
            let alone = sizes.last().copied().unwrap_or(0);
            let documents = most.min(sizes.iter().sum()).max(alone);
            // Those of long sets meet more: as many of them as fit, and of one more a part.
            let mut left = documents;
            let pairs = sizes.iter().rev().map(|&size| {
                let taken = size.min(left);
                left -= taken;
                taken.saturating_mul(padded(size))
            });
            Extent { documents, sets, longest: alone, pairs: pairs.fold(0, usize::saturating_add) }
        }
    }
}

fn by_sets(count: usize, sets: usize) -> Vec<Range<usize>> {
    (0..count).step_by(sets).map(|first| first..first.saturating_add(sets).min(count)).collect()
}

/// Runs of sets with at most `most` documents each; a set with more stands alone.
fn by_documents(order: &[usize], most: usize, size: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut first, mut documents) = (0, 0);
    for (at, &query) in order.iter().enumerate() {
        let more = size(query);
        if documents + more > most && at > first {
            batches.push(first..at);
            (first, documents) = (at, 0);
        }
        documents += more;
    }
    if first < order.len() {
        batches.push(first..order.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_is_larger_than_the_largest() {
        let sizes = [3, 4, 1, 9, 2, 2];
        let sorted = [1, 2, 2, 3, 4, 9];
        let extent = |documents, sets, longest, pairs| Extent { documents, sets, longest, pairs };
        for (size, expected) in [
            (BatchSize::Sets(2), extent(13, 2, 9, 4 * 8 + 9 * 16)),
            (BatchSize::Sets(usize::MAX), extent(21, 6, 9, 240)),
            (BatchSize::Documents(8), extent(9, 4, 9, 9 * 16)),
            (BatchSize::Documents(11), extent(11, 4, 9, 9 * 16 + 2 * 8)),
            (BatchSize::Documents(100), extent(21, 6, 9, 240)),
        ] {
            assert_eq!(largest(size, &sorted), expected, "{size:?}");
        }
        assert_eq!(largest(BatchSize::Sets(3), &[]), extent(0, 0, 0, 0));
        assert_eq!(largest(BatchSize::Documents(3), &[]), extent(0, 0, 0, 0));
        let mut order: Vec<usize> = (0..6).collect();
        for seed in 0..20 {
            Rng::new(seed, Stream::QueryOrder, 0).shuffle(&mut order);
            for most in 9..22 {
                let bound = largest(BatchSize::Documents(most), &sorted);
                for batch in by_documents(&order, most, |query| sizes[query]) {
                    let of_batch = Extent::of_sizes(order[batch.clone()].iter().map(|&query| sizes[query]));
                    assert_eq!(of_batch.max(bound), bound, "{most}: {batch:?}");
                }
            }
        }
    }

    #[test]
    fn batches_of_sets() {
        assert_eq!(by_sets(5, 2), [0..2, 2..4, 4..5]);
        assert_eq!(by_sets(5, usize::MAX), by_sets(5, 5));
        assert_eq!(by_sets(0, 2), []);
    }

    #[test]
    fn batches_of_documents() {
        let sizes = [3, 4, 1, 9, 2, 2];
        let of = |order: &[usize], most| by_documents(order, most, |query| sizes[query]);
        assert_eq!(of(&[0, 1, 2, 3, 4, 5], 8), [0..3, 3..4, 4..6]);
        assert_eq!(of(&[0, 1, 2, 3, 4, 5], 9), [0..3, 3..4, 4..6]);
        assert_eq!(of(&[5, 4, 2, 1], 9), by_sets(4, 4));
        assert_eq!(of(&[], 9), []);
    }
}
