//! An epoch of training: all sets in a random order, cut into batches, of which a step takes some.

use std::ops::Range;

use super::config::{Layout, TrainConfig};
use crate::data::batch::{Batcher, Extent, padded};
use crate::rng::{Rng, Stream};
use crate::{Error, Result};

/// Batches among whose sets [`Layout::Bucketed`] looks for those of like sizes: enough that few rows would be padding, few
/// enough that a set meets others in every epoch.
const POOL: usize = 32;

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

    /// The batches of sets in this order.
    fn batches(self, order: &[usize], size_of: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
        match self {
            BatchSize::Sets(sets) => by_sets(order.len(), sets),
            BatchSize::Documents(most) => by_documents(order, most, size_of),
        }
    }

    /// Batches of sets of like sizes: those of every [`POOL`] batches in this order are put in the order of their sizes, and
    /// cut anew.
    fn buckets(self, order: &mut [usize], size_of: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
        let pool = match self {
            BatchSize::Sets(sets) => BatchSize::Sets(sets.saturating_mul(POOL)),
            BatchSize::Documents(most) => BatchSize::Documents(most.saturating_mul(POOL)),
        };
        let mut batches = Vec::new();
        for pool in pool.batches(order, &size_of) {
            // Sets of one size stay in their random order.
            order[pool.clone()].sort_by_key(|&query| size_of(query));
            let of_pool = self.batches(&order[pool.clone()], &size_of);
            batches.extend(of_pool.into_iter().map(|batch| pool.start + batch.start..pool.start + batch.end));
        }
        batches
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
        let size_of = |query| data.set_size(query);
        let size = BatchSize::of(config);
        let batches = match config.layout {
            Layout::Ragged => size.batches(&order, size_of),
            Layout::Bucketed => {
                let mut batches = size.buckets(&mut order, size_of);
                Rng::new(config.seed, Stream::BatchOrder, epoch).shuffle(&mut batches);
                batches
            }
        };
        Epoch { order, batches, batches_of_step: config.accumulate }
    }

    /// Rows a document, if each batch were padded to its longest set.
    pub fn padding(&self, data: &Batcher<'_>) -> f64 {
        let extent = |batch: &Range<usize>| {
            Extent::of_sizes(self.order[batch.clone()].iter().map(|&query| data.set_size(query)))
        };
        let (rows, documents) = self.batches.iter().map(extent).fold((0, 0), |(rows, documents), batch| {
            (rows + batch.sets * batch.longest, documents + batch.documents)
        });
        rows as f64 / documents as f64
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
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

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

    fn batch_size() -> impl Strategy<Value = BatchSize> {
        prop_oneof![(1usize..9).prop_map(BatchSize::Sets), (30usize..90).prop_map(BatchSize::Documents)]
    }

    proptest! {
        #[test]
        fn every_set_is_in_one_batch_that_is_no_larger_than_the_largest(
            sizes in prop::collection::vec(1usize..30, 0..400),
            size in batch_size(),
            seed in any::<u64>(),
        ) {
            let size_of = |query: usize| sizes[query];
            let mut order: Vec<usize> = (0..sizes.len()).collect();
            Rng::new(seed, Stream::QueryOrder, 0).shuffle(&mut order);
            let ragged = size.batches(&order, size_of);
            let mut bucketed_order = order.clone();
            let bucketed = size.buckets(&mut bucketed_order, size_of);
            if let BatchSize::Sets(_) = size {
                prop_assert_eq!(ragged.len(), bucketed.len());
            }
            let mut sorted = sizes.clone();
            sorted.sort_unstable();
            let bound = largest(size, &sorted);
            for (order, batches) in [(&order, ragged), (&bucketed_order, bucketed)] {
                let mut seen: Vec<usize> = batches.iter().flat_map(|batch| &order[batch.clone()]).copied().collect();
                seen.sort_unstable();
                prop_assert!(seen.into_iter().eq(0..sizes.len()));
                for batch in batches {
                    let of_batch = Extent::of_sizes(order[batch.clone()].iter().map(|&query| size_of(query)));
                    prop_assert!(of_batch.sets > 0);
                    prop_assert_eq!(of_batch.max(bound), bound);
                    if let BatchSize::Documents(most) = size {
                        prop_assert!(of_batch.documents <= most);
                    }
                }
            }
        }
    }

    #[test]
    fn buckets_are_of_like_sizes() {
        let sizes: Vec<usize> = (0..POOL * 4 + 3).map(|query| 1 + query * 37 % 90).collect();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        let batches = BatchSize::Sets(4).buckets(&mut order, |query| sizes[query]);
        assert_eq!(batches.len(), POOL + 1);
        let spread = |batch: &Range<usize>| sizes[order[batch.end - 1]] - sizes[order[batch.start]];
        assert!(batches[..POOL].iter().map(spread).max().unwrap() < 5);
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
