//! Moves between registers, and addresses of variables.

use super::decode::{Decoder, Modifiers, Result, expect_operands, refuse};
use super::lanes::{one, untyped};
use super::memory::window;
use super::program::{Combine, Op};
use super::syntax::{Operand, Space, Statement};
use super::types::Type;

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    match s.opcode.as_str() {
        "mov" => mov(d, s, m).map(Some),
        "cvta" => address_conversion(d, s, m).map(Some),
        _ => Ok(None),
    }
}

fn mov(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    expect_operands(s, 2)?;
    match (&s.operands[0], &s.operands[1]) {
        (_, of) if kind == Type::Pred => {
            let to = d.predicate_operand(s, 0)?;
            let from = d.test_of(s, of)?;
            Ok(Op::Logic { to, from: [from; 2], combine: Combine::And })
        }
        (Operand::Vector(parts), from) => {
            let part = part_of(s, kind, parts.len())?;
            let from = d.source(s, from, kind)?;
            let to = parts.iter().map(|operand| d.destination(s, operand, part)).collect::<Result<_>>()?;
            Ok(Op::Unpack { to, from, bits: part.bits() })
        }
        (_, Operand::Vector(parts)) => {
            let part = part_of(s, kind, parts.len())?;
            let from = parts.iter().map(|operand| d.source(s, operand, part)).collect::<Result<_>>()?;
            let to = d.destination(s, &s.operands[0], kind)?;
            Ok(Op::Pack { to, from, bits: part.bits() })
        }
        (_, Operand::Name { name, .. })
            if matches!(name.as_str(), "%clock" | "%clock64" | "%globaltimer") =>
        {
            Ok(Op::Clock { to: d.destination(s, &s.operands[0], kind)? })
        }
        _ => d.compute(s, kind, &[kind], one(|a: u64| a)),
    }
}

fn part_of(s: &Statement, kind: Type, parts: usize) -> Result<Type> {
    Ok(match (kind.bits(), parts) {
        (64, 2) => Type::B32,
        (64, 4) | (32, 2) => Type::B16,
        (64, 8) | (32, 4) | (16, 2) => Type::B8,
        _ => return refuse(s, "not so many parts"),
    })
}

fn address_conversion(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let from_generic = m.take("to");
    let space = m.take_known(|part| {
        Some(match part {
            "global" => Space::Global,
            "const" => Space::Constant,
            "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
            "local" => Space::Local,
            "param" | "param::entry" => Space::Parameter,
            _ => return None,
        })
    });
    let Some(space) = space else { return refuse(s, "a space is due") };
    if kind != Type::U64 {
        return refuse(s, "addresses of 64 bits are due");
    }
    let window = window(space);
    let kind = untyped(kind);
    let function = if from_generic {
        one(move |a: u64| a.wrapping_sub(window))
    } else {
        one(move |a: u64| a.wrapping_add(window))
    };
    d.compute(s, kind, &[kind], function)
}
