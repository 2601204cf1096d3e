//! How LayerNorm is launched.

use crate::device::abi::{
    LAYER_NORM_RUN, LAYER_NORM_SUM_BYTES, LAYER_NORM_THREADS, LAYER_NORM_WARP_COLUMNS, LAYER_NORM_WIDE_WARPS,
    LayerNormBackward, LayerNormForward,
};
use crate::device::{DeviceError, Limits, Plan};

/// Rows and their width, C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormShape {
    /// Rows.
    pub rows: usize,
    /// C: a multiple of 64, at most 2048.
    pub width: usize,
}

/// Columns of the widest rows: those of the warps that share one.
const MAX_WIDTH: usize = (LAYER_NORM_WARP_COLUMNS * LAYER_NORM_WIDE_WARPS) as usize;

/// Rows: kernels count them in 32 bits, and round up to whole blocks.
const MAX_ROWS: usize = i32::MAX as usize - LAYER_NORM_RUN as usize;

const WARPS: u32 = LAYER_NORM_THREADS / 32;

impl NormShape {
    /// Refuses what the kernels are not made for.
    pub fn check(&self) -> Result<(), DeviceError> {
        let NormShape { rows, width } = *self;
        let refuse = |reason| Err(DeviceError::Shapes(format!("LayerNorm on a GPU: {reason}")));
        if width == 0 || !width.is_multiple_of(64) || width > MAX_WIDTH {
            return refuse(format!("a row has a multiple of 64 and at most {MAX_WIDTH} values, not {width}"));
        }
        if rows > MAX_ROWS {
            return refuse(format!("at most {MAX_ROWS} rows, not {rows}"));
        }
        Ok(())
    }

    /// Values, those of all rows.
    pub fn values(&self) -> usize {
        self.rows * self.width
    }

    /// Runs of rows, each of which gives a part of the gradients of γ and β.
    pub fn runs(&self) -> usize {
        self.rows.div_ceil(LAYER_NORM_RUN as usize)
    }

    /// Values of scratch that backward takes: the runs' parts of both gradients.
    pub fn scratch_len(&self, _limits: &Limits) -> usize {
        2 * self.runs() * self.width
    }

    fn is_wide(&self) -> bool {
        self.width > LAYER_NORM_WARP_COLUMNS as usize
    }

    /// Rows that a block works on at once.
    fn rows_at_once(&self) -> u32 {
        if self.is_wide() { WARPS / LAYER_NORM_WIDE_WARPS } else { WARPS }
    }

    /// The forward kernel's parameter but for its pointers, which are null; `period` is that of the rows that are added.
    pub fn forward_numbers(&self, period: usize, eps: f64) -> LayerNormForward {
        LayerNormForward {
            x: std::ptr::null(),
            added: std::ptr::null(),
            weight: std::ptr::null(),
            bias: std::ptr::null(),
            y: std::ptr::null_mut(),
            statistics: std::ptr::null_mut(),
            rows: self.rows as i32,
            width: self.width as i32,
            period: period as i32,
            share: (1.0 / self.width as f64) as f32,
            eps: eps as f32,
            unused: 0,
        }
    }

    /// The launch of the forward kernel; `None` where there is no row.
    pub fn forward(&self) -> Option<Plan> {
        (self.rows > 0).then_some(Plan {
            family: "layer_norm",
            kernel: if self.is_wide() { "layer_norm_forward_wide" } else { "layer_norm_forward_narrow" },
            grid: [self.rows.div_ceil(self.rows_at_once() as usize) as u32, 1, 1],
            block: LAYER_NORM_THREADS,
            shared_bytes: if self.is_wide() { LAYER_NORM_SUM_BYTES } else { 0 },
        })
    }

    /// The backward kernel's parameter but for its pointers, which are null; `period` is that of the rows that are added.
    pub fn backward_numbers(&self, period: usize) -> LayerNormBackward {
        LayerNormBackward {
            x: std::ptr::null(),
            added: std::ptr::null(),
            weight: std::ptr::null(),
            statistics: std::ptr::null(),
            d: std::ptr::null_mut(),
            parts: std::ptr::null_mut(),
            rows: self.rows as i32,
            width: self.width as i32,
            period: period as i32,
            share: (1.0 / self.width as f64) as f32,
        }
    }

    /// The launch of the backward kernel; `None` where there is no row.
    pub fn backward(&self) -> Option<Plan> {
        (self.rows > 0).then_some(Plan {
            family: "layer_norm",
            kernel: if self.is_wide() { "layer_norm_backward_wide" } else { "layer_norm_backward_narrow" },
            grid: [self.runs() as u32, 1, 1],
            block: LAYER_NORM_THREADS,
            shared_bytes: LAYER_NORM_SUM_BYTES + self.rows_at_once() * 8 * self.width as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_shared_memory() {
        let plans = |rows, width| {
            let shape = NormShape { rows, width };
            shape.check().unwrap();
            let plans = [shape.forward().unwrap(), shape.backward().unwrap()];
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                plans.iter().for_each(|plan| plan.check(&card).unwrap());
            }
            plans.map(|plan| (plan.grid[0], plan.shared_bytes))
        };
        assert_eq!(plans(33, 64), [(5, 0), (2, 64 + (4 << 10))]);
        assert_eq!(plans(33, 512), [(5, 0), (2, 64 + (32 << 10))]);
        assert_eq!(plans(33, 576), [(17, 64), (2, 64 + (9 << 10))]);
        assert_eq!(plans(33, 2048), [(17, 64), (2, 64 + (32 << 10))]);
        assert_eq!(NormShape { rows: 33, width: 64 }.scratch_len(&Limits::SM_90), 256);
    }

    #[test]
    fn nothing_to_do_and_bad_shapes() {
        let none = NormShape { rows: 0, width: 64 };
        assert_eq!((none.forward(), none.backward(), none.scratch_len(&Limits::SM_90)), (None, None, 0));
        for (rows, width, part) in [
            (1, 96, "a multiple of 64 and at most 2048 values, not 96"),
            (1, 2112, "not 2112"),
            (1, 0, "not 0"),
            (MAX_ROWS + 1, 64, "at most 2147483615 rows, not 2147483616"),
        ] {
            let message = NormShape { rows, width }.check().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
