//! Conversions between types.

use super::decode::{Decoder, Modifiers, Result, expect_operands, refuse};
use super::float::{BF16, F16, F32, F64, Format, Rounding};
use super::lanes::{Function, one, two};
use super::program::Op;
use super::syntax::Statement;
use super::types::{Type, sign_extend, truncate};

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    if s.opcode != "cvt" {
        return Ok(None);
    }
    let from = m.kind(s)?;
    let to = m.kind(s)?;
    if matches!(to, Type::F16x2 | Type::Bf16x2) {
        return pair(d, s, m, to, from).map(Some);
    }
    let options = Options {
        rounding: m.rounding(),
        whole: m.take_known(whole_number),
        away: m.take("rna"),
        flush: m.take("ftz"),
        saturate: m.take("sat"),
        relu: m.take("relu"),
    };
    expect_operands(s, 2)?;
    let (slot, to_bits) = d.destination_part(s, &s.operands[0], to)?;
    if to_bits > to.bits() && to.is_float() {
        return refuse(s, "the destination has another width");
    }
    let source = d.source_part(s, &s.operands[1], from)?;
    let function = match (from.is_integer(), to.is_integer()) {
        (true, true) => between_integers(s, options, from, to, to_bits)?,
        (true, false) => from_integer(s, options, from, to)?,
        (false, true) => to_integer(s, options, from, to, to_bits)?,
        (false, false) => between_floats(s, options, from, to)?,
    };
    Ok(Some(Op::Compute { to: slot, from: [source, 0, 0, 0], function }))
}

#[derive(Clone, Copy)]
struct Options {
    rounding: Option<Rounding>,
    /// `.rni` and its like: to a whole number.
    whole: Option<fn(f64) -> f64>,
    away: bool,
    flush: bool,
    saturate: bool,
    relu: bool,
}

fn whole_number(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "rni" => f64::round_ties_even,
        "rzi" => f64::trunc,
        "rmi" => f64::floor,
        "rpi" => f64::ceil,
        _ => return None,
    })
}

fn format_of(s: &Statement, kind: Type) -> Result<Format> {
    Ok(match kind {
        Type::F16 => F16,
        Type::Bf16 => BF16,
        Type::F32 => F32,
        Type::F64 => F64,
        _ => return refuse(s, "no conversion between these types"),
    })
}

/// Reads a floating-point number, a subnormal f32 as zero if `flush`.
fn reader(
    s: &Statement,
    kind: Type,
    flush: bool,
) -> Result<impl Fn(u64) -> f64 + Copy + Send + Sync + 'static> {
    let format = format_of(s, kind)?;
    let flush = flush && format == F32;
    let bits = kind.bits();
    Ok(move |value: u64| {
        let value = truncate(value, bits);
        if format == F64 {
            return f64::from_bits(value);
        }
        format.value(if flush { format.flush(value) } else { value })
    })
}

fn integer(value: u64, kind: Type) -> i128 {
    if kind.is_signed() {
        sign_extend(value, kind.bits()).into()
    } else {
        truncate(value, kind.bits()).into()
    }
}

