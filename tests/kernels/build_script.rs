//! The logic of build.rs: where nvcc is looked for, architectures, what counts as a change.
#![allow(dead_code, reason = "build.rs uses the rest of its modules")]

#[path = "../../tools/build/architectures.rs"]
pub mod architectures;
#[path = "../../tools/build/constants.rs"]
pub mod constants;
#[path = "../../tools/build/environment.rs"]
pub mod environment;
#[path = "../../tools/build/error.rs"]
pub mod error;
#[path = "../../tools/build/family.rs"]
pub mod family;
#[path = "../../tools/build/fingerprint.rs"]
pub mod fingerprint;
#[path = "../../tools/build/nvcc.rs"]
pub mod nvcc;
#[path = "../../tools/build/parallel.rs"]
pub mod parallel;
#[path = "../../tools/build/search.rs"]
pub mod search;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use architectures::Architecture;
use error::Error;
use nvcc::{Nvcc, Version};

use crate::built;

fn message(error: &Error) -> String {
    error.to_string()
}

/// An environment with these variables.
fn variables(of: &[(&'static str, PathBuf)]) -> impl Fn(&str) -> Option<OsString> + use<> {
    let of: Vec<(&str, PathBuf)> = of.to_vec();
    move |name| of.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone().into())
}

/// A file that is there, with its folders.
fn file(path: PathBuf) -> PathBuf {
    fs::create_dir_all(path.parent().expect("is in a folder")).expect("folders can be made");
    fs::write(&path, "").expect("files can be written");
    path
}

/// A check that takes every file of the folder that is there, and none elsewhere.
fn there(folder: &Path) -> impl Fn(&Path) -> Result<PathBuf, String> + use<> {
    let folder = folder.to_owned();
    move |path| {
        if path.starts_with(&folder) && path.is_file() {
            Ok(path.to_owned())
        } else {
            Err("no such file".to_owned())
        }
    }
}

#[test]
fn nvcc_is_looked_for_in_order() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    let given = file(root.join("given/nvcc"));
    let home = file(root.join("home/bin/nvcc"));
    let path = file(root.join("path/bin/nvcc"));
    let own = file(root.join(".toolchain/cuda/bin/nvcc"));
    let on_path = file(root.join("on-path/nvcc"));
    // Each place is found once those before it are gone.
    let mut environment = vec![
        ("NVCC", given.clone()),
        ("CUDA_HOME", root.join("home")),
        ("CUDA_PATH", root.join("path")),
        ("PATH", root.join("on-path")),
    ];
    let find =
        |environment: &[(&'static str, PathBuf)]| search::nvcc(root, &variables(environment), there(root));
    assert_eq!(find(&environment).expect("is there"), given);
    environment.remove(0);
    for place in [home, path, own, on_path] {
        assert_eq!(find(&environment).expect("is there"), place);
        fs::remove_file(&place).expect("was there");
    }
    let error = message(&find(&environment).expect_err("none is left"));
    for place in
        ["NVCC", "CUDA_HOME", "CUDA_PATH", ".toolchain/cuda/bin/nvcc", "PATH", "/usr/local/cuda/bin/nvcc"]
    {
        assert!(error.contains(place), "{place}: {error}");
    }
    assert!(error.contains("Run tools/toolchain.sh"), "{error}");
    assert!(error.lines().count() <= 10, "{error}");
}

#[test]
fn an_nvcc_that_is_given_has_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    file(root.join(".toolchain/cuda/bin/nvcc"));
    let find = |value: &str| search::nvcc(root, &variables(&[("NVCC", root.join(value))]), there(root));
    let error = message(&find("wrong/nvcc").expect_err("is not there"));
    assert!(error.starts_with("NVCC is ") && error.contains("wrong/nvcc: no such file"), "{error}");
    // An empty variable is none.
    let empty = variables(&[("NVCC", PathBuf::new())]);
    assert!(search::nvcc(root, &empty, there(root)).is_ok());
    // A name alone is one on PATH.
    let named = file(root.join("on-path/nvcc-13"));
    let environment = [("NVCC", PathBuf::from("nvcc-13")), ("PATH", root.join("on-path"))];
    assert_eq!(search::nvcc(root, &variables(&environment), there(root)).expect("is there"), named);
}

#[test]
fn an_old_nvcc_is_passed_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    file(root.join("old/bin/nvcc"));
    let own = file(root.join(".toolchain/cuda/bin/nvcc"));
    let check = |path: &Path| {
        if path == own { Ok(()) } else { Err("version 12.4.131 is too old".to_owned()) }
    };
    let environment = [("CUDA_HOME", root.join("old"))];
    assert!(search::nvcc(root, &variables(&environment), check).is_ok());
    let none = |_: &Path| -> Result<(), String> { Err("version 12.4.131 is too old".to_owned()) };
    let error = message(&search::nvcc(root, &variables(&environment), none).expect_err("all are old"));
    assert!(error.contains("old/bin/nvcc: version 12.4.131 is too old"), "{error}");
}

