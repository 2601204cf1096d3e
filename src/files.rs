//! Files that are either whole or not there: written to a temporary beside the target, synced, renamed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::NamedTempFile;

use crate::{Error, Result};

/// Writes `path` through `fill`; on any error the file that was there before stays as it was.
///
/// A pipe or device, such as `/dev/stdout`, is written as it is.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    if is_special(path) {
        let file = File::options().write(true).open(path).map_err(|e| Error::io("write", path, e))?;
        let mut writer = BufWriter::new(file);
        return fill(&mut writer).and_then(|()| writer.flush()).map_err(|e| Error::io("write", path, e));
    }
    let file = temporary_beside(path)?;
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    fill(&mut writer).map_err(|e| Error::io("write", path, e))?;
    let file = writer.into_inner().map_err(|e| Error::io("write", path, e.into_error()))?;
    persist(file, path)
}

fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| !file.is_file() && !file.is_dir())
}

/// Refuses a file that [`write_atomically`] could not write now: asked before long work whose result it is to be.
pub fn check_writable(path: &Path) -> Result<()> {
    if is_special(path) { Ok(()) } else { temporary_beside(path).map(drop) }
}

/// A temporary file in the folder of `path`, removed when dropped.
pub fn temporary_beside(path: &Path) -> Result<NamedTempFile> {
    if path.is_dir() {
        return Err(Error::io("write", path, std::io::Error::other("it is a folder")));
    }
    if is_special(path) {
        return Err(Error::io("write", path, std::io::Error::other("it is not an ordinary file")));
    }
    if !folder_of(path).is_dir() {
        let reason = format!("there is no folder {}", folder_of(path).display());
        return Err(Error::io("write", path, std::io::Error::new(std::io::ErrorKind::NotFound, reason)));
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".setrank-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A temporary is private by default; the finished file is an ordinary one (less the umask).
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    // Of the error only its kind: its text names the temporary file.
    let file = builder.tempfile_in(folder_of(path)).map_err(|e| Error::io("write", path, e.kind().into()))?;
    with_temporaries(|all| all.push(file.path().to_path_buf()));
    Ok(file)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The temporary files that may exist now.
static TEMPORARIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn with_temporaries<R>(f: impl FnOnce(&mut Vec<PathBuf>) -> R) -> R {
    f(&mut TEMPORARIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Removes the temporary files of writes under way; for a program that is about to end because of a signal, which
/// runs no destructors.
pub fn remove_temporaries() {
    for path in with_temporaries(std::mem::take) {
        // It may be gone already.
        let _ = std::fs::remove_file(path);
    }
}

/// Syncs `file`, gives it its final name, and syncs the folder.
pub fn persist(file: NamedTempFile, path: &Path) -> Result<()> {
    file.as_file().sync_all().map_err(|e| Error::io("write", path, e))?;
    let temporary = file.path().to_path_buf();
    file.persist(path).map_err(|e| Error::io("write", path, e.error))?;
    with_temporaries(|all| all.retain(|other| *other != temporary));
    // Not every file system can sync a folder; the file itself is safe already.
    let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
    Ok(())
}
