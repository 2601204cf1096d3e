//! How the rbf input is launched on a GPU.

use super::RbfBlocks;
use crate::device::abi::{
    RBF_CENTERS_COLUMNS, RBF_CENTERS_SHARED_BYTES, RBF_FORWARD_SHARED_BYTES, RBF_SM90_BLOCKS,
    RBF_SM90_CENTERS_SHARED_BYTES, RBF_SM90_COLUMNS, RBF_SM90_FORWARD_SHARED_BYTES, RBF_SM90_ROWS,
    RBF_SM90_THREADS, RBF_SM90_WEIGHTS_SHARED_BYTES, RBF_THREADS, RBF_WEIGHTS_COLUMNS, RBF_WEIGHTS_OUTPUTS,
    RBF_WIDE_SHARED_BYTES, RbfBackwardCenters, RbfBackwardWeights, RbfForward,
};
use crate::device::choice::MatrixKernels;
use crate::device::{DeviceError, Limits, Plan};
use crate::ops::linear::Activation;
use crate::ops::parts::Parts;
use crate::ops::sizes::{refuse_rows, refuse_width};

/// Sizes of an rbf input and its batch. On a GPU `stride` and `outputs` are multiples of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RbfShape {
    /// N
    pub rows: usize,
    /// F
    pub features: usize,
    /// Values of a row of x: the features, and what pads them.
    pub stride: usize,
    /// K
    pub centers: usize,
    /// Width of y.
    pub outputs: usize,
}

impl RbfShape {
    /// F·K
    pub fn columns(&self) -> usize {
        self.features * self.centers
    }

    /// Values of a row of the weight: F·K, padded to a multiple of 64.
    pub fn width(&self) -> usize {
        self.columns().next_multiple_of(64)
    }

    /// Values of scratch that backward needs; the same for all cards, as the bits are.
    pub fn scratch_len(&self, _limits: &Limits) -> usize {
        let of_weights = self.weight_parts().count * (self.outputs * self.width() + self.outputs);
        of_weights + self.center_parts().count * self.columns()
    }

    /// Blocks that the gradient of the weights takes for each part of the rows.
    fn weight_blocks(&self) -> usize {
        self.width().div_ceil(RBF_WEIGHTS_COLUMNS as usize)
            * self.outputs.div_ceil(RBF_WEIGHTS_OUTPUTS as usize)
    }

    /// Blocks that the gradient of the centres takes for each part of the rows.
    fn center_blocks(&self) -> usize {
        self.width().div_ceil(RBF_CENTERS_COLUMNS as usize)
    }

    /// How the rows are cut for the gradients of weight and bias: a part takes as much memory as the weights do.
    pub(super) fn weight_parts(&self) -> Parts {
        Parts::new(self.rows, self.weight_blocks(), 1)
    }

    /// How the rows are cut for the gradient of the centres: into more parts than a multiprocessor has blocks at once, so that
    /// all are busy to the end.
    pub(super) fn center_parts(&self) -> Parts {
        Parts::new(self.rows, self.center_blocks(), 4)
    }
}

/// Most features, values of a row of x, and outputs.
const MAX_WIDTH: usize = 4096;

/// Most centres of a feature.
const MAX_CENTERS: usize = 1024;

/// An rbf input's plan: a pure function of its sizes.
#[derive(Clone, Copy, Debug)]
pub struct RbfPlan {
    shape: RbfShape,
}

impl RbfPlan {
    /// The plan for these sizes.
    ///
    /// Refuses outputs and strides that are no multiple of 64 or exceed 4096, no features, more than a row has, none or
    /// more than 1024 centres, and more than 2³⁰ rows.
    pub fn new(shape: RbfShape) -> Result<Self, DeviceError> {
        let launch = "the rbf input";
        refuse_rows(launch, shape.rows)?;
        refuse_width(launch, "outputs", shape.outputs, MAX_WIDTH)?;
        refuse_width(launch, "values of a row of x", shape.stride, MAX_WIDTH)?;
        let refuse = |reason: String| Err(DeviceError::Shapes(format!("{launch} on a GPU: {reason}")));
        if !(1..=shape.stride).contains(&shape.features) {
            return refuse(format!("1 to {} features in such rows, not {}", shape.stride, shape.features));
        }
        if !(1..=MAX_CENTERS).contains(&shape.centers) {
            return refuse(format!("1 to {MAX_CENTERS} centres of a feature, not {}", shape.centers));
        }
        Ok(RbfPlan { shape })
    }

    /// The sizes.
    pub fn shape(&self) -> RbfShape {
        self.shape
    }

    /// Parts that the gradients of weight and bias are summed in.
    pub fn weight_parts(&self) -> usize {
        self.shape.weight_parts().count
    }

    /// Parts that the gradient of the centres is summed in.
    pub fn center_parts(&self) -> usize {
        self.shape.center_parts().count
    }

