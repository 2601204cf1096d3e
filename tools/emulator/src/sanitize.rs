//! Runs a launch in a process of its own, its kernels compiled with AddressSanitizer and UndefinedBehaviorSanitizer, or
//! with ThreadSanitizer. Programs are compiled on first use, and kept until the emulator or the repository's kernels change.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use crate::compile::{Build, CompileError, Compiler, sources_in};
use crate::emulate::{Config, Counters, Fault, Report};
use crate::kernels::{KernelError, Sources, compiler, temporary_folder};
use crate::launch::Launch;

/// What kernels are checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sanitizer {
    /// Accesses outside of variables, and undefined behaviour.
    Address,
    /// Accesses of two threads that nothing orders.
    Thread,
}

/// A line of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The last two parts of its path.
    pub file: String,
    /// Its number, from 1.
    pub line: u32,
}

/// What a sanitizer found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// In the sanitizer's words: `data race`, `stack-buffer-overflow`, `signed integer overflow: …`.
    pub kind: String,
    /// Where: of each access in turn the innermost line that is the kernel's.
    pub places: Vec<Place>,
    /// All that the sanitizer printed about it.
    pub text: String,
}

/// What came of a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Counters, or what the emulator reports; None if the sanitizer ended the process.
    pub result: Option<Result<Counters, Report>>,
    /// What the sanitizer found.
    pub findings: Vec<Finding>,
}

/// Why a launch could not be run under a sanitizer.
#[derive(Debug, thiserror::Error)]
pub enum SanitizeError {
    /// The kernels could not be compiled.
    #[error(transparent)]
    Kernels(#[from] KernelError),
    /// A file could not be read or written, or the program not be run.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The program ended without a result, and without a finding.
    #[error("the sanitized program gave no result:\n{0}")]
    NoResult(String),
}

impl From<CompileError> for SanitizeError {
    fn from(error: CompileError) -> Self {
        SanitizeError::Kernels(error.into())
    }
}

/// A program that runs launches of some kernels under a sanitizer.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    /// Locked as long as the program may be run: no other process removes it.
    _in_use: Arc<File>,
}

