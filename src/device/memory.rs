//! Memory of a GPU: arenas, and typed buffers in them.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};

use super::{DeviceError, abi, driver};

/// What a buffer may hold: plain data that host and kernels lay out alike.
pub trait Element: Pod + DeviceRepr + ValidAsZeroBits {}

impl Element for f32 {}
impl Element for u8 {}
impl Element for i32 {}
impl Element for u32 {}
impl Element for bf16 {}
impl Element for f16 {}

// SAFETY: a struct of C of eight `int32_t`, without padding.
unsafe impl bytemuck::Zeroable for abi::AttentionTile {}
// SAFETY: as above.
unsafe impl Pod for abi::AttentionTile {}
// SAFETY: as above.
unsafe impl DeviceRepr for abi::AttentionTile {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for abi::AttentionTile {}
impl Element for abi::AttentionTile {}

// SAFETY: a struct of C of four `int32_t`, without padding.
unsafe impl bytemuck::Zeroable for abi::AttentionBlock {}
// SAFETY: as above.
unsafe impl Pod for abi::AttentionBlock {}
// SAFETY: as above.
unsafe impl DeviceRepr for abi::AttentionBlock {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for abi::AttentionBlock {}
impl Element for abi::AttentionBlock {}

// SAFETY: a struct of C of two `int64_t`, without padding.
unsafe impl bytemuck::Zeroable for abi::AttentionPairs {}
// SAFETY: as above.
unsafe impl Pod for abi::AttentionPairs {}
// SAFETY: as above.
unsafe impl DeviceRepr for abi::AttentionPairs {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for abi::AttentionPairs {}
impl Element for abi::AttentionPairs {}

/// Alignment of buffers in bytes: that of the driver's own allocations, and enough for every copy.
const ALIGNMENT: usize = 256;

/// Alignment of parts of buffers in bytes: what kernels read at once.
const PART_ALIGNMENT: usize = 16;

/// An allocation.
#[derive(Debug)]
struct Memory(ManuallyDrop<CudaSlice<u8>>);

impl Drop for Memory {
    fn drop(&mut self) {
        // cudarc frees in whatever context the thread has, and tells of a failure at the next call of any kind.
        driver::make_current(self.0.stream());
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// One allocation, cut into buffers from its beginning on.
#[derive(Debug)]
pub struct Arena {
    what: String,
    memory: Arc<Memory>,
    used: usize,
}

impl Arena {
    pub(super) fn new(what: &str, memory: CudaSlice<u8>) -> Self {
        Arena { what: what.to_owned(), memory: Arc::new(Memory(ManuallyDrop::new(memory))), used: 0 }
    }

    /// Bytes that an arena needs for buffers of these many bytes.
    pub fn bytes_for(buffers: impl IntoIterator<Item = usize>) -> usize {
        buffers.into_iter().map(|bytes| bytes.next_multiple_of(ALIGNMENT)).sum()
    }

    /// A buffer of `len` values, aligned to 256 bytes, of arbitrary content.
    pub fn take<T: Element>(&mut self, len: usize) -> Result<Buffer<T>, DeviceError> {
        let total = self.memory.0.len();
        let needed = len.saturating_mul(size_of::<T>());
        let free = total - self.used;
        if needed > free {
            return Err(DeviceError::ArenaFull { what: self.what.clone(), needed, free, total });
        }
        let offset = self.used;
        self.used = (offset + needed).next_multiple_of(ALIGNMENT).min(total);
        Ok(Buffer { memory: self.memory.clone(), offset, len, sent: None, values: PhantomData })
    }

    /// Room for a package of these many bytes.
    pub fn room(&mut self, bytes: usize) -> Result<Room, DeviceError> {
        self.take(bytes).map(Room)
    }

    /// Takes all memory back; refused while buffers are in use.
    pub fn clear(&mut self) -> Result<(), DeviceError> {
        let in_use = Arc::strong_count(&self.memory) - 1;
        if in_use > 0 {
            return Err(DeviceError::Shapes(format!(
                "{in_use} buffer(s) of `{}` are still in use",
                self.what
            )));
        }
        self.used = 0;
        Ok(())
    }
}

/// `len` values on the device, which [parts](Buffer::part) may share.
///
/// Sharing is sound, as it is of `Cell`s: no reference to the values exists on the host; whoever reads them takes any bits,
/// since elements are plain data; copies and launches happen in one stream, in the order in which they are asked for; what
/// one launch writes overlaps nothing else of it, which [`Operands`](super::Operands) checks. Tables whose values kernels
/// take for indices must not change behind the back of those who have checked them: they come in a package, whose [`Room`]
/// has no parts, and no launch takes them before they are [sent](super::Uploads::send).
#[derive(Debug)]
pub struct Buffer<T> {
    memory: Arc<Memory>,
    /// In bytes from the beginning of the memory.
    offset: usize,
    len: usize,
    /// Of a package: whether its copy is queued.
    sent: Option<Arc<AtomicBool>>,
    values: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Values `range` of it as a buffer of its own. Both are the same memory: what is written to one is read from the
    /// other, in the order in which it is asked for.
    ///
    /// # Errors
    ///
    /// A range that is not inside, or that does not begin at a multiple of 16 bytes.
    pub fn part(&self, range: Range<usize>) -> Result<Buffer<T>, DeviceError> {
        let bytes = range.start.saturating_mul(size_of::<T>());
        if range.start > range.end || range.end > self.len || !bytes.is_multiple_of(PART_ALIGNMENT) {
            return Err(DeviceError::Shapes(format!(
                "the part {}..{} of a buffer of {} values of {} bytes: it has to be inside, and to begin at a \
                 multiple of {PART_ALIGNMENT} bytes",
                range.start,
                range.end,
                self.len,
                size_of::<T>()
            )));
        }
        let (offset, len) = (self.offset + bytes, range.len());
        Ok(Buffer { memory: self.memory.clone(), offset, len, sent: self.sent.clone(), values: PhantomData })
    }

    /// All of it as a buffer of its own: the same memory, as [`part`](Self::part) says.
    pub fn alias(&self) -> Buffer<T> {
        let Buffer { memory, offset, len, sent, .. } = self;
        let (memory, sent) = (memory.clone(), sent.clone());
        Buffer { memory, offset: *offset, len: *len, sent, values: PhantomData }
    }

    /// Whether it shares memory with another.
    pub fn overlaps<U: Element>(&self, other: &Buffer<U>) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
            && self.offset < other.offset + other.len * size_of::<U>()
            && other.offset < self.offset + self.len * size_of::<T>()
    }

    /// Whether its values are there, or will be in the stream's order: no launch may take those of a package that was
    /// never sent.
    pub(super) fn is_sent(&self) -> bool {
        self.sent.as_ref().is_none_or(|sent| sent.load(Ordering::Acquire))
    }

    pub(super) fn stream(&self) -> &CudaStream {
        self.memory.0.stream()
    }

    /// Where it stands in the device's memory.
    pub(super) fn address(&self) -> u64 {
        // Nothing is tracked, so that the guard does nothing.
        let (address, _guard) = self.memory.0.device_ptr(self.memory.0.stream());
        address + self.offset as u64
    }

    /// For a kernel that reads it: no pointer of the host.
    pub fn pointer<U>(&self) -> *const U {
        self.address() as *const U
    }

    /// For a kernel that writes it: no pointer of the host.
    pub fn pointer_mut<U>(&mut self) -> *mut U {
        self.address() as *mut U
    }
}

/// Memory that nothing but the buffers of one package will be in: [`Uploads::send`](super::Uploads::send) takes it.
#[derive(Debug)]
pub struct Room(pub(super) Buffer<u8>);

impl Room {
    /// The memory of a buffer that keeps it: for values alone, which may be any.
    pub(super) fn over<T: Element>(buffer: &mut Buffer<T>) -> Self {
        let Buffer { memory, offset, len, .. } = buffer;
        let (memory, len) = (memory.clone(), *len * size_of::<T>());
        Room(Buffer { memory, offset: *offset, len, sent: None, values: PhantomData })
    }

    /// `len` values of a type, `begin` bytes behind its beginning, which are there once they are `sent`; refused as
    /// [`Buffer::part`] is.
    pub(super) fn cut<T: Element>(
        &self,
        begin: usize,
        len: usize,
        sent: &Arc<AtomicBool>,
    ) -> Result<Buffer<T>, DeviceError> {
        let end = begin.saturating_add(len.saturating_mul(size_of::<T>()));
        let Buffer { memory, offset, .. } = self.0.part(begin..end)?;
        Ok(Buffer { memory, offset, len, sent: Some(sent.clone()), values: PhantomData })
    }
}
