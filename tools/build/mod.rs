//! The build of the feature `cuda`, part of build.rs. Everything that it makes stands in `OUT_DIR`:
//!
//! | file | what |
//! |---|---|
//! | `kernels.rs` | `FAMILIES`: name and compressed fatbin of each family, for `src/device` to include |
//! | `abi.rs` | the structs and constants of `kernels/*.h` |
//! | `<family>.fatbin` | code for each architecture, and PTX of compute_80 for others |
//! | `<family>.fatbin.zst` | the same, compressed |
//! | `<family>.sm_80.cubin`, … | the parts of it |
//! | `<family>.ptx` | PTX of compute_80; of a family `…_sm90` that of compute_90a, which is not in the fatbin |
//! | `<family>.resources.txt` | what ptxas says of registers, stack and spills |
//! | `<family>.fingerprint` | of what it was made from |
//!
//! Variables that are set when the crate and its tests are compiled: `SETRANK_KERNELS`, the folder; `SETRANK_NVCC` and
//! `SETRANK_NVCC_VERSION`, of the nvcc that was used.

mod architectures;
mod bindings;
mod constants;
mod environment;
mod error;
mod family;
mod fingerprint;
mod nvcc;
mod parallel;
mod search;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use error::Error;
use family::Family;
use nvcc::Nvcc;

/// Variables of the environment that change what is built.
const VARIABLES: [&str; 9] = [
    "NVCC",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "SETRANK_CUDA_ARCHS",
    "LIBCLANG_PATH",
    "BINDGEN_EXTRA_CLANG_ARGS",
];

/// Builds all of it, and tells cargo what it depends on.
pub fn build() -> Result<(), Error> {
    for variable in VARIABLES {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=kernels");

    let variable = |name: &str| env::var_os(name);
    environment::check(&variable, &VARIABLES)?;
    let cargo = |name| environment::text(&variable, name)?.ok_or(Error::NotCargo(name));
    let root = PathBuf::from(cargo("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(cargo("OUT_DIR")?);
    let kernels = root.join("kernels");
    println!("cargo::rustc-env=SETRANK_KERNELS={}", out.display());

    let nvcc = search::nvcc(&root, &variable, Nvcc::at)?;
    println!("cargo::rerun-if-changed={}", nvcc.path.display());
    println!("cargo::rustc-env=SETRANK_NVCC={}", nvcc.path.display());
    println!("cargo::rustc-env=SETRANK_NVCC_VERSION={}", nvcc.version);
    let libclang = search::libclang(&root, &variable)?;
    println!("cargo::rerun-if-changed={}", libclang.display());

    let list = environment::text(&variable, "SETRANK_CUDA_ARCHS")?.filter(|list| !list.trim().is_empty());
    let architectures = architectures::parse(list.as_deref().unwrap_or(architectures::DEFAULT))?;
    nvcc.knows(&architectures)?;

    let headers = family::headers(&kernels)?;
    let mut families = family::families(&kernels, &architectures)?;
    if environment::for_lints(&variable) {
        families.clear();
    }
    family::remove_others(&out, &families)?;
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let built = parallel::map(&families, jobs, |family| build_family(&nvcc, family, &headers, &root, &out));
    built.into_iter().collect::<Result<Vec<()>, Error>>()?;

    write(&out.join("kernels.rs"), &family::listing(&families))?;
    write(&out.join("abi.rs"), &bindings::generate(&kernels, &headers, &libclang)?)
}

/// Compiles a family, unless what is there was made from the same.
fn build_family(
    nvcc: &Nvcc,
    family: &Family,
    headers: &[PathBuf],
    root: &Path,
    out: &Path,
) -> Result<(), Error> {
    let command = nvcc.arguments(family, out);
    let mut parts = vec![nvcc.version.to_string(), family::COMPRESSION.to_string()];
    parts.extend(command.iter().cloned());
    for variable in ["NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
        parts.push(env::var(variable).unwrap_or_default());
    }
    let fingerprint =
        fingerprint::of(&parts, headers.iter().map(PathBuf::as_path).chain([family.source.as_path()]))?;

    let record = out.join(format!("{}.fingerprint", family.name));
    let outputs = family.outputs(out);
    if fs::read_to_string(&record).is_ok_and(|of| of == fingerprint)
        && outputs.iter().chain([&family.compressed(out)]).all(|path| path.exists())
    {
        return Ok(());
    }
    // A build that fails half way leaves no fingerprint.
    let _ = fs::remove_file(&record);
    nvcc.compile(family, &command, root, out)?;
    family.compress(out)?;
    write(&record, &fingerprint)
}

/// Writes a file if it has other content, so that what includes it is as old as its content.
fn write(path: &Path, content: &str) -> Result<(), Error> {
    if fs::read_to_string(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(path, content).map_err(|source| Error::file("write", path, source))
}
