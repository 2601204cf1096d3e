//! Compiles the emulator's core and the repository's kernels, to a static library for the crate and, with the mock driver,
//! to a shared library that stands for `libcuda.so`.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use compile::{Build, Compiler, sources_in};

#[allow(dead_code, reason = "the build uses a part of what the crate shares with it")]
#[path = "src/compile.rs"]
mod compile;

#[allow(dead_code, reason = "the build uses the names of its files alone")]
#[path = "../gpu/src/vectors/mod.rs"]
mod vectors;

/// Set to 1, it has kernels compiled so that a debugger sees their variables.
const DEBUG: &str = "SETRANK_EMULATOR_DEBUG";

fn main() {
    if let Err(error) = build() {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let target = [env::var("CARGO_CFG_TARGET_OS")?, env::var("CARGO_CFG_TARGET_ARCH")?];
    if target != ["linux", "x86_64"] {
        return Err(format!("the emulator runs on x86-64 Linux alone, not on {}", target.join(" ")).into());
    }
    let emulator = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let kernels = emulator.join("../../kernels").canonicalize()?;
    let inputs = ["core", "include", "driver", "src/compile.rs"].map(|input| emulator.join(input));
    let micro_kernels = emulator.join("tests/kernels");
    let mut sources = sources_in(&kernels, "cu")?;
    // The mock driver has the kernels besides that the check of a GPU launches.
    sources.extend(vectors::sources().into_iter().map(|name| micro_kernels.join(format!("{name}.cu"))));
    for input in inputs.iter().chain([&kernels]).chain(&sources).chain([&micro_kernels.join("arguments.h")]) {
        println!("cargo::rerun-if-changed={}", input.display());
    }

    let program = cc::Build::new().cpp(true).opt_level(2).get_compiler().path().to_path_buf();
    println!("cargo::rustc-env=SETRANK_EMULATOR_COMPILER={}", program.display());
    println!("cargo::rustc-env=SETRANK_EMULATOR_KERNELS={}", kernels.display());

    println!("cargo::rerun-if-env-changed={DEBUG}");
    let debug = match env::var_os(DEBUG) {
        None => false,
        Some(value) if value.is_empty() || value == "0" => false,
        Some(value) if value == "1" => true,
        Some(value) => return Err(format!("{DEBUG} is {value:?}: set it to 1 or 0, or unset it").into()),
    };
    println!("cargo::rustc-env={DEBUG}={}", u8::from(debug));

    if for_lints() {
        println!("cargo::rustc-env=SETRANK_EMULATOR_LIBCUDA=");
        return Ok(());
    }
    let jobs = env::var("NUM_JOBS")?.parse()?;
    let compiler = Compiler { program, emulator: emulator.clone(), build: Build::Checked, debug, jobs };
    let mut objects = compiler.core(&folder(&out, "core")?)?;
    objects.extend(compiler.kernels(&sources, &folder(&out, "kernels")?)?);

    let mut library = cc::Build::new();
    library.cpp(true);
    for object in &objects {
        library.object(object);
    }
    library.compile("setrank_emulator_core");

    // What the driver exports is what stands for libcuda.so: visible, unlike the core.
    let mut flags = compiler.core_flags();
    flags.push("-fvisibility=default".into());
    let driver = sources_in(&emulator.join("driver"), "cpp")?;
    objects.extend(compiler.objects(&driver, &folder(&out, "driver")?, &flags)?);
    let library = out.join("libcuda.so");
    compiler.link(&objects, &["-shared", "-Wl,-soname,libcuda.so", "-Wl,-z,defs"], &library)?;
    println!("cargo::rustc-env=SETRANK_EMULATOR_LIBCUDA={}", library.display());
    Ok(())
}

/// Whether it is run for clippy, which keeps what it builds apart and links nothing: half a minute saved.
fn for_lints() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    wrapper.is_some_and(|wrapper| wrapper.file_stem().is_some_and(|name| name == "clippy-driver"))
}

/// A folder of its own for each group of objects: their names may be the same.
fn folder(out: &Path, name: &str) -> std::io::Result<PathBuf> {
    let folder = out.join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
