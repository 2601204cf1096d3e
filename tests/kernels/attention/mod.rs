//! Attention over sets.

mod backward;
mod bugs;
mod forward;
mod launcher;

use setrank::device::Limits;
use setrank::ops::attention::check::{BackwardProblem, Problem};
use setrank::ops::attention::{Heads, Roles};

use crate::family::{self, Case, Counted, Family};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "attention", cases, counted, bugs: &bugs::IN_SOURCES, wrong_launches: &bugs::IN_LAUNCHES };

/// What a kernel is to do, or the backward of it.
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

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (number, (width, dropout)) in KERNELS.into_iter().enumerate() {
        let limits = [Limits::SM_90, Limits::SM_89][number % 2];
        let problem = |turn: usize| problem(width, dropout, ROLES[(number + turn) % 3]);
        let backward = |turn: usize| BackwardProblem::new(problem(turn), width == 64, 1);
        all.push(Case::new(limits, problem(0)));
        all.push(Case::new(limits, backward::Queries(backward(1))));
        all.push(Case::new(limits, backward::Keys(backward(2))));
    }
    all
}

fn counted() -> Vec<Counted> {
    let shapes: [(&str, Roles, &[usize]); 5] = [
        ("64x1", Roles::Documents, &[1; 64]),
        ("32x40", Roles::Documents, &[40; 32]),
        ("500", Roles::Documents, &[500]),
        ("20 to 500", Roles::Induce { points: 20 }, &[500]),
        ("500 to 20", Roles::Attend { points: 20 }, &[500]),
    ];
    let mut all = Vec::new();
    for width in [32, 64] {
        for (shape, roles, sizes) in shapes {
            let heads = Heads { count: 8, width };
            let pairs = |n: &usize| match roles {
                Roles::Documents => n * n,
                Roles::Induce { points } | Roles::Attend { points } => n * points,
            };
            let pairs = (heads.count * sizes.iter().map(pairs).sum::<usize>()) as f64;
            let problem = Problem::random(roles, sizes, heads, 1);
            let backward = BackwardProblem::new(problem.clone(), false, 1);
            let of = |problem: Box<dyn family::Problem>, products: usize| Counted {
                shape: shape.into(),
                problem,
                // Each is D multiply-adds a pair of query and key; 2048 in a product of a warp.
                useful_products: pairs * (products * width) as f64 / 2048.0,
            };
            all.push(of(Box::new(problem), 2));
            all.push(of(Box::new(backward::Queries(backward.clone())), 3));
            all.push(of(Box::new(backward::Keys(backward)), 4));
        }
    }
    all
}
