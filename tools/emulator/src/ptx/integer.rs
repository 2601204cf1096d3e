//! Integer arithmetic.

use super::decode::{Decoder, Modifiers, Result, expect_operands, immediate, refuse};
use super::lanes::{Function, four, one, three, two, with_integer};
use super::program::Op;
use super::syntax::Statement;
use super::types::{Type, sign_extend, truncate};

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    let last = m.last_type();
    if last.is_some_and(Type::is_float) {
        return Ok(None);
    }
    let op = match s.opcode.as_str() {
        "add" | "sub" => add(d, s, m)?,
        "mul" | "mad" => multiply(d, s, m)?,
        "mul24" | "mad24" => multiply_24(d, s, m)?,
        "div" | "rem" | "min" | "max" => {
            let kind = m.kind(s)?;
            let function = match s.opcode.as_str() {
                // A division by zero gives what cards give, all ones; the remainder is then the dividend.
                "div" => {
                    with_integer!(kind, T => two(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) }))
                }
                "rem" => {
                    with_integer!(kind, T => two(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }))
                }
                "min" => with_integer!(kind, T => two(|a: T, b: T| a.min(b))),
                _ => with_integer!(kind, T => two(|a: T, b: T| a.max(b))),
            };
            uniform(d, s, kind, 2, function)?
        }
        "abs" | "neg" => {
            let kind = m.kind(s)?;
            let negate = s.opcode == "neg";
            let function = match kind {
                Type::S16 => one(move |a: i16| if negate || a < 0 { a.wrapping_neg() } else { a }),
                Type::S32 => one(move |a: i32| if negate || a < 0 { a.wrapping_neg() } else { a }),
                Type::S64 => one(move |a: i64| if negate || a < 0 { a.wrapping_neg() } else { a }),
                _ => return refuse(s, "a signed integer is due"),
            };
            d.compute(s, kind, &[kind], function)?
        }
        "sad" => {
            let kind = m.kind(s)?;
            let function = with_integer!(kind, T => {
                three(|a: T, b: T, c: T| (if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) }).wrapping_add(c))
            });
            uniform(d, s, kind, 3, function)?
        }
        "popc" | "clz" | "bfind" => count_bits(d, s, m)?,
        "brev" => {
            let kind = m.kind(s)?;
            let bits = kind.bits();
            d.compute(s, kind, &[kind], one(move |a: u64| a.reverse_bits() >> (64 - bits)))?
        }
        "bfe" => {
            let kind = wide_enough(s, m.kind(s)?)?;
            let (bits, signed) = (kind.bits(), kind.is_signed());
            let function =
                three(move |a: u64, at: u32, length: u32| extract(a, at & 255, length & 255, bits, signed));
            d.compute(s, kind, &[kind, Type::U32, Type::U32], function)?
        }
        "bfi" => {
            let kind = wide_enough(s, m.kind(s)?)?;
            let bits = kind.bits();
            let function =
                four(move |a: u64, b: u64, at: u32, length: u32| insert(a, b, at & 255, length & 255, bits));
            d.compute(s, kind, &[kind, kind, Type::U32, Type::U32], function)?
        }
        "dp4a" => {
            let (b, a) = (m.kind(s)?, m.kind(s)?);
            let signed = |kind| match kind {
                Type::U32 => Ok(false),
                Type::S32 => Ok(true),
                _ => refuse(s, "a 32-bit integer is due"),
            };
            let (a_signed, b_signed) = (signed(a)?, signed(b)?);
            let of = |value: u32, byte: u32, signed: bool| {
                let byte = value >> (8 * byte) & 255;
                if signed { byte as u8 as i8 as i32 } else { byte as i32 }
            };
            let function = three(move |a: u32, b: u32, c: i32| {
                (0..4).fold(c, |sum, n| sum.wrapping_add(of(a, n, a_signed) * of(b, n, b_signed)))
            });
            d.compute(s, Type::S32, &[a, b, Type::S32], function)?
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

/// An instruction whose operands all have one type.
fn uniform(
    d: &mut Decoder<'_>,
    s: &Statement,
    kind: Type,
    sources: usize,
    function: Option<Function>,
) -> Result<Op> {
    match function {
        Some(function) => d.compute(s, kind, &[kind; 4][..sources], function),
        None => refuse(s, "an integer of 16, 32 or 64 bits is due"),
    }
}

fn add(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let subtract = s.opcode == "sub";
    let function = match (m.take("sat"), subtract) {
        (true, _) if kind != Type::S32 => return refuse(s, "`.sat` is for s32"),
        (true, false) => Some(two(|a: i32, b: i32| a.saturating_add(b))),
        (true, true) => Some(two(|a: i32, b: i32| a.saturating_sub(b))),
        (false, false) => with_integer!(kind, T => two(|a: T, b: T| a.wrapping_add(b))),
        (false, true) => with_integer!(kind, T => two(|a: T, b: T| a.wrapping_sub(b))),
    };
    uniform(d, s, kind, 2, function)
}

fn multiply(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let adds = s.opcode == "mad";
    if m.take("wide") {
        let (wide, function) = match (kind, adds) {
            (Type::U16, false) => (Type::U32, two(|a: u16, b: u16| u32::from(a) * u32::from(b))),
            (Type::S16, false) => (Type::S32, two(|a: i16, b: i16| i32::from(a) * i32::from(b))),
            (Type::U32, false) => (Type::U64, two(|a: u32, b: u32| u64::from(a) * u64::from(b))),
            (Type::S32, false) => (Type::S64, two(|a: i32, b: i32| i64::from(a) * i64::from(b))),
            (Type::U16, true) => {
                (Type::U32, three(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)))
            }
            (Type::S16, true) => {
                (Type::S32, three(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)))
            }
            (Type::U32, true) => {
                (Type::U64, three(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)))
            }
            (Type::S32, true) => {
                (Type::S64, three(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)))
            }
            _ => return refuse(s, "`.wide` is for integers of 16 or 32 bits"),
        };
        return d.compute(s, wide, &[kind, kind, wide][..2 + usize::from(adds)], function);
    }
    if m.take("hi") {
        let function = match adds {
            false => with_integer!(kind, T => two(|a: T, b: T| high(a.into(), b.into(), T::BITS) as T)),
            true => with_integer!(kind, T => {
                three(|a: T, b: T, c: T| (high(a.into(), b.into(), T::BITS) as T).wrapping_add(c))
            }),
        };
        return uniform(d, s, kind, 2 + usize::from(adds), function);
    }
    if !m.take("lo") {
        return refuse(s, "one of `.lo`, `.hi` and `.wide` is due");
    }
    let function = match adds {
        false => with_integer!(kind, T => two(|a: T, b: T| a.wrapping_mul(b))),
        true => with_integer!(kind, T => three(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c))),
    };
    uniform(d, s, kind, 2 + usize::from(adds), function)
}

