//! The running average of the weights (Polyak averaging with exponential decay): validated and kept in the place of
//! the weights themselves, which jump from step to step.

use rayon::prelude::*;

/// Values of one piece of work.
const TILE: usize = 1 << 14;

/// Moves `average` towards `parameters` after step number `step` (from 1): average ← d·average + (1 − d)·parameters.
/// d is `decay`, but at first (1 + step)/(10 + step), so that the initial weights are soon forgotten.
pub fn update(average: &mut [f32], parameters: &[f32], decay: f64, step: u64) {
    let step = step as f64;
    let towards = (1.0 - decay.min((1.0 + step) / (10.0 + step))) as f32;
    average.par_chunks_mut(TILE).zip(parameters.par_chunks(TILE)).for_each(|(average, parameters)| {
        for (average, &parameter) in average.iter_mut().zip(parameters) {
            *average += towards * (parameter - *average);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_steps_count_more_than_the_decay_says() {
        let mut average = [0.0f32];
        update(&mut average, &[1.0], 0.999, 1);
        assert!((average[0] - 9.0 / 11.0).abs() < 1e-6);
        for step in 2..200_000 {
            update(&mut average, &[if step % 2 == 0 { 3.0 } else { 1.0 }], 0.999, step);
        }
        assert!((average[0] - 2.0).abs() < 2e-3, "{average:?}");
        update(&mut average, &[f32::MAX], 0.0, 300_000);
        assert_eq!(average[0], f32::MAX);
    }
}
