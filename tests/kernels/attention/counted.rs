//! Problems whose counters are budgeted, what would do for them, and what `counters.txt` says of them.

use std::fs;
use std::path::Path;

use setrank::bench::SizeSource;
use setrank::device::Limits;
use setrank::ops::attention::check::{BackwardProblem, Problem};
use setrank::ops::attention::{Heads, Roles};
use setrank::ops::check::Deviation;
use setrank_emulator::launch::Launch;

use super::{backward, card, forward, streaming};
use crate::family::{self, Counted};

/// Sets, and who attends to whom.
#[derive(Clone, Copy)]
pub struct Shape {
    /// As the table of counters shows it.
    pub name: &'static str,
    pub roles: Roles,
    sizes: Sizes,
    /// Heads of each width.
    heads: usize,
    /// The card, if another one than the table's.
    limits: Option<Limits>,
}

#[derive(Clone, Copy)]
enum Sizes {
    These(&'static [usize]),
    /// So many quantiles of a public set's, by its name.
    Like(&'static str, usize),
}

const fn these(name: &'static str, roles: Roles, sizes: &'static [usize]) -> Shape {
    Shape { name, roles, sizes: Sizes::These(sizes), heads: 8, limits: None }
}

/// Of one head on one multiprocessor, which few sets fill as large batches fill a card.
const fn like(name: &'static str, source: &'static str, sets: usize) -> Shape {
    let limits = Some(Limits { multiprocessors: 1, ..Limits::SM_90 });
    Shape { name, roles: Roles::Documents, sizes: Sizes::Like(source, sets), heads: 1, limits }
}

/// Of heads 32 wide.
pub static SHAPES: [Shape; 11] = [
    these("64x1", Roles::Documents, &[1; 64]),
    these("32x40", Roles::Documents, &[40; 32]),
    these("360", Roles::Documents, &[360]),
    Shape { heads: 1, ..these("500", Roles::Documents, &[500]) },
    like("Istella", "istella", 12),
    like("MSLR", "mslr", 12),
    like("Yahoo", "yahoo", 32),
    these("20 to 360", Roles::Induce { points: 20 }, &[360]),
    these("32 to 360", Roles::Induce { points: 32 }, &[360]),
    these("360 to 20", Roles::Attend { points: 20 }, &[360]),
    these("360 to 32", Roles::Attend { points: 32 }, &[360]),
];

/// Of those, the ones that are counted of heads 64 wide too.
const WIDE: [&str; 5] = ["64x1", "32x40", "360", "20 to 360", "360 to 20"];

/// A set that does not stay on the chip, of a card with little shared memory.
pub static STREAMED: Shape = Shape { heads: 1, ..these("360 streamed", Roles::Documents, &[360]) };

/// Sets of several parts.
pub static IN_PARTS: [Shape; 2] = [
    Shape { heads: 1, ..these("20 to 4096", Roles::Induce { points: 20 }, &[4096]) },
    Shape { heads: 1, ..these("4096 to 20", Roles::Attend { points: 20 }, &[4096]) },
];

/// A set of Istella's mean size, of one head.
pub static ONE_HEAD: Shape = Shape { heads: 1, ..these("360, one head", Roles::Documents, &[360]) };

impl Shape {
    fn sizes(&self) -> Vec<usize> {
        match self.sizes {
            Sizes::These(sizes) => sizes.to_vec(),
            Sizes::Like(source, sets) => source.parse::<SizeSource>().unwrap().sizes(Some(sets), 1).unwrap(),
        }
    }

    /// Documents, times heads.
    pub fn documents(&self) -> f64 {
        (self.heads * self.sizes().iter().sum::<usize>()) as f64
    }

    /// Pairs of a query and a key, in all heads: the least number of exponentials.
    pub fn pairs(&self) -> f64 {
        let pairs = |&n: &usize| match self.roles {
            Roles::Documents => n * n,
            Roles::Induce { points } | Roles::Attend { points } => n * points,
        };
        (self.heads * self.sizes().iter().map(pairs).sum::<usize>()) as f64
    }

    /// The least number of products of warps for so many matrix products of heads `width` wide: each is `width`
    /// multiply-adds a pair, of which a product of a warp has 2048.
    pub fn products(&self, products: usize, width: usize) -> f64 {
        self.pairs() * (products * width) as f64 / 2048.0
    }

    /// The least bytes: what a kernel reads and writes of the rows of each side, once. A row of queries has a log-sum-exp.
    pub fn bytes(&self, backward: bool, width: usize) -> f64 {
        // A row of a matrix in a head, and a sum.
        let (row, sum) = (2.0 * width as f64, 4.0);
        let documents = self.documents();
        let sets = self.sizes().len() as f64;
        // Forward reads q, k and v and writes o; backward reads these and d_o, and writes three gradients.
        let (of_queries, of_keys) = if backward { (4.0, 4.0) } else { (2.0, 2.0) };
        let heads = self.heads as f64;
        match self.roles {
            Roles::Documents => documents * ((of_queries + of_keys) * row + sum),
            Roles::Induce { points } => {
                // The points' q is that of all sets.
                let points = points as f64 * heads;
                documents * of_keys * row + points * (row + sets * ((of_queries - 1.0) * row + sum))
            }
            // δ is the sum of what the weights have: o is not read.
            Roles::Attend { points } => {
                let of_queries = if backward { 3.0 } else { of_queries };
                documents * (of_queries * row + sum) + sets * points as f64 * heads * of_keys * row
            }
        }
    }

    fn problem(&self, width: usize) -> Problem {
        Problem::random(self.roles, &self.sizes(), Heads { count: self.heads, width }, 1)
    }
}

/// A problem on a card of its own.
struct On(Limits, Box<dyn family::Problem>);

impl family::Problem for On {
    fn launch(&self, _: &Limits) -> Launch {
        self.1.launch(&self.0)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        self.1.deviations(launch)
    }
}

/// All of them.
pub fn problems() -> Vec<Counted> {
    let mut all = Vec::new();
    for width in [32, 64] {
        for shape in SHAPES.iter().filter(|shape| width == 32 || WIDE.contains(&shape.name)) {
            let limits = shape.limits.unwrap_or(Limits::SM_90);
            let problem = shape.problem(width);
            all.push(of(shape, width, limits, Box::new(problem.clone()), 2));
            let backward = BackwardProblem::new(problem, false, 1);
            all.push(of(shape, width, limits, Box::new(backward::Whole(backward)), 5));
        }
    }
    let problem = STREAMED.problem(32);
    all.push(of(&STREAMED, 32, card(16, 1), Box::new(problem.clone()), 2));
    let backward = BackwardProblem::new(problem, false, 1);
    all.push(of(&STREAMED, 32, streaming(32), Box::new(backward::Queries(backward.clone())), 3));
    all.push(of(&STREAMED, 32, streaming(32), Box::new(backward::Keys(backward)), 4));
    for shape in &IN_PARTS {
        let problem = shape.problem(32);
        if matches!(shape.roles, Roles::Induce { .. }) {
            all.push(of(shape, 32, Limits::SM_90, Box::new(problem.clone()), 2));
            all.push(of(shape, 32, Limits::SM_90, Box::new(forward::Combine(problem.clone())), 0));
        }
        let backward = BackwardProblem::new(problem, false, 1);
        all.push(of(shape, 32, Limits::SM_90, Box::new(backward::Whole(backward.clone())), 5));
        all.push(of(shape, 32, Limits::SM_90, Box::new(backward::Combine(backward)), 0));
    }
    all
}

fn of(
    shape: &Shape,
    width: usize,
    limits: Limits,
    problem: Box<dyn family::Problem>,
    products: usize,
) -> Counted {
    Counted {
        shape: shape.name.into(),
        problem: Box::new(On(limits, problem)),
        useful_products: shape.products(products, width),
    }
}

/// What `counters.txt` says of a kernel and a shape.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Bytes that differ, read and written.
    pub bytes: f64,
    /// Bytes that are asked for.
    pub requested: f64,
    pub wavefronts: f64,
    pub conflicts: f64,
    pub products: f64,
    pub exponentials: f64,
}

/// # Panics
///
/// Where the table has no such line.
pub fn row(kernel: &str, shape: &str) -> Row {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/counters.txt");
    let table = fs::read_to_string(path).unwrap();
    let begin = format!("{kernel} {shape}: ");
    let line = table.lines().find_map(|line| line.strip_prefix(&begin));
    let line = line.unwrap_or_else(|| panic!("counters.txt says nothing of `{begin}`"));
    let part_of = |name: &str| line.split(", ").find_map(|part| part.strip_prefix(name)?.strip_prefix(' '));
    let numbers = |name: &str| -> Vec<f64> {
        let part = part_of(name).unwrap_or_else(|| panic!("no {name} in `{line}`"));
        part.split([' ', '+', '(']).filter_map(|word| word.parse().ok()).collect()
    };
    Row {
        bytes: numbers("unique").iter().sum::<f64>() * 1e3,
        requested: numbers("requested")[0] * 1e3,
        wavefronts: numbers("wavefronts")[0],
        conflicts: numbers("conflicts")[0],
        // Of kernels without any the table says nothing.
        products: part_of("products").map_or(0.0, |_| numbers("products")[0]),
        exponentials: numbers("exponentials")[0],
    }
}
