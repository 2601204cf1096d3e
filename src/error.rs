//! The library's one error type: every message says what was wrong, where, and what to do.

use std::path::{Path, PathBuf};

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with the input, the files or the run.
///
/// The library never panics on input; each variant names the place that a person has to look at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read or write a file; its reason is the error's source.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried, as a verb: "read", "write", "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's own reason.
        source: std::io::Error,
    },

    /// A line of a text file is not what its format allows.
    #[error("{file}:{line}: {reason} (at `{token}`)")]
    Parse {
        /// The file, or `<stdin>`.
        file: String,
        /// Line number, counted from 1.
        line: u64,
        /// The offending token as it stands in the file (shortened when long).
        token: String,
        /// What is wrong with it and what is expected.
        reason: String,
    },

    /// A binary file (`.sets` store, checkpoint) is truncated, altered, of another kind or of a newer version.
    #[error("{path}: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },

    /// The data cannot be used for what was asked of it.
    #[error("{0}")]
    Data(String),

    /// A configuration value is out of its range or contradicts another.
    #[error("{0}")]
    Config(String),

    /// A padded or masked batch contradicts itself.
    #[error(transparent)]
    Layout(#[from] crate::data::layout::LayoutError),

    /// A GPU cannot be used, or failed.
    #[error(transparent)]
    Device(#[from] crate::device::DeviceError),

    /// A loss or gradient stopped being finite.
    #[error("{0}")]
    NonFinite(String),
}

impl Error {
    /// An [`Error::Io`] for `path`; use as `.map_err(|e| Error::io("read", path, e))`.
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Error::Io { action, path: path.as_ref().to_path_buf(), source }
    }

    /// An [`Error::Damaged`] for `path`.
    pub fn damaged(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Error::Damaged { path: path.as_ref().to_path_buf(), reason: reason.into() }
    }

    /// An [`Error::Data`].
    pub fn data(reason: impl Into<String>) -> Self {
        Error::Data(reason.into())
    }

    /// An [`Error::Config`].
    pub fn config(reason: impl Into<String>) -> Self {
        Error::Config(reason.into())
    }
}
