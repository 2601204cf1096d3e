//! LayerNorm, and the network with the LayerNorms around it in one kernel.
//!
//! Backward changes its gradient in place, launch after launch: inputs of deviation 1 with statistics to match, and small
//! weights, keep it from growing or vanishing.

use criterion::Criterion;
use half::bf16;
use setrank::device::choice::MatrixKernels;
use setrank::device::{Buffer, DeviceError, Plan};
use setrank::ops::feed_forward::{
    Blocks, FeedForwardShape, Kept, Projection, RowsGradient, feed_forward, feed_forward_backward,
};
use setrank::ops::layer_norm::{
    DeviceNorm, NormBackward, NormShape, layer_norm_backward, layer_norm_forward,
};
use setrank::ops::linear::{
    Activation, BlockSize, DeviceLinear, Layout, LinearShape, PendingInput, linear_forward_by,
};
use setrank::ops::norm_linear::{NormForward, norm_linear_forward_by};
use setrank::ops::partial_sums::PendingSums;

use crate::card::{Card, HEADS, HIDDEN, INNER, POINTS, QUERY, SIZES};
use crate::memory::Memory;
use crate::timing::Measured;

const EPS: f64 = 1e-5;

/// Deviation of weights.
const SMALL: f32 = 1.0 / 256.0;

/// q, k and v of a row.
const PROJECTED: usize = 3 * HIDDEN;
const BY_HEADS: Layout = Layout::Heads { width: HEADS.width };

/// A LayerNorm of the sum of two matrices.
struct Norm {
    x: Buffer<bf16>,
    added: Buffer<bf16>,
    /// Mean 0 and 1/deviation 1 of each row.
    statistics: Buffer<f32>,
    /// γ and β, and their gradients.
    parameters: [Buffer<f32>; 2],
    gradients: [Buffer<f32>; 2],
}

impl Norm {
    fn new(memory: &mut Memory<'_>, rows: usize) -> Result<Self, DeviceError> {
        let deviation = std::f32::consts::FRAC_1_SQRT_2;
        let statistics: Vec<f32> = [0.0, 1.0].into_iter().cycle().take(2 * rows).collect();
        Ok(Norm {
            x: memory.normals(rows * HIDDEN, deviation)?,
            added: memory.normals(rows * HIDDEN, deviation)?,
            statistics: memory.uploaded(&statistics)?,
            parameters: [memory.filled(HIDDEN, 1.0)?, memory.filled(HIDDEN, 0.0)?],
            gradients: [memory.filled(HIDDEN, 0.0)?, memory.filled(HIDDEN, 0.0)?],
        })
    }

    fn backward(&self) -> NormBackward<'_> {
        NormBackward {
            x: &self.x,
            added: Some(&self.added),
            statistics: &self.statistics,
            weight: self.parameters[0].alias(),
            gradients: self.gradients.each_ref().map(Buffer::alias),
        }
    }
}

fn device_norm([weight, bias]: &[Buffer<f32>; 2]) -> DeviceNorm<'_> {
    DeviceNorm { weight, bias, eps: EPS }
}

/// A layer's weight `[outputs, inputs]` and bias.
struct Layer {
    weight: Buffer<bf16>,
    bias: Buffer<f32>,
}

impl Layer {
    fn new(memory: &mut Memory<'_>, inputs: usize, outputs: usize) -> Result<Self, DeviceError> {
        Ok(Layer { weight: memory.normals(outputs * inputs, SMALL)?, bias: memory.filled(outputs, 0.0)? })
    }

    fn get(&self) -> DeviceLinear<'_> {
        DeviceLinear { weight: &self.weight, bias: &self.bias }
    }
}

/// LayerNorm by a kernel of its own, as less of fusion has it.
pub fn layer_norm(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows) = (&card.gpu, card.documents);
    let shape = NormShape { rows, width: HIDDEN };
    Measured::rows("layer_norm", "forward", rows).launches(criterion, card, |memory| {
        let Norm { x, added, mut statistics, parameters, .. } = Norm::new(memory, rows)?;
        let mut y = memory.taken(rows * HIDDEN)?;
        Ok(Box::new(move || {
            let norm = device_norm(&parameters);
            layer_norm_forward(gpu, &mut y, &mut statistics, &x, Some(&added), norm, shape)
        }))
    });
    Measured::rows("layer_norm", "backward", rows).launches(criterion, card, |memory| {
        let (norm, mut d) = (Norm::new(memory, rows)?, memory.normals(rows * HIDDEN, 1.0)?);
        let scratch = memory.taken(shape.scratch_len(gpu.limits()))?;
        Ok(Box::new(move || {
            let sums = &mut PendingSums::new(scratch.alias());
            layer_norm_backward(gpu, &mut d, &norm.backward(), sums, shape)
        }))
    });
}

/// LayerNorm and the network's first layer of a single query's documents, as one kernel and as two.
pub fn query(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows) = (&card.gpu, QUERY);
    let (shape, of_norm) =
        (LinearShape { rows, inputs: HIDDEN, outputs: INNER }, NormShape { rows, width: HIDDEN });
    for (name, is_one) in [("a query's first layer", true), ("the same as two kernels", false)] {
        Measured::rows("norm_linear", name, rows).launches(criterion, card, |memory| {
            let Norm { x, added, mut statistics, parameters, .. } = Norm::new(memory, rows)?;
            let layer = Layer::new(memory, HIDDEN, INNER)?;
            let (mut normalized, mut y) = (memory.taken(rows * HIDDEN)?, memory.taken(rows * INNER)?);
            Ok(Box::new(move || {
                let (layer, norm) = (layer.get(), device_norm(&parameters));
                let (rows, statistics, x, added) = (&mut normalized, &mut statistics, &x, &added);
                let before = NormForward { rows, statistics, x, added, norm };
                if is_one {
                    let blocks = BlockSize::Few;
                    return norm_linear_forward_by(
                        gpu,
                        blocks,
                        before,
                        &mut y,
                        Layout::Rows,
                        layer,
                        Activation::Relu,
                        shape,
                    );
                }
                before.compute(gpu, of_norm)?;
                let (layout, activation) = (Layout::Rows, Activation::Relu);
                linear_forward_by(gpu, BlockSize::Few, &mut y, layout, &normalized, layer, activation, shape)
            }))
        });
    }
}

