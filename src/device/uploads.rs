//! Copies to the device that nobody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Arena, Buffer, DeviceError, Element, Gpu, Room, Staging};

/// Two pieces of pinned memory that are used in turn: the host fills one while what was put into the other is copied.
#[derive(Debug, Default)]
pub struct Uploads {
    pinned: [Option<Staging<u8>>; 2],
    next: usize,
}

impl Uploads {
    /// Has `fill` put values into a package, and queues its copy to `room`: one copy, whatever the package holds. Waits only
    /// until the package before the last is on the device, and where this one is larger than any before. Before the copy is
    /// queued, and where it never is, launches refuse the package's buffers.
    ///
    /// # Errors
    ///
    /// What `fill` fails with, nothing being copied then, and what the driver refuses.
    pub fn send<R>(
        &mut self,
        gpu: &Gpu,
        room: Room,
        fill: impl FnOnce(&mut Package<'_>) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        gpu.owns(&room.0)?;
        let len = room.0.len();
        let pinned = match &mut self.pinned[self.next] {
            Some(pinned) if pinned.len() >= len => pinned,
            other => {
                // Given back first. A little more than is needed now, since batches differ.
                *other = None;
                other.insert(gpu.staging(len + len / 8 + 1)?)
            }
        };
        let sent = Arc::new(AtomicBool::new(false));
        let mut package = Package { host: gpu.staged_mut(pinned)?, room: &room, used: 0, sent: &sent };
        let result = fill(&mut package)?;
        let used = package.used;
        gpu.upload_staged(&mut room.0.part(0..used)?, pinned)?;
        sent.store(true, Ordering::Release);
        self.next = 1 - self.next;
        Ok(result)
    }

    /// Has `set` write as many values as `to` has, all of them, and queues their copy to it; waits as [`send`](Self::send)
    /// does. What stands there before is arbitrary.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    pub fn fill<T: Element>(
        &mut self,
        gpu: &Gpu,
        to: &mut Buffer<T>,
        set: impl FnOnce(&mut [T]),
    ) -> Result<(), DeviceError> {
        let len = to.len();
        self.send(gpu, Room::over(to), |package| package.put_with(len, set).map(drop))
    }
}

/// Values that go to the device in one copy.
#[derive(Debug)]
pub struct Package<'a> {
    /// At least as many bytes as the room has.
    host: &'a mut [u8],
    room: &'a Room,
    used: usize,
    /// Whether the copy is queued.
    sent: &'a Arc<AtomicBool>,
}

impl Package<'_> {
    /// Puts values in; where they will be.
    ///
    /// # Errors
    ///
    /// Too little room: [`Arena::bytes_for`] all that is put in would do.
    pub fn put<T: Element>(&mut self, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        self.put_with(values.len(), |to| to.copy_from_slice(values))
    }

    /// Has `set` write `len` values, all of them; what stands there before is arbitrary.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub fn put_with<T: Element>(
        &mut self,
        len: usize,
        set: impl FnOnce(&mut [T]),
    ) -> Result<Buffer<T>, DeviceError> {
        let total = self.room.0.len();
        let (needed, free) = (len.saturating_mul(size_of::<T>()), total - self.used);
        if needed > free {
            return Err(DeviceError::ArenaFull { what: "a package".into(), needed, free, total });
        }
        let begin = self.used;
        let buffer = self.room.cut(begin, len, self.sent)?;
        let values = bytemuck::try_cast_slice_mut(&mut self.host[begin..begin + needed]);
        set(values.map_err(|error| DeviceError::Shapes(format!("values of a package: {error}")))?);
        self.used = (begin + Arena::bytes_for([needed])).min(total);
        Ok(buffer)
    }
}
