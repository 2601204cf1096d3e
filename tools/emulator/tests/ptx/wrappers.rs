//! Each function of kernels/ptx.cuh as nvcc compiles it, against what it must do.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use setrank_emulator::launch::{Buffer, Launch, Pointer};
use setrank_emulator::ptx::{Coverage, Fault, Module, Options};

use crate::compiler::{compile, repository};
use crate::harness::{as_words, words};

const RESULTS: usize = 48;
const THREADS: usize = 64;

/// The kernel's PTX, compiled once for all tests.
fn text() -> Option<&'static str> {
    static TEXT: OnceLock<Option<String>> = OnceLock::new();
    TEXT.get_or_init(|| compile("ptx_wrappers.cu")).as_deref()
}

/// The opcodes in the `asm` texts of kernels/ptx.cuh before those of sm_90.
fn opcodes_of_the_header() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("kernels/ptx.cuh")).unwrap();
    let (text, _) = text.split_once("-- sm_90").unwrap();
    let quoted = text.split('"').skip(1).step_by(2).flat_map(|quoted| quoted.split("\\n"));
    let statements = quoted.filter_map(|statement| statement.split([' ', ';']).next());
    statements
        .filter(|word| word.contains('.') && !word.starts_with('.') && !word.contains('/'))
        .map(str::to_owned)
        .collect()
}

/// The input of a thread: eight words, the fourth a positive f32.
fn input(thread: usize) -> [u32; 8] {
    let mut words = std::array::from_fn(|n| (thread as u32 * 8 + n as u32).wrapping_mul(0x9e37_79b9));
    words[3] = (0.03 + thread as f32 * 0.37).to_bits();
    words
}

/// Each thread's results, the counters, and what was executed.
type Outcome = (Vec<Vec<u32>>, Vec<u32>, Coverage);

/// Runs the kernel's PTX.
fn run(text: &str) -> Result<Outcome, Fault> {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut launch = Launch {
        kernel: "ptx_wrappers".to_owned(),
        grid: [1, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: 4096,
        parameter: vec![0; 24],
        pointers: (0..3).map(|buffer| Pointer { at: 8 * buffer, buffer, offset: 0 }).collect(),
        buffers: vec![
            Buffer { name: "input".to_owned(), bytes: words((0..THREADS).flat_map(input)) },
            Buffer { name: "output".to_owned(), bytes: vec![0; THREADS * RESULTS * 4] },
            Buffer { name: "counters".to_owned(), bytes: vec![0; 8] },
        ],
    };
    let coverage = module.run(&mut launch, &Options::default())?;
    let results = as_words(&launch.buffers[1].bytes).chunks(RESULTS).map(<[u32]>::to_vec).collect();
    Ok((results, as_words(&launch.buffers[2].bytes), coverage))
}

/// Element (row, column) of matrix `number` of a warp's four in the tile, where a thread's row is its first four words.
fn element(warp: usize, number: usize, row: usize, column: usize) -> u32 {
    let words = input(warp * 32 + number * 8 + row);
    words[column / 2] >> (16 * (column % 2)) & 0xffff
}

/// The product's fragments as numbers: the two halves of `left` and of `right` in a lane.
fn fragments(lane: usize) -> ([f32; 2], [f32; 2]) {
    let (low, high) = ((1 + lane % 4) as f32, (1 + lane / 8) as f32);
    ([low, high], [high * 0.5, low * 0.5])
}

fn product(row: usize, column: usize) -> f32 {
    let a = |row: usize, k: usize| {
        let (left, right) = fragments(4 * (row % 8) + k % 8 / 2);
        let part = if (row < 8) == (k < 8) { left } else { right };
        part[k % 2]
    };
    let b = |k: usize| {
        let (left, right) = fragments(4 * column + k % 8 / 2);
        if k < 8 { left[k % 2] } else { right[k % 2] }
    };
    (0..16).map(|k| a(row, k) * b(k)).sum()
}

fn bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    (bits + 0x7fff + (bits >> 16 & 1)) >> 16
}

