//! What plain evaluations of the same problem differ in, for the rule of [`check`](super::check).

use super::approximate::Approximate;
use super::sums::Sums;

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

    /// How far below the largest score what a softmax subtracts from its scores is, in units of log2. Where it is not the
    /// largest itself, no weight is exactly 1.
    pub fn below_largest(self) -> f32 {
        0.3 * self.number as f32
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
}
