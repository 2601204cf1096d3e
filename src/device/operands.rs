//! What every launcher checks of its buffers before a launch.

use super::{Buffer, DeviceError, Element, Gpu};

/// The buffers of one launch, held one by one against what the kernel takes: length, device, that they were sent there, and
/// that nothing that is written overlaps anything else.
#[derive(Debug)]
pub struct Operands<'a> {
    gpu: &'a Gpu,
    launch: &'a str,
    noted: Vec<Noted>,
}

#[derive(Debug)]
struct Noted {
    name: &'static str,
    /// Addresses of the first byte, and of the one behind the last.
    bytes: [u64; 2],
    written: bool,
}

impl<'a> Operands<'a> {
    /// None yet; `launch` says what they are for, in messages.
    pub fn new(gpu: &'a Gpu, launch: &'a str) -> Self {
        Operands { gpu, launch, noted: Vec::new() }
    }

    /// A buffer of `len` values that is only read.
    pub fn reads<T: Element>(
        &mut self,
        name: &'static str,
        buffer: &Buffer<T>,
        len: usize,
    ) -> Result<(), DeviceError> {
        self.note(name, buffer, buffer.len() == len, &len.to_string(), false)
    }

    /// A buffer of `len` values that is only written.
    pub fn writes<T: Element>(
        &mut self,
        name: &'static str,
        buffer: &Buffer<T>,
        len: usize,
    ) -> Result<(), DeviceError> {
        self.note(name, buffer, buffer.len() == len, &len.to_string(), true)
    }

    /// A buffer of `len` values that are changed in place.
    pub fn updates<T: Element>(
        &mut self,
        name: &'static str,
        buffer: &Buffer<T>,
        len: usize,
    ) -> Result<(), DeviceError> {
        self.writes(name, buffer, len)
    }

    /// A buffer of at least `len` values, whose content nobody needs.
    pub fn scratch<T: Element>(
        &mut self,
        name: &'static str,
        buffer: &Buffer<T>,
        len: usize,
    ) -> Result<(), DeviceError> {
        self.note(name, buffer, buffer.len() >= len, &format!("{len} or more"), true)
    }

    fn note<T: Element>(
        &mut self,
        name: &'static str,
        buffer: &Buffer<T>,
        fits: bool,
        needed: &str,
        written: bool,
    ) -> Result<(), DeviceError> {
        let refuse = |reason: String| Err(DeviceError::Shapes(format!("{}: {reason}", self.launch)));
        if !fits {
            return refuse(format!("{name} has {} values, not {needed}", buffer.len()));
        }
        if let Err(error) = self.gpu.owns(buffer) {
            return refuse(format!("{name}: {error}"));
        }
        if !buffer.is_sent() {
            return refuse(format!("{name} is of a package that was not sent to the GPU"));
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let begin = buffer.address();
        let bytes = [begin, begin + (buffer.len() * size_of::<T>()) as u64];
        let shared = |other: &&Noted| bytes[0] < other.bytes[1] && other.bytes[0] < bytes[1];
        if let Some(other) = self.noted.iter().filter(|other| other.written || written).find(shared) {
            return refuse(format!("{name} and {} share memory, and one of them is written", other.name));
        }
        self.noted.push(Noted { name, bytes, written });
        Ok(())
    }
}
