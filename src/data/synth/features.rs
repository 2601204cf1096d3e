//! From latent values to features of the kinds that real ones are: of all scales, skewed, counted, binary,
//! constant, correlated, mostly noise.

use super::Like;
use crate::rng::Rng;

/// Coordinates of a document's place.
pub const TOPICS: usize = 2;
const NUISANCES: usize = 8;
const QUERY_FACTORS: usize = 4;

/// Mean number of features that a document of Yahoo's set has.
const YAHOO_PRESENT: f64 = 223.0;

/// What lies behind a document's features.
pub struct Latents {
    /// p: what makes a document relevant by itself.
    pub quality: f64,
    /// t: where it stands, to be compared with its set.
    pub place: [f64; TOPICS],
    /// Factors that features share and relevance does not depend on.
    pub nuisance: [f64; NUISANCES],
    /// The same for all documents of the query; the first is how easy the query is.
    pub query: [f64; QUERY_FACTORS],
    /// a: how well the document agrees with its set.
    pub agreement: f64,
}

/// The latent value that a feature shows.
#[derive(Clone, Copy, Debug)]
enum Source {
    Quality,
    Place(usize),
    Nuisance(usize),
    Query(usize),
}

/// How a standard normal value is turned into a feature.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Linear {
        offset: f64,
        scale: f64,
    },
    LogNormal {
        log_mean: f64,
        log_scale: f64,
    },
    Count {
        log_mean: f64,
        log_scale: f64,
    },
    Binary {
        threshold: f64,
    },
    /// A logistic curve into [0, 1], as quantile-normalised features are.
    Unit,
    Constant(f32),
}

/// The recipe of a feature.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    source: Source,
    /// Share of the source in a standard normal value, the rest being noise.
    strength: f64,
    shape: Shape,
    presence: Presence,
}

/// Whether a document has the feature.
#[derive(Clone, Copy, Debug)]
enum Presence {
    Always,
    /// With this probability, by itself.
    Sometimes(f64),
    /// Together with the other features of its group, more often the larger the nuisance behind it.
    Group(usize),
}

/// The recipes of `count` features like those of `like`.
pub fn features(like: Like, count: usize, rng: &mut Rng) -> Vec<Feature> {
    let mut sources: Vec<Source> = (0..count)
        .map(|index| match index as f64 / count as f64 {
            share if share < 0.15 => Source::Quality,
            share if share < 0.27 => Source::Place(index % TOPICS),
            share if share < 0.34 => Source::Query(index % QUERY_FACTORS),
            _ => Source::Nuisance(index % NUISANCES),
        })
        .collect();
    rng.shuffle(&mut sources);
    let is_signal = |source: &Source| matches!(source, Source::Quality | Source::Place(_));
    let signals = sources.iter().filter(|source| is_signal(source)).count() as f64;
    // Most of what makes a document relevant is present; the rest of the 223 is spread over the others.
    let signal_presence = 0.9;
    let other_presence = (YAHOO_PRESENT - signal_presence * signals) / (count as f64 - signals);
    let feature = |(index, source): (usize, Source)| Feature {
        source,
        strength: match source {
            Source::Quality => 0.3 + 0.4 * rng.uniform(),
            // A noise of 0.3 beside a spread of 1 inside the set and of 4 between sets.
            Source::Place(_) => 1.0,
            Source::Query(_) => 1.0,
            Source::Nuisance(_) => rng.uniform(),
        },
        shape: shape(like, source, index, rng),
        presence: match like {
            Like::Yahoo if is_signal(&source) => Presence::Sometimes(signal_presence),
            Like::Yahoo => Presence::Sometimes(other_presence),
            Like::Istella if index % 4 == 1 => Presence::Group(index / 4 % NUISANCES),
            _ => Presence::Always,
        },
    };
    sources.into_iter().enumerate().map(feature).collect()
}

fn shape(like: Like, source: Source, index: usize, rng: &mut Rng) -> Shape {
    let draw = rng.uniform();
    if like == Like::Yahoo {
        return Shape::Unit;
    }
    let linear = Shape::Linear { offset: 10.0 * rng.normal(), scale: (2.0 * rng.normal()).exp() };
    let log_mean = 12.0 * rng.uniform();
    let log_scale = 0.5 + rng.uniform();
    match source {
        // Coarser shapes would hide where a document stands inside its set.
        Source::Place(_) if draw < 0.7 => linear,
        Source::Place(_) => Shape::LogNormal { log_mean: log_mean.max(4.0), log_scale },
        Source::Nuisance(_) if index % 40 == 7 => Shape::Constant((draw * 3.0).floor() as f32),
        _ if draw < 0.35 => linear,
        _ if draw < 0.60 => Shape::LogNormal { log_mean, log_scale },
        _ if draw < 0.80 => Shape::Count { log_mean: log_mean / 4.0, log_scale },
        _ if draw < 0.88 => Shape::Binary { threshold: rng.normal() },
        _ => Shape::Unit,
    }
}

/// Appends the features of `document` to `out`, missing = NaN.
pub fn push_row(features: &[Feature], document: &Latents, rng: &mut Rng, out: &mut Vec<f32>) {
    let has_group: [bool; NUISANCES] = document.nuisance.map(|factor| factor + rng.normal() > -1.0);
    out.extend(features.iter().map(|feature| {
        let present = match feature.presence {
            Presence::Always => true,
            Presence::Sometimes(probability) => rng.uniform() < probability,
            Presence::Group(group) => has_group[group],
        };
        if present { feature.value(document, rng) } else { f32::NAN }
    }));
}

impl Feature {
    fn value(&self, document: &Latents, rng: &mut Rng) -> f32 {
        let strength = self.strength;
        let mut with_noise =
            |value: f64| strength * value + (1.0 - strength * strength).sqrt() * rng.normal();
        let g = match self.source {
            Source::Quality => with_noise(document.quality),
            Source::Nuisance(index) => with_noise(document.nuisance[index]),
            Source::Query(index) => document.query[index],
            Source::Place(index) => (document.place[index] + 0.3 * rng.normal()) / 17f64.sqrt(),
        };
        match self.shape {
            Shape::Linear { offset, scale } => (offset + scale * g) as f32,
            Shape::LogNormal { log_mean, log_scale } => (log_mean + log_scale * g).exp() as f32,
            Shape::Count { log_mean, log_scale } => (log_mean + log_scale * g).exp().floor() as f32,
            Shape::Binary { threshold } => f32::from(g > threshold),
            Shape::Unit => (1.0 / (1.0 + (-1.7 * g).exp())) as f32,
            Shape::Constant(value) => value,
        }
    }
}
