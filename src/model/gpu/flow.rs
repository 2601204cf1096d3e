//! The gradient that flows backwards through rows.

use half::bf16;

use crate::device::{Arena, Buffer, DeviceError, Gpu};
use crate::ops::feed_forward::RowsGradient;
use crate::ops::linear::{InputGradient, PendingInput};
use crate::ops::row_sums::relu_backward;

/// A gradient of rows `[rows, C]`: what stands in `d`, and what comes by way of a projection of the rows and is yet to be
/// computed, in front of what reads it or by the kernel that does.
#[derive(Debug)]
pub(super) struct Flow {
    /// The gradient, where nothing is pending.
    pub d: Buffer<bf16>,
    /// A second buffer, that it is written to in turn.
    pub next: Buffer<bf16>,
    /// Whether `d` is part of the gradient.
    is_given: bool,
    pending: Option<PendingInput>,
}

impl Flow {
    pub fn new(arena: &mut Arena, len: usize) -> Result<Self, DeviceError> {
        Ok(Flow { d: arena.take(len)?, next: arena.take(len)?, is_given: true, pending: None })
    }

    /// What was written to `next` is the gradient now.
    pub fn turn(&mut self) {
        std::mem::swap(&mut self.d, &mut self.next);
    }

    /// Adds the gradient by way of a projection, once what is pending is computed; its operands stay as they are until it is.
    pub fn add(&mut self, gpu: &Gpu, projected: PendingInput) -> Result<(), DeviceError> {
        self.settle(gpu)?;
        self.pending = Some(projected);
        Ok(())
    }

    /// The gradient is what comes by way of a projection, whatever stood there.
    pub fn set(&mut self, projected: PendingInput) {
        self.is_given = false;
        self.pending = Some(projected);
    }

    /// Computes what is pending.
    pub fn settle(&mut self, gpu: &Gpu) -> Result<(), DeviceError> {
        self.pending.take().map_or(Ok(()), |projected| self.compute(gpu, &projected, None))
    }

    /// Computes what is pending, and makes the gradient 0 where `y` `[rows, C]`, the output of a ReLU, is not above 0.
    pub fn settle_masked(&mut self, gpu: &Gpu, y: &Buffer<bf16>) -> Result<(), DeviceError> {
        let Some(projected) = self.pending.take() else { return relu_backward(gpu, &mut self.d, y) };
        self.compute(gpu, &projected, Some(y))
    }

    fn compute(
        &mut self,
        gpu: &Gpu,
        projected: &PendingInput,
        mask: Option<&Buffer<bf16>>,
    ) -> Result<(), DeviceError> {
        let added = self.is_given.then_some(&self.d);
        projected.compute(gpu, &mut self.next, InputGradient { added, mask })?;
        self.is_given = true;
        self.turn();
        Ok(())
    }

    /// Has a kernel compute what is pending, which replaces the gradient in `d`, and writes to `next` besides.
    pub fn replace(
        &mut self,
        by: impl FnOnce(RowsGradient<'_>, &mut Buffer<bf16>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let projected = self.pending.take();
        let is_given = std::mem::replace(&mut self.is_given, true);
        by(RowsGradient { d: &mut self.d, is_given, projected: projected.as_ref() }, &mut self.next)
    }
}
