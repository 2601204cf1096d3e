//! What the sources of kernels may not have, so that all access to memory is counted and checked on the CPU.
//!
//! It reads tokens, not the language: a way around it can be found, and then the emulator's addresses, which are no
//! pointers, trap.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::built;

/// Names with two leading underscores that kernels may have: words of the language, and plain arithmetic.
const LANGUAGE: [&str; 18] = [
    "__global__",
    "__host__",
    "__device__",
    "__forceinline__",
    "__noinline__",
    "__launch_bounds__",
    "__grid_constant__",
    "__restrict__",
    "__cluster_dims__",
    "__float_as_uint",
    "__uint_as_float",
    "__float_as_int",
    "__int_as_float",
    "__clz",
    "__popc",
    "__ffs",
    "__brev",
    "__builtin_huge_valf",
];

/// Types that are no names of structs.
const TYPES: [&str; 13] = [
    "void", "char", "bool", "short", "int", "long", "float", "double", "unsigned", "signed", "const", "auto",
    "volatile",
];

/// Words before which no value stands, so that a `*` behind them looks through a pointer.
const KEYWORDS: [&str; 6] = ["return", "else", "do", "case", "sizeof", "co_return"];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    line: usize,
    text: String,
}

/// Splits a source into tokens, without comments and with every literal text as `""`.
fn tokens(source: &str) -> Vec<Token> {
    let letters: Vec<char> = source.chars().collect();
    let at = |index: usize| letters.get(index).copied().unwrap_or('\0');
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (mut all, mut index, mut line) = (Vec::new(), 0, 1);
    while index < letters.len() {
        let (begin, first) = (index, line);
        let letter = letters[index];
        if letter == '/' && at(index + 1) == '/' {
            while index < letters.len() && letters[index] != '\n' {
                index += 1;
            }
        } else if letter == '/' && at(index + 1) == '*' {
            index += 2;
            while index < letters.len() && !(letters[index] == '*' && at(index + 1) == '/') {
                index += 1;
            }
            index += 2;
        } else if letter == '"' || letter == '\'' {
            index += 1;
            while index < letters.len() && letters[index] != letter {
                index += if letters[index] == '\\' { 2 } else { 1 };
            }
            index += 1;
            all.push(Token { line: first, text: "\"\"".to_owned() });
        } else if letter.is_ascii_digit() {
            while is_name(at(index)) || at(index) == '.' || (at(index) == '\'' && is_name(at(index + 1))) {
                index += 1;
            }
            all.push(Token { line: first, text: letters[begin..index].iter().collect() });
        } else if is_name(letter) {
            while is_name(at(index)) {
                index += 1;
            }
            all.push(Token { line: first, text: letters[begin..index].iter().collect() });
        } else {
            index += if (letter, at(index + 1)) == ('-', '>') { 2 } else { 1 };
            if !letter.is_whitespace() {
                all.push(Token { line: first, text: letters[begin..index].iter().collect() });
            }
        }
        line += letters[begin..index.min(letters.len())].iter().filter(|letter| **letter == '\n').count();
    }
    all
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names of types that the tokens declare.
fn declared_types(tokens: &[Token]) -> BTreeSet<String> {
    let words = ["struct", "class", "typename", "enum", "union", "using"];
    let pairs =
        tokens.windows(2).filter(|pair| words.contains(&pair[0].text.as_str()) && is_name(&pair[1].text));
    pairs.map(|pair| pair[1].text.clone()).collect()
}

fn is_type(text: &str, types: &BTreeSet<String>) -> bool {
    TYPES.contains(&text) || text.ends_with("_t") || types.contains(text)
}

/// What the names of a source, and of the headers before it, mean.
#[derive(Clone, Default)]
struct Names {
    types: BTreeSet<String>,
    /// Variables, parameters and fields that are pointers. Not those into a variable's array, which stays in registers.
    pointers: BTreeSet<String>,
    /// Variables and parameters that are structs of the headers.
    structs: BTreeSet<String>,
    /// Fields of the headers' structs that are pointers.
    fields: BTreeSet<String>,
}

impl Names {
    fn of_headers(sources: &[String]) -> Self {
        let all: Vec<Token> = sources.iter().flat_map(|source| tokens(source)).collect();
        let names = Names::default().and(&all);
        Names { types: names.types, fields: names.pointers, ..Names::default() }
    }

    /// With what these tokens declare.
    fn and(&self, tokens: &[Token]) -> Self {
        let mut names = self.clone();
        names.types.extend(declared_types(tokens));
        let text = |index: usize| tokens.get(index).map_or("", |token| token.text.as_str());
        for (index, token) in tokens.iter().enumerate() {
            let skipped = ["const", "&", "__restrict__", "*"];
            let skip =
                tokens[index + 1..].iter().take_while(|one| skipped.contains(&one.text.as_str())).count();
            let (name, end) = (text(index + 1 + skip), index + 2 + skip);
            if !is_type(&token.text, &names.types)
                || !is_name(name)
                || ![",", ";", "=", ")"].contains(&text(end))
            {
                continue;
            }
            if !tokens[index + 1..index + 1 + skip].iter().any(|one| one.text == "*") {
                if self.types.contains(&token.text) {
                    names.structs.insert(name.to_owned());
                }
            } else if !names.is_of_variable(tokens, end) {
                names.pointers.insert(name.to_owned());
            }
        }
        names
    }

    /// Whether the `=` at this place gives the address of a part of a variable.
    fn is_of_variable(&self, tokens: &[Token], equals: usize) -> bool {
        let text = |index: usize| tokens.get(index).map_or("", |token| token.text.as_str());
        let end = (equals..tokens.len()).find(|index| text(*index) == ";").unwrap_or(tokens.len());
        text(equals) == "="
            && text(equals + 1) == "&"
            && !(equals + 2..end).any(|index| self.is_pointer(tokens, index))
    }

    /// Whether the token at this place names a pointer to memory.
    fn is_pointer(&self, tokens: &[Token], index: usize) -> bool {
        let name = &tokens[index].text;
        match index.checked_sub(1).map(|before| tokens[before].text.as_str()) {
            Some(".") => {
                let of = index.checked_sub(2).map_or("", |of| tokens[of].text.as_str());
                self.fields.contains(name) && self.structs.contains(of)
            }
            _ => self.pointers.contains(name),
        }
    }
}

/// Why a name may not stand in a kernel.
fn forbidden_name(name: &str) -> Option<&'static str> {
    match name {
        "asm" | "__asm" | "__asm__" => Some("inline PTX belongs in ptx.cuh"),
        "__shared__" => Some("shared memory is dynamic and reached by ptx::shared_base()"),
        "__CUDA_ARCH__" => Some("architectures differ in ptx.cuh, and in files named …_sm90.cu"),
        "__syncthreads" | "__syncwarp" => {
            Some("barriers are ptx::barrier, ptx::sync_warp, ptx::barrier_sync")
        }
        _ if name.starts_with("atomic") && name[6..].starts_with(char::is_uppercase) => Some(
            "atomics are ptx::atomic_add_global and …_shared, on integers: sums of floats depend on the order",
        ),
        _ if name.starts_with("__") && !LANGUAGE.contains(&name) => {
            Some("use its ptx:: function; if it only computes, let LANGUAGE of this test have it")
        }
        _ => None,
    }
}

