//! What the lanes of a warp do together: shuffles, votes, matches, reductions, products of matrices.

use crate::harness::{STORE, as_words, kernel, launch, outputs, words};
use setrank_emulator::ptx::{Module, Options};

/// Each lane's `%r1` is 100 + its number; `%r2` is its number.
fn lanes(snippet: &str) -> Vec<u32> {
    outputs(&format!("mov.u32 %r2, %laneid; add.s32 %r1, %r2, 100; {snippet} {STORE}"), 32)
}

#[test]
fn shuffles_by_their_definition() {
    type Source = fn(u32) -> Option<u32>;
    let cases: [(&str, Source); 12] = [
        ("bfly.b32 %r9|%p1, %r1, 5, 0x1f", |lane| Some(lane ^ 5)),
        ("bfly.b32 %r9|%p1, %r1, 4, 0x1c03", |lane| Some(lane ^ 4).filter(|&other| other / 4 <= lane / 4)),
        ("idx.b32 %r9|%p1, %r1, 7, 0x1f", |_| Some(7)),
        ("idx.b32 %r9|%p1, %r1, %r2, 0x1f", Some),
        ("idx.b32 %r9|%p1, %r1, 35, 0x1f", |_| Some(3)),
        ("idx.b32 %r9|%p1, %r1, 1, 0x181f", |lane| Some(lane / 8 * 8 + 1)),
        ("idx.b32 %r9|%p1, %r1, 5, 0x1803", |lane| Some(lane / 8 * 8 + 5).filter(|_| false)),
        ("up.b32 %r9|%p1, %r1, 3, 0x0", |lane| lane.checked_sub(3)),
        ("up.b32 %r9|%p1, %r1, 1, 0x1800", |lane| Some(lane.wrapping_sub(1)).filter(|_| lane % 8 != 0)),
        ("down.b32 %r9|%p1, %r1, 2, 0x1f", |lane| Some(lane + 2).filter(|&other| other < 32)),
        ("down.b32 %r9|%p1, %r1, 1, 0x181f", |lane| Some(lane + 1).filter(|_| lane % 8 != 7)),
        ("down.b32 %r9|%p1, %r1, 0, 0x1f", Some),
    ];
    for (shuffle, source) in cases {
        let found =
            lanes(&format!("shfl.sync.{shuffle}, -1; selp.u32 %r3, 1000, 0, %p1; add.s32 %r9, %r9, %r3;"));
        for (lane, found) in (0..32).zip(found) {
            let expected = source(lane).map_or(100 + lane, |other| 1100 + other);
            assert_eq!(found, expected, "{shuffle}, lane {lane}");
        }
    }
}

#[test]
fn shuffles_of_some_lanes() {
    // Halves of a warp shuffle by themselves, at two places of the code and at one.
    let apart = lanes(
        "setp.lt.u32 %p1, %r2, 16; @%p1 bra $low; shfl.sync.bfly.b32 %r9, %r1, 1, 0x1f, 0xffff0000; bra $end;
        $low: shfl.sync.bfly.b32 %r9, %r1, 2, 0x1f, 0xffff; $end:",
    );
    let together = lanes(
        "setp.lt.u32 %p1, %r2, 16; selp.b32 %r3, 0xffff, 0xffff0000, %p1; selp.b32 %r4, 2, 1, %p1;
        shfl.sync.bfly.b32 %r9, %r1, %r4, 0x1f, %r3;",
    );
    let expected: Vec<u32> = (0..32).map(|lane| 100 + (lane ^ if lane < 16 { 2 } else { 1 })).collect();
    assert_eq!(apart, expected);
    assert_eq!(together, expected);
}

