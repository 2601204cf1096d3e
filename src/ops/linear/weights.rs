//! How the gradients of layers' parameters are launched: those of several layers at once.

use super::{Layout, LinearPlan, LinearShape};
use crate::device::abi::{
    LINEAR_COLUMNS, LINEAR_LAYERS, LINEAR_ROWS, LINEAR_SHARED_BYTES, LINEAR_SM90_BLOCKS, LINEAR_SM90_COLUMNS,
    LINEAR_SM90_ROWS, LINEAR_SM90_THREADS, LINEAR_SM90_WEIGHTS_SHARED_BYTES, LINEAR_THREADS,
    LINEAR_WIDE_INPUTS, LINEAR_WIDE_OUTPUTS, LINEAR_WIDE_SHARED_BYTES, LINEAR_WIDE_THREADS,
    LinearBackwardWeights, LinearWeights,
};
use crate::device::choice::MatrixKernels;
use crate::device::{Boxes, DeviceError, Limits, Plan};
use crate::ops::parts::Parts;

/// The gradients of the parameters of up to eight layers: a pure function of their shapes.
///
/// Rows are cut into parts, so that there are blocks enough for a card; the more layers there are, the fewer parts it takes. Blocks
/// are large where they fit all layers.
#[derive(Clone, Debug)]
pub struct WeightsPlan {
    layers: Vec<(LinearPlan, Parts)>,
    tile: Tile,
}

/// Outputs and inputs of a block's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    outputs: usize,
    inputs: usize,
    /// How many a multiprocessor has at once, about.
    at_once: usize,
}

impl Tile {
    const SMALL: Tile = Tile { outputs: LINEAR_ROWS as usize, inputs: LINEAR_COLUMNS as usize, at_once: 4 };
    const WIDE: Tile =
        Tile { outputs: LINEAR_WIDE_OUTPUTS as usize, inputs: LINEAR_WIDE_INPUTS as usize, at_once: 1 };

    /// A block's by warpgroups is turned, which makes as many of them where both widths are multiples of 256.
    const OF_WARPGROUPS: Tile =
        Tile { outputs: LINEAR_SM90_ROWS as usize, inputs: LINEAR_SM90_COLUMNS as usize, at_once: 1 };

    /// That of layers of these shapes.
    fn of(shapes: &[LinearShape]) -> Self {
        let fits = |shape: &LinearShape| {
            shape.outputs.is_multiple_of(Self::WIDE.outputs) && shape.inputs.is_multiple_of(Self::WIDE.inputs)
        };
        if shapes.iter().all(fits) { Self::WIDE } else { Self::SMALL }
    }

    /// Blocks of a part of a layer.
    fn blocks(self, shape: &LinearShape) -> usize {
        shape.inputs.div_ceil(self.inputs) * shape.outputs.div_ceil(self.outputs)
    }

    /// How the rows of each layer are cut.
    fn parts(self, shapes: &[LinearShape]) -> impl Iterator<Item = Parts> {
        let matrices: Vec<_> = shapes.iter().map(|shape| (shape.rows, self.blocks(shape))).collect();
        Parts::of_several(&matrices, self.at_once).collect::<Vec<_>>().into_iter()
    }
}

impl WeightsPlan {
    /// The plan of layers whose output's gradient stands as their layout says.
    ///
    /// Refuses what [`LinearPlan::new`] refuses, more than eight layers, and more results than a grid has blocks for.
    pub fn new(layers: impl IntoIterator<Item = (LinearShape, Layout)>) -> Result<Self, DeviceError> {
        let plans = layers.into_iter().map(|(shape, layout)| LinearPlan::new(shape, layout));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        if plans.len() > LINEAR_LAYERS as usize {
            return Err(DeviceError::Shapes(format!(
                "gradients of linear layers on a GPU: at most {LINEAR_LAYERS} layers at once, not {}",
                plans.len()
            )));
        }
        let shapes: Vec<LinearShape> = plans.iter().map(LinearPlan::shape).collect();
        let tile = Tile::of(&shapes);
        let plan = WeightsPlan { layers: plans.into_iter().zip(tile.parts(&shapes)).collect(), tile };
        if plan.blocks() > Limits::MAX_GRID_X as usize {
            return Err(DeviceError::Shapes(format!(
                "gradients of linear layers on a GPU: at most {} blocks, not {}",
                Limits::MAX_GRID_X,
                plan.blocks()
            )));
        }
        Ok(plan)
    }

