//! Where the lanes of a warp come together again.

use super::program::{Instruction, Op};

/// The instructions at which a lane has gone round the instruction `at`: every way from `at` to the end goes through them,
/// and none leads from them back to it. The kernel's end is none of them, since threads may end early.
pub(super) fn beyond(code: &[Instruction], at: usize) -> Vec<u32> {
    let next = |from: usize| {
        let here = &code[from];
        let falls = !here.op.leaves() || here.guard.is_some();
        here.op.targets().iter().map(|&target| target as usize).chain(falls.then_some(from + 1))
    };
    let after = post_dominators(code.len(), &next);
    let leads_back = leading_to(code.len(), at, &next);
    let mut all = Vec::new();
    let mut behind = after[at];
    while behind < code.len() {
        if !leads_back[behind] && !matches!(code[behind].op, Op::Exit) {
            all.push(behind as u32);
        }
        behind = after[behind];
    }
    all
}

/// The immediate post-dominator of each instruction; the code's length stands for the end.
fn post_dominators<N: Iterator<Item = usize>>(length: usize, next: &impl Fn(usize) -> N) -> Vec<usize> {
    let end = length;
    let mut before = vec![Vec::new(); length + 1];
    for at in 0..length {
        let mut any = false;
        for to in next(at) {
            before[to.min(end)].push(at);
            any = true;
        }
        if !any {
            before[end].push(at);
        }
    }
    // Post-order of the reversed graph, from the end; instructions that never end stay out of it.
    let mut rank = vec![usize::MAX; length + 1];
    let mut order = Vec::new();
    let mut seen = vec![false; length + 1];
    let mut stack = vec![(end, 0)];
    seen[end] = true;
    while let Some((at, child)) = stack.pop() {
        if let Some(&from) = before[at].get(child) {
            stack.push((at, child + 1));
            if !seen[from] {
                seen[from] = true;
                stack.push((from, 0));
            }
        } else {
            rank[at] = order.len();
            order.push(at);
        }
    }
    let mut immediate = vec![usize::MAX; length + 1];
    immediate[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &at in order.iter().rev().filter(|&&at| at != end) {
            let mut best = usize::MAX;
            let exits = next(at).next().is_none().then_some(end);
            for to in next(at).map(|to| to.min(end)).chain(exits).filter(|&to| immediate[to] != usize::MAX) {
                best = if best == usize::MAX { to } else { common(best, to, &immediate, &rank) };
            }
            if immediate[at] != best {
                immediate[at] = best;
                changed = true;
            }
        }
    }
    for at in &mut immediate {
        *at = (*at).min(end);
    }
    immediate.truncate(length);
    immediate
}

fn common(mut a: usize, mut b: usize, immediate: &[usize], rank: &[usize]) -> usize {
    while a != b {
        while rank[a] < rank[b] {
            a = immediate[a];
        }
        while rank[b] < rank[a] {
            b = immediate[b];
        }
    }
    a
}

/// Whether a way leads from each instruction to `at`.
fn leading_to<N: Iterator<Item = usize>>(length: usize, at: usize, next: &impl Fn(usize) -> N) -> Vec<bool> {
    let mut before = vec![Vec::new(); length + 1];
    for from in 0..length {
        next(from).for_each(|to| before[to.min(length)].push(from));
    }
    let mut leads = vec![false; length];
    let mut stack = vec![at];
    while let Some(to) = stack.pop() {
        for &from in &before[to] {
            if !std::mem::replace(&mut leads[from], true) {
                stack.push(from);
            }
        }
    }
    leads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::program::Test;

    /// `b`: barrier, `n`: nothing, `e`: exit; `j5`: jump, `c5`: jump of some lanes.
    fn code(text: &str) -> Vec<Instruction> {
        let of = |word: &str| {
            let target = word[1..].parse().unwrap_or(0);
            let (op, guarded) = match &word[..1] {
                "b" => {
                    (Op::MatrixProduct { to: [0; 4], a: vec![], b: vec![], c: [0; 4], half: false }, false)
                }
                "e" => (Op::Exit, false),
                "j" => (Op::Branch(target), false),
                "c" => (Op::Branch(target), true),
                _ => (Op::Nothing, false),
            };
            let guard = guarded.then_some(Test { predicate: 0, negated: false });
            Instruction { guard, op, line: 0, text: String::new(), asm: None }
        };
        text.split(' ').map(of).collect()
    }

    #[test]
    fn common_shapes() {
        let cases: [(&str, usize, &[u32]); 8] = [
            // An if around the barrier; one around it and something behind it; one before it.
            ("c2 b n e", 1, &[2]),
            ("c3 b n n e", 1, &[2, 3]),
            ("c2 n b n e", 2, &[3]),
            // A loop around it, entered by all or not by all; a barrier behind an inner loop in an outer one.
            ("b c0 n e", 0, &[2]),
            ("c3 b c1 n e", 1, &[3]),
            ("n c1 b c0 n e", 2, &[4]),
            // Early exits: all go to the one end, or have ends of their own.
            ("c3 b n e", 1, &[2]),
            ("c3 b e e", 1, &[]),
        ];
        for (text, at, expected) in cases {
            assert_eq!(beyond(&code(text), at), expected, "{text}");
        }
    }

    #[test]
    fn code_without_an_end() {
        assert_eq!(beyond(&code("b j0"), 0), []);
    }
}
