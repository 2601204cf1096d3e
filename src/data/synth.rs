//! Data sets made up after the public ones: their sizes, shares of labels and awkwardness, with a signal that
//! can be learnt, part of it by set models only.
//!
//! Documents i of query q have a quality p_i ~ N(0, 1) and a place t_i ~ N(m_q, s_q²) in a plane whose centre
//! m_q ~ N(0, 4²) and spread s_q belong to the query. With r_i the distance of t_i from the *mean of the set*, in
//! units of the set's standard deviation, and a_i = √12·(exp(−r_i²/2) − ½) the agreement with the set, the
//! utility is
//!
//! u_i = 0.6·p_i + a_i + 0.3·h_q + 0.3·ε_i,
//!
//! cut into grades at fixed thresholds. Features show p_i and t_i under noise, among many that
//! show nothing. A row alone tells p_i but not a_i, since m_q is not in it: a pointwise scorer misses most of the
//! utility, which a scorer of sets can read off the mean.

mod features;
pub mod sizes;

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;

use super::dataset::{Columns, Dataset, DatasetBuilder, Document};
use super::sink::Sink;
use super::store;
use crate::rng::{Rng, Stream};
use crate::{Error, Result};
use features::{Feature, Latents, TOPICS};
use sizes::SizeDistribution;

/// How the files of Istella write a missing value.
const ISTELLA_MISSING: &str = "1.79769313486e+308";

/// Queries made at once: enough for every thread, few enough to stay small in memory.
const QUERIES_AT_ONCE: usize = 64;

/// Sequence of numbers that belongs to the kind of data, not to the seed: data of two seeds is of one
/// distribution, so that a model trained on one can be tested on the other.
const SHARED_SEQUENCE: u64 = u64::MAX;

/// Draws from which the thresholds between grades are taken.
const CALIBRATION_DRAWS: usize = 200_000;

/// The public data set that a made-up one resembles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Like {
    /// Istella LETOR: 220 features, 316.6 documents a query, 3.7 % of them relevant, missing values.
    Istella,
    /// MSLR-WEB: 136 features, 119.6 documents a query.
    Mslr,
    /// Yahoo LTRC set 1: 700 features of which a document has 223, 23.7 documents a query.
    Yahoo,
}

/// The figures of a public data set.
struct Profile {
    num_features: usize,
    mean_documents: f64,
    max_documents: usize,
    /// Standard deviation of the logarithm of the number of documents.
    size_spread: f64,
    /// Share of each grade 0..=4.
    grades: [f64; 5],
}

impl Like {
    fn profile(self) -> Profile {
        match self {
            Like::Istella => Profile {
                num_features: 220,
                mean_documents: 316.6,
                max_documents: 500,
                size_spread: 0.4,
                grades: [0.963, 0.008, 0.013, 0.009, 0.007],
            },
            Like::Mslr => Profile {
                num_features: 136,
                mean_documents: 119.6,
                max_documents: 500,
                size_spread: 0.55,
                grades: [0.515, 0.325, 0.134, 0.018, 0.008],
            },
            Like::Yahoo => Profile {
                num_features: 700,
                mean_documents: 23.7,
                max_documents: 139,
                size_spread: 0.6,
                grades: [0.26, 0.36, 0.285, 0.077, 0.018],
            },
        }
    }

    /// Number of features, `F`.
    pub fn num_features(self) -> usize {
        self.profile().num_features
    }

    /// How many documents its queries have.
    pub fn sizes(self) -> SizeDistribution {
        let profile = self.profile();
        SizeDistribution::with_mean(profile.mean_documents, profile.size_spread, profile.max_documents)
    }
}

/// Makes queries, each from its own sequence of random numbers.
pub struct Generator {
    like: Like,
    seed: u64,
    sizes: SizeDistribution,
    /// Least utility of the grades 1..=4.
    thresholds: [f64; 4],
    features: Vec<Feature>,
}

/// A query of a [`Generator`].
struct MadeUp {
    /// `[n, F]`, missing = NaN
    features: Vec<f32>,
    /// `[n]`
    labels: Vec<f32>,
}