/// The least and the greatest number of an integer type.
fn range(kind: Type) -> (i128, i128) {
    let bits = kind.bits();
    if kind.is_signed() { (-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn between_integers(s: &Statement, options: Options, from: Type, to: Type, to_bits: u32) -> Result<Function> {
    if options.rounding.is_some() || options.whole.is_some() || options.away || options.relu || options.flush
    {
        return refuse(s, "integers are not rounded");
    }
    let (low, high) = range(to);
    if options.saturate {
        return Ok(one(move |a: u64| truncate(integer(a, from).clamp(low, high) as u64, to_bits)));
    }
    let (from_bits, bits) = (from.bits(), to.bits());
    Ok(match (from.is_signed(), to.is_signed()) {
        (false, false) => one(move |a: u64| truncate(truncate(a, from_bits), bits)),
        (true, false) => one(move |a: u64| truncate(sign_extend(a, from_bits) as u64, bits)),
        (false, true) => {
            one(move |a: u64| truncate(sign_extend(truncate(a, from_bits), bits) as u64, to_bits))
        }
        (true, true) => {
            one(move |a: u64| truncate(sign_extend(sign_extend(a, from_bits) as u64, bits) as u64, to_bits))
        }
    })
}

fn from_integer(s: &Statement, options: Options, from: Type, to: Type) -> Result<Function> {
    let format = format_of(s, to)?;
    let Some(rounding) = options.rounding else { return refuse(s, "a rounding mode is due") };
    if options.whole.is_some() || options.away || options.relu {
        return refuse(s, "not a rounding of integers");
    }
    let saturate = options.saturate;
    Ok(one(move |a: u64| {
        let value = integer(a, from);
        let value = if saturate { value.clamp(0, 1) } else { value };
        format.round(value < 0, value.unsigned_abs(), 0, rounding)
    }))
}

fn to_integer(s: &Statement, options: Options, from: Type, to: Type, to_bits: u32) -> Result<Function> {
    let read = reader(s, from, options.flush)?;
    let Some(whole) = options.whole else { return refuse(s, "a rounding mode to integers is due") };
    let (low, high) = range(to);
    // What a NaN gives depends on both types.
    let of_nan = if from == Type::F64 || to.bits() == 64 { 1 << (to.bits() - 1) } else { 0 };
    Ok(one(move |a: u64| {
        let value = read(a);
        let number = if value.is_nan() { of_nan } else { (whole(value) as i128).clamp(low, high) };
        truncate(number as u64, to_bits)
    }))
}

fn between_floats(s: &Statement, options: Options, from: Type, to: Type) -> Result<Function> {
    let read = reader(s, from, options.flush)?;
    if to == Type::Tf32 {
        if from != Type::F32 || !options.away {
            return refuse(s, "`.rna` from f32 is due");
        }
        // A tf32 is an f32 without its lowest 13 bits.
        return Ok(one(
            |a: f32| if a.is_finite() { (a.to_bits() + 0x1000) & !0x1fff } else { a.to_bits() & !0x1fff },
        ));
    }
    let format = format_of(s, to)?;
    let narrows = from.bits() > to.bits() || from.bits() == to.bits() && from != to;
    if options.away || narrows && options.rounding.is_none() {
        return refuse(s, "a rounding mode is due");
    }
    let rounding = options.rounding.unwrap_or(Rounding::Nearest);
    let Options { whole, saturate, relu, .. } = options;
    let flush = options.flush && to == Type::F32;
    Ok(one(move |a: u64| {
        let mut value = read(a);
        if let Some(whole) = whole {
            value = whole(value);
        }
        if saturate {
            value = if value > 0.0 { value.min(1.0) } else { 0.0 };
        }
        if relu && value < 0.0 {
            value = 0.0;
        }
        let bits = format.round_f64(value, rounding);
        if flush { format.flush(bits) } else { bits }
    }))
}

/// Two f32 rounded into one register, the first operand in the upper half.
fn pair(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>, to: Type, from: Type) -> Result<Op> {
    let format = if to == Type::F16x2 { F16 } else { BF16 };
    let (rounding, relu) = (m.rounding(), m.take("relu"));
    if from != Type::F32 {
        return refuse(s, "a source of f32 is due");
    }
    let function = match rounding {
        Some(Rounding::Nearest) if format == BF16 && !relu => {
            two(|high: f32, low: f32| nearest_bf16(high) << 16 | nearest_bf16(low))
        }
        Some(rounding @ (Rounding::Nearest | Rounding::Zero)) => {
            let part = move |value: f32| {
                format.round_f64(f64::from(if relu && value < 0.0 { 0.0 } else { value }), rounding)
            };
            two(move |high: f32, low: f32| part(high) << 16 | part(low))
        }
        _ => return refuse(s, "`.rn` or `.rz` is due"),
    };
    d.compute(s, to, &[from; 2], function)
}

/// An f32 rounded to bf16, as what the general rounding gives but without branches: the most frequent conversion.
fn nearest_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { 0x7fff } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges() {
        assert_eq!(range(Type::S8), (-128, 127));
        assert_eq!(range(Type::U64), (0, u64::MAX.into()));
    }

    proptest! {
        #[test]
        fn both_roundings_to_bf16_agree(bits: u32) {
            let value = f32::from_bits(bits);
            let general = BF16.round_f64(value.into(), Rounding::Nearest);
            prop_assert_eq!(u64::from(nearest_bf16(value)), general);
        }
    }
}
