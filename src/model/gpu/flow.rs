//! The gradient that flows backwards through rows.

use half::bf16;

use crate::device::{Arena, Buffer, DeviceError, Gpu};
use crate::ops::feed_forward::RowsGradient;
use crate::ops::linear::{InputGradient, PendingInput};
use crate::ops::row_sums::relu_backward;

/// A gradient of rows `[rows, C]`: what stands in `d`, and what comes by way of projections of the rows and is yet to be
/// computed, in front of what reads it or by the kernel that does.
#[derive(Debug)]
pub(super) struct Flow {
    /// The gradient, where nothing is pending.
    pub d: Buffer<bf16>,
    /// A second buffer, that it is written to in turn.
    pub next: Buffer<bf16>,
    /// Whether `d` is part of the gradient.
    is_given: bool,
    pending: Vec<PendingInput>,
}

impl Flow {
    pub fn new(arena: &mut Arena, len: usize) -> Result<Self, DeviceError> {
        Ok(Flow { d: arena.take(len)?, next: arena.take(len)?, is_given: true, pending: Vec::new() })
    }

    /// What was written to `next` is the gradient now.
    pub fn turn(&mut self) {
        std::mem::swap(&mut self.d, &mut self.next);
    }

    /// Adds the gradient by way of a projection; its operands stay as they are until it is computed.
    pub fn add(&mut self, projected: PendingInput) {
        self.pending.push(projected);
    }

    /// The gradient is what comes by way of a projection, whatever stood there.
    pub fn set(&mut self, projected: PendingInput) {
        self.pending.clear();
        self.is_given = false;
        self.add(projected);
    }

    /// Computes what is pending.
    pub fn settle(&mut self, gpu: &Gpu) -> Result<(), DeviceError> {
        std::mem::take(&mut self.pending).iter().try_for_each(|projected| self.compute(gpu, projected, None))
    }

    /// Computes what is pending, and makes the gradient 0 where `y` `[rows, C]`, the output of a ReLU, is not above 0.
    pub fn settle_masked(&mut self, gpu: &Gpu, y: &Buffer<bf16>) -> Result<(), DeviceError> {
        let Some(last) = self.pending.pop() else { return relu_backward(gpu, &mut self.d, y) };
        self.settle(gpu)?;
        self.compute(gpu, &last, Some(y))
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
        let projected = std::mem::take(&mut self.pending);
        let is_given = std::mem::replace(&mut self.is_given, true);
        by(RowsGradient { d: &mut self.d, is_given, projected: &projected }, &mut self.next)
    }
}
