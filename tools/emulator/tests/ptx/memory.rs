//! Loads, stores, atomic operations, asynchronous copies, local, shared and constant memory.

use setrank_emulator::ptx::{Module, Options};

use crate::harness::{HEAD, STORE, as_words, evaluate, kernel, launch, outputs, run_shared, run_words};

/// A thread's own 16 bytes of local memory at `%rd8`, generic address in `%rd7`.
const LOCAL: &str = ".local .align 16 .b8 depot[32]; mov.b64 %rd8, depot; cvta.local.u64 %rd7, %rd8;";

#[test]
fn widths_of_loads_and_stores() {
    let cases: [(&str, u64); 10] = [
        ("st.local.b64 [%rd8], %rd1; ld.local.u8 %r9, [%rd8+7];", 0xf1),
        ("st.local.b64 [%rd8], %rd1; ld.local.s8 %r9, [%rd8+7];", 0xffff_fff1),
        ("st.local.b64 [%rd8], %rd1; ld.local.s8 %rs9, [%rd8+7];", 0xfff1),
        ("st.local.b64 [%rd8], %rd1; ld.local.b16 %rs9, [%rd8+2];", 0x9bad),
        ("st.local.b64 [%rd8], %rd1; ld.local.s16 %r9, [%rd8+2];", 0xffff_9bad),
        ("st.local.b64 [%rd8], %rd1; ld.local.s32 %rd9, [%rd8+4];", 0xffff_ffff_f123_4567),
        ("st.local.b64 [%rd8], %rd1; ld.local.b64 %rd9, [%rd8];", 0xf123_4567_9bad_cdef),
        ("st.local.b32 [%rd8], 0; st.local.u8 [%rd8+1], %rs1; ld.local.u32 %r9, [%rd8];", 0xef00),
        ("st.local.v2.b32 [%rd8], {%r2, %r1}; ld.b32 %r9, [%rd7+4];", 0x9bad_cdef),
        ("st.v4.b32 [%rd7], {%r1, %r2, %r1, 7}; ld.local.v4.b32 {_, _, _, %r9}, [%rd8];", 7),
    ];
    for (snippet, expected) in cases {
        let found = evaluate(&format!("{LOCAL}{snippet}"), &[[0xf123_4567_9bad_cdef, 2, 3, 4]]);
        assert_eq!(found, [expected], "{snippet}");
    }
}

#[test]
fn local_memory_is_each_threads_own() {
    let body = format!(
        "{LOCAL} mov.u32 %r1, %tid.x; st.local.u32 [%rd8+4], %r1; bar.sync 0; ld.local.u32 %r9, [depot+4]; {STORE}"
    );
    assert_eq!(outputs(&body, 96), (0..96).collect::<Vec<_>>());
}

#[test]
fn shared_memory_passes_values_between_threads() {
    // Static and dynamic; the static one first, the dynamic one aligned.
    let text = kernel(&format!(
        ".shared .align 4 .b8 fixed[20]; mov.u32 %r1, %tid.x; mov.b32 %r2, dynamic; and.b32 %r3, %r2, 127;
        setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [fixed+16], %r3;
        shl.b32 %r4, %r1, 2; add.s32 %r5, %r2, %r4; st.shared.u32 [%r5], %r1; bar.sync 0;
        sub.s32 %r6, %r2, %r4; mov.b64 %rd1, dynamic; cvta.shared.u64 %rd2, %rd1; mul.wide.u32 %rd3, %r1, 4;
        sub.s64 %rd4, %rd2, %rd3; ld.u32 %r9, [%rd4+252];
        ld.shared.u32 %r7, [fixed+16]; shl.b32 %r7, %r7, 16; add.s32 %r9, %r9, %r7; {STORE}"
    ))
    .replace(HEAD, &format!("{HEAD}.extern .shared .align 128 .b8 dynamic[];\n"));
    let mut launch = launch(1, 64, vec![], 256);
    launch.shared_bytes = 256;
    Module::parse(&text).unwrap().run(&mut launch, &Options::default()).unwrap();
    assert_eq!(as_words(&launch.buffers[1].bytes), (0..64).rev().collect::<Vec<_>>());
}

#[test]
fn constants_and_global_variables() {
    let text = kernel(&format!(
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; mov.b64 %rd2, table; cvta.const.u64 %rd3, %rd2;
        add.s64 %rd4, %rd3, %rd1; ld.u32 %r2, [%rd4]; ld.const.u32 %r3, [table+4]; atom.global.add.u32 %r4, [count], 1;
        add.s32 %r9, %r2, %r3; shl.b32 %r4, %r4, 16; add.s32 %r9, %r9, %r4; {STORE}"
    ))
    .replace(HEAD, &format!("{HEAD}.const .align 4 .u32 table[4] = {{1, 20, 300}};\n.global .align 4 .u32 count = 5;\n"));
    let module = Module::parse(&text).unwrap();
    // A second launch begins with the initial values again.
    for _ in 0..2 {
        let mut launch = launch(1, 4, vec![], 16);
        module.run(&mut launch, &Options::default()).unwrap();
        let expected = [21, 40, 320, 20].iter().zip(5..).map(|(sum, count)| sum + (count << 16));
        assert_eq!(as_words(&launch.buffers[1].bytes), expected.collect::<Vec<u32>>());
    }
}

