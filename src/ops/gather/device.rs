//! Rows by their numbers on a GPU: the kernels of `kernels/gather.cu`.

use half::bf16;

use super::GatherPlan;
use crate::data::augment::FeatureDropout;
use crate::device::abi::GatherRows;
use crate::device::{Arena, Buffer, DeviceError, Gpu, Operands, Package, parameter};

parameter!(GatherRows: |self| {
    let rows = format!("{} rows of {} values", self.rows, self.width);
    match self.dropout.features {
        0 => rows,
        features => format!("{rows}, with dropout of {features} features"),
    }
});

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

/// Feature dropout of a batch, on a GPU.
#[derive(Debug)]
pub struct DeviceFeatureDropout {
    /// Rows of the data set `[rows]`.
    data_rows: Buffer<i32>,
    dropout: FeatureDropout,
}

impl DeviceFeatureDropout {
    /// Puts what `dropout` draws by into `package`: the documents' rows in the data set.
    ///
    /// # Errors
    ///
    /// A row that 32 bits do not count, and too small a package.
    pub fn new(
        package: &mut Package<'_>,
        dropout: FeatureDropout,
        data_rows: &[usize],
    ) -> Result<Self, DeviceError> {
        if let Some(row) = data_rows.iter().find(|&&row| i32::try_from(row).is_err()) {
            return Err(DeviceError::Shapes(format!(
                "dropping features on a GPU: row {row} of the data set, more than kernels count"
            )));
        }
        let data_rows = package.put_with(data_rows.len(), |to| {
            to.iter_mut().zip(data_rows).for_each(|(to, &row)| *to = row as i32);
        })?;
        Ok(DeviceFeatureDropout { data_rows, dropout })
    }

    /// Bytes of a package that it takes for so many rows.
    pub fn bytes(rows: usize) -> usize {
        Arena::bytes_for([rows * size_of::<i32>()])
    }
}

/// Queues to `[rows, width]` = the numbered rows of `from` `[any, width]`, with features of each that `dropout` drops made
/// 0; `width` is a multiple of 64.
///
/// # Errors
///
/// Sizes that do not fit, columns of `dropout` that are none of the rows', buffers that overlap or are of another GPU, and
/// what the driver refuses.
pub fn gather_rows(
    gpu: &Gpu,
    to: &mut Buffer<bf16>,
    from: &Buffer<bf16>,
    numbers: &RowNumbers,
    dropout: Option<&DeviceFeatureDropout>,
    width: usize,
) -> Result<(), DeviceError> {
    let rows = numbers.index.len();
    let plan = GatherPlan::new(rows, width, dropout.map(|dropout| dropout.dropout))?;
    let mut operands = Operands::new(gpu, "gathering rows");
    operands.reads("from [any, width]", from, numbers.of.saturating_mul(width))?;
    operands.reads("numbers [rows]", &numbers.index, rows)?;
    if let Some(dropout) = dropout {
        operands.reads("rows of the data set [rows]", &dropout.data_rows, rows)?;
    }
    operands.writes("to [rows, width]", to, rows.saturating_mul(width))?;
    let Some(launch) = plan.launch() else { return Ok(()) };
    let parameter = GatherRows {
        from: from.pointer(),
        index: numbers.index.pointer(),
        data_rows: dropout.map_or(std::ptr::null(), |dropout| dropout.data_rows.pointer()),
        to: to.pointer_mut(),
        ..plan.numbers()
    };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, numbers are rows of `from`, and memory that is given
    // back is freed in the stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}
