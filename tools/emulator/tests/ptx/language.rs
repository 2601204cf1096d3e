//! What nvcc makes of ordinary C++, against the same in Rust.

use setrank_emulator::launch::{Buffer, Launch, Pointer};
use setrank_emulator::ptx::{Module, Options};

use crate::compiler::compile;
use crate::harness::{as_words, words};

const RESULTS: usize = 8;
const THREADS: usize = 96;
const STEPS: [i32; 5] = [3, 1, 4, 1, 5];

fn collatz(mut x: u32, most: i32) -> i32 {
    for n in 0..most {
        if x == 1 {
            return n;
        }
        x = if x.is_multiple_of(2) { x / 2 } else { 3 * x + 1 };
    }
    most
}

fn choose(which: usize, x: i32) -> i32 {
    match which {
        0 => x + 7,
        1 => x * x,
        2 => -x,
        3 => x >> 3,
        4 => x ^ 0x55,
        5 => collatz((x & 255) as u32, 50),
        _ => x % 11,
    }
}

fn local_array(x: i32, thread: usize) -> i32 {
    let mut local: [i32; 16] = std::array::from_fn(|n| x + n as i32 * STEPS[n % 5]);
    for n in 0..(thread & 15) as i32 {
        local[((x + n) & 15) as usize] += local[((x + 2 * n) & 15) as usize];
    }
    local[thread & 15]
}

/// The results of a block's threads.
fn block(first: usize, xs: &[i32], divisor: i32) -> Vec<[i32; RESULTS]> {
    let even = xs.iter().filter(|&x| x % 2 == 0).count() as i32;
    let one = |thread: usize| {
        let (x, number) = (xs[thread], first + thread);
        let wide = i64::from(x) * 0x1_2345_6789 + number as i64;
        let quotient = (wide / (i64::from(divisor) * 1_000_003)) as u32;
        let (single, double) = (x as f32 / 3.0, f64::from(x) * 0.1);
        let float = single.mul_add(1.25, -2.0).abs().sqrt() + single.floor() + double as f32;
        let warp = thread / 32 * 32;
        let votes = (0..20).filter(|lane| xs[warp + lane] > 0).map(|lane| 1 << lane).sum::<i32>();
        [
            xs.iter().sum(),
            local_array(x, thread),
            choose(number % 7, x),
            x / divisor + x % divisor,
            quotient.wrapping_add((wide as u64 % 1009) as u32) as i32,
            float.to_bits() as i32,
            if thread % 32 < 20 { votes.wrapping_add(xs[thread ^ 1]) } else { 0 },
            even,
        ]
    };
    (0..THREADS).map(one).collect()
}

#[test]
fn ordinary_code_runs_as_in_rust() {
    let Some(text) = compile("ptx_language.cu") else { return };
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let (blocks, rows, divisor) = (3, 250, 17);
    let x = |number: usize| ((number as i32 * 7919) % 2003) - 1000;
    let mut parameter = vec![0; 16];
    parameter.extend([rows as u32, divisor as u32].map(u32::to_le_bytes).concat());
    let mut launch = Launch {
        kernel: "ptx_language".to_owned(),
        grid: [blocks as u32, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: 0,
        parameter,
        pointers: (0..2).map(|buffer| Pointer { at: 8 * buffer, buffer, offset: 0 }).collect(),
        buffers: vec![
            Buffer { name: "input".to_owned(), bytes: words((0..rows).map(|number| x(number) as u32)) },
            Buffer { name: "output".to_owned(), bytes: vec![0; (blocks * THREADS * RESULTS + 1) * 4] },
        ],
    };
    module.run(&mut launch, &Options::default()).unwrap_or_else(|fault| panic!("{fault}"));
    let output = as_words(&launch.buffers[1].bytes);
    for number in 0..blocks {
        let first = number * THREADS;
        let xs: Vec<i32> =
            (first..first + THREADS).map(|number| if number < rows { x(number) } else { 1 }).collect();
        for (thread, mut expected) in block(first, &xs, divisor).into_iter().enumerate() {
            if first + thread >= rows {
                expected[7] = 0;
            }
            let found: Vec<i32> =
                output[(first + thread) * RESULTS..][..RESULTS].iter().map(|&word| word as i32).collect();
            assert_eq!(found, expected, "block {number}, thread {thread}");
        }
    }
    let counted = (0..rows).map(|number| STEPS[number % 5] as u32).sum::<u32>();
    assert_eq!(output[blocks * THREADS * RESULTS], counted);
}