/// What is wrong with a kernel's source, each with its line.
fn faults(source: &str, headers: &Names) -> Vec<String> {
    let mut faults = included(source, |file| file == "<stdint.h>" || file.starts_with('"'));
    let tokens = tokens(source);
    let names = headers.and(&tokens);
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text.as_str());

    for (index, token) in tokens.iter().enumerate() {
        let (before, after) = (if index == 0 { "" } else { text(index - 1) }, text(index + 1));
        let name = token.text.as_str();
        let is_pointer = names.is_pointer(&tokens, index);
        let why = match name {
            "->" => {
                Some("looks through a pointer: load the struct with ptx::load_constant or ptx::load_global")
            }
            "*" if looks_through(before, text(index.wrapping_sub(2)), &names.types) => {
                Some("looks through a pointer: use ptx::load_… or ptx::store_…")
            }
            _ if is_pointer && after == "[" && !is_address(&tokens[..index], &names.types) => {
                Some("indexes a pointer: give ptx::load_… or ptx::store_… its sum")
            }
            "memcpy" if copies_memory(&tokens, index + 1, &names) => {
                Some("copies memory behind a pointer: use ptx::load_… or ptx::store_…")
            }
            _ => forbidden_name(name),
        };
        faults.extend(why.map(|why| format!("line {}: `{name}`: {why}", token.line)));
    }
    faults
}

/// Whether a `*` or `&` behind `before`, behind `earlier`, has no value on its left.
fn looks_through(before: &str, earlier: &str, types: &BTreeSet<String>) -> bool {
    match before {
        ")" => earlier == "*" || is_type(earlier, types),
        "]" | ">" | "\"\"" => false,
        _ if is_name(before) => KEYWORDS.contains(&before),
        _ => !before.starts_with(|first: char| first.is_ascii_digit()),
    }
}

