//! Adam with global-norm clipping and decoupled weight decay, and the schedule of the learning rate.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Values of one piece of work, and of one partial sum of the norm.
const TILE: usize = 1 << 14;

/// Adam's constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamConfig {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay (AdamW): each step also subtracts lr·weight_decay·w from every weight.
    pub weight_decay: f32,
}

/// First and second moments, and the number of steps taken.
#[derive(Clone, Debug)]
pub struct Adam {
    /// First moment, as the parameters are laid out.
    pub first: Vec<f32>,
    /// Second moment, as the parameters are laid out.
    pub second: Vec<f32>,
    /// Steps taken.
    pub step: u64,
}

impl Adam {
    /// Zero moments for `len` parameters.
    pub fn new(len: usize) -> Self {
        Adam { first: vec![0.0; len], second: vec![0.0; len], step: 0 }
    }

    /// One step along −`gradients`·`gradient_scale` at learning rate `lr` (Kingma and Ba, algorithm 1).
    pub fn step(
        &mut self,
        parameters: &mut [f32],
        gradients: &[f32],
        gradient_scale: f32,
        lr: f32,
        config: AdamConfig,
    ) {
        self.step += 1;
        let power = self.step.min(i32::MAX as u64) as i32;
        let correction1 = (1.0 - f64::from(config.beta1).powi(power)) as f32;
        let correction2 = (1.0 - f64::from(config.beta2).powi(power)) as f32;
        parameters
            .par_chunks_mut(TILE)
            .zip(gradients.par_chunks(TILE))
            .zip(self.first.par_chunks_mut(TILE))
            .zip(self.second.par_chunks_mut(TILE))
            .for_each(|(((parameters, gradients), first), second)| {
                for (((w, &g), m), v) in parameters.iter_mut().zip(gradients).zip(first).zip(second) {
                    let g = g * gradient_scale;
                    *m = config.beta1 * *m + (1.0 - config.beta1) * g;
                    *v = config.beta2 * *v + (1.0 - config.beta2) * g * g;
                    let update = (*m / correction1) / ((*v / correction2).sqrt() + config.eps);
                    *w -= lr * (update + config.weight_decay * *w);
                }
            });
    }
}

/// √Σ g², in f64, partial sums in order; `partials` is a buffer to be reused.
pub fn global_norm(gradients: &[f32], partials: &mut Vec<f64>) -> f64 {
    let squares = |tile: &[f32]| tile.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
    gradients.par_chunks(TILE).map(squares).collect_into_vec(partials);
    partials.iter().sum::<f64>().sqrt()
}

/// How the learning rate moves over the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// It stays, after a linear warm-up.
    #[default]
    Constant,
    /// It falls to 0 along half a cosine, after a linear warm-up.
    Cosine,
}

impl Schedule {
    /// The share of the base learning rate at step number `step` (from 0) of `total`, the first `warmup` of which
    /// rise linearly.
    pub fn factor(self, step: u64, warmup: u64, total: u64) -> f64 {
        if step < warmup {
            return (step + 1) as f64 / warmup as f64;
        }
        match self {
            Schedule::Constant => 1.0,
            Schedule::Cosine => {
                let progress = (step - warmup) as f64 / total.saturating_sub(warmup).max(1) as f64;
                0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: AdamConfig = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

    #[test]
    fn adam_follows_the_definition() {
        // Gradients 1, −2, 0.5 at lr 0.1, computed by hand in f64 from algorithm 1.
        let (mut w, mut m, mut v) = (0.3f64, 0.0f64, 0.0f64);
        let mut adam = Adam::new(1);
        let mut parameters = [0.3f32];
        for (t, g) in [1.0f64, -2.0, 0.5].into_iter().enumerate() {
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            let t = t as i32 + 1;
            w -= 0.1 * (m / (1.0 - 0.9f64.powi(t))) / ((v / (1.0 - 0.999f64.powi(t))).sqrt() + 1e-8);
            adam.step(&mut parameters, &[g as f32], 1.0, 0.1, CONFIG);
            assert!((f64::from(parameters[0]) - w).abs() < 1e-6);
        }
    }

    #[test]
    fn decay_is_decoupled_from_the_gradient() {
        let mut parameters = [2.0f32];
        Adam::new(1).step(&mut parameters, &[0.0], 1.0, 0.1, AdamConfig { weight_decay: 0.5, ..CONFIG });
        assert!((parameters[0] - 1.9).abs() < 1e-6);
    }

    #[test]
    fn schedules_rise_stay_and_fall() {
        let factors = |schedule: Schedule| [0, 4, 9, 10, 55, 100].map(|step| schedule.factor(step, 10, 100));
        assert_eq!(factors(Schedule::Constant), [0.1, 0.5, 1.0, 1.0, 1.0, 1.0]);
        let cosine = factors(Schedule::Cosine);
        assert_eq!(cosine[..4], [0.1, 0.5, 1.0, 1.0]);
        assert!((cosine[4] - 0.5).abs() < 1e-12 && cosine[5].abs() < 1e-12);
    }

    #[test]
    fn norm_is_the_euclidean_one() {
        let gradients: Vec<f32> = (0..40_000).map(|i| (i % 7) as f32).collect();
        let exact: f64 = gradients.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!((global_norm(&gradients, &mut Vec::new()) - exact).abs() < 1e-9 * exact);
    }
}
