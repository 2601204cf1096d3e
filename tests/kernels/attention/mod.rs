//! Attention over sets.

mod aims;
pub mod backward;
mod bugs;
mod cost;
pub mod counted;
pub mod forward;
mod launcher;

use std::ops::Range;

use half::bf16;
use setrank::device::Limits;
use setrank::ops::attention::check::{BackwardProblem, Problem};
use setrank::ops::attention::{Heads, Roles};

use crate::family::{Case, Family};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family = Family {
    name: "attention",
    cases,
    counted: counted::problems,
    bugs: &bugs::IN_SOURCES,
    wrong_launches: &bugs::IN_LAUNCHES,
};

/// Every role, of few points and of many; each has sets of several tiles of queries, or of keys, or of both.
const ROLES: [Roles; 5] = [
    Roles::Documents,
    Roles::Induce { points: 20 },
    Roles::Induce { points: 100 },
    Roles::Attend { points: 20 },
    Roles::Attend { points: 100 },
];

/// Every role, with as many points as there may be.
const LONGEST: [Roles; 3] = [Roles::Documents, Roles::Induce { points: 128 }, Roles::Attend { points: 128 }];

/// Head widths, and whether there is dropout: each a kernel of every kind.
const KERNELS: [(usize, bool); 4] = [(32, false), (32, true), (64, false), (64, true)];

/// A card with so many KiB of shared memory for all blocks of a multiprocessor, and so many of those.
fn card(kib: u32, multiprocessors: u32) -> Limits {
    Limits { shared_per_multiprocessor: kib << 10, multiprocessors, ..Limits::SM_90 }
}

/// The same with scores that rise from the 17th key of long sets on, as they hardly ever do otherwise: what was summed
/// before has to be brought to their scale.
pub fn rising(mut problem: Problem) -> Problem {
    let (heads, roles, offsets) = (problem.heads(), problem.roles(), problem.offsets().to_vec());
    let [_, kv] = problem.qkv_mut();
    let key_rows = kv.len() / 2 / heads.hidden();
    for (set, ends) in offsets.windows(2).enumerate().filter(|(_, ends)| ends[1] - ends[0] >= 33) {
        let keys = match roles {
            Roles::Attend { points } => set * points..(set + 1) * points,
            _ => ends[0]..ends[1],
        };
        for head in 0..heads.count {
            let rows = head * key_rows + keys.start + 16..head * key_rows + keys.end;
            let values = &mut kv[rows.start * heads.width..rows.end * heads.width];
            values.iter_mut().for_each(|value| *value *= bf16::from_f32(8.0));
        }
    }
    problem
}

/// Of forward: groups of 1, 2 and 4 warps, and passes of every number of tiles of queries, where all keys stay and where
/// they are streamed; sets that are one group's or, on a card with many multiprocessors, several; and points that share
/// out the keys.
fn forward_cases(number: usize, width: usize, dropout: bool) -> [Case; 2] {
    let documents: &[usize] = &[1, 2, 17, 31, 33, 64, 0, 200, 65];
    let (limits, roles, sizes) = [
        (card(81, 1), Roles::Documents, documents),
        (card(16, 132), Roles::Documents, documents),
        (Limits::SM_90, Roles::Attend { points: 100 }, &[1, 2, 0, 3, 5, 33, 200]),
        (card(16, 1), Roles::Documents, documents),
    ][number];
    let points = (Roles::Induce { points: 20 }, [&[1, 33, 190], &[1, 33, 200]][number % 2]);
    [(limits, roles, sizes), (card(16, 132), points.0, points.1)].map(|(limits, roles, sizes)| {
        let problem = Problem::random(roles, sizes, Heads { count: 2, width }, width as u64);
        Case::new(limits, rising(problem.with_dropout(if dropout { 0.3 } else { 0.0 })))
    })
}
/// A card on which the gradients of these heads are streamed, of long sets at least: a block has no more memory than that
/// takes.
fn streaming(width: usize) -> Limits {
    Limits { shared_per_block: 1056 * width as u32, ..Limits::SM_80 }
}

/// Sets whose gradients are streamed there: of several tiles of queries and of keys.
fn streamed(number: usize, width: usize) -> (Roles, &'static [usize]) {
    match (width, number % 2) {
        (32, 0) => (Roles::Documents, &[1, 2, 17, 0, 33, 64, 130]),
        (32, _) => (Roles::Attend { points: 100 }, &[1, 0, 33, 130]),
        _ => (Roles::Documents, &[100, 130]),
    }
}

