//! Attention over sets.

mod backward;
mod bugs;
pub mod forward;
mod launcher;

use half::bf16;
use setrank::device::Limits;
use setrank::ops::attention::check::{BackwardProblem, Problem};
use setrank::ops::attention::{Heads, Roles};

use crate::family::{self, Case, Counted, Family};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "attention", cases, counted, bugs: &bugs::IN_SOURCES, wrong_launches: &bugs::IN_LAUNCHES };

/// What a kernel of backward is to do the backward of.
fn problem(width: usize, dropout: bool, roles: Roles) -> Problem {
    let sizes: &[usize] = match roles {
        Roles::Documents => &[1, 2, 17, 31, 33, 64, 0, 200, 65],
        Roles::Induce { .. } => &[1, 2, 33, 64, 200],
        Roles::Attend { .. } => &[1, 2, 0, 33, 130],
    };
    let problem = Problem::random(roles, sizes, Heads { count: 2, width }, width as u64);
    problem.with_dropout(if dropout { 0.3 } else { 0.0 })
}

/// Every role; each has sets of several tiles of queries, or of keys, or of both.
const ROLES: [Roles; 3] = [Roles::Documents, Roles::Induce { points: 20 }, Roles::Attend { points: 100 }];

/// Every role, with as many points as there may be.
const LONGEST: [Roles; 3] = [Roles::Documents, Roles::Induce { points: 128 }, Roles::Attend { points: 128 }];

/// Head widths, and whether there is dropout: each a kernel of forward, and two of backward.
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
/// Roles of gradients of q, and of k and v, for each of the kernels: sets whose gradients are streamed.
const STREAMED: [[Roles; 2]; 4] =
    [[ROLES[1], ROLES[2]], [ROLES[2], ROLES[2]], [ROLES[2], ROLES[1]], [ROLES[1], ROLES[2]]];

/// Sets that stay on the chip: of every number of warps, several in a block; of every number of tiles that a warp owns or
/// holds, and of more keys than warps hold at a time; rows that end in each half of a tile.
const RESIDENT: [usize; 8] = [1, 17, 40, 0, 64, 130, 12, 200];

/// And one for which warps of narrow heads own and hold other numbers of tiles.
const LONG: [usize; 2] = [18, 425];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (number, (width, dropout)) in KERNELS.into_iter().enumerate() {
        let limits = [Limits::SM_90, Limits::SM_89][number % 2];
        let backward = |roles| BackwardProblem::new(problem(width, dropout, roles), width == 64, 1);
        all.extend(forward_cases(number, width, dropout));
        let [queries, keys] = STREAMED[number];
        all.push(Case::new(limits, backward::Queries(backward(queries))));
        all.push(Case::new(limits, backward::Keys(backward(keys))));
        let whole = |sizes: &[usize], count| {
            let mut problem = Problem::random(Roles::Documents, sizes, Heads { count, width }, 5);
            far_below(&mut problem, 1..18);
            let problem = problem.with_dropout(if dropout { 0.3 } else { 0.0 });
            Case::new(Limits::SM_90, backward::Whole(BackwardProblem::new(problem, width == 64, 1)))
        };
        all.push(whole(&RESIDENT, 2));
        if number == 0 {
            all.push(whole(&LONG, 1).large());
        }
    }
    all
}

/// Makes all scores of a set, whose first head's rows are these, so small that a score of 0, as keys behind the set have it,
/// would weigh more than there are numbers for.
fn far_below(problem: &mut Problem, rows: std::ops::Range<usize>) {
    let width = problem.heads().width;
    let far = bf16::from_f64(200.0f64.sqrt() / (width as f64).powf(0.25));
    let [q, kv] = problem.qkv_mut();
    q[rows.start * width..rows.end * width].fill(far);
    kv[rows.start * width..rows.end * width].fill(-far);
}

fn counted() -> Vec<Counted> {
    let shapes: [(&str, Roles, &[usize]); 7] = [
        ("64x1", Roles::Documents, &[1; 64]),
        ("32x40", Roles::Documents, &[40; 32]),
        ("360", Roles::Documents, &[360]),
        ("500", Roles::Documents, &[500]),
        // As Istella's are.
        ("mixed", Roles::Documents, &[439, 371, 330, 282, 123]),
        ("20 to 500", Roles::Induce { points: 20 }, &[500]),
        ("500 to 20", Roles::Attend { points: 20 }, &[500]),
    ];
    let mut all = Vec::new();
    for width in [32, 64] {
        for (shape, roles, sizes) in shapes {
            let heads = Heads { count: if shape == "mixed" { 1 } else { 8 }, width };
            let pairs = |n: &usize| match roles {
                Roles::Documents => n * n,
                Roles::Induce { points } | Roles::Attend { points } => n * points,
            };
            let pairs = (heads.count * sizes.iter().map(pairs).sum::<usize>()) as f64;
            let problem = Problem::random(roles, sizes, heads, 1);
            let of = |problem: Box<dyn family::Problem>, products: usize| Counted {
                shape: shape.into(),
                problem,
                // Each is D multiply-adds a pair of query and key; 2048 in a product of a warp.
                useful_products: pairs * (products * width) as f64 / 2048.0,
            };
            // Of the mixed sets backward alone; wide heads of 439 and 500 are streamed.
            if shape != "mixed" {
                all.push(of(Box::new(problem.clone()), 2));
            }
            if width == 64 && shape == "mixed" {
                continue;
            }
            let backward = BackwardProblem::new(problem, false, 1);
            let (resident, streamed) = backward::launches(&Limits::SM_90, backward);
            all.extend(resident.map(|problem| of(Box::new(problem), 5)));
            if let Some((queries, keys)) = streamed {
                all.push(of(Box::new(queries), 3));
                all.push(of(Box::new(keys), 4));
            }
        }
    }
    all
}
