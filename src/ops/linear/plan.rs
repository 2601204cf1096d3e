//! How linear layers are launched on a GPU.

use super::{Activation, BlockSize};
use crate::device::abi::{
    LINEAR_COLUMNS, LINEAR_FEW_ROWS_STAGES, LINEAR_FEW_ROWS_THREADS, LINEAR_FORWARD_LAYERS,
    LINEAR_INPUT_LAYERS, LINEAR_ROWS, LINEAR_SM90_SHARED_BYTES, LINEAR_SM90_THREADS, LINEAR_THREADS,
    LINEAR_WIDE_THREADS, LinearBackwardInput, LinearForward, LinearInput, LinearInputLayers, LinearLayers,
};
use crate::device::{DeviceError, Limits, Plan};
use crate::ops::sizes::{MAX_WIDTH, refuse_rows, refuse_width};

/// Sizes of a layer and its batch. On a GPU both widths are multiples of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// N
    pub rows: usize,
    /// Width of x.
    pub inputs: usize,
    /// Width of y.
    pub outputs: usize,
}

/// How the columns of y and dy stand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[rows, outputs]`
    Rows,
    /// `[outputs / width, rows, width]`: as attention reads them.
    Heads {
        /// 32 or 64.
        width: usize,
    },
}

/// A layer's plan: a pure function of its sizes.
#[derive(Clone, Copy, Debug)]
pub struct LinearPlan {
    shape: LinearShape,
    /// Columns of y that stand together.
    width: usize,
}

impl LinearPlan {
    /// The plan for a layer whose output stands in memory as `layout` says.
    ///
    /// Refuses widths that are no multiple of 64 or exceed 2²⁰, more than 2³⁰ rows, more results than a grid has blocks
    /// for, and heads that are not 32 or 64 wide.
    pub fn new(shape: LinearShape, layout: Layout) -> Result<Self, DeviceError> {
        let launch = "a linear layer";
        refuse_rows(launch, shape.rows)?;
        refuse_width(launch, "inputs", shape.inputs, MAX_WIDTH)?;
        refuse_width(launch, "outputs", shape.outputs, MAX_WIDTH)?;
        // Smaller blocks are taken where these are few.
        let tiles = BlockSize::Many.count(shape.rows, shape.inputs.max(shape.outputs));
        if tiles > Limits::MAX_GRID_X as usize {
            return Err(DeviceError::Shapes(format!(
                "{launch} on a GPU: at most {} tiles of {LINEAR_ROWS} rows and {LINEAR_COLUMNS} columns, not {tiles}",
                Limits::MAX_GRID_X
            )));
        }
        let width = match layout {
            Layout::Rows => shape.outputs,
            Layout::Heads { width: width @ (32 | 64) } => width,
            Layout::Heads { width } => {
                return Err(DeviceError::Shapes(format!(
                    "{launch} on a GPU: a head is 32 or 64 wide, not {width}"
                )));
            }
        };
        Ok(LinearPlan { shape, width })
    }

    /// Sizes.
    pub(super) fn shape(&self) -> LinearShape {
        self.shape
    }

    /// Columns of y that stand together.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The launch of a layer's forward by such blocks; `None` where there is nothing to do.
    pub fn forward(&self, blocks: BlockSize) -> Option<Plan> {
        let kernel = match blocks {
            BlockSize::Warpgroups => "linear_wgmma_forward",
            BlockSize::Wide => "linear_wide_forward",
            BlockSize::Many => "linear_forward",
            BlockSize::Few => "linear_few_rows_32",
            BlockSize::Fewest => "linear_few_rows_16",
        };
        self.by_rows(blocks, kernel, self.shape.outputs)
    }

    /// The launch of the forward of so many layers of these sizes, by the smallest blocks; `None` where there is nothing to do.
    pub fn forward_layers(&self, layers: usize) -> Option<Plan> {
        self.of_layers("linear_few_rows_layers", self.shape.outputs, layers)
    }

    /// The launch of the gradients of the inputs of so many layers of these sizes, by the smallest blocks; `None` where there is
    /// nothing to do.
    pub fn input_layers(&self, layers: usize) -> Option<Plan> {
        self.of_layers("linear_input_layers", self.shape.inputs, layers)
    }

