//! How many documents the queries of a data set have: a log-normal number, cut off at the largest.

use crate::rng::Rng;

/// Step of the grid over which densities are summed, in standard deviations, and its end on either side.
const GRID_STEP: f64 = 0.01;
const GRID_END: i32 = 500;

/// A distribution of set sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeDistribution {
    /// Mean of the logarithm of the number of documents.
    log_mean: f64,
    /// Its standard deviation.
    spread: f64,
    /// The largest number of documents.
    max: usize,
}

impl SizeDistribution {
    /// Sizes with `mean` documents after those above `max` have been cut down to it; `spread` is the standard
    /// deviation of the logarithm before. `mean` lies between 1 and `max`.
    pub fn with_mean(mean: f64, spread: f64, max: usize) -> Self {
        let (mut low, mut high) = (0.0, 2.0 * (max as f64).ln());
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            let of_middle = SizeDistribution { log_mean: middle, spread, max }.mean();
            if of_middle < mean { low = middle } else { high = middle }
        }
        SizeDistribution { log_mean: low, spread, max }
    }

    /// The same queries, their documents cut off at another number.
    pub fn cut_at(self, max: usize) -> Self {
        SizeDistribution { max, ..self }
    }

    /// A random size.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        self.whole(rng.normal())
    }

    /// The sizes at the middles of `count` equal shares of the distribution, ascending: a sample without chance.
    pub fn quantiles(&self, count: usize) -> Vec<usize> {
        let nodes: Vec<(f64, f64)> = grid().collect();
        let total: f64 = nodes.iter().map(|&(_, density)| density).sum();
        let (mut node, mut below) = (0, 0.0);
        (0..count)
            .map(|index| {
                let share = (index as f64 + 0.5) / count as f64 * total;
                while below + nodes[node].1 < share && node + 1 < nodes.len() {
                    below += nodes[node].1;
                    node += 1;
                }
                let within = ((share - below) / nodes[node].1 - 0.5) * GRID_STEP;
                self.whole(nodes[node].0 + within)
            })
            .collect()
    }

    fn mean(&self) -> f64 {
        let (sum, weight) = grid().fold((0.0, 0.0), |(sum, weight), (z, density)| {
            (sum + density * self.size(z).clamp(1.0, self.max as f64), weight + density)
        });
        sum / weight
    }

    /// The size `z` standard deviations above the middle, neither whole nor cut.
    fn size(&self, z: f64) -> f64 {
        (self.log_mean + self.spread * z).exp()
    }

    fn whole(&self, z: f64) -> usize {
        (self.size(z).round() as usize).clamp(1, self.max)
    }
}

/// Nodes of the standard normal distribution and their densities, unnormalised.
fn grid() -> impl Iterator<Item = (f64, f64)> {
    (-GRID_END..=GRID_END).map(|i| f64::from(i) * GRID_STEP).map(|z| (z, (-0.5 * z * z).exp()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn quantiles_are_a_sample_of_the_distribution() {
        let sizes = SizeDistribution::with_mean(119.6, 0.55, 400);
        let mut drawn: Vec<usize> = {
            let mut rng = Rng::new(3, Stream::Synth, 0);
            (0..40_000).map(|_| sizes.draw(&mut rng)).collect()
        };
        drawn.sort_unstable();
        for count in [1, 2, 7, 32, 100] {
            let quantiles = sizes.quantiles(count);
            assert_eq!(quantiles.len(), count);
            for (index, &size) in quantiles.iter().enumerate() {
                let expected =
                    drawn[((index as f64 + 0.5) / count as f64 * drawn.len() as f64) as usize] as f64;
                assert!((size as f64 / expected - 1.0).abs() < 0.06, "{count} {index}: {size}, {expected}");
            }
        }
        let many = sizes.quantiles(2000);
        let mean = many.iter().sum::<usize>() as f64 / 2000.0;
        assert!((mean / 119.6 - 1.0).abs() < 0.01 && many[1999] <= 400 && many[0] >= 1, "{mean}");
    }
}
