//! The code of `kernels/*.cu`, built into this program, and its lookup by name.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;

use super::probe::GpuInfo;
use super::{DeviceError, Plan, Unavailable, driver};

/// A file of kernels.
#[derive(Debug)]
pub struct Family {
    /// Its name: that of the file without `.cu`.
    pub name: &'static str,
    /// Its code for all architectures that it was built for: a fatbin, compressed by Zstandard.
    pub compressed: &'static [u8],
}

impl Family {
    /// Its code as a driver takes it.
    ///
    /// # Errors
    ///
    /// What is not whole, or not compressed.
    pub fn code(&self) -> io::Result<Vec<u8>> {
        zstd::decode_all(self.compressed)
    }
}

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Refuses a build without kernels by `wgmma`: those that compute capability 9.0 alone runs.
pub fn check_wgmma() -> Result<(), Unavailable> {
    match FAMILIES.iter().any(|family| family.name.ends_with("_sm90")) {
        true => Ok(()),
        false => Err(Unavailable::WgmmaNotBuilt),
    }
}

/// Dynamic shared memory that a block may have without asking.
const SHARED_UNASKED: u32 = 48 << 10;

/// The kernels of one device, loaded as they are first used.
#[derive(Debug)]
pub struct Kernels {
    families: &'static [Family],
    loaded: Mutex<HashMap<&'static str, Arc<CudaModule>>>,
    /// By family and name.
    functions: Mutex<HashMap<[&'static str; 2], Function>>,
}

#[derive(Clone, Debug)]
struct Function {
    function: CudaFunction,
    /// Bytes of dynamic shared memory that it may be launched with.
    shared: u32,
}

impl Kernels {
    /// None loaded yet of these families.
    pub fn of(families: &'static [Family]) -> Self {
        Kernels { families, loaded: Mutex::default(), functions: Mutex::default() }
    }

    /// Whether the kernel of `plan` is loaded.
    pub fn has(&self, plan: &Plan) -> bool {
        let functions = self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        functions.contains_key(&[plan.family, plan.kernel])
    }

    /// The kernel of `plan`, allowed its shared memory.
    pub fn get(
        &self,
        context: &Arc<CudaContext>,
        info: &GpuInfo,
        plan: &Plan,
    ) -> Result<CudaFunction, DeviceError> {
        let mut functions = self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fails = |error| DeviceError::Driver {
            action: format!("preparing {plan}"),
            ordinal: info.ordinal,
            message: driver::message(error),
        };
        let found = match functions.get_mut(&[plan.family, plan.kernel]) {
            Some(found) => found,
            None => {
                let module = self.module(context, info, plan)?;
                let function = module.load_function(plan.kernel).map_err(fails)?;
                functions
                    .entry([plan.family, plan.kernel])
                    .or_insert(Function { function, shared: SHARED_UNASKED })
            }
        };
        if plan.shared_bytes > found.shared {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            found.function.set_attribute(attribute, plan.shared_bytes as i32).map_err(fails)?;
            found.shared = plan.shared_bytes;
        }
        Ok(found.function.clone())
    }

    fn module(
        &self,
        context: &Arc<CudaContext>,
        info: &GpuInfo,
        plan: &Plan,
    ) -> Result<Arc<CudaModule>, DeviceError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(module) = loaded.get(plan.family) {
            return Ok(module.clone());
        }
        let only_sm90 = plan.family.ends_with("_sm90");
        if only_sm90 {
            info.check_wgmma()?;
        }
        let family = self.families.iter().find(|family| family.name == plan.family);
        let family = family.ok_or_else(|| match only_sm90 {
            true => Unavailable::WgmmaNotBuilt.into(),
            false => {
                let reason = format!("there is no kernel family `{}`", plan.family);
                DeviceError::Plan { plan: *plan, reason }
            }
        })?;
        let code = family.code().map_err(|error| DeviceError::Driver {
            action: format!("decompressing kernel family `{}`", family.name),
            ordinal: info.ordinal,
            message: error.to_string(),
        })?;
        let module = context
            .load_module(Ptx::from_binary(code))
            .map_err(|error| not_loaded(family.name, info, error.0, driver::message(error)))?;
        loaded.insert(family.name, module.clone());
        Ok(module)
    }
}

/// Why the driver did not take a family's code.
fn not_loaded(family: &'static str, info: &GpuInfo, error: CUresult, message: String) -> DeviceError {
    match error {
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            DeviceError::NoCode { family, name: info.name.clone(), capability: info.capability, message }
        }
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION | CUresult::CUDA_ERROR_INVALID_IMAGE => {
            DeviceError::NewerCode { family, message }
        }
        _ => DeviceError::Driver {
            action: format!("loading kernel family `{family}`"),
            ordinal: info.ordinal,
            message,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_to_load_has_its_own_words() {
        let info = GpuInfo {
            ordinal: 1,
            name: "Card".into(),
            capability: (12, 1),
            memory: 0,
            multiprocessors: 1,
            shared_per_block: 1,
        };
        for (error, part) in [
            (CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, "SETRANK_CUDA_ARCHS=121"),
            (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "update the driver"),
            (CUresult::CUDA_ERROR_INVALID_IMAGE, "update the driver"),
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "loading kernel family `f` on GPU 1 failed"),
            (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "loading kernel family `f` on GPU 1 failed"),
        ] {
            let message = not_loaded("f", &info, error, "why".into()).to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