    /// Parts that a layer's gradients are summed in.
    pub fn parts(&self, layer: usize) -> usize {
        self.layers[layer].1.count
    }

    /// Values of scratch that the parts of layers of these shapes take.
    pub fn scratch_len_of(shapes: &[LinearShape]) -> usize {
        let parts = Tile::of(shapes).parts(shapes);
        shapes.iter().zip(parts).map(|(shape, parts)| parts.count * parameters(shape)).sum()
    }

    /// Those of this plan's.
    pub fn scratch_len(&self) -> usize {
        self.layers.iter().map(|(plan, parts)| parts.count * parameters(&plan.shape())).sum()
    }

    fn blocks(&self) -> usize {
        self.layers.iter().map(|(plan, parts)| parts.count * self.tile.blocks(&plan.shape())).sum()
    }

    /// Whether the launch is by warpgroups, where they are asked for: pairs of their blocks are to fill all layers.
    pub fn is_by_warpgroups(&self, matrix: MatrixKernels) -> bool {
        let Tile { outputs, inputs, .. } = Tile::OF_WARPGROUPS;
        let fits = |LinearShape { inputs: of_inputs, outputs: of_outputs, .. }: LinearShape| {
            of_outputs.is_multiple_of(outputs * LINEAR_SM90_BLOCKS as usize)
                && of_inputs.is_multiple_of(inputs)
        };
        matrix == MatrixKernels::Wgmma && self.layers.iter().all(|(plan, _)| fits(plan.shape()))
    }

    /// dy and x of a layer, as the kernel by warpgroups takes them.
    pub fn boxes(&self, layer: usize) -> [Boxes; 2] {
        self.layers[layer].0.weights_boxes()
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self, matrix: MatrixKernels) -> Option<Plan> {
        let (blocks, grid) = (self.blocks(), [self.blocks() as u32, 1, 1]);
        let (family, kernel, block, shared_bytes) = if self.is_by_warpgroups(matrix) {
            ("linear_sm90", "linear_wgmma_weights", LINEAR_SM90_THREADS, LINEAR_SM90_WEIGHTS_SHARED_BYTES)
        } else if self.tile == Tile::WIDE {
            ("linear_wide", "linear_wide_weights", LINEAR_WIDE_THREADS, LINEAR_WIDE_SHARED_BYTES)
        } else {
            ("linear", "linear_backward_weights", LINEAR_THREADS, LINEAR_SHARED_BYTES)
        };
        (blocks > 0).then_some(Plan { family, kernel, grid, block, shared_bytes })
    }

    /// The kernel's parameter but for its pointers, which are null. A layer without rows has no blocks.
    pub fn numbers(&self) -> LinearBackwardWeights {
        let none = LinearWeights {
            dy: std::ptr::null(),
            x: std::ptr::null(),
            d_weight: std::ptr::null_mut(),
            d_bias: std::ptr::null_mut(),
            rows: 0,
            inputs: 0,
            outputs: 0,
            width: 0,
            rows_of_part: 0,
            first_block: 0,
        };
        let mut layers = [none; LINEAR_LAYERS as usize];
        let mut first_block = 0;
        for (layer, (plan, parts)) in layers.iter_mut().zip(&self.layers) {
            let LinearShape { rows, inputs, outputs } = plan.shape();
            *layer = LinearWeights {
                rows: rows as i32,
                inputs: inputs as i32,
                outputs: outputs as i32,
                width: plan.width() as i32,
                rows_of_part: parts.rows as i32,
                first_block: first_block as i32,
                ..none
            };
            first_block += parts.count * self.tile.blocks(&plan.shape());
        }
        LinearBackwardWeights { layers, count: self.layers.len() as i32, unused: 0 }
    }
}

