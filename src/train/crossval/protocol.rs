//! Parts in rotating roles.

use crate::{Error, Result};

/// The roles of the parts, by number from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Number of the fold, from 1.
    pub number: usize,
    /// Parts to train on.
    pub train: Vec<usize>,
    /// Part that selects the model.
    pub valid: usize,
    /// Part that is held out.
    pub test: usize,
}

/// The folds of `parts` parts, at least 3, as many as parts: fold k trains on the parts k to k + parts − 3, validates on
/// the next and tests on the last, counted round. With five parts fold 1 trains on 1, 2, 3, validates on 4, tests on 5.
///
/// ```
/// let folds = setrank::train::crossval::protocol::folds(5)?;
/// assert_eq!((&folds[3].train[..], folds[3].valid, folds[3].test), (&[3, 4, 0][..], 1, 2));
/// # Ok::<(), setrank::Error>(())
/// ```
pub fn folds(parts: usize) -> Result<Vec<Fold>> {
    if parts < 3 {
        return Err(Error::config(format!(
            "{parts} part(s): cross-validation takes at least 3, to train on, to select by and to test on"
        )));
    }
    let part = |number: usize| number % parts;
    let fold = |k: usize| Fold {
        number: k + 1,
        train: (k..k + parts - 2).map(part).collect(),
        valid: part(k + parts - 2),
        test: part(k + parts - 1),
    };
    Ok((0..parts).map(fold).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_validated_and_tested_on_once_and_never_trained_on_then() {
        for parts in 3..9 {
            let folds = folds(parts).unwrap();
            for fold in &folds {
                let mut all = fold.train.clone();
                all.extend([fold.valid, fold.test]);
                all.sort_unstable();
                assert!(all.into_iter().eq(0..parts));
            }
            for role in [|fold: &Fold| fold.valid, |fold: &Fold| fold.test] {
                let mut of_folds: Vec<usize> = folds.iter().map(role).collect();
                of_folds.sort_unstable();
                assert!(of_folds.into_iter().eq(0..parts));
            }
        }
        assert!(folds(2).is_err());
    }
}
