//! The mock CUDA driver: a `libcuda.so` whose devices are the emulator.
//!
//! [`load`] loads it by its path; its SONAME is `libcuda.so`, so that a later `dlopen("libcuda.so")`, such as
//! cudarc's, finds it without any variable of the environment. [`with`] runs code on devices as configured,
//! with nothing left over from before. A program of its own finds the library through `LD_LIBRARY_PATH`, see
//! [`directory`].
//!
//! It keeps the real driver's rules; where that one may choose, it chooses what shows a mistake:
//!
//! - Queued work runs only when something waits for it, and then no more than that needs: a synchronization
//!   or an event that a program forgot shows in its results, always in the same way.
//! - Memory that a program uses after it was freed, or before its stream has come to its allocation, is an
//!   error.
//! - Device pointers are no addresses of the host: reading one there ends the process.
//! - A fault of a kernel stays: each later call on its device gives the same error.
//! - What is captured runs when its graph is launched, and nothing may wait, allocate or load meanwhile; a mistake ends the
//!   capture for good. Copies of pageable memory are not captured, and no memset is updated to another size.
//! - A call that it lacks gives `CUDA_ERROR_NOT_SUPPORTED` and names itself on stderr, as every error does
//!   that it finds.
//!
//! # `SETRANK_MOCK_DEVICE`
//!
//! What the devices are like, read by `cuInit`: words `name=value`, separated by commas, such as
//! `cc=8.9,memory=4G,out-of-memory-at=3`. [`Configuration`] writes them.
//!
//! | word | meaning | default |
//! | --- | --- | --- |
//! | `devices=2` | number of devices, 0 to 16; with 0 `cuInit` gives `CUDA_ERROR_NO_DEVICE` | 1 |
//! | `cc=8.9` | compute capability: 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 or 12.0; multiprocessors, shared memory, registers and threads are those of a card of it | 9.0 |
//! | `multiprocessors=8` | as many as that, and not the card's number | the card's |
//! | `memory=4G` | bytes of each device, with K, M or G | 4G |
//! | `driver=13000` | version of the driver | 13000 |
//! | `pools=no` | whether there are memory pools, and so `cuMemAllocAsync` | yes |
//! | `out-of-memory-at=3` | the third allocation fails | none |
//! | `launch-fails-at=2` | the second launch fails | none |
//! | `launch-error=700` | how it fails: one of the codes of faults when it runs, any other at once | 719 |
//! | `launch-lost-at=2` | the second launch does nothing, and nobody is told | none |
//! | `streams=random` | queued work runs at random times, as a device may run it, instead of as late as is legal: `lazy` | lazy |
//! | `schedule=random` | order of a block's threads: `in-order`, `reversed`, `random` or `pct` | in-order |
//! | `copies=random` | when asynchronous copies inside of kernels land: at their `issue`, at the `wait`, or `random` | wait |
//! | `sums=hopper` | how matrix instructions add: to the `nearest` f32, or cut as on an A100, `ampere`, or on an H100, `hopper` | nearest |
//! | `seed=7` | of all that is random | 1 |
//! | `workers=2` | threads of the machine that run blocks | 1 |
//! | `count=yes` | whether the emulator counts, see [`Counters::emulator`] | no |

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

use crate::emulate::{Copies, Counters as EmulatorCounters, Schedule, Sums};
use crate::kernels::Kernels;

/// When queued work runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// When something waits for it.
    #[default]
    Lazy,
    /// At random times, in any order that streams and events allow.
    Random,
}

/// What the devices are like: the words of `SETRANK_MOCK_DEVICE`, see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Number of devices.
    pub devices: u32,
    /// Compute capability: major, minor.
    pub compute_capability: (u32, u32),
    /// Multiprocessors, where they are not as many as the card's.
    pub multiprocessors: Option<u32>,
    /// Bytes of each device.
    pub memory: u64,
    /// Version of the driver: 12080 is 12.8.
    pub driver_version: u32,
    /// Whether there are memory pools.
    pub memory_pools: bool,
    /// Which allocation fails, counted from 1.
    pub out_of_memory_at: Option<u64>,
    /// Which launch fails, counted from 1.
    pub launch_fails_at: Option<u64>,
    /// How it fails, a `CUresult`.
    pub launch_error: u32,
    /// Which launch does nothing, counted from 1, without anyone being told.
    pub launch_lost_at: Option<u64>,
    /// When queued work runs.
    pub streams: Streams,
    /// Order of a block's threads.
    pub schedule: Schedule,
    /// When asynchronous copies inside of kernels land.
    pub copies: Copies,
    /// How matrix instructions add.
    pub sums: Sums,
    /// Of all that is random.
    pub seed: u64,
    /// Threads of the machine that run blocks.
    pub workers: u32,
    /// Whether the emulator counts.
    pub count: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            devices: 1,
            compute_capability: (9, 0),
            multiprocessors: None,
            memory: 4 << 30,
            driver_version: 13000,
            memory_pools: true,
            out_of_memory_at: None,
            launch_fails_at: None,
            launch_error: 719,
            launch_lost_at: None,
            streams: Streams::Lazy,
            schedule: Schedule::InOrder,
            copies: Copies::AtWait,
            sums: Sums::Nearest,
            seed: 1,
            workers: 1,
            count: false,
        }
    }
}

