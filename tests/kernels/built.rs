//! What build.rs left in `OUT_DIR` for the tests.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use setrank::device::kernels::FAMILIES;

use crate::cubin;

/// The folder.
pub const FOLDER: &str = env!("SETRANK_KERNELS");

/// Version of the nvcc that built it.
pub const NVCC: &str = env!("SETRANK_NVCC_VERSION");

/// That nvcc.
pub fn nvcc() -> PathBuf {
    PathBuf::from(env!("SETRANK_NVCC"))
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program of the CUDA toolkit, such as nvdisasm: beside the nvcc that was used, in `.toolchain`, or on `PATH`. CI has
/// to have it; elsewhere its test is skipped.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [
        Path::new(env!("SETRANK_NVCC")).parent().map(Path::to_owned),
        Some(root().join(".toolchain/disassemblers/bin")),
    ];
    let found = folders
        .into_iter()
        .flatten()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        assert!(env::var_os("CI").is_none(), "{name} is missing: tools/toolchain.sh gets it");
        println!("skipped: {name} is missing; tools/toolchain.sh gets it");
    }
    found
}

/// A family's code for one architecture.
pub struct Code {
    /// Name of the family.
    pub family: String,
    /// Architecture: `sm_80`.
    pub architecture: String,
    /// The file.
    pub cubin: PathBuf,
}

impl Code {
    /// What the cubin says of its kernels, by name.
    pub fn kernels(&self) -> Vec<cubin::Kernel> {
        let bytes = fs::read(&self.cubin).unwrap_or_else(|error| panic!("{}: {error}", self.cubin.display()));
        let all = cubin::kernels(&bytes).unwrap_or_else(|fault| panic!("{}: {fault}", self.cubin.display()));
        assert!(!all.is_empty(), "{} has no kernel", self.cubin.display());
        all
    }
}

/// All code, by family and architecture.
pub fn code() -> Vec<Code> {
    let mut all = Vec::new();
    for cubin in with_ending(Path::new(FOLDER), &["cubin"]) {
        let stem = cubin.file_stem().and_then(|stem| stem.to_str()).expect("build.rs names files in ASCII");
        let (family, architecture) = stem.split_once('.').expect("<family>.sm_<number>.cubin");
        all.push(Code {
            family: family.to_owned(),
            architecture: architecture.to_owned(),
            cubin: cubin.clone(),
        });
    }
    all
}

/// Files of a folder with one of the endings, by name.
pub fn with_ending(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    all.retain(|path| path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one)));
    all.sort();
    all
}

/// A file's text.
pub fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_family_is_built() {
    let names = |folder: &Path, ending: &str| -> Vec<String> {
        let stem = |path: PathBuf| path.file_stem().expect("has a name").to_string_lossy().into_owned();
        with_ending(folder, &[ending]).into_iter().map(stem).collect()
    };
    let sources = names(&root().join("kernels"), "cu");
    // One for sm_90a alone is left out where that is not built for.
    let sm_90a = code().iter().any(|code| code.architecture == "sm_90a");
    let expected: Vec<String> =
        sources.into_iter().filter(|name| sm_90a || !name.ends_with("_sm90")).collect();
    for ending in ["fatbin", "ptx"] {
        assert_eq!(names(Path::new(FOLDER), ending), expected, "<family>.{ending} in {FOLDER}");
    }
    let embedded: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    assert_eq!(embedded, expected);
    for family in FAMILIES {
        let fatbin = Path::new(FOLDER).join(format!("{}.fatbin", family.name));
        assert!(family.code().unwrap() == fs::read(&fatbin).unwrap(), "{} is not embedded", fatbin.display());
    }
    let listing = text(&Path::new(FOLDER).join("kernels.rs"));
    for family in &expected {
        assert!(code().iter().any(|code| code.family == *family), "no cubin of {family} in {FOLDER}");
        assert!(listing.contains(&format!("name: \"{family}\"")), "kernels.rs does not list {family}");
    }
}

#[test]
fn ptx_is_for_the_oldest_card() {
    for path in with_ending(Path::new(FOLDER), &["ptx"]) {
        let only_sm90 = path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("_sm90"));
        let target = if only_sm90 { ".target sm_90a" } else { ".target sm_80" };
        assert!(text(&path).lines().any(|line| line.trim() == target), "{}: no `{target}`", path.display());
    }
}
