//! Loads, stores, atomic operations and asynchronous copies.

use super::decode::{Decoder, Modifiers, Result, expect_operands, immediate, refuse};
use super::float::{canonical, flush};
use super::lanes::{Value, with_integer};
use super::program::{AtomicFunction, Op, Slot, Test};
use super::syntax::{Operand, Space, Statement};
use super::types::Type;

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    let op = match s.opcode.as_str() {
        "ld" | "ldu" => load(d, s, m)?,
        "st" => store(d, s, m)?,
        "atom" | "red" => atomic(d, s, m)?,
        "cp" => copy(d, s, m)?,
        "ldmatrix" => load_matrix(d, s, m)?,
        // Hints, and orders of accesses that are in order here.
        "prefetch" | "prefetchu" | "membar" | "fence" | "nanosleep" | "discard" | "applypriority" => {
            m.drop_all(|_| true);
            Op::Nothing
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn space(m: &mut Modifiers<'_>) -> Space {
    let known = m.take_known(|part| {
        Some(match part {
            "global" => Space::Global,
            "const" => Space::Constant,
            "shared" | "shared::cta" => Space::Shared,
            "local" => Space::Local,
            "param" | "param::entry" | "param::func" => Space::Parameter,
            _ => return None,
        })
    });
    known.unwrap_or(Space::Generic)
}

/// Drops the parts of an opcode that are about caches and the order of accesses.
fn drop_hints(m: &mut Modifiers<'_>) {
    const HINTS: [&str; 20] = [
        "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "cta", "cluster", "gpu", "sys",
        "mmio", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
    ];
    m.drop_all(|part| {
        HINTS.contains(&part) || part.starts_with("L1::") || part.starts_with("L2::") && part != POLICY
    });
}

/// The hint that comes with an operand.
const POLICY: &str = "L2::cache_hint";

/// How many registers a vector has.
fn vector(m: &mut Modifiers<'_>) -> usize {
    let known = m.take_known(|part| match part {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    });
    known.unwrap_or(1)
}

fn elements<'s>(s: &'s Statement, operand: &'s Operand, count: usize) -> Result<&'s [Operand]> {
    let all = match operand {
        Operand::Vector(all) => &all[..],
        one => std::slice::from_ref(one),
    };
    if all.len() == count { Ok(all) } else { refuse(s, format!("expected {count} registers")) }
}

fn load(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = memory_type(s, m)?;
    let count = vector(m);
    drop_hints(m);
    let space = space(m);
    expect_operands(s, 2 + usize::from(m.take(POLICY)))?;
    let at = d.address(s, &s.operands[1], space)?;
    let (mut to, mut to_bits) = (Vec::new(), kind.bits());
    for operand in elements(s, &s.operands[0], count)? {
        let (slot, bits) = d.destination_part(s, operand, kind)?;
        to.push(slot);
        to_bits = to_bits.max(bits);
    }
    Ok(Op::Load { to, kind, to_bits, at })
}

fn store(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = memory_type(s, m)?;
    let count = vector(m);
    drop_hints(m);
    let space = space(m);
    expect_operands(s, 2 + usize::from(m.take(POLICY)))?;
    let at = d.address(s, &s.operands[0], space)?;
    let operands = elements(s, &s.operands[1], count)?;
    let from = operands.iter().map(|operand| d.source_part(s, operand, kind)).collect::<Result<_>>()?;
    Ok(Op::Store { from, kind, at })
}

fn memory_type(s: &Statement, m: &mut Modifiers<'_>) -> Result<Type> {
    match m.kind(s)? {
        Type::Pred => refuse(s, "predicates are not in memory"),
        kind => Ok(kind),
    }
}

fn atomic(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    drop_hints(m);
    let space = space(m);
    let operation = m.take_known(|part| {
        const KNOWN: [&str; 10] = ["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];
        KNOWN.into_iter().find(|known| *known == part)
    });
    let Some(operation) = operation else { return refuse(s, "an operation is due") };
    if kind.bits() < 32 {
        return refuse(s, "32 or 64 bits are due");
    }
    let Some(function) = atomic_function(operation, kind, space) else {
        return refuse(s, "not an operation of this type");
    };
    let gives = s.opcode == "atom";
    let operands = &s.operands[usize::from(gives).min(s.operands.len())..];
    let sources = if operation == "cas" { 2 } else { 1 };
    expect_operands(s, usize::from(gives) + 1 + sources)?;
    let at = d.address(s, &operands[0], space)?;
    let mut from = [0; 2];
    for (number, operand) in operands[1..].iter().enumerate() {
        // An operation of one operand has it twice.
        from[number..].fill(d.source(s, operand, kind)?);
    }
    let to = if gives { Some(d.destination(s, &s.operands[0], kind)?) } else { None };
    Ok(Op::Atomic { to, kind, at, from, function })
}

/// What an atomic operation leaves in memory, from what was there and its operands.
fn atomic_function(operation: &str, kind: Type, space: Space) -> Option<AtomicFunction> {
    if operation == "cas" || operation == "exch" {
        let swaps = operation == "cas";
        return Some(Box::new(move |old, a, b| match swaps {
            true if old == a => b,
            true => old,
            false => a,
        }));
    }
    match kind {
        Type::F32 if operation == "add" => {
            // Cards flush subnormal numbers in global memory only.
            let flushes = space == Space::Global;
            let of = move |value: f32| if flushes { flush(value) } else { value };
            Some(Box::new(move |old, a, _| of(canonical(of(f32::of(old)) + of(f32::of(a)))).bits()))
        }
        Type::F64 if operation == "add" => Some(Box::new(|old, a, _| (f64::of(old) + f64::of(a)).bits())),
        _ => integer_function(operation, kind),
    }
}

/// An operation on two integers that both atomic operations and reductions of a warp know.
pub(super) fn integer_function(operation: &str, kind: Type) -> Option<AtomicFunction> {
    macro_rules! of {
        ($f:expr) => {
            with_integer!(kind, T => {
                let f: fn(T, T) -> T = $f;
                Box::new(move |old, a, _| f(T::of(old), T::of(a)).bits()) as AtomicFunction
            })
        };
    }
    match operation {
        "add" => of!(|old, a| old.wrapping_add(a)),
        "min" => of!(|old, a| old.min(a)),
        "max" => of!(|old, a| old.max(a)),
        "and" => of!(|old, a| old & a),
        "or" => of!(|old, a| old | a),
        "xor" => of!(|old, a| old ^ a),
        "inc" if kind == Type::U32 => Some(Box::new(|old, a, _| if old >= a { 0 } else { old + 1 })),
        "dec" if kind == Type::U32 => {
            Some(Box::new(|old, a, _| if old == 0 || old > a { a } else { old - 1 }))
        }
        _ => None,
    }
}

fn copy(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    if !m.take("async") {
        return refuse(s, "unknown instruction");
    }
    if m.take("commit_group") {
        expect_operands(s, 0)?;
        return Ok(Op::CopyCommit);
    }
    if m.take("wait_all") {
        expect_operands(s, 0)?;
        return Ok(Op::CopyWait(None));
    }
    if m.take("wait_group") {
        expect_operands(s, 1)?;
        return Ok(Op::CopyWait(Some(immediate(s, &s.operands[0], Type::U32)? as u32)));
    }
    let (around_l1, through_l1) = (m.take("cg"), m.take("ca"));
    let to_shared = m.take("shared") || m.take("shared::cta");
    if around_l1 == through_l1 || !to_shared || !m.take("global") {
        return refuse(s, "unknown kind of copy");
    }
    m.drop_all(|part| part.starts_with("L2::") && part != POLICY);
    let policies = usize::from(m.take(POLICY));
    let Some(sources) = s.operands.len().checked_sub(policies).filter(|count| (3..=4).contains(count)) else {
        return refuse(s, "expected 3 or 4 operands");
    };
    let to = d.address(s, &s.operands[0], Space::Shared)?;
    let from = d.address(s, &s.operands[1], Space::Global)?;
    let bytes = immediate(s, &s.operands[2], Type::U32)? as u32;
    if !(bytes == 16 || through_l1 && matches!(bytes, 4 | 8)) {
        return refuse(s, "a copy has 16 bytes, or 4 or 8 with `.ca`");
    }
    let (mut read, mut skip): (Option<Slot>, Option<Test>) = (None, None);
    if sources == 4 {
        if d.is_predicate(&s.operands[3])? {
            skip = Some(d.test_of(s, &s.operands[3])?);
        } else {
            read = Some(d.source(s, &s.operands[3], Type::U32)?);
        }
    }
    Ok(Op::CopyAsync { to, from, bytes, read, skip })
}

fn load_matrix(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let whole = m.take("sync") && m.take("aligned") && m.take("m8n8");
    let count = m.take_known(|part| match part {
        "x1" => Some(1),
        "x2" => Some(2),
        "x4" => Some(4),
        _ => None,
    });
    let (true, Some(count)) = (whole, count) else { return refuse(s, "unknown kind of matrix") };
    let transposed = m.take("trans");
    let space = space(m);
    if m.kind(s)? != Type::B16 || !matches!(space, Space::Shared | Space::Generic) {
        return refuse(s, "unknown kind of matrix");
    }
    expect_operands(s, 2)?;
    let operands = elements(s, &s.operands[0], count)?;
    let to = operands.iter().map(|operand| d.destination(s, operand, Type::B32)).collect::<Result<_>>()?;
    Ok(Op::LoadMatrix { to, transposed, at: d.address(s, &s.operands[1], space)? })
}