#[test]
fn cache_hints_make_no_difference() {
    for load in [
        "ld.global.nc.u32 %r9, [%rd19];",
        "ld.global.ca.u32 %r9, [%rd19];",
        "ld.volatile.global.u32 %r9, [%rd19];",
        "ld.relaxed.gpu.global.u32 %r9, [%rd19];",
        "ld.global.nc.L1::no_allocate.L2::128B.u32 %r9, [%rd19];",
        "ld.global.L2::cache_hint.u32 %r9, [%rd19], %rd14;",
    ] {
        let body = format!(
            "mov.u32 %r18, %tid.x; mul.wide.u32 %rd18, %r18, 4; add.s64 %rd19, %rd14, %rd18; {load} {STORE}"
        );
        assert_eq!(run_words(&body, 1, 2, &[7, 9]).unwrap().0, [7, 9], "{load}");
    }
}

#[test]
fn atomic_operations_are_done_lane_by_lane() {
    // Operation, operand of lane n, what memory begins with; what it ends with, and what the last of 4 lanes got.
    let cases: [(&str, u32, u32, u32); 14] = [
        ("atom.shared.add.u32 %r9, [cell], %r1;", 10, 16, 13),
        ("atom.shared.min.s32 %r9, [cell], %r1;", 0xffff_fff0, 0xffff_fff0, 0xffff_fff0),
        ("atom.shared.min.u32 %r9, [cell], %r1;", 0xffff_fff0, 0, 0),
        ("atom.shared.max.u32 %r9, [cell], %r1;", 2, 3, 2),
        ("atom.shared.max.s32 %r9, [cell], %r1;", 0xffff_fff0, 3, 2),
        ("atom.shared.and.b32 %r9, [cell], %r1;", 7, 0, 0),
        ("atom.shared.or.b32 %r9, [cell], %r1;", 8, 11, 11),
        ("atom.shared.xor.b32 %r9, [cell], %r1;", 8, 8, 11),
        ("atom.shared.exch.b32 %r9, [cell], %r1;", 9, 3, 2),
        ("atom.shared.inc.u32 %r9, [cell], 2;", 1, 2, 1),
        ("atom.shared.dec.u32 %r9, [cell], 5;", 1, 3, 4),
        ("atom.shared.cas.b32 %r9, [cell], 2, %r1;", 2, 0, 0),
        ("atom.relaxed.cta.shared::cta.add.u32 %r9, [cell], %r1;", 0, 6, 3),
        ("red.shared.add.u32 [cell], %r1; mov.u32 %r9, 0;", 0, 6, 0),
    ];
    for (operation, first, last, got) in cases {
        let body = format!(
            ".shared .align 4 .u32 cell; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;
            @%p1 st.shared.u32 [cell], {first}; bar.warp.sync -1; {operation} ld.shared.u32 %r8, [cell];
            setp.eq.u32 %p2, %r1, 2; selp.b32 %r9, %r8, %r9, %p2; {STORE}"
        );
        let found = outputs(&body, 4);
        assert_eq!((found[2], found[3]), (last, got), "{operation}");
    }
}

#[test]
fn atomic_sums_of_floats() {
    let body = format!(
        "mov.u32 %r1, %tid.x; add.s32 %r2, %r1, 1; cvt.rn.f32.u32 %r3, %r2; atom.global.add.f32 %r9, [%rd14], %r3;
        red.add.f32 [%rd14], 0f3F000000; {STORE}"
    );
    let (found, _) = run_words(&body, 1, 4, &[0.25f32.to_bits()]).unwrap();
    assert_eq!(found.map_bits(), [0.25, 1.25, 3.25, 6.25]);
}

trait MapBits {
    fn map_bits(&self) -> Vec<f32>;
}

impl MapBits for Vec<u32> {
    fn map_bits(&self) -> Vec<f32> {
        self.iter().copied().map(f32::from_bits).collect()
    }
}

/// Copies of `bytes` bytes from `input` to shared memory, lane by lane, and the word at `%r6` of each lane's.
fn copies(copy: &str) -> String {
    format!(
        ".shared .align 16 .b8 tile[512]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.b32 %r3, tile;
        add.s32 %r4, %r3, %r2; mul.wide.u32 %rd1, %r1, 16; add.s64 %rd2, %rd14, %rd1; and.b32 %r5, %r1, 1;
        shl.b32 %r6, %r5, 4; setp.eq.u32 %p1, %r5, 0;
        {copy} ld.shared.u32 %r9, [%r4]; {STORE}"
    )
}

