//! Floating-point arithmetic. Approximations give the correctly rounded value, which is inside of every card's error.

use super::decode::{Decoder, Modifiers, Result, refuse};
use super::float::{
    BF16, F16, F32, Format, Rounding, canonical, flush, quotient, saturate, square_root, sum,
};
use super::lanes::{Function, one, three, two};
use super::program::Op;
use super::syntax::Statement;
use super::types::Type;

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    let sources = match s.opcode.as_str() {
        "neg" | "abs" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => 1,
        "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => 2,
        "fma" | "mad" => 3,
        _ => return Ok(None),
    };
    let kind = m.kind(s)?;
    let function = match kind {
        Type::F32 => single(s, m)?,
        Type::F64 => double(s, m)?,
        Type::F16 => narrow(s, m, F16, false)?,
        Type::Bf16 => narrow(s, m, BF16, false)?,
        Type::F16x2 => narrow(s, m, F16, true)?,
        Type::Bf16x2 => narrow(s, m, BF16, true)?,
        _ => return refuse(s, "a floating-point type is due"),
    };
    d.compute(s, kind, &[kind; 3][..sources], function).map(Some)
}

/// How an f32 instruction treats its operands and its result.
#[derive(Clone, Copy)]
struct Treatment {
    flush: bool,
    saturate: bool,
}

impl Treatment {
    fn source(self, value: f32) -> f32 {
        if self.flush { flush(value) } else { value }
    }

    fn result(self, value: f32) -> f32 {
        let value = canonical(self.source(value));
        if self.saturate { saturate(value) } else { value }
    }

