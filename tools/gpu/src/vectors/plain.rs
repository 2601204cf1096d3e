//! The plainest kernels, of a last block that is not full.

use super::{Vector, words};

const WORDS: usize = 5_003;
const THREADS: usize = 256;

/// Words are copied.
pub fn copy() -> Vec<Vector> {
    vec![of("copy", 0)]
}

/// A number is added to words.
pub fn add() -> Vec<Vector> {
    vec![of("add", 1), of("add", -7)]
}

fn of(kernel: &'static str, number: i32) -> Vector {
    let input = words(WORDS);
    let expected = input.iter().map(|word| word.wrapping_add_signed(number)).collect();
    let vector = Vector::new(kernel, THREADS as u32, &input, [number, WORDS as i32], expected);
    Vector { blocks: WORDS.div_ceil(THREADS) as u32, ..vector }
}
