//! Branches, loops, calls: lanes part and come together again.

use setrank_emulator::ptx::{FaultKind, Module, Options};

use crate::harness::{HEAD, STORE, as_words, fault, kernel, launch, outputs, run_words};

/// Ends a body so that its output also tells that all lanes are together.
const TOGETHER: &str = "mov.u32 %r17, 0; activemask.b32 %r17; setp.ne.u32 %p9, %r17, -1; @%p9 trap;";

#[test]
fn nested_ifs() {
    let body = format!(
        "mov.u32 %r1, %laneid; and.b32 %r2, %r1, 1; and.b32 %r3, %r1, 2; setp.eq.u32 %p1, %r2, 0;
        setp.eq.u32 %p2, %r3, 0; mov.u32 %r9, 0; @%p1 bra $even; @%p2 bra $odd_low; mov.u32 %r9, 3; bra $odd_end;
        $odd_low: mov.u32 %r9, 1; $odd_end: add.s32 %r9, %r9, 100; bra $end;
        $even: @!%p2 bra $even_high; mov.u32 %r9, 10; bra $end; $even_high: mov.u32 %r9, 12;
        $end: {TOGETHER} {STORE}"
    );
    let expected: Vec<u32> = (0..32).map(|lane| [10, 101, 12, 103][lane % 4]).collect();
    assert_eq!(outputs(&body, 32), expected);
}

#[test]
fn loops_of_different_length() {
    let body = format!(
        "mov.u32 %r1, %laneid; mov.u32 %r9, 0; mov.u32 %r2, 0;
        $outer: mov.u32 %r3, 0;
        $inner: add.s32 %r9, %r9, 1; add.s32 %r3, %r3, 1; setp.le.u32 %p1, %r3, %r1; @%p1 bra $inner;
        add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %r1; @%p2 bra $outer; {TOGETHER} {STORE}"
    );
    let expected: Vec<u32> = (0..32).map(|lane: u32| lane.max(1) * (lane + 1)).collect();
    assert_eq!(outputs(&body, 32), expected);
}

#[test]
fn a_loop_whose_end_stands_before_it() {
    // The lanes that leave go to lower code, which is not where the loop is; all meet at the shuffle all the same.
    let body = format!(
        "mov.u32 %r1, %laneid; mov.u32 %r2, 0; bra $loop;
        $out: shfl.sync.bfly.b32 %r9, %r2, 31, 0x1f, -1; bra $end;
        $loop: add.s32 %r2, %r2, 1; setp.gt.u32 %p1, %r2, %r1; @%p1 bra $out; bra $loop;
        $end: {STORE}"
    );
    let expected: Vec<u32> = (0..32).map(|lane| 32 - lane).collect();
    assert_eq!(outputs(&body, 32), expected);
    // The same with an instruction that needs the whole warp.
    let body = body.replace("shfl.sync.bfly.b32 %r9, %r2, 31, 0x1f, -1;", "mov.u32 %r9, %r2; bar.sync 0;");
    assert_eq!(outputs(&body, 32), (1..33).collect::<Vec<_>>());
}

#[test]
fn some_lanes_end_early() {
    for end in ["@%p1 bra $end;", "@%p1 ret;", "@%p1 exit;", "@!%p1 bra $on; ret; $on:"] {
        let body = format!(
            "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 3; {end} bar.sync 0; mov.u32 %r9, %r1;
            {STORE} $end:"
        );
        let found = outputs(&body, 64);
        for (thread, found) in (0..64).zip(found) {
            assert_eq!(found, if thread % 4 == 3 { 0xeeee_eeee } else { thread }, "{end}");
        }
    }
}

#[test]
fn branches_through_a_table() {
    let body = format!(
        "mov.u32 %r1, %laneid; and.b32 %r2, %r1, 3; table: .branchtargets $a, $b, $c, $b; brx.idx %r2, table;
        $a: mov.u32 %r9, 7; bra.uni $end; $b: mov.u32 %r9, 8; bra.uni $end; $c: mov.u32 %r9, 9; $end: {TOGETHER} {STORE}"
    );
    let expected: Vec<u32> = (0..32).map(|lane| [7, 8, 9, 8][lane % 4]).collect();
    assert_eq!(outputs(&body, 32), expected);
}

#[test]
fn calls() {
    let functions = ".func (.param .b32 result) twice(.param .b32 value) {
        .reg .b32 %r<4>; .reg .pred %p<2>; ld.param.b32 %r1, [value]; setp.gt.u32 %p1, %r1, 40; @%p1 bra $L;
        shl.b32 %r2, %r1, 1; st.param.b32 [result], %r2; ret; $L: st.param.b32 [result], 1; ret; }
        .func (.param .align 8 .b8 result[16]) pair(.param .align 8 .b8 value[16]) {
        .reg .b32 %r<4>; .reg .b64 %rd<4>; ld.param.b64 %rd1, [value+8]; ld.param.b32 %r1, [value];
        { .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; call.uni (b), twice, (a); ld.param.b32 %r2, [b]; }
        st.param.b64 [result+8], %rd1; st.param.b32 [result], %r2; }\n";
    let text = kernel(&format!(
        "mov.u32 %r1, %tid.x; mov.u64 %rd1, 1000;
        {{ // callseq 0, 0
        .param .align 8 .b8 param0[16]; st.param.b32 [param0], %r1; st.param.b64 [param0+8], %rd1;
        .param .align 8 .b8 retval0[16]; call.uni (retval0), pair, (param0);
        ld.param.b32 %r2, [retval0]; ld.param.b64 %rd2, [retval0+8]; }}
        cvt.u32.u64 %r3, %rd2; add.s32 %r9, %r2, %r3; $L: {TOGETHER} {STORE}"
    ))
    .replace(HEAD, &format!("{HEAD}{functions}"));
    let mut launch = launch(1, 64, vec![], 256);
    Module::parse(&text)
        .unwrap()
        .run(&mut launch, &Options::default())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let expected: Vec<u32> = (0..64).map(|thread| 1000 + if thread > 40 { 1 } else { 2 * thread }).collect();
    assert_eq!(as_words(&launch.buffers[1].bytes), expected);
}

