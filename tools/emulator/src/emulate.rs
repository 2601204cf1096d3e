//! Runs a launch on the emulator, in this process.

use std::ffi::{c_char, c_void};
use std::fmt;

use crate::ffi;
pub use crate::ffi::Counters;
use crate::kernels::Kernels;
use crate::launch::Launch;
use crate::memory::Memory;

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

/// How a matrix instruction adds its products to what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sums {
    /// One after the other, each sum to the nearest f32.
    #[default]
    Nearest,
    /// As an A100: eight at a time, cut one bit behind those of an f32 as large as the largest, their sum cut to f32.
    Ampere,
    /// As is assumed of an H100, after the A100: all 16 at a time, cut two bits behind. Not measured.
    Hopper,
}

impl Sums {
    /// All of them.
    pub const ALL: [Sums; 3] = [Sums::Nearest, Sums::Ampere, Sums::Hopper];
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
    /// How matrix instructions add.
    pub sums: Sums,
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
            sums: Sums::default(),
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

    /// With matrix instructions that add otherwise.
    pub fn sums(self, sums: Sums) -> Self {
        Self { sums, ..self }
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
            sums: self.sums as u32,
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
    /// No card allows such a grid, block or shared memory, or the kernel's launch bounds do not.
    InvalidLaunch,
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
    /// In words: the place in the source, what happened there, kernel, block and thread, and where the others are.
    pub text: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Report {}

/// Runs a launch: its buffers are copied to device memory, the parameter's pointers are filled in, and what the kernel
/// left in the buffers replaces their content, also when there is a report.
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
    let mut memory = Memory::new();
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
                "pointer at byte {} of the parameter to buffer {}: there are {parameter_bytes} bytes and {} buffers",
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
    // SAFETY: memory and kernel live; grid and block have three extents, the parameter as many bytes as the kernel
    // reads, and the report's size is that of its buffer.
    let code = unsafe {
        ffi::emu_launch(
            memory.raw(),
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
    match memory.free().iter().position(|intact| !intact) {
        None => Ok(counters),
        Some(buffer) => {
            let (kernel, name) = (&launch.kernel, &launch.buffers[buffer].name);
            let text = format!("kernel `{kernel}`: memory around buffer `{name}` was overwritten");
            Err(Report { fault: Fault::Surroundings, text })
        }
    }
}

fn bytes_of_mut(words: &mut [u128]) -> &mut [u8] {
    let bytes = size_of_val(words);
    // SAFETY: the bytes are those of the words, any bytes are a word, and the words stay borrowed.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), bytes) }
}
