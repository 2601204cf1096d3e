//! Operands of launches on a GPU.

use half::bf16;
use setrank::device::{Arena, Buffer, DeviceError, Element, Gpu, Package, Uploads};
use setrank::rng::{Rng, Stream};

/// Random values, which come again behind these: a prime number, so that no two rows of a matrix are the same.
const PERIOD: usize = 4099;

/// What operands are given, and how much that is.
pub struct Memory<'a> {
    pub gpu: &'a Gpu,
    /// Bytes given so far.
    pub bytes: usize,
    random: Vec<f32>,
}

impl<'a> Memory<'a> {
    /// None yet.
    pub fn new(gpu: &'a Gpu) -> Self {
        let mut rng = Rng::new(1, Stream::Benchmark, 0);
        let random = (0..PERIOD).map(|_| rng.normal() as f32).collect();
        Memory { gpu, bytes: 0, random }
    }

    /// Memory for buffers, `bytes` in all.
    pub fn arena(&mut self, bytes: usize) -> Result<Arena, DeviceError> {
        self.bytes += bytes;
        self.gpu.arena("operands of a launch", bytes)
    }

    /// A buffer of arbitrary content.
    pub fn taken<T: Element>(&mut self, len: usize) -> Result<Buffer<T>, DeviceError> {
        self.arena(len * size_of::<T>())?.take(len)
    }

    /// These values.
    pub fn uploaded<T: Element>(&mut self, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.taken(values.len())?;
        self.gpu.upload(&mut buffer, values)?;
        Ok(buffer)
    }

    /// Normally distributed values of this deviation.
    pub fn normals(&mut self, len: usize, deviation: f32) -> Result<Buffer<bf16>, DeviceError> {
        let values: Vec<bf16> = self.random.iter().map(|&value| bf16::from_f32(deviation * value)).collect();
        self.uploaded(&values.into_iter().cycle().take(len).collect::<Vec<_>>())
    }

    /// The same in f32.
    pub fn wide_normals(&mut self, len: usize, deviation: f32) -> Result<Buffer<f32>, DeviceError> {
        let values: Vec<f32> = self.random.iter().map(|&value| deviation * value).collect();
        self.uploaded(&values.into_iter().cycle().take(len).collect::<Vec<_>>())
    }

    /// One value, again and again.
    pub fn filled(&mut self, len: usize, value: f32) -> Result<Buffer<f32>, DeviceError> {
        self.uploaded(&vec![value; len])
    }

    /// What `fill` puts into a package of so many bytes.
    pub fn package<R>(
        &mut self,
        bytes: usize,
        fill: impl FnOnce(&mut Package<'_>) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        let room = self.arena(bytes)?.room(bytes)?;
        Uploads::default().send(self.gpu, room, fill)
    }
}
