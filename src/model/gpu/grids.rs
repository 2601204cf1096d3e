//! Features of a batch that stay on the GPU in the grids, padded or masked, in which they were handed over.

use half::bf16;

use super::sizes;
use crate::config::ModelConfig;
use crate::data::layout::Grid;
use crate::device::{Buffer, DeviceError, Gpu};
use crate::ops::unpad::{DeviceGrid, unpad};

/// The grids of one batch on a GPU, padding included. Each step's rows are taken out of them by lengths or mask.
#[derive(Debug)]
pub struct Grids {
    grids: Vec<DeviceGrid>,
    /// Columns of a document's row.
    width: usize,
}

impl Grids {
    /// Bytes of the GPU's memory that they take.
    pub fn bytes(grids: &[Grid]) -> usize {
        grids.iter().map(DeviceGrid::bytes).sum()
    }

    /// Copies the features of a batch in grids, set by set as they stand there, for the model of `config`.
    ///
    /// # Errors
    ///
    /// Grids that are none or of other features than the model's, too little memory, and what the driver refuses.
    pub fn new(gpu: &Gpu, config: &ModelConfig, grids: &[Grid]) -> Result<Self, DeviceError> {
        let features = config.input_size();
        if let Some(other) = grids.iter().find(|grid| grid.num_features != features) {
            return Err(DeviceError::Shapes(format!(
                "a grid has {} features of each document, not {features}",
                other.num_features
            )));
        }
        let mut arena = gpu.arena("the features of a batch in grids", Self::bytes(grids))?;
        let width = sizes::input_width(config);
        let grids = grids.iter().map(|grid| DeviceGrid::new(gpu, &mut arena, grid, width));
        Ok(Grids { grids: grids.collect::<Result<_, _>>()?, width })
    }

    /// Documents of all grids.
    pub fn documents(&self) -> usize {
        self.grids.iter().map(DeviceGrid::documents).sum()
    }

    /// Queues rows `[N, F]` of their documents, F filled up with zeros.
    pub(super) fn unpad(&self, gpu: &Gpu, rows: &mut Buffer<bf16>) -> Result<(), DeviceError> {
        let mut first = 0;
        for grid in &self.grids {
            let end = first + grid.documents();
            unpad(gpu, &mut rows.part(first * self.width..end * self.width)?, grid)?;
            first = end;
        }
        Ok(())
    }
}
