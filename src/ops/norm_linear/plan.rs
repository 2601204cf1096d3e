//! How LayerNorm and the layer behind it are launched as one.

use crate::device::abi::{LINEAR_COLUMNS, LINEAR_FEW_ROWS_THREADS, NORM_LINEAR_WIDTH, NormLinear};
use crate::device::choice::Fusion;
use crate::device::{DeviceError, Limits, Plan};
use crate::ops::linear::{Activation, BlockSize, Layout, LinearPlan, LinearShape};

/// The plan of LayerNorm and a layer of its rows in one kernel: a pure function of the layer's sizes.
#[derive(Clone, Copy, Debug)]
pub struct NormLinearPlan {
    shape: LinearShape,
    layer: LinearPlan,
}

/// The kernels, by C / 64 − 1.
const KERNELS_16: [&str; (NORM_LINEAR_WIDTH / 64) as usize] =
    ["norm_linear_16_c64", "norm_linear_16_c128", "norm_linear_16_c192", "norm_linear_16_c256"];
const KERNELS_32: [&str; KERNELS_16.len()] =
    ["norm_linear_32_c64", "norm_linear_32_c128", "norm_linear_32_c192", "norm_linear_32_c256"];

/// Bytes a second that L2 gives and seconds that a launch in a graph takes, as others measured them on an H100; on other cards
/// plans take them for want of better.
const L2_RATE: f64 = 5.5e12;
const LAUNCH: f64 = 1.3e-6;

impl NormLinearPlan {
    /// The plan for a layer whose output stands in memory as `layout` says.
    ///
    /// Refuses what [`LinearPlan::new`] does, and rows of more than 256 values.
    pub fn new(shape: LinearShape, layout: Layout) -> Result<Self, DeviceError> {
        if shape.inputs > NORM_LINEAR_WIDTH as usize {
            return Err(DeviceError::Shapes(format!(
                "LayerNorm and a linear layer in one kernel: rows of at most {NORM_LINEAR_WIDTH} values, not {}",
                shape.inputs
            )));
        }
        Ok(NormLinearPlan { shape, layer: LinearPlan::new(shape, layout)? })
    }

    /// The blocks by which both are one kernel, where that is asked for and may be quicker than two.
    ///
    /// For each 64 columns of results the rows that are added are read again by way of L2; γ and β, which all blocks read, are in
    /// their multiprocessors' own caches. This is to take no longer than a launch does, 7.15 MB: of 500 rows of 256 values with 1024
    /// results it is 4.2 MB.
    pub fn blocks(shape: LinearShape, limits: &Limits) -> Option<BlockSize> {
        let LinearShape { rows, inputs, outputs } = shape;
        let blocks = BlockSize::of_forward(shape, limits);
        let is_of_few_rows = matches!(blocks, BlockSize::Few | BlockSize::Fewest);
        let is_narrow = inputs <= NORM_LINEAR_WIDTH as usize;
        let read_again = blocks.count(rows, outputs) * 2 * blocks.rows() as usize * inputs;
        let pays = read_again as f64 <= L2_RATE * LAUNCH;
        (limits.fuse == Fusion::All && is_narrow && is_of_few_rows && pays).then_some(blocks)
    }

