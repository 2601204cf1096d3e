//! Compiles kernels and the emulator's core with the C++ compiler: for `build.rs`, which includes this file, for
//! kernels that tests change, and for the sanitizers.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../build/parallel.rs"]
mod parallel;

/// What kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The crate and the mock driver: warnings are errors.
    Checked,
    /// Kernels that a test changed.
    Changed,
    /// Programs with AddressSanitizer and UndefinedBehaviorSanitizer.
    Address,
    /// Programs with ThreadSanitizer.
    Thread,
}

/// A compiler, and what it compiles against.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// The C++ compiler.
    pub program: PathBuf,
    /// The folder of the emulator: `core` and `include` are in it.
    pub emulator: PathBuf,
    /// What it compiles for.
    pub build: Build,
    /// Whether a debugger is to see variables; programs for the sanitizers are compiled for that anyway.
    pub debug: bool,
    /// How many sources it compiles at a time.
    pub jobs: usize,
}

/// The compiler could not be run, or found errors.
#[derive(Debug)]
pub struct CompileError {
    /// What was run, or written.
    pub what: String,
    /// What came of it.
    pub output: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.output)
    }
}

impl std::error::Error for CompileError {}

/// A `__global__` function as the preprocessed source declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its name.
    pub name: String,
    /// The expression for the most threads of a block.
    pub max_threads: String,
    /// That for the blocks of a cluster.
    pub cluster: String,
}

impl Compiler {
    /// Objects of kernels' sources, and of the table `emu_kernels` of all of them, made in `folder`.
    pub fn kernels(&self, sources: &[PathBuf], folder: &Path) -> Result<Vec<PathBuf>, CompileError> {
        let mut units = Vec::new();
        let mut lists = Vec::new();
        for source in sources {
            let declarations = self.declarations(source)?;
            let list = list_name(source);
            let unit = folder.join(format!("{list}.cpp"));
            write(&unit, &unit_text(source, &list, &declarations))?;
            units.push(unit);
            lists.push(list);
        }
        let table = folder.join("emu_kernels.cpp");
        write(&table, &table_text(&lists))?;
        units.push(table);
        self.objects(&units, folder, &self.kernel_flags(sources))
    }

    /// Objects of the emulator's core, made in `folder`.
    pub fn core(&self, folder: &Path) -> Result<Vec<PathBuf>, CompileError> {
        let sources = sources_in(&self.emulator.join("core"), "cpp")
            .map_err(|e| CompileError { what: "tools/emulator/core".into(), output: e.to_string() })?;
        self.objects(&sources, folder, &self.core_flags())
    }

    /// Compiles sources with these flags, several at a time.
    pub fn objects(
        &self,
        sources: &[PathBuf],
        folder: &Path,
        flags: &[String],
    ) -> Result<Vec<PathBuf>, CompileError> {
        let object = |source: &PathBuf| {
            folder.join(source.file_name().unwrap_or(OsStr::new("unit"))).with_extension("o")
        };
        let compile = |source: &PathBuf| {
            let mut command = Command::new(&self.program);
            command.args(flags).arg("-c").arg(source).arg("-o").arg(object(source));
            let result = command.output();
            finish(&command, result).map(|_| ())
        };
        // As one is done the next begins: they differ much in size.
        parallel::map(sources, self.jobs, compile).into_iter().collect::<Result<(), _>>()?;
        Ok(sources.iter().map(object).collect())
    }

    /// Links objects to a shared library, or a program, with these flags.
    pub fn link(&self, objects: &[PathBuf], flags: &[&str], output: &Path) -> Result<(), CompileError> {
        let mut command = Command::new(&self.program);
        command.args(objects).args(flags).args(self.sanitizers()).args(["-pthread", "-lm", "-o"]).arg(output);
        let result = command.output();
        finish(&command, result).map(|_| ())
    }

    /// Flags for the core, which no sanitizer instruments: it speaks with them itself.
    pub fn core_flags(&self) -> Vec<String> {
        let mut flags = self.common_flags(false);
        flags.push("-I".into());
        flags.push(self.emulator.join("core").display().to_string());
        match self.build {
            Build::Checked | Build::Changed => {}
            Build::Address => flags.push("-DSETRANK_ASAN".into()),
            Build::Thread => {
                let plain_memory = self.emulator.join("core/plain_memory.hpp").display().to_string();
                flags.extend(["-DSETRANK_TSAN".into(), "-include".into(), plain_memory]);
            }
        }
        flags
    }

    fn kernel_flags(&self, sources: &[PathBuf]) -> Vec<String> {
        let mut flags = self.common_flags(true);
        flags.extend(["-DSETRANK_EMULATOR".into(), "-Wno-unknown-pragmas".into()]);
        for folder in sources.iter().filter_map(|source| source.parent()) {
            flags.extend(["-I".into(), folder.display().to_string()]);
        }
        flags.extend(["-I".into(), self.emulator.join("../../kernels").display().to_string()]);
        flags.extend(self.sanitizers().into_iter().map(String::from));
        flags
    }

