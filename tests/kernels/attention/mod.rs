//! Attention over sets.

mod bugs;
mod forward;
mod launcher;

use setrank::device::Limits;
use setrank::ops::attention::check::Problem;
use setrank::ops::attention::{Heads, Roles};

use crate::family::{Case, Counted, Family};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "attention", cases, counted, bugs: &bugs::IN_SOURCES, wrong_launches: &bugs::IN_LAUNCHES };

/// A problem, or what a kernel of its backward is to do, for each kernel: roles take turns.
fn problem(width: usize, dropout: bool, roles: Roles) -> Problem {
    let sizes: &[usize] = match roles {
        Roles::Documents => &[1, 2, 17, 31, 33, 64, 0, 200, 65],
        Roles::Induce { .. } => &[1, 2, 33, 64, 200],
        Roles::Attend { .. } => &[1, 2, 0, 33, 130],
    };
    let problem = Problem::random(roles, sizes, Heads { count: 2, width }, width as u64);
    problem.with_dropout(if dropout { 0.3 } else { 0.0 })
}

/// Every role has several tiles of queries, or of keys, or of both.
const ROLES: [Roles; 3] = [Roles::Documents, Roles::Induce { points: 20 }, Roles::Attend { points: 100 }];

/// Head widths, and whether there is dropout: a kernel each.
const KERNELS: [(usize, bool); 4] = [(32, false), (32, true), (64, false), (64, true)];

fn cases() -> Vec<Case> {
    KERNELS
        .into_iter()
        .enumerate()
        .map(|(number, (width, dropout))| {
            let limits = [Limits::SM_90, Limits::SM_89][number % 2];
            Case::new(limits, problem(width, dropout, ROLES[number % 3]))
        })
        .collect()
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
            all.push(Counted {
                shape: shape.into(),
                problem: Box::new(Problem::random(roles, sizes, heads, 1)),
                // 2·D multiply-adds a pair of query and key; 2048 in a product.
                useful_products: pairs * (2 * width) as f64 / 2048.0,
            });
        }
    }
    all
}
