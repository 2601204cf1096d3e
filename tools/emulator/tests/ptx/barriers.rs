//! Barriers of the block.

use setrank_emulator::ptx::FaultKind;

use crate::harness::{STORE, fault, outputs};

#[test]
fn a_barrier_separates_writes_from_reads() {
    let body = format!(
        ".shared .align 4 .b8 cells[512]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.b32 %r3, cells;
        add.s32 %r4, %r3, %r2; st.shared.u32 [%r4], %r1; bar.sync 0; sub.s32 %r5, %r3, %r2;
        ld.shared.u32 %r9, [%r5+508]; {STORE}"
    );
    assert_eq!(outputs(&body, 128), (0..128).rev().collect::<Vec<_>>());
    // The same barrier under its other name.
    let other = body.replace("bar.sync 0", "barrier.cta.sync.aligned 0");
    assert_eq!(outputs(&other, 128), (0..128).rev().collect::<Vec<_>>());
}

#[test]
fn producers_arrive_and_consumers_wait() {
    // Warp 1 writes and arrives; warp 0 waits; warp 2 goes its own way.
    let body = format!(
        ".shared .align 4 .u32 cell; mov.u32 %r1, %warpid; mov.u32 %r9, 0; mov.u32 %r8, 64; mov.u32 %r7, 3;
        setp.eq.u32 %p1, %r1, 0; @%p1 bra $wait; setp.eq.u32 %p1, %r1, 2; @%p1 bra $end;
        mov.u32 %r2, 77; st.shared.u32 [cell], %r2; bar.arrive %r7, %r8; bra $end;
        $wait: bar.sync 3, 64; ld.shared.u32 %r9, [cell]; $end: {STORE}"
    );
    let found = outputs(&body, 96);
    assert_eq!((found[0], found[31], found[32], found[64]), (77, 77, 0, 0));
}

#[test]
fn barriers_go_on_without_warps_that_have_ended() {
    let body = format!(
        ".shared .align 4 .b8 cells[16]; mov.u32 %r1, %tid.x; mov.u32 %r2, %warpid; setp.eq.u32 %p1, %r2, 1;
        @%p1 ret; setp.eq.u32 %p2, %r1, 64; @%p2 st.shared.u32 [cells], %r1; bar.sync 0;
        ld.shared.u32 %r9, [cells]; {STORE}"
    );
    let found = outputs(&body, 96);
    assert_eq!((found[0], found[64]), (64, 64));
    // Also if they end while the others wait, and if only some lanes of a warp end.
    let late = body.replace("@%p1 ret;", "setp.lt.u32 %p3, %r1, 3; @%p3 ret;");
    let found = outputs(&late, 96);
    assert_eq!((found[3], found[95]), (64, 64));
}

#[test]
fn reductions() {
    for (reduction, finish, expected) in [
        ("bar.red.popc.u32 %r9, 0, %p1", "", 40),
        ("bar.red.popc.u32 %r9, 0, 96, !%p1", "", 56),
        ("bar.red.and.pred %p2, 0, %p1", "selp.u32 %r9, 1, 0, %p2;", 0),
        ("bar.red.or.pred %p2, 0, %p1", "selp.u32 %r9, 1, 0, %p2;", 1),
        ("barrier.cta.red.and.aligned.pred %p2, 0, %p3", "selp.u32 %r9, 1, 0, %p2;", 1),
    ] {
        let body = format!(
            "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40; setp.lt.u32 %p3, %r1, 96; {reduction}; {finish} {STORE}"
        );
        assert_eq!(outputs(&body, 96), [expected; 96], "{reduction}");
    }
}

#[test]
fn misuse_is_reported() {
    // What, where in the body (line), which thread, and a part of the text.
    let cases = [
        (
            "mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bra $a;\nbar.sync 1; bra $b;\n$a: bar.sync 2; $b:",
            FaultKind::Barrier, 3, [0, 0, 0], "warp 1 at barrier 1",
        ),
        ("bar.sync 1, 96;", FaultKind::Barrier, 1, [0, 0, 0], "64 of 96"),
        ("bar.sync 1, 32;\nbar.sync 1, 48;", FaultKind::Barrier, 2, [0, 0, 0], "48 threads"),
        ("bar.sync 16;", FaultKind::Barrier, 1, [0, 0, 0], "barrier 16"),
        ("bar.arrive 1, 32; bar.arrive 1, 64;\nbar.sync 1, 32;", FaultKind::Barrier, 2, [0, 0, 0], "others for 64 threads"),
        (
            "mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bra $a;\nbar.sync 1; bra $b;\n$a: bar.sync 1, 64; $b:",
            FaultKind::Barrier, 2, [32, 0, 0], "others for 64 threads",
        ),
        (
            "setp.eq.u32 %p2, 0, 0; mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bra $a;\nbar.sync 0; bra $b;
            $a: bar.red.or.pred %p3, 0, %p2; $b:",
            FaultKind::Barrier, 2, [32, 0, 0], "reduction",
        ),
        ("mov.u32 %r1, %laneid; and.b32 %r1, %r1, 1;\nbar.sync %r1;", FaultKind::Barrier, 2, [1, 0, 0], "name 0 and 1"),
        (
            "bar.arrive 1, 64; mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bra $a;\nbar.arrive 1, 64;
            $a: bar.sync 1, 32;",
            FaultKind::Barrier, 3, [0, 0, 0], "others for 64",
        ),
    ];
    for (body, kind, line, thread, text) in cases {
        let found = fault(body, 64);
        assert!(found.3.contains(text), "{body}: {}", found.3);
        assert_eq!((found.0, found.1, found.2), (kind, line, thread), "{body}: {}", found.3);
    }
}
