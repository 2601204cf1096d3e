//! Per-feature normalisation, fitted on training data and kept with the model.
//!
//! With t = x, or t = sign(x)·ln(1 + |x|) for the kinds that start with `log1p`:
//!
//! out = clip((t − center)·scale), a missing value becoming `fill`.
//!
//! The kind `quantile` reads a broken line from values to normal scores instead ([`Knots`]).
//!
//! Where asked for, a 0/1 column "missing" follows the F columns for each feature that training data misses
//! at least once, and after these columns that compare the documents of a set ([`WithinSet`]). Columns are
//! never dropped: one without spread gets scale 0, hence 0 for every known value.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

mod fill;
mod quantile;
mod within_set;

pub use fill::Fill;
pub use quantile::Knots;
pub use within_set::WithinSet;

/// Rows whose statistics are summed as one: fixed, so that a fit does not depend on the number of threads.
const BLOCK_ROWS: usize = 8192;

/// Standard deviations at which a fitted z-score is cut off.
const DEFAULT_CLIP: f32 = 10.0;

/// How features are brought to a common range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Kind {
    /// Values pass as they are.
    #[default]
    #[serde(rename = "none")]
    #[value(name = "none")]
    None,
    /// The range seen in training becomes [0, 1]; values outside of it are cut off.
    #[serde(rename = "minmax")]
    #[value(name = "minmax")]
    MinMax,
    /// Mean 0 and standard deviation 1 in training.
    #[serde(rename = "zscore")]
    #[value(name = "zscore")]
    ZScore,
    /// The same of sign(x)·ln(1 + |x|), for features of many orders of magnitude.
    #[serde(rename = "log1p-zscore")]
    #[value(name = "log1p-zscore")]
    Log1pZScore,
    /// The normal score of the value's place among those seen in training.
    #[serde(rename = "quantile")]
    #[value(name = "quantile")]
    Quantile,
}

/// What is fitted on training data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How features are brought to a common range.
    pub kind: Kind,
    /// What a missing value becomes; of `none`, 0.
    pub fill: Fill,
    /// Whether each feature that is missing at least once gets a column "missing".
    pub indicators: bool,
    /// Columns that compare the documents of a set.
    pub within_set: WithinSet,
}

/// The normalisation of F features, as `config.json` stores it.
///
/// For `none`, `center`, `scale`, `fill` and `clip` are absent. For the other kinds `center` and `scale` are
/// `[F]`, but for `quantile`, which has `knots` `[F]` instead; an absent `fill` means 0 everywhere; an absent `clip`
/// cuts nothing off, and `minmax` never has one, as its range is [0, 1]. For every kind, absent `indicators` mean
/// that there is none, and an absent `within_set` that there are no such columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Normalize {
    /// How features are brought to a common range.
    pub kind: Kind,
    /// `[F]` subtracted from t.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub center: Vec<f64>,
    /// `[F]` multiplies t − center; 0 for a feature without spread.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scale: Vec<f64>,
    /// `[F]` from values to normal scores.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub knots: Vec<Knots>,
    /// `[F]` what a missing value becomes, in normalised units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fill: Vec<f32>,
    /// Known values stay within ±clip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f32>,
    /// `[F]` whether a 0/1 column "missing" is appended for the feature.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indicators: Vec<bool>,
    /// What the last `[F]` columns, if any, tell of a document's place in its set.
    #[serde(skip_serializing_if = "WithinSet::is_none")]
    pub within_set: WithinSet,
}

impl Normalize {
    /// Fits `kind` on the training rows `features` `[N, num_features]`, missing = NaN, as [`fit_with`](Self::fit_with)
    /// does with 0 for missing values and nothing within sets.
    pub fn fit(kind: Kind, features: &[f32], num_features: usize, indicators: bool) -> Result<Normalize> {
        Normalize::fit_with(
            Settings { kind, indicators, ..Settings::default() },
            features,
            num_features,
            None,
        )
    }