#[test]
fn votes() {
    let bits =
        |snippet: &str| lanes(&format!("setp.lt.u32 %p1, %r2, 5; setp.lt.u32 %p2, %r2, 99; {snippet}"));
    assert_eq!(bits("vote.sync.ballot.b32 %r9, %p1, -1;"), [31; 32]);
    assert_eq!(bits("vote.sync.ballot.b32 %r9, !%p1, -1;"), [!31; 32]);
    for (vote, holds) in [
        ("all.pred %p3, %p1", 0),
        ("all.pred %p3, %p2", 1),
        ("any.pred %p3, %p1", 1),
        ("any.pred %p3, !%p2", 0),
        ("uni.pred %p3, %p1", 0),
        ("uni.pred %p3, !%p2", 1),
    ] {
        assert_eq!(bits(&format!("vote.sync.{vote}, -1; selp.u32 %r9, 1, 0, %p3;")), [holds; 32], "{vote}");
    }
    let some = bits("mov.u32 %r9, 0; @%p1 vote.sync.ballot.b32 %r9, %p2, 0x1f;");
    assert_eq!((some[4], some[5]), (31, 0));
    let scoped = "{ .reg .pred p; setp.ne.u32 p, %r3, 0; vote.sync.ballot.b32 %r9, p, 0xffffffff; }";
    assert_eq!(bits(&format!("and.b32 %r3, %r2, 1; {scoped}")), [0xaaaa_aaaa; 32]);
}

#[test]
fn matches_and_reductions() {
    let found = lanes("and.b32 %r3, %r2, 3; match.any.sync.b32 %r9, %r3, -1;");
    assert_eq!(found[..5], [0x1111_1111, 0x2222_2222, 0x4444_4444, 0x8888_8888, 0x1111_1111]);
    assert_eq!(
        lanes("match.all.sync.b32 %r9|%p1, %r2, -1; selp.u32 %r3, 1, 0, %p1; add.s32 %r9, %r9, %r3;"),
        [0; 32]
    );
    assert_eq!(
        lanes("mov.u64 %rd1, 7; match.all.sync.b64 %r9|%p1, %rd1, -1; @!%p1 mov.u32 %r9, 0;"),
        [u32::MAX; 32]
    );
    for (reduction, expected) in [
        ("add.u32", (100..132).sum()),
        ("min.u32", 100),
        ("max.s32", 131),
        ("and.b32", 0),
        ("or.b32", 255),
        ("xor.b32", 0),
    ] {
        assert_eq!(lanes(&format!("redux.sync.{reduction} %r9, %r1, -1;")), [expected; 32], "{reduction}");
    }
    assert_eq!(lanes("neg.s32 %r3, %r2; redux.sync.min.s32 %r9, %r3, -1;"), [-31i32 as u32; 32]);
}

#[test]
fn lanes_know_themselves() {
    let found = lanes("mov.u32 %r9, %lanemask_lt;");
    assert_eq!((found[0], found[3], found[31]), (0, 7, 0x7fff_ffff));
    assert_eq!(lanes("mov.u32 %r9, %lanemask_ge;")[4], 0xffff_fff0);
    assert_eq!(lanes("mov.u32 %r9, %lanemask_eq;")[4], 16);
    let found = lanes("mov.u32 %r9, 0; setp.gt.u32 %p1, %r2, 28; @%p1 activemask.b32 %r9;");
    assert_eq!((found[28], found[29]), (0, 0xe000_0000));
    let body = format!("mov.u32 %r1, %warpid; mov.u32 %r2, %nwarpid; mad.lo.u32 %r9, %r1, 10, %r2; {STORE}");
    assert_eq!(outputs(&body, 70)[69], 23);
}

