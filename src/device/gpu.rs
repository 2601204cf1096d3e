//! A GPU in use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUevent_flags, CUresult};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DeviceRepr, DriverError, LaunchConfig, PushKernelArg, result,
};

use super::choice::{self, Fusion, KernelChoice, MatrixKernels};
use super::graph::{Graphs, Node};
use super::kernels::{FAMILIES, Family, Kernels};
use super::launched::Launched;
use super::memory::{Arena, Buffer, Element};
use super::operands::Operands;
use super::probe::{self, GpuInfo};
use super::profile::Profile;
use super::staging::Staging;
use super::{DeviceError, Limits, Plan, driver};

/// The one parameter of a kernel: a struct of `kernels/*.h`.
///
/// # Safety
///
/// The type is laid out as the kernel's own parameter, without padding.
pub unsafe trait Parameter: DeviceRepr + Copy {
    /// The shapes that it stands for, for messages.
    fn shapes(&self) -> String;
}

/// Makes structs of the kernels' headers parameters of kernels: `parameter!(Struct, …: |self| shapes)`.
macro_rules! parameter {
    ($($name:ty),+: |$self:ident| $shapes:expr) => {$(
        // SAFETY: bindgen makes it of the header that the kernels are compiled with.
        unsafe impl $crate::device::DeviceRepr for $name {}
        // SAFETY: as above; a test holds the headers to structs without padding.
        unsafe impl $crate::device::Parameter for $name {
            fn shapes(&$self) -> String {
                $shapes
            }
        }
    )+};
}
pub(crate) use parameter;

/// A GPU in use: its context, and one stream in which everything happens in order.
///
/// Launches and copies only queue work; [`Gpu::synchronize`], [`Gpu::upload`] and [`Gpu::download`] wait for it.
#[derive(Debug)]
pub struct Gpu {
    info: GpuInfo,
    limits: Limits,
    context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    kernels: Kernels,
    last: Mutex<Option<Launched>>,
    /// Whether the driver waits for each launch, so that its failure is returned by it.
    pub(super) waits_for_launches: bool,
    launches: AtomicU64,
    pub(super) graphs: Graphs,
    pub(super) profile: Profile,
}

/// A moment in a GPU's stream.
#[derive(Debug)]
pub struct Event(CudaEvent);

impl Gpu {
    /// Takes the first GPU that can be used into use, with plans that take these kernels where there are some, or says why
    /// there is none.
    pub fn first(kernels: KernelChoice) -> Result<Self, DeviceError> {
        let gpu = Self::new(probe::first_usable()?.ordinal)?;
        let gpu = gpu.with_fusion(kernels.fuse).with_graphs(kernels.graphs);
        match kernels.matrix {
            MatrixKernels::Mma => Ok(gpu),
            MatrixKernels::Wgmma => gpu.with_wgmma(),
        }
    }

    /// The same, with plans that take kernels of warpgroups' matrix instructions where there are some, or why it has none.
    pub fn with_wgmma(mut self) -> Result<Self, DeviceError> {
        choice::check_wgmma(&self.info)?;
        self.limits.wgmma = true;
        Ok(self)
    }

    /// The same, with plans that take kernels which fuse so much.
    pub fn with_fusion(mut self, fuse: Fusion) -> Self {
        self.limits.fuse = fuse;
        self
    }

    /// The same, launching what it is told to as graphs, or not.
    pub fn with_graphs(mut self, graphs: bool) -> Self {
        self.graphs.on = graphs;
        self
    }