    /// Fits what `settings` ask for on the training rows `features` `[N, num_features]`, missing = NaN, and their
    /// `labels` `[N]`, of which only [`Fill::Worst`] takes notice. Does not depend on the number of threads.
    pub fn fit_with(
        settings: Settings,
        features: &[f32],
        num_features: usize,
        labels: Option<&[f32]>,
    ) -> Result<Normalize> {
        let Settings { kind, fill, indicators, within_set } = settings;
        if num_features == 0 || !features.len().is_multiple_of(num_features) {
            return Err(Error::data(format!(
                "cannot fit a normalisation: {} values are no whole number of rows of {num_features} features",
                features.len()
            )));
        }
        let rows = features.len() / num_features;
        if rows == 0 {
            return Err(Error::data("cannot fit a normalisation: the training data has no document"));
        }
        if kind == Kind::None && !indicators {
            return Ok(Normalize { within_set, ..Normalize::default() });
        }
        let log = kind == Kind::Log1pZScore;
        let blocks: Vec<Vec<Moments>> = features
            .par_chunks(BLOCK_ROWS * num_features)
            .map(|block| block_moments(block, num_features, log))
            .collect();
        let mut moments = vec![Moments::default(); num_features];
        for block in &blocks {
            for (total, part) in moments.iter_mut().zip(block) {
                total.merge(part);
            }
        }

        let mut normalize = Normalize { kind, within_set, ..Normalize::default() };
        if indicators {
            normalize.indicators = moments.iter().map(|m| m.count < rows as u64).collect();
        }
        match kind {
            Kind::None => return Ok(normalize),
            Kind::Quantile => {
                let column = |feature| features.iter().skip(feature).step_by(num_features);
                let known = |feature| column(feature).copied().filter(|x| x.is_finite()).collect();
                normalize.knots =
                    (0..num_features).into_par_iter().map(|feature| Knots::fit(known(feature))).collect();
            }
            Kind::MinMax | Kind::ZScore | Kind::Log1pZScore => {
                normalize.clip = (kind != Kind::MinMax).then_some(DEFAULT_CLIP);
                (normalize.center, normalize.scale) =
                    moments.iter().map(|m| m.center_and_scale(kind == Kind::MinMax)).unzip();
            }
        }
        let low = || normalize.known_values(&moments, |m| m.min, |k| k.scores[0]);
        let high = || normalize.known_values(&moments, |m| m.max, |k| k.scores[k.scores.len() - 1]);
        normalize.fill = match fill {
            Fill::Zero => vec![0.0; num_features],
            Fill::Low => low(),
            Fill::High => high(),
            Fill::Worst => {
                let Some(labels) = labels.filter(|labels| labels.len() == rows) else {
                    return Err(Error::data(
                        "the worst fill cannot be told without labels of the training data",
                    ));
                };
                let value = |feature, x| normalize.known_value(feature, x);
                let covariances = fill::covariances(features, labels, num_features, value);
                let ends = low().into_iter().zip(high()).zip(covariances);
                ends.map(|((low, high), covariance)| match covariance {
                    c if c > 0.0 => low,
                    c if c < 0.0 => high,
                    _ => 0.0,
                })
                .collect()
            }
        };
        Ok(normalize)
    }

    /// `[F]` what one value of each feature becomes: one by its moments, or one end of its knots.
    fn known_values(
        &self,
        moments: &[Moments],
        of_moments: impl Fn(&Moments) -> f64,
        of_knots: impl Fn(&Knots) -> f32,
    ) -> Vec<f32> {
        let (low, high) = self.range();
        let scaled = |(feature, moments): (usize, &Moments)| {
            ((of_moments(moments) - self.center[feature]) * self.scale[feature]).max(low).min(high) as f32
        };
        match self.kind {
            Kind::Quantile => self.knots.iter().map(of_knots).collect(),
            _ => moments.iter().enumerate().map(scaled).collect(),
        }
    }

