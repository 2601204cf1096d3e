//! Time of launches by events, each on operands that are in memory and not in the cache.

use std::fmt::Display;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use setrank::device::{DeviceError, Event, Gpu};

use crate::card::Card;
use crate::memory::Memory;

/// So many times the L2 cache are all copies of a launch's operands.
const CACHES: usize = 3;

/// Queues one launch on operands of its own.
pub type Launch<'a> = Box<dyn FnMut() -> Result<(), DeviceError> + 'a>;

/// What a measurement is called, and what is counted a second.
pub struct Measured<'a> {
    pub group: &'a str,
    pub name: &'a str,
    pub throughput: Throughput,
}

impl<'a> Measured<'a> {
    /// Of documents or other rows.
    pub fn rows(group: &'a str, name: &'a str, rows: usize) -> Self {
        Measured { group, name, throughput: Throughput::Elements(rows as u64) }
    }

    /// Of bytes that are read and written.
    pub fn bytes(group: &'a str, name: &'a str, bytes: usize) -> Self {
        Measured { group, name, throughput: Throughput::Bytes(bytes as u64) }
    }

    /// Times launches that `make` makes, each of operands of its own: as many as exceed the L2 cache three times together take
    /// turns, so that each launch finds its operands in memory.
    pub fn launches<'c>(
        self,
        criterion: &mut Criterion,
        card: &'c Card,
        make: impl Fn(&mut Memory<'c>) -> Result<Launch<'c>, DeviceError>,
    ) {
        let (mut memory, mut launches) = (Memory::new(&card.gpu), Vec::new());
        let mut next = 0;
        self.steps(criterion, &card.gpu, |count| {
            // No more than are launched.
            while (launches.len() as u64) < count && memory.bytes <= CACHES * card.l2_bytes {
                launches.push(make(&mut memory)?);
            }
            timed(&card.gpu, count, || {
                next = (next + 1) % launches.len();
                launches[next]()
            })
        });
    }

    /// Times what `time` says that so many steps take.
    pub fn steps<E: Display>(
        self,
        criterion: &mut Criterion,
        gpu: &Gpu,
        mut time: impl FnMut(u64) -> Result<Duration, E>,
    ) {
        let Measured { group: family, name, throughput } = self;
        let mut group = criterion.benchmark_group(family);
        group.throughput(throughput);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let taken = time(count);
                taken.unwrap_or_else(|error| panic!("{family}, {name}, on {}: {error}", gpu.info().name))
            });
        });
        group.finish();
    }
}

/// From an event before so many launches that `queue` queues one by one to an event behind them.
pub fn timed(
    gpu: &Gpu,
    count: u64,
    mut queue: impl FnMut() -> Result<(), DeviceError>,
) -> Result<Duration, DeviceError> {
    let start = gpu.record()?;
    for _ in 0..count {
        queue()?;
    }
    elapsed(gpu, &start, &gpu.record()?)
}

/// Between two moments, once both have come.
pub fn elapsed(gpu: &Gpu, start: &Event, end: &Event) -> Result<Duration, DeviceError> {
    Ok(Duration::from_secs_f64(f64::from(gpu.milliseconds(start, end)?) / 1e3))
}
