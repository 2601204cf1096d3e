//! Floating-point arithmetic, comparisons and conversions.

use proptest::prelude::*;

use crate::harness::{Definition, Inputs, check, check_functions};

const NAN: u64 = 0x7fff_ffff;
const INFINITY: u64 = 0x7f80_0000;
/// The least f32 above zero, and the greatest subnormal one.
const TINY: u64 = 1;
const SUBNORMAL: u64 = 0x007f_ffff;
const ONE: u64 = 0x3f80_0000;
const MINUS_ZERO: u64 = 0x8000_0000;

fn f(value: f32) -> u64 {
    value.to_bits().into()
}

fn single(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn double(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// An f32 as an instruction gives it.
fn of(value: f32) -> u64 {
    if value.is_nan() { NAN } else { f(value) }
}

/// Bits that are often those of an odd f32 in their low half, and of an odd f64.
fn number() -> impl Strategy<Value = u64> {
    let edge = prop::sample::select(vec![
        0,
        MINUS_ZERO,
        ONE,
        TINY,
        SUBNORMAL,
        0x0080_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        INFINITY,
        0xff80_0000,
        NAN,
        0x7fc0_0000,
        0xbf80_0000,
        0x3f80_8000,
        0x3f81_8000,
        0x3380_0000,
        0x4f00_0000,
        0xcf00_0000,
    ]);
    prop_oneof![
        any::<u64>(),
        (edge, any::<u32>()).prop_map(|(low, high)| u64::from(high) << 32 | low),
        (-1e4f32..1e4).prop_map(f),
        (-1e4f64..1e4).prop_map(f64::to_bits),
    ]
}

fn inputs() -> impl Strategy<Value = Vec<Inputs>> {
    prop::collection::vec([number(), number(), number(), number()], 128)
}

fn ordered(a: u64, b: u64) -> bool {
    !single(a).is_nan() && !single(b).is_nan()
}

const FUNCTIONS: &[Definition] = &[
    ("add.f32 %r9, %r1, %r2;", |a, b, _, _| of(single(a) + single(b))),
    ("add.rn.f32 %r9, %r1, %r2;", |a, b, _, _| of(single(a) + single(b))),
    ("sub.f32 %r9, %r1, %r2;", |a, b, _, _| of(single(a) - single(b))),
    ("mul.f32 %r9, %r1, %r2;", |a, b, _, _| of(single(a) * single(b))),
    ("div.rn.f32 %r9, %r1, %r2;", |a, b, _, _| of(single(a) / single(b))),
    ("sqrt.rn.f32 %r9, %r1;", |a, _, _, _| of(single(a).sqrt())),
    ("rcp.rn.f32 %r9, %r1;", |a, _, _, _| of(1.0 / single(a))),
    ("fma.rn.f32 %r9, %r1, %r2, %r3;", |a, b, c, _| of(single(a).mul_add(single(b), single(c)))),
    ("neg.f32 %r9, %r1;", |a, _, _, _| (a ^ 1 << 31) & 0xffff_ffff),
    ("abs.f32 %r9, %r1;", |a, _, _, _| a & NAN),
    ("copysign.f32 %r9, %r1, %r2;", |a, b, _, _| b & NAN | a & 1 << 31),
    ("setp.lt.f32 %p9, %r1, %r2;", |a, b, _, _| (single(a) < single(b)).into()),
    ("setp.le.f32 %p9, %r1, %r2;", |a, b, _, _| (single(a) <= single(b)).into()),
    ("setp.gt.f32 %p9, %r1, %r2;", |a, b, _, _| (single(a) > single(b)).into()),
    ("setp.ge.f32 %p9, %r1, %r2;", |a, b, _, _| (single(a) >= single(b)).into()),
    ("setp.eq.f32 %p9, %r1, %r2;", |a, b, _, _| (single(a) == single(b)).into()),
    ("setp.ne.f32 %p9, %r1, %r2;", |a, b, _, _| (ordered(a, b) && single(a) != single(b)).into()),
    ("setp.ltu.f32 %p9, %r1, %r2;", |a, b, _, _| (!ordered(a, b) || single(a) < single(b)).into()),
    ("setp.leu.f32 %p9, %r1, %r2;", |a, b, _, _| (!ordered(a, b) || single(a) <= single(b)).into()),
    ("setp.gtu.f32 %p9, %r1, %r2;", |a, b, _, _| (!ordered(a, b) || single(a) > single(b)).into()),
    ("setp.geu.f32 %p9, %r1, %r2;", |a, b, _, _| (!ordered(a, b) || single(a) >= single(b)).into()),
    ("setp.equ.f32 %p9, %r1, %r2;", |a, b, _, _| (!ordered(a, b) || single(a) == single(b)).into()),
    ("setp.neu.f32 %p9, %r1, %r2;", |a, b, _, _| (single(a) != single(b)).into()),
    ("setp.num.f32 %p9, %r1, %r2;", |a, b, _, _| ordered(a, b).into()),
    ("setp.nan.f32 %p9, %r1, %r2;", |a, b, _, _| (!ordered(a, b)).into()),
    ("testp.finite.f32 %p9, %r1;", |a, _, _, _| single(a).is_finite().into()),
    ("testp.subnormal.f32 %p9, %r1;", |a, _, _, _| single(a).is_subnormal().into()),
    ("slct.b32.f32 %r9, %r1, %r2, %r3;", |a, b, c, _| (if single(c) >= 0.0 { a } else { b }) & 0xffff_ffff),
    ("cvt.f64.f32 %rd9, %r1;", |a, _, _, _| match single(a) {
        a if a.is_nan() => 0x7ff8_0000_0000_0000,
        a => f64::from(a).to_bits(),
    }),
    ("cvt.rn.f32.f64 %r9, %rd1;", |a, _, _, _| of(double(a) as f32)),
    ("cvt.rn.f32.s32 %r9, %r1;", |a, _, _, _| f(a as i32 as f32)),
    ("cvt.rn.f32.u64 %r9, %rd1;", |a, _, _, _| f(a as f32)),
    ("cvt.rn.f64.s64 %rd9, %rd1;", |a, _, _, _| (a as i64 as f64).to_bits()),
    ("cvt.rn.f32.u8 %r9, %rs1;", |a, _, _, _| f(a as u8 as f32)),
    ("cvt.rzi.s32.f32 %r9, %r1;", |a, _, _, _| u64::from(single(a) as i32 as u32)),
    ("cvt.rzi.u32.f32 %r9, %r1;", |a, _, _, _| u64::from(single(a) as u32)),
    ("cvt.rni.s32.f32 %r9, %r1;", |a, _, _, _| u64::from(single(a).round_ties_even() as i32 as u32)),
    ("cvt.rmi.s32.f32 %r9, %r1;", |a, _, _, _| u64::from(single(a).floor() as i32 as u32)),
    ("cvt.rpi.u16.f32 %rs9, %r1;", |a, _, _, _| u64::from(single(a).ceil() as u16)),
    ("cvt.rzi.s64.f64 %rd9, %rd1;", |a, _, _, _| match double(a) {
        a if a.is_nan() => 1 << 63,
        a => a as i64 as u64,
    }),
    ("cvt.rni.f32.f32 %r9, %r1;", |a, _, _, _| of(single(a).round_ties_even())),
    ("cvt.rmi.f32.f32 %r9, %r1;", |a, _, _, _| of(single(a).floor())),
    ("cvt.sat.f32.f32 %r9, %r1;", |a, _, _, _| match single(a) {
        a if a > 0.0 => f(a.min(1.0)),
        _ => 0,
    }),
    ("add.sat.f32 %r9, %r1, %r2;", |a, b, _, _| match single(a) + single(b) {
        sum if sum > 0.0 => f(sum.min(1.0)),
        _ => 0,
    }),
    (
        "fma.rn.f64 %rd9, %rd1, %rd2, %rd3; setp.num.f64 %p1, %rd9, %rd9; selp.b64 %rd9, %rd9, 0, %p1;",
        |a, b, c, _| {
            let sum = double(a).mul_add(double(b), double(c));
            if sum.is_nan() { 0 } else { sum.to_bits() }
        },
    ),
    (
        "div.rn.f64 %rd9, %rd1, %rd2; setp.num.f64 %p1, %rd9, %rd9; selp.b64 %rd9, %rd9, 0, %p1;",
        |a, b, _, _| {
            let ratio = double(a) / double(b);
            if ratio.is_nan() { 0 } else { ratio.to_bits() }
        },
    ),
    ("cvt.rn.bf16x2.f32 %r9, %r1, %r2;", |a, b, _, _| bf16(single(a)) << 16 | bf16(single(b))),
    ("cvt.rn.bf16.f32 %rs9, %r1;", |a, _, _, _| bf16(single(a))),
    ("cvt.f32.bf16 %r9, %rs1;", |a, _, _, _| of(single((a & 0xffff) << 16))),
];

/// An f32 rounded to bf16, by looking at the two neighbours.
fn bf16(value: f32) -> u64 {
    if value.is_nan() {
        return 0x7fff;
    }
    let bits = value.to_bits();
    let (below, rest) = (bits >> 16, bits & 0xffff);
    let up = rest > 0x8000 || rest == 0x8000 && below & 1 == 1;
    u64::from(below + u32::from(up))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn floats_as_in_rust(inputs in inputs()) {
        check_functions(FUNCTIONS, &inputs);
    }

    #[test]
    fn approximations_are_close(inputs in inputs()) {
        type Exact = fn(f64) -> f64;
        let cases: [(&str, Exact); 6] = [
            ("ex2.approx.f32 %r9, %r1;", f64::exp2),
            ("lg2.approx.f32 %r9, %r1;", f64::log2),
            ("rsqrt.approx.f32 %r9, %r1;", |a| 1.0 / a.sqrt()),
            ("rcp.approx.f32 %r9, %r1;", |a| 1.0 / a),
            ("tanh.approx.f32 %r9, %r1;", f64::tanh),
            ("sqrt.approx.f32 %r9, %r1;", f64::sqrt),
        ];
        for (snippet, function) in cases {
            for (found, [a, ..]) in crate::harness::evaluate(snippet, &inputs).into_iter().zip(&inputs) {
                let exact = function(single(*a).into()) as f32;
                let found = single(found);
                prop_assert!(found == exact || found.is_nan() && exact.is_nan(), "{snippet} of {a:#x}: {found} {exact}");
            }
        }
    }
}

#[test]
fn subnormal_numbers_are_flushed_where_the_text_says_so() {
    check(&[
        ("add.f32 %r9, %r1, %r2;", &[([TINY, TINY, 0, 0], 2)]),
        (
            "add.ftz.f32 %r9, %r1, %r2;",
            &[([TINY, TINY, 0, 0], 0), ([0x8000_0001, MINUS_ZERO, 0, 0], MINUS_ZERO)],
        ),
        (
            "mul.ftz.f32 %r9, %r1, %r2;",
            &[([0x0080_0000, f(0.5), 0, 0], 0), ([0x0080_0000, f(-0.5), 0, 0], MINUS_ZERO)],
        ),
        (
            "fma.rn.ftz.f32 %r9, %r1, %r2, %r3;",
            &[([ONE, SUBNORMAL, ONE, 0], ONE), ([ONE, ONE, TINY, 0], ONE)],
        ),
        ("setp.gt.ftz.f32 %p9, %r1, %r2;", &[([TINY, 0, 0, 0], 0)]),
        ("setp.gt.f32 %p9, %r1, %r2;", &[([TINY, 0, 0, 0], 1)]),
        ("max.ftz.f32 %r9, %r1, %r2;", &[([TINY, 0, 0, 0], 0)]),
        ("abs.ftz.f32 %r9, %r1;", &[([0x8000_0001, 0, 0, 0], 0)]),
        ("neg.ftz.f32 %r9, %r1;", &[([TINY, 0, 0, 0], MINUS_ZERO)]),
        (
            "ex2.approx.ftz.f32 %r9, %r1;",
            &[
                ([f(-126.0), 0, 0, 0], 0x0080_0000),
                ([f(-127.0), 0, 0, 0], 0),
                ([f(f32::NEG_INFINITY), 0, 0, 0], 0),
                ([MINUS_ZERO, 0, 0, 0], ONE),
                ([INFINITY, 0, 0, 0], INFINITY),
                ([NAN, 0, 0, 0], NAN),
                ([f(3.0), 0, 0, 0], f(8.0)),
            ],
        ),
        ("ex2.approx.f32 %r9, %r1;", &[([f(-127.0), 0, 0, 0], 0x0040_0000)]),
        (
            "lg2.approx.ftz.f32 %r9, %r1;",
            &[
                ([0, 0, 0, 0], 0xff80_0000),
                ([SUBNORMAL, 0, 0, 0], 0xff80_0000),
                ([f(-1.0), 0, 0, 0], NAN),
                ([INFINITY, 0, 0, 0], INFINITY),
                ([f(8.0), 0, 0, 0], f(3.0)),
            ],
        ),
        (
            "rcp.approx.ftz.f32 %r9, %r1;",
            &[
                ([0, 0, 0, 0], INFINITY),
                ([0x8000_0001, 0, 0, 0], 0xff80_0000),
                ([0x7f7f_ffff, 0, 0, 0], 0),
                ([f(4.0), 0, 0, 0], f(0.25)),
            ],
        ),
        (
            "rsqrt.approx.ftz.f32 %r9, %r1;",
            &[([0, 0, 0, 0], INFINITY), ([MINUS_ZERO, 0, 0, 0], 0xff80_0000), ([f(4.0), 0, 0, 0], f(0.5))],
        ),
        ("cvt.ftz.f64.f32 %rd9, %r1;", &[([TINY, 0, 0, 0], 0)]),
        ("cvt.rn.ftz.f32.f64 %r9, %rd1;", &[([1e-40f64.to_bits(), 0, 0, 0], 0)]),
        ("cvt.rn.f32.f64 %r9, %rd1;", &[([1e-40f64.to_bits(), 0, 0, 0], f(1e-40))]),
    ]);
}

#[test]
fn least_and_greatest() {
    check(&[
        (
            "min.f32 %r9, %r1, %r2;",
            &[
                ([0, MINUS_ZERO, 0, 0], MINUS_ZERO),
                ([MINUS_ZERO, 0, 0, 0], MINUS_ZERO),
                ([NAN, ONE, 0, 0], ONE),
                ([ONE, 0xffc0_0000, 0, 0], ONE),
                ([0x7fc0_0001, 0xffc0_0000, 0, 0], NAN),
                ([f(-2.0), ONE, 0, 0], f(-2.0)),
            ],
        ),
        (
            "max.f32 %r9, %r1, %r2;",
            &[
                ([0, MINUS_ZERO, 0, 0], 0),
                ([MINUS_ZERO, 0, 0, 0], 0),
                ([0xff80_0000, NAN, 0, 0], 0xff80_0000),
                ([ONE, f(2.0), 0, 0], f(2.0)),
            ],
        ),
        (
            "max.NaN.f32 %r9, %r1, %r2;",
            &[([NAN, ONE, 0, 0], NAN), ([ONE, 0xffc0_0000, 0, 0], NAN), ([ONE, 0, 0, 0], ONE)],
        ),
        ("min.NaN.f32 %r9, %r1, %r2;", &[([NAN, ONE, 0, 0], NAN), ([ONE, 0, 0, 0], 0)]),
        ("max.f64 %rd9, %rd1, %rd2;", &[([1f64.to_bits(), f64::NAN.to_bits(), 0, 0], 1f64.to_bits())]),
        ("max.bf16x2 %r9, %r1, %r2;", &[([0x3f80_ffc0, 0x4000_3f80, 0, 0], 0x4000_3f80)]),
        ("min.f16 %rs9, %rs1, %rs2;", &[([0x3c00, 0xbc00, 0, 0], 0xbc00), ([0x7e00, 0x7e00, 0, 0], 0x7fff)]),
    ]);
}

#[test]
fn one_rounding_in_the_stated_direction() {
    let third = f(1.0 / 3.0);
    check(&[
        // a·b + c whose product alone would round away what decides.
        (
            "fma.rn.f32 %r9, %r1, %r2, %r3;",
            &[([0x3f80_0800, 0x3f80_0800, 0xbf80_1000, 0], 0x3380_0000), ([INFINITY, 0, ONE, 0], NAN)],
        ),
        (
            "add.rz.f32 %r9, %r1, %r2;",
            &[([ONE, 0x337f_ffff, 0, 0], ONE), ([f(-1.0), 0xb37f_ffff, 0, 0], f(-1.0))],
        ),
        ("add.rp.f32 %r9, %r1, %r2;", &[([ONE, TINY, 0, 0], 0x3f80_0001), ([ONE, f(-1.0), 0, 0], 0)]),
        (
            "add.rm.f32 %r9, %r1, %r2;",
            &[([ONE, 0x8000_0001, 0, 0], 0x3f7f_ffff), ([ONE, f(-1.0), 0, 0], MINUS_ZERO)],
        ),
        ("mul.rp.f32 %r9, %r1, %r2;", &[([0x3f80_0001, 0x3f80_0001, 0, 0], 0x3f80_0003)]),
        ("div.rm.f32 %r9, %r1, %r2;", &[([ONE, f(3.0), 0, 0], third - 1), ([ONE, 0, 0, 0], INFINITY)]),
        ("div.rp.f32 %r9, %r1, %r2;", &[([ONE, f(3.0), 0, 0], third)]),
        ("rcp.rz.f32 %r9, %r1;", &[([f(-3.0), 0, 0, 0], f(-1.0 / 3.0) - 1)]),
        (
            "sqrt.rp.f32 %r9, %r1;",
            &[([f(2.0), 0, 0, 0], f(2f32.sqrt()).max(0x3fb5_04f4)), ([f(4.0), 0, 0, 0], f(2.0))],
        ),
        ("fma.rm.f32 %r9, %r1, %r2, %r3;", &[([0x3f80_0001, 0x3f80_0001, 0, 0], 0x3f80_0002)]),
        ("cvt.rz.f32.f64 %r9, %rd1;", &[([1e300f64.to_bits(), 0, 0, 0], 0x7f7f_ffff)]),
        ("cvt.rp.f32.s32 %r9, %r1;", &[([0x0100_0001, 0, 0, 0], 0x4b80_0001)]),
        ("cvt.rm.f32.u64 %r9, %rd1;", &[([u64::MAX, 0, 0, 0], 0x5f7f_ffff)]),
    ]);
}

#[test]
fn narrow_formats() {
    check(&[
        (
            "cvt.rn.bf16x2.f32 %r9, %r1, %r2;",
            &[
                ([ONE, f(2.0), 0, 0], 0x3f80_4000),
                // Ties go to even, up and down.
                ([0x3f80_8000, 0x3f81_8000, 0, 0], 0x3f80_3f82),
                ([0x3f80_8001, 0x3f80_7fff, 0, 0], 0x3f81_3f80),
                ([NAN, 0xffff_ffff, 0, 0], 0x7fff_7fff),
                ([INFINITY, 0xff80_0000, 0, 0], 0x7f80_ff80),
                ([0x7f7f_ffff, TINY, 0, 0], 0x7f80_0000),
                ([MINUS_ZERO, 0x8000_ffff, 0, 0], 0x8000_8001),
            ],
        ),
        ("cvt.rn.relu.bf16x2.f32 %r9, %r1, %r2;", &[([f(-1.0), NAN, 0, 0], 0x0000_7fff)]),
        ("cvt.rz.bf16x2.f32 %r9, %r1, %r2;", &[([0x3f80_ffff, 0x7f7f_ffff, 0, 0], 0x3f80_7f7f)]),
        (
            "cvt.rn.f16x2.f32 %r9, %r1, %r2;",
            &[([f(65520.0), f(1.0), 0, 0], 0x7c00_3c00), ([f(2049.0), f(2051.0), 0, 0], 0x6800_6802)],
        ),
        ("cvt.rn.f16.f32 %rs9, %r1;", &[([f(5.9604645e-8), 0, 0, 0], 1), ([NAN, 0, 0, 0], 0x7fff)]),
        (
            "cvt.f32.f16 %r9, %rs1;",
            &[
                ([1, 0, 0, 0], f(5.9604645e-8)),
                ([0xfc00, 0, 0, 0], 0xff80_0000),
                ([0x3555, 0, 0, 0], f(0.333_251_95)),
            ],
        ),
        (
            "cvt.rna.tf32.f32 %r9, %r1;",
            &[([0x3f80_1000, 0, 0, 0], 0x3f80_2000), ([0x3f80_0fff, 0, 0, 0], ONE)],
        ),
        ("fma.rn.bf16 %rs9, %rs1, %rs2, %rs3;", &[([0x3f80, 0x4000, 0x3f80, 0], 0x4040)]),
        ("fma.rn.bf16x2 %r9, %r1, %r2, %r3;", &[([0x3f7f_3f80, 0x3f7f_3f80, 0xbf80_0000, 0], 0xbc00_3f80)]),
        ("fma.rn.f16 %rs9, %rs1, %rs2, %rs3;", &[([0x3c01, 0x3c01, 0xbc02, 0], 0x0010)]),
        ("add.f16x2 %r9, %r1, %r2;", &[([0x3c00_3c00, 0x3c00_bc00, 0, 0], 0x4000_0000)]),
        ("mul.f16 %rs9, %rs1, %rs2;", &[([0x7bff, 0x4000, 0, 0], 0x7c00)]),
        ("sub.f16 %rs9, %rs1, %rs2;", &[([0x3c00, 0x3800, 0, 0], 0x3800)]),
        ("neg.bf16x2 %r9, %r1;", &[([0x3f80_bf80, 0, 0, 0], 0xbf80_3f80)]),
        ("abs.f16 %rs9, %rs1;", &[([0xbc00, 0, 0, 0], 0x3c00)]),
        ("setp.lt.f16 %p9, %rs1, %rs2;", &[([0xbc00, 0x0001, 0, 0], 1), ([0x7e00, 0x7e00, 0, 0], 0)]),
        ("setp.geu.bf16 %p9, %rs1, %rs2;", &[([0x7fff, 0, 0, 0], 1), ([0xbf80, 0, 0, 0], 0)]),
    ]);
}

#[test]
fn conversions_at_the_ends_of_a_range() {
    check(&[
        (
            "cvt.rzi.s32.f32 %r9, %r1;",
            &[
                ([f(2147483648.0), 0, 0, 0], 0x7fff_ffff),
                ([f(-3e9), 0, 0, 0], 0x8000_0000),
                ([NAN, 0, 0, 0], 0),
            ],
        ),
        ("cvt.rzi.u32.f32 %r9, %r1;", &[([f(-1.0), 0, 0, 0], 0), ([INFINITY, 0, 0, 0], 0xffff_ffff)]),
        ("cvt.rzi.u64.f32 %rd9, %r1;", &[([NAN, 0, 0, 0], 1 << 63), ([f(1e30), 0, 0, 0], u64::MAX)]),
        ("cvt.rzi.s32.f64 %r9, %rd1;", &[([f64::NAN.to_bits(), 0, 0, 0], 0x8000_0000)]),
        ("cvt.rzi.s8.f32 %r9, %r1;", &[([f(-200.0), 0, 0, 0], 0xffff_ff80)]),
        ("cvt.rni.s32.f32 %r9, %r1;", &[([f(2.5), 0, 0, 0], 2), ([f(-3.5), 0, 0, 0], 0xffff_fffc)]),
        (
            "cvt.sat.f32.f32 %r9, %r1;",
            &[([NAN, 0, 0, 0], 0), ([f(7.0), 0, 0, 0], ONE), ([MINUS_ZERO, 0, 0, 0], 0)],
        ),
    ]);
}