    /// The launch by blocks of 32 rows ([`Few`](BlockSize::Few)) or 16 ([`Fewest`](BlockSize::Fewest)); `None` where there is no
    /// row.
    ///
    /// Refuses others.
    pub fn launch(&self, blocks: BlockSize) -> Result<Option<Plan>, DeviceError> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        let kernels = match blocks {
            BlockSize::Few => KERNELS_32,
            BlockSize::Fewest => KERNELS_16,
            _ => {
                return Err(DeviceError::Shapes(format!(
                    "LayerNorm and a linear layer in one kernel: blocks of 16 or 32 rows, not {}",
                    blocks.rows()
                )));
            }
        };
        Ok((rows > 0).then(|| Plan {
            family: "norm_linear",
            kernel: kernels[inputs / 64 - 1],
            grid: [blocks.count(rows, outputs) as u32, 1, 1],
            block: LINEAR_FEW_ROWS_THREADS,
            shared_bytes: 2 * inputs as u32 * (LINEAR_COLUMNS + blocks.rows()),
        }))
    }

    /// The kernel's parameter but for its pointers, which are null; `period` is that of the rows that are added.
    pub fn numbers(&self, period: usize, eps: f64, activation: Activation) -> NormLinear {
        NormLinear {
            x: std::ptr::null(),
            added: std::ptr::null(),
            scale: std::ptr::null(),
            shift: std::ptr::null(),
            statistics: std::ptr::null_mut(),
            normalized: std::ptr::null_mut(),
            weight: std::ptr::null(),
            bias: std::ptr::null(),
            y: std::ptr::null_mut(),
            rows: self.shape.rows as i32,
            period: period as i32,
            eps: eps as f32,
            outputs: self.shape.outputs as i32,
            width: self.layer.width() as i32,
            relu: i32::from(activation == Activation::Relu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::feed_forward::FeedForwardShape;

    fn shape(rows: usize, inputs: usize, outputs: usize) -> LinearShape {
        LinearShape { rows, inputs, outputs }
    }

    #[test]
    fn few_rows_that_are_narrow_are_one_kernel() {
        let of = |rows, inputs, outputs| NormLinearPlan::blocks(shape(rows, inputs, outputs), &Limits::SM_90);
        // Of a query of 500 documents all layers behind a LayerNorm, and none of its networks is one kernel; so of its points.
        assert_eq!([768, 1024].map(|outputs| of(500, 256, outputs)), [Some(BlockSize::Few); 2]);
        assert_eq!([512, 1024].map(|outputs| of(20, 256, outputs)), [Some(BlockSize::Fewest); 2]);
        for rows in [500, 20] {
            let network = FeedForwardShape { rows, width: 256, inner: 1024 };
            assert_eq!(network.of_forward(&Limits::SM_90), None);
        }
        assert_eq!(of(10, 256, 1024), Some(BlockSize::Fewest));
        // Of 32 sets of 40 the first layer of a network fills the card, and q, k and v would have rows read too often: as of 37 blocks
        // of rows.
        assert_eq!([768, 1024].map(|outputs| of(1280, 256, outputs)), [None; 2]);
        assert_eq!([1152, 1153].map(|rows| of(rows, 256, 768)), [Some(BlockSize::Few), None]);
        assert_eq!([of(500, 320, 768), of(132 * 128, 256, 768)], [None; 2]);
        let unfused = Limits { fuse: Fusion::Attention, ..Limits::SM_90 };
        assert_eq!(NormLinearPlan::blocks(shape(500, 256, 768), &unfused), None);
    }

    #[test]
    fn blocks_cover_the_results() {
        for (rows, inputs, blocks, kernel, grid, kib) in [
            (1, 64, BlockSize::Fewest, "norm_linear_16_c64", 3, 10),
            (33, 256, BlockSize::Fewest, "norm_linear_16_c256", 9, 40),
            (33, 128, BlockSize::Few, "norm_linear_32_c128", 6, 24),
            (500, 256, BlockSize::Few, "norm_linear_32_c256", 48, 48),
        ] {
            let plan = NormLinearPlan::new(shape(rows, inputs, 192), Layout::Rows).unwrap();
            let launch = plan.launch(blocks).unwrap().unwrap();
            assert_eq!((launch.kernel, launch.grid[0], launch.shared_bytes >> 10), (kernel, grid, kib));
            [Limits::SM_89, Limits::SM_80, Limits::SM_90].iter().for_each(|card| launch.check(card).unwrap());
        }
    }

    #[test]
    fn nothing_to_do_and_bad_shapes() {
        let plan = |shape| NormLinearPlan::new(shape, Layout::Rows);
        assert_eq!(plan(shape(0, 64, 64)).unwrap().launch(BlockSize::Few).unwrap(), None);
        for (shape, says) in [
            (shape(1, 320, 64), "rows of at most 256 values, not 320"),
            (shape(1, 96, 64), "inputs"),
            (shape(1, 64, 100), "outputs"),
        ] {
            let message = plan(shape).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
        let message = plan(shape(1, 64, 64)).unwrap().launch(BlockSize::Wide).unwrap_err().to_string();
        assert!(message.contains("blocks of 16 or 32 rows, not 128"), "{message}");
    }
}
