//! `kernels/ptx.cuh` and what stands for it on the emulator have the same names: a kernel that compiles with one compiles
//! with the other.

use std::fs;
use std::path::Path;

/// What a header declares in namespace `ptx`, a line each: results, names and parameters, without words that only one of
/// the two compilers needs and without the emulator's places.
fn declarations(header: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(header);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parts: Vec<&str> = text.split("namespace ptx").collect();
    let [_, inside, _] = parts[..] else { panic!("{header}: namespace ptx begins and ends once") };
    // A macro goes on behind a backslash.
    let mut in_macro = false;
    let code = inside.lines().filter(|line| {
        let is_macro = in_macro || line.starts_with('#');
        in_macro = is_macro && line.ends_with('\\');
        !is_macro
    });
    let code: Vec<&str> = code.map(|line| line.split("//").next().unwrap_or_default()).collect();
    let (mut depth, mut head, mut found) = (0, String::new(), Vec::new());
    for letter in code.join("\n").chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 1 && letter != ';' => head.push(letter),
            _ => {}
        }
        // The namespace's own bracket is the first, a body's the second.
        if (depth == 1 && letter == ';') || (depth == 2 && letter == '{') {
            found.extend(declaration(&std::mem::take(&mut head)));
        }
    }
    found.sort();
    found
}

/// A declaration, from what stands before its body.
fn declaration(head: &str) -> Option<String> {
    let words = head
        .split_whitespace()
        .filter(|word| !["__device__", "__forceinline__", "inline", "constexpr", "static"].contains(word));
    let text = words.collect::<Vec<_>>().join(" ");
    let text = text.replace("emu::Site site = emu::Site::here()", "").replace(", )", ")");
    let text = text.replace(" SETRANK_SITE", "");
    // Of a type only the name, of a function all.
    let text = if text.starts_with("using ") { text.split(" =").next().unwrap_or_default() } else { &text };
    (!text.is_empty()).then(|| text.to_owned())
}

#[test]
fn the_emulator_has_the_functions_of_ptx_cuh_and_no_others() {
    let of_nvcc = declarations("../../kernels/ptx.cuh");
    assert!(of_nvcc.len() > 40, "{of_nvcc:#?}");
    for known in [
        "using Shared",
        "template <class T> T load_shared(Shared from)",
        "void barrier()",
        "void bulk_load(Shared to, const void *from, uint32_t bytes, Shared mbarrier)",
    ] {
        assert!(of_nvcc.iter().any(|found| found == known), "{known}: {of_nvcc:#?}");
    }
    let of_emulator = declarations("include/emulator/ptx.hpp");
    let lacks = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|name| !other.contains(name)).cloned().collect()
    };
    assert_eq!(lacks(&of_emulator, &of_nvcc), Vec::<String>::new(), "kernels/ptx.cuh lacks them");
    assert_eq!(lacks(&of_nvcc, &of_emulator), Vec::<String>::new(), "include/emulator/ptx.hpp lacks them");
    assert_eq!(of_nvcc, of_emulator);
}