impl Generator {
    /// A generator of queries with at most `max_documents` documents each (the default is the original's).
    pub fn new(like: Like, seed: u64, max_documents: Option<usize>) -> Result<Self> {
        let profile = like.profile();
        if max_documents == Some(0) {
            return Err(Error::config("max-docs must be at least 1"));
        }
        let mut shared = Rng::new(0, Stream::Synth, SHARED_SEQUENCE);
        Ok(Generator {
            like,
            seed,
            sizes: max_documents.map_or(like.sizes(), |max| like.sizes().cut_at(max)),
            thresholds: thresholds(&profile.grades, &mut shared),
            features: features::features(like, profile.num_features, &mut shared),
        })
    }

    /// Latent values and labels of the documents of query number `index`, and the numbers that follow.
    fn documents(&self, index: u64) -> (Vec<Latents>, Vec<f32>, Rng) {
        let mut rng = Rng::new(self.seed, Stream::Synth, index);
        let latents = draw_latents(self.sizes.draw(&mut rng), &mut rng);
        let label = |document: &Latents| {
            let utility = utility(document.quality, document.agreement, document.query[0], rng.normal());
            self.thresholds.iter().filter(|&&threshold| utility >= threshold).count() as f32
        };
        let labels = latents.iter().map(label).collect();
        (latents, labels, rng)
    }

    fn query(&self, index: u64) -> MadeUp {
        let (latents, labels, mut rng) = self.documents(index);
        let mut values = Vec::with_capacity(latents.len() * self.features.len());
        for document in &latents {
            features::push_row(&self.features, document, &mut rng, &mut values);
        }
        MadeUp { features: values, labels }
    }

    /// Queries `0..count` in order, made in parallel.
    fn for_each<E>(
        &self,
        count: usize,
        mut take: impl FnMut(usize, &MadeUp) -> Result<(), E>,
    ) -> Result<(), E> {
        for start in (0..count).step_by(QUERIES_AT_ONCE) {
            let end = count.min(start + QUERIES_AT_ONCE);
            let queries: Vec<MadeUp> = (start..end).into_par_iter().map(|q| self.query(q as u64)).collect();
            for (index, query) in (start..end).zip(&queries) {
                take(index, query)?;
            }
        }
        Ok(())
    }

    /// The first `queries` queries in memory.
    pub fn dataset(&self, queries: usize) -> Result<Dataset> {
        let mut features = Vec::new();
        let mut data = self.append_features(queries, &mut features)?;
        data.features = features.into();
        Ok(data)
    }

    /// Writes the first `queries` queries as a `.sets` file, a few at a time.
    pub fn write_store(&self, queries: usize, path: &Path) -> Result<()> {
        let mut writer = store::Writer::create(path)?;
        let data = self.append_features(queries, &mut writer)?;
        writer.finish(&data)
    }

    /// Appends the features of the first `queries` queries to `sink`; the data set returned is without them.
    fn append_features(&self, queries: usize, sink: &mut impl Sink) -> Result<Dataset> {
        let mut builder = DatasetBuilder::new(0);
        let mut missing = 0;
        self.for_each(queries, |index, query| {
            builder.start_query((index + 1).to_string());
            for &label in &query.labels {
                builder.push(Document { label: Some(label), ..Document::default() });
            }
            missing += query.features.iter().filter(|x| x.is_nan()).count() as u64;
            sink.append(&query.features)
        })?;
        let mut data = builder.finish();
        let count = self.features.len() as u32;
        data.columns = Columns {
            count,
            least: Some(1),
            largest: Some(count),
            // Only Yahoo's files leave out what is missing; the others write it.
            absent_cells: if self.like == Like::Yahoo { missing } else { 0 },
            ..data.columns
        };
        Ok(data)
    }

    /// Writes the first `queries` queries as LETOR text, a few at a time.
    ///
    /// A missing value is written as Istella writes it, or left out as Yahoo does.
    pub fn write_text(&self, queries: usize, out: &mut (impl Write + ?Sized)) -> std::io::Result<()> {
        let width = self.features.len();
        self.for_each(queries, |index, query| {
            for (features, label) in query.features.chunks_exact(width).zip(&query.labels) {
                write!(out, "{label} qid:{}", index + 1)?;
                for (feature, value) in features.iter().enumerate() {
                    match (value.is_nan(), self.like) {
                        (false, _) => write!(out, " {}:{value}", feature + 1)?,
                        (true, Like::Yahoo) => {}
                        (true, _) => write!(out, " {}:{ISTELLA_MISSING}", feature + 1)?,
                    }
                }
                out.write_all(b"\n")?;
            }
            Ok(())
        })
    }
}

