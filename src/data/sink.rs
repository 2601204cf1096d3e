//! Where feature values go as they are read: memory, a store on the disk, or nowhere.

use crate::{Error, Result};

/// Takes feature values, row after row.
pub trait Sink: Send {
    /// Whether anything is made of the values: where not, none need be given.
    const KEEPS: bool = true;

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

/// Keeps nothing.
pub struct Discard;

impl Sink for Discard {
    const KEEPS: bool = false;

    fn append(&mut self, _: &[f32]) -> Result<()> {
        Ok(())
    }
}
