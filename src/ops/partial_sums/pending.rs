//! Sums that kernels have left parts of, put together until one launch adds them up.

use super::{SumOfParts, partial_sums};
use crate::device::abi::PARTIAL_SUMS_AT_ONCE;
use crate::device::{Buffer, DeviceError, Gpu};

/// Sums that are yet to be added up, and room for their parts.
#[derive(Debug)]
pub struct PendingSums {
    scratch: Buffer<f32>,
    /// Values of the scratch that pending parts take.
    used: usize,
    sums: Vec<SumOfParts>,
}

impl PendingSums {
    /// None yet, with this room for parts.
    pub fn new(scratch: Buffer<f32>) -> Self {
        PendingSums { scratch, used: 0, sums: Vec::with_capacity(PARTIAL_SUMS_AT_ONCE as usize) }
    }

    /// Room for `len` values, parts of `sums` sums that a kernel leaves, which are to be [`add`](Self::add)ed. Where there is not
    /// enough behind those that are pending, or one launch would not take as many sums, these are added up first.
    ///
    /// # Errors
    ///
    /// Less scratch than that, and what the driver refuses.
    pub fn room(&mut self, gpu: &Gpu, len: usize, sums: usize) -> Result<Buffer<f32>, DeviceError> {
        if len > self.scratch.len() {
            return Err(DeviceError::Shapes(format!(
                "sums of parts on a GPU: scratch has {} values, not {len} or more",
                self.scratch.len()
            )));
        }
        if self.used + len > self.scratch.len() || self.sums.len() + sums > PARTIAL_SUMS_AT_ONCE as usize {
            self.finish(gpu)?;
        }
        let begin = self.used;
        // Buffers begin at a multiple of 16 bytes.
        self.used = (begin + len).next_multiple_of(4);
        self.scratch.part(begin..begin + len)
    }

    /// Has into `[len]` += Σ of `count` parts `[count, len]`, once all are added up.
    pub fn add(&mut self, into: &Buffer<f32>, parts: Buffer<f32>, count: usize) -> Result<(), DeviceError> {
        self.sums.push(SumOfParts { into: into.part(0..into.len())?, parts, count });
        Ok(())
    }

    /// Queues what is pending.
    ///
    /// # Errors
    ///
    /// As [`partial_sums`]: two sums into the same values, for one.
    pub fn finish(&mut self, gpu: &Gpu) -> Result<(), DeviceError> {
        self.used = 0;
        let queued = partial_sums(gpu, &mut self.sums);
        self.sums.clear();
        queued
    }

    /// Queues what `ops` leave parts of in this scratch, and the sums.
    ///
    /// # Errors
    ///
    /// As [`room`](Self::room) and [`finish`](Self::finish), and those of `ops`.
    pub fn of(
        gpu: &Gpu,
        scratch: &Buffer<f32>,
        ops: impl FnOnce(&mut Self) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut sums = PendingSums::new(scratch.part(0..scratch.len())?);
        ops(&mut sums)?;
        sums.finish(gpu)
    }
}
