//! Each function of `kernels/ptx.cuh` against its definition in the PTX manual, written out here once more.

mod common;

use std::sync::LazyLock;

use common::{check, compile, launch, words};
use proptest::prelude::*;
use setrank_emulator::emulate::Config;
use setrank_emulator::kernels::Kernels;

static MEMORY: LazyLock<Kernels> = LazyLock::new(|| compile("memory.cu"));
static WARP: LazyLock<Kernels> = LazyLock::new(|| compile("warp.cu"));
static BLOCK: LazyLock<Kernels> = LazyLock::new(|| compile("block.cu"));
static COPIES: LazyLock<Kernels> = LazyLock::new(|| compile("copies.cu"));

const LANES: usize = 32;

// ---------------------------------------------------------------- memory and indices

#[test]
fn loads_and_stores_in_every_width() {
    for threads in [32, 64, 48] {
        let input = words(threads * 30 / 4);
        for a in [0, 1] {
            check(&MEMORY, &launch("every_width", threads as u32, &input, input.len(), a, 0), &input);
        }
    }
}

#[test]
fn atomics_add_and_give_what_was_there() {
    let (blocks, threads) = (3u32, 96u32);
    let mut of = launch("atomics", threads, &[], 2 + (blocks * threads) as usize, 0, 0);
    of.grid = [blocks, 1, 1];
    let sum = threads * (threads - 1) / 2;
    for config in Config::matrix(&[1, 2]) {
        for workers in [1, 3] {
            let output = common::run(&MEMORY, &of, &config.workers(workers)).unwrap();
            assert_eq!(output[..2], [blocks * threads, blocks * sum]);
            for block in output[2..].chunks(threads as usize) {
                // Whatever the order: the sums before, one after the other, differ by one thread's number each.
                let mut before: Vec<_> =
                    (0..threads).map(|thread| (block[thread as usize], thread)).collect();
                before.sort_by_key(|(sum, thread)| (*sum, u32::from(*thread != 0)));
                let mut expected = 0;
                for (sum, thread) in before {
                    assert_eq!(sum, expected);
                    expected += thread;
                }
            }
        }
    }
}

#[test]
fn indices_are_those_of_cuda() {
    let (grid, block) = ([2u32, 3, 2], [4u32, 2, 3]);
    let threads: u32 = block.iter().product();
    let blocks: u32 = grid.iter().product();
    let pack = |index: [u32; 3]| index[0] | index[1] << 10 | index[2] << 20;
    let split =
        |number: u32, of: [u32; 3]| [number % of[0], number / of[0] % of[1], number / (of[0] * of[1])];
    let mut expected = Vec::new();
    for number in 0..blocks {
        for thread in 0..threads {
            expected.extend([split(thread, block), split(number, grid), block, grid].map(pack));
        }
    }
    let mut of = launch("indices", 1, &[], expected.len(), 0, 0);
    (of.grid, of.block) = (grid, block);
    check(&MEMORY, &of, &expected);
}

// ---------------------------------------------------------------- matrices of a warp

/// The 16-bit values of words, the lower half first.
fn halves(words: &[u32]) -> Vec<u16> {
    words.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]).collect()
}

fn pair(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Row r of matrix i is what lane 8i + r points to: rows are 8 values, at (lane · a + b) mod 32.
fn matrix_value(values: &[u16], i: usize, row: usize, column: usize, a: usize, b: usize) -> u16 {
    values[((8 * i + row) * a + b) % LANES * 8 + column]
}

#[test]
fn ldmatrix_gives_each_lane_two_neighbours_of_a_row() {
    let input = words(128);
    let values = halves(&input);
    for (a, b) in [(1, 0), (5, 3), (0, 7), (31, 1)] {
        let mut plain = Vec::new();
        let mut transposed = Vec::new();
        for lane in 0..LANES {
            for i in 0..4 {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let value = |row, column| matrix_value(&values, i, row, column, a, b);
                plain.push(pair(value(row, column), value(row, column + 1)));
                transposed.push(pair(value(column, row), value(column + 1, row)));
            }
        }
        let of = |kernel| launch(kernel, 32, &input, 128, a as i32, b as i32);
        check(&WARP, &of("ldmatrix"), &plain);
        check(&WARP, &of("ldmatrix_transposed"), &transposed);
    }
}

#[test]
fn stmatrix_is_ldmatrix_the_other_way() {
    let input = words(128);
    for (a, b) in [(1, 0), (5, 3), (31, 1)] {
        let mut expected = vec![0; 128];
        for lane in 0..LANES {
            for i in 0..4 {
                // Lane l holds values 2(l mod 4) and the next of row l/4 of matrix i, which lane 8i + l/4 points to.
                let row = ((8 * i + lane / 4) * a + b) % LANES;
                expected[row * 4 + lane % 4] = input[lane * 4 + i];
            }
        }
        check(&WARP, &launch("stmatrix", 32, &input, 128, a as i32, b as i32), &expected);
    }
}

fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// Matrices to the fragments that `mma` takes, as the figures of the PTX manual show m16n8k16 for .bf16.
fn fragments(a: &[[u16; 16]; 16], b: &[[u16; 8]; 16], c: &[[f32; 8]; 16]) -> Vec<u32> {
    let mut input = vec![0; 320];
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
        for i in 0..4 {
            // c_i: row is groupID for i < 2 and groupID + 8 otherwise; column is threadID_in_group · 2 + (i & 1).
            let row = if i < 2 { group } else { group + 8 };
            input[192 + lane * 4 + i] = c[row][thread * 2 + (i & 1)].to_bits();
        }
    }
    input
}