    fn of_layers(&self, kernel: &'static str, columns: usize, layers: usize) -> Option<Plan> {
        let plan = self.by_rows(BlockSize::Fewest, kernel, columns)?;
        let grid = [plan.grid[0], layers as u32, 1];
        (layers > 0).then_some(Plan { grid, ..plan })
    }

    /// The launch of the gradient of its input by such blocks; `None` where there is nothing to do.
    pub fn backward_input(&self, blocks: BlockSize) -> Option<Plan> {
        let kernel = match blocks {
            BlockSize::Warpgroups => "linear_wgmma_backward_input",
            BlockSize::Wide => "linear_wide_backward_input",
            BlockSize::Many => "linear_backward_input",
            BlockSize::Few => "linear_few_rows_input_32",
            BlockSize::Fewest => "linear_few_rows_input_16",
        };
        self.by_rows(blocks, kernel, self.shape.inputs)
    }

    fn by_rows(&self, blocks: BlockSize, kernel: &'static str, columns: usize) -> Option<Plan> {
        let stage_bytes = 2 * 64 * (blocks.rows() + blocks.columns());
        let (family, block, shared_bytes) = match blocks {
            BlockSize::Warpgroups => ("linear_sm90", LINEAR_SM90_THREADS, LINEAR_SM90_SHARED_BYTES),
            BlockSize::Wide => ("linear_wide", LINEAR_WIDE_THREADS, 2 * stage_bytes),
            BlockSize::Many => ("linear", LINEAR_THREADS, 2 * stage_bytes),
            BlockSize::Few | BlockSize::Fewest => {
                ("linear_few_rows", LINEAR_FEW_ROWS_THREADS, LINEAR_FEW_ROWS_STAGES * stage_bytes)
            }
        };
        (self.shape.rows > 0).then_some(Plan {
            family,
            kernel,
            grid: [blocks.count(self.shape.rows, columns) as u32, 1, 1],
            block,
            shared_bytes,
        })
    }

    /// The parameter of `linear_forward` but for its pointers, which are null.
    pub fn forward_numbers(&self, activation: Activation) -> LinearForward {
        LinearForward {
            x: std::ptr::null(),
            weight: std::ptr::null(),
            bias: std::ptr::null(),
            y: std::ptr::null_mut(),
            rows: self.shape.rows as i32,
            inputs: self.shape.inputs as i32,
            outputs: self.shape.outputs as i32,
            width: self.width as i32,
            relu: i32::from(activation == Activation::Relu),
            unused: 0,
        }
    }

    /// The parameter of `linear_few_rows_layers` but for its pointers, which are null.
    pub fn layers_numbers(&self, activation: Activation) -> LinearLayers {
        LinearLayers { layers: [self.forward_numbers(activation); LINEAR_FORWARD_LAYERS as usize] }
    }

    /// The parameter of `linear_input_layers` but for its pointers, which are null.
    pub fn input_layers_numbers(&self) -> LinearInputLayers {
        let layer = LinearInput {
            dy: std::ptr::null(),
            weight: std::ptr::null(),
            dx: std::ptr::null_mut(),
            rows: self.shape.rows as i32,
            inputs: self.shape.inputs as i32,
            outputs: self.shape.outputs as i32,
            width: self.width as i32,
        };
        LinearInputLayers { layers: [layer; LINEAR_INPUT_LAYERS as usize] }
    }

    /// The parameter of `linear_backward_input` but for its pointers, which are null.
    pub fn backward_input_numbers(&self) -> LinearBackwardInput {
        LinearBackwardInput {
            dy: std::ptr::null(),
            weight: std::ptr::null(),
            added: std::ptr::null(),
            mask: std::ptr::null(),
            dx: std::ptr::null_mut(),
            rows: self.shape.rows as i32,
            inputs: self.shape.inputs as i32,
            outputs: self.shape.outputs as i32,
            width: self.width as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rows: usize, inputs: usize, outputs: usize) -> LinearPlan {
        LinearPlan::new(LinearShape { rows, inputs, outputs }, Layout::Rows).unwrap()
    }

    #[test]
    fn blocks_cover_the_results() {
        for (rows, inputs, outputs, forward, input) in [
            (1, 64, 64, 1, 1),
            (129, 64, 192, 6, 2),
            (1280, 256, 1024, 160, 40),
            (1 << 30, 4096, 4096, 1 << 29, 1 << 29),
            (1, 1 << 20, 1 << 20, 1 << 14, 1 << 14),
        ] {
            let plan = plan(rows, inputs, outputs);
            let launches =
                [plan.forward(BlockSize::Many), plan.backward_input(BlockSize::Many)].map(Option::unwrap);
            assert_eq!(launches.map(|launch| launch.grid), [[forward, 1, 1], [input, 1, 1]]);
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                launches.iter().for_each(|launch| launch.check(&card).unwrap());
            }
        }
    }

