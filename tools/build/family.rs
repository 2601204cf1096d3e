//! Families of kernels: each is one `kernels/<family>.cu`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::architectures::Architecture;
use super::error::Error;

/// Endings of the files of families in `OUT_DIR`.
const ENDINGS: [&str; 6] = [".fatbin", ".fatbin.zst", ".cubin", ".ptx", ".resources.txt", ".fingerprint"];

/// How hard Zstandard tries: above it, two per cent cost many times as long.
pub const COMPRESSION: i32 = 9;

/// A family, and what it is built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name: the file's, without its ending.
    pub name: String,
    /// The source file.
    pub source: PathBuf,
    /// Architectures with code in its fatbin.
    pub architectures: Vec<Architecture>,
    /// Whether it has sm_90a's own instructions, so that no other card can run it.
    pub only_sm90: bool,
}

impl Family {
    /// The virtual architecture of its PTX.
    pub fn ptx_architecture(&self) -> &'static str {
        if self.only_sm90 { "90a" } else { "80" }
    }

    /// The files that compiling it gives, the cubins last.
    pub fn outputs(&self, out: &Path) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = ["fatbin", "ptx", "resources.txt"]
            .iter()
            .map(|ending| out.join(format!("{}.{ending}", self.name)))
            .collect();
        all.extend(self.architectures.iter().map(|architecture| self.cubin(out, architecture)));
        all
    }

    /// The fatbin as the program has it.
    pub fn compressed(&self, out: &Path) -> PathBuf {
        out.join(format!("{}.fatbin.zst", self.name))
    }

    /// Compresses the fatbin, to an eighth or so.
    pub fn compress(&self, out: &Path) -> Result<(), Error> {
        let (from, to) = (out.join(format!("{}.fatbin", self.name)), self.compressed(out));
        let fatbin = fs::read(&from).map_err(|source| Error::file("read", &from, source))?;
        let compressed = zstd::encode_all(&fatbin[..], COMPRESSION)
            .map_err(|source| Error::file("compress", &from, source))?;
        fs::write(&to, compressed).map_err(|source| Error::file("write", &to, source))
    }

    /// The cubin for an architecture.
    pub fn cubin(&self, out: &Path, architecture: &Architecture) -> PathBuf {
        out.join(format!("{}.sm_{architecture}.cubin", self.name))
    }
}

/// The families in a folder, by name. One named `…_sm90` is left out where sm_90a is not built for.
pub fn families(kernels: &Path, architectures: &[Architecture]) -> Result<Vec<Family>, Error> {
    let sm_90a = Architecture { number: 90, suffix: Some('a') };
    let mut all = Vec::new();
    for source in files(kernels, &["cu"])? {
        let Some(name) = source.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned) else {
            continue;
        };
        let only_sm90 = name.ends_with("_sm90");
        let architectures = if only_sm90 { vec![sm_90a.clone()] } else { architectures.to_vec() };
        all.push(Family { name, source, architectures, only_sm90 });
    }
    all.retain(|family| !family.only_sm90 || architectures.contains(&sm_90a));
    Ok(all)
}

/// The headers in a folder, by name: any family may include any of them.
pub fn headers(kernels: &Path) -> Result<Vec<PathBuf>, Error> {
    files(kernels, &["h", "cuh"])
}

fn files(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let cannot = |source| Error::file("read", folder, source);
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| endings.contains(&ending))
        {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// Removes the files of families and architectures that are built no more: tests read all that they find.
pub fn remove_others(out: &Path, families: &[Family]) -> Result<(), Error> {
    let mut keep: Vec<PathBuf> = families.iter().flat_map(|family| family.outputs(out)).collect();
    for family in families {
        keep.extend([family.compressed(out), out.join(format!("{}.fingerprint", family.name))]);
    }
    let cannot = |source| Error::file("read", out, source);
    for entry in fs::read_dir(out).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if ENDINGS.iter().any(|ending| name.ends_with(ending)) && !keep.contains(&path) {
            fs::remove_file(&path).map_err(|source| Error::file("remove", &path, source))?;
        }
    }
    Ok(())
}

/// Rust source of the list of families, for a module that defines `Family { name, compressed }`.
pub fn listing(families: &[Family]) -> String {
    let mut text = String::from(
        "/// The families of kernels that were built, by name.\npub static FAMILIES: &[Family] = &[\n",
    );
    for Family { name, .. } in families {
        let fatbin = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin.zst\"))");
        writeln!(text, "    Family {{ name: \"{name}\", compressed: {fatbin} }},")
            .expect("a string takes all");
    }
    text + "];\n"
}