fn check_mma(a: &[[u16; 16]; 16], b: &[[u16; 8]; 16], c: &[[f32; 8]; 16], times: i32) {
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
    let mut expected = vec![0; 128];
    for lane in 0..LANES {
        for i in 0..4 {
            let row = if i < 2 { lane / 4 } else { lane / 4 + 8 };
            expected[lane * 4 + i] = sums[row][lane % 4 * 2 + (i & 1)].to_bits();
        }
    }
    check(&WARP, &launch("mma", 32, &fragments(a, b, c), 128, times, 0), &expected);
}

#[test]
fn mma_of_one_element_each() {
    // A single 1 in a and in b: the product is at the one place that both name, whatever else the fragments mix up.
    for k in 0..16 {
        let (mut a, mut b) = ([[0; 16]; 16], [[0; 8]; 16]);
        a[(5 * k + 3) % 16][k] = bf16(2.0);
        b[k][(3 * k + 1) % 8] = bf16(3.0);
        check_mma(&a, &b, &[[0.5; 8]; 16], 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn mma_of_any(seed in any::<u64>(), times in 1..4) {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 3.0
        };
        let a = std::array::from_fn(|_| std::array::from_fn(|_| bf16(next())));
        let b = std::array::from_fn(|_| std::array::from_fn(|_| bf16(next())));
        let c = std::array::from_fn(|_| std::array::from_fn(|_| next()));
        check_mma(&a, &b, &c, times);
    }
}

// ---------------------------------------------------------------- values passed inside a warp

#[test]
fn lanes_pass_values() {
    let input = words(LANES);
    let votes: u32 = input.iter().enumerate().map(|(lane, value)| (value & 1) << lane).sum();
    for a in [0, 1, 2, 7, 16, 31] {
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
        check(&WARP, &launch("passes", 32, &input, LANES * 8, a as i32, 0), &expected);
    }
}

// ---------------------------------------------------------------- barriers

#[test]
fn barriers_order_shared_memory() {
    for (threads, times) in [(32, 3), (128, 5), (1024, 2), (96, 1), (33, 2), (1, 2)] {
        let expected: Vec<u32> = (0..threads).map(|thread| (thread + times) % threads).collect();
        check(&BLOCK, &launch("ring", threads, &[], threads as usize, times as i32, 0), &expected);
    }
}

#[test]
fn barriers_do_not_wait_for_threads_that_exited() {
    for (threads, rest) in [(128u32, 100u32), (128, 32), (64, 1), (96, 65)] {
        let mut expected: Vec<u32> = (0..rest).map(|thread| (thread + 3) % rest).collect();
        expected.resize(threads as usize, 0);
        check(&BLOCK, &launch("ring", threads, &[], threads as usize, 3, rest as i32), &expected);
    }
}

#[test]
fn named_barriers_count_arrivals() {
    for times in [1u32, 2, 3, 10] {
        let sum: u32 = (0..times).sum();
        let expected: Vec<u32> = (0..LANES as u32).map(|lane| (lane + 1) % 32 * sum).collect();
        check(&BLOCK, &launch("producer", 64, &[], LANES, times as i32, 0), &expected);
    }
}

// ---------------------------------------------------------------- copies

#[test]
fn groups_of_copies_land_before_they_are_waited_for() {
    let threads = 64usize;
    for (stages, rest) in [(1usize, 64usize), (2, 0), (5, 17)] {
        let with_bytes = ((stages - 1) * threads + rest) * 4;
        let input = words(with_bytes);
        let mut expected = input.clone();
        expected.resize(stages * threads * 4, 0);
        let of = launch("groups", threads as u32, &input, expected.len(), stages as i32, rest as i32);
        check(&COPIES, &of, &expected);
    }
}

#[test]
fn bulk_copies_complete_phases() {
    for tiles in [1usize, 2, 3, 6] {
        let input = words(tiles * 128);
        let expected: Vec<u32> = input.iter().map(|word| word.wrapping_add(1)).collect();
        check(&COPIES, &launch("bulk", 128, &input, input.len(), tiles as i32, 0), &expected);
    }
}

// ---------------------------------------------------------------- arithmetic

/// exp2 and log2 of the first, and both packed.
fn arithmetic(x: f32, y: f32) -> (f32, f32, u32) {
    let of = launch("arithmetic", 1, &[x.to_bits(), y.to_bits()], 3, 0, 0);
    let output = common::run(&MEMORY, &of, &Config::default()).unwrap();
    (f32::from_bits(output[0]), f32::from_bits(output[1]), output[2])
}

#[test]
fn exp2_and_log2_at_their_edges() {
    let exp2 = |x: f32| arithmetic(x, 0.0).0;
    let log2 = |x: f32| arithmetic(x, 0.0).1;
    assert_eq!(exp2(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
    assert_eq!((exp2(0.0), exp2(-0.0), exp2(1e-40)), (1.0, 1.0, 1.0));
    assert_eq!((exp2(127.0), exp2(-126.0), exp2(128.0)), (2f32.powi(127), f32::MIN_POSITIVE, f32::INFINITY));
    // A subnormal result is 0.
    assert_eq!((exp2(-126.5).to_bits(), exp2(-149.0).to_bits()), (0, 0));
    assert_eq!(exp2(f32::NAN).to_bits(), 0x7fff_ffff);
    assert_eq!((log2(1.0), log2(8.0), log2(f32::MIN_POSITIVE)), (0.0, 3.0, -126.0));
    // Subnormals count as 0.
    assert_eq!(
        (log2(0.0), log2(-0.0), log2(1e-40)),
        (f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY)
    );
    assert_eq!(log2(f32::INFINITY), f32::INFINITY);
    assert_eq!((log2(-1.0).to_bits(), log2(f32::NAN).to_bits()), (0x7fff_ffff, 0x7fff_ffff));
    for x in [0.3f32, -3.7, 17.25, -100.1] {
        let exact = f64::from(x).exp2();
        assert!((f64::from(exp2(x)) - exact).abs() <= exact * 2f64.powi(-22), "exp2({x})");
    }
}

/// To bf16, to nearest, ties to even, by trying both neighbours.
fn nearest_bf16(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    if x.is_infinite() {
        return bf16(x);
    }
    let toward_zero = bf16(x);
    let away = toward_zero + 1;
    // The step above the largest finite value is where 2^128 would be.
    let wide = |half: u16| match half & 0x7fff {
        0x7f80 => 2f64.powi(128).copysign(f64::from(x)),
        _ => f64::from(f32::from_bits(u32::from(half) << 16)),
    };
    let (below, above) = ((f64::from(x) - wide(toward_zero)).abs(), (wide(away) - f64::from(x)).abs());
    let down = below < above || (below == above && toward_zero.is_multiple_of(2));
    if down { toward_zero } else { away }
}

#[test]
fn pack_bf16_rounds_to_nearest_even() {
    let ties = [
        0x3f80_8000,
        0x3f81_8000,
        0xbf80_8000,
        0xbf81_8000,
        0x3f80_8001,
        0x3f80_7fff,
        0x0000_8000,
        0x0001_8000,
    ];
    let ends = [0x7f7f_ffff, 0xff7f_ffff, 0x7f7f_7fff, 0x7f7f_8000, 0x7f80_0000, 0xff80_0000, 0, 0x8000_0000];
    let nans = [0x7f80_0001, 0xffff_ffff, 0x7fc0_0000];
    let values: Vec<f32> = ties.into_iter().chain(ends).chain(nans).map(f32::from_bits).collect();
    for x in &values {
        for y in &values {
            let expected = pair(nearest_bf16(*x), nearest_bf16(*y));
            assert_eq!(arithmetic(*x, *y).2, expected, "{:08x} {:08x}", x.to_bits(), y.to_bits());
        }
    }
}

proptest! {
    #[test]
    fn pack_bf16_of_any(x in any::<u32>(), y in any::<u32>()) {
        let (x, y) = (f32::from_bits(x), f32::from_bits(y));
        prop_assert_eq!(arithmetic(x, y).2, pair(nearest_bf16(x), nearest_bf16(y)));
    }
}
