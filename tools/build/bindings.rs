//! Rust declarations of the kernels' headers.

use std::env;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::constants;
use super::error::Error;

/// The structs and constants of all `.h` in `kernels`, as Rust source.
pub fn generate(kernels: &Path, headers: &[PathBuf], libclang: &Path) -> Result<String, Error> {
    // SAFETY: build.rs has no other thread now: those that compiled the kernels have ended.
    unsafe { env::set_var("LIBCLANG_PATH", libclang) };
    // bindgen panics on a library that cannot be loaded, which is said below in other words.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let loaded = panic::catch_unwind(bindgen::clang_version);
    panic::set_hook(hook);
    if loaded.is_err() {
        return Err(Error::Libclang(libclang.to_owned()));
    }
    let mut builder = bindgen::Builder::default()
        .clang_args(["-x", "c", "-std=c11"])
        .clang_args(system_includes(libclang))
        // Not what <stdint.h> brings.
        .allowlist_file(format!("{}/[^/]*\\.h", regex_text(kernels)))
        .translate_enum_integer_types(true)
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(true)
        .parse_callbacks(Box::new(Shapes))
        .disable_header_comment()
        .formatter(bindgen::Formatter::Prettyplease);
    for header in headers.iter().filter(|path| path.extension().is_some_and(|ending| ending == "h")) {
        builder = builder.header(header.display().to_string());
    }
    let bindings = builder.generate().map_err(|error| Error::Bindings(error.to_string()))?;
    Ok(constants::plain(&bindings.to_string()))
}

/// Comments give shapes, `[rows, cols]`, which rustdoc must not take for links.
#[derive(Debug)]
struct Shapes;

impl bindgen::callbacks::ParseCallbacks for Shapes {
    fn process_comment(&self, comment: &str) -> Option<String> {
        Some(comment.replace('[', "\\[").replace(']', "\\]"))
    }
}

/// Where clang's own headers are missing, as with the library alone, those of gcc take their place.
fn system_includes(libclang: &Path) -> Vec<String> {
    let real = libclang.canonicalize().unwrap_or_else(|_| libclang.to_owned());
    if real.parent().is_some_and(|folder| folder.join("clang").is_dir()) {
        return Vec::new();
    }
    let output = Command::new("gcc").arg("-print-file-name=include").output();
    match output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) {
        Ok(folder) if Path::new(&folder).is_absolute() => vec!["-isystem".to_owned(), folder],
        _ => Vec::new(),
    }
}

/// A path as a regular expression that matches it alone.
fn regex_text(path: &Path) -> String {
    let escape = |letter: char| {
        let special =
            !letter.is_alphanumeric() && letter != '/' && letter != '_' && letter != '-' && letter.is_ascii();
        if special { vec!['\\', letter] } else { vec![letter] }
    };
    path.display().to_string().chars().flat_map(escape).collect()
}
