//! Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011).
//!
//! A draw is a pure function of (seed, stream, index), so it does not depend on the number of threads, on
//! the order of evaluation or on where a resumed run starts, and a device kernel can repeat it.

/// What a stream of numbers is for. Each purpose has a stream of its own, so that adding draws to one never
/// shifts another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// Initial parameters.
    Init = 1,
    /// Order of the queries in an epoch.
    QueryOrder = 2,
    /// Order of the documents inside a set, in training.
    DocumentOrder = 3,
    /// Random start of the ordinal embedding (`start = sampled`).
    OrdinalStart = 4,
    /// Dropout of attention weights.
    Dropout = 5,
    /// Synthetic data.
    Synth = 6,
    /// Splitting a data set by query.
    Split = 7,
    /// Randomisation test between two runs.
    Randomization = 8,
    /// A random order of documents, as a baseline.
    RandomScores = 9,
    /// Made-up batches and matrices of a benchmark.
    Benchmark = 10,
    /// Noise and dropped features in training.
    Augment = 11,
    /// Permuted features, to measure their importance.
    Importance = 12,
    /// Order of the batches in an epoch, where they are of sets of like sizes.
    BatchOrder = 13,
}

/// Four 32-bit outputs for a 128-bit counter and a 64-bit key.
///
/// ```
/// // First known-answer vector of the Random123 distribution.
/// assert_eq!(setrank::rng::philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
#[inline]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [a, b, c, d] = counter;
    let [[a], [b], [c], [d]] = philox4x32_lanes([[a], [b], [c], [d]], key);
    [a, b, c, d]
}

/// [`philox4x32`] of `L` counters side by side, word by word, so that it becomes vector code.
#[inline(always)]
pub fn philox4x32_lanes<const L: usize>(counters: [[u32; L]; 4], key: [u32; 2]) -> [[u32; L]; 4] {
    const M: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut c = counters;
    let mut k = key;
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(W[0]), k[1].wrapping_add(W[1])];
        }
        let mut next = [[0; L]; 4];
        for lane in 0..L {
            let p0 = M[0] * u64::from(c[0][lane]);
            let p1 = M[1] * u64::from(c[2][lane]);
            next[0][lane] = (p1 >> 32) as u32 ^ c[1][lane] ^ k[0];
            next[1][lane] = p1 as u32;
            next[2][lane] = (p0 >> 32) as u32 ^ c[3][lane] ^ k[1];
            next[3][lane] = p0 as u32;
        }
        c = next;
    }
    c
}

/// A sequence of draws from one stream.
#[derive(Clone, Debug)]
pub struct Rng {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Rng {
    /// The sequence number `index` of `stream` under `seed`: `index` is an epoch, a step, a parameter, a
    /// query – whatever numbers the independent sequences of that purpose.
    pub fn new(seed: u64, stream: Stream, index: u64) -> Self {
        Rng {
            key: [seed as u32, (seed >> 32) as u32],
            counter: [0, stream as u32, index as u32, (index >> 32) as u32],
            block: [0; 4],
            used: 4,
        }
    }

    /// A uniform 32-bit integer.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox4x32(self.counter, self.key);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// A uniform number in [0, 1) with 53 random bits.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        let high = u64::from(self.next_u32() >> 5);
        let low = u64::from(self.next_u32() >> 6);
        (high * (1 << 26) + low) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number (Box–Muller).
    #[inline]
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A uniform integer in 0..`bound` without bias (Lemire's method). `bound` must be positive.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            let low = product as u32;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 32) as u32;
            }
        }
    }

    /// Fisher–Yates shuffle.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
        );
        assert_eq!(
            philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn draws_have_the_right_moments() {
        let mut rng = Rng::new(1, Stream::Synth, 0);
        let n = 100_000;
        let uniform: f64 = (0..n).map(|_| rng.uniform()).sum::<f64>() / f64::from(n);
        let normals: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let mean = normals.iter().sum::<f64>() / f64::from(n);
        let variance = normals.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!((uniform - 0.5).abs() < 0.005 && mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02);
    }

    #[test]
    fn shuffle_is_a_permutation_and_streams_differ() {
        let order = |stream, index| {
            let mut items: Vec<u32> = (0..100).collect();
            Rng::new(7, stream, index).shuffle(&mut items);
            items
        };
        let mut sorted = order(Stream::QueryOrder, 0);
        assert_ne!(sorted, order(Stream::DocumentOrder, 0));
        assert_ne!(sorted, order(Stream::QueryOrder, 1));
        assert_eq!(sorted, order(Stream::QueryOrder, 0));
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }
}
