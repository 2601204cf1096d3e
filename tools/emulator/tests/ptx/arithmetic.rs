//! Integer arithmetic, logic, comparisons, conversions between integers, moves.

use proptest::prelude::*;

use crate::harness::{Definition, Inputs, check, check_functions};

/// Numbers that are often at an edge of some width.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u32..64, -2i64..3).prop_map(|(bit, near)| (1u64 << bit).wrapping_add_signed(near)),
        (0u32..64, -2i64..3).prop_map(|(bit, near)| (1u64 << bit).wrapping_neg().wrapping_add_signed(near)),
        0u64..70,
    ]
}

fn inputs() -> impl Strategy<Value = Vec<Inputs>> {
    prop::collection::vec([number(), number(), number(), number()], 64)
}

macro_rules! integers {
    ($($name:literal, $int:ty, $wide:ty, $register:literal;)*) => {
        &[$(
            (concat!("add.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| bits((a as $int).wrapping_add(b as $int) as i128, <$int>::BITS)),
            (concat!("sub.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| bits((a as $int).wrapping_sub(b as $int) as i128, <$int>::BITS)),
            (concat!("mul.lo.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| bits((a as $int).wrapping_mul(b as $int) as i128, <$int>::BITS)),
            (concat!("mul.hi.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| bits(((a as $int as $wide * b as $int as $wide) >> <$int>::BITS) as i128, <$int>::BITS)),
            (concat!("mad.lo.", $name, " %", $register, "9, %", $register, "1, %", $register, "2, %", $register, "3;"),
                |a, b, c, _| bits((a as $int).wrapping_mul(b as $int).wrapping_add(c as $int) as i128, <$int>::BITS)),
            (concat!("mad.hi.", $name, " %", $register, "9, %", $register, "1, %", $register, "2, %", $register, "3;"),
                |a, b, c, _| {
                    let high = (a as $int as $wide * b as $int as $wide) >> <$int>::BITS;
                    bits((high as $int).wrapping_add(c as $int) as i128, <$int>::BITS)
                }),
            (concat!("min.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| bits((a as $int).min(b as $int) as i128, <$int>::BITS)),
            (concat!("max.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| bits((a as $int).max(b as $int) as i128, <$int>::BITS)),
            (concat!("div.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| match b as $int {
                    0 => bits(-1, <$int>::BITS),
                    b => bits((a as $int).wrapping_div(b) as i128, <$int>::BITS),
                }),
            (concat!("rem.", $name, " %", $register, "9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| match b as $int {
                    0 => bits(a as $int as i128, <$int>::BITS),
                    b => bits((a as $int).wrapping_rem(b) as i128, <$int>::BITS),
                }),
            (concat!("sad.", $name, " %", $register, "9, %", $register, "1, %", $register, "2, %", $register, "3;"),
                |a, b, c, _| {
                    let apart = (a as $int as i128 - b as $int as i128).abs();
                    bits(apart + c as $int as i128, <$int>::BITS)
                }),
            (concat!("shr.", $name, " %", $register, "9, %", $register, "1, %r2;"),
                |a, b, _, _| bits((a as $int as i128) >> (b as u32).min(127), <$int>::BITS)),
            (concat!("setp.lt.", $name, " %p9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| ((a as $int) < (b as $int)).into()),
            (concat!("setp.le.", $name, " %p9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| ((a as $int) <= (b as $int)).into()),
            (concat!("setp.gt.", $name, " %p9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| ((a as $int) > (b as $int)).into()),
            (concat!("setp.ge.", $name, " %p9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| ((a as $int) >= (b as $int)).into()),
            (concat!("setp.eq.", $name, " %p9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| ((a as $int) == (b as $int)).into()),
            (concat!("setp.ne.", $name, " %p9, %", $register, "1, %", $register, "2;"),
                |a, b, _, _| ((a as $int) != (b as $int)).into()),
        )*]
    };
}

fn bits(value: i128, bits: u32) -> u64 {
    value as u64 & (u64::MAX >> (64 - bits))
}

const INTEGERS: &[Definition] = integers!(
    "u16", u16, i128, "rs";
    "s16", i16, i128, "rs";
    "u32", u32, i128, "r";
    "s32", i32, i128, "r";
    "u64", u64, u128, "rd";
    "s64", i64, i128, "rd";
);

const OTHERS: &[Definition] = &[
    ("mul.wide.u16 %r9, %rs1, %rs2;", |a, b, _, _| u64::from(u32::from(a as u16) * u32::from(b as u16))),
    ("mul.wide.s16 %r9, %rs1, %rs2;", |a, b, _, _| bits(i128::from(a as i16) * i128::from(b as i16), 32)),
    ("mul.wide.u32 %rd9, %r1, %r2;", |a, b, _, _| u64::from(a as u32) * u64::from(b as u32)),
    ("mul.wide.s32 %rd9, %r1, %r2;", |a, b, _, _| (i64::from(a as i32) * i64::from(b as i32)) as u64),
    ("mad.wide.u32 %rd9, %r1, %r2, %rd3;", |a, b, c, _| {
        (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
    }),
    ("mad.wide.s32 %rd9, %r1, %r2, %rd3;", |a, b, c, _| {
        (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
    }),
    ("mad.wide.u16 %r9, %rs1, %rs2, %r3;", |a, b, c, _| {
        u64::from((u32::from(a as u16) * u32::from(b as u16)).wrapping_add(c as u32))
    }),
    ("mul24.lo.s32 %r9, %r1, %r2;", |a, b, _, _| {
        bits(i128::from((a as i32) << 8 >> 8) * i128::from((b as i32) << 8 >> 8), 32)
    }),
    ("mad24.hi.u32 %r9, %r1, %r2, %r3;", |a, b, c, _| {
        bits((((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16) as i128 + c as i128, 32)
    }),
    ("add.sat.s32 %r9, %r1, %r2;", |a, b, _, _| u64::from((a as i32).saturating_add(b as i32) as u32)),
    ("sub.sat.s32 %r9, %r1, %r2;", |a, b, _, _| u64::from((a as i32).saturating_sub(b as i32) as u32)),
    ("abs.s32 %r9, %r1;", |a, _, _, _| u64::from((a as i32).wrapping_abs() as u32)),
    ("abs.s64 %rd9, %rd1;", |a, _, _, _| (a as i64).wrapping_abs() as u64),
    ("neg.s16 %rs9, %rs1;", |a, _, _, _| u64::from((a as u16).wrapping_neg())),
    ("neg.s64 %rd9, %rd1;", |a, _, _, _| a.wrapping_neg()),
    ("popc.b32 %r9, %r1;", |a, _, _, _| (a as u32).count_ones().into()),
    ("popc.b64 %r9, %rd1;", |a, _, _, _| a.count_ones().into()),
    ("clz.b32 %r9, %r1;", |a, _, _, _| (a as u32).leading_zeros().into()),
    ("clz.b64 %r9, %rd1;", |a, _, _, _| a.leading_zeros().into()),
    ("brev.b32 %r9, %r1;", |a, _, _, _| (a as u32).reverse_bits().into()),
    ("brev.b64 %rd9, %rd1;", |a, _, _, _| a.reverse_bits()),
    ("bfind.u32 %r9, %r1;", |a, _, _, _| u64::from((a as u32).checked_ilog2().unwrap_or(u32::MAX))),
    ("bfind.shiftamt.u64 %r9, %rd1;", |a, _, _, _| {
        u64::from(a.checked_ilog2().map_or(u32::MAX, |top| 63 - top))
    }),
    ("bfind.s32 %r9, %r1;", |a, _, _, _| {
        let a = a as i32;
        u64::from((if a < 0 { !a } else { a } as u32).checked_ilog2().unwrap_or(u32::MAX))
    }),
    ("and.b32 %r9, %r1, %r2;", |a, b, _, _| (a & b) as u32 as u64),
    ("or.b64 %rd9, %rd1, %rd2;", |a, b, _, _| a | b),
    ("xor.b16 %rs9, %rs1, %rs2;", |a, b, _, _| (a ^ b) as u16 as u64),
    ("not.b32 %r9, %r1;", |a, _, _, _| !a as u32 as u64),
    ("not.b16 %rs9, %rs1;", |a, _, _, _| !a as u16 as u64),
    ("cnot.b32 %r9, %r1;", |a, _, _, _| (a as u32 == 0).into()),
    (
        "shl.b16 %rs9, %rs1, %r2;",
        |a, b, _, _| if b as u32 > 15 { 0 } else { ((a as u16) << b as u32) as u64 },
    ),
    ("shl.b32 %r9, %r1, %r2;", |a, b, _, _| if b as u32 > 31 { 0 } else { ((a as u32) << b as u32) as u64 }),
    ("shl.b64 %rd9, %rd1, %r2;", |a, b, _, _| if b as u32 > 63 { 0 } else { a << b as u32 }),
    ("shr.b64 %rd9, %rd1, %r2;", |a, b, _, _| if b as u32 > 63 { 0 } else { a >> b as u32 }),
    ("shf.l.wrap.b32 %r9, %r1, %r2, %r3;", |a, b, c, _| {
        let both = (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
        both << (c & 31) >> 32 & 0xffff_ffff
    }),
    ("shf.r.clamp.b32 %r9, %r1, %r2, %r3;", |a, b, c, _| {
        let both = (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
        both >> (c as u32).min(32) & 0xffff_ffff
    }),
    ("lop3.b32 %r9, %r1, %r2, %r3, 0x6a;", |a, b, c, _| ((a & b) ^ c) as u32 as u64),
    ("lop3.b32 %r9, %r1, %r2, %r3, 0xca;", |a, b, c, _| ((a & b) | (!a & c)) as u32 as u64),
    ("lop3.b32 %r9, %r1, %r2, %r3, 0xb8;", |a, b, c, _| ((!b & a) | (b & c)) as u32 as u64),
    ("slct.b64.s32 %rd9, %rd1, %rd2, %r3;", |a, b, c, _| if c as i32 >= 0 { a } else { b }),
    ("selp.b16 %rs9, %rs1, %rs2, %p3;", |a, b, c, _| (if c != 0 { a } else { b }) as u16 as u64),
    ("selp.b64 %rd9, %rd1, %rd2, !%p3;", |a, b, c, _| if c != 0 { b } else { a }),
    ("set.lt.u32.s32 %r9, %r1, %r2;", |a, b, _, _| if (a as i32) < b as i32 { 0xffff_ffff } else { 0 }),
    ("set.hi.f32.u32 %r9, %r1, %r2;", |a, b, _, _| if a as u32 > b as u32 { 0x3f80_0000 } else { 0 }),
    ("setp.lt.and.s32 %p9, %r1, %r2, %p3;", |a, b, c, _| ((a as i32) < b as i32 && c != 0).into()),
    ("setp.eq.or.b64 %p9, %rd1, %rd2, !%p3;", |a, b, c, _| (a == b || c == 0).into()),
    ("setp.lo.xor.u64 %p9, %rd1, %rd2, %p3;", |a, b, c, _| ((a < b) ^ (c != 0)).into()),
    ("setp.ls.and.u32 %p8|%p9, %r1, %r2, %p3;", |a, b, c, _| (a as u32 > b as u32 && c != 0).into()),
    ("and.pred %p9, %p1, %p2;", |a, b, _, _| (a != 0 && b != 0).into()),
    ("or.pred %p9, %p1, !%p2;", |a, b, _, _| (a != 0 || b == 0).into()),
    ("xor.pred %p9, %p1, %p2;", |a, b, _, _| ((a != 0) != (b != 0)).into()),
    ("not.pred %p9, %p1;", |a, _, _, _| (a == 0).into()),
    ("mov.pred %p9, %p1;", |a, _, _, _| (a != 0).into()),
    ("mov.b64 %rd9, {%r1, %r2};", |a, b, _, _| b << 32 | a as u32 as u64),
    ("mov.b64 %rd9, {%rs1, %rs2, %rs3, %rs4};", |a, b, c, d| {
        (d & 0xffff) << 48 | (c & 0xffff) << 32 | (b & 0xffff) << 16 | a & 0xffff
    }),
    ("mov.b32 %r9, {%rs1, %rs2};", |a, b, _, _| (b & 0xffff) << 16 | a & 0xffff),
    ("mov.b64 {%r8, %r9}, %rd1;", |a, _, _, _| a >> 32),
    ("mov.b32 {%rs9, _}, %r1;", |a, _, _, _| a & 0xffff),
    ("cvt.u64.u32 %rd9, %r1;", |a, _, _, _| a as u32 as u64),
    ("cvt.s64.s32 %rd9, %r1;", |a, _, _, _| a as i32 as i64 as u64),
    ("cvt.s32.s8 %r9, %r1;", |a, _, _, _| a as i8 as i32 as u32 as u64),
    ("cvt.u32.u8 %r9, %rs1;", |a, _, _, _| a as u8 as u64),
    ("cvt.s16.s8 %rs9, %rs1;", |a, _, _, _| a as i8 as i16 as u16 as u64),
    ("cvt.s8.s32 %r9, %r1;", |a, _, _, _| a as i8 as i32 as u32 as u64),
    ("cvt.u16.u32 %rs9, %r1;", |a, _, _, _| a as u16 as u64),
    ("cvt.u8.u64 %rs9, %rd1;", |a, _, _, _| a as u8 as u64),
    ("cvt.sat.u8.s32 %r9, %r1;", |a, _, _, _| (a as i32).clamp(0, 255) as u64),
    ("cvt.sat.s16.s64 %rs9, %rd1;", |a, _, _, _| (a as i64).clamp(-32768, 32767) as u16 as u64),
    ("cvt.sat.s32.u32 %r9, %r1;", |a, _, _, _| (a as u32).min(i32::MAX as u32) as u64),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn integers_as_in_rust(inputs in inputs()) {
        check_functions(INTEGERS, &inputs);
        check_functions(OTHERS, &inputs);
    }

    #[test]
    fn bit_fields(inputs in inputs(), at in 0u64..70, length in 0u64..70) {
        let inputs: Vec<Inputs> = inputs.iter().map(|&[a, b, ..]| [a, b, at, length]).collect();
        check_functions(&[
            ("bfe.u64 %rd9, %rd1, %r3, %r4;", |a, _, at, length| {
                (0..length.min(64)).filter(|n| at + n < 64).fold(0, |sum, n| sum | (a >> (at + n) & 1) << n)
            }),
            ("bfe.s64 %rd9, %rd1, %r3, %r4;", |a, _, at, length| {
                let sign = if length == 0 { 0 } else { a >> (at + length - 1).min(63) & 1 };
                let bit = |n| if n < length && at + n < 64 { a >> (at + n) & 1 } else { sign };
                (0..64).fold(0, |sum, n| sum | bit(n) << n)
            }),
            ("bfi.b64 %rd9, %rd1, %rd2, %r3, %r4;", |a, b, at, length| {
                let bit = |n: u64| if n >= at && n < at + length { a >> (n - at) } else { b >> n } & 1;
                (0..64).fold(0, |sum, n| sum | bit(n) << n)
            }),
        ], &inputs);
    }

    #[test]
    fn permutations_of_bytes(inputs in inputs()) {
        check_functions(&[
            ("prmt.b32 %r9, %r1, %r2, %r3;", |a, b, c, _| {
                let bytes = [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
                let picked = [0, 1, 2, 3].map(|n| {
                    let select = c as usize >> (4 * n);
                    let byte = bytes[select & 7];
                    if select & 8 == 0 { byte } else if byte > 127 { 255 } else { 0 }
                });
                u32::from_le_bytes(picked).into()
            }),
            ("dp4a.s32.u32 %r9, %r1, %r2, %r3;", |a, b, c, _| {
                let (a, b) = ((a as u32).to_le_bytes(), (b as u32).to_le_bytes());
                let sum: i32 = (0..4).map(|n| i32::from(a[n] as i8) * i32::from(b[n])).sum();
                u64::from((c as u32).wrapping_add(sum as u32))
            }),
        ], &inputs);
    }
}

#[test]
fn modes_of_prmt() {
    const A: u64 = 0x3322_1100;
    const B: u64 = 0x7766_5544;
    check(&[
        ("prmt.b32.f4e %r9, %r1, %r2, %r3;", &[([A, B, 1, 0], 0x4433_2211), ([A, B, 7, 0], 0x6655_4433)]),
        ("prmt.b32.b4e %r9, %r1, %r2, %r3;", &[([A, B, 1, 0], 0x6677_0011)]),
        ("prmt.b32.rc8 %r9, %r1, %r2, %r3;", &[([A, B, 2, 0], 0x2222_2222)]),
        ("prmt.b32.ecl %r9, %r1, %r2, %r3;", &[([A, B, 2, 0], 0x3322_2222)]),
        ("prmt.b32.ecr %r9, %r1, %r2, %r3;", &[([A, B, 1, 0], 0x1111_1100)]),
        ("prmt.b32.rc16 %r9, %r1, %r2, %r3;", &[([A, B, 1, 0], 0x3322_3322)]),
        ("prmt.b32 %r9, %r1, %r2, 0x7610;", &[([A, B, 0, 0], 0x7766_1100)]),
    ]);
}

#[test]
fn numbers_in_the_text() {
    check(&[
        ("mov.u32 %r9, -1;", &[([0; 4], 0xffff_ffff)]),
        ("mov.b16 %rs9, 0xff80;", &[([0; 4], 0xff80)]),
        ("mov.b32 %r9, 0f3F800000;", &[([0; 4], 0x3f80_0000)]),
        ("mov.b64 %rd9, 0d3FF0000000000000;", &[([0; 4], 0x3ff0_0000_0000_0000)]),
        ("mov.f32 %r9, 0.5;", &[([0; 4], 0x3f00_0000)]),
        ("add.s64 %rd9, %rd1, -9223372036854775808;", &[([1, 0, 0, 0], 0x8000_0000_0000_0001)]),
        ("mov.u64 %rd9, 18446744073709551615;", &[([0; 4], u64::MAX)]),
        ("add.u32 %r9, %r1, WARP_SZ;", &[([1, 0, 0, 0], 33)]),
        ("mov.pred %p9, -1;", &[([0; 4], 1)]),
        ("mov.pred %p9, 0;", &[([0; 4], 0)]),
    ]);
}