/// Writes the words of `SETRANK_MOCK_DEVICE`.
impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        let yes = |is| if is { "yes" } else { "no" };
        let streams = match self.streams {
            Streams::Lazy => "lazy",
            Streams::Random => "random",
        };
        let schedule = match self.schedule {
            Schedule::InOrder => "in-order",
            Schedule::Reversed => "reversed",
            Schedule::Random => "random",
            Schedule::Pct => "pct",
        };
        let copies = match self.copies {
            Copies::AtIssue => "issue",
            Copies::AtWait => "wait",
            Copies::AtRandom => "random",
        };
        let sums = match self.sums {
            Sums::Nearest => "nearest",
            Sums::Ampere => "ampere",
            Sums::Hopper => "hopper",
        };
        write!(f, "devices={},cc={major}.{minor}", self.devices)?;
        write!(f, ",multiprocessors={},memory={}", self.multiprocessors.unwrap_or(0), self.memory)?;
        write!(f, ",driver={},pools={}", self.driver_version, yes(self.memory_pools))?;
        write!(f, ",out-of-memory-at={}", self.out_of_memory_at.unwrap_or(0))?;
        write!(f, ",launch-fails-at={}", self.launch_fails_at.unwrap_or(0))?;
        write!(f, ",launch-error={}", self.launch_error)?;
        write!(f, ",launch-lost-at={},streams={streams}", self.launch_lost_at.unwrap_or(0))?;
        write!(f, ",schedule={schedule},copies={copies},sums={sums},seed={}", self.seed)?;
        write!(f, ",workers={},count={}", self.workers, yes(self.count))
    }
}

/// What was done since [`with`] began; `MockCounters` in `driver/mock.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Launches of kernels that were accepted, those in launches of graphs among them.
    pub launches: u64,
    /// Launches of graphs.
    pub graph_launches: u64,
    /// Graphs that were instantiated.
    pub graph_instances: u64,
    /// Those of them that are not destroyed yet.
    pub live_graph_instances: u64,
    /// Allocations of device memory that succeeded.
    pub allocations: u64,
    /// Those of them that are not freed yet.
    pub live_allocations: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Bytes of copies from the host that were asked for.
    pub bytes_to_device: u64,
    /// Bytes of copies to the host.
    pub bytes_to_host: u64,
    /// Bytes of copies from device memory to device memory.
    pub bytes_on_device: u64,
    /// Bytes of memsets.
    pub bytes_set: u64,
    /// Calls that wait for a stream, an event or a context.
    pub synchronizations: u64,
    /// Pieces of work that were queued and have not run yet.
    pub pending: u64,
    /// The emulator's counters, added up over the launches that have run; zero unless
    /// [`Configuration::count`].
    pub emulator: EmulatorCounters,
}

/// What one kernel's launches that have run did; `MockLaunched` in `driver/mock.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Launched {
    kernel: [c_char; 64],
    /// Launches.
    pub launches: u64,
    /// The emulator's counters, added up; zero unless [`Configuration::count`].
    pub emulator: EmulatorCounters,
}

impl Launched {
    /// The kernel's name.
    pub fn kernel(&self) -> String {
        let name = self.kernel.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
        String::from_utf8_lossy(&name.collect::<Vec<u8>>()).into_owned()
    }
}

/// Why the mock driver cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library cannot be loaded.
    #[error("the mock CUDA driver {path} cannot be loaded: {reason}", path = path().display())]
    Load {
        /// What the loader says.
        reason: String,
    },
    /// A word of the configuration is wrong.
    #[error("{0}")]
    Configuration(String),
    /// Something wrote behind the end of allocations that were never freed.
    #[error("something wrote behind the end of {0} allocations of device memory that were not freed")]
    Overwritten(u32),
}

/// Where the library is.
pub fn path() -> &'static Path {
    Path::new(env!("SETRANK_EMULATOR_LIBCUDA"))
}

/// The folder to name in `LD_LIBRARY_PATH` so that a program finds the library as `libcuda.so`.
pub fn directory() -> &'static Path {
    path().parent().unwrap_or(Path::new("/"))
}

