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

/// A matrix in panels of columns, of which a box has some of the same rows, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of a panel: 32 or 64, of a `Tile` of as many.
    pub width: usize,
    /// Panels.
    pub count: usize,
    /// Values from a row of a panel to the next.
    pub row_stride: usize,
    /// Values from a panel to the next.
    pub stride: usize,
}

impl Panels {
    /// Panels of 64 columns of a matrix `[rows, columns]`, row-major; there is a multiple of 64 columns. From a panel to the next
    /// are fewer values than from a row to the next, which the driver's manual does not say to be allowed, nor refused: on a card
    /// the vectors of such boxes tell (`tools/gpu/src/vectors`).
    pub fn of_rows(rows: usize, columns: usize) -> Self {
        Panels { rows, width: 64, count: columns / 64, row_stride: columns, stride: 64 }
    }

    /// Those of a matrix `[columns / width, rows, width]`.
    pub fn apart(rows: usize, columns: usize, width: usize) -> Self {
        Panels { rows, width, count: columns / width, row_stride: width, stride: rows * width }
    }

    fn len(&self) -> usize {
        self.rows * self.width * self.count
    }
}

/// A matrix as a kernel takes it: in boxes of so many panels and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boxes {
    /// How it stands in panels.
    pub panels: Panels,
    /// Panels and rows of a box.
    pub size: [u32; 2],
}

impl Boxes {
    /// Boxes of so many columns and rows.
    pub fn of(panels: Panels, columns: u32, rows: u32) -> Self {
        Boxes { panels, size: [columns / panels.width as u32, rows] }
    }
}

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
        let what = || format!("{rows} × {columns} values");
        self.encoded(matrix, rows * columns, [columns, rows], [columns], [BOX_COLUMNS, box_rows], what)
    }

    /// The tensor map of a matrix in panels, for boxes of so many panels and rows, each at most 256, whose panels stand in shared
    /// memory as the kernels' tiles of as many columns do, one behind the other.
    ///
    /// # Errors
    ///
    /// As [`tensor_map`](Self::tensor_map).
    pub fn panels_map(
        &self,
        matrix: &Buffer<bf16>,
        panels: Panels,
        [box_panels, box_rows]: [u32; 2],
    ) -> Result<TensorMap, DeviceError> {
        let Panels { rows, width, count, row_stride, stride } = panels;
        let what = || format!("{count} panels of {rows} × {width} values");
        let (sizes, strides) = ([width, rows, count], [row_stride, stride]);
        self.encoded(matrix, panels.len(), sizes, strides, [width as u32, box_rows, box_panels], what)
    }

    /// The tensor maps by which a kernel takes these matrices in boxes.
    ///
    /// # Errors
    ///
    /// As [`tensor_map`](Self::tensor_map).
    pub fn maps<const COUNT: usize>(
        &self,
        matrices: [&Buffer<bf16>; COUNT],
        boxes: [Boxes; COUNT],
    ) -> Result<[TensorMap; COUNT], DeviceError> {
        let mut maps = [TensorMap::default(); COUNT];
        for ((map, matrix), Boxes { panels, size }) in maps.iter_mut().zip(matrices).zip(boxes) {
            *map = self.panels_map(matrix, panels, size)?;
        }
        Ok(maps)
    }

    /// The tensor map of a buffer of `len` values, for such boxes; the innermost dimension is the first, and is contiguous.
    fn encoded<const DIMENSIONS: usize, const STRIDES: usize>(
        &self,
        matrix: &Buffer<bf16>,
        len: usize,
        sizes: [usize; DIMENSIONS],
        strides: [usize; STRIDES],
        sizes_of_box: [u32; DIMENSIONS],
        what: impl Fn() -> String,
    ) -> Result<TensorMap, DeviceError> {
        const { assert!(STRIDES + 1 == DIMENSIONS) };
        self.owns(matrix)?;
        if matrix.len() != len {
            return Err(DeviceError::Shapes(format!(
                "a tensor map of a matrix of {} values, not {len}",
                matrix.len()
            )));
        }
        let swizzle = match sizes_of_box[0] {
            32 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let mut map = MaybeUninit::<CUtensorMap>::uninit();
        let sizes = sizes.map(|size| size as u64);
        let strides = strides.map(|stride| (stride * size_of::<bf16>()) as u64);
        // SAFETY: the arrays have a value for each dimension, the strides one less, and the driver writes a map where it
        // succeeds; it reads nothing of the matrix.
        let encoded = unsafe {
            cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                DIMENSIONS as u32,
                matrix.pointer::<bf16>().cast_mut().cast(),
                sizes.as_ptr(),
                strides.as_ptr(),
                sizes_of_box.as_ptr(),
                [1; DIMENSIONS].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let action = || format!("making a tensor map of {}", what());
        encoded.result().map_err(|error| self.failed(&action(), error))?;
        // SAFETY: the driver has succeeded.
        Ok(unsafe { map.assume_init() }.opaque)
    }
}