/// Values of a layer's weight and bias.
fn parameters(shape: &LinearShape) -> usize {
    shape.outputs * shape.inputs + shape.outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(shapes: &[(usize, usize, usize)]) -> WeightsPlan {
        let layer = |&(rows, inputs, outputs)| (LinearShape { rows, inputs, outputs }, Layout::Rows);
        WeightsPlan::new(shapes.iter().map(layer)).unwrap()
    }

    #[test]
    fn blocks_cover_the_results() {
        for (shapes, blocks) in [
            (&[(1, 64, 64)][..], 1),
            (&[(129, 64, 192)], 2),
            (&[(1280, 320, 1024)], 40 * 5),
            (&[(1280, 256, 1024)], 8 * 5),
            (&[(1 << 30, 4096, 4096)], 512),
            (&[(1, 1 << 20, 1 << 20)], 1 << 25),
            // Two have half as many parts each as one of them would have.
            (&[(1 << 20, 256, 1024)], 8 * 16),
            (&[(1 << 20, 256, 1024), (1 << 20, 1024, 256)], 16 * 8),
            // An IMSAB block's networks and projections, one of few rows: parts of about as many rows each.
            (
                &[
                    (33_792, 1024, 256),
                    (33_792, 256, 1024),
                    (33_792, 256, 768),
                    (16_896, 1024, 256),
                    (16_896, 256, 1024),
                    (16_896, 256, 512),
                    (20, 256, 256),
                ],
                22 * 4 + 20 * 2 + 2,
            ),
            // A block's network and projections, on an H100 one block for each multiprocessor.
            (&[(1 << 20, 1024, 256), (1 << 20, 256, 1024), (1 << 20, 256, 768)], 22 * 6),
            // One that is not wide has all blocks small.
            (&[(1 << 20, 256, 1024), (1 << 20, 64, 256)], 34 * 15),
        ] {
            let launch = plan(shapes).launch(MatrixKernels::Mma).unwrap();
            assert_eq!(launch.grid, [blocks, 1, 1], "{shapes:?}");
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                launch.check(&card).unwrap();
            }
        }
        let several = plan(&[(300, 64, 192), (0, 64, 64), (70, 128, 64)]).numbers();
        let begins = several.layers.map(|layer| [layer.first_block, layer.rows_of_part]);
        assert_eq!(several.count, 3);
        assert_eq!(begins, [[0, 192], [4, 0], [4, 128], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0]]);
    }

    #[test]
    fn warpgroups_take_layers_that_pairs_of_blocks_fill() {
        let asked = Limits { wgmma: true, ..Limits::SM_90 };
        for (shapes, kernel) in [
            (&[(1 << 20, 1024, 256), (1 << 20, 256, 1024), (1 << 20, 256, 768)][..], "linear_wgmma_weights"),
            (&[(300, 256, 256), (0, 256, 512)], "linear_wgmma_weights"),
            (&[(300, 256, 256), (300, 128, 256)], "linear_wide_weights"),
            (&[(300, 256, 192)], "linear_backward_weights"),
        ] {
            let plan = plan(shapes);
            let launch = plan.launch(MatrixKernels::Wgmma).unwrap();
            launch.check(&asked).unwrap();
            // Parts are the same, and so is the number of blocks.
            assert_eq!((launch.kernel, launch.grid), (kernel, plan.launch(MatrixKernels::Mma).unwrap().grid));
            let pairs = plan.numbers().layers.map(|layer| layer.first_block % 2);
            assert!(kernel != "linear_wgmma_weights" || pairs == [0; 8]);
        }
    }

    #[test]
    fn scratch_holds_all_parts() {
        let layer = LinearShape { rows: 300, inputs: 64, outputs: 128 };
        let empty = LinearShape { rows: 0, ..layer };
        assert_eq!(WeightsPlan::scratch_len_of(&[layer]), 2 * (64 * 128 + 128));
        assert_eq!(WeightsPlan::scratch_len_of(&[layer, empty, layer]), 2 * 2 * (64 * 128 + 128));
        assert_eq!(WeightsPlan::scratch_len_of(&[empty]), 0);
    }

    #[test]
    fn nothing_to_do() {
        for matrix in [MatrixKernels::Mma, MatrixKernels::Wgmma] {
            assert_eq!(plan(&[]).launch(matrix), None);
            assert_eq!(plan(&[(0, 64, 64), (0, 64, 128)]).launch(matrix), None);
        }
    }

    #[test]
    fn too_much() {
        let layer = (LinearShape { rows: 1, inputs: 64, outputs: 64 }, Layout::Rows);
        let error = WeightsPlan::new([layer; 9]).unwrap_err().to_string();
        assert!(error.contains("at most 8 layers at once, not 9"), "{error}");
        assert!(WeightsPlan::new([(LinearShape { inputs: 65, ..layer.0 }, layer.1)]).is_err());
    }
}