#[test]
fn threads_and_blocks_know_their_places() {
    let text = kernel(
        "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y;
        mov.u32 %r6, %ctaid.z; mov.u32 %r7, %ntid.x; mov.u32 %r8, %ntid.y; mov.u32 %r9, %ntid.z; mov.u32 %r10, %nctaid.x;
        mov.u32 %r11, %nctaid.y; mad.lo.u32 %r12, %r6, %r11, %r5; mad.lo.u32 %r12, %r12, %r10, %r4;
        mad.lo.u32 %r12, %r12, %r9, %r3; mad.lo.u32 %r12, %r12, %r8, %r2; mad.lo.u32 %r12, %r12, %r7, %r1;
        mul.wide.u32 %rd1, %r12, 4; add.s64 %rd2, %rd15, %rd1; st.global.u32 [%rd2], %r12;",
    );
    let mut launch = launch(1, 1, vec![], 4 * 24 * 30);
    launch.grid = [2, 3, 4];
    launch.block = [5, 3, 2];
    Module::parse(&text).unwrap().run(&mut launch, &Options::default()).unwrap();
    assert_eq!(as_words(&launch.buffers[1].bytes), (0..24 * 30).collect::<Vec<_>>());
}

#[test]
fn warp_wide_instructions_need_the_whole_warp() {
    let lane = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 16;";
    let cases = [
        // Around an if, with something behind it.
        (
            format!("{lane} @%p1 bra $on;\nbar.sync 0;\n$on: mov.u32 %r2, 1;"),
            2,
            16,
            "lanes 0-15 went round it, to line",
        ),
        // In both branches of an if.
        (
            format!("{lane} @%p1 bra $on;\nbar.sync 0; bra $end;\n$on: bar.sync 0; $end:"),
            3,
            0,
            "wait for each other",
        ),
        // Predicated off in some lanes.
        (format!("{lane}\n@%p1 bar.sync 0;"), 2, 16, "lanes 16-31 skip it"),
        // In a loop that lanes leave at different times.
        (
            format!(
                "{lane} mov.u32 %r2, 0;\n$loop: bar.sync 0; add.s32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, %r1; @%p2 bra $loop; mov.u32 %r3, 1;"
            ),
            2,
            2,
            "lanes 0-1 went round it",
        ),
        // A shuffle whose lanes never come.
        (
            format!(
                "{lane} @%p1 bra $on;\nshfl.sync.bfly.b32 %r2, %r1, 1, 0x1f, -1;\n$on: bar.warp.sync -1;"
            ),
            3,
            0,
            "wait for each other",
        ),
    ];
    for (body, line, thread, text) in cases {
        let found = fault(&body, 32);
        assert!(found.3.contains(text), "{body}: {}", found.3);
        assert_eq!(
            (found.0, found.1, found.2[0]),
            (FaultKind::NotConverged, line, thread),
            "{body}: {}",
            found.3
        );
    }
    let product =
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r5, %r6, %r7, %r8}, {%r1, %r1}, {%r1},
        {%r1, %r1, %r1, %r1};";
    let (kind, ..) = fault(&format!("mov.b32 %r1, 0; {product}"), 31);
    assert_eq!(kind, FaultKind::NotConverged);
}

#[test]
fn endless_loops_end() {
    let (kind, line, ..) = fault("mov.u32 %r1, 0;\n$loop: add.s32 %r1, %r1, 1;\nbra $loop;", 1);
    assert_eq!(kind, FaultKind::Budget);
    assert!((2..=3).contains(&line));
}

#[test]
fn coverage_counts_what_warps_execute() {
    let body = format!(
        "mov.u32 %r1, %tid.x; mov.u32 %r9, 0; setp.eq.u32 %p1, %r1, 99; @%p1 bra $never;
        // begin inline asm
        add.u32 %r9, %r1, 1; // end inline asm
        bra $end; $never:
        // begin inline asm
        {{ .reg .b32 x; sub.u32 x, %r1, 1; }} // end inline asm
        $end: {STORE}"
    );
    let (_, coverage) = run_words(&body, 2, 64, &[]).unwrap();
    assert_eq!(
        coverage.asm().into_iter().collect::<Vec<_>>(),
        [("add.u32 %, %, 1", 4), ("sub.u32 x, %, 1", 0)]
    );
    assert_eq!(coverage.missing_asm(), ["sub.u32 x, %, 1"]);
    assert_eq!(coverage.opcodes()["add.u32"], 4);
    assert!(!coverage.opcodes().contains_key("sub.u32"));
    let mut both = coverage.clone();
    both.merge(coverage.clone());
    assert_eq!(both.executed(), 2 * coverage.executed());
    assert_eq!(both.instructions().count(), coverage.instructions().count());
}
