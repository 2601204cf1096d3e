//! Buffers for the check of a kernel, so that what it does wrong is found.

use crate::device::{Buffer, DeviceError, Element, Gpu, Room};

/// A buffer in an arena of its own, so that an emulator or a sanitizer finds what a kernel writes behind it; it is full of
/// NaN, so that what a kernel does not write is found as well.
pub(crate) fn taken<T: Element>(gpu: &Gpu, len: usize) -> Result<Buffer<T>, DeviceError> {
    let bytes = len * size_of::<T>();
    let mut arena = gpu.arena("the check of a kernel", bytes)?;
    let mut all: Buffer<u8> = arena.take(bytes)?;
    gpu.upload(&mut all, &vec![0xFF; bytes])?;
    drop(all);
    arena.clear()?;
    arena.take(len)
}

/// Room for a package in an arena of its own.
pub(crate) fn room(gpu: &Gpu, bytes: usize) -> Result<Room, DeviceError> {
    gpu.arena("the check of a kernel", bytes)?.room(bytes)
}

/// As [`taken`], with these values.
pub(crate) fn uploaded<T: Element>(gpu: &Gpu, values: &[T]) -> Result<Buffer<T>, DeviceError> {
    let mut buffer = taken(gpu, values.len())?;
    gpu.upload(&mut buffer, values)?;
    Ok(buffer)
}
