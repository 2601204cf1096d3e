//! What the lanes of a warp do together.

use super::{Vector, words};

const LANES: usize = 32;

/// Where rows of matrices begin: at row (lane · a + b) mod 32.
const ROWS: [(usize, usize); 4] = [(1, 0), (5, 3), (0, 7), (31, 1)];

/// Lanes get two neighbours of a row.
pub fn ldmatrix() -> Vec<Vector> {
    ROWS.map(|at| loaded("ldmatrix", at, false)).into()
}

/// Lanes get two neighbours of a column.
pub fn ldmatrix_transposed() -> Vec<Vector> {
    ROWS.map(|at| loaded("ldmatrix_transposed", at, true)).into()
}

fn loaded(kernel: &'static str, (a, b): (usize, usize), is_transposed: bool) -> Vector {
    let input = words(128);
    let halves: Vec<u16> = input.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]).collect();
    // Row r of matrix i is what lane 8i + r points to: rows are 8 values.
    let value =
        |i: usize, row: usize, column: usize| u32::from(halves[((8 * i + row) * a + b) % LANES * 8 + column]);
    let mut expected = Vec::new();
    for lane in 0..LANES {
        let (row, column) = (lane / 4, lane % 4 * 2);
        expected.extend((0..4).map(|i| match is_transposed {
            false => value(i, row, column) | value(i, row, column + 1) << 16,
            true => value(i, column, row) | value(i, column + 1, row) << 16,
        }));
    }
    Vector::new(kernel, 32, &input, [a as i32, b as i32], expected)
}

/// As `ldmatrix`, the other way.
pub fn stmatrix() -> Vec<Vector> {
    [(1, 0), (5, 3), (31, 1)].map(|at| stored("stmatrix", at, false)).into()
}

/// As `ldmatrix_transposed`, the other way.
pub fn stmatrix_transposed() -> Vec<Vector> {
    [(1, 0), (5, 3), (31, 1)].map(|at| stored("stmatrix_transposed", at, true)).into()
}

fn stored(kernel: &'static str, (a, b): (usize, usize), is_transposed: bool) -> Vector {
    let input = words(128);
    let mut expected = vec![0; 128];
    for lane in 0..LANES {
        for i in 0..4 {
            let word = input[lane * 4 + i];
            for (half, value) in [word & 0xffff, word >> 16].into_iter().enumerate() {
                // Lane l holds values 2(l mod 4) and the next of row l/4 of matrix i, whose row r lane 8i + r points to.
                let (row, column) = (lane / 4, lane % 4 * 2 + half);
                let (row, column) = if is_transposed { (column, row) } else { (row, column) };
                let at = ((8 * i + row) * a + b) % LANES * 8 + column;
                expected[at / 2] |= value << (at % 2 * 16);
            }
        }
    }
    Vector::new(kernel, 32, &input, [a as i32, b as i32], expected)
}

/// a `[16, 16]`, b `[16, 8]`, both bf16, and c `[16, 8]`.
pub type Operands = ([[u16; 16]; 16], [[u16; 8]; 16], [[f32; 8]; 16]);

/// The bits of a bf16 that is the number, if it is short enough.
fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// A 1 each at all inner places, and matrices of small numbers, whose sums are exact in any order.
pub fn mma() -> Vec<Vector> {
    let mut all = Vec::new();
    for k in 0..16 {
        // The product is at the one place that both name, whatever else the fragments mix up.
        let (mut a, mut b) = ([[0; 16]; 16], [[0; 8]; 16]);
        a[(5 * k + 3) % 16][k] = bf16(2.0);
        b[k][(3 * k + 1) % 8] = bf16(3.0);
        all.push(product(&(a, b, [[0.5; 8]; 16]), 1));
    }
    let small = |seed: usize| bf16((seed * 7 % 13) as f32 - 6.0);
    let a = std::array::from_fn(|row| std::array::from_fn(|k| small(5 * row + 3 * k + row * k)));
    let b = std::array::from_fn(|k| std::array::from_fn(|column| small(k + 11 * column + k * column)));
    let c = std::array::from_fn(|row| std::array::from_fn(|column| (row * 8 + column) as f32 - 60.0));
    all.push(product(&(a, b, c), 1));
    all.push(product(&(a, b, c), 3));
    all
}

/// c + `times` · (a · b), summed in f32 in the order of k.
pub fn product((a, b, c): &Operands, times: i32) -> Vector {
    let wide = |value: u16| f32::from_bits(u32::from(value) << 16);
    let mut sums = *c;
    for _ in 0..times {
        for (row, sums) in a.iter().zip(&mut sums) {
            for (column, sum) in sums.iter_mut().enumerate() {
                for (x, y) in row.iter().zip(b) {
                    *sum += wide(*x) * wide(y[column]);
                }
            }
        }
    }
    Vector::new("mma", 32, &fragments(&(*a, *b, *c)), [times, 0], of_fragments(&sums))
}

/// Matrices to the fragments that `mma` takes, as the figures of the PTX manual show m16n8k16 for .bf16.
fn fragments((a, b, c): &Operands) -> Vec<u32> {
    let mut input = vec![0; 192];
    for lane in 0..LANES {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..8 {
            // a_i: row is groupID for i = 0, 1, 4, 5 and groupID + 8 otherwise; column as below, + 8 from i = 4 on.
            let row = if matches!(i, 0 | 1 | 4 | 5) { group } else { group + 8 };
            let column = thread * 2 + (i & 1) + if i >= 4 { 8 } else { 0 };
            input[lane * 4 + i / 2] |= u32::from(a[row][column]) << (16 * (i % 2));
        }
        for i in 0..4 {
            // b_i: row is threadID_in_group · 2 + (i & 1), + 8 from i = 2 on; column is groupID.
            let row = thread * 2 + (i & 1) + if i >= 2 { 8 } else { 0 };
            input[128 + lane * 2 + i / 2] |= u32::from(b[row][group]) << (16 * (i % 2));
        }
    }
    input.extend(of_fragments(c));
    input
}

/// The fragments of c, or of a result.
fn of_fragments(c: &[[f32; 8]; 16]) -> Vec<u32> {
    let mut words = vec![0; 128];
    for lane in 0..LANES {
        for i in 0..4 {
            // c_i: row is groupID for i < 2 and groupID + 8 otherwise; column is threadID_in_group · 2 + (i & 1).
            let row = if i < 2 { lane / 4 } else { lane / 4 + 8 };
            words[lane * 4 + i] = c[row][lane % 4 * 2 + (i & 1)].to_bits();
        }
    }
    words
}

/// Every way to pass a value to another lane, and a vote.
pub fn passes() -> Vec<Vector> {
    let input = words(LANES);
    let votes: u32 = input.iter().enumerate().map(|(lane, value)| (value & 1) << lane).sum();
    let of = |a: usize| {
        let mut expected = Vec::new();
        for lane in 0..LANES {
            expected.extend([
                input[lane ^ a],
                input[lane ^ a],
                input[lane * a % LANES],
                input[a],
                input[lane.checked_sub(a).unwrap_or(lane)],
                input[if lane + a < LANES { lane + a } else { lane }],
                votes,
                input[(lane + 1) % LANES],
            ]);
        }
        Vector::new("passes", 32, &input, [a as i32, 0], expected)
    };
    [0, 1, 2, 7, 16, 31].map(of).into()
}