    /// What a finite raw value of a feature becomes.
    fn known_value(&self, feature: usize, x: f32) -> f64 {
        if self.kind == Kind::Quantile {
            return f64::from(self.knots[feature].score(x));
        }
        let t = if self.kind == Kind::Log1pZScore { signed_log1p(f64::from(x)) } else { f64::from(x) };
        let (low, high) = self.range();
        ((t - self.center[feature]) * self.scale[feature]).max(low).min(high)
    }

    /// Where known values are cut off.
    fn range(&self) -> (f64, f64) {
        let limit = f64::from(self.clip.unwrap_or(f32::MAX));
        if self.kind == Kind::MinMax { (0.0, 1.0) } else { (-limit, limit) }
    }

    /// Checks that the arrays fit `num_features` and each other, and that every number is in its range.
    pub fn validate(&self, num_features: usize) -> Result<()> {
        let fail = |reason: String| Err(Error::config(format!("normalize: {reason}")));
        let scaled = !matches!(self.kind, Kind::None | Kind::Quantile);
        for (name, length, required) in [
            ("center", self.center.len(), scaled),
            ("scale", self.scale.len(), scaled),
            ("knots", self.knots.len(), self.kind == Kind::Quantile),
            ("fill", self.fill.len(), false),
            ("indicators", self.indicators.len(), false),
        ] {
            if length != num_features && (required || length > 0) {
                return fail(format!("`{name}` has {length} values for {num_features} features"));
            }
        }
        if let Some(index) = self.center.iter().position(|v| !v.is_finite()) {
            return fail(format!("`center[{index}]` is not finite"));
        }
        if let Some(index) = self.scale.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
            return fail(format!("`scale[{index}]` is not a finite number of 0 or more"));
        }
        if let Some((index, flaw)) =
            self.knots.iter().map(Knots::flaw).enumerate().find_map(|(i, f)| Some((i, f?)))
        {
            return fail(format!("`knots[{index}]` {flaw}"));
        }
        if let Some(index) = self.fill.iter().position(|v| !v.is_finite()) {
            return fail(format!("`fill[{index}]` is not finite"));
        }
        match self.clip {
            Some(clip) if !(clip.is_finite() && clip > 0.0) => {
                fail(format!("`clip` must be a positive number, not {clip}"))
            }
            _ => Ok(()),
        }
    }

    /// Number of columns after normalisation: `num_features`, one for each indicator, and those that compare
    /// within the set.
    pub fn output_width(&self, num_features: usize) -> usize {
        num_features + self.num_indicators() + self.within_set.num_columns(num_features)
    }

    fn num_indicators(&self) -> usize {
        self.indicators.iter().filter(|&&flag| flag).count()
    }

    /// Fills the columns that compare the documents of one set, `rows` `[n, output_width]`, all of which
    /// [`apply`](Self::apply) has normalised. `order` `[n]` lists the documents as they are to be summed: the bits of their
    /// values depend on it, and not on where their rows stand.
    pub fn compare_within_set(&self, rows: &mut [f32], num_features: usize, order: &[usize]) {
        if !self.within_set.is_none() {
            self.within_set.fill(rows, self.output_width(num_features), num_features, order);
        }
    }

    /// Normalises one document: `raw` `[F]`, missing = NaN or infinite, to `out` `[output_width]`, but for the columns
    /// of [`compare_within_set`](Self::compare_within_set), which become 0.
    ///
    /// Whatever `raw` holds, `out` is finite.
    ///
    /// # Panics
    /// If the lengths do not fit; [`validate`](Self::validate) comes first.
    pub fn apply(&self, raw: &[f32], out: &mut [f32]) {
        let (known, flags) = out.split_at_mut(raw.len());
        let range = self.range();
        match self.kind {
            Kind::None => {
                for (out, &x) in known.iter_mut().zip(raw) {
                    *out = if x.is_finite() { x } else { 0.0 };
                }
            }
            Kind::MinMax | Kind::ZScore => self.scale_known(raw, known, |x| x, range),
            Kind::Log1pZScore => dispatch(|| self.scale_known(raw, known, signed_log1p, range)),
            Kind::Quantile => {
                for (feature, (out, &x)) in known.iter_mut().zip(raw).enumerate() {
                    *out = if x.is_finite() { self.knots[feature].score(x) } else { self.fill_of(feature) };
                }
            }
        }
        let (flags, within_set) = flags.split_at_mut(self.num_indicators());
        within_set.fill(0.0);
        if !flags.is_empty() {
            let missing = raw.iter().zip(&self.indicators).filter(|&(_, &flag)| flag);
            for (out, (x, _)) in flags.iter_mut().zip(missing) {
                *out = if x.is_finite() { 0.0 } else { 1.0 };
            }
        }
    }

    fn fill_of(&self, feature: usize) -> f32 {
        self.fill.get(feature).copied().unwrap_or(0.0)
    }

    /// In float64, where no float32 can overflow and a clamp is two instructions.
    #[inline(always)]
    fn scale_known(&self, raw: &[f32], out: &mut [f32], t: impl Fn(f64) -> f64, (low, high): (f64, f64)) {
        let (center, scale) = (&self.center[..raw.len()], &self.scale[..raw.len()]);
        let out = &mut out[..raw.len()];
        for i in 0..raw.len() {
            let x = if raw[i].is_finite() { f64::from(raw[i]) } else { 0.0 };
            out[i] = ((t(x) - center[i]) * scale[i]).max(low).min(high) as f32;
        }
        for (i, (out, x)) in out.iter_mut().zip(raw).enumerate() {
            if !x.is_finite() {
                *out = self.fill_of(i);
            }
        }
    }
}

