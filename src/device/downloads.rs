//! Copies to the host that nobody waits for before they are needed.

use super::{Buffer, DeviceError, Element, Gpu, Staging};

/// Pinned memory for results, used again when they have been read.
#[derive(Debug)]
pub struct Downloads<T> {
    idle: Vec<Staging<T>>,
}

/// Values on their way to the host.
#[derive(Debug)]
pub struct Queued<T> {
    pinned: Staging<T>,
    len: usize,
}

/// Values of the least pinned memory.
const LEAST: usize = 256;

impl<T> Default for Downloads<T> {
    fn default() -> Self {
        Downloads { idle: Vec::new() }
    }
}

impl<T: Element> Downloads<T> {
    /// Queues the copy of `from`.
    pub fn queue(&mut self, gpu: &Gpu, from: &Buffer<T>) -> Result<Queued<T>, DeviceError> {
        let len = from.len();
        let mut pinned = match self.idle.iter().position(|pinned| pinned.len() >= len) {
            Some(at) => self.idle.swap_remove(at),
            None => {
                // One that is too small makes room for one that is not.
                self.idle.pop();
                gpu.staging(len.next_power_of_two().max(LEAST))?
            }
        };
        gpu.download_staged(&mut pinned, from)?;
        Ok(Queued { pinned, len })
    }

    /// The values, once they are there.
    pub fn wait(&mut self, gpu: &Gpu, queued: Queued<T>) -> Result<Vec<T>, DeviceError> {
        let values = gpu.staged(&queued.pinned)?[..queued.len].to_vec();
        self.idle.push(queued.pinned);
        Ok(values)
    }
}
