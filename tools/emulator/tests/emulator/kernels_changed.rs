//! Kernels compiled from changed sources.

use crate::common::{launch, run, source};
use setrank_emulator::emulate::Config;
use setrank_emulator::kernels::{KernelError, Kernels, Sources};

fn sources() -> Sources {
    Sources::read(&[source("block.cu")]).unwrap()
}

#[test]
fn a_planted_bug_is_in_the_library() {
    let original = sources().compile().unwrap();
    let of = launch("ring", 64, &[], 64, 1, 0);
    let right = run(&original, &of, &Config::default()).unwrap();
    let changed = sources().replace("block.cu", "(threadIdx.x + 1) % threads", "(threadIdx.x + 2) % threads");
    let changed = changed.unwrap().compile().unwrap();
    let wrong = run(&changed, &of, &Config::default()).unwrap();
    assert_eq!((right[0], wrong[0]), (1, 2));
    // Both are there at the same time.
    assert_eq!(run(&original, &of, &Config::default()).unwrap(), right);
}

#[test]
fn headers_can_be_changed_too() {
    let changed =
        sources().replace("arguments.h", "int32_t b;", "int32_t b, c, d;").unwrap().compile().unwrap();
    let mut of = launch("ring", 64, &[], 64, 1, 0);
    of.parameter.extend([0; 8]);
    assert!(run(&changed, &of, &Config::default()).is_ok());
}

#[test]
fn texts_to_replace_must_be_there_once() {
    let replaced = |file: &str, from: &str| sources().replace(file, from, "x").unwrap_err();
    assert!(matches!(replaced("block.cu", "no such text"), KernelError::Replace { times: 0, .. }));
    assert!(matches!(replaced("block.cu", "ptx::barrier();"), KernelError::Replace { times: 2, .. }));
    assert!(matches!(replaced("other.cu", "x"), KernelError::NoFile(name) if name == "other.cu"));
}

#[test]
fn errors_of_the_compiler_are_passed_on() {
    let broken = sources().replace("block.cu", "uint32_t sum = 0;", "uint32_t sum = nothing;").unwrap();
    let error = broken.compile().unwrap_err();
    assert!(matches!(error, KernelError::Compile(_)));
    assert!(error.to_string().contains("nothing"), "{error}");
    assert!(matches!(Sources::read(&["/no/such.cu"]), Err(KernelError::File { .. })));
}

#[test]
fn the_repository_has_a_library() {
    assert!(!Kernels::repository().has("nothing"));
    assert!(!Kernels::repository().has("not\0a name"));
}
