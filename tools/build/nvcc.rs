//! nvcc: its version, its arguments, and what it leaves.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::architectures::Architecture;
use super::error::Error;
use super::family::Family;

/// The oldest CUDA that will do.
const OLDEST: u32 = 13;

/// A version such as 13.0.88.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub Vec<u32>);

impl fmt::Display for Version {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        to.write_str(&parts.join("."))
    }
}

impl Version {
    /// Reads it from what `nvcc --version` prints: `Cuda compilation tools, release 13.0, V13.0.88`.
    pub fn parse(output: &str) -> Option<Self> {
        let line = output.lines().find(|line| line.contains("release "))?;
        let number = line.rsplit_once(", V")?.1.trim();
        number.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>().map(Version)
    }

    /// Whether it is new enough.
    pub fn will_do(&self) -> bool {
        self.0.first().is_some_and(|major| *major >= OLDEST)
    }
}

/// An nvcc that will do.
#[derive(Clone, Debug)]
pub struct Nvcc {
    /// The program.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
}

impl Nvcc {
    /// The nvcc at a path, or why it will not do.
    pub fn at(path: &Path) -> Result<Self, String> {
        if !path.is_file() {
            return Err("no such file".to_owned());
        }
        let output =
            Command::new(path).arg("--version").output().map_err(|error| format!("does not run: {error}"))?;
        let version = Version::parse(&String::from_utf8_lossy(&output.stdout))
            .ok_or("`--version` names no version: it is no nvcc, or does not run here")?;
        if !version.will_do() {
            return Err(format!("version {version} is too old"));
        }
        Ok(Nvcc { path: path.to_owned(), version })
    }

    /// Makes sure that nvcc can make code for these architectures.
    pub fn knows(&self, architectures: &[Architecture]) -> Result<(), Error> {
        let output = Command::new(&self.path)
            .arg("--list-gpu-code")
            .output()
            .map_err(|source| Error::file("run", &self.path, source))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() || text.trim().is_empty() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::NvccFails { path: self.path.clone(), said });
        }
        // It lists them without suffixes.
        let known: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("sm_")).collect();
        let unknown = |of: &&Architecture| !known.contains(&of.number.to_string().as_str());
        match architectures.iter().find(unknown) {
            Some(unknown) => Err(Error::Architectures {
                list: architectures.iter().map(Architecture::to_string).collect::<Vec<_>>().join(","),
                why: format!("nvcc {} does not know {unknown}, only {}.", self.version, known.join(" ")),
            }),
            None => Ok(()),
        }
    }

    /// The arguments that compile a family.
    pub fn arguments(&self, family: &Family, out: &Path) -> Vec<String> {
        let mut all: Vec<String> = [
            "--fatbin",
            "--no-compress",
            "-std=c++17",
            "-lineinfo",
            "-Werror",
            "all-warnings",
            // ptxas: the resources of each kernel; spills are warnings, and so errors.
            "-Xptxas",
            "-v,-warn-spills",
            "--keep",
            "--keep-dir",
        ]
        .map(str::to_owned)
        .to_vec();
        all.push(work_folder(family, out).display().to_string());
        for architecture in &family.architectures {
            all.push(format!("-gencode=arch=compute_{architecture},code=sm_{architecture}"));
        }
        if !family.only_sm90 {
            all.push("-gencode=arch=compute_80,code=compute_80".to_owned());
        }
        all.push("-o".to_owned());
        all.push(out.join(format!("{}.fatbin", family.name)).display().to_string());
        all.push(format!("kernels/{}.cu", family.name));
        all
    }

    /// Compiles a family.
    pub fn compile(
        &self,
        family: &Family,
        arguments: &[String],
        root: &Path,
        out: &Path,
    ) -> Result<(), Error> {
        let work = work_folder(family, out);
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).map_err(|source| Error::file("create", &work, source))?;
        // In the root, so that messages name the file as people do.
        let output = Command::new(&self.path)
            .args(arguments)
            .current_dir(root)
            .env("TMPDIR", &work)
            .output()
            .map_err(|source| Error::file("run", &self.path, source))?;
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let fails = |said: Vec<&str>| {
            let source = PathBuf::from(format!("kernels/{}.cu", family.name));
            Err(Error::Compile { source, output: said.join("\n") })
        };
        let losses = losses(&said);
        let kept = if !output.status.success() {
            fails(said.lines().filter(|line| !is_on_resources(line)).collect())
        } else if losses.is_empty() {
            keep(family, &work, out)
        } else {
            fails(losses)
        };
        fs::remove_dir_all(&work).map_err(|source| Error::file("remove", &work, source))?;
        kept?;
        let resources = out.join(format!("{}.resources.txt", family.name));
        fs::write(&resources, resource_lines(&said))
            .map_err(|source| Error::file("write", &resources, source))
    }
}

/// Where nvcc leaves what it makes on the way.
fn work_folder(family: &Family, out: &Path) -> PathBuf {
    out.join(format!("{}.work", family.name))
}

/// Takes PTX and cubins from what nvcc left.
fn keep(family: &Family, work: &Path, out: &Path) -> Result<(), Error> {
    let name = &family.name;
    // nvcc leaves out of the names what is the same for all: the virtual architecture where there is one alone, the
    // real one where each virtual one has one alone.
    let ptx = vec![format!("{name}.compute_{}.ptx", family.ptx_architecture()), format!("{name}.ptx")];
    let mut moves = vec![(ptx, out.join(format!("{name}.ptx")))];
    for of in &family.architectures {
        let middles =
            [format!(".compute_{of}.sm_{of}"), format!(".compute_{of}"), format!(".sm_{of}"), String::new()];
        let left = middles.iter().map(|middle| format!("{name}{middle}.cubin")).collect();
        moves.push((left, family.cubin(out, of)));
    }
    for (left, to) in moves {
        let from = left.iter().map(|file| work.join(file)).find(|path| path.is_file());
        let from = from.ok_or_else(|| Error::Compile {
            source: family.source.clone(),
            output: format!("it left no {} in {}", left.join(" or "), work.display()),
        })?;
        fs::rename(&from, &to).map_err(|source| Error::file("move", &from, source))?;
    }
    Ok(())
}

/// What ptxas calls a loss of performance, and no warning: wgmmas that it puts one behind the other, registers that a
/// warpgroup does not get.
pub fn losses(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.contains("Potential Performance Loss")).collect()
}

/// The lines of ptxas on kernels' resources, without the times, which differ from run to run.
pub fn resource_lines(said: &str) -> String {
    let lines = said.lines().filter(|line| is_on_resources(line) && !line.contains("Compile time"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn is_on_resources(line: &str) -> bool {
    line.starts_with("ptxas info") || (line.starts_with(' ') && line.ends_with("bytes spill loads"))
}
