//! The gradient that backward of a network in one kernel begins with.

use half::bf16;

use super::FeedForwardShape;
use crate::device::abi::FeedForwardBackward;
use crate::device::{Buffer, DeviceError, Operands};
use crate::ops::linear::{LinearPlan, LinearShape, PendingInput};

/// The gradient of the rows behind a network: d, and what comes by way of a projection of the rows.
#[derive(Debug)]
pub struct RowsGradient<'a> {
    /// `[rows, C]`
    pub d: &'a mut Buffer<bf16>,
    /// Whether d is part of it; if not, what stands there is not read.
    pub is_given: bool,
    /// What is added to it, if anything; the sum is rounded, as
    /// [`linear_backward_input`](crate::ops::linear::linear_backward_input) rounds it.
    pub projected: Option<&'a PendingInput>,
}

impl RowsGradient<'_> {
    /// Notes the operands of a launch, and what the kernel takes of them but for d.
    pub(super) fn note(
        &self,
        operands: &mut Operands<'_>,
        parameter: &mut FeedForwardBackward,
        launch: &str,
        shape: FeedForwardShape,
    ) -> Result<(), DeviceError> {
        if self.projected.is_none() && !self.is_given {
            let what = "the gradient is given, or comes by way of a projection, or both";
            return Err(DeviceError::Shapes(format!("{launch}: {what}")));
        }
        operands.updates("d [rows, C]", self.d, shape.values())?;
        if let Some(projected) = self.projected {
            let to = &mut parameter.projected;
            let outputs = projected.shape.outputs;
            let of_rows = LinearShape { rows: shape.rows, inputs: shape.width, outputs };
            let plan = LinearPlan::new(of_rows, projected.layout)?;
            operands.reads("the projection's gradient [rows, out]", &projected.dy, shape.rows * outputs)?;
            operands.reads("the projection's weight [out, C]", &projected.weight, outputs * shape.width)?;
            (to.d, to.weight) = (projected.dy.pointer(), projected.weight.pointer());
            (to.outputs, to.width) = (outputs as i32, plan.width() as i32);
        }
        parameter.given = i32::from(self.is_given);
        Ok(())
    }
}
