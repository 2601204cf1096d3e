//! Sums of parts on a GPU: the kernel of `kernels/partial_sums.cu`.

use super::PartialSumsPlan;
use crate::device::abi::PartialSums;
use crate::device::{Buffer, DeviceError, Gpu, Operands, Parameter};

// SAFETY: bindgen makes it of the header that the kernel is compiled with.
unsafe impl cudarc::driver::DeviceRepr for PartialSums {}
// SAFETY: as above.
unsafe impl Parameter for PartialSums {
    fn shapes(&self) -> String {
        format!("{} parts of {} values", self.count, self.length)
    }
}

/// Queues into `[len]` += Σ of the first `count` rows of parts `[count or more, len]`, in an order that depends on
/// `count` alone.
///
/// # Errors
///
/// Parts that are too short, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn partial_sums(
    gpu: &Gpu,
    into: &mut Buffer<f32>,
    parts: &Buffer<f32>,
    count: usize,
) -> Result<(), DeviceError> {
    let length = into.len();
    let plan = PartialSumsPlan::new(length, count)?;
    let mut operands = Operands::new(gpu, "a sum of parts");
    operands.reads("parts [count, len]", parts, parts.len().max(count.saturating_mul(length)))?;
    operands.updates("into [len]", into, length)?;
    let Some(launch) = plan.launch() else { return Ok(()) };
    let parameter = PartialSums { parts: parts.pointer(), into: into.pointer_mut(), ..plan.numbers() };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}
