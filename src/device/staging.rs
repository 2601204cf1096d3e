//! Pinned memory of the host.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream, DriverError, PinnedHostSlice};

use super::{Element, driver};

/// Values in page-locked memory, which copies read and write while the host goes on. Touching them waits for the
/// copies.
#[derive(Debug)]
pub struct Staging<T> {
    /// Owns the memory. Its own way to the values asks the driver every time whether an event of its own has come.
    memory: PinnedHostSlice<T>,
    values: NonNull<T>,
    /// When the newest copy is done.
    copied: CudaEvent,
    /// The one stream that its copies queue up in.
    stream: Arc<CudaStream>,
}

// SAFETY: the memory is owned, and reached by `&self` to be read alone.
unsafe impl<T: Send> Send for Staging<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Staging<T> {}

impl<T: Element> Staging<T> {
    /// `len` zeros.
    pub(super) fn new(stream: &Arc<CudaStream>, len: usize) -> Result<Self, DriverError> {
        let context = stream.context();
        // Not write-combined, as cudarc has it without being told: reading that is slow.
        // SAFETY: every value of an element may be any bits, and they are set before anyone sees them.
        let mut memory = unsafe { context.alloc_pinned_with_flags::<T>(len, 0) }?;
        memory.as_mut_slice()?.fill(T::zeroed());
        let values = NonNull::from(memory.as_mut_slice()?).cast();
        // cudarc's own event of the memory is not recorded where it does not track memory.
        let copied = context.new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))?;
        Ok(Staging { memory, values, copied, stream: stream.clone() })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The values, once all copies are done.
    pub(super) fn wait(&self) -> Result<&[T], DriverError> {
        self.copied.synchronize()?;
        Ok(self.values())
    }

    /// The values to be changed, once all copies are done.
    pub(super) fn wait_mut(&mut self) -> Result<&mut [T], DriverError> {
        self.copied.synchronize()?;
        Ok(self.values_mut())
    }

    fn values(&self) -> &[T] {
        // SAFETY: the memory is there as long as this is, and holds values.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.len()) }
    }

    fn values_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr(), self.len()) }
    }

    pub(super) fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Has `copy` queue a copy from the values, and remembers when that is done.
    pub(super) fn copy_from(
        &self,
        copy: impl FnOnce(&[T]) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        copy(self.values())?;
        self.remember()
    }

    /// Has `copy` queue a copy to the values, and remembers when that is done.
    pub(super) fn copy_to(
        &mut self,
        copy: impl FnOnce(&mut [T]) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        copy(self.values_mut())?;
        self.remember()
    }

    fn remember(&self) -> Result<(), DriverError> {
        self.copied.record(&self.stream).or_else(|error| {
            // Nothing else would wait for the copy.
            self.stream.synchronize()?;
            Err(error)
        })
    }
}

impl<T> Drop for Staging<T> {
    fn drop(&mut self) {
        driver::make_current(&self.stream);
        // A copy may still be under way; if that fails, so does what comes next.
        let _ = self.copied.synchronize();
    }
}
