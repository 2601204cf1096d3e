//! Rows by their numbers on a GPU: the kernel of `kernels/gather.cu`.

use half::bf16;

use super::GatherPlan;
use crate::device::abi::GatherRows;
use crate::device::{Arena, Buffer, DeviceError, Gpu, Operands, Package, Parameter};

// SAFETY: bindgen makes it of the header that the kernel is compiled with.
unsafe impl cudarc::driver::DeviceRepr for GatherRows {}
// SAFETY: as above.
unsafe impl Parameter for GatherRows {
    fn shapes(&self) -> String {
        format!("{} rows of {} values", self.rows, self.width)
    }
}

/// Numbers of rows of a matrix, on a GPU.
#[derive(Debug)]
pub struct RowNumbers {
    /// `[rows]`
    index: Buffer<i32>,
    /// Rows of the matrix: what every number is below.
    of: usize,
}

impl RowNumbers {
    /// Puts numbers of rows of a matrix that has `of` of them into `package`.
    ///
    /// # Errors
    ///
    /// A number that is none of the matrix's rows, and too small a package.
    pub fn new(package: &mut Package<'_>, numbers: &[i32], of: usize) -> Result<Self, DeviceError> {
        let inside = |&number: &i32| usize::try_from(number).is_ok_and(|number| number < of);
        if let Some(at) = numbers.iter().position(|number| !inside(number)) {
            return Err(DeviceError::Shapes(format!(
                "gathering rows on a GPU: number {at} is row {} of a matrix of {of} rows",
                numbers[at]
            )));
        }
        Ok(RowNumbers { index: package.put(numbers)?, of })
    }

    /// Bytes of a package that so many numbers take.
    pub fn bytes(rows: usize) -> usize {
        Arena::bytes_for([rows * size_of::<i32>()])
    }
}

/// Queues to `[rows, width]` = the numbered rows of `from` `[any, width]`; `width` is a multiple of 64.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn gather_rows(
    gpu: &Gpu,
    to: &mut Buffer<bf16>,
    from: &Buffer<bf16>,
    numbers: &RowNumbers,
    width: usize,
) -> Result<(), DeviceError> {
    let rows = numbers.index.len();
    let plan = GatherPlan::new(rows, width)?;
    let mut operands = Operands::new(gpu, "gathering rows");
    operands.reads("from [any, width]", from, numbers.of.saturating_mul(width))?;
    operands.reads("numbers [rows]", &numbers.index, rows)?;
    operands.writes("to [rows, width]", to, rows.saturating_mul(width))?;
    let Some(launch) = plan.launch() else { return Ok(()) };
    let parameter = GatherRows {
        from: from.pointer(),
        index: numbers.index.pointer(),
        to: to.pointer_mut(),
        ..plan.numbers()
    };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, numbers are rows of `from`, and memory that is given
    // back is freed in the stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}