/// Whether the name behind these tokens, or the struct whose field it is, stands behind a `&` that takes an address.
fn is_address(tokens: &[Token], types: &BTreeSet<String>) -> bool {
    let rest = match tokens {
        [rest @ .., of, dot] if dot.text == "." && is_name(&of.text) => rest,
        _ => tokens,
    };
    let text =
        |from_end: usize| rest.len().checked_sub(from_end).map_or("", |index| rest[index].text.as_str());
    text(1) == "&" && looks_through(text(2), text(3), types)
}

/// Whether the arguments that begin at this place name a pointer.
fn copies_memory(tokens: &[Token], begin: usize, names: &Names) -> bool {
    let mut depth = 0;
    for index in begin..tokens.len() {
        match tokens[index].text.as_str() {
            "(" => depth += 1,
            ")" if depth == 1 => return false,
            ")" => depth -= 1,
            _ if names.is_pointer(tokens, index) && tokens[index - 1].text != "&" => return true,
            _ => {}
        }
    }
    false
}

/// The includes that are not allowed.
fn included(source: &str, allowed: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
        let Some(file) = directive.and_then(|rest| rest.strip_prefix("include")).map(str::trim) else {
            continue;
        };
        let file = file.split("//").next().unwrap_or_default().trim();
        if !allowed(file) {
            faults.push(format!(
                "line {}: includes {file}: kernels have only <stdint.h> and each other",
                number + 1
            ));
        }
    }
    faults
}

#[test]
fn kernels_reach_memory_through_ptx_only() {
    let folder = built::root().join("kernels");
    let texts = |endings: &[&str]| -> Vec<(String, String)> {
        let name = |path: &Path| path.file_name().expect("has a name").to_string_lossy().into_owned();
        built::with_ending(&folder, endings).iter().map(|path| (name(path), built::text(path))).collect()
    };
    let headers = texts(&["h"]);
    assert!(!headers.is_empty(), "no headers in {}", folder.display());
    let mut all = Vec::new();
    for (name, source) in &headers {
        all.extend(
            included(source, |file| file == "<stdint.h>").iter().map(|fault| format!("{name}, {fault}")),
        );
    }
    let headers = Names::of_headers(&headers.into_iter().map(|(_, source)| source).collect::<Vec<_>>());
    for (name, source) in texts(&["cu", "cuh"]).iter().filter(|(name, _)| name != "ptx.cuh") {
        all.extend(faults(source, &headers).iter().map(|fault| format!("{name}, {fault}")));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// A header as those of the kernels.
const HEADER: &str = "\
#include <stdint.h>
typedef struct Tile { int32_t rows; } Tile;
typedef struct Forward { const uint16_t *input; const Tile *tiles; uint16_t *output; float scale; } Forward;
";

fn found(source: &str) -> Vec<String> {
    faults(source, &Names::of_headers(&[HEADER.to_owned()]))
}

/// In a kernel with the parameter `p`.
fn found_in_kernel(source: &str) -> Vec<String> {
    found(&format!(
        "extern \"C\" __global__ void forward(const __grid_constant__ Forward p) {{\n{source}\n}}\n"
    ))
}

#[test]
fn what_is_forbidden_is_caught() {
    let bad = [
        ("asm volatile(\"bar.sync 0;\");", "asm"),
        ("__asm__(\"\");", "__asm__"),
        ("extern __shared__ unsigned char memory[];", "__shared__"),
        ("__shared__ float tile[32];", "__shared__"),
        ("#if __CUDA_ARCH__ >= 900", "__CUDA_ARCH__"),
        ("#include <cuda_bf16.h>", "cuda_bf16.h"),
        ("#  include <cuda_fp16.h> // halves", "cuda_fp16.h"),
        ("atomicAdd(&sum, 1.0f);", "atomicAdd"),
        ("atomicCAS(at, 0u, 1u);", "atomicCAS"),
        ("__syncthreads();", "__syncthreads"),
        ("__syncwarp();", "__syncwarp"),
        ("x = __shfl_xor_sync(0xffffffffu, x, 1);", "__shfl_xor_sync"),
        ("x = __ldg(p.input + i);", "__ldg"),
        ("x = *pointer;", "*"),
        ("*(pointer + 1) = x;", "*"),
        ("return *pointer;", "*"),
        ("f(*pointer, 1);", "*"),
        ("y = x + *pointer;", "*"),
        ("y = 2 * *pointer;", "*"),
        ("y = (float)*pointer;", "*"),
        ("y = *(const uint4 *)pointer;", "*"),
        ("y = (const float *)*pointer;", "*"),
        ("y = tile->rows;", "->"),
        ("y = p.input[3];", "input"),
        ("const uint16_t *row = p.input + 3; y = row[2];", "row"),
        ("const uint16_t *row = p.input + 3; y = 1 & row[2];", "row"),
        ("y = mask & p.input[3];", "input"),
        ("const uint16_t *row = &p.input[3]; y = row[2];", "row"),
        ("void f(const float *from) { const float *next = &from[1]; y = next[0]; }", "next"),
        ("template <class T> T get(const T *const __restrict__ from) { return from[0]; }", "from"),
        ("void put(Tile *to) { to[0] = {}; }", "to"),
        ("memcpy(&y, p.input, 4);", "memcpy"),
        ("void put(uint32_t *to) { memcpy(to + 1, &x, 4); }", "memcpy"),
    ];
    for (source, name) in bad {
        let faults = found_in_kernel(source);
        assert!(faults.iter().any(|fault| fault.contains(name)), "{source}: {faults:?}");
    }
}

#[test]
fn what_is_allowed_passes() {
    let good = "\
// asm, __shared__ and *pointer in a comment; /* so */
/* __syncthreads(); atomicAdd */
#include <stdint.h>
#include \"attention.h\"
#include \"ptx.cuh\"
constexpr int ROWS = 1'024 * 2;
template <class T> __device__ __forceinline__ T load(const T *from) { return ptx::load_constant(from + 1); }
extern \"C\" __global__ void __launch_bounds__(128) forward(const __grid_constant__ Forward p) {
    const uint16_t *rows = p.input + blockIdx.x * ROWS;
    const Tile tile = ptx::load_constant(p.tiles + blockIdx.x);
    const int32_t count = ptx::load_constant(&p.tiles[blockIdx.x].rows);
    rows = &rows[count];
    float input[4] = {}, sum[2][4];
    Softmax softmax;
    const float *pair = &softmax.output[0][2];
    for (int i = 0; i < 4; ++i) {
        sum[0][i] *= input[i] * p.scale + pair[1];
        input[i] = (p.scale) * sum[1][i] - 2 * sum[0][i];
        sum[1][i] = load(reinterpret_cast<const float *>(rows)) * input[i];
    }
    uint32_t bits;
    memcpy(&bits, &input[0], sizeof(bits));
    ptx::store_global(reinterpret_cast<uint32_t *>(p.output), bits & __float_as_uint(sum[0][0]));
    ptx::barrier();
}
";
    assert_eq!(found(good), Vec::<String>::new());
}

#[test]
fn faults_name_their_line() {
    let faults = found("/* one\n   two */\nconst char *text = \"a\\\"b\n\"; // three\n__syncthreads();\n");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("line 5: `__syncthreads`"), "{faults:?}");
}