#[test]
fn asynchronous_copies_and_zeros() {
    let input: Vec<u32> = (100..132).collect();
    let cases = [
        (
            "cp.async.cg.shared.global [%r4], [%rd2], 16; cp.async.commit_group; cp.async.wait_group 0;",
            [100, 104, 108],
        ),
        (
            "cp.async.cg.shared.global [%r4], [%rd2], 16, %r6; cp.async.commit_group; cp.async.wait_group 0;",
            [0, 104, 0],
        ),
        ("cp.async.ca.shared.global [%r4], [%rd2], 4; cp.async.wait_all;", [100, 104, 108]),
        ("cp.async.ca.shared::cta.global.L2::128B [%r4], [%rd2], 8, 0; cp.async.wait_all;", [0, 0, 0]),
        ("cp.async.cg.shared.global [%r4], [%rd2], 16, %p1; cp.async.wait_all;", [0, 104, 0]),
    ];
    for (copy, expected) in cases {
        let (found, _) = run_words(&copies(copy), 1, 4, &input).unwrap();
        assert_eq!(found[..3], expected, "{copy}");
    }
}

#[test]
fn groups_land_in_order() {
    // Two groups; waiting for all but one lands the first, whose word can be read while the second is under way.
    let body = copies(
        "add.s32 %r7, %r4, 256; cp.async.ca.shared.global [%r4], [%rd2], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r7], [%rd2+4], 4; cp.async.commit_group; cp.async.wait_group 1;
        ld.shared.u32 %r8, [%r4]; cp.async.wait_group 0; ld.shared.u32 %r10, [%r7]; add.s32 %r8, %r8, %r10;
        st.shared.u32 [%r4], %r8;",
    );
    let input: Vec<u32> = (0..16).collect();
    assert_eq!(run_words(&body, 1, 4, &input).unwrap().0, [1, 9, 17, 25]);
}

#[test]
fn matrices_from_shared_memory() {
    // Element (row, column) of matrix m is 64·m + 8·row + column; lane l gets two of row l / 4, or of that column.
    for (shape, matrices, transposed) in
        [("x1", 1, false), ("x2", 2, false), ("x4", 4, false), ("x1.trans", 1, true), ("x4.trans", 4, true)]
    {
        let registers = ["{%r10}", "", "{%r10, %r11}", "", "{%r10, %r11, %r12, %r13}"];
        let registers = if matrices == 1 { registers[0] } else { registers[matrices] };
        for matrix in 0..matrices {
            let body = format!(
                ".shared .align 16 .b8 tile[512]; mov.u32 %r1, %tid.x; mov.b32 %r2, tile; shl.b32 %r3, %r1, 4;
                add.s32 %r4, %r2, %r3; shl.b32 %r5, %r1, 3; mov.u32 %r6, 0;
                $fill: add.s32 %r7, %r5, %r6; cvt.u16.u32 %rs1, %r7; shl.b32 %r8, %r6, 1; add.s32 %r8, %r8, %r4;
                st.shared.u16 [%r8], %rs1; add.s32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 8; @%p1 bra $fill;
                bar.sync 0;
                ldmatrix.sync.aligned.m8n8.{shape}.shared.b16 {registers}, [%r4];
                mov.u32 %r9, %r1{matrix}; {STORE}"
            );
            let found = outputs(&body, 32);
            for (lane, pair) in found.into_iter().enumerate() {
                let (at, of) = (lane as u32 / 4, 2 * (lane as u32 % 4));
                let element = |n: u32| {
                    64 * matrix as u32 + if transposed { 8 * (of + n) + at } else { 8 * at + of + n }
                };
                assert_eq!(pair, element(1) << 16 | element(0), "{shape}, matrix {matrix}, lane {lane}");
            }
        }
    }
}

#[test]
fn the_parameter_is_memory() {
    let body = format!(
        "mov.b64 %rd1, p; cvta.param.u64 %rd2, %rd1; ld.u64 %rd3, [%rd2+8]; setp.eq.u64 %p1, %rd3, %rd15;
        selp.u32 %r9, 1, 0, %p1; ld.param.v2.b32 {{%r1, %r2}}, [p]; mov.b64 %rd4, {{%r1, %r2}};
        setp.eq.u64 %p2, %rd4, %rd14; selp.u32 %r3, 2, 0, %p2; add.s32 %r9, %r9, %r3; {STORE}"
    );
    assert_eq!(outputs(&body, 1), [3]);
}

#[test]
fn blocks_find_shared_memory_unwritten_and_share_global_memory() {
    let body = ".shared .align 4 .u32 cell; mov.u32 %r1, %ctaid.x; st.shared.u32 [cell], %r1; ld.shared.u32 %r2, [cell];
        atom.global.add.u32 %r3, [%rd14], %r2; mov.u32 %r4, %ctaid.x; mul.wide.u32 %rd1, %r4, 4;
        add.s64 %rd2, %rd15, %rd1; st.global.u32 [%rd2], %r3;";
    assert_eq!(run_words(body, 4, 1, &[10]).unwrap().0, [10, 10, 11, 13]);
    let body = "mov.b32 %r1, %dynamic_smem_size; st.global.u32 [%rd15], %r1;";
    assert_eq!(run_shared(body, 1, 1, 48, &[]).unwrap().0, [48]);
}