/// What is known of one feature; `square` is the sum of squared distances from the mean.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: u64,
    mean: f64,
    square: f64,
    min: f64,
    max: f64,
}

impl Moments {
    /// Adds the values behind `other` (Chan, Golub and LeVeque 1979).
    fn merge(&mut self, other: &Moments) {
        if self.count == 0 || other.count == 0 {
            if self.count == 0 {
                *self = *other;
            }
            return;
        }
        let count = self.count + other.count;
        let delta = other.mean - self.mean;
        let share = other.count as f64 / count as f64;
        self.square += other.square + delta * delta * self.count as f64 * share;
        self.mean += delta * share;
        self.count = count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn center_and_scale(&self, minmax: bool) -> (f64, f64) {
        let (center, spread) = if minmax {
            (self.min, self.max - self.min)
        } else {
            (self.mean, (self.square / self.count.max(1) as f64).sqrt())
        };
        // Least and largest decide, since rounding can leave a constant feature a spread above 0.
        (center, if self.min < self.max { 1.0 / spread } else { 0.0 })
    }
}

/// Moments of each column of `block` `[rows, width]`, summed from the column's first known value: as that is
/// one of the values, the sums lose no more than a factor of the rows in precision.
fn block_moments(block: &[f32], width: usize, log: bool) -> Vec<Moments> {
    let transform = |x: f32| if log { signed_log1p(f64::from(x)) } else { f64::from(x) };
    let mut sums = vec![ShiftedSums::default(); width];
    let mut without_shift: Vec<usize> = (0..width).collect();
    for row in block.chunks_exact(width) {
        without_shift.retain(|&i| {
            if row[i].is_finite() {
                sums[i].shift = transform(row[i]);
            }
            !row[i].is_finite()
        });
        if without_shift.is_empty() {
            break;
        }
    }
    let mut values = vec![0.0; width];
    for row in block.chunks_exact(width) {
        if log {
            dispatch(|| transform_row(row, &mut values, signed_log1p));
        } else {
            transform_row(row, &mut values, |x| x);
        }
        for ((sums, &t), x) in sums.iter_mut().zip(&values).zip(row) {
            let distance = if x.is_finite() { t - sums.shift } else { 0.0 };
            sums.count += u64::from(x.is_finite());
            sums.sum += distance;
            sums.square += distance * distance;
            sums.least = sums.least.min(distance);
            sums.largest = sums.largest.max(distance);
        }
    }
    sums.iter().map(ShiftedSums::moments).collect()
}

/// Sums of a block over distances from `shift`, one of its values.
#[derive(Clone, Copy, Debug, Default)]
struct ShiftedSums {
    shift: f64,
    count: u64,
    sum: f64,
    square: f64,
    least: f64,
    largest: f64,
}

impl ShiftedSums {
    fn moments(&self) -> Moments {
        if self.count == 0 {
            return Moments::default();
        }
        let mean = self.sum / self.count as f64;
        Moments {
            count: self.count,
            mean: self.shift + mean,
            square: (self.square - self.sum * mean).max(0.0),
            min: self.shift + self.least,
            max: self.shift + self.largest,
        }
    }
}

/// `out` = t of `row`, with anything finite where a value is missing.
#[inline(always)]
fn transform_row(row: &[f32], out: &mut [f64], t: impl Fn(f64) -> f64) {
    for (out, &x) in out.iter_mut().zip(row) {
        *out = t(if x.is_finite() { f64::from(x) } else { 0.0 });
    }
}

/// Runs `work`, compiled for AVX2 where the machine has it: twice the speed and, since nothing is contracted
/// into fused operations, the same bits.
#[inline(always)]
fn dispatch(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2(work: impl FnOnce()) {
            work();
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just detected.
            return unsafe { with_avx2(work) };
        }
    }
    work();
}

