//! Comparisons and selections.

use super::decode::{Decoder, Modifiers, Result, expect_operands, refuse};
use super::float::{BF16, F16, flush};
use super::lanes::{Comparison, Function, LANES, compare, three, with_integer};
use super::program::{Combine, Op};
use super::syntax::{Operand, Statement};
use super::types::Type;

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    let op = match s.opcode.as_str() {
        "setp" => set_predicate(d, s, m)?,
        "set" => set(d, s, m)?,
        "selp" => {
            let kind = m.kind(s)?;
            expect_operands(s, 4)?;
            let to = d.destination(s, &s.operands[0], kind)?;
            let from = [d.source(s, &s.operands[1], kind)?, d.source(s, &s.operands[2], kind)?];
            Op::Select { to, from, by: d.test_of(s, &s.operands[3])? }
        }
        "slct" => {
            let by = m.kind(s)?;
            let kind = m.kind(s)?;
            let flushes = m.take("ftz");
            let function = match by {
                Type::S32 => three(|a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
                Type::F32 if flushes => three(|a: u64, b: u64, c: f32| if flush(c) >= 0.0 { a } else { b }),
                Type::F32 => three(|a: u64, b: u64, c: f32| if c >= 0.0 { a } else { b }),
                _ => return refuse(s, "`.s32` or `.f32` is due"),
            };
            d.compute(s, kind, &[kind, kind, by], function)?
        }
        "testp" => test_property(d, s, m)?,
        _ => return Ok(None),
    };
    Ok(Some(op))
}

/// How numbers are compared; `Unordered` ones hold if one is a NaN.
#[derive(Clone, Copy)]
enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    UnorderedEqual,
    UnorderedNotEqual,
    UnorderedLess,
    UnorderedLessEqual,
    UnorderedGreater,
    UnorderedGreaterEqual,
    Numbers,
    NotNumbers,
}

impl Relation {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "eq" => Self::Equal,
            "ne" => Self::NotEqual,
            "lt" | "lo" => Self::Less,
            "le" | "ls" => Self::LessEqual,
            "gt" | "hi" => Self::Greater,
            "ge" | "hs" => Self::GreaterEqual,
            "equ" => Self::UnorderedEqual,
            "neu" => Self::UnorderedNotEqual,
            "ltu" => Self::UnorderedLess,
            "leu" => Self::UnorderedLessEqual,
            "gtu" => Self::UnorderedGreater,
            "geu" => Self::UnorderedGreaterEqual,
            "num" => Self::Numbers,
            "nan" => Self::NotNumbers,
            _ => return None,
        })
    }
}

/// The comparison of a type's values; nothing for a type or relation that there is none for.
fn comparison(relation: Relation, kind: Type, flushes: bool) -> Option<Comparison> {
    if !kind.is_float() {
        if kind.is_untyped() && !matches!(relation, Relation::Equal | Relation::NotEqual) {
            return None;
        }
        return with_integer!(kind, T => match relation {
            Relation::Equal => compare(|a: T, b: T| a == b),
            Relation::NotEqual => compare(|a: T, b: T| a != b),
            Relation::Less => compare(|a: T, b: T| a < b),
            Relation::LessEqual => compare(|a: T, b: T| a <= b),
            Relation::Greater => compare(|a: T, b: T| a > b),
            Relation::GreaterEqual => compare(|a: T, b: T| a >= b),
            _ => return None,
        });
    }
    Some(match kind {
        Type::F32 if flushes => of_floats(relation, |bits| flush(f32::from_bits(bits as u32))),
        Type::F32 => of_floats(relation, |bits| f32::from_bits(bits as u32)),
        Type::F64 => of_floats(relation, f64::from_bits),
        Type::F16 => of_floats(relation, |bits| F16.value(bits)),
        Type::Bf16 => of_floats(relation, |bits| BF16.value(bits)),
        _ => return None,
    })
}