    fn common_flags(&self, of_kernels: bool) -> Vec<String> {
        let include = self.emulator.join("include").display().to_string();
        let mut flags: Vec<String> =
            ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread"]
                .map(String::from)
                .into();
        flags.extend(["-Wall".into(), "-Wextra".into(), "-I".into(), include]);
        flags.extend(self.levels(of_kernels).map(String::from));
        if self.debug {
            flags.push("-DSETRANK_DEBUGGED".into());
        }
        match self.build {
            Build::Checked => flags.push("-Werror".into()),
            Build::Changed => {}
            Build::Address | Build::Thread => {
                flags.extend(["-DSETRANK_SANITIZED".into(), "-fno-omit-frame-pointer".into()]);
            }
        }
        flags
    }

    /// How much is optimised, and what a debugger sees. Kernels that tests compile run little: compiling them would take
    /// longer.
    fn levels(&self, of_kernels: bool) -> [&'static str; 2] {
        match (self.build, of_kernels) {
            (Build::Checked | Build::Changed, true) if self.debug => ["-O0", "-g"],
            (Build::Checked | Build::Changed, false) if self.debug => ["-Og", "-g"],
            // With -O2 they take 14.5 instead of 8.7 s to compile (attention's), and 2 % less to run.
            (Build::Checked, true) => ["-O1", "-g1"],
            (Build::Checked, false) => ["-O2", "-g1"],
            (Build::Changed, _) => ["-O0", "-g0"],
            (_, false) => ["-O1", "-g1"],
            (Build::Address | Build::Thread, true) => ["-O0", "-g1"],
        }
    }

    fn sanitizers(&self) -> Vec<&'static str> {
        match self.build {
            Build::Checked | Build::Changed => vec![],
            Build::Address => vec!["-fsanitize=address,undefined"],
            Build::Thread => vec!["-fsanitize=thread"],
        }
    }

    /// The kernels that a source declares, once the preprocessor is through with it.
    fn declarations(&self, source: &Path) -> Result<Vec<Declaration>, CompileError> {
        let mut command = Command::new(&self.program);
        command.args(["-E", "-P", "-x", "c++", "-DSETRANK_EMULATOR_SCAN"]);
        command.args(self.kernel_flags(&[source.to_path_buf()])).arg(source);
        let result = command.output();
        let text = finish(&command, result)?;
        find_kernels(&text).map_err(|output| CompileError { what: source.display().to_string(), output })
    }
}

/// The files in a folder with this extension, sorted.
pub fn sources_in(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// Finds `extern "C" __global__ void __cluster_dims__(blocks) __launch_bounds__(threads) name(parameter)` in preprocessed
/// source, of which the qualifiers are left.
pub fn find_kernels(text: &str) -> Result<Vec<Declaration>, String> {
    const QUALIFIER: &str = "__global__";
    const BOUNDS: &str = "__launch_bounds__";
    const CLUSTER: &str = "__cluster_dims__";
    let mut found: Vec<Declaration> = Vec::new();
    for (at, _) in text.match_indices(QUALIFIER) {
        let before = text[..at].trim_end();
        let mut rest = text[at + QUALIFIER.len()..].trim_start();
        let mut max_threads = "emu::MAX_THREADS".to_string();
        let mut cluster = "1".to_string();
        let name = loop {
            let word_end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (word, after) = rest.split_at(word_end);
            let after = after.trim_start();
            match word {
                BOUNDS | CLUSTER => {
                    let (arguments, behind) =
                        in_brackets(after).ok_or_else(|| format!("{word} without its brackets"))?;
                    let first = first_argument(arguments);
                    let of = if word == BOUNDS { &mut max_threads } else { &mut cluster };
                    if word == CLUSTER && first.len() < arguments.len() {
                        return Err(format!("{CLUSTER}({arguments}): clusters are of neighbours in x alone"));
                    }
                    *of = first.trim().to_string();
                    rest = behind.trim_start();
                }
                "void" => rest = after,
                "" => return Err(format!("{QUALIFIER} is not followed by a function's name")),
                name if after.starts_with('(') => break name,
                word => {
                    return Err(format!("{QUALIFIER}: `{word}` is not understood before a kernel's name"));
                }
            }
        };
        if !before.ends_with("extern \"C\"") {
            return Err(format!(
                "kernel `{name}` is not extern \"C\": only such kernels have a name to be launched by"
            ));
        }
        if !found.iter().any(|known| known.name == name) {
            found.push(Declaration { name: name.into(), max_threads, cluster });
        }
    }
    Ok(found)
}

/// What is in the brackets that `text` begins with, and what follows them.
fn in_brackets(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((&text[1..at], &text[at + 1..]));
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn first_argument(arguments: &str) -> &str {
    let mut depth = 0i32;
    for (at, c) in arguments.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => return &arguments[..at],
            _ => {}
        }
    }
    arguments
}

