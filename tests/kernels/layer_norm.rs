//! LayerNorm, forward and backward.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{LayerNormBackward, LayerNormForward};
use setrank::device::{Buffer, DeviceError, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::layer_norm::check::{Backward, Forward, Problem};
use setrank::ops::layer_norm::{
    DeviceNorm, NormBackward, NormShape, layer_norm_backward, layer_norm_forward,
};
use setrank::ops::partial_sums::PendingSums;
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::{self, Config};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "layer_norm", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

pub struct ForwardOf(pub Problem);
pub struct BackwardOf(pub Problem);

impl family::Problem for ForwardOf {
    fn launch(&self, _limits: &Limits) -> Launch {
        let problem = &self.0;
        let shape = problem.shape;
        let mut buffers = vec![
            (offset_of!(LayerNormForward, x), "x", given(&problem.x)),
            (offset_of!(LayerNormForward, weight), "weight", given(&problem.weight)),
            (offset_of!(LayerNormForward, bias), "bias", given(&problem.bias)),
            (offset_of!(LayerNormForward, y), "y", poisoned::<bf16>(shape.values())),
            (offset_of!(LayerNormForward, statistics), "statistics", poisoned::<f32>(2 * shape.rows)),
        ];
        if !problem.added.is_empty() {
            buffers.push((offset_of!(LayerNormForward, added), "added", given(&problem.added)));
        }
        let numbers = shape.forward_numbers(problem.period(), problem.eps);
        family::launch(shape.forward().expect("a problem has rows"), &numbers, buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let answer = Forward {
            y: family::result::<bf16>(launch, "y").into_iter().map(bf16::to_f64).collect(),
            statistics: family::result::<f32>(launch, "statistics").into_iter().map(f64::from).collect(),
        };
        ["y", "mean", "1/deviation"].into_iter().zip(self.0.forward_deviations(&answer)).collect()
    }
}

impl family::Problem for BackwardOf {
    fn launch(&self, _limits: &Limits) -> Launch {
        let problem = &self.0;
        let shape = problem.shape;
        let parts = 2 * shape.runs() * shape.width;
        let mut buffers = vec![
            (offset_of!(LayerNormBackward, x), "x", given(&problem.x)),
            (offset_of!(LayerNormBackward, weight), "weight", given(&problem.weight)),
            (offset_of!(LayerNormBackward, statistics), "statistics", given(&problem.statistics())),
            (offset_of!(LayerNormBackward, d), "d", given(&problem.dy)),
            (offset_of!(LayerNormBackward, parts), "parts", poisoned::<f32>(parts)),
        ];
        if !problem.added.is_empty() {
            buffers.push((offset_of!(LayerNormBackward, added), "added", given(&problem.added)));
        }
        let numbers = shape.backward_numbers(problem.period());
        family::launch(shape.backward().expect("a problem has rows"), &numbers, buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let [d_weight, d_bias] = gradients(&self.0, &family::result::<f32>(launch, "parts"));
        let dx = family::result::<bf16>(launch, "d").into_iter().map(bf16::to_f64).collect();
        let answer = Backward { dx, d_weight, d_bias };
        ["dx", "scale", "shift"].into_iter().zip(self.0.backward_deviations(&answer)).collect()
    }
}

/// The gradients of γ and β that parts `[2, count, C]` add up to.
pub fn gradients(problem: &Problem, parts: &[f32]) -> [Vec<f64>; 2] {
    let width = problem.shape.width;
    let (d_weight, d_bias) = parts.split_at(parts.len() / 2);
    [(&problem.d_weight, d_weight), (&problem.d_bias, d_bias)].map(|(before, parts)| {
        let of_column = |column: usize| parts[column..].iter().step_by(width).sum::<f32>();
        (0..width).map(|column| (before[column] + of_column(column)).into()).collect()
    })
}

const BUGS: [Bug; 11] = [
    Bug {
        what: "a sum of half the lanes",
        file: "row.cuh",
        right: "int mask = 16;",
        wrong: "int mask = 8;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "halves of a word swapped",
        file: "bf16.cuh",
        right: "values[2 * i] = bf16_low(words[i]);",
        wrong: "values[2 * i] = bf16_high(words[i]);",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns behind the row",
        file: "layer_norm.cu",
        right: "const bool inside = column < columns.width;",
        wrong: "const bool inside = column >= 0;",
        kernels: "",
        found_by: &["of `x` of", "of `added` of"],
    },
    Bug {
        what: "rows behind the last",
        file: "layer_norm.cu",
        right: "if (row >= p.rows) return;",
        wrong: "",
        kernels: "layer_norm_forward",
        found_by: &["of `x` of"],
    },
    Bug {
        what: "no second pass over the mean",
        file: "norm.cuh",
        right: "mean += rest;",
        wrong: "mean = rest;",
        kernels: "layer_norm_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "added rows that do not come again",
        file: "layer_norm.cu",
        right: "static_cast<size_t>(row % period)",
        wrong: "static_cast<size_t>(row)",
        kernels: "layer_norm_forward_narrow",
        found_by: &["of `added` of"],
    },
    Bug {
        what: "one place for all sums",
        file: "layer_norm.cu",
        right: "turn ^= 1;",
        wrong: "",
        kernels: "layer_norm_forward_wide",
        found_by: &[WRONG_RESULTS, "barrier"],
    },
    Bug {
        what: "a run that goes on in the next",
        file: "layer_norm.cu",
        right: "end = min(p.rows, first + LAYER_NORM_RUN);",
        wrong: "end = min(p.rows, first + LAYER_NORM_RUN + 1);",
        kernels: "layer_norm_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of columns that are not waited for",
        file: "layer_norm.cu",
        right: "    ptx::barrier();\n",
        wrong: "",
        kernels: "layer_norm_backward",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "the mean of the products left out",
        file: "norm.cuh",
        right: " - value[i][e] * mean_product",
        wrong: "",
        kernels: "layer_norm_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients of the shift in place of the scale's",
        file: "norm.cuh",
        right: "blockIdx.x + (is_bias ? blocks : 0)",
        wrong: "blockIdx.x + (is_bias ? 0 : blocks)",
        kernels: "layer_norm_backward",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 5] = [
    WrongLaunch::a_block_too_few(""),
    WrongLaunch::a_block_too_many("layer_norm_backward", &["of `parts` of"]),
    WrongLaunch::too_little_shared_memory("layer_norm_backward"),
    WrongLaunch {
        what: "a warp too few",
        change: |launch| launch.block[0] -= 32,
        kernels: "layer_norm_forward_narrow",
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[0].bytes.truncate(512),
        kernels: "",
        found_by: &["of `x` of 512 bytes"],
    },
];

fn problem(rows: usize, width: usize, period: Option<usize>) -> Problem {
    Problem::random(NormShape { rows, width }, period, 1e-8, width as u64)
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (rows, width, period) in [(9, 320, Some(3)), (5, 576, None)] {
        all.push(Case::new(Limits::SM_90, ForwardOf(problem(rows, width, period))));
    }
    for (rows, width, period) in [(34, 320, Some(17)), (35, 576, None)] {
        all.push(Case::new(Limits::SM_90, BackwardOf(problem(rows, width, period))));
    }
    all
}

fn counted() -> Vec<Counted> {
    let mut all = Vec::new();
    for (rows, width) in [(1280, 256), (320, 1024)] {
        let problem = problem(rows, width, Some(rows));
        let shape = format!("{rows}x{width}");
        all.push(Counted {
            shape: shape.clone(),
            problem: Box::new(ForwardOf(problem.clone())),
            useful_products: 0.0,
        });
        all.push(Counted { shape, problem: Box::new(BackwardOf(problem)), useful_products: 0.0 });
    }
    all
}

/// Runs a case once and gives what the rule says, and what the launch left.
fn run(case: &Case) -> Launch {
    let mut launch = case.launch();
    emulate::run(&Kernels::repository(), &mut launch, &Config::default())
        .unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(case.wrong(&launch), [], "{}", launch.kernel);
    launch
}

#[test]
fn any_width() {
    for width in [64, 128, 512, 2048] {
        for (rows, period) in [(1, None), (10, Some(1))] {
            run(&Case::new(Limits::SM_90, ForwardOf(problem(rows, width, period))));
            run(&Case::new(Limits::SM_90, BackwardOf(problem(rows, width, period))));
        }
    }
}

/// However small eps is: the rounding of the mean must not be taken for a deviation.
#[test]
fn rows_of_one_value_become_the_shift() {
    for width in [192, 1984] {
        let mut problem = problem(4, width, Some(2));
        problem.x.fill(bf16::from_f32(1000.0));
        problem.added.fill(bf16::from_f32(0.123));
        let launch = run(&Case::new(Limits::SM_90, ForwardOf(problem.clone())));
        let shift: Vec<bf16> = problem.bias.iter().map(|&value| bf16::from_f32(value)).collect();
        assert_eq!(family::result::<bf16>(&launch, "y"), shift.repeat(4), "{width}");
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut problem = problem(9, 320, None);
    let clean = run(&Case::new(Limits::SM_90, ForwardOf(problem.clone())));
    problem.x[3 * 320 + 5] = bf16::INFINITY;
    let mut launch = family::Problem::launch(&ForwardOf(problem), &Limits::SM_90);
    emulate::run(&Kernels::repository(), &mut launch, &Config::default()).unwrap();
    let [clean, found] = [clean, launch].map(|launch| family::result::<bf16>(&launch, "y"));
    for (row, (clean, found)) in clean.chunks(320).zip(found.chunks(320)).enumerate() {
        assert!(
            if row == 3 { found.iter().all(|value| value.is_nan()) } else { clean == found },
            "row {row}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let (gpu, other) = (Gpu::new(0).unwrap(), Gpu::new(1).unwrap());
        let mut arena = gpu.arena("rows", 1 << 16).unwrap();
        let mut take = |len: usize| -> (Buffer<bf16>, Buffer<f32>) {
            (arena.take(len).unwrap(), arena.take(len).unwrap())
        };
        let (mut y, weight) = take(64);
        let (x, bias) = take(6 * 64);
        let (mut d, mut scratch) = take(6 * 64);
        let statistics = take(12).1;
        let shape = NormShape { rows: 6, width: 64 };
        let mut result = take(6 * 64).0;
        let bias = bias.part(0..64).unwrap();
        let norm = DeviceNorm { weight: &weight, bias: &bias, eps: 1e-5 };
        let mut forward =
            |x: &Buffer<bf16>, added: Option<&Buffer<bf16>>, shape| -> Result<(), DeviceError> {
                layer_norm_forward(&gpu, &mut result, &mut statistics.part(0..12)?, x, added, norm, shape)
            };
        for (error, says) in [
            (forward(&x, None, NormShape { rows: 5, width: 64 }), "x [rows, C] has 384 values, not 320"),
            (forward(&x, None, NormShape { rows: 4, width: 96 }), "a multiple of 64"),
            (forward(&x, Some(&x.part(0..256).unwrap()), shape), "the period divides the rows"),
            (forward(&x, Some(&x.part(0..72).unwrap()), shape), "added [period, C] has 72 values"),
            (forward(&x, Some(&x.part(0..0).unwrap()), shape), "added [period, C] has 0 values"),
            (layer_norm_forward(&other, &mut y, &mut scratch, &x, None, norm, shape), "another GPU"),
            (
                layer_norm_forward(&gpu, &mut x.part(0..384).unwrap(), &mut scratch, &x, None, norm, shape),
                "share memory",
            ),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let gradients = [take(64).1, take(64).1];
        let norm = NormBackward { x: &x, added: None, statistics: &statistics, weight, gradients };
        let backward = |d: &mut Buffer<bf16>, scratch: &Buffer<f32>| {
            PendingSums::of(&gpu, scratch, |sums| layer_norm_backward(&gpu, d, &norm, sums, shape))
        };
        for (error, says) in [
            (backward(&mut d, &scratch.part(0..100).unwrap()), "scratch has 100 values, not 128 or more"),
            (backward(&mut d.part(0..64).unwrap(), &scratch), "d [rows, C] has 64 values, not 384"),
            (backward(&mut x.alias(), &scratch), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}
