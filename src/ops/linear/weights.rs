//! How the gradients of layers' parameters are launched: those of several layers at once.

use super::{Layout, LinearPlan, LinearShape};
use crate::device::abi::{
    LINEAR_COLUMNS, LINEAR_LAYERS, LINEAR_ROWS, LINEAR_SHARED_BYTES, LINEAR_THREADS, LinearBackwardWeights,
    LinearWeights,
};
use crate::device::{DeviceError, Limits, Plan};
use crate::ops::parts::Parts;

/// The gradients of the parameters of up to four layers: a pure function of their shapes.
///
/// Rows are cut into parts, so that there are blocks enough for a card; the more layers there are, the fewer parts it takes.
#[derive(Clone, Debug)]
pub struct WeightsPlan {
    layers: Vec<(LinearPlan, Parts)>,
}

impl WeightsPlan {
    /// The plan of layers whose output's gradient stands as their layout says.
    ///
    /// Refuses what [`LinearPlan::new`] refuses, more than four layers, and more results than a grid has blocks for.
    pub fn new(layers: &[(LinearShape, Layout)]) -> Result<Self, DeviceError> {
        if layers.len() > LINEAR_LAYERS as usize {
            return Err(DeviceError::Shapes(format!(
                "gradients of linear layers on a GPU: at most {LINEAR_LAYERS} layers at once, not {}",
                layers.len()
            )));
        }
        let shapes: Vec<LinearShape> = layers.iter().map(|&(shape, _)| shape).collect();
        let plans = layers.iter().map(|&(shape, layout)| LinearPlan::new(shape, layout));
        let plan = WeightsPlan {
            layers: plans.collect::<Result<Vec<_>, _>>()?.into_iter().zip(parts(&shapes)).collect(),
        };
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
    pub fn scratch_len(shapes: &[LinearShape]) -> usize {
        let values = |shape: &LinearShape| shape.outputs * shape.inputs + shape.outputs;
        shapes.iter().zip(parts(shapes)).map(|(shape, parts)| parts.count * values(shape)).sum()
    }

    fn blocks(&self) -> usize {
        self.layers.iter().map(|(plan, parts)| parts.count * tiles(&plan.shape())).sum()
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self) -> Option<Plan> {
        let blocks = self.blocks();
        (blocks > 0).then_some(Plan {
            family: "linear",
            kernel: "linear_backward_weights",
            grid: [blocks as u32, 1, 1],
            block: LINEAR_THREADS,
            shared_bytes: LINEAR_SHARED_BYTES,
        })
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
            first_block += parts.count * tiles(&plan.shape());
        }
        LinearBackwardWeights { layers, count: self.layers.len() as i32, unused: 0 }
    }
}

/// Blocks of a part.
fn tiles(shape: &LinearShape) -> usize {
    shape.inputs.div_ceil(LINEAR_COLUMNS as usize) * shape.outputs.div_ceil(LINEAR_ROWS as usize)
}

/// How the rows of each layer are cut.
fn parts(shapes: &[LinearShape]) -> impl Iterator<Item = Parts> {
    let all: usize = shapes.iter().map(tiles).sum();
    shapes.iter().map(move |shape| Parts::new(shape.rows, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(shapes: &[(usize, usize, usize)]) -> WeightsPlan {
        let layer = |&(rows, inputs, outputs)| (LinearShape { rows, inputs, outputs }, Layout::Rows);
        WeightsPlan::new(&shapes.iter().map(layer).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn blocks_cover_the_results() {
        for (shapes, blocks) in [
            (&[(1, 64, 64)][..], 1),
            (&[(129, 64, 192)], 2),
            (&[(1280, 256, 1024)], 32 * 5),
            (&[(1 << 30, 4096, 4096)], 2048),
            (&[(1, 1 << 20, 1 << 20)], 1 << 27),
            // Two have half as many parts each as one of them would have.
            (&[(1 << 20, 256, 1024)], 32 * 16),
            (&[(1 << 20, 256, 1024), (1 << 20, 1024, 256)], 64 * 8),
        ] {
            let launch = plan(shapes).launch().unwrap();
            assert_eq!(launch.grid, [blocks, 1, 1], "{shapes:?}");
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                launch.check(&card).unwrap();
            }
        }
        let several = plan(&[(300, 64, 192), (0, 64, 64), (70, 128, 64)]).numbers();
        let begins = several.layers.map(|layer| [layer.first_block, layer.rows_of_part]);
        assert_eq!((several.count, begins), (3, [[0, 192], [4, 0], [4, 128], [0, 0]]));
    }

    #[test]
    fn scratch_holds_all_parts() {
        let layer = LinearShape { rows: 300, inputs: 64, outputs: 128 };
        let empty = LinearShape { rows: 0, ..layer };
        assert_eq!(WeightsPlan::scratch_len(&[layer]), 2 * (64 * 128 + 128));
        assert_eq!(WeightsPlan::scratch_len(&[layer, empty, layer]), 2 * 2 * (64 * 128 + 128));
        assert_eq!(WeightsPlan::scratch_len(&[empty]), 0);
    }

    #[test]
    fn nothing_to_do() {
        assert_eq!(plan(&[]).launch(), None);
        assert_eq!(plan(&[(0, 64, 64), (0, 64, 128)]).launch(), None);
    }

    #[test]
    fn too_much() {
        let layer = (LinearShape { rows: 1, inputs: 64, outputs: 64 }, Layout::Rows);
        let error = WeightsPlan::new(&[layer; 5]).unwrap_err().to_string();
        assert!(error.contains("at most 4 layers at once, not 5"), "{error}");
        assert!(WeightsPlan::new(&[(LinearShape { inputs: 65, ..layer.0 }, layer.1)]).is_err());
    }
}
