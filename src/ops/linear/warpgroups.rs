//! Wide layers by matrix instructions of warpgroups, where they are asked for: what the kernels of `kernels/linear_sm90.cu` take.

use super::LinearPlan;
use crate::device::abi::{
    LINEAR_LAYERS, LINEAR_SM90_BLOCKS, LINEAR_SM90_COLUMNS, LINEAR_SM90_ROWS, LINEAR_SM90_STEP,
    LinearBackwardInput, LinearBackwardInputWgmma, LinearBackwardWeights, LinearBackwardWeightsWgmma,
    LinearForward, LinearForwardWgmma, LinearWeightsMaps,
};
use crate::device::{Boxes, Panels, TensorMap, parameter};

/// Columns of its operand of columns that a block loads for its cluster.
const PART: u32 = LINEAR_SM90_COLUMNS / LINEAR_SM90_BLOCKS;

impl LinearPlan {
    /// x and the weight, as forward by warpgroups takes them.
    pub fn forward_boxes(&self) -> [Boxes; 2] {
        [
            Boxes::of(self.x_panels(), LINEAR_SM90_STEP, LINEAR_SM90_ROWS),
            Boxes::of(self.weight_panels(), LINEAR_SM90_STEP, PART),
        ]
    }

    /// dy and the weight, as the gradient of the input by warpgroups takes them.
    pub fn input_boxes(&self) -> [Boxes; 2] {
        [
            Boxes::of(self.dy_panels(), LINEAR_SM90_STEP, LINEAR_SM90_ROWS),
            Boxes::of(self.weight_panels(), PART, LINEAR_SM90_STEP),
        ]
    }

    /// dy and x, as the gradients of parameters by warpgroups take them.
    pub fn weights_boxes(&self) -> [Boxes; 2] {
        [
            Boxes::of(self.dy_panels(), LINEAR_SM90_ROWS, LINEAR_SM90_STEP),
            Boxes::of(self.x_panels(), PART, LINEAR_SM90_STEP),
        ]
    }

    fn x_panels(&self) -> Panels {
        Panels::of_rows(self.shape().rows, self.shape().inputs)
    }

    fn weight_panels(&self) -> Panels {
        Panels::of_rows(self.shape().outputs, self.shape().inputs)
    }

    fn dy_panels(&self) -> Panels {
        let (rows, outputs) = (self.shape().rows, self.shape().outputs);
        match self.width() {
            width @ (32 | 64) => Panels::apart(rows, outputs, width),
            _ => Panels::of_rows(rows, outputs),
        }
    }
}

impl LinearForwardWgmma {
    /// Of these tensor maps, x's and the weight's, and of all that the kernel of warps takes.
    pub fn new([x, weight]: [TensorMap; 2], layer: LinearForward) -> Self {
        Self { x, weight, layer, ..Self::default() }
    }
}

impl LinearBackwardInputWgmma {
    /// Of these tensor maps, dy's and the weight's, and of all that the kernel of warps takes.
    pub fn new([dy, weight]: [TensorMap; 2], layer: LinearBackwardInput) -> Self {
        Self { dy, weight, layer, ..Self::default() }
    }
}

impl LinearBackwardWeightsWgmma {
    /// Of the tensor maps of each layer, dy's and x's, and of all that the kernel of warps takes.
    pub fn new(maps: [[TensorMap; 2]; LINEAR_LAYERS as usize], products: LinearBackwardWeights) -> Self {
        Self { maps: maps.map(|[dy, x]| LinearWeightsMaps { dy, x }), products, ..Self::default() }
    }
}

parameter!(LinearForwardWgmma, LinearBackwardInputWgmma: |self| self.layer.shapes());
parameter!(LinearBackwardWeightsWgmma: |self| self.products.shapes());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::linear::{Layout, LinearShape};

    #[test]
    fn boxes_of_every_layout() {
        let shape = LinearShape { rows: 70, inputs: 256, outputs: 512 };
        let plan = |layout| LinearPlan::new(shape, layout).unwrap();
        let of = |width, count, row_stride, stride, size| Boxes {
            panels: Panels { rows: 70, width, count, row_stride, stride },
            size,
        };
        let [x, weight] = plan(Layout::Rows).forward_boxes();
        assert_eq!(x, of(64, 4, 256, 64, [1, 128]));
        assert_eq!(weight.panels, Panels { rows: 512, width: 64, count: 4, row_stride: 256, stride: 64 });
        assert_eq!(weight.size, [1, 128]);
        for (layout, dy) in [
            (Layout::Rows, of(64, 8, 512, 64, [1, 128])),
            (Layout::Heads { width: 64 }, of(64, 8, 64, 70 * 64, [1, 128])),
            (Layout::Heads { width: 32 }, of(32, 16, 32, 70 * 32, [2, 128])),
        ] {
            let plan = plan(layout);
            let [found, weight] = plan.input_boxes();
            assert_eq!((found, weight.size), (dy, [2, 64]), "{layout:?}");
            let [found, x] = plan.weights_boxes();
            let size = [2 * dy.size[0], 64];
            assert_eq!((found, x), (Boxes { size, ..dy }, of(64, 4, 256, 64, [2, 64])), "{layout:?}");
        }
    }
}
