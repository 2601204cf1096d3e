//! Where nvcc and libclang are. The order is that of docs/building.md and tools/toolchain.sh.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::environment::Variable;
use super::error::Error;

/// Finds nvcc: `NVCC`, `CUDA_HOME` or `CUDA_PATH`, `.toolchain`, `PATH`, `/usr/local/cuda`. `check` says whether a
/// file is an nvcc that will do, and why not.
pub fn nvcc<T>(
    root: &Path,
    variable: Variable,
    check: impl Fn(&Path) -> Result<T, String>,
) -> Result<T, Error> {
    if let Some(value) = set(variable, "NVCC") {
        // A name without a folder is one on PATH.
        let path = if value.components().count() == 1 {
            on_path(variable, &value).unwrap_or_else(|| value.clone())
        } else {
            value.clone()
        };
        return check(&path).map_err(|why| Error::Given { variable: "NVCC", value, why });
    }
    let home = |name| set(variable, name).map(|folder| folder.join("bin/nvcc"));
    let places = [
        ("NVCC: ", None),
        ("CUDA_HOME: ", home("CUDA_HOME")),
        ("CUDA_PATH: ", home("CUDA_PATH")),
        ("", Some(root.join(".toolchain/cuda/bin/nvcc"))),
        ("PATH: ", on_path(variable, Path::new("nvcc"))),
        ("", Some(PathBuf::from("/usr/local/cuda/bin/nvcc"))),
    ];
    let mut tried = Vec::new();
    for (origin, path) in places {
        let Some(path) = path else {
            let what = if origin == "PATH: " { "no nvcc" } else { "not set" };
            tried.push(format!("{origin}{what}"));
            continue;
        };
        match check(&path) {
            Ok(found) => return Ok(found),
            Err(why) => tried.push(format!("{origin}{}: {why}", path.display())),
        }
    }
    Err(Error::NotFound { what: "nvcc of CUDA 13.0 or newer", tried, variable: "NVCC" })
}

/// Finds libclang: `LIBCLANG_PATH`, a file or a folder, `.toolchain`, the system's folders.
pub fn libclang(root: &Path, variable: Variable) -> Result<PathBuf, Error> {
    if let Some(value) = set(variable, "LIBCLANG_PATH") {
        let found = if value.is_file() { Some(value.clone()) } else { libclang_in(&value) };
        let why = "libclang.so is not there".to_owned();
        return found.ok_or(Error::Given { variable: "LIBCLANG_PATH", value, why });
    }
    let mut tried = vec!["LIBCLANG_PATH: not set".to_owned()];
    let mut folders = vec![root.join(".toolchain/libclang")];
    folders.extend(llvm_folders(Path::new("/usr/lib")));
    folders.push(PathBuf::from(format!("/usr/lib/{}-linux-gnu", env::consts::ARCH)));
    folders.extend(["/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    for folder in folders {
        if let Some(found) = libclang_in(&folder) {
            return Ok(found);
        }
        tried.push(format!("{}: no libclang.so", folder.display()));
    }
    Err(Error::NotFound { what: "libclang", tried, variable: "LIBCLANG_PATH" })
}

/// A variable that is set and not empty.
fn set(variable: Variable, name: &str) -> Option<PathBuf> {
    variable(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn on_path(variable: Variable, name: &Path) -> Option<PathBuf> {
    let path = variable("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// `llvm-*/lib` in a folder, the newest first.
fn llvm_folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.strip_prefix("llvm-")?.parse().ok()?;
            Some((version, path.join("lib")))
        })
        .collect();
    all.sort_by(|left, right| right.cmp(left));
    all.into_iter().map(|(_, path)| path).collect()
}

/// The libclang in a folder; libclang-cpp.so is another library.
fn libclang_in(folder: &Path) -> Option<PathBuf> {
    let libraries = fs::read_dir(folder).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let rank = libclang_rank(path.file_name()?.to_str()?)?;
        path.is_file().then_some((rank, path))
    });
    libraries.max().map(|(_, path)| path)
}

/// Which libclang of a folder is taken: `libclang.so`, which the system means, then `libclang.so.14`, then
/// `libclang-14.so.1`; the newest of those.
fn libclang_rank(name: &str) -> Option<(u32, Vec<u32>)> {
    let numbers = |text: &str| text.split('.').map_while(|part| part.parse().ok()).collect::<Vec<u32>>();
    if name == "libclang.so" {
        return Some((2, Vec::new()));
    }
    if let Some(version) = name.strip_prefix("libclang.so.") {
        return Some((1, numbers(version)));
    }
    let version = numbers(name.strip_prefix("libclang-")?);
    (!version.is_empty() && name.contains(".so")).then_some((0, version))
}