/// The upper half of a product of two numbers of `bits` bits; what 128 bits cannot hold is above it.
fn high(a: i128, b: i128, bits: u32) -> i128 {
    a.wrapping_mul(b) >> bits
}

fn multiply_24(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let signed = match kind {
        Type::U32 => false,
        Type::S32 => true,
        _ => return refuse(s, "a 32-bit integer is due"),
    };
    let shift = match (m.take("lo"), m.take("hi")) {
        (true, false) => 0,
        (false, true) => 16,
        _ => return refuse(s, "one of `.lo` and `.hi` is due"),
    };
    let part = move |a: u64| if signed { sign_extend(a, 24) } else { truncate(a, 24) as i64 };
    let product = move |a: u64, b: u64| ((part(a) * part(b)) >> shift) as u32;
    if s.opcode == "mul24" {
        return d.compute(s, kind, &[kind; 2], two(product));
    }
    d.compute(s, kind, &[kind; 3], three(move |a: u64, b: u64, c: u32| product(a, b).wrapping_add(c)))
}

fn count_bits(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = wide_enough(s, m.kind(s)?)?;
    let (bits, signed) = (kind.bits(), kind.is_signed());
    let function = match s.opcode.as_str() {
        "popc" => one(|a: u64| a.count_ones()),
        "clz" => one(move |a: u64| a.leading_zeros() - (64 - bits)),
        _ => {
            let shift = m.take("shiftamt");
            one(move |a: u64| {
                let a = if signed && sign_extend(a, bits) < 0 { truncate(!a, bits) } else { a };
                match a.checked_ilog2() {
                    Some(top) if shift => bits - 1 - top,
                    Some(top) => top,
                    None => u32::MAX,
                }
            })
        }
    };
    d.compute(s, Type::U32, &[kind], function)
}

fn wide_enough(s: &Statement, kind: Type) -> Result<Type> {
    if kind.bits() >= 32 { Ok(kind) } else { refuse(s, "32 or 64 bits are due") }
}

/// The lowest `length` bits set.
fn ones(length: u32) -> u64 {
    if length >= 64 { u64::MAX } else { (1 << length) - 1 }
}

/// `length` bits of `a` from bit `at` on; above them zeros or copies of the highest of them, or of `a`.
fn extract(a: u64, at: u32, length: u32, bits: u32, signed: bool) -> u64 {
    let there = length.min(bits.saturating_sub(at));
    let field = if at < bits { a >> at & ones(there) } else { 0 };
    let negative = signed && length > 0 && a >> (at + length - 1).min(bits - 1) & 1 == 1;
    truncate(if negative { field | !ones(there) } else { field }, bits)
}

/// `b` with its `length` bits from bit `at` on taken from `a`.
fn insert(a: u64, b: u64, at: u32, length: u32, bits: u32) -> u64 {
    if at >= bits {
        return b;
    }
    let field = truncate(ones(length) << at, bits);
    b & !field | a << at & field
}

/// Decodes `lop3`'s table.
pub(super) fn table(s: &Statement, number: usize) -> Result<u32> {
    expect_operands(s, number + 1)?;
    match immediate(s, &s.operands[number], Type::U32)? {
        table @ 0..=255 => Ok(table as u32),
        _ => refuse(s, "the table has more than 8 bits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bit_fields_by_their_definition(a: u32, b: u32, at in 0u32..256, length in 0u32..256, signed: bool) {
            let bit = |value: u32, n: u32| value >> n & 1;
            let sign = if !signed || length == 0 { 0 } else { bit(a, (at + length - 1).min(31)) };
            let (mut extracted, mut inserted) = (0, b);
            for n in 0..32 {
                let inside = n < length && at + n <= 31;
                extracted |= (if inside { bit(a, at + n) } else { sign }) << n;
                if inside {
                    inserted = inserted & !(1 << (at + n)) | bit(a, n) << (at + n);
                }
            }
            prop_assert_eq!(extract(a.into(), at, length, 32, signed), u64::from(extracted));
            prop_assert_eq!(insert(a.into(), b.into(), at, length, 32), u64::from(inserted));
        }

        #[test]
        fn upper_halves(a: u64, b: u64) {
            let wide = u128::from(a) * u128::from(b);
            prop_assert_eq!(high(a.into(), b.into(), 64) as u64, (wide >> 64) as u64);
            let wide = i128::from(a as i64) * i128::from(b as i64);
            prop_assert_eq!(high((a as i64).into(), (b as i64).into(), 64) as i64, (wide >> 64) as i64);
        }
    }
}
