//! Libraries of kernels for the emulator: the repository's, and those that a test compiles from changed sources.

use std::ffi::{CString, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use libloading::Library;
use tempfile::TempDir;

use crate::compile::{Build, CompileError, Compiler, sources_in};
use crate::ffi;

/// Why kernels could not be compiled or loaded.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A source could not be read, or a copy of it not be written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A text that is to be replaced is not there, or more than once.
    #[error("{file}: the text to replace is there {times} times, not once: {text}")]
    Replace {
        /// Name of the file.
        file: String,
        /// The text.
        text: String,
        /// How often it was found.
        times: usize,
    },
    /// There is no such file beside the sources.
    #[error("{0}: no such file among the sources and the headers beside them")]
    NoFile(String),
    /// The compiler found errors.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The library that was compiled could not be loaded.
    #[error("the compiled kernels: {0}")]
    Load(#[from] libloading::Error),
}

/// Sources of kernels (`.cu`), with the headers beside them, perhaps changed.
#[derive(Clone, Debug)]
pub struct Sources {
    files: Vec<SourceFile>,
}

#[derive(Clone, Debug)]
struct SourceFile {
    name: String,
    text: String,
    is_unit: bool,
    /// Name of its folder: reports tell files by it.
    folder: String,
}

impl Sources {
    /// The folder of the repository's kernels.
    pub fn repository_folder() -> &'static Path {
        Path::new(env!("SETRANK_EMULATOR_KERNELS"))
    }

    /// Reads sources and all headers (`.h`, `.cuh`) in their folders.
    pub fn read<P: AsRef<Path>>(units: &[P]) -> Result<Self, KernelError> {
        let mut files: Vec<SourceFile> = Vec::new();
        for unit in units {
            let unit = unit.as_ref();
            let folder = unit.parent().unwrap_or(Path::new("."));
            add(&mut files, unit, true)?;
            for extension in ["h", "cuh"] {
                let headers = sources_in(folder, extension)
                    .map_err(|source| KernelError::File { path: folder.into(), source })?;
                for header in headers {
                    add(&mut files, &header, false)?;
                }
            }
        }
        Ok(Self { files })
    }

    /// The repository's sources of these names, such as `attention.cu`.
    pub fn repository(units: &[&str]) -> Result<Self, KernelError> {
        let paths: Vec<_> = units.iter().map(|unit| Self::repository_folder().join(unit)).collect();
        Self::read(&paths)
    }

    /// Replaces a text that is in the file of this name exactly once: a planted bug.
    pub fn replace(mut self, file: &str, from: &str, to: &str) -> Result<Self, KernelError> {
        let found = self.files.iter_mut().find(|known| known.name == file);
        let known = found.ok_or_else(|| KernelError::NoFile(file.into()))?;
        let times = known.text.matches(from).count();
        if times != 1 {
            return Err(KernelError::Replace { file: file.into(), text: from.into(), times });
        }
        known.text = known.text.replacen(from, to, 1);
        Ok(self)
    }

    /// Leaves out kernels whose names do not begin so, that less is compiled.
    pub fn only(self, beginning: &str) -> Self {
        self.with(|kernel| kernel.starts_with(beginning))
    }

    /// Leaves out other kernels: those that a line makes which is nothing but a macro's call with the name first, as
    /// `SCALE(scale_d32, 32)`.
    pub fn with(mut self, has: impl Fn(&str) -> bool) -> Self {
        for file in self.files.iter_mut().filter(|file| file.is_unit) {
            let stays = |line: &&str| made_by(line).is_none_or(&has);
            // Lines keep their numbers.
            let lines: Vec<&str> =
                file.text.lines().map(|line| if stays(&line) { line } else { "" }).collect();
            file.text = lines.join("\n") + "\n";
        }
        self
    }

    /// Compiles them to a library.
    pub fn compile(&self) -> Result<Kernels, KernelError> {
        let folder = temporary_folder()?;
        let units = self.write(folder.path())?;
        let compiler = compiler(Build::Changed);
        let objects = compiler.kernels(&units, folder.path())?;
        let path = folder.path().join("libkernels.so");
        compiler.link(&objects, &["-shared", "-Wl,-z,defs"], &path)?;
        // SAFETY: the library was made just now; it has no initialisers beyond those of its own tables.
        let library = unsafe { Library::new(&path) }?;
        // SAFETY: `emu_kernels` is a constant of the library: only its address is taken, and the library is kept.
        let table = unsafe { *library.get::<*const c_void>(b"emu_kernels\0")? };
        Ok(Kernels { table, _library: Some((library, folder)) })
    }

    /// Writes the files to folders of their own names in `folder`, and gives the paths of the units.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, KernelError> {
        let mut units = Vec::new();
        for file in &self.files {
            let parent = folder.join(&file.folder);
            let path = parent.join(&file.name);
            let failed = |source| KernelError::File { path: path.clone(), source };
            fs::create_dir_all(&parent).map_err(failed)?;
            fs::write(&path, &file.text).map_err(failed)?;
            if file.is_unit {
                units.push(path);
            }
        }
        Ok(units)
    }

    /// The files' names and texts, to tell one set of sources from another.
    pub(crate) fn content(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|file| (file.name.as_str(), file.text.as_str()))
    }
}

