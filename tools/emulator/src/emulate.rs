//! Runs a launch on the emulator, in this process.

use std::ffi::{CString, c_char, c_void};
use std::fmt;

use crate::ffi;
pub use crate::ffi::Counters;
use crate::kernels::Kernels;
use crate::launch::Launch;

/// Which of the threads that can go on goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Schedule {
    /// The lowest one of the warp that runs, then those of the warps above.
    #[default]
    InOrder,
    /// The highest one.
    Reversed,
    /// Any.
    Random,
    /// Any of the warp with the highest priority; priorities are random, and change at random (PCT).
    Pct,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Schedule; 4] = [Schedule::InOrder, Schedule::Reversed, Schedule::Random, Schedule::Pct];
}

/// When asynchronous copies land.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Copies {
    /// At once.
    AtIssue,
    /// As late as is legal.
    #[default]
    AtWait,
    /// Between the two.
    AtRandom,
}

impl Copies {
    /// All of them.
    pub const ALL: [Copies; 3] = [Copies::AtIssue, Copies::AtWait, Copies::AtRandom];
}

/// How a launch is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of the schedule and of copies at random.
    pub seed: u64,
    /// Which thread goes on.
    pub schedule: Schedule,
    /// When copies land.
    pub copies: Copies,
    /// Threads of the machine that blocks are spread over; results do not depend on it.
    pub workers: u32,
    /// Whether all counters are kept, and not only those that cost nothing.
    pub count: bool,
    /// Bytes of shared memory that a block may have; 0: 227 KiB.
    pub shared_limit: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            schedule: Schedule::default(),
            copies: Copies::default(),
            workers: 1,
            count: false,
            shared_limit: 0,
        }
    }
}

impl Config {
    /// With another seed.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// With another schedule.
    pub fn schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// With copies that land at another time.
    pub fn copies(self, copies: Copies) -> Self {
        Self { copies, ..self }
    }

    /// On so many threads of the machine.
    pub fn workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    /// With all counters.
    pub fn counting(self) -> Self {
        Self { count: true, ..self }
    }

    /// With at most so many bytes of shared memory.
    pub fn shared_limit(self, bytes: u32) -> Self {
        Self { shared_limit: bytes, ..self }
    }

    /// Every schedule with every time of copies. The random ones come once for each seed, the others with the first.
    pub fn matrix(seeds: &[u64]) -> impl Iterator<Item = Config> + '_ {
        let first = seeds.first().copied();
        Schedule::ALL.into_iter().flat_map(move |schedule| {
            Copies::ALL.into_iter().flat_map(move |copies| {
                let random =
                    matches!(schedule, Schedule::Random | Schedule::Pct) || copies == Copies::AtRandom;
                let config = Config::default().schedule(schedule).copies(copies);
                let seeds = seeds.iter().copied().filter(move |seed| random || Some(*seed) == first);
                seeds.map(move |seed| config.seed(seed))
            })
        })
    }

    pub(crate) fn raw(&self) -> ffi::Config {
        ffi::Config {
            seed: self.seed,
            schedule: self.schedule as u32,
            copies: self.copies as u32,
            workers: self.workers,
            count: self.count.into(),
            shared_limit: self.shared_limit,
        }
    }
}

/// What kind of thing was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The launch does not fit the kernel's library: no such kernel, or another size of its parameter.
    Mismatch,
    /// No card allows such a grid, block or shared memory.
    InvalidLaunch,
    /// The block has more threads than the kernel's launch bounds.
    OutOfResources,
    /// An address outside of memory.
    IllegalAddress,
    /// An address that is not aligned.
    Misaligned,
    /// Anything else that a kernel does wrong: deadlocks, divergence, copies not waited for, …
    LaunchFailed,
    /// Memory around a buffer was overwritten.
    Surroundings,
}

impl Fault {
    pub(crate) fn from_code(code: i32) -> Self {
        match code {
            1 => Fault::InvalidLaunch,
            700 => Fault::IllegalAddress,
            701 => Fault::OutOfResources,
            716 => Fault::Misaligned,
            _ => Fault::LaunchFailed,
        }
    }
}

/// What was wrong with a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kind of thing.
    pub fault: Fault,
    /// In words: the place in the source, what happened there, kernel, block and thread, and where the other threads are.
    pub text: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Report {}

