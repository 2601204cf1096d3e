//! Dropout of attention weights by a counter-based generator: a pure function of where the weight stands, so
//! forward, backward and a device kernel agree without storing a mask.

use super::Scalar;
use super::simd::vectorized;
use crate::rng::{Stream, philox4x32, philox4x32_lanes};

/// Dropout of one attention in one step.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    key: [u32; 2],
    attention: u32,
    /// A weight is dropped where its random number is below this.
    threshold: u32,
    rate: f64,
}

impl Dropout {
    /// Dropout at `rate` in (0, 1) for step number `step` under `seed`; `attention` numbers the attentions of the
    /// model. `None` at rate 0.
    pub fn new(rate: f64, seed: u64, step: u64, attention: usize) -> Option<Self> {
        let counter = [0, Stream::Dropout as u32, step as u32, (step >> 32) as u32];
        let key = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        (rate > 0.0).then_some(Dropout {
            key: [key[0], key[1]],
            attention: attention as u32,
            threshold: (rate * 4_294_967_296.0) as u32,
            rate,
        })
    }

    /// What kernels repeat it with.
    #[cfg(feature = "cuda")]
    pub(crate) fn numbers(&self) -> crate::device::abi::AttentionDropout {
        crate::device::abi::AttentionDropout {
            key_low: self.key[0],
            key_high: self.key[1],
            attention: self.attention,
            threshold: self.threshold,
            keep: (1.0 / (1.0 - self.rate)) as f32,
        }
    }

    /// Multiplies weights of one query row, of the keys from `first` on (a multiple of 4), by 0 or 1/(1 − rate).
    /// `set`, `head` and `query` number the set in its batch, the head, and the row in its set.
    pub fn apply<T: Scalar>(&self, weights: &mut [T], first: usize, [set, head, query]: [usize; 3]) {
        let counter = [(first / 4) as u32, query as u32, self.attention << 16 | head as u32, set as u32];
        mask(weights, counter, self.key, self.threshold, T::from_f64(1.0 / (1.0 - self.rate)));
    }
}

/// Groups of four weights that draw at the same time.
const LANES: usize = 8;

vectorized! {
    /// Four weights draw from one counter, the next four from the next.
    fn mask<T: Scalar>(weights: &mut [T], counter: [u32; 4], key: [u32; 2], threshold: u32, keep: T) {
        for (turn, weights) in weights.chunks_mut(4 * LANES).enumerate() {
            let mut counters = counter.map(|word| [word; LANES]);
            for (lane, word) in counters[0].iter_mut().enumerate() {
                *word = word.wrapping_add((turn * LANES + lane) as u32);
            }
            let random = philox4x32_lanes(counters, key);
            for (at, weight) in weights.iter_mut().enumerate() {
                *weight = if random[at % 4][at / 4] < threshold { T::ZERO } else { *weight * keep };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_right_share_and_keeps_the_mean() {
        let dropout = Dropout::new(0.3, 5, 17, 2).unwrap();
        let mut weights = vec![1.0f64; 100_000];
        dropout.apply(&mut weights, 0, [1, 2, 3]);
        let dropped = weights.iter().filter(|&&w| w == 0.0).count() as f64 / weights.len() as f64;
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        assert!((dropped - 0.3).abs() < 0.01 && (mean - 1.0).abs() < 0.02);
    }

    #[test]
    fn blocks_of_keys_draw_what_the_whole_row_draws() {
        let dropout = Dropout::new(0.4, 3, 8, 1).unwrap();
        let mut whole = vec![1.0f32; 150];
        dropout.apply(&mut whole, 0, [1, 2, 3]);
        for (first, end) in [(0, 4), (4, 40), (40, 150)] {
            let mut block = vec![1.0f32; end - first];
            dropout.apply(&mut block, first, [1, 2, 3]);
            assert_eq!(block, whole[first..end]);
        }
        // The weight of key 9 draws word 1 of counter 2.
        let counter = [2, 3, 1 << 16 | 2, 1];
        let dropped = philox4x32(counter, dropout.key)[1] < dropout.threshold;
        assert_eq!(whole[9] == 0.0, dropped);
    }

    #[test]
    fn masks_differ_by_place_and_step_and_repeat() {
        let masked = |step, attention, set, head, query| {
            let mut weights = vec![1.0f32; 64];
            Dropout::new(0.5, 9, step, attention).unwrap().apply(&mut weights, 0, [set, head, query]);
            weights
        };
        let first = masked(0, 0, 0, 0, 0);
        assert_eq!(first, masked(0, 0, 0, 0, 0));
        for other in [
            masked(1, 0, 0, 0, 0),
            masked(0, 1, 0, 0, 0),
            masked(0, 0, 1, 0, 0),
            masked(0, 0, 0, 1, 0),
            masked(0, 0, 0, 0, 1),
        ] {
            assert_ne!(first, other);
        }
    }
}