/// A data set of `queries` queries in memory.
pub fn dataset(like: Like, queries: usize, seed: u64, max_documents: Option<usize>) -> Result<Dataset> {
    Generator::new(like, seed, max_documents)?.dataset(queries)
}

fn utility(quality: f64, agreement: f64, difficulty: f64, noise: f64) -> f64 {
    0.6 * quality + agreement + 0.3 * difficulty + 0.3 * noise
}

/// a = √12·(exp(−r²/2) − ½): uniform with mean 0 and variance 1 where r² is of two normal coordinates.
fn agreement(squared_distance: f64) -> f64 {
    12f64.sqrt() * ((-0.5 * squared_distance).exp() - 0.5)
}

/// The latent values of the `n` documents of a query.
fn draw_latents(n: usize, rng: &mut Rng) -> Vec<Latents> {
    let query = std::array::from_fn(|_| rng.normal());
    let centre: [f64; TOPICS] = std::array::from_fn(|_| 4.0 * rng.normal());
    let spread = (0.25 * rng.normal()).exp();
    let mut latents: Vec<Latents> = (0..n)
        .map(|_| Latents {
            quality: rng.normal(),
            place: centre.map(|c| c + spread * rng.normal()),
            nuisance: std::array::from_fn(|_| rng.normal()),
            query,
            agreement: 0.0,
        })
        .collect();
    let mean: [f64; TOPICS] =
        std::array::from_fn(|k| latents.iter().map(|document| document.place[k]).sum::<f64>() / n as f64);
    let square =
        |document: &Latents| -> f64 { document.place.iter().zip(&mean).map(|(t, m)| (t - m).powi(2)).sum() };
    let variance = latents.iter().map(square).sum::<f64>() / (n * TOPICS) as f64;
    for document in &mut latents {
        // Two documents are equally far from their mean, one is at it: no disagreement to tell them apart.
        let squared_distance = if n > 2 { square(document) / variance } else { 2.0 * std::f64::consts::LN_2 };
        document.agreement = agreement(squared_distance);
    }
    latents
}