    /// Takes GPU number `ordinal` into use, or says why it cannot be used.
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        Gpu::with_families(ordinal, FAMILIES)
    }

    /// As [`Gpu::new`], for launches of these families' kernels instead of this library's.
    pub fn with_families(ordinal: usize, families: &'static [Family]) -> Result<Self, DeviceError> {
        let info = probe::gpu(ordinal)?;
        let fails = |action: &str, error| driver_error(action, ordinal, error);
        let context = CudaContext::new(ordinal).map_err(|error| fails("making a context", error))?;
        // SAFETY: everything on this context happens in one stream, which orders it.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|error| fails("making a stream", error))?;
        let attribute =
            |which| context.attribute(which).map_err(|error| fails("asking for its limits", error));
        let limits = Limits {
            shared_per_block: info.shared_per_block,
            shared_per_multiprocessor: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )? as u32,
            shared_reserved: attribute(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?
                as u32,
            multiprocessors: info.multiprocessors,
            wgmma: false,
            fuse: Fusion::default(),
        };
        Ok(Gpu {
            info,
            limits,
            context,
            stream,
            kernels: Kernels::of(families),
            last: Mutex::new(None),
            waits_for_launches: choice::launches_are_waited_for(),
            launches: AtomicU64::new(0),
            graphs: Graphs::default(),
            profile: Profile::default(),
        })
    }

    /// What the driver says of it.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// What it allows a launch.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The kernels that plans take for it, where they have a choice.
    pub fn kernels(&self) -> KernelChoice {
        KernelChoice { matrix: self.limits.matrix(), fuse: self.limits.fuse, graphs: self.graphs.on }
    }

    /// Bytes of memory: free, and in all.
    pub fn memory(&self) -> Result<(usize, usize), DeviceError> {
        self.context.mem_get_info().map_err(|error| self.failed("asking for its free memory", error))
    }

    /// Kernels launched so far, those of graphs among them.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Exponentials a second at most: 16 a clock and multiprocessor, at the highest clock that the driver names.
    pub fn exponentials_per_s(&self) -> Result<f64, DeviceError> {
        let clock = self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
        let kilohertz = clock.map_err(|error| self.failed("asking for its clock", error))?;
        Ok(16.0 * f64::from(self.limits.multiprocessors) * 1e3 * f64::from(kilohertz))
    }

    /// Bytes of its L2 cache.
    pub fn l2_bytes(&self) -> Result<usize, DeviceError> {
        let bytes = self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
        let bytes = bytes.map_err(|error| self.failed("asking for the size of its L2 cache", error))?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    /// Refuses a buffer of another GPU, or of this one taken into use a second time: nothing orders their streams.
    pub fn owns<T: Element>(&self, buffer: &Buffer<T>) -> Result<(), DeviceError> {
        self.same_stream("a buffer", buffer.stream())
    }

    fn same_stream(&self, what: &str, stream: &CudaStream) -> Result<(), DeviceError> {
        if *stream == *self.stream {
            return Ok(());
        }
        Err(DeviceError::Shapes(format!("{what} of another GPU, or of another use of this one")))
    }

    /// `bytes` bytes of memory for buffers; `what` they hold, for messages. Their content is arbitrary.
    pub fn arena(&self, what: &str, bytes: usize) -> Result<Arena, DeviceError> {
        // SAFETY: what is read before it is written is numbers of any value: buffers hold plain data only.
        match unsafe { self.stream.alloc::<u8>(bytes.max(1)) } {
            Ok(memory) => Ok(Arena::new(what, memory)),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (free, total) = self.memory()?;
                let (what, ordinal) = (what.to_owned(), self.info.ordinal);
                Err(DeviceError::OutOfMemory { what, ordinal, needed: bytes, free, total })
            }
            Err(error) => Err(self.failed(&format!("allocating {bytes} bytes"), error)),
        }
    }

    /// Pinned memory of the host for `len` values, at least one, which copies can read and write while the host goes
    /// on: zeros.
    pub fn staging<T: Element>(&self, len: usize) -> Result<Staging<T>, DeviceError> {
        if len == 0 || len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(DeviceError::Shapes(format!("pinned memory for {len} values")));
        }
        Staging::new(&self.stream, len)
            .map_err(|error| self.failed(&format!("pinning {len} values of the host's memory"), error))
    }

    /// The values of `staging`, once all copies to and from it are done.
    pub fn staged<'a, T: Element>(&self, staging: &'a Staging<T>) -> Result<&'a [T], DeviceError> {
        staging.wait().map_err(|error| self.failed("waiting for a copy", error))
    }

    /// The values of `staging` to be changed, once all copies to and from it are done.
    pub fn staged_mut<'a, T: Element>(
        &self,
        staging: &'a mut Staging<T>,
    ) -> Result<&'a mut [T], DeviceError> {
        staging.wait_mut().map_err(|error| self.failed("waiting for a copy", error))
    }

    /// Copies `from` to the device and waits for all work so far, that too; what must not wait goes through
    /// [`staging`](Self::staging).
    pub fn upload<T: Element>(&self, to: &mut Buffer<T>, from: &[T]) -> Result<(), DeviceError> {
        self.owns(to)?;
        same_len(to.len(), from.len())?;
        let copied = self.bound().and_then(|()| {
            if !from.is_empty() {
                // SAFETY: both hold as many values, and the wait ends when they have been read: a GPU that reads memory
                // of the host by itself may do so after the call.
                unsafe { result::memcpy_htod_async(to.address(), from, self.stream.cu_stream()) }?;
            }
            self.stream.synchronize()
        });
        copied.map_err(|error| self.failed(&format!("copying {} bytes", size_of_val(from)), error))
    }

    /// Queues the copy of the first values of `from`, as many as `to` has, to the device; writing to `from` waits for it.
    pub fn upload_staged<T: Element>(
        &self,
        to: &mut Buffer<T>,
        from: &Staging<T>,
    ) -> Result<(), DeviceError> {
        self.owns(to)?;
        self.same_stream("pinned memory", from.stream())?;
        let len = to.len();
        holds(from.len(), len)?;
        self.check_outside_graph(&format!("copying {len} values"))?;
        let copied = self.bound().and_then(|()| {
            from.copy_from(|values| {
                // SAFETY: both hold as many values; nobody writes to these before the copy is done.
                unsafe { result::memcpy_htod_async(to.address(), &values[..len], self.stream.cu_stream()) }
            })
        });
        copied.map_err(|error| self.failed(&format!("copying {len} values"), error))
    }

    /// Waits for all work so far and copies `from` to the host.
    pub fn download<T: Element>(&self, from: &Buffer<T>) -> Result<Vec<T>, DeviceError> {
        self.owns(from)?;
        let mut values = vec![T::zeroed(); from.len()];
        let copied = self.bound().and_then(|()| {
            if values.is_empty() {
                return Ok(());
            }
            // SAFETY: both hold as many values, and the wait below ends before the memory goes elsewhere.
            unsafe { result::memcpy_dtoh_async(&mut values, from.address(), self.stream.cu_stream()) }
        });
        copied.map_err(|error| self.failed(&format!("copying {} values to the host", from.len()), error))?;
        self.synchronize()?;
        Ok(values)
    }

    /// Queues the copy of `from` to the first values of `to`; reading these waits for it.
    pub fn download_staged<T: Element>(
        &self,
        to: &mut Staging<T>,
        from: &Buffer<T>,
    ) -> Result<(), DeviceError> {
        self.owns(from)?;
        self.same_stream("pinned memory", to.stream())?;
        let len = from.len();
        holds(to.len(), len)?;
        self.check_outside_graph(&format!("copying {len} values to the host"))?;
        let copied = self.bound().and_then(|()| {
            to.copy_to(|values| {
                // SAFETY: both hold as many values; nobody touches these before the copy is done.
                unsafe {
                    result::memcpy_dtoh_async(&mut values[..len], from.address(), self.stream.cu_stream())
                }
            })
        });
        copied.map_err(|error| self.failed(&format!("copying {} values to the host", from.len()), error))
    }

    /// Queues zeros for all of `buffer`.
    pub fn zero<T: Element>(&self, buffer: &mut Buffer<T>) -> Result<(), DeviceError> {
        self.owns(buffer)?;
        let bytes = buffer.len() * size_of::<T>();
        let cleared = self.bound().and_then(|()| {
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: the bytes are the buffer's, and zeros are a value of every element.
            unsafe { result::memset_d8_async(buffer.address(), 0, bytes, self.stream.cu_stream()) }?;
            self.graphs.note(Node::Clear);
            Ok(())
        });
        cleared.map_err(|error| self.failed(&format!("clearing {bytes} bytes"), error))
    }

    /// Queues the copy of `from` to `to`, both of this device.
    pub fn copy<T: Element>(&self, to: &mut Buffer<T>, from: &Buffer<T>) -> Result<(), DeviceError> {
        let mut operands = Operands::new(self, "a copy on the device");
        operands.reads("the source", from, from.len())?;
        operands.writes("the target", to, from.len())?;
        let bytes = from.len() * size_of::<T>();
        let copied = self.bound().and_then(|()| {
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: both have so many bytes, none in common.
            unsafe {
                result::memcpy_dtod_async(to.address(), from.address(), bytes, self.stream.cu_stream())
            }?;
            self.graphs.note(Node::Copy);
            Ok(())
        });
        copied.map_err(|error| self.failed(&format!("copying {bytes} bytes on the device"), error))
    }

    /// Queues a launch.
    ///
    /// # Safety
    ///
    /// `plan` and `parameter` fit the kernel and each other: with them it reads and writes only memory that is alive
    /// until the stream has got there, as its doc comment in `kernels/` demands.
    pub unsafe fn launch<P: Parameter>(&self, plan: &Plan, parameter: &P) -> Result<(), DeviceError> {
        plan.check(&self.limits)?;
        // Loading a kernel happens in the context of the thread.
        self.bound().map_err(|error| self.failed("taking it into use on this thread", error))?;
        if self.graphs.is_recording() && !self.kernels.has(plan) {
            self.launch_recorded()?;
        }
        let function = self.kernels.get(&self.context, &self.info, plan)?;
        let [x, y, z] = plan.grid;
        let config = LaunchConfig {
            grid_dim: (x, y, z),
            block_dim: (plan.block, 1, 1),
            shared_mem_bytes: plan.shared_bytes,
        };
        let start = if self.profile.is_on() { Some(self.record()?) } else { None };
        // SAFETY: the caller's.
        let launched = unsafe { self.stream.launch_builder(&function).arg(parameter).launch(config) };
        launched.map_err(|error| {
            // A kernel's failure that shows at a launch is one of those before, where launches are not waited for.
            if is_of_kernel(error) && !self.waits_for_launches {
                return self.failed("launching another kernel", error);
            }
            let (plan, shapes) = (*plan, parameter.shapes());
            DeviceError::Launch { plan, shapes, message: driver::message(error) }
        })?;
        if self.graphs.note_launch(plan, parameter) {
            return Ok(());
        }
        Launched::remember(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner), plan, parameter);
        self.count_launches(1);
        if let Some(start) = start {
            self.profile.add(plan.kernel, start, self.record()?);
        }
        Ok(())
    }

    pub(super) fn count_launches(&self, kernels: u64) {
        self.launches.fetch_add(kernels, Ordering::Relaxed);
    }

    pub(super) fn set_last(&self, launched: Option<Launched>) {
        if launched.is_some() {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = launched;
        }
    }

    /// Waits until all queued work is done; a kernel that failed shows here at the latest.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream.synchronize().map_err(|error| self.failed("waiting for its work", error))
    }

    /// Marks this moment in the stream.
    pub fn record(&self) -> Result<Event, DeviceError> {
        self.check_outside_graph("recording an event")?;
        let event = self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        event.map(Event).map_err(|error| self.failed("recording an event", error))
    }

    /// Milliseconds between two moments, once both have come.
    pub fn milliseconds(&self, start: &Event, end: &Event) -> Result<f32, DeviceError> {
        start.0.elapsed_ms(&end.0).map_err(|error| self.failed("waiting for an event", error))
    }

    pub(super) fn bound(&self) -> Result<(), DriverError> {
        self.context.bind_to_thread()
    }

    /// A driver's error, with the launch that may have caused it.
    pub(super) fn failed(&self, action: &str, error: DriverError) -> DeviceError {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(launched) if is_of_kernel(error) => launched.failed(action, &driver::message(error)),
            _ => driver_error(action, self.info.ordinal, error),
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The kernels' code is unloaded next, and may still be in use; whoever cares for the result has asked for it.
        let _ = self.stream.synchronize();
    }
}

/// Whether an error is one that kernels cause.
fn is_of_kernel(error: DriverError) -> bool {
    matches!(
        error.0,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ASSERT
    )
}

fn driver_error(action: &str, ordinal: usize, error: DriverError) -> DeviceError {
    DeviceError::Driver { action: action.to_owned(), ordinal, message: driver::message(error) }
}

fn same_len(device: usize, host: usize) -> Result<(), DeviceError> {
    if device == host {
        return Ok(());
    }
    Err(DeviceError::Shapes(format!("a copy between {device} values of the device and {host} of the host")))
}

/// Refuses pinned memory of fewer values than the device has.
fn holds(host: usize, device: usize) -> Result<(), DeviceError> {
    if host >= device {
        return Ok(());
    }
    Err(DeviceError::Shapes(format!(
        "a copy between {device} values of the device and {host} of pinned memory"
    )))
}
