//! Compiles the kernels in tests/kernels to PTX.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// nvcc: what `NVCC` names, or what tools/toolchain.sh brings.
fn nvcc() -> Option<PathBuf> {
    let named = std::env::var_os("NVCC").map(PathBuf::from);
    named.or_else(|| Some(repository().join(".toolchain/cuda/bin/nvcc"))).filter(|path| path.is_file())
}

/// The PTX that nvcc makes of a file in tests/kernels for compute_80, with the directives of
/// debuggers in it; nothing, and a line that says so, without nvcc.
pub fn compile(name: &str) -> Option<String> {
    let Some(nvcc) = nvcc() else {
        println!("skipped: no nvcc; tools/toolchain.sh brings one");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("kernel.ptx");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(name);
    let output = Command::new(&nvcc)
        .args(["-ptx", "-arch=compute_80", "-std=c++17", "-lineinfo", "-o"])
        .args([&to, &source])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", nvcc.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read_to_string(to).unwrap())
}
