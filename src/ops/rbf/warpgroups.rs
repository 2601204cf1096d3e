//! The rbf input by matrix instructions of warpgroups, where they are asked for: what the kernels of `kernels/rbf_sm90.cu` take.

use super::RbfPlan;
use crate::device::abi::{RBF_SM90_BLOCKS, RBF_SM90_OUTPUTS, RBF_SM90_STEP, RbfForward, RbfForwardWgmma};
use crate::device::{Boxes, Panels, Parameter, TensorMap};

/// Outputs, or columns, of the operand that blocks share, of which each loads so many.
const PART: u32 = RBF_SM90_OUTPUTS / RBF_SM90_BLOCKS;

impl RbfPlan {
    /// The weight, as forward by warpgroups takes it.
    pub fn forward_boxes(&self) -> [Boxes; 1] {
        [Boxes::of(self.weight_panels(), RBF_SM90_STEP, PART)]
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

macro_rules! parameter {
    ($name:ty) => {
        // SAFETY: bindgen makes it of the header that the kernels are compiled with.
        unsafe impl cudarc::driver::DeviceRepr for $name {}
        // SAFETY: as above; it has no padding.
        unsafe impl Parameter for $name {
            fn shapes(&self) -> String {
                self.layer.shapes()
            }
        }
    };
}
parameter!(RbfForwardWgmma);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rbf::RbfShape;

    #[test]
    fn boxes() {
        let shape = RbfShape { rows: 70, features: 3, stride: 64, centers: 50, outputs: 512 };
        let [weight] = RbfPlan::new(shape).unwrap().forward_boxes();
        assert_eq!(weight.panels, Panels { rows: 512, width: 64, count: 3, row_stride: 192, stride: 64 });
        assert_eq!(weight.size, [1, 128]);
    }
}
