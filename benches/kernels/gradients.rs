//! What becomes of gradients: sums of their parts and over sets, their norm, a step of Adam.

use criterion::Criterion;
use setrank::ops::linear::{Layout, LinearShape, WeightsPlan};
use setrank::ops::optimizer::{
    AdamStep, DeviceWeights, adam_step, gradient_norm, gradient_norm_scratch_len, round_parameters,
};
use setrank::ops::partial_sums::{SumOfParts, partial_sums};
use setrank::ops::row_sums::{Repeats, relu_backward, sum_repeats};
use setrank::train::TrainConfig;
use setrank::train::config::Preset;

use crate::card::{BLOCKS, Card, HEADS, HIDDEN, INNER, POINTS, SIZES};
use crate::timing::Measured;

/// Sums of parts of a weight's gradient, and over sets of what inducing points are given; the input layer's ReLU.
pub fn sums(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows) = (&card.gpu, card.documents);
    Measured::rows("row_sums", "ReLU, backward", rows).launches(criterion, card, |memory| {
        let (y, mut dy) = (memory.normals(rows * HIDDEN, 1.0)?, memory.normals(rows * HIDDEN, 1.0)?);
        Ok(Box::new(move || relu_backward(gpu, &mut dy, &y)))
    });
    let (repeats, groups) = (card.sets(SIZES[0]), HEADS.count);
    Measured::rows("row_sums", "over sets of 40", repeats * POINTS).launches(criterion, card, |memory| {
        let values = POINTS * HIDDEN;
        let [x, y] = [memory.normals(repeats * values, 1.0)?, memory.normals(repeats * values, 1.0)?];
        let (mut out, mut into) = (memory.taken(values)?, memory.filled(values, 0.0)?);
        Ok(Box::new(move || sum_repeats(gpu, &mut out, &mut into, Repeats { x: &x, y: &y, groups, repeats })))
    });
    let shape = LinearShape { rows, inputs: HIDDEN, outputs: INNER };
    let plan = WeightsPlan::new([(shape, Layout::Rows)]).expect("a layer of the model");
    let (len, count) = (INNER * HIDDEN, plan.parts(0));
    Measured::bytes("partial_sums", "parts of fc1's gradient", 4 * len * (count + 2)).launches(
        criterion,
        card,
        |memory| {
            let (into, parts) = (memory.filled(len, 0.0)?, memory.wide_normals(count * len, 1.0)?);
            let mut sums = [SumOfParts { into, parts, count }];
            Ok(Box::new(move || partial_sums(gpu, &mut sums)))
        },
    );
}

/// The optimiser, of as many parameters as the blocks of an MSAB model of full size have, but for biases.
pub fn optimizer(criterion: &mut Criterion, card: &Card) {
    let (gpu, len) = (&card.gpu, BLOCKS * (3 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER));
    Measured::bytes("optimizer", "norm of the gradient", 4 * len).launches(criterion, card, |memory| {
        let (gradients, mut norm) = (memory.wide_normals(len, 1.0)?, memory.taken(1)?);
        let mut scratch = memory.taken(gradient_norm_scratch_len(len))?;
        Ok(Box::new(move || gradient_norm(gpu, &mut norm, &gradients, &mut scratch)))
    });
    let recommended = TrainConfig::preset(Preset::Default);
    let step = AdamStep { lr: 1e-6, step: 1, clip: recommended.clip, adam: recommended.adam(), ema: 0.0 };
    // The gradient is read; weights and both moments are read and written; rounded weights are written.
    Measured::bytes("optimizer", "Adam", len * (4 + 3 * 8 + 2)).launches(criterion, card, |memory| {
        let (gradients, norm) = (memory.wide_normals(len, 1.0)?, memory.filled(1, 1.0)?);
        let (mut parameters, mut rounded) = (memory.wide_normals(len, 0.06)?, memory.taken(len)?);
        let [mut first, mut second] = [memory.filled(len, 0.0)?, memory.filled(len, 0.0)?];
        Ok(Box::new(move || {
            let weights = DeviceWeights {
                parameters: &mut parameters,
                rounded: &mut rounded,
                first: &mut first,
                second: &mut second,
                average: None,
            };
            adam_step(gpu, weights, &gradients, &norm, &step)
        }))
    });
    Measured::bytes("optimizer", "rounding", len * (4 + 2)).launches(criterion, card, |memory| {
        let (parameters, mut rounded) = (memory.wide_normals(len, 0.06)?, memory.taken(len)?);
        Ok(Box::new(move || round_parameters(gpu, &mut rounded, &parameters)))
    });
}