/// What is compiled here now, by name, is compiled once: others that want the same wait.
static COMPILING: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// As [`kept`], once in this process.
fn kept_once(
    root: &Path,
    name: &str,
    make: impl Fn(&Path) -> Result<(), SanitizeError>,
) -> Result<Kept, SanitizeError> {
    let key = root.join(name).display().to_string();
    let one = Arc::clone(COMPILING.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
    let _one = one.lock().unwrap_or_else(PoisonError::into_inner);
    kept(root, name, make)
}

impl Program {
    /// Compiles kernels with a sanitizer, unless that was done before.
    pub fn new(sources: &Sources, sanitizer: Sanitizer) -> Result<Self, SanitizeError> {
        let build = match sanitizer {
            Sanitizer::Address => Build::Address,
            Sanitizer::Thread => Build::Thread,
        };
        let compiler = compiler(build);
        let root = Path::new(env!("OUT_DIR")).join("sanitized").join(match sanitizer {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        });
        let emulator = emulator_key(&compiler).map_err(file_error(&compiler.emulator))?;
        let core_name = format!("core-{emulator:016x}");
        // Of all that the repository's programs are made of; sources elsewhere include its headers.
        let mut hasher = DefaultHasher::new();
        emulator.hash(&mut hasher);
        for extension in ["h", "cuh", "cu"] {
            let folder = Sources::repository_folder();
            for source in sources_in(folder, extension).map_err(file_error(folder))? {
                fs::read(&source).map_err(file_error(&source))?.hash(&mut hasher);
            }
        }
        let state = format!("program-{:016x}-", hasher.finish());
        sources.content().for_each(|file| file.hash(&mut hasher));
        let program = kept_once(&root, &format!("{state}{:016x}", hasher.finish()), |folder| {
            remove_others(&root, |name| name == core_name || name.starts_with(&state));
            let core = kept_once(&root, &core_name, |folder| {
                compiler.core(folder)?;
                let runner =
                    sources_in(&compiler.emulator.join("runner"), "cpp").map_err(file_error(folder))?;
                compiler.objects(&runner, folder, &compiler.core_flags())?;
                Ok(())
            })?;
            let units = sources.write(folder)?;
            let mut objects = compiler.kernels(&units, folder)?;
            objects.extend(sources_in(&core.path, "o").map_err(file_error(&core.path))?);
            compiler.link(&objects, &[], &folder.join("runner"))?;
            Ok(())
        })?;
        Ok(Self { path: program.path.join("runner"), _in_use: Arc::new(program.in_use) })
    }

    /// Runs a launch. What the kernel left in the buffers replaces their content, if the process lives to the end.
    pub fn run(&self, launch: &mut Launch, config: &Config) -> Result<Outcome, SanitizeError> {
        let folder = temporary_folder()?;
        let (input, output) = (folder.path().join("launch"), folder.path().join("result"));
        fs::write(&input, encode(launch, config)).map_err(file_error(&input))?;
        let ran = Command::new(&self.path)
            .arg(&input)
            .arg(&output)
            .env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .env("TSAN_OPTIONS", "exitcode=0:history_size=3:atexit_sleep_ms=0")
            .output()
            .map_err(file_error(&self.path))?;
        let printed = String::from_utf8_lossy(&ran.stderr).into_owned();
        let findings = parse(&printed);
        let result = fs::read(&output).ok().and_then(|bytes| decode(&bytes, launch));
        if result.is_none() && findings.is_empty() {
            return Err(SanitizeError::NoResult(format!("{}\n{printed}", ran.status)));
        }
        Ok(Outcome { result, findings })
    }
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> SanitizeError {
    let path = path.to_path_buf();
    move |source| SanitizeError::File { path: path.clone(), source }
}

/// Tells one state of the emulator's sources, and of the compiler's flags, from another.
fn emulator_key(compiler: &Compiler) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    compiler.program.hash(&mut hasher);
    compiler.core_flags().hash(&mut hasher);
    include_str!("compile.rs").hash(&mut hasher);
    let folders =
        [("core", "cpp"), ("core", "hpp"), ("include", "h"), ("include/emulator", "hpp"), ("runner", "cpp")];
    for (folder, extension) in folders {
        for source in sources_in(&compiler.emulator.join(folder), extension)? {
            fs::read(source)?.hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

/// A folder that is kept for later processes.
struct Kept {
    path: PathBuf,
    /// Its file of this name, locked.
    in_use: File,
}

/// Name of the file in a kept folder that those who use the folder lock together, and those who remove it alone.
const IN_USE: &str = "in-use";

/// A folder that is made once: under another name, so that no other process sees it before it is whole.
fn kept(
    root: &Path,
    name: &str,
    make: impl Fn(&Path) -> Result<(), SanitizeError>,
) -> Result<Kept, SanitizeError> {
    let path = root.join(name);
    fs::create_dir_all(root).map_err(file_error(root))?;
    loop {
        match File::open(path.join(IN_USE)) {
            Ok(in_use) => {
                in_use.lock_shared().map_err(file_error(&path))?;
                // Another process may have removed it before it was locked.
                if path.join(IN_USE).exists() {
                    return Ok(Kept { path, in_use });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let fresh =
                    tempfile::Builder::new().prefix("new-").tempdir_in(root).map_err(file_error(root))?;
                // It has its name only once it is locked.
                let file = fresh.path().join("not-yet-in-use");
                let in_use = File::create(&file).map_err(file_error(&file))?;
                in_use.lock_shared().map_err(file_error(&file))?;
                fs::rename(&file, fresh.path().join(IN_USE)).map_err(file_error(&file))?;
                make(fresh.path())?;
                match fs::rename(fresh.path(), &path) {
                    Ok(()) => return Ok(Kept { path, in_use }),
                    // Another process was faster.
                    Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                    Err(error) => return Err(file_error(&path)(error)),
                }
            }
            Err(error) => return Err(file_error(&path)(error)),
        }
    }
}

/// Removes the kept folders that are not to stay and that nobody uses, and what processes that were killed left
/// half-made. What cannot be removed stays: it only takes room.
fn remove_others(root: &Path, stays: impl Fn(&str) -> bool) {
    const GONE: &str = "gone-";
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(GONE) {
            let _ = fs::remove_dir_all(entry.path());
        } else if !stays(&name)
            && let Ok(in_use) = File::open(entry.path().join(IN_USE))
            && in_use.try_lock().is_ok()
        {
            // First its name: nobody finds it half-removed.
            let gone = root.join(format!("{GONE}{name}"));
            let _ = fs::rename(entry.path(), &gone).and_then(|()| fs::remove_dir_all(&gone));
        }
    }
}

/// The launch as the runner reads it.
fn encode(launch: &Launch, config: &Config) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_text(&mut bytes, launch.kernel.as_bytes());
    for extent in launch.grid.into_iter().chain(launch.block).chain([launch.shared_bytes]) {
        bytes.extend(extent.to_le_bytes());
    }
    let config = config.raw();
    bytes.extend(config.seed.to_le_bytes());
    for field in
        [config.schedule, config.copies, config.sums, config.workers, config.count, config.shared_limit]
    {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend((launch.buffers.len() as u32).to_le_bytes());
    for buffer in &launch.buffers {
        put_text(&mut bytes, buffer.name.as_bytes());
        put_text(&mut bytes, &buffer.bytes);
    }
    put_text(&mut bytes, &launch.parameter);
    bytes.extend((launch.pointers.len() as u32).to_le_bytes());
    for pointer in &launch.pointers {
        for field in [pointer.at, pointer.buffer, pointer.offset] {
            bytes.extend((field as u64).to_le_bytes());
        }
    }
    bytes
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
}

/// The result as the runner writes it; None if it is cut off.
fn decode(mut bytes: &[u8], launch: &mut Launch) -> Option<Result<Counters, Report>> {
    let code = i32::from_le_bytes(take(&mut bytes, 4)?.try_into().ok()?);
    let report = String::from_utf8_lossy(take_text(&mut bytes)?).into_owned();
    let mut field = || Some(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?));
    let counters = Counters {
        blocks: field()?,
        threads: field()?,
        requested_read: field()?,
        requested_written: field()?,
        unique_read: field()?,
        unique_written: field()?,
        requests: field()?,
        sectors: field()?,
        wavefronts: field()?,
        ideal_wavefronts: field()?,
        mma: field()?,
        exponentials: field()?,
        barriers: field()?,
        switches: field()?,
    };
    for buffer in &mut launch.buffers {
        buffer.bytes = take_text(&mut bytes)?.to_vec();
    }
    if code == 0 {
        Some(Ok(counters))
    } else {
        Some(Err(Report { fault: Fault::from_code(code), text: report }))
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?);
    take(bytes, usize::try_from(length).ok()?)
}

/// The findings in what a sanitizer printed.
fn parse(printed: &str) -> Vec<Finding> {
    const OF_STACKS: [&str; 2] = ["WARNING: ThreadSanitizer: ", "ERROR: AddressSanitizer: "];
    const OF_A_LINE: &str = ": runtime error: ";
    let mut findings: Vec<Finding> = Vec::new();
    // Whether the frames that come next are those of a stack whose place is still wanted.
    let mut wanted = false;
    let mut has_stacks = false;
    for line in printed.lines().filter(|line| !line.starts_with("SUMMARY:")) {
        if let Some((_, after)) = OF_STACKS.iter().find_map(|head| line.split_once(head)) {
            let kind = after.split(" (pid=").next().unwrap_or(after);
            let kind = kind.split(" on ").next().unwrap_or(kind).trim();
            findings.push(Finding { kind: kind.into(), places: vec![], text: String::new() });
            has_stacks = true;
        } else if let Some((before, after)) = line.split_once(OF_A_LINE) {
            let places = place(before).into_iter().collect();
            findings.push(Finding { kind: after.trim().into(), places, text: String::new() });
            has_stacks = false;
        }
        let Some(finding) = findings.last_mut() else { continue };
        finding.text += line;
        finding.text += "\n";
        let frame = line.trim_start().strip_prefix('#').and_then(|rest| rest.split_once(' '));
        if let Some((number, frame)) = frame {
            wanted = has_stacks && (wanted || number == "0");
            let found = frame.split_whitespace().rev().find_map(place);
            if let Some(place) = found.filter(|_| wanted && !is_emulator(frame)) {
                finding.places.push(place);
                wanted = false;
            }
        }
    }
    findings
}

/// Whether a frame is of the emulator's sources.
fn is_emulator(frame: &str) -> bool {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    ["include/", "core/", "runner/"].iter().any(|part| frame.contains(&format!("{folder}{part}")))
}

/// `path:line` or `path:line:column`.
fn place(text: &str) -> Option<Place> {
    let mut parts: Vec<&str> = text.trim().split(':').collect();
    while parts.len() > 2 {
        parts.pop();
    }
    let [path, line] = parts[..] else { return None };
    let line = line.parse().ok()?;
    let mut names: Vec<&str> = path.rsplit('/').take(2).collect();
    names.reverse();
    Some(Place { file: names.join("/"), line })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn make(root: &Path, name: &str) -> Kept {
        kept(root, name, |folder| fs::write(folder.join("made"), name).map_err(file_error(folder))).unwrap()
    }

    #[test]
    fn folders_are_made_once() {
        let root = tempfile::tempdir().unwrap();
        let first = make(root.path(), "one");
        let again = kept(root.path(), "one", |_| panic!("it is there")).unwrap();
        assert_eq!(first.path, again.path);
        assert_eq!(fs::read_to_string(again.path.join("made")).unwrap(), "one");
        let failed = kept(root.path(), "two", |_| Err(SanitizeError::NoResult(String::new())));
        assert!(failed.is_err());
        assert_eq!(names(root.path()), ["one"]);
    }

    #[test]
    fn what_is_old_and_not_in_use_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for name in ["new-left", "old", "wanted"] {
            make(root, name);
        }
        let used = [make(root, "used"), make(root, "used")];
        fs::create_dir(root.join("gone-left")).unwrap();
        // Without its lock yet: another process makes it.
        fs::create_dir(root.join("new-begun")).unwrap();
        remove_others(root, |name| name == "wanted");
        assert_eq!(names(root), ["new-begun", "used", "wanted"]);
        let [first, second] = used;
        drop(first);
        remove_others(root, |name| name == "wanted");
        assert_eq!(names(root), ["new-begun", "used", "wanted"]);
        drop(second);
        remove_others(root, |name| name == "wanted");
        assert_eq!(names(root), ["new-begun", "wanted"]);
    }

    #[test]
    fn those_who_make_and_those_who_remove_do_not_meet() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let kept = make(root, "one");
                        assert_eq!(fs::read_to_string(kept.path.join("made")).unwrap(), "one");
                        remove_others(root, |_| false);
                        assert!(kept.path.join("made").exists(), "it was in use");
                    }
                });
            }
        });
    }
}
