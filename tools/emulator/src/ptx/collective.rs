//! What the lanes of a warp do together: shuffles, votes, matches, reductions, products of matrices.

use super::access::integer_function;
use super::decode::{Decoder, Modifiers, Result, expect_operands, refuse};
use super::program::{Op, Shuffle, Slot, Vote};
use super::syntax::{Operand, Statement};
use super::types::Type;

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    let op = match s.opcode.as_str() {
        "shfl" => shuffle(d, s, m)?,
        "vote" => vote(d, s, m)?,
        "match" => matching(d, s, m)?,
        "redux" => reduce(d, s, m)?,
        "activemask" => {
            m.kind(s)?;
            expect_operands(s, 1)?;
            Op::ActiveMask { to: d.destination(s, &s.operands[0], Type::B32)? }
        }
        "mma" => product(d, s, m)?,
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn synchronous(s: &Statement, m: &mut Modifiers<'_>) -> Result<()> {
    if m.take("sync") { Ok(()) } else { refuse(s, "`.sync` is due") }
}

fn shuffle(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    synchronous(s, m)?;
    let mode = m.take_known(|part| {
        Some(match part {
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            "idx" => Shuffle::Index,
            _ => return None,
        })
    });
    let Some(mode) = mode else { return refuse(s, "a mode is due") };
    if m.kind(s)?.bits() != 32 {
        return refuse(s, "32 bits are due");
    }
    expect_operands(s, 5)?;
    let mut from = [0; 3];
    for (number, slot) in from.iter_mut().enumerate() {
        *slot = d.source(s, &s.operands[number + 1], Type::B32)?;
    }
    let members = d.source(s, &s.operands[4], Type::B32)?;
    let (to, inside) = with_predicate(d, s)?;
    Ok(Op::Shuffle { to, inside, mode, from, members })
}

/// A destination of 32 bits, and a predicate beside it: `d|p`.
fn with_predicate(d: &mut Decoder<'_>, s: &Statement) -> Result<(Slot, Option<Slot>)> {
    match &s.operands[0] {
        Operand::Pair(to, predicate) => {
            let operand = Operand::Name { name: to.clone(), negated: false, offset: 0 };
            let to = d.destination(s, &operand, Type::B32)?;
            Ok((to, Some(d.predicate(s, predicate)?)))
        }
        operand => Ok((d.destination(s, operand, Type::B32)?, None)),
    }
}

fn vote(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    synchronous(s, m)?;
    let mode = m.take_known(|part| {
        Some(match part {
            "all" => Vote::All,
            "any" => Vote::Any,
            "uni" => Vote::Uniform,
            "ballot" => Vote::Ballot,
            _ => return None,
        })
    });
    let Some(mode) = mode else { return refuse(s, "a mode is due") };
    let kind = m.kind(s)?;
    expect_operands(s, 3)?;
    let to = match (mode, kind) {
        (Vote::Ballot, Type::B32) => d.destination(s, &s.operands[0], kind)?,
        (Vote::All | Vote::Any | Vote::Uniform, Type::Pred) => d.predicate_operand(s, 0)?,
        _ => return refuse(s, "another type is due"),
    };
    let of = d.test_of(s, &s.operands[1])?;
    Ok(Op::Vote { to, mode, of, members: d.source(s, &s.operands[2], Type::B32)? })
}

fn matching(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    synchronous(s, m)?;
    let all = m.take("all");
    if !all && !m.take("any") {
        return refuse(s, "one of `.any` and `.all` is due");
    }
    let kind = m.kind(s)?;
    expect_operands(s, 3)?;
    let of = d.source(s, &s.operands[1], kind)?;
    let members = d.source(s, &s.operands[2], Type::B32)?;
    let (to, same) = with_predicate(d, s)?;
    Ok(Op::Match { to, all, same, of, members })
}

fn reduce(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    synchronous(s, m)?;
    let kind = m.kind(s)?;
    let operation = m.take_known(|part| {
        ["add", "min", "max", "and", "or", "xor"].into_iter().find(|known| *known == part)
    });
    let function = operation.and_then(|operation| integer_function(operation, kind));
    let (Some(function), 32) = (function, kind.bits()) else { return refuse(s, "unknown reduction") };
    expect_operands(s, 3)?;
    let of = d.source(s, &s.operands[1], kind)?;
    let members = d.source(s, &s.operands[2], Type::B32)?;
    Ok(Op::Reduce { to: d.destination(s, &s.operands[0], kind)?, of, function, members })
}

fn product(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kinds = [m.kind(s)?, m.kind(s)?, m.kind(s)?, m.kind(s)?];
    let half = match kinds {
        [Type::F32, Type::F16, Type::F16, Type::F32] => true,
        [Type::F32, Type::Bf16, Type::Bf16, Type::F32] => false,
        _ => return refuse(s, "unknown types of a product"),
    };
    let deep = m.take("m16n8k16");
    let known =
        (deep || m.take("m16n8k8")) && m.take("sync") && m.take("aligned") && m.take("row") && m.take("col");
    if !known {
        return refuse(s, "unknown shape of a product");
    }
    expect_operands(s, 4)?;
    let mut fragment = |number: usize, count: usize| -> Result<Vec<Slot>> {
        let Operand::Vector(all) = &s.operands[number] else { return refuse(s, "expected a vector") };
        if all.len() != count {
            return refuse(s, format!("expected {count} registers"));
        }
        all.iter()
            .map(|operand| match number {
                0 => d.destination(s, operand, Type::F32),
                3 => d.source(s, operand, Type::F32),
                _ => d.source(s, operand, Type::B32),
            })
            .collect()
    };
    let a = fragment(1, if deep { 4 } else { 2 })?;
    let b = fragment(2, if deep { 2 } else { 1 })?;
    let c = fragment(3, 4)?;
    let to = fragment(0, 4)?;
    let (Ok(to), Ok(c)) = (to.try_into(), c.try_into()) else { return refuse(s, "expected 4 registers") };
    Ok(Op::MatrixProduct { to, a, b, c, half })
}