/// Points of sets of every number of warps that take a set, of more documents than a warp has in shared memory, and of
/// none; documents and points that end in each half of a tile.
const POINTS: [(Roles, &[usize]); 2] = [
    (Roles::Induce { points: 20 }, &[200, 1, 17, 390]),
    (Roles::Attend { points: 28 }, &[17, 0, 1, 200, 390]),
];

/// Sets of two parts, the last of which end in each half of a tile, and a whole one.
const PARTS: [usize; 3] = [1030, 40, 1100];

/// Sets that stay on the chip: of every number of warps, several in a block; of every number of tiles that a warp owns or
/// holds, and of more keys than warps hold at a time; rows that end in each half of a tile.
const RESIDENT: [usize; 8] = [1, 17, 40, 0, 64, 130, 12, 200];

/// And one for which warps of narrow heads own and hold other numbers of tiles.
const LONG: [usize; 2] = [18, 425];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (number, (width, dropout)) in KERNELS.into_iter().enumerate() {
        all.extend(forward_cases(number, width, dropout));
        let streamed_there = |(roles, sizes): (Roles, &[usize])| {
            let problem = Problem::random(roles, sizes, Heads { count: 2, width }, width as u64);
            BackwardProblem::new(problem.with_dropout(if dropout { 0.3 } else { 0.0 }), width == 64, 1)
        };
        let problem = streamed_there(streamed(number, width));
        all.push(Case::new(streaming(width), backward::Queries(problem.clone())));
        all.push(Case::new(streaming(width), backward::Keys(problem)));
        let whole = |roles, sizes: &[usize], [queries, keys]: [Range<usize>; 2], count| {
            let mut problem = Problem::random(roles, sizes, Heads { count, width }, 5);
            far_below(&mut problem, queries, keys);
            let problem = problem.with_dropout(if dropout { 0.3 } else { 0.0 });
            Case::new(Limits::SM_90, backward::Whole(BackwardProblem::new(problem, width == 64, 1)))
        };
        let [induce, attend] = POINTS;
        all.push(whole(induce.0, induce.1, [0..20, 201..218], 2));
        all.push(whole(attend.0, attend.1, [0..17, 0..28], 2));
        all.push(whole(Roles::Documents, &RESIDENT, [1..18, 1..18], 2));
        all.extend(cases_of_parts(width, dropout));
        if number == 0 {
            all.push(whole(Roles::Documents, &LONG, [1..18, 1..18], 1).large());
        }
    }
    all
}

/// The kernels that leave parts, without dropout, and for each width one of those that combine them.
fn cases_of_parts(width: usize, dropout: bool) -> Vec<Case> {
    let [induce, attend] = [Roles::Induce { points: 20 }, Roles::Attend { points: 28 }].map(|roles| {
        let problem = |sizes: &[usize]| {
            let problem = Problem::random(roles, sizes, Heads { count: 2, width }, 6);
            rising(problem.with_dropout(if dropout { 0.3 } else { 0.0 }))
        };
        // Of what combines them one set is not enough.
        [problem(&PARTS[..2]), problem(&PARTS)]
    });
    let backward = |problem: &Problem| BackwardProblem::new(problem.clone(), width == 64, 1);
    let mut all = Vec::new();
    if !dropout {
        all.push(Case::new(card(16, 132), induce[0].clone()));
        all.extend([&induce, &attend].map(|of| Case::new(Limits::SM_90, backward::Whole(backward(&of[0])))));
    }
    if dropout == (width == 64) {
        all.extend(
            [&induce, &attend].map(|of| Case::new(Limits::SM_90, backward::Combine(backward(&of[1])))),
        );
        let [_, induce] = induce;
        all.push(Case::new(Limits::SM_90, forward::Combine(induce)));
    }
    all
}

/// Makes all scores of a set, whose first head's rows of queries and keys are these, so small that a score of 0, as keys
/// behind the set have it, would weigh more than there are numbers for.
pub fn far_below(problem: &mut Problem, queries: Range<usize>, keys: Range<usize>) {
    let width = problem.heads().width;
    let far = bf16::from_f64(200.0f64.sqrt() / (width as f64).powf(0.25));
    let [q, kv] = problem.qkv_mut();
    q[queries.start * width..queries.end * width].fill(far);
    kv[keys.start * width..keys.end * width].fill(-far);
}