    #[test]
    fn blocks_of_all_sizes() {
        let plan = plan(300, 256, 768);
        for (blocks, kernel, grid, kib) in [
            (BlockSize::Wide, "linear_wide_forward", 9, 96),
            (BlockSize::Many, "linear_forward", 36, 48),
            (BlockSize::Few, "linear_few_rows_32", 120, 48),
            (BlockSize::Fewest, "linear_few_rows_16", 228, 40),
        ] {
            let launch = plan.forward(blocks).unwrap();
            assert_eq!((launch.kernel, launch.grid[0], launch.shared_bytes >> 10), (kernel, grid, kib));
            launch.check(&Limits::SM_89).unwrap();
        }
        for (blocks, kernel, grid) in [
            (BlockSize::Few, "linear_few_rows_input_32", 40),
            (BlockSize::Fewest, "linear_few_rows_input_16", 76),
        ] {
            let launch = plan.backward_input(blocks).unwrap();
            assert_eq!((launch.kernel, launch.grid[0]), (kernel, grid));
            assert_eq!(launch.shared_bytes, plan.forward(blocks).unwrap().shared_bytes);
        }
        let asked = Limits { wgmma: true, ..Limits::SM_90 };
        for (launch, kernel, grid) in [
            (plan.forward(BlockSize::Warpgroups), "linear_wgmma_forward", 12),
            (plan.backward_input(BlockSize::Warpgroups), "linear_wgmma_backward_input", 4),
        ] {
            let launch = launch.unwrap();
            launch.check(&asked).unwrap();
            assert_eq!(
                (launch.kernel, launch.grid[0], launch.shared_bytes),
                (kernel, grid, (192 << 10) + 64)
            );
        }
        let launch = plan.forward_layers(6).unwrap();
        assert_eq!((launch.kernel, launch.grid), ("linear_few_rows_layers", [228, 6, 1]));
        let launch = plan.input_layers(6).unwrap();
        assert_eq!((launch.kernel, launch.grid), ("linear_input_layers", [76, 6, 1]));
        assert_eq!([plan.forward_layers(0), plan.input_layers(0)], [None; 2]);
        let launch = plan.backward_input(BlockSize::Wide).unwrap();
        assert_eq!((launch.kernel, launch.grid[0]), ("linear_wide_backward_input", 3));
    }

    #[test]
    fn nothing_to_do() {
        let plan = plan(0, 64, 64);
        assert_eq!([plan.forward(BlockSize::Many), plan.backward_input(BlockSize::Many)], [None; 2]);
        assert_eq!([plan.forward_layers(1), plan.input_layers(1)], [None; 2]);
    }

    #[test]
    fn bad_shapes() {
        for (rows, inputs, outputs, layout, part) in [
            (1, 65, 64, Layout::Rows, "inputs are a multiple of 64 up to 1048576, not 65"),
            (1, 64, 0, Layout::Rows, "outputs are a multiple of 64 up to 1048576, not 0"),
            (1, 64, (1 << 20) + 64, Layout::Rows, "not 1048640"),
            (
                1 << 30,
                64,
                1 << 14,
                Layout::Rows,
                "at most 2147483647 tiles of 128 rows and 64 columns, not 2147483648",
            ),
            (1 << 30, 1 << 14, 64, Layout::Rows, "not 2147483648"),
            ((1 << 30) + 1, 64, 64, Layout::Rows, "at most 1073741824 rows"),
            (1, 64, 64, Layout::Heads { width: 48 }, "a head is 32 or 64 wide, not 48"),
        ] {
            let error =
                LinearPlan::new(LinearShape { rows, inputs, outputs }, layout).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