#[test]
fn what_is_no_nvcc_is_refused() {
    let refused = |path: &str| Nvcc::at(Path::new(path)).expect_err("is no nvcc");
    assert_eq!(refused("/nowhere/nvcc"), "no such file");
    assert!(refused("/bin/sh").contains("is no nvcc"), "{}", refused("/bin/sh"));
}

#[test]
fn what_nvcc_says_is_passed_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nvcc = Nvcc { path: built::nvcc(), version: Version(vec![13, 0, 88]) };
    let known = architectures::parse("80").expect("is a list");
    nvcc.knows(&known).unwrap();
    let unknown = message(&nvcc.knows(&architectures::parse("81").expect("is a list")).unwrap_err());
    assert!(unknown.contains("does not know 81, only ") && unknown.contains(" 90"), "{unknown}");
    let program = folder.path().join("nvcc");
    fs::write(&program, "#!/bin/sh\necho a flag that is none >&2\nexit 1\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let broken = Nvcc { path: program, version: Version(vec![13, 0, 88]) };
    let fails = message(&broken.knows(&known).unwrap_err());
    assert!(fails.contains("a flag that is none") && fails.contains("NVCC_APPEND_FLAGS"), "{fails}");
}

#[test]
fn warnings_and_spills_are_errors() {
    let nvcc = Nvcc { path: built::nvcc(), version: Version(vec![13, 0, 88]) };
    let compile = |source: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kernels = folder.path().join("kernels");
        fs::create_dir(&kernels).unwrap();
        fs::write(kernels.join("a.cu"), source).unwrap();
        let family = family::families(&kernels, &architectures::parse("80").unwrap()).unwrap().remove(0);
        let arguments = nvcc.arguments(&family, folder.path());
        nvcc.compile(&family, &arguments, folder.path(), folder.path()).map_err(|error| message(&error))
    };
    let kernel = |body: &str| {
        format!("extern \"C\" __global__ void __launch_bounds__(1024, 2) k(float *p) {{ {body} }}")
    };
    compile(&kernel("p[threadIdx.x] = 1;")).unwrap();
    let unused = compile(&kernel("int unused; p[0] = 1;")).unwrap_err();
    assert!(unused.contains("kernels/a.cu") && unused.contains("never referenced"), "{unused}");
    // 128 values that all live, in 32 registers.
    let spills = "float v[128];\n#pragma unroll\nfor (int i = 0; i < 128; ++i) v[i] = p[i];\n__syncthreads();\n\
                  #pragma unroll\nfor (int i = 0; i < 128; ++i) p[(i * 7 + 1) % 128] = v[i] * v[(i + 64) % 128];";
    let spilled = compile(&kernel(spills)).unwrap_err();
    assert!(spilled.contains("spill"), "{spilled}");
}

#[test]
fn libclang_is_looked_for_in_order() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    let own = file(root.join(".toolchain/libclang/libclang.so"));
    let versioned = file(root.join("lib/libclang-14.so.1"));
    file(root.join("lib/libclang-cpp.so.14"));
    let find = |value: PathBuf| search::libclang(root, &variables(&[("LIBCLANG_PATH", value)]));
    assert_eq!(find(PathBuf::new()).expect("is there"), own);
    assert_eq!(find(root.join("lib")).expect("is there"), versioned);
    assert_eq!(find(versioned.clone()).expect("is there"), versioned);
    // By number, not by letter.
    file(root.join("lib/libclang-9.so.1"));
    assert_eq!(find(root.join("lib")).unwrap(), versioned);
    let numbered = file(root.join("lib/libclang.so.14"));
    file(root.join("lib/libclang.so.9"));
    assert_eq!(find(root.join("lib")).unwrap(), numbered);
    let plain = file(root.join("lib/libclang.so"));
    assert_eq!(find(root.join("lib")).expect("is there"), plain);
    let error = message(&find(root.join("nowhere")).expect_err("is not there"));
    assert!(error.contains("LIBCLANG_PATH is ") && error.contains("libclang.so is not there"), "{error}");
}

