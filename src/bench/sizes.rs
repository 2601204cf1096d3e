//! How many documents the sets of a benchmark have.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::data::letor;
use crate::data::synth::Like;
use crate::data::synth::sizes::SizeDistribution;
use crate::rng::{Rng, Stream};
use crate::{Error, Result};

/// Largest set, and largest number of sets: beyond any use, and far from overflowing anything.
const MAX: usize = 1 << 20;

/// Sets of a batch where nothing says how many.
pub const DEFAULT_SETS: usize = 32;

/// Where set sizes come from.
#[derive(Clone, Debug, PartialEq)]
pub enum SizeSource {
    /// All sets have this many documents.
    Fixed(usize),
    /// Istella's training sets: 360 documents on average, at most 500.
    Istella,
    /// MSLR-WEB30K: 119.6 documents on average, at most 1251.
    Mslr,
    /// Yahoo's set 1: 23.7 documents on average, at most 139.
    Yahoo,
    /// A file of sizes, positive whole numbers between blanks or line ends.
    File(PathBuf),
}

impl FromStr for SizeSource {
    type Err = String;

    /// `istella`, `mslr`, `yahoo` or a number.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "istella" => Ok(SizeSource::Istella),
            "mslr" => Ok(SizeSource::Mslr),
            "yahoo" => Ok(SizeSource::Yahoo),
            _ => match text.parse() {
                Ok(size @ 1..=MAX) => Ok(SizeSource::Fixed(size)),
                Ok(_) => Err(format!("a set has 1 to {MAX} documents")),
                Err(_) => Err("it is neither istella, mslr, yahoo nor a whole number".to_owned()),
            },
        }
    }
}

impl SizeSource {
    /// The sizes of `sets` sets; `None` = all of a file, else [`DEFAULT_SETS`].
    ///
    /// The sizes of a public set are the quantiles of their distribution, so that every seed has the same ones; the
    /// seed decides their order. A file's first sizes are taken, in its order.
    pub fn sizes(&self, sets: Option<usize>, seed: u64) -> Result<Vec<usize>> {
        if sets.is_some_and(|sets| sets == 0 || sets > MAX) {
            return Err(Error::config(format!("a batch has 1 to {MAX} sets")));
        }
        let like = |sizes: SizeDistribution| {
            let mut sizes = sizes.quantiles(sets.unwrap_or(DEFAULT_SETS));
            Rng::new(seed, Stream::Benchmark, 0).shuffle(&mut sizes);
            Ok(sizes)
        };
        match self {
            &SizeSource::Fixed(size) => Ok(vec![size; sets.unwrap_or(DEFAULT_SETS)]),
            SizeSource::Istella => like(SizeDistribution::with_mean(360.0, 0.4, 500)),
            SizeSource::Mslr => like(SizeDistribution::with_mean(119.6, 0.55, 1251)),
            SizeSource::Yahoo => like(Like::Yahoo.sizes()),
            SizeSource::File(path) => {
                let all = of_file(path)?;
                let name = path.display();
                let count = sets.unwrap_or(all.len());
                if count > all.len() || count == 0 {
                    return Err(Error::data(format!(
                        "{name} has the sizes of {} sets, but {} are asked for",
                        all.len(),
                        count.max(1)
                    )));
                }
                if count > MAX {
                    return Err(Error::data(format!(
                        "{name} has the sizes of {count} sets, and a batch has at most {MAX}: --sets says how many of them"
                    )));
                }
                all[..count].iter().map(|&size| checked(path, size)).collect()
            }
        }
    }
}

/// All sizes of a file.
fn of_file(path: &Path) -> Result<Vec<u64>> {
    let all = letor::sizes::read(path)?;
    if all.is_empty() {
        return Err(Error::data(format!("{} has no sizes: one a line is needed", path.display())));
    }
    Ok(all)
}

/// A size of a file, if a set can be of it.
fn checked(path: &Path, size: u64) -> Result<usize> {
    match usize::try_from(size) {
        Ok(size @ 1..=MAX) => Ok(size),
        _ => Err(Error::data(format!(
            "{}: a set of {size} documents; at most {MAX} are possible",
            path.display()
        ))),
    }
}