/// What a thread must write.
fn expected(thread: usize) -> Vec<u32> {
    let (warp, lane) = (thread / 32, thread % 32);
    let (own, other) = (input(thread), input(63 - thread));
    let mut expected = vec![
        own[0].wrapping_add(own[5]),
        own[6],
        own[7] >> 16,
        own[7].wrapping_add(own[2]),
        own[1],
        own[0] >> 16,
        own[1],
        own[2],
        own[3],
        own[4],
        own[5],
        thread as u32,
        own[1] << 16 | own[0] & 0xffff,
    ];
    expected.extend([other[2], other[5], other[0] ^ other[4], 63 - thread as u32]);
    expected.extend([1, 1, 164, own[2], 0]);
    for number in 0..4 {
        let (at, of) = (lane / 4, 2 * (lane % 4));
        expected.push(element(warp, number, at, of + 1) << 16 | element(warp, number, at, of));
        expected.push(element(warp, number, of + 1, at) << 16 | element(warp, number, of, at));
    }
    for n in 0..4 {
        let sum = product(lane / 4 + 8 * (n / 2), 2 * (lane % 4) + n % 2) + (n + 1) as f32;
        expected.push(sum.to_bits());
    }
    expected.push(if warp == 0 { lane as u32 + 7 } else { 0 });
    let first = warp * 32;
    expected.extend([
        (thread ^ 3) as u32,
        ((thread ^ 16) as f32).to_bits(),
        (first + 31 - lane) as u32,
        ((first + 5) as f32).to_bits(),
        (if lane < 2 { thread } else { thread - 2 }) as u32,
        (if lane > 28 { thread } else { thread + 3 }) as u32,
        (0..32).step_by(3).map(|lane| 1 << lane).sum(),
    ]);
    let x = f32::from_bits(own[3]);
    expected.extend([
        (f64::from(x).exp2() as f32).to_bits(),
        (f64::from(x).log2() as f32).to_bits(),
        bf16(-x) << 16 | bf16(x),
    ]);
    expected
}

#[test]
fn every_wrapper_does_what_it_says() {
    let Some(text) = text() else { return };
    let (results, counters, coverage) = run(text).unwrap_or_else(|fault| panic!("{fault}"));

    assert_eq!(coverage.missing_asm(), Vec::<&str>::new());
    let executed = coverage.opcodes();
    let known = opcodes_of_the_header();
    assert!(known.len() > 30, "{known:?}");
    let missing: Vec<_> = known.iter().filter(|opcode| !executed.contains_key(opcode.as_str())).collect();
    assert!(missing.is_empty(), "ptx_wrappers.cu uses no {missing:?}");

    assert_eq!(counters, [(0..64).sum(), 0]);
    for (thread, found) in results.iter().enumerate() {
        let expected = expected(thread);
        assert_eq!(found[..expected.len()], expected, "thread {thread}");
    }
}

#[test]
fn a_wrong_asm_text_is_noticed() {
    let Some(text) = text() else { return };
    // Two registers of the same load, swapped.
    let load = "ld.global.nc.v4.b32 {";
    let (_, registers) = text.split_once(load).expect("it loads four words");
    let [first, second] = [0, 1].map(|at| registers.split(", ").nth(at).expect("it loads four words"));
    let [right, swapped] = [[first, second], [second, first]].map(|[a, b]| format!("{load}{a}, {b},"));
    let changes = [
        (&right[..], &swapped[..]),
        ("st.global.v2.b32", "st.global.b32 [%rd1], 0; //"),
        ("ldmatrix.sync.aligned.m8n8.x4.trans", "ldmatrix.sync.aligned.m8n8.x4"),
        ("atom.shared.add", "atom.shared.max"),
        ("atom.global.add", "atom.global.or"),
        (", 16, %r", ", 16, 16; // %r"),
        ("cp.async.wait_group 1", "cp.async.wait_group 2"),
        ("cp.async.commit_group;", ""),
        ("bar.sync 0;", ""),
        ("bar.arrive", "bar.sync 7, 32; // "),
        ("shfl.sync.bfly", "shfl.sync.idx"),
        ("shfl.sync.up", "shfl.sync.down"),
        (", 0x0, 0xffffffff", ", 0x1f, 0xffffffff"),
        ("vote.sync.ballot.b32", "not.b32 %r1, %r1; // "),
        ("ex2.approx.ftz", "lg2.approx.ftz"),
        ("cvt.rn.bf16x2", "cvt.rz.bf16x2"),
    ];
    for (from, to) in changes {
        assert!(text.contains(from), "{from} is not in the PTX");
        let outcome = run(&text.replace(from, to));
        let same = outcome.is_ok_and(|(results, counters, _)| {
            let right = |(thread, found): (usize, &Vec<u32>)| found.starts_with(&expected(thread));
            counters[0] == 2016 && results.iter().enumerate().all(right)
        });
        assert!(!same, "{to} in place of {from} changes nothing");
    }
}