/// The guide stops a debugger at a line, and says what stands there.
#[test]
fn the_line_of_the_guide_is_where_it_says() {
    let guide = include_str!("../../docs/kernels.md");
    let after = |begin| guide.lines().find_map(|line| line.strip_prefix(begin)).expect(begin);
    let text = after("(gdb) # where it calls ");
    let (file, line) = after("(gdb) break ").split(' ').next().unwrap().split_once(':').unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(file);
    let source = fs::read_to_string(path).unwrap();
    let found = source.lines().position(|line| line.contains(text)).map(|at| at + 1);
    assert_eq!(found, line.parse().ok(), "the line of `{text}` in {file}; docs/kernels.md, Debugging in gdb");
}

#[test]
fn headers_include_stdint_alone() {
    let only_stdint = |source: &str| included(source, |file| file == "<stdint.h>").len();
    assert_eq!(only_stdint("#include <stdint.h>\n"), 0);
    assert_eq!(only_stdint("#include <stddef.h>\n#include \"common.h\"\n"), 2);
}

/// The bytes of a parameter are copied and compared as they are.
#[test]
fn structs_have_no_padding() {
    use std::io::Write;
    use std::process::{Command, Stdio};

    let padded = |source: &str| {
        let mut compiler = Command::new("gcc")
            .args(["-x", "c", "-std=c11", "-Wpadded", "-Werror", "-fsyntax-only", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        let output = compiler.wait_with_output().unwrap();
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // One behind the other, as bindgen takes them: some have structs of those in front.
    let mut headers = String::new();
    for header in built::with_ending(&built::root().join("kernels"), &["h"]) {
        headers += &built::text(&header);
        assert_eq!(padded(&headers), None, "{}", header.display());
    }
    let found = padded("struct Padded { const char *x; int rows; };").unwrap_or_default();
    assert!(found.contains("padding struct"), "{found}");
}
