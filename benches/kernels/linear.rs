//! Linear layers that are launches of their own, and the gradients of all layers' parameters.

use criterion::Criterion;
use setrank::device::{Buffer, DeviceError};
use setrank::ops::linear::{
    Activation, DeviceLinear, InputGradient, LayerForward, LayerGradients, LayerInput, Layout, LinearShape,
    WeightsPlan, linear_backward_input, linear_backward_input_layers, linear_backward_weights,
    linear_forward, linear_forward_layers,
};
use setrank::ops::partial_sums::PendingSums;

use crate::card::{BLOCKS, Card, FEATURE_COLUMNS, HEADS, HIDDEN, INNER, POINTS};
use crate::memory::Memory;
use crate::timing::Measured;

const BY_HEADS: Layout = Layout::Heads { width: HEADS.width };

/// The layers of an MSAB block as their parameters' gradients are computed, in one launch: fc2, fc1, and q, k and v.
const OF_BLOCK: [(usize, usize, Layout); 3] =
    [(INNER, HIDDEN, Layout::Rows), (HIDDEN, INNER, Layout::Rows), (HIDDEN, 3 * HIDDEN, BY_HEADS)];

/// Forward, the gradient of the input, and those of parameters.
pub fn layers(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows, group) = (&card.gpu, card.documents, &card.group("linear"));
    let forward = [
        ("input layer, forward", FEATURE_COLUMNS, HIDDEN, Activation::Relu, Layout::Rows),
        ("q, k and v, forward", HIDDEN, 3 * HIDDEN, Activation::Identity, BY_HEADS),
    ];
    for (name, inputs, outputs, activation, layout) in forward {
        let shape = LinearShape { rows, inputs, outputs };
        Measured::rows(group, name, rows).launches(criterion, card, |memory| {
            let (x, weight) = (memory.normals(rows * inputs, 1.0)?, memory.normals(outputs * inputs, 0.06)?);
            let (bias, mut y) = (memory.filled(outputs, 0.0)?, memory.taken(rows * outputs)?);
            Ok(Box::new(move || {
                let layer = DeviceLinear { weight: &weight, bias: &bias };
                linear_forward(gpu, &mut y, layout, &x, layer, activation, shape)
            }))
        });
    }
    let (inputs, outputs) = (HIDDEN, 3 * HIDDEN);
    Measured::rows(group, "q, k and v, gradient of the input", rows).launches(criterion, card, |memory| {
        let shape = LinearShape { rows, inputs, outputs };
        let (dy, added) = (memory.normals(rows * outputs, 1.0)?, memory.normals(rows * inputs, 1.0)?);
        let (weight, mut dx) = (memory.normals(outputs * inputs, 0.06)?, memory.taken(rows * inputs)?);
        Ok(Box::new(move || {
            let finish = InputGradient::added(&added);
            linear_backward_input(gpu, &mut dx, &dy, BY_HEADS, &weight, finish, shape)
        }))
    });
    Measured::rows(group, "a block's parameters' gradients", rows).launches(criterion, card, |memory| {
        let layers: Vec<LayerGradients> =
            OF_BLOCK.iter().map(|&layer| gradients(memory, rows, layer)).collect::<Result<_, _>>()?;
        let plan = WeightsPlan::new(layers.iter().map(|layer| (layer.shape, layer.layout)))?;
        let scratch = memory.taken(plan.scratch_len())?;
        Ok(Box::new(move || linear_backward_weights(gpu, &layers, &mut PendingSums::new(scratch.alias()))))
    });
}

fn gradients(
    memory: &mut Memory<'_>,
    rows: usize,
    (inputs, outputs, layout): (usize, usize, Layout),
) -> Result<LayerGradients, DeviceError> {
    let gradients: [Buffer<f32>; 2] = [memory.filled(outputs * inputs, 0.0)?, memory.filled(outputs, 0.0)?];
    let (dy, x) = (memory.normals(rows * outputs, 1.0)?, memory.normals(rows * inputs, 1.0)?);
    Ok(LayerGradients { gradients, dy, layout, x, shape: LinearShape { rows, inputs, outputs } })
}

/// q of the inducing points of all blocks, few rows each, and what comes back by way of it.
pub fn points(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows) = (&card.gpu, BLOCKS * POINTS);
    let shape = LinearShape { rows: POINTS, inputs: HIDDEN, outputs: HIDDEN };
    let (values, weights) = (POINTS * HIDDEN, HIDDEN * HIDDEN);
    Measured::rows("linear", "inducing points' q, forward", rows).launches(criterion, card, |memory| {
        let mut layer = || {
            let (x, weight) = (memory.normals(values, 1.0)?, memory.normals(weights, 0.06)?);
            Ok(LayerForward { y: memory.taken(values)?, x, weight, bias: memory.filled(HIDDEN, 0.0)? })
        };
        let mut layers: Vec<_> = (0..BLOCKS).map(|_| layer()).collect::<Result<_, DeviceError>>()?;
        Ok(Box::new(move || linear_forward_layers(gpu, &mut layers, BY_HEADS, Activation::Identity, shape)))
    });
    Measured::rows("linear", "inducing points' q, gradient of the input", rows).launches(
        criterion,
        card,
        |memory| {
            let mut layer = || {
                let (dy, weight) = (memory.normals(values, 1.0)?, memory.normals(weights, 0.06)?);
                Ok(LayerInput { dx: memory.filled(values, 0.0)?, dy, weight })
            };
            let mut layers: Vec<_> = (0..BLOCKS).map(|_| layer()).collect::<Result<_, DeviceError>>()?;
            Ok(Box::new(move || linear_backward_input_layers(gpu, &mut layers, BY_HEADS, shape)))
        },
    );
}