#[test]
fn versions_are_read_and_compared() {
    let version = |text: &str| {
        Version::parse(&format!("nvcc: NVIDIA\nCuda compilation tools, release {text}\nBuild x\n"))
    };
    let good = version("13.0, V13.0.88").expect("is one");
    assert_eq!(good.to_string(), "13.0.88");
    assert!(good.will_do());
    assert!(version("14.1, V14.1.2").expect("is one").will_do());
    assert!(!version("12.9, V12.9.86").expect("is one").will_do());
    assert_eq!(version("13.0"), None);
    assert_eq!(Version::parse("gcc 12"), None);
}

#[test]
fn architectures_are_read() {
    let read = |list: &str| -> Vec<String> {
        architectures::parse(list).expect("is a list").iter().map(Architecture::to_string).collect()
    };
    assert_eq!(read(architectures::DEFAULT), ["80", "90a"]);
    assert_eq!(read("89"), ["89"]);
    assert_eq!(read(" 80, 90 ,120f"), ["80", "90", "120f"]);
    for (list, word) in [
        ("", "no architecture"),
        ("80,", "no architecture"),
        ("sm_80", "no architecture"),
        ("8.0", "no architecture"),
        ("+80", "no architecture"),
        ("90b", "no architecture"),
        ("a", "no architecture"),
        ("75", "bf16"),
        ("80a", "80a does not exist"),
        ("90f", "90f does not exist"),
        ("80,80", "twice"),
        ("99999999999", "no architecture"),
    ] {
        let error = message(&architectures::parse(list).expect_err(list));
        assert!(error.contains(word) && error.contains("SETRANK_CUDA_ARCHS"), "{list}: {error}");
    }
}

#[test]
fn variables_are_text() {
    use std::os::unix::ffi::OsStringExt;
    let variable = |name: &str| match name {
        "SETRANK_CUDA_ARCHS" | "OUT_DIR" => Some(OsString::from_vec(b"80\xff".to_vec())),
        "NVCC" => Some("/opt/å/nvcc".into()),
        _ => None,
    };
    assert_eq!(environment::text(&variable, "NVCC").expect("is text").as_deref(), Some("/opt/å/nvcc"));
    assert_eq!(environment::text(&variable, "CUDA_HOME").expect("is not set"), None);
    environment::check(&variable, &["NVCC", "CUDA_HOME"]).expect("are text");
    let error = environment::check(&variable, &["NVCC", "SETRANK_CUDA_ARCHS"]).expect_err("is no text");
    assert_eq!(
        message(&error),
        "SETRANK_CUDA_ARCHS is \"80\\xFF\", which is not valid Unicode. Set it right, or unset it."
    );
    let error = message(&environment::text(&variable, "OUT_DIR").expect_err("is no text"));
    assert!(error.ends_with("Build in a folder of another name."), "{error}");
}

#[test]
fn kernels_are_not_compiled_for_clippy() {
    for (wrapper, expected) in [
        (None, false),
        (Some("/usr/bin/clippy-driver"), true),
        (Some("clippy-driver.exe"), true),
        (Some("/usr/bin/sccache"), false),
    ] {
        let variable = |_: &str| wrapper.map(OsString::from);
        assert_eq!(environment::for_lints(&variable), expected, "{wrapper:?}");
    }
}

