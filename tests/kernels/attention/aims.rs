//! What attention's counters are held against, and why.

use setrank::ops::attention::Roles;

use super::counted::{Row, SHAPES, Shape, row};

/// A ratio of what is counted.
#[derive(Clone, Copy, Debug)]
enum Ratio {
    /// Bytes that differ, to those of each row once.
    Bytes,
    /// Products that would do without padding, to those that are issued: the more, the better.
    Useful,
    /// Exponentials, to the pairs of queries and keys.
    Exponentials,
    /// Wavefronts, to the least that the same accesses could take.
    Conflicts,
    /// Wavefronts of shared memory a product.
    Wavefronts,
}

struct Aim {
    /// Parts of the names of kernels, one of which they have.
    kernels: &'static [&'static str],
    /// Of which shapes; of all, if of none.
    shapes: &'static [&'static str],
    ratio: Ratio,
    /// At most, or of `Useful` at least.
    bound: f64,
}

const ALL: &[&str] = &["attention"];
const OF_SETS: &[&str] = &["attention_forward_d32", "attention_backward_d32"];
const BACKWARD_OF_POINTS: &[&str] = &["attention_backward_induce", "attention_backward_attend"];

const AIMS: [Aim; 14] = [
    // DRAM is the floor of small sets and of points; the rest are the tables of the plan.
    Aim { kernels: ALL, shapes: &[], ratio: Ratio::Bytes, bound: 1.1 },
    // Swizzled rows have none; numbers of 4 bytes that lanes write on their own have some.
    Aim { kernels: ALL, shapes: &[], ratio: Ratio::Conflicts, bound: 1.1 },
    // Padding to tiles of 16 rows, and of 8 columns: of 360 and more next to nothing, of 40 rows a sixth; half of Yahoo's
    // sets have fewer than 20.
    Aim { kernels: OF_SETS, shapes: &["360", "500", "Istella"], ratio: Ratio::Useful, bound: 0.9 },
    Aim { kernels: OF_SETS, shapes: &["MSLR"], ratio: Ratio::Useful, bound: 0.85 },
    Aim { kernels: OF_SETS, shapes: &["32x40"], ratio: Ratio::Useful, bound: 0.75 },
    Aim { kernels: OF_SETS, shapes: &["Yahoo"], ratio: Ratio::Useful, bound: 0.62 },
    // A card does an eighth as many a cycle as multiply-adds outside of products: they come next to bytes in forward. One
    // for each pair, padding as above, and hardly any for new scales.
    Aim { kernels: OF_SETS, shapes: &["360", "500", "Istella"], ratio: Ratio::Exponentials, bound: 1.1 },
    Aim { kernels: OF_SETS, shapes: &["MSLR"], ratio: Ratio::Exponentials, bound: 1.15 },
    Aim { kernels: OF_SETS, shapes: &["32x40"], ratio: Ratio::Exponentials, bound: 1.25 },
    // 20 points are 24.
    Aim {
        kernels: BACKWARD_OF_POINTS,
        shapes: &["32 to 360", "360 to 32"],
        ratio: Ratio::Exponentials,
        bound: 1.1,
    },
    Aim {
        kernels: BACKWARD_OF_POINTS,
        shapes: &["20 to 360", "360 to 20"],
        ratio: Ratio::Exponentials,
        bound: 1.25,
    },
    // At 0.65 of its rate a multiprocessor does a product in 1.8 cycles, and a wavefront in one: with fewer, shared memory
    // does not bound products.
    Aim { kernels: &["attention_forward_d32"], shapes: &["360"], ratio: Ratio::Wavefronts, bound: 1.2 },
    Aim { kernels: &["attention_backward_d32"], shapes: &["360"], ratio: Ratio::Wavefronts, bound: 1.7 },
    // Not 1.7: what a warp loads and adds once for a set is a fifth of it. Bytes take more than twice as long.
    Aim { kernels: BACKWARD_OF_POINTS, shapes: &[], ratio: Ratio::Wavefronts, bound: 2.0 },
];

/// The kernels of heads 32 wide that take a shape, and the matrix products that each needs.
fn kernels(shape: &Shape) -> [(&'static str, usize); 2] {
    match shape.roles {
        Roles::Documents => [("attention_forward_d32", 2), ("attention_backward_d32", 5)],
        Roles::Induce { .. } => [("attention_forward_split_d32", 2), ("attention_backward_induce_d32", 5)],
        Roles::Attend { .. } => [("attention_forward_d32", 2), ("attention_backward_attend_d32", 5)],
    }
}

impl Ratio {
    fn of(self, row: &Row, shape: &Shape, products: usize) -> f64 {
        match self {
            Ratio::Bytes => row.bytes / shape.bytes(products == 5, 32),
            Ratio::Useful => shape.products(products, 32) / row.products,
            Ratio::Exponentials => row.exponentials / shape.pairs(),
            Ratio::Conflicts => row.conflicts,
            Ratio::Wavefronts => row.wavefronts / row.products,
        }
    }
}

#[test]
fn attention_reaches_its_aims() {
    let mut missed = Vec::new();
    let mut held = [0; AIMS.len()];
    for shape in &SHAPES {
        for (kernel, products) in kernels(shape) {
            let row = row(kernel, shape.name);
            for (aim, held) in AIMS.iter().zip(&mut held) {
                let of_kernel = aim.kernels.iter().any(|part| kernel.contains(part));
                if !of_kernel || !(aim.shapes.is_empty() || aim.shapes.contains(&shape.name)) {
                    continue;
                }
                *held += 1;
                let found = aim.ratio.of(&row, shape, products);
                let reached = match aim.ratio {
                    Ratio::Useful => found >= aim.bound,
                    _ => found <= aim.bound,
                };
                if !reached {
                    let (ratio, bound) = (aim.ratio, aim.bound);
                    missed.push(format!("{kernel} {}: {ratio:?} {found:.3}, not {bound}", shape.name));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
    assert!(held.iter().all(|&times| times > 0), "an aim that nothing is held against: {held:?}");
}
