//! What a kernel can do wrong, and a launch.

use setrank_emulator::launch::Pointer;
use setrank_emulator::ptx::{FaultKind, Module, Options};

use crate::harness::{HEAD, STORE, fault, fault_of, kernel, launch, run_words};

/// `%r1`: the lane; `%rd1`, `%r3`: the lane times 4.
const LANE: &str = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; shl.b32 %r3, %r1, 2;";

#[test]
fn faults_say_what_and_where() {
    use FaultKind::*;
    let cases = [
        // The input has 16 bytes: four words.
        (
            "add.s64 %rd2, %rd14, %rd1;\nld.global.u32 %r2, [%rd2];",
            IllegalAddress,
            2,
            4,
            "byte 16 of `input`, which has 16",
        ),
        ("ld.global.u32 %r2, [%rd14+-4];", IllegalAddress, 1, 0, "byte -4 of `input`"),
        ("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd14+16];", IllegalAddress, 1, 0, "16 bytes at byte 16"),
        ("st.global.u32 [%rd14+16], %r1;", IllegalAddress, 1, 0, "`input`"),
        ("st.global.u32 [%rd15+32], %r1;", IllegalAddress, 1, 0, "`output`"),
        ("mov.u64 %rd2, 0; ld.global.u32 %r2, [%rd2];", IllegalAddress, 1, 0, "no buffer"),
        (
            "cvt.u32.u64 %r2, %rd14; cvt.u64.u32 %rd2, %r2; ld.u32 %r2, [%rd2];",
            IllegalAddress,
            1,
            0,
            "no buffer",
        ),
        ("ld.global.u32 %r2, [%rd14+2];", Misaligned, 1, 0, "no multiple of 4"),
        ("ld.global.v2.u32 {%r2, %r4}, [%rd14+4];", Misaligned, 1, 0, "no multiple of 8"),
        ("atom.global.add.u64 %rd3, [%rd14+4], %rd1;", Misaligned, 1, 0, "8 bytes"),
        (
            "mov.b32 %r2, dyn; add.s32 %r2, %r2, %r3; st.shared.u32 [%r2+240], %r1;",
            IllegalAddress,
            1,
            4,
            "byte 256 of 256",
        ),
        ("mov.b32 %r2, dyn; st.shared.u32 [%r2+-4], %r1;", IllegalAddress, 1, 0, "byte -4 of 256"),
        ("mov.b32 %r2, 0; st.shared.u32 [%r2], %r1;", IllegalAddress, 1, 0, "shared memory"),
        (
            "mov.b32 %r2, dyn; st.shared.u16 [%r2+1], %rs1;",
            Uninitialised,
            1,
            0,
            "reads %rs1, which nothing wrote in lanes 0-7",
        ),
        ("mov.b32 %r2, dyn; st.shared.u32 [%r2+2], %r1;", Misaligned, 1, 0, "no multiple"),
        (
            "mov.b32 %r2, dyn; st.shared.u32 [%r2], %r1;\nld.shared.v2.u32 {%r4, %r5}, [%r2];",
            Uninitialised,
            2,
            0,
            "shared byte 4",
        ),
        ("add.s32 %r9, %r1, %r2;", Uninitialised, 1, 0, "reads %r2"),
        (
            "setp.lt.u32 %p1, %r1, 5; @%p1 mov.u32 %r2, 1;\nadd.s32 %r9, %r1, %r2;",
            Uninitialised,
            2,
            5,
            "lanes 5-7",
        ),
        ("@%p1 mov.u32 %r2, 1;", Uninitialised, 1, 0, "reads %p1"),
        ("selp.b32 %r2, %r1, %r4, %p1;", Uninitialised, 1, 0, "reads %p1"),
        (
            ".local .align 4 .b8 d[8]; mov.b64 %rd2, d; add.s64 %rd2, %rd2, %rd1; st.local.u32 [%rd2], %r1;",
            IllegalAddress,
            1,
            2,
            "byte 8 of 8 bytes of local",
        ),
        ("ld.param.u64 %rd2, [p+16];", IllegalAddress, 1, 0, "parameter of 16 bytes"),
        ("mov.b64 %rd2, p; cvta.param.u64 %rd3, %rd2; st.u32 [%rd3], %r1;", ReadOnly, 1, 0, "parameter"),
        ("mov.b64 %rd2, table; st.global.u32 [%rd2], %r1;", ReadOnly, 1, 0, "`table`"),
        ("setp.eq.u32 %p1, %r1, 3;\n@%p1 trap;", Trap, 2, 3, "stopped itself"),
        ("shfl.sync.idx.b32 %r2, %r1, 9, 0x1f, -1;", Undefined, 1, 0, "lane 0 reads lane 9"),
        ("shfl.sync.idx.b32 %r2, %r1, 0, 0x1f, 0x0f;", Undefined, 1, 4, "lane 4 is not in its own mask"),
        ("table2: .branchtargets $a, $b; brx.idx %r1, table2; $a: $b:", Undefined, 1, 2, "index 2 of 2"),
        (
            "mov.b32 %r2, dyn; cp.async.cg.shared.global [%r2], [%rd14], 16, 17;",
            Undefined,
            1,
            0,
            "copies 17 of 16",
        ),
        (
            "mov.b32 %r2, dyn; cp.async.cg.shared.global [%r2], [%rd14+16], 16;",
            IllegalAddress,
            1,
            0,
            "`input`",
        ),
        ("mov.b32 %r2, dyn; cp.async.ca.shared.global [%r2+4], [%rd14+4], 8;", Misaligned, 1, 0, "8 bytes"),
    ];
    for (body, kind, line, thread, text) in cases {
        let text_of = kernel(&format!("{LANE}{body}")).replace(
            HEAD,
            &format!(
                "{HEAD}.extern .shared .align 16 .b8 dyn[]; .const .align 4 .u32 table[2] = {{1, 2}};\n"
            ),
        );
        let mut launch = launch(1, 8, vec![0; 16], 32);
        launch.shared_bytes = 256;
        let module = Module::parse(&text_of).unwrap_or_else(|error| panic!("{body}: {error}"));
        let fault = module.run(&mut launch, &Options::default()).expect_err(body);
        let place = fault.place.clone().unwrap();
        let first = text_of.lines().position(|text| text.starts_with(LANE)).unwrap() as u32;
        assert!(fault.to_string().contains(text), "{body}: {fault}");
        assert_eq!(
            (fault.kind, place.line - first, place.thread),
            (kind, line, [thread, 0, 0]),
            "{body}: {fault}"
        );
        assert_eq!(launch.buffers[0].bytes.len(), 16, "the buffers come back");
    }
}

