//! Copies in the background.

use super::{Vector, words};

/// Groups of 16 bytes a thread, some of them zeros.
pub fn groups() -> Vec<Vector> {
    let threads = 64usize;
    let of = |(stages, rest): (usize, usize)| {
        let with_bytes = ((stages - 1) * threads + rest) * 4;
        let input = words(with_bytes);
        let mut expected = input.clone();
        expected.resize(stages * threads * 4, 0);
        Vector::new("groups", threads as u32, &input, [stages as i32, rest as i32], expected)
    };
    [(1, 64), (2, 0), (5, 17)].map(of).into()
}

/// Bulk copies both ways, over mbarriers.
pub fn bulk() -> Vec<Vector> {
    let of = |tiles: usize| {
        let input = words(tiles * 128);
        let expected = input.iter().map(|word| word.wrapping_add(1)).collect();
        Vector::new("bulk", 128, &input, [tiles as i32, 0], expected)
    };
    [1, 2, 3, 6].map(of).into()
}