#[test]
fn a_family_for_sm_90a_is_built_for_it_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["b_sm90.cu", "a.cu", "a.h", "ptx.cuh", "README.md"] {
        file(folder.path().join(name));
    }
    let families = |list: &str| -> Vec<String> {
        let architectures = architectures::parse(list).expect("is a list");
        let all = family::families(folder.path(), &architectures).expect("can be read");
        let shown = |of: &Architecture| of.to_string();
        all.iter()
            .map(|one| {
                format!("{}:{}", one.name, one.architectures.iter().map(shown).collect::<Vec<_>>().join(","))
            })
            .collect()
    };
    assert_eq!(families("80,90a"), ["a:80,90a", "b_sm90:90a"]);
    assert_eq!(families("80"), ["a:80"]);
    let headers = family::headers(folder.path()).expect("can be read");
    assert_eq!(headers, [folder.path().join("a.h"), folder.path().join("ptx.cuh")]);
}

#[test]
fn files_of_families_that_are_gone_go() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path();
    let one = family::Family {
        name: "one".to_owned(),
        source: PathBuf::from("kernels/one.cu"),
        architectures: architectures::parse("80").expect("is a list"),
        only_sm90: false,
    };
    let mut keep: Vec<PathBuf> =
        ["one.fatbin", "one.sm_80.cubin", "one.ptx", "one.fingerprint", "one.resources.txt", "abi.rs"]
            .map(|name| file(out.join(name)))
            .to_vec();
    one.compress(out).expect("can be compressed");
    keep.push(one.compressed(out));
    let gone: Vec<PathBuf> = [
        "two.fatbin",
        "two.fatbin.zst",
        "one.sm_90a.cubin",
        "two.ptx",
        "two.fingerprint",
        "two.resources.txt",
    ]
    .map(|name| file(out.join(name)))
    .to_vec();
    family::remove_others(out, &[one]).expect("can be removed");
    assert!(keep.iter().all(|path| path.exists()));
    assert!(gone.iter().all(|path| !path.exists()));
}

#[test]
fn every_change_is_a_change() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("one.cu");
    fs::write(&source, "first").expect("can be written");
    let of = |parts: &[&str]| {
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        fingerprint::of(&parts, [source.as_path()].into_iter()).expect("can be read")
    };
    let first = of(&["13.0.88", "-O3"]);
    assert_eq!(of(&["13.0.88", "-O3"]), first);
    assert_ne!(of(&["13.0.89", "-O3"]), first);
    assert_ne!(of(&["13.0.88-", "O3"]), first);
    assert_ne!(of(&["13.0.88", "-O3", ""]), first);
    fs::write(&source, "second").expect("can be written");
    assert_ne!(of(&["13.0.88", "-O3"]), first);
    fs::remove_file(&source).expect("was there");
    let error = fingerprint::of(&[], [source.as_path()].into_iter()).expect_err("is gone");
    assert!(message(&error).contains("one.cu"), "{error}");
}

#[test]
fn work_is_done_once_and_results_keep_their_order() {
    let items: Vec<usize> = (0..50).collect();
    for jobs in [0, 1, 3, 100] {
        assert_eq!(
            parallel::map(&items, jobs, |item| item * 2),
            (0..50).map(|item| item * 2).collect::<Vec<_>>()
        );
    }
    assert_eq!(parallel::map(&[], 2, |item: &usize| *item), Vec::<usize>::new());
}

#[test]
fn constants_become_plain_integers() {
    let bindings = "\
#[doc = \" Rows.\"]
pub const ROWS: _bindgen_ty_1 = 128;
pub const BELOW: _bindgen_ty_12 = -1;
pub type _bindgen_ty_1 = u32;
pub type _bindgen_ty_12 = i32;
pub struct Tile {
    pub rows: i32,
}
";
    let plain = "\
#[doc = \" Rows.\"]
pub const ROWS: u32 = 128;
pub const BELOW: i32 = -1;
pub struct Tile {
    pub rows: i32,
}
";
    assert_eq!(constants::plain(bindings), plain);
}

#[test]
fn times_are_no_resources() {
    let said = "nvcc warning : x\nptxas info    : 0 bytes gmem\nptxas info    : Compile time = 3.1 ms\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
    let kept =
        "ptxas info    : 0 bytes gmem\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
    assert_eq!(nvcc::resource_lines(said), kept);
    assert_eq!(nvcc::losses(said), [""; 0]);
    let lost =
        "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized";
    assert_eq!(nvcc::losses(&format!("{said}\n{lost}\n")), [lost]);
}
