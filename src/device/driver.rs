//! The driver: whether it is there, what it shows, what its errors say.

use std::ffi::c_void;

use cudarc::driver::CudaStream;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::Unavailable;
use super::probe::{GpuInfo, LEAST_DRIVER};

/// The driver's name for an error and its text.
pub fn message(error: DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()),
        (Ok(name), Err(_)) => name.to_string_lossy().into_owned(),
        _ => format!("error {}", error.0 as u32),
    }
}

/// Makes the stream's context the thread's, as far as that goes: for what is given back, where nobody hears of errors.
pub fn make_current(stream: &CudaStream) {
    // SAFETY: the stream keeps its context alive.
    let _ = unsafe { result::ctx::set_current(stream.context().cu_ctx()) };
}

/// The functions with which devices are listed, which drivers have had from long ago.
const FUNCTIONS: [&str; 9] = [
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
];

/// Starts the driver, or says why not.
fn start() -> Result<(), Unavailable> {
    // SAFETY: loading the driver runs nothing but its own start.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    // cudarc panics on a call that the library does not have: what is none of NVIDIA's is refused here, an old driver by
    // its version.
    // SAFETY: the library was loaded just now; the symbols are not used.
    let has = |name: &&str| unsafe { sys::culib().get::<*const c_void>(name.as_bytes()).is_ok() };
    if let Some(missing) = FUNCTIONS.iter().find(|name| !has(name)) {
        return Err(Unavailable::NotADriver { missing });
    }
    let mut found = 0;
    // SAFETY: the call writes one number, and needs no start.
    let asked = unsafe { sys::cuDriverGetVersion(&mut found) }.result();
    asked.map_err(|error| Unavailable::DriverFails { message: message(error) })?;
    if found < LEAST_DRIVER {
        return Err(Unavailable::OldDriver { found, needed: LEAST_DRIVER });
    }
    result::init().map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Unavailable::NoDevice,
        _ => Unavailable::DriverFails { message: message(error) },
    })
}

/// All GPUs that the driver shows, at least one.
pub fn gpus() -> Result<Vec<GpuInfo>, Unavailable> {
    start()?;
    let fails = |error| Unavailable::NoAnswer { message: message(error) };
    let count = result::device::get_count().map_err(fails)?;
    if count == 0 {
        return Err(Unavailable::NoDevice);
    }
    (0..count).map(|ordinal| describe(ordinal).map_err(fails)).collect()
}

fn describe(ordinal: i32) -> Result<GpuInfo, DriverError> {
    let device = result::device::get(ordinal)?;
    // SAFETY: the device is one that the driver just gave.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    Ok(GpuInfo {
        ordinal: ordinal as usize,
        name: result::device::get_name(device)?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }?,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
    })
}