fn of_floats<T: PartialOrd + 'static>(
    relation: Relation,
    value: impl Fn(u64) -> T + Copy + Send + Sync + 'static,
) -> Comparison {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let with =
        |f: fn(&T, &T) -> bool| -> Comparison { compare(move |a: u64, b: u64| f(&value(a), &value(b))) };
    match relation {
        Relation::Equal => with(|a, b| a == b),
        Relation::NotEqual => with(|a, b| matches!(a.partial_cmp(b), Some(Less | Greater))),
        Relation::Less => with(|a, b| a < b),
        Relation::LessEqual => with(|a, b| a <= b),
        Relation::Greater => with(|a, b| a > b),
        Relation::GreaterEqual => with(|a, b| a >= b),
        Relation::UnorderedEqual => with(|a, b| !matches!(a.partial_cmp(b), Some(Less | Greater))),
        Relation::UnorderedNotEqual => with(|a, b| a != b),
        Relation::UnorderedLess => with(|a, b| !matches!(a.partial_cmp(b), Some(Equal | Greater))),
        Relation::UnorderedLessEqual => with(|a, b| a.partial_cmp(b) != Some(Greater)),
        Relation::UnorderedGreater => with(|a, b| !matches!(a.partial_cmp(b), Some(Equal | Less))),
        Relation::UnorderedGreaterEqual => with(|a, b| a.partial_cmp(b) != Some(Less)),
        Relation::Numbers => with(|a, b| a.partial_cmp(b).is_some()),
        Relation::NotNumbers => with(|a, b| a.partial_cmp(b).is_none()),
    }
}

/// The comparison that an opcode names, its type already taken, and what its result is combined by.
fn relation(s: &Statement, m: &mut Modifiers<'_>, kind: Type) -> Result<(Comparison, Option<Combine>)> {
    let flushes = m.take("ftz");
    if flushes && kind != Type::F32 {
        return refuse(s, "`.ftz` is for f32");
    }
    let Some(relation) = m.take_known(Relation::of) else { return refuse(s, "a comparison is due") };
    let Some(function) = comparison(relation, kind, flushes) else {
        return refuse(s, "not a comparison of this type");
    };
    let combine = m.take_known(|part| match part {
        "and" => Some(Combine::And),
        "or" => Some(Combine::Or),
        "xor" => Some(Combine::Xor),
        _ => None,
    });
    Ok((function, combine))
}

fn set_predicate(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let (function, combine) = relation(s, m, kind)?;
    expect_operands(s, 3 + usize::from(combine.is_some()))?;
    let from = [d.source(s, &s.operands[1], kind)?, d.source(s, &s.operands[2], kind)?];
    let combine = match combine {
        Some(combine) => Some((combine, d.test_of(s, &s.operands[3])?)),
        None => None,
    };
    let (to, inverse) = match &s.operands[0] {
        Operand::Pair(to, inverse) => (d.predicate(s, to)?, Some(d.predicate(s, inverse)?)),
        _ => (d.predicate_operand(s, 0)?, None),
    };
    Ok(Op::Compare { to, inverse, combine, from, function })
}

fn set(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let to = m.kind(s)?;
    let (function, combine) = relation(s, m, kind)?;
    if combine.is_some() {
        return refuse(s, "`set` with a predicate is not known");
    }
    let value = match to {
        Type::U32 | Type::S32 => u64::from(u32::MAX),
        Type::F32 => 1f32.to_bits().into(),
        _ => return refuse(s, "a result of 32 bits is due"),
    };
    let function = Function::Two(Box::new(move |a, b| {
        let holds = function(a, b);
        let mut lanes = [0; LANES];
        for (lane, to) in lanes.iter_mut().enumerate() {
            *to = if holds >> lane & 1 == 1 { value } else { 0 };
        }
        lanes
    }));
    d.compute(s, to, &[kind; 2], function)
}

fn test_property(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let property = m.take_known(|part| {
        use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal};
        Some(match part {
            "finite" => |value: f64, _| value.is_finite(),
            "infinite" => |_, class| class == Infinite,
            "number" => |_, class| class != Nan,
            "notanumber" => |_, class| class == Nan,
            "normal" => |_, class| class == Normal,
            "subnormal" => |_, class| class == Subnormal,
            _ => return None,
        } as fn(f64, std::num::FpCategory) -> bool)
    });
    let Some(property) = property else { return refuse(s, "a property is due") };
    expect_operands(s, 2)?;
    let to = d.predicate_operand(s, 0)?;
    let from = [d.source(s, &s.operands[1], kind)?; 2];
    let function = match kind {
        Type::F32 => compare(move |a: f32, _| property(a.into(), a.classify())),
        Type::F64 => compare(move |a: f64, _| property(a, a.classify())),
        _ => return refuse(s, "f32 or f64 is due"),
    };
    Ok(Op::Compare { to, inverse: None, combine: None, from, function })
}
