//! What plain evaluations of the same problem differ in, for the rule (`rule.rs`).

use super::approximate::Approximate;
use super::sums::Sums;
use crate::rng::philox4x32;

/// A choice of what a GPU is free in: the order of sums, how those of matrix products are rounded, the errors of
/// approximate functions, and the reference of a softmax.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    number: usize,
    /// How matrix products add.
    pub sums: Sums,
    /// Errors of approximate functions.
    pub approximate: Approximate,
}

/// Keys that kernels weigh at a time, and how far scores may be above what is subtracted from them, in units of log2
/// (kernels/attention_softmax.cuh).
const KEYS_AT_ONCE: usize = 16;
const MOST_LAG: f32 = 8.0;

/// How many plain evaluations there are of many results, and of few.
const OF_MANY: usize = 3;
const OF_FEW: usize = 9;

/// Fewer results are few: how far a draw is off is left to luck.
const MANY: usize = 1000;

impl Draw {
    /// Number 0 adds in order and rounds to nearest; the others do what tensor cores do.
    fn new(number: usize) -> Self {
        let sums = if number == 0 { Sums::Nearest } else { Sums::Truncated };
        Draw { number, sums, approximate: Approximate(number as u32) }
    }

    /// What a softmax subtracts from the scores of row `row`, in units of log2; weights are rounded by what that is. Draw 0
    /// goes over keys as kernels do, some at a time, and lets it lag behind the largest score so far; the others subtract
    /// less than the largest, each row by a part of 1 of its own.
    pub fn reference(self, row: usize, scores: &[f32]) -> f32 {
        let largest = |scores: &[f32]| scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if self.number == 0 {
            let steps = scores.chunks(KEYS_AT_ONCE).map(largest);
            return steps.fold(
                f32::NEG_INFINITY,
                |so_far, of_step| {
                    if of_step - so_far > MOST_LAG { of_step } else { so_far }
                },
            );
        }
        let [random, ..] = philox4x32([row as u32, 0, 0, 0], [self.number as u32, 0]);
        // 24 bits: below 1 as a f32, too.
        largest(scores) - (random >> 8) as f32 / 16_777_216.0
    }

    /// The numbers below a length in the order in which sums go: draw n takes every n-th, and odd draws go backwards.
    pub fn order(self, len: usize) -> Vec<usize> {
        let step = self.number.max(1);
        let numbers = (0..step).flat_map(|first| (first..len).step_by(step));
        if self.number.is_multiple_of(2) {
            return numbers.collect();
        }
        let mut numbers: Vec<usize> = numbers.collect();
        numbers.reverse();
        numbers
    }
}

/// Plain evaluations of a problem with so many results of each kind.
pub(crate) fn plain_evaluations<A>(results: usize, plain: impl Fn(Draw) -> A) -> Vec<A> {
    let count = if results < MANY { OF_FEW } else { OF_MANY };
    (0..count).map(|number| plain(Draw::new(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_draw_has_an_order_of_its_own() {
        let orders = plain_evaluations(1, |draw| draw.order(40));
        assert_eq!(plain_evaluations(MANY, |draw| draw.order(40)), orders[..3]);
        for (number, order) in orders.iter().enumerate() {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..40).collect::<Vec<_>>());
            assert!(!orders[..number].contains(order));
        }
        let of = |number| Draw::new(number).order(5);
        assert_eq!([of(0), of(1), of(2)], [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [0, 2, 4, 1, 3]]);
        assert_eq!(of(3), [2, 4, 1, 3, 0]);
        assert_eq!(Draw::new(8).order(1), [0]);
    }

    #[test]
    fn what_is_subtracted_lags_behind_the_largest() {
        // Behind 16 keys come others, of which the last are too far above.
        let scores: Vec<f32> =
            [[1.0, 3.0], [2.5, 10.9], [11.5, 12.0], [19.0, 20.5]].map(|pair| pair.repeat(8)).concat();
        let first = |keys: usize| Draw::new(0).reference(5, &scores[..keys]);
        assert_eq!([16, 32, 48, 64].map(first), [3.0, 3.0, 12.0, 20.5]);
        let lags: Vec<f32> = (1..9)
            .flat_map(|number| (0..100).map(move |row| -Draw::new(number).reference(row, &[0.0, -1.0])))
            .collect();
        let tenths = |tenth: usize| lags.iter().filter(|&&lag| (lag * 10.0) as usize == tenth).count();
        assert!((0..10).all(|tenth| (50..120).contains(&tenths(tenth))));
        assert!(lags.iter().all(|lag| (0.0..1.0).contains(lag)));
    }
}
