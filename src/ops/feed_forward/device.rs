//! The row-wise network on a GPU as one kernel, of `kernels/feed_forward.cu`, and its backward, of
//! `kernels/feed_forward_backward.cu`; or by matrix instructions of warpgroups, of `…_sm90.cu`.

use half::bf16;

use super::{Blocks, FeedForwardShape, RowsGradient};
use crate::device::abi::{FeedForward, FeedForwardBackward, FeedForwardBackwardWgmma, FeedForwardWgmma};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};
use crate::ops::layer_norm::{self, DeviceNorm, NormBackward, NormShape};
use crate::ops::linear::{Activation, DeviceLinear, Layout};
use crate::ops::partial_sums::PendingSums;

parameter!(FeedForward: |self| format!("{} rows and {} inner columns", self.rows, self.inner));

parameter!(FeedForwardBackward: |self| {
    let projected = match self.projected.outputs {
        0 => String::new(),
        outputs => format!(", a projection to {outputs} columns"),
    };
    format!("{} rows and {} inner columns{projected}", self.rows, self.inner)
});

/// What forward of a network keeps for its backward.
#[derive(Debug)]
pub struct Kept<'a> {
    /// `[rows, C]`: the network's rows.
    pub attended: &'a mut Buffer<bf16>,
    /// `[rows, C]`: fc2's results.
    pub output: &'a mut Buffer<bf16>,
}

/// A layer of the network's results, computed with them.
#[derive(Debug)]
pub struct Projection<'a> {
    /// `[P, C]` and `[P]`, P a multiple of C.
    pub layer: DeviceLinear<'a>,
    /// What follows it.
    pub activation: Activation,
    /// How its results stand.
    pub layout: Layout,
    /// Its results `[rows, P]`.
    pub out: &'a mut Buffer<bf16>,
}

