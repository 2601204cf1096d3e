//! Device memory of one launch.

use std::ffi::CString;
use std::sync::Mutex;

use crate::ffi;

/// Device memory, empty at first.
pub(crate) struct Memory {
    raw: Raw,
    /// In the order in which they were made.
    allocations: Vec<u64>,
}

/// What the core made, to be used by one launch at a time.
struct Raw(*mut ffi::Memory);

// SAFETY: the core does not care which thread calls it.
unsafe impl Send for Raw {}

/// Those that no launch uses, each without allocations: they keep the stacks of a block's threads, which take longer to
/// make than most launches.
static IDLE: Mutex<Vec<Raw>> = Mutex::new(Vec::new());

/// How many of them are kept.
const MOST_IDLE: usize = 8;

impl Memory {
    pub(crate) fn new() -> Self {
        let idle = IDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        // SAFETY: no conditions; it is deleted once, or kept.
        let raw = idle.unwrap_or_else(|| Raw(unsafe { ffi::emu_memory_new(u64::MAX) }));
        Self { raw, allocations: Vec::new() }
    }

    pub(crate) fn raw(&self) -> *mut ffi::Memory {
        self.raw.0
    }

    /// A new allocation with this content; None without memory for it.
    pub(crate) fn upload(&mut self, name: &str, bytes: &[u8]) -> Option<u64> {
        // SAFETY: the memory lives.
        let address = unsafe { ffi::emu_alloc(self.raw(), bytes.len() as u64) };
        if address == 0 {
            return None;
        }
        self.allocations.push(address);
        if let Ok(name) = CString::new(name) {
            // SAFETY: the memory lives, and the name ends with 0; it is copied.
            unsafe { ffi::emu_name(self.raw(), address, name.as_ptr()) };
        }
        // SAFETY: the allocation has as many bytes, and no kernel runs.
        unsafe { self.host(address, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Some(address)
    }

    /// Copies what an allocation of that many bytes holds.
    pub(crate) fn download(&self, address: u64, bytes: &mut [u8]) {
        // SAFETY: the allocation has as many bytes, and no kernel runs.
        unsafe { self.host(address, bytes.len()).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Frees all allocations; of each, in order, whether the memory around it was intact.
    pub(crate) fn free(&mut self) -> Vec<bool> {
        let raw = self.raw();
        // SAFETY: the memory lives, and each allocation is freed once.
        self.allocations.drain(..).map(|address| unsafe { ffi::emu_free(raw, address) == 0 }).collect()
    }

    fn host(&self, address: u64, bytes: usize) -> *mut u8 {
        // SAFETY: the memory lives; the pointer is used only for allocations that are so large.
        unsafe { ffi::emu_host(self.raw(), address, bytes as u64).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.free();
        let raw = self.raw();
        let mut idle = IDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if idle.len() < MOST_IDLE {
            idle.push(Raw(raw));
        } else {
            // SAFETY: it was made by emu_memory_new, and is not used again.
            unsafe { ffi::emu_memory_delete(raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The permissions of the page at a host address, as /proc tells them.
    fn permissions(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (begin, end) = range.split_once('-')?;
            let at = |text| usize::from_str_radix(text, 16).ok();
            (at(begin)?..at(end)?).contains(&address).then(|| rest[..4].to_string())
        })
    }

    #[test]
    fn allocations_lie_between_guard_pages() {
        let mut memory = Memory::new();
        for bytes in [0usize, 1, 255, 256, 257, 4096, 10_000] {
            let address = memory.upload("buffer", &vec![1; bytes]).unwrap();
            assert_eq!(address % 256, 0);
            let host = memory.host(address, bytes) as usize;
            assert_ne!(host as u64, address, "an address of device memory is one of the host");
            assert_eq!(permissions(address as usize), None);
            let end = host + bytes.max(1).next_multiple_of(256);
            assert_eq!(permissions(end - 1).as_deref(), Some("rw-p"));
            assert_eq!(permissions(end).as_deref(), Some("---p"), "{bytes} bytes");
            let first_page = host / 4096 * 4096;
            assert_eq!(permissions(first_page - 1).as_deref(), Some("---p"), "{bytes} bytes");
            assert_eq!(memory.free(), [true]);
            assert_eq!(memory.free(), []);
        }
    }

    #[test]
    fn overwritten_surroundings_are_noticed() {
        let mut memory = Memory::new();
        for offset in [-1isize, 100, 255] {
            let address = memory.upload("buffer", &[0; 100]).unwrap();
            // SAFETY: in the same page as the allocation: 256 bytes end with it, and 3840 are in front of them.
            unsafe { memory.host(address, 100).offset(offset).write(0) };
            memory.upload("other", &[0; 100]).unwrap();
            assert_eq!(memory.free(), [false, true], "byte {offset}");
        }
    }

    #[test]
    fn memory_has_a_limit_and_bounds() {
        // SAFETY: the memory is used until it is deleted, and pointers only compared.
        unsafe {
            let memory = ffi::emu_memory_new(1000);
            let first = ffi::emu_alloc(memory, 600);
            assert_ne!(first, 0);
            assert_eq!(ffi::emu_alloc(memory, 401), 0);
            assert_ne!(ffi::emu_alloc(memory, 400), 0);
            assert!(!ffi::emu_host(memory, first + 599, 1).is_null());
            assert!(ffi::emu_host(memory, first + 599, 2).is_null());
            assert!(ffi::emu_host(memory, first - 1, 1).is_null());
            assert!(ffi::emu_host(memory, first, u64::MAX).is_null());
            assert_eq!(ffi::emu_free(memory, first + 1), 1);
            assert_eq!(ffi::emu_free(memory, first), 0);
            assert!(ffi::emu_host(memory, first, 1).is_null());
            assert_eq!(ffi::emu_memory_delete(memory), 0);
        }
    }
}