/// The mock driver in this process.
#[derive(Debug)]
pub struct Driver {
    library: Library,
    configure: unsafe extern "C" fn(*const c_char) -> c_int,
    reset: unsafe extern "C" fn() -> c_int,
    counters: unsafe extern "C" fn(*mut Counters),
    launched: unsafe extern "C" fn(*mut Launched, usize) -> usize,
    report: unsafe extern "C" fn(*mut c_char, usize) -> usize,
    skip_repeats: unsafe extern "C" fn(c_int),
    kernels: unsafe extern "C" fn(*const c_void),
}

impl Driver {
    fn new() -> Result<Self, libloading::Error> {
        // SAFETY: the library is this crate's own; loading it runs nothing.
        let library = unsafe { Library::new(path()) }?;
        // SAFETY: the types are those of driver/mock.h, and the library stays loaded as long as they are
        // used.
        unsafe {
            Ok(Self {
                configure: *library.get(b"mockConfigure\0")?,
                reset: *library.get(b"mockReset\0")?,
                counters: *library.get(b"mockCounters\0")?,
                launched: *library.get(b"mockLaunched\0")?,
                report: *library.get(b"mockReport\0")?,
                skip_repeats: *library.get(b"mockSkipRepeats\0")?,
                kernels: *library.get(b"mockKernels\0")?,
                library,
            })
        }
    }

    /// The library, for its CUDA calls.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Looks kernels up among these, until [`with`] ends, instead of the repository's.
    pub fn use_kernels(&self, kernels: &'static Kernels) {
        // SAFETY: it is the table of a library that stays loaded.
        unsafe { (self.kernels)(kernels.table()) };
    }

    /// Whether, from now on until [`with`] ends, a launch like one that was counted before is not run, and counts as the latest of
    /// those did: the same kernel with the same sizes and numbers, wherever its pointers point. For counts that do not depend on
    /// what kernels read, since what such a launch would write is not there.
    pub fn skip_repeats(&self, skip: bool) {
        // SAFETY: it takes any number.
        unsafe { (self.skip_repeats)(c_int::from(skip)) };
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: the pointer is valid.
        unsafe { (self.counters)(&mut counters) };
        counters
    }

    /// What each kernel's launches did so far, by its name.
    pub fn launched(&self) -> Vec<Launched> {
        let none = Launched { kernel: [0; 64], launches: 0, emulator: EmulatorCounters::default() };
        // SAFETY: no more is written than there is room for.
        let count = unsafe { (self.launched)(std::ptr::null_mut(), 0) };
        let mut launched = vec![none; count];
        // SAFETY: as above.
        let now = unsafe { (self.launched)(launched.as_mut_ptr(), count) };
        launched.truncate(now);
        launched
    }

    /// What the driver last wrote to stderr, such as the emulator's report of a fault; empty at first.
    pub fn report(&self) -> String {
        let mut text = vec![0_u8; 1 << 17];
        // SAFETY: the driver writes no more than the vector's bytes.
        let bytes = unsafe { (self.report)(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(bytes.min(text.len() - 1));
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Loads the library, once; it stays loaded.
///
/// # Errors
/// [`Error::Load`] if that fails.
pub fn load() -> Result<&'static Driver, Error> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| Driver::new().map_err(|error| error.to_string()));
    driver.as_ref().map_err(|reason| Error::Load { reason: reason.clone() })
}

/// Ends what [`with`] began, also when its code panics.
struct Devices {
    driver: &'static Driver,
    _alone: MutexGuard<'static, ()>,
}

impl Devices {
    fn reset(&self) -> u32 {
        // SAFETY: it takes nothing.
        let overwritten = unsafe { (self.driver.reset)() };
        u32::try_from(overwritten).unwrap_or(0)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Runs `run` on devices as configured. No other code of this process that goes through `with` runs
/// meanwhile, and nothing is left over from before or for afterwards: objects of CUDA that `run` makes must
/// not outlive it.
///
/// # Errors
/// [`Error::Load`], [`Error::Configuration`], or [`Error::Overwritten`] after `run`.
pub fn with<R>(configuration: &Configuration, run: impl FnOnce(&'static Driver) -> R) -> Result<R, Error> {
    static ALONE: Mutex<()> = Mutex::new(());
    let driver = load()?;
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = Devices { driver, _alone: alone };
    let words =
        CString::new(configuration.to_string()).map_err(|error| Error::Configuration(error.to_string()))?;
    // SAFETY: the pointer is a text that ends with 0.
    if unsafe { (driver.configure)(words.as_ptr()) } != 0 {
        return Err(Error::Configuration(driver.report()));
    }
    let result = run(driver);
    match devices.reset() {
        0 => Ok(result),
        overwritten => Err(Error::Overwritten(overwritten)),
    }
}