/// Queues y `[rows, C]` = LayerNorm₂(r + f) with f = fc2(ReLU(fc1(r))) and r = LayerNorm₁(x + added) of x `[rows, C]` and added
/// `[period, C]`, whose row i % period is added to row i; and for backward both norms' statistics `[rows, 2]` and r and f where
/// they are kept; and the `projection` of y, if any, with the bits of
/// [`linear_forward`](crate::ops::linear::linear_forward).
///
/// # Errors
///
/// Sizes that do not fit or that the kernels are not made for, norms of different eps, buffers that overlap or are of another
/// GPU, a card with too little shared memory or without such matrix instructions, and what the driver refuses.
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn feed_forward(
    gpu: &Gpu,
    blocks: Blocks,
    y: &mut Buffer<bf16>,
    kept: Option<Kept<'_>>,
    statistics: [&mut Buffer<f32>; 2],
    x: &Buffer<bf16>,
    added: &Buffer<bf16>,
    [fc1, fc2]: [DeviceLinear<'_>; 2],
    norms: [DeviceNorm<'_>; 2],
    projection: Option<Projection<'_>>,
    shape: FeedForwardShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let FeedForwardShape { rows, width, inner } = shape;
    let launch = "a network in one kernel";
    let [eps, of_behind] = norms.map(|norm| norm.eps);
    if eps.to_bits() != of_behind.to_bits() {
        return Err(DeviceError::Shapes(format!("{launch}: LayerNorms with eps of {eps} and {of_behind}")));
    }
    let period = layer_norm::period(Some(added), NormShape { rows, width })?;
    let mut operands = Operands::new(gpu, launch);
    operands.reads("x [rows, C]", x, shape.values())?;
    operands.reads("added [period, C]", added, period * width)?;
    operands.reads("fc1 [G, C]", fc1.weight, shape.weights())?;
    operands.reads("fc1's bias [G]", fc1.bias, inner)?;
    operands.reads("fc2 [C, G]", fc2.weight, shape.weights())?;
    operands.reads("fc2's bias [C]", fc2.bias, width)?;
    operands.writes("y [rows, C]", y, shape.values())?;
    let mut parameter = FeedForward {
        x: x.pointer(),
        added: added.pointer(),
        weight1: fc1.weight.pointer(),
        bias1: fc1.bias.pointer(),
        weight2: fc2.weight.pointer(),
        bias2: fc2.bias.pointer(),
        y: y.pointer_mut(),
        ..shape.numbers(period, eps)
    };
    let both = [&mut parameter.before, &mut parameter.behind];
    for ((to, norm), statistics) in both.into_iter().zip(norms).zip(statistics) {
        operands.reads("γ [C]", norm.weight, width)?;
        operands.reads("β [C]", norm.bias, width)?;
        operands.writes("statistics [rows, 2]", statistics, 2 * rows)?;
        (to.scale, to.shift) = (norm.weight.pointer(), norm.bias.pointer());
        to.statistics = statistics.pointer_mut();
    }
    if let Some(Kept { attended, output }) = kept {
        operands.writes("the network's rows [rows, C]", attended, shape.values())?;
        operands.writes("fc2's results [rows, C]", output, shape.values())?;
        (parameter.attended, parameter.output) = (attended.pointer_mut(), output.pointer_mut());
    }
    let weight_of_projection = projection.as_ref().map(|projection| projection.layer.weight);
    if let Some(Projection { layer, activation, layout, out }) = projection {
        let outputs = layer.bias.len();
        parameter = shape.projecting(parameter, outputs, layout, activation)?;
        operands.reads("the projection's weight [P, C]", layer.weight, outputs * width)?;
        operands.reads("its bias [P]", layer.bias, outputs)?;
        operands.writes("the projection [rows, P]", out, rows * outputs)?;
        let to = &mut parameter.projection;
        (to.weight, to.bias) = (layer.weight.pointer(), layer.bias.pointer());
        to.out = out.pointer_mut();
    }
    let Some(launch) = shape.plan(blocks) else { return Ok(()) };
    match blocks {
        // SAFETY: the buffers have the kernel's sizes and do not overlap, and memory that is given back is freed in the
        // stream's order.
        Blocks::Many | Blocks::Few => unsafe { gpu.launch(&launch, &parameter) },
        Blocks::Warpgroups => {
            let maps = shape.tensor_maps(gpu, [fc1.weight, fc2.weight], weight_of_projection)?;
            // SAFETY: as above.
            unsafe { gpu.launch(&launch, &FeedForwardWgmma::new(maps, parameter)) }
        }
    }
}

/// Queues backward of a network with the LayerNorm `before` it, whose rows it takes, and the one `behind`, which adds them to
/// fc2's results: the gradient of the latter's rows → in its d `[rows, C]` that of what the former is of. The inner rows `[rows, G]`
/// once more, their gradient `[rows, G]` in front of the ReLU, and dy `[rows, C]`, that of fc2's results, are left for the
/// gradients of the layers' parameters; the norms' are added to once `sums` are finished, which have room for
/// [`FeedForwardShape::backward_scratch_len`] values.
///
/// # Errors
///
/// As [`feed_forward`].
#[expect(clippy::too_many_arguments, reason = "each is a matrix or a layer of its own")]
pub fn feed_forward_backward(
    gpu: &Gpu,
    blocks: Blocks,
    gradient: RowsGradient<'_>,
    dy: &mut Buffer<bf16>,
    [hidden, d_hidden]: [&mut Buffer<bf16>; 2],
    before: &NormBackward<'_>,
    behind: &NormBackward<'_>,
    fc1: DeviceLinear<'_>,
    weight2: &Buffer<bf16>,
    sums: &mut PendingSums,
    shape: FeedForwardShape,
) -> Result<(), DeviceError> {
    shape.check()?;
    let launch = "backward of a network in one kernel";
    let mut operands = Operands::new(gpu, launch);
    let of_norm = NormShape { rows: shape.rows, width: shape.width };
    let period = before.note(&mut operands, of_norm)?;
    let of_behind = behind.note(&mut operands, of_norm)?;
    let (Some(added), Some(x)) = (before.added, behind.added.filter(|_| of_behind == shape.rows)) else {
        let what = "both LayerNorms add rows, the latter those that the network takes";
        return Err(DeviceError::Shapes(format!("{launch}: {what}")));
    };
    operands.reads("fc1 [G, C]", fc1.weight, shape.weights())?;
    operands.reads("fc1's bias [G]", fc1.bias, shape.inner)?;
    operands.reads("fc2 [C, G]", weight2, shape.weights())?;
    let mut parameter = shape.backward_numbers(period);
    gradient.note(&mut operands, &mut parameter, launch, shape)?;
    operands.writes("dy [rows, C]", dy, shape.values())?;
    operands.writes("inner rows [rows, G]", hidden, shape.inner_values())?;
    operands.writes("their gradient [rows, G]", d_hidden, shape.inner_values())?;
    let needed = shape.backward_scratch_len(blocks);
    let scratch = sums.room(gpu, needed, 4)?;
    operands.scratch("scratch", &scratch, needed)?;
    let Some(launch) = shape.backward_plan(blocks) else { return Ok(()) };
    let mut of_before = scratch.part(0..needed / 2)?;
    let mut of_behind = scratch.part(needed / 2..needed)?;
    parameter = FeedForwardBackward {
        weight1: fc1.weight.pointer(),
        bias1: fc1.bias.pointer(),
        weight2: weight2.pointer(),
        d: gradient.d.pointer_mut(),
        dy: dy.pointer_mut(),
        hidden: hidden.pointer_mut(),
        d_hidden: d_hidden.pointer_mut(),
        ..parameter
    };
    for (to, norm, added, parts) in [
        (&mut parameter.before, before, added, &mut of_before),
        (&mut parameter.behind, behind, x, &mut of_behind),
    ] {
        (to.x, to.added) = (norm.x.pointer(), added.pointer());
        (to.weight, to.statistics) = (norm.weight.pointer(), norm.statistics.pointer());
        to.parts = parts.pointer_mut();
    }
    match blocks {
        // SAFETY: as in `feed_forward`; the parts fill the scratch.
        Blocks::Many | Blocks::Few => unsafe { gpu.launch(&launch, &parameter) },
        Blocks::Warpgroups => {
            let projection = gradient.projected.map(|projected| &projected.weight);
            let maps = shape.tensor_maps(gpu, [fc1.weight, weight2], projection)?;
            // SAFETY: as above.
            unsafe { gpu.launch(&launch, &FeedForwardBackwardWgmma::new(maps, parameter)) }
        }
    }?;
    before.add(sums, &of_before, shape.count(blocks))?;
    behind.add(sums, &of_behind, shape.count(blocks))
}