/// The kernel that a line makes which is nothing but a macro's call.
fn made_by(line: &str) -> Option<&str> {
    let (name, arguments) = line.strip_suffix(')')?.split_once('(')?;
    let is_macro = |name: &str| name.bytes().all(|letter| letter.is_ascii_uppercase() || letter == b'_');
    let kernel = arguments.split(',').next()?;
    let is_kernel = kernel.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
    (is_macro(name) && is_kernel).then_some(kernel)
}

fn add(files: &mut Vec<SourceFile>, path: &Path, is_unit: bool) -> Result<(), KernelError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(known) = files.iter_mut().find(|known| known.name == name) {
        known.is_unit |= is_unit;
        return Ok(());
    }
    let text = fs::read_to_string(path).map_err(|source| KernelError::File { path: path.into(), source })?;
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    files.push(SourceFile { name, text, is_unit, folder });
    Ok(())
}

/// A library of kernels.
#[derive(Debug)]
pub struct Kernels {
    table: *const c_void,
    _library: Option<(Library, TempDir)>,
}

// SAFETY: the table is constant data, and so is the library that holds it.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// The repository's kernels.
    pub fn repository() -> Self {
        Self { table: (&raw const ffi::emu_kernels).cast(), _library: None }
    }

    /// The address of the table `emu_kernels`, for the mock driver.
    pub fn table(&self) -> *const c_void {
        self.table
    }

    /// Whether there is a kernel of this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub(crate) fn find(&self, name: &str) -> Option<*const ffi::Kernel> {
        let name = CString::new(name).ok()?;
        // SAFETY: the table is an `emu_kernels`, and the name ends with 0.
        let kernel = unsafe { ffi::emu_find(self.table, name.as_ptr()) };
        (!kernel.is_null()).then_some(kernel)
    }
}

pub(crate) fn compiler(build: Build) -> Compiler {
    Compiler {
        program: env!("SETRANK_EMULATOR_COMPILER").into(),
        emulator: env!("CARGO_MANIFEST_DIR").into(),
        build,
        debug: env!("SETRANK_EMULATOR_DEBUG") == "1",
        jobs: std::thread::available_parallelism().map_or(1, |jobs| jobs.get()),
    }
}

pub(crate) fn temporary_folder() -> Result<TempDir, KernelError> {
    TempDir::new().map_err(|source| KernelError::File { path: std::env::temp_dir(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_macros_call_makes_a_kernel() {
        assert_eq!(made_by("SCALE_ROWS(scale_d32, 32, true)"), Some("scale_d32"));
        assert_eq!(made_by("SCALE(scale)"), Some("scale"));
        for line in
            ["", "#define SCALE(NAME, D) \\", "    scale(p);", "int two(int a)", "SCALE(scale) // a", "f(x)"]
        {
            assert_eq!(made_by(line), None, "{line}");
        }
    }
}