/// sign(x)·ln(1 + |x|) of a finite float32 value, within 1e-11 relative; no branch and no call, so that loops
/// over it become vector code.
#[inline(always)]
fn signed_log1p(x: f64) -> f64 {
    const SQRT_HALF: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    let a = x.abs();
    let u = 1.0 + a;
    // u = m·2^e with m in [√½, √2)
    let e = u.to_bits().wrapping_sub(SQRT_HALF) >> 52;
    let m = f64::from_bits(u.to_bits().wrapping_sub(e << 52));
    // ln m = 2 artanh s
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = 1.0
        + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z / 13.0)))));
    // What 1 + a rounded away, which is all there is of a tiny a.
    let lost = if a < 1.0 { a - (u - 1.0) } else { 0.0 };
    (f64::from(e as i32) * std::f64::consts::LN_2 + 2.0 * s * series + lost).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAN: f32 = f32::NAN;
    const KINDS: [Kind; 4] = [Kind::None, Kind::MinMax, Kind::ZScore, Kind::Log1pZScore];

    fn apply_all(normalize: &Normalize, features: &[f32], width: usize) -> Vec<f32> {
        let out_width = normalize.output_width(width);
        let mut out = vec![NAN; features.len() / width * out_width];
        for (row, out) in features.chunks_exact(width).zip(out.chunks_exact_mut(out_width)) {
            normalize.apply(row, out);
        }
        out
    }

    #[test]
    fn signed_log1p_is_accurate_over_all_magnitudes() {
        for exponent in -149..128 {
            for mantissa in [1.0, 1.1, 1.3, 1.414, 1.5, 1.75, 1.999] {
                for sign in [-1.0, 1.0] {
                    let x = f64::from((sign * mantissa * 2f64.powi(exponent)) as f32);
                    let exact = x.abs().ln_1p().copysign(x);
                    let error = (signed_log1p(x) - exact).abs();
                    assert!(error <= 1e-11 * exact.abs(), "{x}: {} for {exact}", signed_log1p(x));
                }
            }
        }
        assert_eq!(signed_log1p(0.0), 0.0);
    }

    #[test]
    fn known_values() {
        let rows = [1.0, 5.0, NAN, 3.0, 5.0, 7.0];
        let minmax = Normalize::fit(Kind::MinMax, &rows, 3, true).unwrap();
        assert_eq!(
            serde_json::to_string(&minmax).unwrap(),
            r#"{"kind":"minmax","center":[1.0,5.0,7.0],"scale":[0.5,0.0,0.0],"fill":[0.0,0.0,0.0],"indicators":[false,false,true]}"#
        );
        assert_eq!(apply_all(&minmax, &rows, 3), [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(apply_all(&minmax, &[9.0, 9.0, -9.0], 3), [1.0, 0.0, 0.0, 0.0]);

        let zscore = Normalize::fit(Kind::ZScore, &rows, 3, false).unwrap();
        assert_eq!((zscore.center[0], zscore.scale[0], zscore.clip), (2.0, 1.0, Some(10.0)));
        assert_eq!(apply_all(&zscore, &[100.0, 100.0, NAN], 3), [10.0, 0.0, 0.0]);

        let none = Normalize::fit(Kind::None, &rows, 3, false).unwrap();
        assert_eq!(serde_json::to_string(&none).unwrap(), r#"{"kind":"none"}"#);
        assert_eq!(apply_all(&none, &rows, 3), [1.0, 5.0, 0.0, 3.0, 5.0, 7.0]);
    }

    #[test]
    fn fill_stands_for_missing() {
        let text = r#"{"kind": "zscore", "center": [1], "scale": [2], "fill": [-0.5]}"#;
        let normalize: Normalize = serde_json::from_str(text).unwrap();
        normalize.validate(1).unwrap();
        assert_eq!(apply_all(&normalize, &[NAN, f32::INFINITY, 1.5], 1), [-0.5, -0.5, 1.0]);
    }

    #[test]
    fn the_worst_fill_is_the_end_with_the_lower_labels() {
        // Feature 0 is a rank, feature 1 a score, feature 2 says nothing.
        let rows = [1.0, 9.0, 5.0, 8.0, 2.0, 5.0, NAN, 1.0, 5.0, 3.0, NAN, 5.0];
        let labels = [2.0, 0.0, 0.0, 1.0];
        for kind in [Kind::ZScore, Kind::Log1pZScore, Kind::MinMax, Kind::Quantile] {
            let fit = |fill| {
                let settings = Settings { kind, fill, ..Settings::default() };
                Normalize::fit_with(settings, &rows, 3, Some(&labels)).unwrap().fill
            };
            let (low, high, worst) = (fit(Fill::Low), fit(Fill::High), fit(Fill::Worst));
            assert_eq!(worst, [high[0], low[1], 0.0], "{kind:?}");
        }
        let settings = Settings { kind: Kind::ZScore, fill: Fill::Worst, ..Settings::default() };
        let error = Normalize::fit_with(settings, &rows, 3, None).unwrap_err().to_string();
        assert!(error.contains("labels"), "{error}");
    }

    #[test]
    fn a_large_offset_does_not_hide_the_spread() {
        // Blocks of several thousand rows around 1e7 with a spread of 1, and one outlier first.
        let mut values: Vec<f32> = (0..49_998).map(|i| 1e7 + (i % 3) as f32).collect();
        let fit = Normalize::fit(Kind::ZScore, &values, 1, false).unwrap();
        assert!((1.0 / fit.scale[0] - (2.0f64 / 3.0).sqrt()).abs() < 1e-6, "{}", 1.0 / fit.scale[0]);
        values[0] = 1e12;
        let fit = Normalize::fit(Kind::ZScore, &values, 1, false).unwrap();
        assert!((fit.scale[0] * 1e12 / 49_998f64.sqrt() - 1.0).abs() < 1e-4);
    }

    #[test]
    fn a_fit_does_not_depend_on_the_threads() {
        let mut rng = crate::rng::Rng::new(3, crate::rng::Stream::Synth, 0);
        let features: Vec<f32> = (0..3 * 30_000).map(|_| rng.normal() as f32).collect();
        let fit = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Normalize::fit(Kind::Log1pZScore, &features, 3, true).unwrap())
        };
        assert_eq!(fit(1), fit(4));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Normalize::fit(Kind::ZScore, &[], 3, false).is_err());
        assert!(Normalize::fit(Kind::ZScore, &[1.0; 4], 3, false).is_err());
        let valid = Normalize::fit(Kind::ZScore, &[1.0, 2.0], 1, true).unwrap();
        valid.validate(1).unwrap();
        let refuse = |change: fn(&mut Normalize), needle: &str| {
            let mut broken = valid.clone();
            change(&mut broken);
            let message = broken.validate(1).unwrap_err().to_string();
            assert!(message.contains(needle), "{message}");
        };
        refuse(|n| n.center.push(0.0), "`center` has 2 values for 1 features");
        refuse(|n| n.scale.clear(), "`scale` has 0 values");
        refuse(|n| n.scale[0] = -1.0, "`scale[0]`");
        refuse(|n| n.center[0] = f64::NAN, "`center[0]`");
        refuse(|n| n.fill[0] = f32::INFINITY, "`fill[0]`");
        refuse(|n| n.clip = Some(0.0), "`clip` must be");
        assert!(serde_json::from_str::<Normalize>(r#"{"kind": "zscore", "centre": [0]}"#).is_err());
        assert!(serde_json::from_str::<Normalize>(r#"{"kind": "rank"}"#).is_err());
        assert_eq!(serde_json::from_str::<Normalize>("{}").unwrap(), Normalize::default());
    }

    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![
            4 => -1e3f32..1e3,
            1 => Just(NAN),
            1 => any::<f32>(),
            1 => Just(f32::MAX),
            1 => Just(f32::MIN),
            1 => Just(1e-45f32),
        ]
    }

    proptest! {
        #[test]
        fn the_output_is_finite_in_range_and_survives_a_round_trip(
            training in prop::collection::vec(value(), 3..90),
            unseen in prop::collection::vec(value(), 3),
            indicators: bool,
        ) {
            let training = &training[..training.len() / 3 * 3];
            for kind in KINDS {
                let fit = Normalize::fit(kind, training, 3, indicators).unwrap();
                fit.validate(3).unwrap();
                for features in [training, &unseen] {
                    let out = apply_all(&fit, features, 3);
                    prop_assert!(out.iter().all(|v| v.is_finite()), "{kind:?} {out:?}");
                    let (low, high) = match kind {
                        Kind::None => (f32::MIN, f32::MAX),
                        Kind::MinMax => (0.0, 1.0),
                        _ => (-10.0, 10.0),
                    };
                    prop_assert!(out.iter().all(|&v| low <= v && v <= high));
                }
                let back: Normalize = serde_json::from_str(&serde_json::to_string(&fit).unwrap()).unwrap();
                prop_assert_eq!(back, fit);
            }
        }

        #[test]
        fn training_data_gets_mean_0_and_deviation_1(
            values in prop::collection::vec(prop_oneof![9 => -1e4f32..1e4, 1 => Just(NAN)], 2..200),
        ) {
            let known: Vec<f32> = values.iter().copied().filter(|v| v.is_finite()).collect();
            prop_assume!(known.iter().any(|&v| v != known[0]));
            for kind in [Kind::ZScore, Kind::Log1pZScore] {
                let mut fit = Normalize::fit(kind, &values, 1, false).unwrap();
                fit.clip = None;
                let out = apply_all(&fit, &known, 1);
                let n = out.len() as f64;
                let mean = out.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
                let variance = out.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
                prop_assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
            }
        }

        #[test]
        fn the_order_of_rows_does_not_matter(
            mut rows in prop::collection::vec([-1e3f32..1e3, -1e3f32..1e3], 2..50),
        ) {
            for kind in KINDS {
                let fit = Normalize::fit(kind, rows.as_flattened(), 2, true).unwrap();
                rows.reverse();
                let reversed = Normalize::fit(kind, rows.as_flattened(), 2, true).unwrap();
                for (a, b) in fit.center.iter().chain(&fit.scale).zip(reversed.center.iter().chain(&reversed.scale)) {
                    prop_assert!((a - b).abs() <= 1e-9 * a.abs().max(1.0), "{a} {b}");
                }
            }
        }
    }
}