/// Runs a launch: its buffers are copied to device memory, the parameter's pointers are filled in, and what the kernel left in
/// the buffers replaces their content, also when there is a report.
pub fn run(kernels: &Kernels, launch: &mut Launch, config: &Config) -> Result<Counters, Report> {
    let mismatch = |text: String| Report { fault: Fault::Mismatch, text };
    let kernel = kernels
        .find(&launch.kernel)
        .ok_or_else(|| mismatch(format!("there is no kernel `{}`", launch.kernel)))?;
    // SAFETY: the kernel is of a library that is loaded; the list is not empty.
    let parameter_bytes = unsafe { *ffi::emu_parameter_bytes(kernel) } as usize;
    if parameter_bytes != launch.parameter.len() {
        return Err(mismatch(format!(
            "kernel `{}` takes a parameter of {parameter_bytes} bytes: the launch has {}",
            launch.kernel,
            launch.parameter.len()
        )));
    }
    let memory = Memory::new();
    let addresses: Vec<u64> = launch
        .buffers
        .iter()
        .map(|buffer| memory.upload(&buffer.name, &buffer.bytes))
        .collect::<Option<_>>()
        .ok_or_else(|| mismatch("the buffers need more memory than there is".into()))?;
    // Kept in units of 16 bytes: the kernel's struct may need that alignment.
    let mut parameter = vec![0u128; parameter_bytes.div_ceil(16).max(1)];
    let bytes = bytes_of_mut(&mut parameter);
    bytes[..parameter_bytes].copy_from_slice(&launch.parameter);
    for pointer in &launch.pointers {
        let place =
            pointer.at.checked_add(8).filter(|end| *end <= parameter_bytes).map(|end| pointer.at..end);
        let target = addresses.get(pointer.buffer).map(|address| address.wrapping_add(pointer.offset as u64));
        let (Some(place), Some(target)) = (place, target) else {
            return Err(mismatch(format!(
                "pointer at byte {} of the parameter to buffer {}: the parameter has {parameter_bytes} bytes, the launch {} buffers",
                pointer.at,
                pointer.buffer,
                addresses.len()
            )));
        };
        bytes[place].copy_from_slice(&target.to_ne_bytes());
    }
    let parameters = [parameter.as_mut_ptr().cast::<c_void>()];
    let mut counters = Counters::default();
    let mut report = vec![0u8; 8 << 10];
    // SAFETY: memory and kernel live; grid and block have three extents, the parameter as many bytes as the kernel reads, and
    // the report's size is that of its buffer.
    let code = unsafe {
        ffi::emu_launch(
            memory.raw,
            kernel,
            launch.grid.as_ptr(),
            launch.block.as_ptr(),
            launch.shared_bytes,
            parameters.as_ptr(),
            &config.raw(),
            &mut counters,
            report.as_mut_ptr().cast::<c_char>(),
            report.len(),
        )
    };
    for (buffer, address) in launch.buffers.iter_mut().zip(&addresses) {
        memory.download(*address, &mut buffer.bytes);
    }
    if code != 0 {
        let end = report.iter().position(|byte| *byte == 0).unwrap_or(report.len());
        let text = String::from_utf8_lossy(&report[..end]).into_owned();
        return Err(Report { fault: Fault::from_code(code), text });
    }
    for (buffer, address) in launch.buffers.iter().zip(&addresses) {
        if !memory.free(*address) {
            return Err(Report {
                fault: Fault::Surroundings,
                text: format!(
                    "kernel `{}`: memory around buffer `{}` was overwritten",
                    launch.kernel, buffer.name
                ),
            });
        }
    }
    Ok(counters)
}

fn bytes_of_mut(words: &mut [u128]) -> &mut [u8] {
    let bytes = size_of_val(words);
    // SAFETY: the bytes are those of the words, any bytes are a word, and the words stay borrowed.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), bytes) }
}

/// Device memory of one launch.
struct Memory {
    raw: *mut ffi::Memory,
}

impl Memory {
    fn new() -> Self {
        // SAFETY: no conditions; it is deleted once, when dropped.
        Self { raw: unsafe { ffi::emu_memory_new(u64::MAX) } }
    }

    /// A new allocation with this content; None without memory for it.
    fn upload(&self, name: &str, bytes: &[u8]) -> Option<u64> {
        // SAFETY: the memory lives.
        let address = unsafe { ffi::emu_alloc(self.raw, bytes.len() as u64) };
        if address == 0 {
            return None;
        }
        if let Ok(name) = CString::new(name) {
            // SAFETY: the memory lives, and the name ends with 0; it is copied.
            unsafe { ffi::emu_name(self.raw, address, name.as_ptr()) };
        }
        // SAFETY: the allocation has as many bytes, and no kernel runs.
        unsafe { self.host(address, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Some(address)
    }

    fn download(&self, address: u64, bytes: &mut [u8]) {
        // SAFETY: the allocation has as many bytes, and no kernel runs.
        unsafe { self.host(address, bytes.len()).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Whether the surroundings were intact.
    fn free(&self, address: u64) -> bool {
        // SAFETY: the memory lives.
        unsafe { ffi::emu_free(self.raw, address) == 0 }
    }

    fn host(&self, address: u64, bytes: usize) -> *mut u8 {
        // SAFETY: the memory lives; the pointer is used only for allocations that are so large.
        unsafe { ffi::emu_host(self.raw, address, bytes as u64).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was made by emu_memory_new, and is not used again.
        unsafe { ffi::emu_memory_delete(self.raw) };
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
        let memory = Memory::new();
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
            assert!(memory.free(address));
            assert!(!memory.free(address), "freed twice");
        }
    }

    #[test]
    fn overwritten_surroundings_are_noticed() {
        let memory = Memory::new();
        for offset in [-1isize, 100, 255] {
            let address = memory.upload("buffer", &[0; 100]).unwrap();
            // SAFETY: in the same pages as the allocation: 256 bytes end with their page, and 3840 are in front of them.
            unsafe { memory.host(address, 100).offset(offset).write(0) };
            assert!(!memory.free(address), "byte {offset}");
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
