//! Time of kernels, by an event before and one behind each launch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{DeviceError, Event, Gpu};

/// What one kernel took, all its launches together.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Its launches.
    pub launches: usize,
    /// Seconds from before to behind each launch, added up.
    pub seconds: f64,
}

/// Launches that are timed, while it is on.
#[derive(Debug, Default)]
pub(super) struct Profile {
    on: AtomicBool,
    launches: Mutex<Vec<(&'static str, Event, Event)>>,
}

impl Profile {
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub fn add(&self, kernel: &'static str, start: Event, end: Event) {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).push((kernel, start, end));
    }
}

impl Gpu {
    /// From now on, every launch is timed. Events take a little time of their own.
    pub fn start_profile(&self) {
        self.profile.launches.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.profile.on.store(true, Ordering::Relaxed);
    }

    /// Ends it, waits for all timed launches, and tells what each kernel took, the longest first.
    pub fn end_profile(&self) -> Result<Vec<KernelTime>, DeviceError> {
        self.profile.on.store(false, Ordering::Relaxed);
        let launches =
            std::mem::take(&mut *self.profile.launches.lock().unwrap_or_else(PoisonError::into_inner));
        let mut of_kernels: BTreeMap<&str, KernelTime> = BTreeMap::new();
        for (kernel, start, end) in &launches {
            let time = of_kernels.entry(kernel).or_insert(KernelTime { kernel, launches: 0, seconds: 0.0 });
            time.launches += 1;
            time.seconds += f64::from(self.milliseconds(start, end)?) / 1e3;
        }
        let mut times: Vec<KernelTime> = of_kernels.into_values().collect();
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(times)
    }
}
