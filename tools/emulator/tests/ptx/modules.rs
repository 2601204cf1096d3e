//! What is refused before anything runs.

use setrank_emulator::ptx::Module;

use crate::harness::{HEAD, kernel};

#[test]
fn unknown_instructions_name_their_line_and_text() {
    let cases = [
        ("frobnicate.u32 %r1, %r2;", "unknown instruction"),
        ("wgmma.fence.sync.aligned;", "unknown instruction"),
        ("add.u32.wild %r1, %r2, %r3;", "expected a type"),
        ("add.wild.u32 %r1, %r2, %r3;", "`.wild` is not known here"),
        ("add.u32 %r1, %r2;", "expected 3 operands"),
        ("add.u32 %r1, %r2, %rd3;", "no register of 32 bits"),
        ("add.u64 %rd1, %r2, %rd3;", "no register of 64 bits"),
        ("add.u32 %r1, %r2, %r99;", "`%r99` is not declared"),
        ("add.u32 %r1, %r2, %r01;", "is not declared"),
        ("add.f32 %r1, %r2, 1;", "an integer where a float is due"),
        ("add.u32 5, %r2, %r3;", "the destination is no register"),
        ("add.rn.ftz.f64 %rd1, %rd2, %rd3;", "`.ftz` is not for this instruction"),
        ("fma.rz.f64 %rd1, %rd2, %rd3, %rd4;", "only rounded to nearest"),
        ("fma.f32 %r1, %r2, %r3, %r4;", "a rounding mode is due"),
        ("ex2.f32 %r1, %r2;", "`.approx` is due"),
        ("mul.u32 %r1, %r2, %r3;", "one of `.lo`, `.hi` and `.wide`"),
        ("setp.lt.b32 %p1, %r2, %r3;", "not a comparison of this type"),
        ("setp.ltu.u32 %p1, %r2, %r3;", "not a comparison of this type"),
        ("setp.lt.u32 %r1, %r2, %r3;", "`%r1` is no predicate"),
        ("@%r1 mov.u32 %r1, 1;", "`%r1` is no predicate"),
        ("selp.u32 %r1, %r2, %r3, %r4;", "`%r4` is no predicate"),
        ("cvt.u32.f32 %r1, %r2;", "a rounding mode to integers is due"),
        ("cvt.f32.f64 %r1, %rd2;", "a rounding mode is due"),
        ("cvt.rn.f32.f32.f32 %r1, %r2;", "is not known here"),
        ("bra $nowhere;", "no label `$nowhere`"),
        ("brx.idx %r1, $nowhere;", "no `.branchtargets`"),
        ("call.uni vprintf, (%r1);", "no function `vprintf`"),
        ("ld.global.u32 %r1, [%p1];", "is no address"),
        ("ld.u32 %r1, [%r1];", "is no address"),
        ("ld.global.u32 %r1, %rd1;", "expected an address"),
        ("ld.global.v4.u32 {%r1, %r2}, [%rd1];", "expected 4 registers"),
        ("ld.global.u64 %r1, [%rd1];", "no register of 64 bits"),
        ("ld.shared.u32 %r1, [p];", "in another space"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 8;", "16 bytes"),
        ("cp.async.bulk.commit_group;", "`.bulk` is not known here"),
        ("atom.global.nand.b32 %r1, [%rd1], %r2;", "an operation is due"),
        ("atom.global.add.u16 %rs1, [%rd1], %rs2;", "32 or 64 bits are due"),
        ("shfl.up.b32 %r1, %r2, 1, 0;", "`.sync` is due"),
        ("barrier.sync 0;", "`.aligned`"),
        ("bar.arrive 0;", "expected a barrier and a number of threads"),
        (
            "mma.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%r1, %r1, %r1, %r1}, {%r1}, {%r1}, {%r1};",
            "unknown shape",
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1, %r1, %r1, %r1}, {%r1}, {%r1}, {%r1};",
            "expected 4 registers",
        ),
        ("ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1}, [%r1];", "unknown kind of matrix"),
        ("mov.b64 %rd1, {%r1, %r2, %r3};", "not so many parts"),
        ("lop3.b32 %r1, %r2, %r3, %r4, 256;", "more than 8 bits"),
        ("$a: $a: ret;", "a label of this name"),
        (".global .u32 x;", "inside of a function"),
        (".local .b8 d[1000000];", "of local memory"),
    ];
    for (line, message) in cases {
        let text = kernel(&format!("mov.u32 %r1, 1;\n{line}"));
        let expected = text.lines().position(|other| other == line).unwrap() as u32 + 1;
        let Err(error) = Module::parse(&text) else { panic!("{line} is taken") };
        assert_eq!(error.line, expected, "{line}: {error}");
        assert!(error.to_string().contains(message), "{line}: {error}");
        let word = line.split([' ', ';']).find(|word| !word.starts_with(['@', '.', '$'])).unwrap_or("");
        assert!(error.token.contains(word) || line.starts_with(['.', '$']), "{line}: {error}");
    }
}

#[test]
fn a_module_lists_its_kernels() {
    let text = format!(
        "{HEAD}.entry a() {{ ret; }}\n.func f() {{ wild; }}\n.visible .entry b() {{\n// begin inline asm\nexit;\n// end inline asm\n}}"
    );
    let module = Module::parse(&text).unwrap();
    assert_eq!(module.kernels().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(module.asm().into_iter().collect::<Vec<_>>(), ["exit"]);
}

#[test]
fn recursion_is_refused() {
    let text = format!("{HEAD}.func f() {{ call f; }}\n.entry k() {{ call f; }}");
    assert!(Module::parse(&text).err().unwrap().message.contains("recursive"));
}

#[test]
fn names_in_a_scope_hide_those_around_it() {
    let text = kernel(
        ".reg .b32 x; mov.u32 x, 5; { .reg .b32 x; mov.u32 x, 6; { .reg .b64 x; mov.u64 x, 7; } add.u32 x, x, 1; }
        st.global.u32 [%rd15], x;",
    );
    let mut launch = crate::harness::launch(1, 1, vec![], 4);
    Module::parse(&text).unwrap().run(&mut launch, &Default::default()).unwrap();
    assert_eq!(launch.buffers[1].bytes, [5, 0, 0, 0]);
}

#[test]
fn no_text_makes_the_parser_panic() {
    let whole =
        kernel("mov.u32 %r1, {%rs1, %rs2}; setp.lt.u32 %p1|%p2, %r1, [%r1+4]; { .reg .b32 x; } $a: bra $a;");
    for end in 0..whole.len() {
        let _ = Module::parse(&whole[..end]);
        let mut changed = whole.clone().into_bytes();
        changed[end] = b"{}[];,.%!|@0a\n"[end % 14];
        let _ = Module::parse(&String::from_utf8(changed).unwrap());
    }
}