impl SizeSource {
    /// The sizes of as many sets as have at most `documents` documents together: of a file, its first ones.
    ///
    /// # Errors
    /// As [`sizes`](Self::sizes), and where not even one set fits.
    pub fn sizes_of(&self, documents: usize, seed: u64) -> Result<Vec<usize>> {
        let sizes = match self {
            SizeSource::File(path) => {
                let mut taken = Vec::new();
                let mut sum = 0;
                for size in of_file(path)?.into_iter().take(MAX) {
                    let size = checked(path, size)?;
                    sum += size;
                    if sum > documents {
                        break;
                    }
                    taken.push(size);
                }
                taken
            }
            _ => {
                // From about as many sets as their mean says.
                let of = |sets: usize| self.sizes(Some(sets), seed);
                let fit = |sizes: &[usize]| sizes.iter().sum::<usize>() <= documents;
                let many = of(DEFAULT_SETS)?;
                let about = documents / (many.iter().sum::<usize>() / many.len()).max(1);
                let mut sizes = of(about.clamp(1, MAX))?;
                while !fit(&sizes) && sizes.len() > 1 {
                    sizes = of(sizes.len() - 1)?;
                }
                while sizes.len() < MAX {
                    let more = of(sizes.len() + 1)?;
                    if !fit(&more) {
                        break;
                    }
                    sizes = more;
                }
                if fit(&sizes) { sizes } else { Vec::new() }
            }
        };
        if sizes.is_empty() {
            return Err(Error::config(format!(
                "--batch-docs {documents}: the first set has more documents than that"
            )));
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(sizes: &[usize]) -> f64 {
        sizes.iter().sum::<usize>() as f64 / sizes.len() as f64
    }

    #[test]
    fn public_sets_have_their_means_whatever_the_seed() {
        for (name, expected, largest) in
            [("istella", 360.0, 500), ("mslr", 119.6, 1251), ("yahoo", 23.7, 139)]
        {
            let source: SizeSource = name.parse().unwrap();
            let sizes = source.sizes(Some(64), 1).unwrap();
            assert!((mean(&sizes) / expected - 1.0).abs() < 0.03, "{name}: {}", mean(&sizes));
            assert!(sizes.iter().all(|size| (1..=largest).contains(size)));
            let mut other = source.sizes(Some(64), 2).unwrap();
            assert_ne!(sizes, other);
            other.sort_unstable();
            let mut sorted = sizes;
            sorted.sort_unstable();
            assert_eq!(sorted, other);
        }
    }

    #[test]
    fn sets_are_as_many_as_fit() {
        for name in ["istella", "mslr", "yahoo", "40"] {
            let source: SizeSource = name.parse().unwrap();
            for documents in [500, 1280, 33_792] {
                let sizes = source.sizes_of(documents, 1).unwrap();
                let sum: usize = sizes.iter().sum();
                let one_more: usize = source.sizes(Some(sizes.len() + 1), 1).unwrap().iter().sum();
                assert!(sum <= documents && documents < one_more, "{name}: {sum} {one_more}");
            }
        }
        assert_eq!(SizeSource::Fixed(40).sizes_of(80, 1).unwrap(), [40, 40]);
        let few = SizeSource::Fixed(40).sizes_of(39, 1).unwrap_err().to_string();
        assert!(few.contains("--batch-docs 39"), "{few}");
    }

    #[test]
    fn a_number_is_the_size_of_all() {
        assert_eq!("40".parse::<SizeSource>().unwrap().sizes(None, 0).unwrap(), [40; 32]);
        for wrong in ["0", "-1", "1048577", "99999999999999999999", "forty", "", "4.5"] {
            assert!(wrong.parse::<SizeSource>().is_err(), "{wrong}");
        }
        assert!(SizeSource::Fixed(1).sizes(Some(0), 0).is_err());
    }
}
