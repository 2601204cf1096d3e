//! Batches: what a model sees of a data set, normalised, cut to the top k, with ranks in the initial rankings.

use rayon::prelude::*;

use super::augment::{Augment, Columns, FeatureDropout};
use super::normalize::WithinSet;
use super::{Alignment, Dataset, Normalize, initial};
use crate::config::{ModelConfig, OrdinalConfig, OrdinalStart};
use crate::rng::{Rng, Stream};
use crate::{Error, Result};

/// How large a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// N
    pub documents: usize,
    /// B
    pub sets: usize,
    /// Documents of the longest set.
    pub longest: usize,
    /// Σ over the sets of n · n, the latter padded to a multiple of 8: pairs of documents, as attention that is not fused
    /// keeps them.
    pub pairs: usize,
}

/// What the keys of a query are padded to a multiple of.
pub(crate) const PAIR_UNIT: usize = 8;

/// Keys of a query, padded.
pub(crate) fn padded(keys: usize) -> usize {
    keys.next_multiple_of(PAIR_UNIT)
}

impl Extent {
    /// That of a batch.
    pub fn of(batch: &Batch) -> Self {
        Extent::of_sizes(batch.offsets.windows(2).map(|ends| ends[1] - ends[0]))
    }

    /// That of a batch of sets of these sizes.
    pub fn of_sizes(sizes: impl IntoIterator<Item = usize>) -> Self {
        sizes.into_iter().fold(Extent::default(), |sum, size| Extent {
            documents: sum.documents + size,
            sets: sum.sets + 1,
            longest: sum.longest.max(size),
            pairs: sum.pairs.saturating_add(size.saturating_mul(padded(size))),
        })
    }

    /// The most that there may be of these sets where they have so many documents in all.
    pub fn with_documents(self, documents: usize) -> Self {
        let longest = self.longest.min(documents);
        let pairs = self.pairs.min(documents.saturating_mul(padded(longest)));
        Extent { documents, sets: self.sets.min(documents), longest, pairs }
    }

    /// Of each as much as the one of both has that has more.
    pub fn max(self, other: Extent) -> Self {
        Extent {
            documents: self.documents.max(other.documents),
            sets: self.sets.max(other.sets),
            longest: self.longest.max(other.longest),
            pairs: self.pairs.max(other.pairs),
        }
    }
}

/// A ragged batch of sets; [`layout`](super::layout) has others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Number of each query in its data set `[B]`.
    pub queries: Vec<usize>,
    /// Where each set begins and the last ends `[B + 1]`.
    pub offsets: Vec<usize>,
    /// Row of each document in the data set `[N]`.
    pub rows: Vec<usize>,
    /// Normalised features `[N, F]`, indicators of missing values included.
    pub features: Vec<f32>,
    /// What is still to be dropped of its features, where those are elsewhere.
    pub feature_dropout: Option<FeatureDropout>,
    /// Labels `[N]`, negative = unjudged; 0 where the data has none.
    pub labels: Vec<f32>,
    /// Row of the ordinal table `[R][N]`, −1 = none.
    pub ordinals: Vec<Vec<i32>>,
}

/// Random order and ordinal starts of training; a pure function of seed, epoch and query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    /// The run's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
}

impl Shuffle {
    /// `number` is that of a query or of a row.
    pub(super) fn rng(self, stream: Stream, number: usize) -> Rng {
        Rng::new(self.seed, stream, (self.epoch << 32) ^ number as u64)
    }
}

/// A data set as a model sees it.
#[derive(Debug)]
pub struct Batcher<'a> {
    data: &'a Dataset,
    alignment: Alignment,
    normalize: Normalize,
    num_features: usize,
    input_size: usize,
    ordinal: Option<OrdinalConfig>,
    augment: Augment,
    /// `[N]` by row; `None` where the model takes whole sets.
    kept: Option<Vec<bool>>,
    /// `[R][N]` by row
    ordinals: Vec<Vec<i32>>,
    /// Queries that have documents
    sets: Vec<usize>,
}

impl<'a> Batcher<'a> {
    /// Checks that `data` has what the model of `config` needs, and ranks its documents.
    pub fn new(data: &'a Dataset, config: &ModelConfig) -> Result<Self> {
        let alignment = data.aligned_to(config.raw_features())?;
        let rankings = data.num_initial();
        if config.ordinal.is_some() && rankings != config.num_rankings() {
            return Err(Error::data(format!(
                "the model takes {} initial ranking(s), but the data has {rankings}: give each with --init or \
                 --init-feature, in the order of training",
                config.num_rankings()
            )));
        }
        if config.top_k.is_some() && rankings == 0 {
            return Err(Error::data(
                "the model reranks the top of an initial ranking, but the data has none: give it with --init \
                 or --init-feature",
            ));
        }
        let kept = config.top_k.map(|k| initial::kept(data, k));
        let mut batcher = Batcher {
            data,
            alignment,
            normalize: config.normalize.clone(),
            num_features: config.num_features,
            input_size: config.input_size(),
            ordinal: config.ordinal,
            augment: Augment::default(),
            kept,
            ordinals: Vec::new(),
            sets: (0..data.num_queries()).filter(|&query| !data.rows(query).is_empty()).collect(),
        };
        batcher.ordinals = (0..config.num_rankings()).map(|r| batcher.rank(r)).collect::<Result<_>>()?;
        Ok(batcher)
    }