fn list_name(source: &Path) -> String {
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let word: String = stem.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    format!("emu_kernels_{word}")
}

/// The source, and behind it the list of its kernels.
fn unit_text(source: &Path, list: &str, kernels: &[Declaration]) -> String {
    let mut text = format!("#include \"{}\"\n#include \"emulator/kernels.hpp\"\n", source.display());
    let count = kernels.len();
    if count > 0 {
        text += "namespace {\nconst emu::Kernel EMU_KERNELS[] = {\n";
        for Declaration { name, max_threads, cluster } in kernels {
            text +=
                &format!("    emu::kernel_entry<&{name}>(\"{name}\", &{name}, {max_threads}, {cluster}),\n");
        }
        text += "};\n}\n";
    }
    let kernels = if count > 0 { "EMU_KERNELS" } else { "nullptr" };
    text + &format!(
        "extern \"C\" {{\nextern const emu::KernelList {list};\n\
         const emu::KernelList {list} = {{{kernels}, {count}}};\n}}\n"
    )
}

/// The table of all lists.
fn table_text(lists: &[String]) -> String {
    let mut text = String::from("#include \"emulator/kernels.hpp\"\nextern \"C\" {\n");
    for list in lists {
        text += &format!("extern const emu::KernelList {list};\n");
    }
    let mut array = "nullptr";
    if !lists.is_empty() {
        let addresses: Vec<_> = lists.iter().map(|list| format!("&{list}")).collect();
        text += &format!("static const emu::KernelList *const LISTS[] = {{{}}};\n", addresses.join(", "));
        array = "LISTS";
    }
    text + &format!(
        "extern __attribute__((visibility(\"default\"))) const emu::KernelTable emu_kernels;\n\
         const emu::KernelTable emu_kernels = {{{array}, {}}};\n}}\n",
        lists.len()
    )
}

fn write(path: &Path, text: &str) -> Result<(), CompileError> {
    fs::write(path, text)
        .map_err(|e| CompileError { what: path.display().to_string(), output: e.to_string() })
}

/// What a command printed, or its error.
fn finish(command: &Command, result: io::Result<std::process::Output>) -> Result<String, CompileError> {
    let what = || {
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(OsStr::to_string_lossy)
            .collect();
        words.join(" ")
    };
    match result {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            Err(CompileError { what: what(), output: String::from_utf8_lossy(&output.stderr).into_owned() })
        }
        Err(e) => Err(CompileError { what: what(), output: e.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declaration(name: &str, max_threads: &str) -> Declaration {
        Declaration { name: name.into(), max_threads: max_threads.into(), cluster: "1".into() }
    }

    #[test]
    fn kernels_are_found_with_their_bounds() {
        let text = "extern \"C\" __global__ void plain(const __grid_constant__ X p) { }
            extern \"C\" __global__ void __launch_bounds__(threads(4, 2), 3) bounded(const X p);
            extern \"C\" __global__ void __launch_bounds__(threads(4, 2), 3)
                bounded(const X p) { }
            __device__ void helper(int x) { }
            extern \"C\" __global__ __launch_bounds__(N * (2 + 2)) void other(const X p) { }";
        let expected = [
            declaration("plain", "emu::MAX_THREADS"),
            declaration("bounded", "threads(4, 2)"),
            declaration("other", "N * (2 + 2)"),
        ];
        assert_eq!(find_kernels(text).unwrap(), expected);
        assert_eq!(find_kernels("void f();"), Ok(vec![]));
        let pair =
            "extern \"C\" __global__ void __cluster_dims__(PAIR) __launch_bounds__(8) pair(const X p) { }";
        let expected = Declaration { cluster: "PAIR".into(), ..declaration("pair", "8") };
        assert_eq!(find_kernels(pair).unwrap(), [expected]);
        assert!(find_kernels(&pair.replace("PAIR", "1, 2")).unwrap_err().contains("neighbours in x"));
    }

    #[test]
    fn kernels_without_a_name_to_launch_them_by_are_refused() {
        let refused = |text: &str, why: &str| {
            let error = find_kernels(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused("template <int N> __global__ void many(const X p) { }", "`many` is not extern \"C\"");
        refused("extern \"C\" __global__ int wrong(const X p) { }", "`int` is not understood");
        refused("extern \"C\" __global__ void __launch_bounds__(4 wrong", "without its brackets");
        refused("extern \"C\" __global__", "not followed by a function's name");
    }
}