    /// The launch of forward by such blocks; `None` where there is nothing to do.
    pub fn forward(&self, blocks: RbfBlocks) -> Option<Plan> {
        let grid = [blocks.count(self.shape), 1];
        match blocks {
            RbfBlocks::Warpgroups => {
                self.by_warpgroups("rbf_wgmma_forward", grid, RBF_SM90_FORWARD_SHARED_BYTES)
            }
            RbfBlocks::Wide => self.plan("rbf_wide_forward", grid, RBF_WIDE_SHARED_BYTES),
            RbfBlocks::Narrow => self.plan("rbf_forward", grid, RBF_FORWARD_SHARED_BYTES),
        }
    }

    /// Whether the gradients are by warpgroups: where these are asked for, and outputs are a multiple of 256.
    pub fn is_by_warpgroups(&self, matrix: MatrixKernels) -> bool {
        matrix == MatrixKernels::Wgmma && RbfBlocks::Warpgroups.fit(self.shape.outputs)
    }

    /// The launch of the gradients of weight and bias; `None` where there is nothing to do.
    pub fn backward_weights(&self, matrix: MatrixKernels) -> Option<Plan> {
        if self.is_by_warpgroups(matrix) {
            let of_columns = self.shape.width().div_ceil(RBF_SM90_ROWS as usize);
            let blocks = of_columns.next_multiple_of(RBF_SM90_BLOCKS as usize)
                * (self.shape.outputs / RBF_SM90_COLUMNS as usize);
            let grid = [blocks, self.weight_parts()];
            return self.by_warpgroups("rbf_wgmma_backward_weights", grid, RBF_SM90_WEIGHTS_SHARED_BYTES);
        }
        let grid = [self.shape.weight_blocks(), self.weight_parts()];
        self.plan("rbf_backward_weights", grid, RBF_WIDE_SHARED_BYTES)
    }

    /// The launch of the gradient of the centres; `None` where there is nothing to do.
    pub fn backward_centers(&self, matrix: MatrixKernels) -> Option<Plan> {
        if self.is_by_warpgroups(matrix) {
            let of_parts = self.center_parts().next_multiple_of(RBF_SM90_BLOCKS as usize);
            let grid = [of_parts * self.shape.width().div_ceil(RBF_SM90_COLUMNS as usize), 1];
            return self.by_warpgroups("rbf_wgmma_backward_centers", grid, RBF_SM90_CENTERS_SHARED_BYTES);
        }
        let grid = [self.shape.center_blocks(), self.center_parts()];
        self.plan("rbf_backward_centers", grid, RBF_CENTERS_SHARED_BYTES)
    }

    fn plan(&self, kernel: &'static str, grid: [usize; 2], shared_bytes: u32) -> Option<Plan> {
        (self.shape.rows > 0).then_some(Plan {
            family: "rbf",
            kernel,
            grid: [grid[0] as u32, grid[1] as u32, 1],
            block: RBF_THREADS,
            shared_bytes,
        })
    }

    fn by_warpgroups(&self, kernel: &'static str, grid: [usize; 2], shared_bytes: u32) -> Option<Plan> {
        let plan = self.plan(kernel, grid, shared_bytes)?;
        Some(Plan { family: "rbf_sm90", block: RBF_SM90_THREADS, ..plan })
    }

    /// The parameter of `rbf_forward` but for its pointers, which are null.
    pub fn forward_numbers(&self, activation: Activation) -> RbfForward {
        RbfForward {
            x: std::ptr::null(),
            centers: std::ptr::null(),
            weight: std::ptr::null(),
            bias: std::ptr::null(),
            y: std::ptr::null_mut(),
            rows: self.shape.rows as i32,
            stride: self.shape.stride as i32,
            per_feature: self.shape.centers as i32,
            columns: self.shape.columns() as i32,
            width: self.shape.width() as i32,
            outputs: self.shape.outputs as i32,
            relu: i32::from(activation == Activation::Relu),
            unused: 0,
        }
    }

    /// The parameter of `rbf_backward_weights` but for its pointers, which are null.
    pub fn backward_weights_numbers(&self) -> RbfBackwardWeights {
        RbfBackwardWeights {
            dy: std::ptr::null(),
            x: std::ptr::null(),
            centers: std::ptr::null(),
            d_weight: std::ptr::null_mut(),
            d_bias: std::ptr::null_mut(),
            rows: self.shape.rows as i32,
            stride: self.shape.stride as i32,
            per_feature: self.shape.centers as i32,
            columns: self.shape.columns() as i32,
            width: self.shape.width() as i32,
            outputs: self.shape.outputs as i32,
            rows_of_part: self.shape.weight_parts().rows as i32,
            unused: 0,
        }
    }