/// The rows of a network, and the blocks of its kernel.
#[derive(Clone, Copy)]
struct Rows {
    blocks: Blocks,
    number: usize,
}

/// Forward and backward, alone and with what they compute besides: q, k and v of the next block, and the gradient by way of
/// them. By blocks of few rows the points of large sets.
pub fn networks(criterion: &mut Criterion, card: &Card) {
    let many = match card.gpu.kernels().matrix {
        MatrixKernels::Mma => Blocks::Many,
        MatrixKernels::Wgmma => Blocks::Warpgroups,
    };
    let rows = Rows { blocks: many, number: card.documents };
    for (what, projects) in [("", false), (", with q, k and v", true)] {
        forward(criterion, card, &format!("forward{what}"), rows, projects);
        backward(criterion, card, &format!("backward{what}"), rows, projects);
    }
    if many == Blocks::Many {
        let [_, large] = SIZES;
        let rows = Rows { blocks: Blocks::Few, number: POINTS * card.sets(large) };
        forward(criterion, card, "forward of points", rows, false);
        backward(criterion, card, "backward of points", rows, false);
    }
}

fn shape_of(rows: usize) -> FeedForwardShape {
    FeedForwardShape { rows, width: HIDDEN, inner: INNER }
}

/// Whether the card has shared memory for the launch; if not, it is said.
fn fits(card: &Card, plan: Option<Plan>, name: &str) -> bool {
    let fits = plan.map_or(Ok(()), |plan| plan.check(card.gpu.limits()));
    if let Err(why) = &fits {
        eprintln!("{name} of the network is not measured: {why}");
    }
    fits.is_ok()
}

fn forward(criterion: &mut Criterion, card: &Card, name: &str, rows: Rows, projects: bool) {
    let Rows { blocks, number: rows } = rows;
    if !fits(card, shape_of(rows).plan(blocks), name) {
        return;
    }
    let (gpu, group) = (&card.gpu, &card.group("feed_forward"));
    Measured::rows(group, name, rows).launches(criterion, card, |memory| {
        let values = rows * HIDDEN;
        let Norm { x, added, statistics, parameters, .. } = Norm::new(memory, rows)?;
        let behind = Norm::new(memory, 0)?.parameters;
        let mut statistics = [statistics, memory.taken(2 * rows)?];
        let layers = [Layer::new(memory, HIDDEN, INNER)?, Layer::new(memory, INNER, HIDDEN)?];
        let (mut y, mut attended, mut output) =
            (memory.taken(values)?, memory.taken(values)?, memory.taken(values)?);
        let mut projection = match projects {
            true => Some((Layer::new(memory, HIDDEN, PROJECTED)?, memory.taken(rows * PROJECTED)?)),
            false => None,
        };
        Ok(Box::new(move || {
            let projection = projection.as_mut().map(|(layer, out)| Projection {
                layer: layer.get(),
                activation: Activation::Identity,
                layout: BY_HEADS,
                out,
            });
            feed_forward(
                gpu,
                blocks,
                &mut y,
                Some(Kept { attended: &mut attended, output: &mut output }),
                statistics.each_mut(),
                &x,
                &added,
                layers.each_ref().map(Layer::get),
                [device_norm(&parameters), device_norm(&behind)],
                projection,
                shape_of(rows),
            )
        }))
    });
}

fn backward(criterion: &mut Criterion, card: &Card, name: &str, rows: Rows, projected: bool) {
    let Rows { blocks, number: rows } = rows;
    if !fits(card, shape_of(rows).backward_plan(blocks), name) {
        return;
    }
    let (gpu, group) = (&card.gpu, &card.group("feed_forward"));
    Measured::rows(group, name, rows).launches(criterion, card, |memory| {
        let (before, behind) = (Norm::new(memory, rows)?, Norm::new(memory, rows)?);
        let [fc1, fc2] = [Layer::new(memory, HIDDEN, INNER)?, Layer::new(memory, INNER, HIDDEN)?];
        let (mut d, mut dy) = (memory.normals(rows * HIDDEN, 1.0)?, memory.taken(rows * HIDDEN)?);
        let (mut hidden, mut d_hidden) = (memory.taken(rows * INNER)?, memory.taken(rows * INNER)?);
        let scratch = memory.taken(shape_of(rows).backward_scratch_len(blocks))?;
        let projected = match projected {
            true => Some(PendingInput {
                dy: memory.normals(rows * PROJECTED, 1.0)?,
                layout: BY_HEADS,
                weight: memory.normals(PROJECTED * HIDDEN, SMALL)?,
                shape: LinearShape { rows, inputs: HIDDEN, outputs: PROJECTED },
            }),
            false => None,
        };
        Ok(Box::new(move || {
            feed_forward_backward(
                gpu,
                blocks,
                RowsGradient { d: &mut d, is_given: true, projected: projected.as_ref() },
                &mut dy,
                [&mut hidden, &mut d_hidden],
                &before.backward(),
                &behind.backward(),
                fc1.get(),
                &fc2.weight,
                &mut PendingSums::new(scratch.alias()),
                shape_of(rows),
            )
        }))
    });
}
