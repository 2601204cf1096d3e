//! Dropout of attention weights by a counter-based generator: a pure function of where the weight stands, so
//! forward, backward and a device kernel agree without storing a mask.

use super::Scalar;
use crate::rng::{Stream, philox4x32};

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

    /// Multiplies weights of one query row, of the keys from `first` on (a multiple of 4), by 0 or 1/(1 − rate).
    /// `set`, `head` and `query` number the set in its batch, the head, and the row in its set.
    pub fn apply<T: Scalar>(&self, weights: &mut [T], first: usize, [set, head, query]: [usize; 3]) {
        let keep = T::from_f64(1.0 / (1.0 - self.rate));
        for (group, weights) in weights.chunks_mut(4).enumerate() {
            let counter =
                [(first / 4 + group) as u32, query as u32, self.attention << 16 | head as u32, set as u32];
            let random = philox4x32(counter, self.key);
            for (weight, random) in weights.iter_mut().zip(random) {
                *weight = if random < self.threshold { T::ZERO } else { *weight * keep };
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
    fn masks_differ_by_place_and_step_and_repeat() {
        let mask = |step, attention, set, head, query| {
            let mut weights = vec![1.0f32; 64];
            Dropout::new(0.5, 9, step, attention).unwrap().apply(&mut weights, 0, [set, head, query]);
            weights
        };
        let first = mask(0, 0, 0, 0, 0);
        assert_eq!(first, mask(0, 0, 0, 0, 0));
        for other in [
            mask(1, 0, 0, 0, 0),
            mask(0, 1, 0, 0, 0),
            mask(0, 0, 1, 0, 0),
            mask(0, 0, 0, 1, 0),
            mask(0, 0, 0, 0, 1),
        ] {
            assert_ne!(first, other);
        }
    }
}
