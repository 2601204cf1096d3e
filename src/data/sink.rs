//! Where feature values go as they are read: memory, or a store on the disk.

use crate::{Error, Result};

/// Takes feature values, row after row.
pub trait Sink: Send {
    /// Appends whole rows.
    fn append(&mut self, values: &[f32]) -> Result<()>;
}

impl Sink for Vec<f32> {
    fn append(&mut self, values: &[f32]) -> Result<()> {
        self.try_reserve(values.len()).map_err(|_| {
            Error::data(
                "the features do not fit into memory: import the text into a .sets file, which is mapped",
            )
        })?;
        self.extend_from_slice(values);
        Ok(())
    }
}
