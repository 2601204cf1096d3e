//! Bitwise logic, shifts, permutations of bytes, and logic of predicates.

use super::decode::{Decoder, Modifiers, Result, expect_operands, refuse};
use super::integer::table;
use super::lanes::{one, three, two};
use super::program::{Combine, Op, Test};
use super::syntax::Statement;
use super::types::{Type, sign_extend, truncate};

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    let op = match s.opcode.as_str() {
        "and" | "or" | "xor" | "not" | "cnot" => {
            let kind = m.kind(s)?;
            if kind == Type::Pred {
                return predicates(d, s).map(Some);
            }
            let bits = kind.bits();
            match s.opcode.as_str() {
                "and" => d.compute(s, kind, &[kind; 2], two(|a: u64, b: u64| a & b))?,
                "or" => d.compute(s, kind, &[kind; 2], two(|a: u64, b: u64| a | b))?,
                "xor" => d.compute(s, kind, &[kind; 2], two(|a: u64, b: u64| a ^ b))?,
                "not" => d.compute(s, kind, &[kind], one(move |a: u64| truncate(!a, bits)))?,
                _ => d.compute(s, kind, &[kind], one(|a: u64| u64::from(a == 0)))?,
            }
        }
        "shl" => {
            let kind = m.kind(s)?;
            let bits = kind.bits();
            let function = two(move |a: u64, by: u32| if by < bits { truncate(a << by, bits) } else { 0 });
            d.compute(s, kind, &[kind, Type::U32], function)?
        }
        "shr" => {
            let kind = m.kind(s)?;
            let bits = kind.bits();
            let function = if kind.is_signed() {
                two(move |a: u64, by: u32| truncate((sign_extend(a, bits) >> by.min(bits - 1)) as u64, bits))
            } else {
                two(move |a: u64, by: u32| if by < bits { a >> by } else { 0 })
            };
            d.compute(s, kind, &[kind, Type::U32], function)?
        }
        "shf" => {
            let left = m.take("l");
            if !left && !m.take("r") {
                return refuse(s, "one of `.l` and `.r` is due");
            }
            let clamp = m.take("clamp");
            if !clamp && !m.take("wrap") {
                return refuse(s, "one of `.clamp` and `.wrap` is due");
            }
            let kind = m.kind(s)?;
            if kind != Type::B32 {
                return refuse(s, "32 bits are due");
            }
            let function = three(move |low: u32, high: u32, by: u32| {
                let by = if clamp { by.min(32) } else { by & 31 };
                let both = u64::from(high) << 32 | u64::from(low);
                if left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
            });
            d.compute(s, kind, &[kind, kind, Type::U32], function)?
        }
        "lop3" => {
            let kind = m.kind(s)?;
            let lut = table(s, 4)?;
            let to = d.destination(s, &s.operands[0], kind)?;
            let mut from = [0; 4];
            for (slot, operand) in from.iter_mut().zip(&s.operands[1..4]) {
                *slot = d.source(s, operand, kind)?;
            }
            let function = three(move |a: u32, b: u32, c: u32| {
                (0..8).filter(|n| lut >> n & 1 == 1).fold(0, |sum, n: u32| {
                    let of = |value: u32, bit: u32| if n >> bit & 1 == 1 { value } else { !value };
                    sum | of(a, 2) & of(b, 1) & of(c, 0)
                })
            });
            Op::Compute { to, from, function }
        }
        "prmt" => permute(d, s, m)?,
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn predicates(d: &mut Decoder<'_>, s: &Statement) -> Result<Op> {
    let combine = match s.opcode.as_str() {
        "and" => Combine::And,
        "or" => Combine::Or,
        "xor" => Combine::Xor,
        "not" => {
            expect_operands(s, 2)?;
            let to = d.predicate_operand(s, 0)?;
            let of = d.test_of(s, &s.operands[1])?;
            let from = Test { negated: !of.negated, ..of };
            return Ok(Op::Logic { to, from: [from; 2], combine: Combine::And });
        }
        _ => return refuse(s, "not for predicates"),
    };
    expect_operands(s, 3)?;
    let to = d.predicate_operand(s, 0)?;
    let from = [d.test_of(s, &s.operands[1])?, d.test_of(s, &s.operands[2])?];
    Ok(Op::Logic { to, from, combine })
}

fn permute(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let fixed = m.take_known(|part| {
        Some(match part {
            // For each selector, the bytes that it stands for.
            "f4e" => [0x3210, 0x4321, 0x5432, 0x6543],
            "b4e" => [0x5670, 0x6701, 0x7012, 0x0123],
            "rc8" => [0x0000, 0x1111, 0x2222, 0x3333],
            "ecl" => [0x3210, 0x3211, 0x3222, 0x3333],
            "ecr" => [0x0000, 0x1110, 0x2210, 0x3210],
            "rc16" => [0x1010, 0x3232, 0x1010, 0x3232],
            _ => return None,
        })
    });
    if !m.take("b32") {
        return refuse(s, "32 bits are due");
    }
    let function = three(move |a: u32, b: u32, selector: u32| {
        let bytes = u64::from(b) << 32 | u64::from(a);
        let selector = fixed.map_or(selector, |of| of[(selector & 3) as usize]);
        (0..4).fold(0, |word, n| {
            let select = selector >> (4 * n);
            let byte = (bytes >> (8 * (select & 7))) as u8;
            // Bit 3 copies the byte's sign into all of it.
            let byte = if select & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
            word | u32::from(byte) << (8 * n)
        })
    });
    d.compute(s, Type::B32, &[Type::B32, Type::B32, Type::U32], function)
}
