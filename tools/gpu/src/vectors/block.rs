//! Barriers.

use super::Vector;

/// Numbers go round the block; threads that exited are not waited for.
pub fn ring() -> Vec<Vector> {
    let mut all = Vec::new();
    for (threads, times) in [(32u32, 3u32), (128, 5), (1024, 2), (96, 1), (33, 2), (1, 2)] {
        let expected = (0..threads).map(|thread| (thread + times) % threads).collect();
        all.push(Vector::new("ring", threads, &[], [times as i32, 0], expected));
    }
    for (threads, rest) in [(128u32, 100u32), (128, 32), (64, 1), (96, 65)] {
        let mut expected: Vec<u32> = (0..rest).map(|thread| (thread + 3) % rest).collect();
        expected.resize(threads as usize, 0);
        all.push(Vector::new("ring", threads, &[], [3, rest as i32], expected));
    }
    all
}

/// A warp hands values to another over named barriers.
pub fn producer() -> Vec<Vector> {
    let of = |times: u32| {
        let sum: u32 = (0..times).sum();
        let expected = (0..32).map(|lane| (lane + 1) % 32 * sum).collect();
        Vector::new("producer", 64, &[], [times as i32, 0], expected)
    };
    [1, 2, 3, 10].map(of).into()
}
