//! Buffers that live within one call, kept to be reused.

use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;

use super::gemm::Aligned;

/// One buffer a thread.
#[derive(Debug, Default)]
pub struct PerThread(Vec<Mutex<Aligned>>);

impl PerThread {
    /// Makes sure that every thread of the current pool has one.
    pub fn prepare(&mut self) {
        let threads = rayon::current_num_threads();
        if self.0.len() < threads {
            self.0.resize_with(threads, Mutex::default);
        }
    }

    /// Makes every buffer at least `len` numbers long, so that none grows later, on a thread that was idle so far.
    pub fn reserve<T: Pod>(&self, len: usize) {
        for buffer in &self.0 {
            buffer.lock().unwrap_or_else(PoisonError::into_inner).of::<T>(len);
        }
    }

    /// Calls `work` with the calling thread's buffer: `len` numbers of any content. `work` must not use the pool.
    pub fn with<T: Pod, R>(&self, len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
        let thread = rayon::current_thread_index().unwrap_or(0);
        let mut buffer = self.0[thread].lock().unwrap_or_else(PoisonError::into_inner);
        work(buffer.of(len))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|buffer| buffer.lock().unwrap_or_else(PoisonError::into_inner).bytes()).sum()
    }
}

/// A buffer of its own for each copy.
impl Clone for PerThread {
    fn clone(&self) -> Self {
        PerThread::default()
    }
}

/// Cuts `len` numbers off the front of `rest`.
pub fn take<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    let (first, others) = std::mem::take(rest).split_at_mut(len);
    *rest = others;
    first
}