#[test]
fn a_copy_must_be_waited_for() {
    let copy = "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.b32 %r3, tile; add.s32 %r4, %r3, %r2;
        cp.async.cg.shared.global [%r4], [%rd14], 16;";
    let tile = ".shared .align 16 .b8 tile[2048];";
    let cases = [
        ("\nld.shared.u32 %r9, [%r4];", FaultKind::InFlight, 4, 0),
        ("cp.async.commit_group;\nld.shared.u32 %r9, [%r4];", FaultKind::InFlight, 4, 0),
        // Waiting for groups does not wait for what is in none; all but the newest is one too few.
        ("cp.async.wait_group 0;\nld.shared.u32 %r9, [%r4];", FaultKind::InFlight, 4, 0),
        ("cp.async.commit_group; cp.async.wait_group 1;\nld.shared.u32 %r9, [%r4];", FaultKind::InFlight, 4, 0),
        ("\nst.shared.u32 [%r4], %r1;", FaultKind::InFlight, 4, 0),
        ("\ncp.async.ca.shared.global [%r4], [%rd14], 4;", FaultKind::InFlight, 4, 0),
        // Another thread's copy, waited for by that thread, but read before it has.
        (
            "setp.lt.u32 %p1, %r1, 32; xor.b32 %r5, %r4, 512; @%p1 bra $read; cp.async.wait_all; bar.sync 0;\nbra $end;
            $read: ld.shared.u32 %r9, [%r5]; bar.sync 0; $end:",
            FaultKind::Uninitialised, 5, 0,
        ),
    ];
    for (rest, kind, line, thread) in cases {
        let found = fault(&format!("{tile} {copy}{rest}"), 64);
        assert_eq!((found.0, found.1 - 1, found.2[0]), (kind, line - 2, thread), "{rest}: {}", found.3);
    }
}

#[test]
fn a_fault_names_block_and_thread() {
    let body = format!(
        "{LANE} mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 2; setp.eq.and.u32 %p1, %r1, 37, %p1; @%p1 trap;"
    );
    let fault = run_words(&body, 4, 64, &[]).expect_err("a trap");
    let place = fault.place.clone().unwrap();
    assert_eq!((place.block, place.thread), ([2, 0, 0], [37, 0, 0]));
    assert_eq!(place.text, "trap");
    assert_eq!(fault.kernel, "k");
    let (kind, ..) = fault_of(run_words(&body, 4, 64, &[]));
    assert_eq!(kind, FaultKind::Trap);
}

#[test]
fn launches_that_fit_nothing() {
    let text = kernel(&format!(".shared .align 16 .b8 tile[1024]; mov.u32 %r9, 0; {STORE}"))
        .replace(")\n{", ")\n.maxntid 64, 1, 1\n{");
    let module = Module::parse(&text).unwrap();
    type Change = fn(&mut setrank_emulator::launch::Launch);
    let cases: [(Change, &str); 13] = [
        (|launch| launch.kernel = "other".to_owned(), "no such kernel; the module has k"),
        (|launch| launch.block = [0, 1, 1], "block of [0, 1, 1]"),
        (|launch| launch.block = [u32::MAX; 3], "block of"),
        (|launch| launch.block = [65, 1, 1], "compiled for 64"),
        (|launch| launch.grid = [1, 0, 1], "grid of [1, 0, 1]"),
        (|launch| launch.grid = [1, 65536, 1], "grid of"),
        (
            |launch| launch.shared_bytes = 3 * 1024 + 1,
            "4097 bytes of shared memory in a block of at most 4096",
        ),
        (|launch| launch.shared_bytes = u32::MAX, "shared memory"),
        (|launch| launch.parameter.push(0), "parameter of 17 bytes, and the kernel takes 16"),
        (|launch| launch.pointers.push(Pointer { at: 0, buffer: 2, offset: 0 }), "buffer 2 of 2"),
        (|launch| launch.pointers.push(Pointer { at: 9, buffer: 0, offset: 0 }), "at byte 9"),
        (|launch| launch.pointers.push(Pointer { at: usize::MAX, buffer: 0, offset: 0 }), "at byte"),
        (
            |launch| launch.pointers.push(Pointer { at: 0, buffer: 0, offset: 5 }),
            "byte 5 of `input`, which has 4",
        ),
    ];
    for (change, text) in cases {
        let mut launch = launch(1, 1, vec![0; 4], 4);
        change(&mut launch);
        let fault =
            module.run(&mut launch, &Options { shared_limit: 4096, ..Options::default() }).expect_err(text);
        assert_eq!(fault.kind, FaultKind::Launch);
        assert!(fault.to_string().contains(text), "{fault}");
    }
    let mut launch = launch(1, 64, vec![0; 4], 256);
    module.run(&mut launch, &Options { shared_limit: 4096, ..Options::default() }).unwrap();
}