/// The least utility of the grades 1..=4, so that each grade has its share.
fn thresholds(grades: &[f64; 5], rng: &mut Rng) -> [f64; 4] {
    let mut draws: Vec<f64> = (0..CALIBRATION_DRAWS)
        .map(|_| {
            let squared_distance = -2.0 * (1.0 - rng.uniform()).ln();
            utility(rng.normal(), agreement(squared_distance), rng.normal(), rng.normal())
        })
        .collect();
    draws.sort_unstable_by(f64::total_cmp);
    std::array::from_fn(|grade| {
        let below: f64 = grades[..=grade].iter().sum();
        draws[(below * CALIBRATION_DRAWS as f64) as usize]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::letor;
    use crate::eval::{Conventions, mean_ndcg};

    const ALL: [Like; 3] = [Like::Istella, Like::Mslr, Like::Yahoo];

    fn labels(like: Like, queries: u64) -> Vec<Vec<f32>> {
        let generator = Generator::new(like, 5, None).unwrap();
        (0..queries).map(|index| generator.documents(index).1).collect()
    }

    #[test]
    fn sizes_and_grades_are_those_of_the_original() {
        for like in ALL {
            let profile = like.profile();
            let sets = labels(like, 4000);
            let documents: usize = sets.iter().map(Vec::len).sum();
            let mean = documents as f64 / sets.len() as f64;
            assert!((mean / profile.mean_documents - 1.0).abs() < 0.03, "{like:?}: {mean}");
            assert!(sets.iter().all(|set| (1..=profile.max_documents).contains(&set.len())));
            for (grade, expected) in profile.grades.iter().enumerate() {
                let count = sets.iter().flatten().filter(|&&label| label == grade as f32).count();
                let share = count as f64 / documents as f64;
                assert!((share - expected).abs() < 0.1 * expected + 0.001, "{like:?} {grade}: {share}");
            }
        }
    }

    #[test]
    fn a_row_tells_much_less_than_the_set() {
        for like in ALL {
            let generator = Generator::new(like, 6, None).unwrap();
            let (mut builder, mut latents) = (DatasetBuilder::new(0), Vec::new());
            for index in 0..1000 {
                let (documents, labels, _) = generator.documents(index);
                builder.start_query(index.to_string());
                for label in labels {
                    builder.push(Document { label: Some(label), ..Document::default() });
                }
                latents.extend(documents);
            }
            let data = builder.finish();
            let ndcg = |score: &dyn Fn(&Latents) -> f64| {
                let scores: Vec<f64> = latents.iter().map(score).collect();
                mean_ndcg(&data, &scores, None, 10, &Conventions::default()).unwrap()
            };
            // Given t alone, m is normal with mean 16/17·t: the expected squared distance grows with |t|.
            let of_row = ndcg(&|d| {
                let squared: f64 = d.place.iter().map(|t| (t / 17.0).powi(2) + 16.0 / 17.0).sum();
                utility(d.quality, agreement(squared), 0.0, 0.0)
            });
            let of_quality = ndcg(&|d| d.quality);
            let of_set = ndcg(&|d| utility(d.quality, d.agreement, 0.0, 0.0));
            assert!(of_set > of_row.max(of_quality) + 0.15, "{like:?}: row {of_row}, set {of_set}");
        }
    }

    #[test]
    fn features_are_as_sparse_and_as_varied_as_the_original() {
        for (like, missing) in
            [(Like::Istella, 0.02..0.15), (Like::Mslr, -1.0..0.0001), (Like::Yahoo, 0.66..0.70)]
        {
            let data = dataset(like, 60, 1, Some(60)).unwrap();
            let features = data.features();
            let share = features.iter().filter(|x| x.is_nan()).count() as f64 / features.len() as f64;
            assert!(missing.contains(&share), "{like:?}: {share}");
            assert!(features.iter().all(|x| x.is_nan() || x.is_finite()));
            let largest = features.iter().copied().fold(0.0, f32::max);
            if like == Like::Yahoo {
                assert!(features.iter().all(|x| x.is_nan() || (0.0..=1.0).contains(x)));
            } else {
                assert!(largest > 1e6, "{largest}");
                let first = data.query(0).document(0).to_vec();
                let constant = |f: usize| features[f..].iter().step_by(first.len()).all(|&x| x == first[f]);
                assert!((0..first.len()).filter(|&f| constant(f)).count() >= 2);
            }
        }
    }

    #[test]
    fn the_seed_alone_decides() {
        let text = |seed, threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = Vec::new();
            let generator = Generator::new(Like::Yahoo, seed, Some(5)).unwrap();
            pool.install(|| generator.write_text(70, &mut out)).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(text(1, 1) == text(1, 4) && text(1, 1) != text(2, 1));
        assert!(Generator::new(Like::Yahoo, 1, Some(0)).is_err());
    }

    fn assert_same(left: &Dataset, right: &Dataset) {
        assert_eq!(left.columns(), right.columns());
        assert_eq!(left.labels(), right.labels());
        assert_eq!(left.offsets.to_vec(), right.offsets.to_vec());
        assert_eq!(left.query_ids.parts(), right.query_ids.parts());
        let bits = |data: &Dataset| -> Vec<u32> { data.features().iter().map(|x| x.to_bits()).collect() };
        assert_eq!(bits(left), bits(right));
    }

    #[test]
    fn text_and_store_hold_what_memory_holds() {
        let folder = tempfile::tempdir().unwrap();
        let (text, store) = (folder.path().join("data.txt"), folder.path().join("data.sets"));
        for like in ALL {
            let generator = Generator::new(like, 9, Some(9)).unwrap();
            let data = generator.dataset(20).unwrap();
            generator.write_text(20, &mut std::fs::File::create(&text).unwrap()).unwrap();
            let options = letor::LetorOptions { features: Some(data.columns().count), ..Default::default() };
            assert_same(&letor::read(std::slice::from_ref(&text), &options).unwrap(), &data);
            generator.write_store(20, &store).unwrap();
            assert_same(&store::open(&store).unwrap(), &data);
        }
    }
}
