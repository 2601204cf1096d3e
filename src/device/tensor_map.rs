//! Matrices on a GPU as tensor copies of kernels take boxes of them.

use std::mem::MaybeUninit;

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle, cuTensorMapEncodeTiled,
};
use half::bf16;

use super::{Buffer, DeviceError, Gpu};

/// A tensor map, as a kernel's parameter has it.
pub type TensorMap = [u64; 16];

/// Columns of a box: of a `Tile<64>` of kernels/tile.cuh.
const BOX_COLUMNS: u32 = 64;

impl Gpu {
    /// The tensor map of a matrix `[rows, columns]`, row-major, for boxes of `box_rows` rows, at most 256, and 64 columns, which
    /// stand in shared memory as the kernels' tiles do. It holds while the matrix stays where it is.
    ///
    /// # Errors
    ///
    /// A buffer of another GPU or of another size, and what the driver refuses.
    pub fn tensor_map(
        &self,
        matrix: &Buffer<bf16>,
        [rows, columns]: [usize; 2],
        box_rows: u32,
    ) -> Result<TensorMap, DeviceError> {
        self.owns(matrix)?;
        if matrix.len() != rows * columns {
            let (found, expected) = (matrix.len(), rows * columns);
            return Err(DeviceError::Shapes(format!(
                "a tensor map of a matrix of {found} values, not {expected}"
            )));
        }
        let mut map = MaybeUninit::<CUtensorMap>::uninit();
        let sizes = [columns as u64, rows as u64];
        let strides = [(columns * size_of::<bf16>()) as u64];
        // SAFETY: the arrays have a value for each dimension, the strides one less, and the driver writes a map where it
        // succeeds; it reads nothing of the matrix.
        let encoded = unsafe {
            cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                matrix.pointer::<bf16>().cast_mut().cast(),
                sizes.as_ptr(),
                strides.as_ptr(),
                [BOX_COLUMNS, box_rows].as_ptr(),
                [1, 1].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let action = || format!("making a tensor map of {rows} × {columns} values");
        encoded.result().map_err(|error| self.failed(&action(), error))?;
        // SAFETY: the driver has succeeded.
        Ok(unsafe { map.assume_init() }.opaque)
    }
}
