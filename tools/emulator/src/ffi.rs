//! The C interface of the core (`include/emulator.h`).

use std::ffi::{c_char, c_int, c_void};

/// `EmuMemory`.
#[repr(C)]
pub(crate) struct Memory {
    _opaque: [u8; 0],
}

/// `EmuKernel`.
#[repr(C)]
pub(crate) struct Kernel {
    _opaque: [u8; 0],
}

/// `EmuConfig`.
#[repr(C)]
pub(crate) struct Config {
    pub seed: u64,
    pub schedule: u32,
    pub copies: u32,
    pub sums: u32,
    pub workers: u32,
    pub count: u32,
    pub shared_limit: u32,
}

/// What a launch did: proxies of speed, the same whatever the schedule, the copies and the workers (`switches` aside).
/// All but `blocks`, `threads`, `mma`, `exponentials`, `barriers` and `switches` are 0 unless `Config::count` is set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks that ran.
    pub blocks: u64,
    /// Threads that ran.
    pub threads: u64,
    /// Bytes that warps ask of global memory: of the sectors that each request touches, one for all lanes.
    pub requested_read: u64,
    /// Bytes of such sectors that they write to.
    pub requested_written: u64,
    /// Distinct bytes of global memory read.
    pub unique_read: u64,
    /// Distinct bytes of global memory written.
    pub unique_written: u64,
    /// Requests of warps to global memory.
    pub requests: u64,
    /// 32-byte sectors that those requests touch.
    pub sectors: u64,
    /// Cycles of shared memory.
    pub wavefronts: u64,
    /// As many there would be without bank conflicts: Σ ⌈distinct bytes / 128⌉.
    pub ideal_wavefronts: u64,
    /// Matrix products of a warp.
    pub mma: u64,
    /// Exponentials and logarithms of a lane.
    pub exponentials: u64,
    /// Barriers of a block that were complete.
    pub barriers: u64,
    /// Fiber switches: what the emulator itself spends its time on.
    pub switches: u64,
}

// SAFETY: the declarations are those of include/emulator.h, and `emu_kernels` is the table that build.rs compiles.
unsafe extern "C" {
    pub(crate) static emu_kernels: u8;

    pub(crate) fn emu_memory_new(limit: u64) -> *mut Memory;
    pub(crate) fn emu_memory_delete(memory: *mut Memory) -> c_int;
    pub(crate) fn emu_alloc(memory: *mut Memory, bytes: u64) -> u64;
    pub(crate) fn emu_free(memory: *mut Memory, address: u64) -> c_int;
    pub(crate) fn emu_host(memory: *mut Memory, address: u64, bytes: u64) -> *mut c_void;
    pub(crate) fn emu_name(memory: *mut Memory, address: u64, name: *const c_char);

    pub(crate) fn emu_find(table: *const c_void, name: *const c_char) -> *const Kernel;
    pub(crate) fn emu_parameter_bytes(kernel: *const Kernel) -> *const u32;
    pub(crate) fn emu_launch(
        memory: *mut Memory,
        kernel: *const Kernel,
        grid: *const u32,
        block: *const u32,
        shared_bytes: u32,
        parameters: *const *mut c_void,
        config: *const Config,
        counters: *mut Counters,
        report: *mut c_char,
        report_bytes: usize,
    ) -> c_int;
}