    /// The same, with features disturbed wherever batches are shuffled as in training.
    pub fn with_augment(self, augment: Augment) -> Self {
        Batcher { augment, ..self }
    }

    /// Index of every row of the data in ranking number `ranking`.
    fn rank(&self, ranking: usize) -> Result<Vec<i32>> {
        let n_max = self.ordinal.map_or(0, |ordinal| ordinal.n_max);
        let labels = self.data.labels();
        let mut indices = Vec::with_capacity(self.data.num_documents());
        for query in self.data.queries() {
            let counted: Vec<bool> = query
                .rows()
                .map(|row| self.is_kept(row) && labels.is_none_or(|labels| labels[row] >= 0.0))
                .collect();
            let of_query = initial::ordinals(query.initial_scores(ranking), &counted);
            let ranked = of_query.iter().max().map_or(0, |&last| (last + 1) as usize);
            if ranked > n_max {
                return Err(Error::data(format!(
                    "query {} has {ranked} documents in initial ranking {}, but n_max, the rows of the ordinal \
                     table, is {n_max}: cut the lists with --top-k, or train with a larger --n-max",
                    query.id(),
                    ranking + 1
                )));
            }
            indices.extend(of_query);
        }
        Ok(indices)
    }

    fn is_kept(&self, row: usize) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept[row])
    }

    /// The data set.
    pub fn data(&self) -> &'a Dataset {
        self.data
    }

    /// The queries that have documents: a set without any has nothing to score or learn from.
    pub fn sets(&self) -> &[usize] {
        &self.sets
    }

    /// Which rows the model reranks, where it does not take whole sets.
    pub fn kept(&self) -> Option<&[bool]> {
        self.kept.as_deref()
    }

    /// Number of documents that the model sees of query number `query`.
    pub fn set_size(&self, query: usize) -> usize {
        self.data.rows(query).filter(|&row| self.is_kept(row)).count()
    }

    /// Refuses a set of which the model sees more than `most` documents; 0 = none.
    ///
    /// # Errors
    /// See there: with the query, and how sets are cut.
    pub fn check_set_sizes(&self, most: usize) -> Result<()> {
        let too_long = |&&query: &&usize| most > 0 && self.set_size(query) > most;
        let Some(&query) = self.sets.iter().find(too_long) else { return Ok(()) };
        Err(Error::data(format!(
            "--max-set-size {most}: query {} has {} documents; --top-k {most} cuts sets to the first of an initial \
             ranking (--init, --init-feature)",
            self.data.query(query).id(),
            self.set_size(query)
        )))
    }

    /// The sets in order, cut into runs of `documents` documents or a few more.
    pub fn runs(&self, documents: usize) -> Vec<&[usize]> {
        let mut of_run = 0;
        let runs = self.sets.split_inclusive(|&query| {
            of_run += self.set_size(query);
            let full = of_run >= documents;
            if full {
                of_run = 0;
            }
            full
        });
        runs.collect()
    }

    /// Whether the features of a document are the same in every batch, but for a shuffle of its set and those that are
    /// dropped.
    pub fn has_constant_features(&self) -> bool {
        self.augment.noise == 0.0
    }

    /// Whether features are dropped wherever batches are shuffled as in training.
    pub fn drops_features(&self) -> bool {
        self.augment.feature_dropout > 0.0
    }

    /// Makes `batch` the batch of `queries`, all of which have documents, shuffled as in training where `shuffle` is given.
    pub fn fill(&self, batch: &mut Batch, queries: &[usize], shuffle: Option<Shuffle>) {
        self.select(batch, queries, shuffle);
        batch.features.resize(batch.rows.len() * self.input_size, 0.0);
        let raw_size = self.data.num_features();
        let raw = self.data.features();
        batch.features.par_chunks_mut(self.input_size).zip(&batch.rows).for_each_init(
            || vec![0.0; self.num_features],
            |aligned, (out, &row)| {
                self.alignment.read_row(&raw[row * raw_size..(row + 1) * raw_size], aligned);
                self.normalize.apply(aligned, out);
            },
        );
        self.compare_within_sets(batch);
        if let Some(shuffle) = shuffle.filter(|_| !self.augment.is_nothing()) {
            self.disturb(batch, shuffle);
        }
    }

    /// As [`fill`](Self::fill), for those who have the features already, which they do where those are
    /// [constant](Self::has_constant_features): it leaves the batch none, and says what is to be dropped of them.
    pub fn fill_without_features(&self, batch: &mut Batch, queries: &[usize], shuffle: Option<Shuffle>) {
        debug_assert!(shuffle.is_none() || self.has_constant_features());
        self.select(batch, queries, shuffle);
        batch.features.clear();
        let (rate, columns) = (self.augment.feature_dropout, self.columns());
        let shuffle = shuffle.filter(|_| self.drops_features());
        batch.feature_dropout = shuffle.map(|shuffle| FeatureDropout { rate, shuffle, columns });
    }

    /// All of a batch but its features, which stay as they are.
    fn select(&self, batch: &mut Batch, queries: &[usize], shuffle: Option<Shuffle>) {
        batch.queries.clear();
        batch.queries.extend_from_slice(queries);
        batch.feature_dropout = None;
        batch.offsets.clear();
        batch.offsets.push(0);
        batch.rows.clear();
        batch.ordinals.resize_with(self.ordinals.len(), Vec::new);
        batch.ordinals.iter_mut().for_each(Vec::clear);
        for &query in queries {
            let first = batch.rows.len();
            batch.rows.extend(self.data.rows(query).filter(|&row| self.is_kept(row)));
            let rows = &mut batch.rows[first..];
            if let Some(shuffle) = shuffle {
                shuffle.rng(Stream::DocumentOrder, query).shuffle(rows);
            }
            let start = shuffle.map_or(0, |shuffle| self.ordinal_start(rows, shuffle, query));
            for (ordinals, of_data) in batch.ordinals.iter_mut().zip(&self.ordinals) {
                ordinals.extend(rows.iter().map(|&row| match of_data[row] {
                    index if index < 0 => -1,
                    index => index + start,
                }));
            }
            batch.offsets.push(batch.rows.len());
        }
        let labels = self.data.labels();
        batch.labels.clear();
        batch.labels.extend(batch.rows.iter().map(|&row| labels.map_or(0.0, |labels| labels[row])));
    }

    fn compare_within_sets(&self, batch: &mut Batch) {
        if self.normalize.within_set == WithinSet::None {
            return;
        }
        let mut sets = Vec::with_capacity(batch.queries.len());
        let mut rest = &mut batch.features[..];
        for offsets in batch.offsets.windows(2) {
            let (set, after) = rest.split_at_mut((offsets[1] - offsets[0]) * self.input_size);
            sets.push((set, &batch.rows[offsets[0]..offsets[1]]));
            rest = after;
        }
        sets.into_par_iter().for_each(|(set, rows)| {
            // Summed as the data has them: a shuffle changes no bits.
            let mut order: Vec<usize> = (0..rows.len()).collect();
            order.sort_unstable_by_key(|&document| rows[document]);
            self.normalize.compare_within_set(set, self.num_features, &order);
        });
    }

    /// Every document draws from a sequence of its own.
    fn disturb(&self, batch: &mut Batch, shuffle: Shuffle) {
        let columns = self.columns();
        batch
            .features
            .par_chunks_mut(self.input_size)
            .zip(&batch.rows)
            .for_each(|(features, &row)| self.augment.apply(shuffle, row, columns, features));
    }

    fn columns(&self) -> Columns {
        let within_set = self.normalize.within_set.num_columns(self.num_features);
        Columns { num_features: self.num_features, first_within_set: self.input_size - within_set }
    }

    /// The integer added to the ranks of a set in training, shared by its rankings.
    fn ordinal_start(&self, rows: &[usize], shuffle: Shuffle, query: usize) -> i32 {
        let Some(ordinal) = self.ordinal.filter(|ordinal| ordinal.start == OrdinalStart::Sampled) else {
            return 0;
        };
        let of_rows = self.ordinals.iter().flat_map(|indices| rows.iter().map(|&row| indices[row]));
        let ranked = of_rows.max().map_or(0, |last| (last + 1) as usize);
        let starts = (ordinal.n_max - ranked) as u32 + 1;
        shuffle.rng(Stream::OrdinalStart, query).below(starts) as i32
    }

    /// Gives the documents that the model did not see scores below those it saw, in the order of the first
    /// initial ranking. `scores` is `[N]` by row.
    pub fn rank_dropped_below(&self, scores: &mut [f32]) {
        if let Some(kept) = &self.kept {
            initial::rank_dropped_below(self.data, kept, scores);
        }
    }
}
