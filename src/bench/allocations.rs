//! How often the program asks for memory: a step whose buffers have grown to their size should not at all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting. A program installs it:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: setrank::bench::allocations::Counting = setrank::bench::allocations::Counting;
///
/// let before = setrank::bench::allocations::count().unwrap();
/// drop(Box::new(1));
/// assert!(setrank::bench::allocations::count().unwrap() > before);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Allocations and reallocations of all threads since the program began; `None` where [`Counting`] is not the
/// allocator of this program.
pub fn count() -> Option<u64> {
    // No program gets here without an allocation, if only for its arguments.
    Some(COUNT.load(Ordering::Relaxed)).filter(|&count| count > 0)
}

fn counted() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it is; counting touches nothing but an atomic number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        counted();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        counted();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(block, layout, new_size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}
