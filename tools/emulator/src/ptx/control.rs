//! Branches, ends, and barriers.

use super::decode::{Decoder, Modifiers, Result, expect_operands, refuse};
use super::program::{AtBarrier, Op};
use super::syntax::{Operand, Statement};
use super::types::Type;

/// Decodes an instruction of this group.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Option<Op>> {
    let op = match s.opcode.as_str() {
        "bra" => {
            m.take("uni");
            match &s.operands[..] {
                [Operand::Name { name, .. }] => Op::Branch(d.label(s, name)?),
                _ => return refuse(s, "expected a label"),
            }
        }
        "brx" => {
            m.take("uni");
            if !m.take("idx") {
                return refuse(s, "unknown instruction");
            }
            let [index, Operand::Name { name, .. }] = &s.operands[..] else {
                return refuse(s, "expected an index and a list of labels");
            };
            let index = d.source(s, index, Type::U32)?;
            Op::BranchIndexed { index, targets: d.branch_targets(s, name)? }
        }
        "ret" => {
            m.take("uni");
            expect_operands(s, 0)?;
            d.return_label().map_or(Op::Exit, Op::Branch)
        }
        "exit" => {
            expect_operands(s, 0)?;
            Op::Exit
        }
        "trap" | "brkpt" => Op::Trap,
        "bar" | "barrier" => barrier(d, s, m)?,
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn barrier(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    if m.take("warp") {
        if !m.take("sync") {
            return refuse(s, "unknown instruction");
        }
        expect_operands(s, 1)?;
        return Ok(Op::SyncWarp { members: d.source(s, &s.operands[0], Type::B32)? });
    }
    m.take("cta");
    if s.opcode == "barrier" && !m.take("aligned") {
        return refuse(s, "only `.aligned` barriers are known");
    }
    if m.take("red") {
        return reduction(d, s, m);
    }
    let arrives = m.take("arrive");
    if !arrives && !m.take("sync") {
        return refuse(s, "one of `.sync`, `.arrive` and `.red` is due");
    }
    let (id, threads) = match &s.operands[..] {
        [id] if !arrives => (id, None),
        [id, threads] => (id, Some(threads)),
        _ => return refuse(s, "expected a barrier and a number of threads"),
    };
    let id = d.source(s, id, Type::U32)?;
    let threads = threads.map(|threads| d.source(s, threads, Type::U32)).transpose()?;
    let action = if arrives { AtBarrier::Arrive } else { AtBarrier::Wait };
    Ok(Op::Barrier { action, id, threads })
}

fn reduction(d: &mut Decoder<'_>, s: &Statement, m: &mut Modifiers<'_>) -> Result<Op> {
    let kind = m.kind(s)?;
    let (id, threads, of) = match &s.operands[..] {
        [_, id, of] => (id, None, of),
        [_, id, threads, of] => (id, Some(threads), of),
        _ => return refuse(s, "expected a barrier and a predicate"),
    };
    let of = d.test_of(s, of)?;
    let id = d.source(s, id, Type::U32)?;
    let threads = threads.map(|threads| d.source(s, threads, Type::U32)).transpose()?;
    let action = match kind {
        Type::U32 if m.take("popc") => AtBarrier::Count { to: d.destination(s, &s.operands[0], kind)?, of },
        Type::Pred if m.take("and") => AtBarrier::All { to: d.predicate_operand(s, 0)?, of },
        Type::Pred if m.take("or") => AtBarrier::Any { to: d.predicate_operand(s, 0)?, of },
        _ => return refuse(s, "unknown reduction"),
    };
    Ok(Op::Barrier { action, id, threads })
}