/// d = a·b + c on fragments that are laid out by the PTX manual's tables, against sums of products.
fn product(kind: &str, deep: bool, of: fn(f32) -> u16) {
    let depth = if deep { 16 } else { 8 };
    let a = |row: usize, k: usize| (row as f32 - 7.0) * 0.5 + k as f32;
    let b = |k: usize, column: usize| k as f32 * 0.25 - column as f32;
    let c = |row: usize, column: usize| (row * 8 + column) as f32;
    let pair = |low: f32, high: f32| u32::from(of(low)) | u32::from(of(high)) << 16;
    let mut input = Vec::new();
    for lane in 0..32 {
        let (group, thread) = (lane / 4, lane % 4);
        for register in 0..if deep { 4 } else { 2 } {
            // a0: upper left, a1: lower left, a2: upper right, a3: lower right.
            let (row, k) = (
                group + if register % 2 == 1 { 8 } else { 0 },
                2 * thread + if register > 1 { 8 } else { 0 },
            );
            input.push(pair(a(row, k), a(row, k + 1)));
        }
        for register in 0..depth / 8 {
            let k = 2 * thread + 8 * register;
            input.push(pair(b(k, group), b(k + 1, group)));
        }
        for register in 0..4 {
            let row = group + if register > 1 { 8 } else { 0 };
            input.push(c(row, 2 * thread + register % 2).to_bits());
        }
    }
    let count = input.len() / 32;
    let loads: String = (0..count).map(|n| format!("ld.global.b32 %r{n}, [%rd2+{}];\n", 4 * n)).collect();
    let (shape, operands) = if deep {
        ("m16n8k16", "{%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8, %r9}")
    } else {
        ("m16n8k8", "{%r0, %r1}, {%r2}, {%r3, %r4, %r5, %r6}")
    };
    let text = kernel(&format!(
        "mov.u32 %r18, %tid.x; mul.wide.u32 %rd1, %r18, {}; add.s64 %rd2, %rd14, %rd1; {loads}
        mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {{%r10, %r11, %r12, %r13}}, {operands};
        mul.wide.u32 %rd3, %r18, 16; add.s64 %rd4, %rd15, %rd3;
        st.global.v4.b32 [%rd4], {{%r10, %r11, %r12, %r13}};",
        4 * count
    ));
    let mut launch = launch(1, 32, words(input), 512);
    Module::parse(&text).unwrap().run(&mut launch, &Options::default()).unwrap();
    for (at, found) in as_words(&launch.buffers[1].bytes).into_iter().enumerate() {
        let (lane, register) = (at / 4, at % 4);
        let (row, column) = (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2);
        let expected: f32 = c(row, column) + (0..depth).map(|k| a(row, k) * b(k, column)).sum::<f32>();
        assert_eq!(f32::from_bits(found), expected, "{kind}, row {row}, column {column}");
    }
}

#[test]
fn products_of_matrices() {
    let bf16 = |value: f32| (value.to_bits() >> 16) as u16;
    // These numbers are normal and exact in f16.
    let f16 = |value: f32| match value.to_bits() {
        0 | 0x8000_0000 => (value.to_bits() >> 16) as u16,
        bits => ((bits >> 16 & 0x8000) | ((bits >> 13) - (112 << 10)) & 0x7fff) as u16,
    };
    product("bf16", true, bf16);
    product("bf16", false, bf16);
    product("f16", true, f16);
    product("f16", false, f16);
}

#[test]
fn products_that_overflow() {
    let body = format!(
        "mov.b32 %r1, 0x7f7f7f7f; mov.b32 %r2, 0x7f80ff80; mov.b32 %r3, 0; mov.b32 %r4, 0f3F800000;
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{%r5, %r6, %r7, %r8}}, {{%r1, %r3}}, {{%r1}},
        {{%r4, %r4, %r4, %r4}};
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{%r10, %r11, %r12, %r13}}, {{%r1, %r3}}, {{%r2}},
        {{%r4, %r4, %r4, %r4}};
        setp.eq.u32 %p1, %r5, 0x7f800000; setp.eq.and.u32 %p1, %r10, 0x7fffffff, %p1;
        setp.eq.and.u32 %p1, %r7, 0x3f800000, %p1; selp.u32 %r9, 1, 0, %p1; {STORE}"
    );
    assert_eq!(outputs(&body, 32), [1; 32]);
}
