//! The rbf input by matrix instructions of warpgroups, where they are asked for: what the kernels of `kernels/rbf_sm90.cu` take.

use super::RbfPlan;
use crate::device::abi::{
    RBF_SM90_BLOCKS, RBF_SM90_COLUMNS, RBF_SM90_ROWS, RBF_SM90_STEP, RbfBackwardCenters,
    RbfBackwardCentersWgmma, RbfBackwardWeights, RbfBackwardWeightsWgmma, RbfForward, RbfForwardWgmma,
};
use crate::device::{Boxes, Panels, TensorMap, parameter};

/// Columns of results whose operand a block loads for its cluster.
const PART: u32 = RBF_SM90_COLUMNS / RBF_SM90_BLOCKS;

impl RbfPlan {
    /// The weight, as forward by warpgroups takes it.
    pub fn forward_boxes(&self) -> [Boxes; 1] {
        [Boxes::of(self.weight_panels(), RBF_SM90_STEP, PART)]
    }

    /// dy, as the gradients of weight and bias by warpgroups take it.
    pub fn weights_boxes(&self) -> [Boxes; 1] {
        [Boxes::of(self.dy_panels(), PART, RBF_SM90_STEP)]
    }

    /// dy and the weight, as the gradient of the centres by warpgroups takes them.
    pub fn centers_boxes(&self) -> [Boxes; 2] {
        [
            Boxes::of(self.dy_panels(), RBF_SM90_STEP, RBF_SM90_ROWS),
            Boxes::of(self.weight_panels(), PART, RBF_SM90_STEP),
        ]
    }

    fn dy_panels(&self) -> Panels {
        Panels::of_rows(self.shape().rows, self.shape().outputs)
    }

    fn weight_panels(&self) -> Panels {
        Panels::of_rows(self.shape().outputs, self.shape().width())
    }
}

impl RbfForwardWgmma {
    /// Of the weight's tensor map, and of all that the kernel of warps takes.
    pub fn new([weight]: [TensorMap; 1], layer: RbfForward) -> Self {
        Self { weight, layer, ..Self::default() }
    }
}

impl RbfBackwardWeightsWgmma {
    /// Of dy's tensor map, and of all that the kernel of warps takes.
    pub fn new([dy]: [TensorMap; 1], layer: RbfBackwardWeights) -> Self {
        Self { dy, layer, ..Self::default() }
    }
}

impl RbfBackwardCentersWgmma {
    /// Of the tensor maps of dy and the weight, and of all that the kernel of warps takes.
    pub fn new([dy, weight]: [TensorMap; 2], layer: RbfBackwardCenters) -> Self {
        Self { dy, weight, layer, ..Self::default() }
    }
}

parameter!(RbfForwardWgmma, RbfBackwardWeightsWgmma, RbfBackwardCentersWgmma: |self| self.layer.shapes());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rbf::RbfShape;

    #[test]
    fn boxes() {
        let shape = RbfShape { rows: 70, features: 3, stride: 64, centers: 50, outputs: 512 };
        let plan = RbfPlan::new(shape).unwrap();
        let weight = Panels { rows: 512, width: 64, count: 3, row_stride: 192, stride: 64 };
        let dy = Panels { rows: 70, width: 64, count: 8, row_stride: 512, stride: 64 };
        assert_eq!(plan.forward_boxes(), [Boxes { panels: weight, size: [1, 128] }]);
        assert_eq!(plan.weights_boxes(), [Boxes { panels: dy, size: [2, 64] }]);
        let expected = [Boxes { panels: dy, size: [1, 128] }, Boxes { panels: weight, size: [2, 64] }];
        assert_eq!(plan.centers_boxes(), expected);
    }
}
