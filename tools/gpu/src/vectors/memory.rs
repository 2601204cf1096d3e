//! Memory, atomics, arithmetic.

use super::{Expected, Vector, words};

/// Every width passes through shared memory unchanged.
pub fn every_width() -> Vec<Vector> {
    let mut all = Vec::new();
    for threads in [32usize, 64, 48] {
        let input = words(threads * 30 / 4);
        all.extend([0, 1].map(|a| Vector::new("every_width", threads as u32, &input, [a, 0], input.clone())));
    }
    all
}

/// Sums of all threads; what each got depends on their order.
pub fn atomics() -> Vec<Vector> {
    let (blocks, threads) = (3u32, 96u32);
    let sums = vec![blocks * threads, blocks * (threads * (threads - 1) / 2)];
    let vector = Vector::new("atomics", threads, &[], [0, 0], sums);
    vec![Vector { blocks, output_words: 2 + (blocks * threads) as usize, ..vector }]
}

/// The largest error of exp2, relative, and of log2 near 1.
const ERROR: f64 = 1.0 / 4_194_304.0;

/// exp2, log2 and packing: exact values at their edges, and the manual's error elsewhere.
pub fn arithmetic() -> Vec<Vector> {
    let pairs = [
        (0.3f32, 1.5f32),
        (3.7, -2.25),
        (17.25, 1e-30),
        (1.0, -0.0),
        (0.75, f32::INFINITY),
        (1.99, 3.0e38),
        (100.1, -1.003_906_2),
        (2.0f32.powi(-20), 1.011_718_8),
    ];
    let input: Vec<u32> = pairs.iter().flat_map(|(x, y)| [x.to_bits(), y.to_bits()]).collect();
    let mut expected = Vec::new();
    for (x, y) in pairs {
        let [exp2, log2] = [f64::from(x).exp2(), f64::from(x).log2()];
        // What f32 cannot hold to that error is rounded besides.
        let within = |value: f64, error: f64| error + value.abs() * f64::from(f32::EPSILON) / 2.0;
        expected.push(Expected::Near { value: exp2, within: within(exp2, exp2 * ERROR) });
        expected.push(Expected::Near { value: log2, within: within(log2, log2.abs().max(1.0) * ERROR) });
        expected.push(Expected::Word(to_bf16(x) | to_bf16(y) << 16));
    }
    let vector = Vector::new("arithmetic", pairs.len() as u32, &input, [0, 0], Vec::new());
    vec![Vector { output_words: expected.len(), expected, ..vector }]
}

/// The bits of the nearest bf16, to even where two are as near.
fn to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    (bits + 0x7fff + (bits >> 16 & 1)) >> 16
}
