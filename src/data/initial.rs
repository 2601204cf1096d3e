//! Initial rankings: scores that documents come with, and what a model makes of them.
//!
//! A ranking is one score a document: higher is better, ties stand in file order, NaN means that the ranking
//! does not contain the document. Scores are kept as 32-bit floats: those that differ only beyond tie.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Dataset;
use super::input::Input;
use super::number::{Flaw, scan};
use crate::{Error, Result};

/// A raw feature that serves as an initial ranking; written `I`, `I:desc` or `I:asc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialFeature {
    /// Raw index of the feature.
    pub index: u32,
    /// Whether smaller is better, as for a rank.
    pub ascending: bool,
}

impl fmt::Display for InitialFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.index, if self.ascending { "asc" } else { "desc" })
    }
}

impl Serialize for InitialFeature {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for InitialFeature {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for InitialFeature {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (index, order) = text.split_once(':').unwrap_or((text, "desc"));
        let ascending = match order {
            "asc" => true,
            "desc" => false,
            _ => return Err(format!("`{order}` is no order: asc (smaller is better) or desc")),
        };
        let index = index.parse().map_err(|_| format!("`{index}` is no feature index"))?;
        Ok(InitialFeature { index, ascending })
    }
}

/// Where initial rankings come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialSources {
    /// Files of scores, one for each document of the data in the order of the original file; `NULL` where the
    /// ranking does not contain it.
    pub files: Vec<PathBuf>,
    /// Raw features; a missing value is not in the ranking.
    pub features: Vec<InitialFeature>,
}

impl InitialSources {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.features.is_empty()
    }
}

/// Gives `data` the rankings of `sources`: the files in their order, then the features in theirs. They take the
/// place of those stored with the data, which stay only where `sources` names none.
pub fn attach(data: &mut Dataset, sources: &InitialSources) -> Result<()> {
    if sources.is_empty() {
        return Ok(());
    }
    let features: Vec<Vec<f32>> =
        sources.features.iter().map(|&feature| feature_scores(data, feature)).collect::<Result<_>>()?;
    data.initial_scores.clear();
    attach_files(data, &sources.files)?;
    data.initial_scores.extend(features.into_iter().map(Into::into));
    Ok(())
}

/// Appends the rankings of score files.
pub(crate) fn attach_files(data: &mut Dataset, files: &[PathBuf]) -> Result<()> {
    for path in files {
        let scores = read_scores(path)?;
        if scores.len() != data.num_documents() {
            return Err(Error::data(format!(
                "{} has {} scores, but the data has {} documents",
                path.display(),
                scores.len(),
                data.num_documents()
            )));
        }
        let in_row_order: Vec<f32> =
            data.positions().iter().map(|&position| scores[position as usize]).collect();
        data.initial_scores.push(in_row_order.into());
    }
    Ok(())
}

/// Scores `[N]` that rank as a raw feature does.
pub fn feature_scores(data: &Dataset, feature: InitialFeature) -> Result<Vec<f32>> {
    let columns = data.columns();
    let Some(column) =
        feature.index.checked_sub(columns.first_index).filter(|&column| column < columns.count)
    else {
        return Err(Error::data(format!(
            "feature {} as initial ranking: the data has the features {} to {}",
            feature.index,
            columns.first_index,
            (columns.first_index + columns.count).saturating_sub(1)
        )));
    };
    let values = data.features().chunks_exact(data.num_features()).map(|row| row[column as usize]);
    Ok(values.map(|value| if feature.ascending { -value } else { value }).collect())
}

/// The scores in the file `path`, one a line; `NULL` is NaN.
pub fn read_scores(path: &Path) -> Result<Vec<f32>> {
    read_values(path, score)
}

/// Reads a file of one value a line with `parse`, whose error is the reason why a line is none. Blank lines may stand
/// only at the end: before a value they would shift the documents.
pub(crate) fn read_values<T>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, &'static str>,
) -> Result<Vec<T>> {
    let mut input = Input::open(path)?;
    let name = input.name().to_owned();
    let mut values = Vec::new();
    let mut line = 0;
    let mut blank = None;
    loop {
        let pieces = input.pieces(1, 1 << 20)?;
        let Some(piece) = pieces.first() else { break };
        for text in piece.split_inclusive(|&b| b == b'\n') {
            line += 1;
            let text = text.trim_ascii();
            if text.is_empty() {
                blank.get_or_insert(line);
                continue;
            }
            let error = |line, reason: &str| Error::Parse {
                file: name.clone(),
                line,
                token: String::from_utf8_lossy(text).chars().take(60).collect(),
                reason: reason.to_owned(),
            };
            if let Some(line) = blank {
                return Err(error(line, "a blank line among the scores: one score a document is needed"));
            }
            values.push(parse(text).map_err(|reason| error(line, reason))?);
        }
    }
    Ok(values)
}

fn score(text: &[u8]) -> Result<f32, &'static str> {
    if text.eq_ignore_ascii_case(b"NULL") {
        return Ok(f32::NAN);
    }
    match scan(text, 0) {
        Ok((score, end)) if end == text.len() && !score.is_nan() => Ok(score),
        Err(Flaw::BeyondF32) => Err("the score is beyond the range of a 32-bit float"),
        _ => Err("one number a line is needed, or NULL for a document that is not in the ranking"),
    }
}

