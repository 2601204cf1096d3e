//! Each function of `kernels/ptx.cuh` against its definition in the PTX manual, written out here once more.

use std::sync::LazyLock;

use crate::common::{check, compile, launch, launch_of};
use crate::vectors::{self, Vector};
use proptest::prelude::*;
use setrank_emulator::emulate::Config;
use setrank_emulator::kernels::Kernels;

static MEMORY: LazyLock<Kernels> = LazyLock::new(|| compile("memory.cu"));
static WARP: LazyLock<Kernels> = LazyLock::new(|| compile("warp.cu"));

/// Runs a vector with every schedule, time of copies and seed.
fn hold(kernels: &Kernels, vector: &Vector) {
    let (of, Vector { kernel, numbers: [a, b], .. }) = (launch_of(vector), vector);
    for config in Config::matrix(&[1, 2, 3]) {
        match crate::common::run(kernels, &of, &config) {
            Ok(words) => assert_eq!(vector.wrong(&words), [0; 0], "{kernel} ({a}, {b}) with {config:?}"),
            Err(report) => panic!("{kernel} ({a}, {b}) with {config:?}: {report}"),
        }
    }
}

#[test]
fn every_micro_kernel_gives_what_the_manual_says() {
    for source in vectors::sources() {
        let kernels = compile(&format!("{source}.cu"));
        for micro in vectors::ALL.iter().filter(|micro| micro.source == source) {
            for vector in (micro.vectors)() {
                assert_eq!(micro.kernel, vector.kernel);
                hold(&kernels, &vector);
            }
        }
    }
}

// ---------------------------------------------------------------- memory and indices

#[test]
fn atomics_add_and_give_what_was_there() {
    let (blocks, threads) = (3u32, 96u32);
    let mut of = launch("atomics", threads, &[], 2 + (blocks * threads) as usize, 0, 0);
    of.grid = [blocks, 1, 1];
    let sum = threads * (threads - 1) / 2;
    for config in Config::matrix(&[1, 2]) {
        for workers in [1, 3] {
            let output = crate::common::run(&MEMORY, &of, &config.workers(workers)).unwrap();
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

fn pair(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
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
        hold(&WARP, &vectors::warp::product(&(a, b, c), times));
    }
}

// ---------------------------------------------------------------- arithmetic

/// exp2 and log2 of the first, and both packed.
fn arithmetic(x: f32, y: f32) -> (f32, f32, u32) {
    let of = launch("arithmetic", 1, &[x.to_bits(), y.to_bits()], 3, 0, 0);
    let output = crate::common::run(&MEMORY, &of, &Config::default()).unwrap();
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
    for x in [0.3f32, 0.7, 1.3, 3.7, 1e-30, 1e30] {
        let exact = f64::from(x).log2();
        let allowed = if (0.5..2.0).contains(&x) { 1.0 } else { exact.abs() } * 2f64.powi(-22);
        assert!((f64::from(log2(x)) - exact).abs() <= allowed, "log2({x})");
    }
}

/// As in hardware: kernels may not count on the nearest values.
#[test]
fn exp2_and_log2_are_approximate() {
    let arguments = || (1..200).map(|number| number as f32 * 0.13);
    let nearest =
        |of: fn(f32) -> f32, nearest: fn(f32) -> f32| arguments().filter(|&x| of(x) == nearest(x)).count();
    assert!(nearest(|x| arithmetic(-x, 0.0).0, |x| (-x).exp2()) < 100);
    assert!(nearest(|x| arithmetic(x, 0.0).1, f32::log2) < 190);
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
