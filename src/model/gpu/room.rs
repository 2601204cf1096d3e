//! Memory for one batch after the other.

use super::sizes::Extent;
use crate::device::{Arena, DeviceError, Gpu};

/// Memory that holds one batch at a time, and grows with the largest.
#[derive(Debug, Default)]
pub struct Room {
    arena: Option<Arena>,
    bytes: usize,
}

impl Room {
    /// An arena of at least `bytes` bytes for a batch of `extent`. What the last batch had in it is to be dropped by now.
    /// Waits for all work where no batch before was as large.
    ///
    /// # Errors
    ///
    /// Too little memory: how many documents would do.
    pub fn arena(&mut self, gpu: &Gpu, bytes: usize, extent: Extent) -> Result<&mut Arena, DeviceError> {
        if bytes > self.bytes && self.arena.is_some() {
            // Given back first: both would not fit. It is free when the stream has got there.
            self.arena = None;
            self.bytes = 0;
            gpu.synchronize()?;
        }
        let arena = match self.arena.take() {
            Some(mut arena) => {
                arena.clear()?;
                arena
            }
            None => {
                let Extent { documents, sets } = extent;
                let (free, total) = gpu.memory()?;
                if bytes > free {
                    let possible = (documents as u128 * free as u128 / bytes as u128) as usize;
                    let needed = bytes;
                    return Err(DeviceError::BatchTooLarge {
                        documents,
                        sets,
                        needed,
                        free,
                        total,
                        possible,
                    });
                }
                gpu.arena(&format!("a batch of {documents} documents in {sets} set(s)"), bytes)?
            }
        };
        self.bytes = self.bytes.max(bytes);
        Ok(self.arena.insert(arena))
    }
}
