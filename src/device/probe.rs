//! Which GPUs there are, and whether they can be used.

use super::Unavailable;

/// The least compute capability that kernels are built for: that of the portable code in every fatbin.
pub const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// The CUDA version of the kernels' code: drivers older than this do not load it.
pub const LEAST_DRIVER: i32 = 13_000;

/// A GPU, used or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number, from 0.
    pub ordinal: usize,
    /// What its maker calls it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory: usize,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block may have.
    pub shared_per_block: u32,
}

impl GpuInfo {
    /// Refuses a device that none of the code can run on.
    pub fn check(&self) -> Result<(), Unavailable> {
        if self.capability >= LEAST_CAPABILITY {
            return Ok(());
        }
        Err(Unavailable::OldDevice {
            name: self.name.clone(),
            found: self.capability,
            needed: LEAST_CAPABILITY,
        })
    }

    /// Refuses a device without matrix instructions of warpgroups, `wgmma`.
    pub fn check_wgmma(&self) -> Result<(), Unavailable> {
        match self.capability {
            (9, 0) => Ok(()),
            found => Err(Unavailable::NoWgmma { name: self.name.clone(), found }),
        }
    }
}

/// All GPUs that the driver shows, at least one; otherwise why there is none.
#[cfg(feature = "cuda")]
pub fn gpus() -> Result<Vec<GpuInfo>, Unavailable> {
    super::driver::gpus()
}

/// All GPUs that the driver shows, at least one; otherwise why there is none.
#[cfg(not(feature = "cuda"))]
pub fn gpus() -> Result<Vec<GpuInfo>, Unavailable> {
    Err(Unavailable::NotBuilt)
}

/// The first GPU that can be used.
///
/// # Errors
///
/// Why there is none.
pub fn first_usable() -> Result<GpuInfo, Unavailable> {
    first_usable_of(gpus()?)
}

fn first_usable_of(gpus: Vec<GpuInfo>) -> Result<GpuInfo, Unavailable> {
    let mut refused = None;
    for gpu in gpus {
        match gpu.check() {
            Ok(()) => return Ok(gpu),
            Err(reason) => refused = refused.or(Some(reason)),
        }
    }
    Err(refused.unwrap_or(Unavailable::NoDevice))
}

/// The GPU of this number, if it is there and can be used.
pub fn gpu(ordinal: usize) -> Result<GpuInfo, Unavailable> {
    let mut gpus = gpus()?;
    if ordinal >= gpus.len() {
        return Err(Unavailable::NoSuchDevice { ordinal, count: gpus.len() });
    }
    let gpu = gpus.swap_remove(ordinal);
    gpu.check()?;
    Ok(gpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(capability: (i32, i32)) -> GpuInfo {
        GpuInfo {
            ordinal: 0,
            name: "NVIDIA X".into(),
            capability,
            memory: 1,
            multiprocessors: 1,
            shared_per_block: 1,
        }
    }

    #[test]
    fn the_first_that_can_be_used_is_taken() {
        let found = first_usable_of([(7, 5), (8, 9), (9, 0)].map(gpu).to_vec()).unwrap();
        assert_eq!(found.capability, (8, 9));
        let none = first_usable_of([(7, 5), (7, 0)].map(gpu).to_vec()).unwrap_err();
        assert!(none.to_string().contains("compute capability 7.5"), "{none}");
        assert_eq!(first_usable_of(Vec::new()).unwrap_err().to_string(), Unavailable::NoDevice.to_string());
    }

    #[test]
    fn old_devices_are_refused() {
        for capability in [(8, 0), (8, 9), (9, 0), (12, 0)] {
            gpu(capability).check().unwrap();
        }
        let message = gpu((7, 5)).check().unwrap_err().to_string();
        assert_eq!(
            message,
            "NVIDIA X has compute capability 7.5, but this program's kernels need 8.0 or more: use --device cpu"
        );
    }
}