/// The documents of a set in the order of a ranking: best first, ties in file order, documents that the ranking
/// does not contain last, in file order.
pub fn order(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // NaN as least; 0 and -0 tie, so that this is a total order.
    order.sort_by(|&a, &b| match (scores[a].is_nan(), scores[b].is_nan()) {
        (false, false) => scores[b].partial_cmp(&scores[a]).expect("neither is NaN"),
        (a_missing, b_missing) => a_missing.cmp(&b_missing),
    });
    order
}

/// Rank of each document in a ranking, from 0 = best, counted only among the documents for which `counted` is
/// true; -1 for the others and for documents that the ranking does not contain.
///
/// ```
/// let scores = [0.5, f32::NAN, 2.0, 0.5, 7.0];
/// let counted = [true, true, true, true, false];
/// assert_eq!(setrank::data::initial::ordinals(&scores, &counted), [1, -1, 0, 2, -1]);
/// ```
///
/// # Panics
/// If the two differ in length.
pub fn ordinals(scores: &[f32], counted: &[bool]) -> Vec<i32> {
    assert_eq!(scores.len(), counted.len(), "one flag a score");
    let mut ordinals = vec![-1; scores.len()];
    let ranked =
        order(scores).into_iter().filter(|&document| counted[document] && !scores[document].is_nan());
    for (rank, document) in ranked.enumerate() {
        ordinals[document] = rank as i32;
    }
    ordinals
}

/// The documents of a set that a model reranks, and those that it does not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopK {
    /// The first `k` documents in the order of the ranking.
    pub kept: Vec<usize>,
    /// The documents after them, in the same order.
    pub dropped: Vec<usize>,
}

/// Cuts a set to the first `k` documents of a ranking, in the order that [`order`] gives.
pub fn top_k(scores: &[f32], k: usize) -> TopK {
    let mut kept = order(scores);
    let dropped = kept.split_off(k.min(kept.len()));
    TopK { kept, dropped }
}

/// Which rows `[N]` of `data` stand among the first `k` of their set in the first ranking.
///
/// # Panics
/// If the data has no initial ranking.
pub fn kept(data: &Dataset, k: usize) -> Vec<bool> {
    let mut kept = vec![false; data.num_documents()];
    for query in data.queries() {
        for document in top_k(query.initial_scores(0), k).kept {
            kept[query.rows().start + document] = true;
        }
    }
    kept
}

/// Gives the rows that `kept` `[N]` leaves out scores below those of their set that it keeps, in the order of the first
/// initial ranking. `scores` is `[N]` by row.
///
/// # Panics
/// If the data has no initial ranking.
pub fn rank_dropped_below(data: &Dataset, kept: &[bool], scores: &mut [f32]) {
    for query in data.queries() {
        let first = query.rows().start;
        let of_kept = query.rows().filter(|&row| kept[row]).map(|row| scores[row]);
        let mut last = of_kept.fold(f32::INFINITY, f32::min);
        for document in order(query.initial_scores(0)) {
            if !kept[first + document] {
                // Where the scores are so large that 1 makes no difference, the next number below does.
                last = (last - 1.0).min(last.next_down());
                scores[first + document] = last;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scores() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(prop_oneof![Just(f32::NAN), (-3i8..4).prop_map(f32::from), Just(-0.0)], 0..30)
    }

    proptest! {
        #[test]
        fn ordinals_count_better_documents(scores in scores(), mask in any::<u32>()) {
            let counted: Vec<bool> = (0..scores.len()).map(|i| mask >> i & 1 == 1).collect();
            for (i, ordinal) in ordinals(&scores, &counted).into_iter().enumerate() {
                let before = |j: usize| scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
                let expected = (0..scores.len()).filter(|&j| counted[j] && before(j)).count() as i32;
                let ranked = counted[i] && !scores[i].is_nan();
                prop_assert_eq!(ordinal, if ranked { expected } else { -1 });
            }
        }

        #[test]
        fn top_k_keeps_the_best(scores in scores(), k in 0usize..40) {
            let TopK { kept, dropped } = top_k(&scores, k);
            prop_assert_eq!(kept.len(), k.min(scores.len()));
            let order = [kept, dropped].concat();
            for pair in order.windows(2) {
                let (a, b) = (scores[pair[0]], scores[pair[1]]);
                let tie = a == b || (a.is_nan() && b.is_nan());
                prop_assert!(a > b || (!a.is_nan() && b.is_nan()) || (tie && pair[0] < pair[1]));
            }
            let mut sorted = order;
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..scores.len()));
        }
    }

    #[test]
    fn initial_features_parse() {
        let parse = |text: &str| text.parse::<InitialFeature>();
        assert_eq!(parse("25"), Ok(InitialFeature { index: 25, ascending: false }));
        assert_eq!(parse("0:desc"), Ok(InitialFeature { index: 0, ascending: false }));
        assert_eq!(parse("7:asc"), Ok(InitialFeature { index: 7, ascending: true }));
        for wrong in ["", ":asc", "x", "-1", "3:up", "3:"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
