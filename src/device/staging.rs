//! Pinned memory of the host.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, PinnedHostSlice};

use super::Element;

/// Values in page-locked memory, which copies read and write while the host goes on. Touching them waits for the
/// copies.
#[derive(Debug)]
pub struct Staging<T>(PinnedHostSlice<T>);

impl<T: Element> Staging<T> {
    /// `len` zeros.
    pub(super) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        // Not write-combined, as cudarc has it without being told: reading that is slow.
        // SAFETY: every value of an element may be any bits, and they are set before anyone sees them.
        let mut pinned = unsafe { context.alloc_pinned_with_flags::<T>(len, 0) }?;
        pinned.as_mut_slice()?.fill(T::zeroed());
        Ok(Staging(pinned))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn pinned(&self) -> &PinnedHostSlice<T> {
        &self.0
    }

    pub(super) fn pinned_mut(&mut self) -> &mut PinnedHostSlice<T> {
        &mut self.0
    }
}
