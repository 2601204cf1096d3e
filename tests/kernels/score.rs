//! Scores and their gradients.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{ScoreBackward, ScoreForward};
use setrank::device::{Arena, Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::partial_sums::PendingSums;
use setrank::ops::score::check::{Direction, Problem};
use setrank::ops::score::{score_backward, score_forward, score_scratch_len};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate;
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;
use crate::linear::sum_of_parts;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "score", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = self.plan().unwrap();
        let (rows, width, parts) = (self.rows(), self.width(), plan.parts());
        match self.direction {
            Direction::Forward => {
                let buffers = vec![
                    (offset_of!(ScoreForward, x), "x", given(&self.x)),
                    (offset_of!(ScoreForward, weight), "weight", given(&self.weight)),
                    (offset_of!(ScoreForward, bias), "bias", given(&self.bias)),
                    (offset_of!(ScoreForward, scores), "scores", poisoned::<f32>(rows)),
                ];
                family::launch(plan.forward().unwrap(), &plan.forward_numbers(), buffers)
            }
            Direction::Backward => {
                let buffers = vec![
                    (offset_of!(ScoreBackward, x), "x", given(&self.x)),
                    (offset_of!(ScoreBackward, weight), "weight", given(&self.weight)),
                    (offset_of!(ScoreBackward, d_scores), "d_scores", given(&self.d_scores)),
                    (offset_of!(ScoreBackward, dx), "dx", poisoned::<bf16>(rows * width)),
                    (offset_of!(ScoreBackward, d_weight), "d_weight", poisoned::<f32>(parts * width)),
                    (offset_of!(ScoreBackward, d_bias), "d_bias", poisoned::<f32>(parts)),
                ];
                family::launch(plan.backward().unwrap(), &plan.backward_numbers(), buffers)
            }
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        self.deviations(&match self.direction {
            Direction::Forward => {
                vec![family::result::<f32>(launch, "scores").into_iter().map(f64::from).collect()]
            }
            Direction::Backward => vec![
                family::result::<bf16>(launch, "dx").into_iter().map(bf16::to_f64).collect(),
                sum_of_parts(launch, "d_weight", &self.d_weight),
                sum_of_parts(launch, "d_bias", &self.d_bias),
            ],
        })
    }
}

