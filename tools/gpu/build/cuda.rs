//! Compiles the micro-kernels with setrank's own nvcc and flags.
#![allow(dead_code, reason = "setrank's own build uses the rest of its modules")]

use std::env;
use std::fs;
use std::path::PathBuf;

use error::Error;
use nvcc::Nvcc;

#[path = "../../build/architectures.rs"]
mod architectures;
#[path = "../../build/environment.rs"]
mod environment;
#[path = "../../build/error.rs"]
mod error;
#[path = "../../build/family.rs"]
mod family;
#[path = "../../build/nvcc.rs"]
mod nvcc;
#[path = "../../build/search.rs"]
mod search;
#[path = "../src/vectors/mod.rs"]
mod vectors;

/// Variables of the environment that change what is built.
const VARIABLES: [&str; 7] = [
    "NVCC",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "SETRANK_CUDA_ARCHS",
];

pub fn build() -> Result<(), Error> {
    let variable = |name: &str| env::var_os(name);
    environment::check(&variable, &VARIABLES)?;
    let cargo = |name| environment::text(&variable, name)?.ok_or(Error::NotCargo(name));
    let root = PathBuf::from(cargo("CARGO_MANIFEST_DIR")?).join("../..");
    let out = PathBuf::from(cargo("OUT_DIR")?);
    let folder = root.join("tools/emulator/tests");
    let sources = folder.join("kernels");
    for variable in VARIABLES {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for input in [sources.join("arguments.h"), root.join("kernels/ptx.cuh")] {
        println!("cargo::rerun-if-changed={}", input.display());
    }

    let nvcc = search::nvcc(&root, &variable, Nvcc::at)?;
    println!("cargo::rerun-if-changed={}", nvcc.path.display());
    let list = environment::text(&variable, "SETRANK_CUDA_ARCHS")?.filter(|list| !list.trim().is_empty());
    let architectures = architectures::parse(list.as_deref().unwrap_or(architectures::DEFAULT))?;
    nvcc.knows(&architectures)?;

    let mut families = family::families(&sources, &architectures)?;
    families.retain(|family| vectors::sources().contains(&family.name.as_str()));
    for family in &families {
        println!("cargo::rerun-if-changed={}", family.source.display());
        let mut arguments = nvcc.arguments(family, &out);
        arguments.push(format!("-I{}", root.join("kernels").display()));
        nvcc.compile(family, &arguments, &folder, &out)?;
        family.compress(&out)?;
    }
    let listing = out.join("kernels.rs");
    fs::write(&listing, family::listing(&families)).map_err(|source| Error::file("write", &listing, source))
}
