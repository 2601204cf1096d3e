//! Why the feature `cuda` could not be built, in words that say what to do.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Everything that can go wrong in build.rs.
#[derive(Debug)]
pub enum Error {
    /// nvcc or libclang is in none of the places.
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Each place, and why it did not do.
        tried: Vec<String>,
        /// The variable that names it.
        variable: &'static str,
    },
    /// A variable names something that cannot be used.
    Given {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A variable is not valid Unicode.
    NotText {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: OsString,
    },
    /// `SETRANK_CUDA_ARCHS` is not a list of architectures.
    Architectures {
        /// Its value.
        list: String,
        /// What is wrong with it.
        why: String,
    },
    /// nvcc does not even say what it can do.
    NvccFails {
        /// The program.
        path: PathBuf,
        /// What it said.
        said: String,
    },
    /// nvcc found fault with a family.
    Compile {
        /// The source file.
        source: PathBuf,
        /// What it said.
        output: String,
    },
    /// What should be libclang cannot be loaded.
    Libclang(PathBuf),
    /// bindgen found fault with a header.
    Bindings(String),
    /// The file system or the system refused.
    File {
        /// A verb: "read", "write", "run".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// build.rs was not run by cargo.
    NotCargo(&'static str),
}

impl Error {
    /// A refusal by the system.
    pub fn file(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Error::File { action, path: path.to_owned(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound { what, tried, variable } => {
                writeln!(to, "the feature `cuda` needs {what}, which was not found. Looked at:")?;
                for place in tried {
                    writeln!(to, "    {place}")?;
                }
                write!(to, "Run tools/toolchain.sh, which gets it without root, or set {variable}.")
            }
            Error::Given { variable, value, why } => {
                writeln!(to, "{variable} is {}: {why}", value.display())?;
                write!(to, "Set it right, or unset it and run tools/toolchain.sh.")
            }
            Error::NotText { variable, value } => {
                write!(to, "{variable} is {value:?}, which is not valid Unicode.")?;
                match *variable {
                    "CARGO_MANIFEST_DIR" | "OUT_DIR" => write!(to, " Build in a folder of another name."),
                    _ => write!(to, " Set it right, or unset it."),
                }
            }
            Error::Architectures { list, why } => write!(
                to,
                "SETRANK_CUDA_ARCHS is \"{list}\": {why}\n\
                 It lists GPU architectures as nvcc numbers them, such as {}.",
                super::architectures::DEFAULT
            ),
            Error::NvccFails { path, said } => write!(
                to,
                "{} --list-gpu-code fails:\n{said}\n\
                 Are NVCC_PREPEND_FLAGS or NVCC_APPEND_FLAGS set?",
                path.display()
            ),
            Error::Compile { source, output } => {
                write!(to, "nvcc does not accept {}:\n{}", source.display(), output.trim_end())
            }
            Error::Libclang(path) => write!(
                to,
                "{} cannot be loaded: it is no libclang, or one for another machine.\n\
                 Set LIBCLANG_PATH to another, or get one with tools/toolchain.sh --force.",
                path.display()
            ),
            Error::Bindings(message) => write!(to, "bindgen does not accept kernels/*.h:\n{message}"),
            Error::File { action, path, source } => {
                write!(to, "cannot {action} {}: {source}", path.display())
            }
            Error::NotCargo(variable) => {
                write!(to, "build.rs is run by cargo, which sets {variable}; it is not set")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File { source, .. } => Some(source),
            _ => None,
        }
    }
}