    /// The parameter of `rbf_backward_centers` but for its pointers, which are null.
    pub fn backward_centers_numbers(&self) -> RbfBackwardCenters {
        RbfBackwardCenters {
            dy: std::ptr::null(),
            x: std::ptr::null(),
            centers: std::ptr::null(),
            weight: std::ptr::null(),
            d_centers: std::ptr::null_mut(),
            rows: self.shape.rows as i32,
            stride: self.shape.stride as i32,
            per_feature: self.shape.centers as i32,
            columns: self.shape.columns() as i32,
            width: self.shape.width() as i32,
            outputs: self.shape.outputs as i32,
            rows_of_part: self.shape.center_parts().rows as i32,
            unused: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RbfShape = RbfShape { rows: 1280, features: 201, stride: 256, centers: 100, outputs: 1024 };

    fn launches(shape: RbfShape) -> [Option<Plan>; 3] {
        let plan = RbfPlan::new(shape).unwrap();
        let forward = plan.forward(RbfBlocks::of(shape, &Limits::SM_90));
        let matrix = MatrixKernels::Mma;
        [forward, plan.backward_weights(matrix), plan.backward_centers(matrix)]
    }

    #[test]
    fn blocks_cover_the_results() {
        let widest = RbfShape { rows: 1 << 30, features: 4096, stride: 4096, centers: 1024, outputs: 4096 };
        let small = RbfShape { rows: 300, features: 3, stride: 64, centers: 7, outputs: 192 };
        for (shape, grids) in [
            (SHAPE, [[80, 1, 1], [632, 1, 1], [79, 5, 1]]),
            (widest, [[1 << 27, 1, 1], [1 << 19, 1, 1], [1 << 14, 1, 1]]),
            (small, [[6, 1, 1], [1, 2, 1], [1, 2, 1]]),
        ] {
            let launches = launches(shape).map(Option::unwrap);
            assert_eq!(launches.map(|launch| launch.grid), grids, "{shape:?}");
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                launches.iter().for_each(|launch| launch.check(&card).unwrap());
            }
        }
        assert_eq!((small.columns(), small.width()), (21, 64));
        assert_eq!(small.scratch_len(&Limits::SM_90), 2 * (192 * 64 + 192) + 2 * 21);
    }

    #[test]
    fn kernels_of_all_blocks() {
        let shape = RbfShape { rows: 33 * 128, ..SHAPE };
        let plan = RbfPlan::new(shape).unwrap();
        for (blocks, kernel, count) in [
            (RbfBlocks::Warpgroups, "rbf_wgmma_forward", 136),
            (RbfBlocks::Wide, "rbf_wide_forward", 132),
            (RbfBlocks::Narrow, "rbf_forward", 264),
        ] {
            let launch = plan.forward(blocks).unwrap();
            assert_eq!((launch.kernel, launch.grid), (kernel, [count, 1, 1]));
            launch.check(&Limits::SM_90).unwrap();
        }
    }

    #[test]
    fn pairs_of_blocks_by_warpgroups() {
        let of = |shape| {
            let plan = RbfPlan::new(shape).unwrap();
            let matrix = MatrixKernels::Wgmma;
            let launches = [plan.backward_weights(matrix), plan.backward_centers(matrix)].map(Option::unwrap);
            launches.iter().for_each(|launch| launch.check(&Limits::SM_90).unwrap());
            launches.map(|launch| (launch.kernel, launch.grid))
        };
        // 158 blocks of columns for each of four of outputs; 79 of columns for each of 5 parts.
        let [weights, centers] = of(SHAPE);
        assert_eq!(weights, ("rbf_wgmma_backward_weights", [632, 1, 1]));
        assert_eq!(centers, ("rbf_wgmma_backward_centers", [6 * 79, 1, 1]));
        // 64 columns: of the pair that has them one block has none.
        let [weights, centers] =
            of(RbfShape { rows: 300, features: 3, stride: 64, centers: 7, outputs: 256 });
        assert_eq!((weights.1, centers.1), ([2, 2, 1], [2, 1, 1]));
        let [weights, centers] = of(RbfShape { outputs: 320, ..SHAPE });
        assert_eq!((weights.0, centers.0), ("rbf_backward_weights", "rbf_backward_centers"));
    }

    #[test]
    fn nothing_to_do() {
        let empty = RbfShape { rows: 0, ..SHAPE };
        assert_eq!(launches(empty), [None; 3]);
        assert_eq!(empty.scratch_len(&Limits::SM_90), 0);
    }

    #[test]
    fn bad_shapes() {
        for (shape, part) in [
            (RbfShape { outputs: 100, ..SHAPE }, "outputs are a multiple of 64 up to 4096, not 100"),
            (
                RbfShape { stride: 201, ..SHAPE },
                "values of a row of x are a multiple of 64 up to 4096, not 201",
            ),
            (RbfShape { stride: 192, ..SHAPE }, "1 to 192 features in such rows, not 201"),
            (RbfShape { features: 0, ..SHAPE }, "1 to 256 features in such rows, not 0"),
            (RbfShape { centers: 1025, ..SHAPE }, "1 to 1024 centres of a feature, not 1025"),
            (RbfShape { rows: (1 << 30) + 1, ..SHAPE }, "at most 1073741824 rows"),
        ] {
            let error = RbfPlan::new(shape).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