    fn one(self, f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Function {
        match self {
            Self { flush: false, saturate: false } => one(move |a| canonical(f(a))),
            _ => one(move |a| self.result(f(self.source(a)))),
        }
    }

    fn two(self, f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static) -> Function {
        match self {
            Self { flush: false, saturate: false } => two(move |a, b| canonical(f(a, b))),
            _ => two(move |a, b| self.result(f(self.source(a), self.source(b)))),
        }
    }

    fn three(self, f: impl Fn(f32, f32, f32) -> f32 + Send + Sync + 'static) -> Function {
        match self {
            Self { flush: false, saturate: false } => three(move |a, b, c| canonical(f(a, b, c))),
            _ => three(move |a, b, c| self.result(f(self.source(a), self.source(b), self.source(c)))),
        }
    }
}

/// An f64 rounded to f32.
fn to_f32(value: f64, rounding: Rounding) -> f32 {
    f32::from_bits(F32.round_f64(value, rounding) as u32)
}

fn single(s: &Statement, m: &mut Modifiers<'_>) -> Result<Function> {
    let rounding = m.rounding();
    let treat = Treatment { flush: m.take("ftz"), saturate: m.take("sat") };
    let nearest = matches!(rounding, None | Some(Rounding::Nearest));
    let to = rounding.unwrap_or(Rounding::Nearest);
    let approximate = m.take("approx") || m.take("full");
    if approximate && rounding.is_some() {
        return refuse(s, "an approximation has no rounding mode");
    }
    Ok(match s.opcode.as_str() {
        "add" if nearest => treat.two(|a, b| a + b),
        "add" => treat.two(move |a, b| to_f32(sum(a.into(), b.into(), to), to)),
        "sub" if nearest => treat.two(|a, b| a - b),
        "sub" => treat.two(move |a, b| to_f32(sum(a.into(), f64::from(-b), to), to)),
        "mul" if nearest => treat.two(|a, b| a * b),
        // The f64 product of two f32 is exact.
        "mul" => treat.two(move |a, b| to_f32(f64::from(a) * f64::from(b), to)),
        "fma" | "mad" if rounding.is_none() => return refuse(s, "a rounding mode is due"),
        "fma" | "mad" if nearest => treat.three(f32::mul_add),
        "fma" | "mad" => {
            treat.three(move |a, b, c| to_f32(sum(f64::from(a) * f64::from(b), c.into(), to), to))
        }
        "div" | "rcp" | "sqrt" if !approximate && rounding.is_none() => {
            return refuse(s, "a rounding mode or `.approx` is due");
        }
        "div" if nearest => treat.two(|a, b| a / b),
        "div" => treat.two(move |a, b| to_f32(quotient(a.into(), b.into()), to)),
        "rcp" if nearest => treat.one(f32::recip),
        "rcp" => treat.one(move |a| to_f32(quotient(1.0, a.into()), to)),
        "sqrt" if nearest => treat.one(f32::sqrt),
        "sqrt" => treat.one(move |a| to_f32(square_root(a.into()), to)),
        "min" | "max" => extreme(s, m, treat)?,
        "neg" if treat.flush => one(|a: f32| -flush(a)),
        "neg" => one(|a: f32| -a),
        "abs" if treat.flush => one(|a: f32| flush(a).abs()),
        "abs" => one(|a: f32| a.abs()),
        "copysign" => two(|sign: f32, value: f32| value.copysign(sign)),
        _ if !approximate => return refuse(s, "`.approx` is due"),
        "rsqrt" => treat.one(|a| (1.0 / f64::from(a).sqrt()) as f32),
        "ex2" => treat.one(|a| f64::from(a).exp2() as f32),
        "lg2" => treat.one(|a| f64::from(a).log2() as f32),
        "sin" => treat.one(|a| f64::from(a).sin() as f32),
        "cos" => treat.one(|a| f64::from(a).cos() as f32),
        _ => treat.one(|a| f64::from(a).tanh() as f32),
    })
}

/// The lesser of two numbers, −0 before +0; a NaN counts as none.
fn lesser(a: f64, b: f64) -> f64 {
    if a.is_nan() || b < a || a == b && b.is_sign_negative() { b } else { a }
}

fn extreme(s: &Statement, m: &mut Modifiers<'_>, treat: Treatment) -> Result<Function> {
    let keeps_nan = m.take("NaN");
    Ok(match (s.opcode == "min", keeps_nan) {
        (true, false) => treat.two(|a, b| lesser(a.into(), b.into()) as f32),
        (false, false) => treat.two(|a, b| -lesser((-a).into(), (-b).into()) as f32),
        (true, true) => treat.two(|a, b| {
            if b.is_nan() {
                b
            } else if a.is_nan() {
                a
            } else {
                lesser(a.into(), b.into()) as f32
            }
        }),
        (false, true) => treat.two(|a, b| {
            if b.is_nan() {
                b
            } else if a.is_nan() {
                a
            } else {
                -lesser((-a).into(), (-b).into()) as f32
            }
        }),
    })
}

fn double(s: &Statement, m: &mut Modifiers<'_>) -> Result<Function> {
    let rounding = m.rounding();
    if !matches!(rounding, None | Some(Rounding::Nearest)) {
        return refuse(s, "f64 is only rounded to nearest here");
    }
    let approximate = m.take("approx");
    let flushes = m.take("ftz");
    if flushes && !(approximate && s.opcode == "rcp" || s.opcode == "rsqrt") {
        return refuse(s, "`.ftz` is not for this instruction");
    }
    // The approximations that flush are of f64 only.
    let tiny = move |a: f64| if flushes && a.is_subnormal() { 0f64.copysign(a) } else { a };
    let must_round =
        matches!(s.opcode.as_str(), "fma" | "mad" | "div" | "sqrt") || s.opcode == "rcp" && !approximate;
    if must_round && rounding.is_none() {
        return refuse(s, "a rounding mode is due");
    }
    Ok(match s.opcode.as_str() {
        "add" => two(|a: f64, b: f64| a + b),
        "sub" => two(|a: f64, b: f64| a - b),
        "mul" => two(|a: f64, b: f64| a * b),
        "div" => two(|a: f64, b: f64| a / b),
        "fma" | "mad" => three(f64::mul_add),
        "rcp" => one(move |a: f64| tiny(tiny(a).recip())),
        "sqrt" => one(f64::sqrt),
        "rsqrt" => one(move |a: f64| tiny(tiny(a).sqrt().recip())),
        "min" => two(lesser),
        "max" => two(|a: f64, b: f64| -lesser(-a, -b)),
        "neg" => one(|a: f64| -a),
        "abs" => one(f64::abs),
        "copysign" => two(|sign: f64, value: f64| value.copysign(sign)),
        _ => return refuse(s, "not for f64"),
    })
}

/// The sign of an f16 or bf16.
const SIGN: u64 = 0x8000;

/// An instruction on f16 or bf16, one or two of them: in f64, exactly or rounded to odd, then rounded once.
fn narrow(s: &Statement, m: &mut Modifiers<'_>, format: Format, pair: bool) -> Result<Function> {
    let rounding = m.rounding();
    if !matches!(rounding, None | Some(Rounding::Nearest)) {
        return refuse(s, "only `.rn` is known for this type");
    }
    let round = move |value: f64| format.round_f64(value, Rounding::Nearest);
    let (relu, keeps_nan) = (m.take("relu"), m.take("NaN"));
    let finish = move |value: f64| round(if relu && value < 0.0 { 0.0 } else { value });
    let lesser_of = move |a: f64, b: f64| {
        if keeps_nan && (a.is_nan() || b.is_nan()) { f64::NAN } else { lesser(a, b) }
    };
    let nearest = Rounding::Nearest;
    Ok(match s.opcode.as_str() {
        "add" => narrow_two(format, pair, move |a, b| finish(sum(a, b, nearest))),
        "sub" => narrow_two(format, pair, move |a, b| finish(sum(a, -b, nearest))),
        "mul" => narrow_two(format, pair, move |a, b| finish(a * b)),
        "min" => narrow_two(format, pair, move |a, b| finish(lesser_of(a, b))),
        "max" => narrow_two(format, pair, move |a, b| finish(-lesser_of(-a, -b))),
        "fma" if rounding.is_some() => three(move |a: u64, b: u64, c: u64| {
            halves(pair, |at| {
                let of = |bits: u64| format.value(bits >> at & 0xffff);
                finish(sum(of(a) * of(b), of(c), nearest))
            })
        }),
        "neg" => one(move |a: u64| halves(pair, |at| a >> at & 0xffff ^ SIGN)),
        "abs" => one(move |a: u64| halves(pair, |at| a >> at & 0xffff & !SIGN)),
        _ => return refuse(s, "not for this type"),
    })
}

fn narrow_two(format: Format, pair: bool, f: impl Fn(f64, f64) -> u64 + Send + Sync + 'static) -> Function {
    two(move |a: u64, b: u64| {
        halves(pair, |at| f(format.value(a >> at & 0xffff), format.value(b >> at & 0xffff)))
    })
}

/// One or two 16-bit results, from the bit at which each operand's part begins.
fn halves(pair: bool, f: impl Fn(u32) -> u64) -> u64 {
    if pair { f(0) | f(16) << 16 } else { f(0) }
}