const BUGS: [Bug; 9] = [
    Bug {
        what: "rows behind the last",
        file: "score.cu",
        right: "end = min(p.rows, first + SCORE_ROWS)",
        wrong: "end = first + SCORE_ROWS",
        kernels: "score_forward",
        found_by: &["of `x` of", "of `scores` of"],
    },
    Bug {
        what: "rows of the next part",
        file: "score.cu",
        right: "end = min(p.rows, first + SCORE_PART_ROWS)",
        wrong: "end = p.rows",
        kernels: "score_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns of the next row",
        file: "score.cuh",
        right: "< end && column < width) {",
        wrong: "< end) {",
        kernels: "score_forward",
        found_by: &["of `x` of"],
    },
    Bug {
        what: "rows that are under way behind the last",
        file: "score.cuh",
        right: "if (row + r * WARPS < end) of(",
        wrong: "of(",
        kernels: "score_",
        found_by: &["of `scores` of", "of `d_scores` of"],
    },
    Bug {
        what: "lanes that are not added up",
        file: "row.cuh",
        right: "mask > 0; mask /= 2",
        wrong: "mask > 1; mask /= 2",
        kernels: "score_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "halves of a pair in the wrong order",
        file: "score.cuh",
        right: "ptx::pack_bf16(values.of[2 * e], values.of[2 * e + 1])",
        wrong: "ptx::pack_bf16(values.of[2 * e + 1], values.of[2 * e])",
        kernels: "score_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a missing barrier",
        file: "score.cuh",
        right: "        ptx::barrier();\n",
        wrong: "",
        kernels: "score_backward",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "a warp whose sums are left out",
        file: "score.cuh",
        right: "of = 0; of < WARPS; ++of) total +=",
        wrong: "of = 1; of < WARPS; ++of) total +=",
        kernels: "score_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a bias that is left out",
        file: "score.cu",
        right: "score + bias",
        wrong: "score",
        kernels: "score_forward",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::too_little_shared_memory("score_backward"),
    WrongLaunch::a_block_too_few(""),
    WrongLaunch::a_block_too_many("score_backward", &["of `d_weight` of", "of `d_bias` of"]),
    WrongLaunch {
        what: "rows that are too short",
        change: |launch| launch.buffers[0].bytes.truncate(4096),
        kernels: "",
        found_by: &["of `x` of 4096 bytes"],
    },
];

fn cases() -> Vec<Case> {
    let all =
        [(Direction::Forward, 37, 320), (Direction::Forward, 32 + 5, 64), (Direction::Backward, 261, 192)];
    all.map(|(direction, rows, width)| Case::new(Limits::SM_90, Problem::random(direction, rows, width, 1)))
        .into()
}

fn counted() -> Vec<Counted> {
    let counted = |direction| {
        [(40, 256), (1280, 256)].map(|(rows, width)| Counted {
            shape: format!("{rows}x{width}"),
            problem: Box::new(Problem::random(direction, rows, width, 1)),
            useful_products: 0.0,
        })
    };
    [Direction::Forward, Direction::Backward].into_iter().flat_map(counted).collect()
}

#[test]
fn rows_of_any_size() {
    for (rows, width) in [(1, 512), (31, 64), (33, 128), (128, 448), (129, 256)] {
        for direction in [Direction::Forward, Direction::Backward] {
            let case = Case::new(Limits::SM_80, Problem::random(direction, rows, width, 2));
            let mut launch = case.launch();
            emulate::run(&Kernels::repository(), &mut launch, &Default::default()).unwrap();
            assert_eq!(case.wrong(&launch), [], "{direction:?}, {rows} rows of {width}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut problem = Problem::random(Direction::Forward, 40, 64, 3);
    problem.x[7 * 64 + 9] = bf16::NAN;
    let mut launch = family::Problem::launch(&problem, &Limits::SM_90);
    emulate::run(&Kernels::repository(), &mut launch, &Default::default()).unwrap();
    for (row, score) in family::result::<f32>(&launch, "scores").into_iter().enumerate() {
        assert_eq!(score.is_nan(), row == 7, "row {row}");
    }
}

/// So many zeros on a GPU.
pub fn zeros(gpu: &Gpu, arena: &mut Arena, len: usize) -> Buffer<f32> {
    let mut buffer = arena.take(len).unwrap();
    gpu.zero(&mut buffer).unwrap();
    buffer
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("scores", 1 << 16).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let gpu = &gpus[0];
        let mut x: Buffer<bf16> = mine.take(3 * 64).unwrap();
        gpu.upload(&mut x, &[bf16::ONE; 3 * 64]).unwrap();
        let mut dx: Buffer<bf16> = mine.take(3 * 64).unwrap();
        let mut take = |len| zeros(gpu, mine, len);
        let (weight, bias, narrow) = (take(64), take(1), take(32));
        let (mut scores, mut four, mut d_weight, mut d_bias) = (take(3), take(4), take(64), take(1));
        let mut scratch = take(score_scratch_len(3, 64));
        let others = zeros(&gpus[1], theirs, 64);

        let forward =
            |scores: &mut Buffer<f32>, weight: &Buffer<f32>| score_forward(gpu, scores, &x, weight, &bias);
        forward(&mut scores, &weight).unwrap();
        let mut same = weight.part(0..3).unwrap();
        for (error, says) in [
            (forward(&mut four, &weight), "x [N, C] has 192 values, not 256"),
            (forward(&mut scores, &narrow), "a multiple of 64 up to 512 wide, not 32"),
            (forward(&mut scores, &others), "a buffer of another GPU"),
            (forward(&mut same, &weight), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        gpu.upload(&mut scores, &[1.0, 2.0, 3.0]).unwrap();
        let mut backward = |dx: &mut Buffer<bf16>, d_weight: &mut Buffer<f32>, scratch: &mut Buffer<f32>| {
            PendingSums::of(gpu, scratch, |sums| {
                score_backward(gpu, dx, d_weight, &mut d_bias, &scores, &x, &weight, sums)
            })
        };
        // Gradients of parameters are added to what is there.
        for times in [1.0, 2.0] {
            backward(&mut dx, &mut d_weight, &mut scratch).unwrap();
            assert_eq!(gpu.download(&d_weight).unwrap(), [6.0 * times; 64]);
            assert_eq!(gpu.download(&dx).unwrap(), [bf16::ZERO; 3 * 64]);
        }
        let mut short = scratch.part(0..64).unwrap();
        let mut inside = scratch.part(0..64).unwrap();
        let mut same = x.part(0..3 * 64).unwrap();
        for (error, says) in [
            (backward(&mut dx, &mut d_weight, &mut short), "scratch has 64 values, not 65 or more"),
            (backward(&mut dx, &mut inside, &mut scratch), "share memory"),
            (backward(&mut same, &mut d_weight, &mut scratch), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(gpu.download(&d_bias).unwrap(), [12.0]);
    })
    .unwrap();
}

/// Without rows nothing is launched, and sums stay as they are.
#[test]
fn no_rows() {
    driver::with(&Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("scores", 1 << 12).unwrap();
        let (x, mut dx) = (arena.take(0).unwrap(), arena.take(0).unwrap());
        let mut take = |len| zeros(&gpu, &mut arena, len);
        let (weight, bias, mut d_weight, mut d_bias) = (take(64), take(1), take(64), take(1));
        let (mut scores, scratch) = (take(0), take(0));
        score_forward(&gpu, &mut scores, &x, &weight, &bias).unwrap();
        PendingSums::of(&gpu, &scratch, |sums| {
            score_backward(&gpu, &mut dx, &mut d_weight, &mut d_bias, &scores, &x, &weight, sums)
        })
        .unwrap();
        assert_eq!(gpu.download(&d_weight).unwrap(), [0.0; 64]);
        assert_eq!(driver.counters().launches, 0);
    })
    .unwrap();
}
