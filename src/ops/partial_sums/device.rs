//! Sums of parts on a GPU: the kernel of `kernels/partial_sums.cu`.

use super::PartialSumsPlan;
use crate::device::abi::{PartialSum, PartialSums};
use crate::device::{Buffer, DeviceError, Gpu, Operands, parameter};

parameter!(PartialSums: |self| {
    let of = |sum: &PartialSum| format!("{} parts of {} values", sum.count, sum.length);
    self.sums.iter().take(self.count as usize).map(of).collect::<Vec<_>>().join(", ")
});

/// A sum of parts.
#[derive(Debug)]
pub struct SumOfParts {
    /// `[len]`: what is added to.
    pub into: Buffer<f32>,
    /// `[count or more, len]`
    pub parts: Buffer<f32>,
    /// Parts that are added.
    pub count: usize,
}

/// Queues into `[len]` += Σ of the first `count` rows of parts, of up to 32 sums, each in an order that depends on its
/// `count` alone.
///
/// # Errors
///
/// More sums, parts that are too short, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn partial_sums(gpu: &Gpu, sums: &mut [SumOfParts]) -> Result<(), DeviceError> {
    let shapes: Vec<(usize, usize)> = sums.iter().map(|sum| (sum.into.len(), sum.count)).collect();
    let plan = PartialSumsPlan::new(&shapes)?;
    let mut operands = Operands::new(gpu, "sums of parts");
    let mut parameter = plan.numbers();
    for (SumOfParts { into, parts, count }, of) in sums.iter_mut().zip(&mut parameter.sums) {
        operands.reads("parts [count, len]", parts, parts.len().max(count.saturating_mul(into.len())))?;
        operands.updates("into [len]", into, into.len())?;
        (of.parts, of.into) = (parts.pointer(), into.pointer_mut());
    }
    let Some(launch) = plan.launch() else { return Ok(()) };
    // SAFETY: the buffers have the kernel's sizes and do not overlap, and memory that is given back is freed in the
    // stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}
