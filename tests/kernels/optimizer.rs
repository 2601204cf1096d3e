//! The norm of the gradients, Adam, and the copy of the parameters in bf16.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{AdamUpdate, GradientNorm, GradientSquares, RoundParameters};
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::optimizer::check::{Answer, Problem, STAGES, STEP, Stage};
use setrank::ops::optimizer::{
    AdamStep, DeviceWeights, adam_step, gradient_norm, gradient_norm_scratch_len, round_parameters,
};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate;
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "optimizer", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = self.plan().unwrap();
        match self.stage {
            Stage::Squares => {
                let buffers = vec![
                    (offset_of!(GradientSquares, gradients), "gradients", given(&self.gradients)),
                    (offset_of!(GradientSquares, parts), "parts", poisoned::<f64>(plan.parts())),
                ];
                family::launch(plan.squares().unwrap(), &plan.squares_numbers(), buffers)
            }
            Stage::Norm => {
                let buffers = vec![
                    (offset_of!(GradientNorm, parts), "parts", given(&self.parts)),
                    (offset_of!(GradientNorm, norm), "norm", poisoned::<f32>(1)),
                ];
                family::launch(plan.norm(), &plan.norm_numbers(), buffers)
            }
            Stage::Update { averages } => {
                let mut buffers = vec![
                    (offset_of!(AdamUpdate, gradients), "gradients", given(&self.gradients)),
                    (offset_of!(AdamUpdate, norm), "norm", given(&[self.norm])),
                    (offset_of!(AdamUpdate, parameters), "parameters", given(&self.parameters)),
                    (offset_of!(AdamUpdate, rounded), "rounded", given(&self.rounded())),
                    (offset_of!(AdamUpdate, first), "first", given(&self.first)),
                    (offset_of!(AdamUpdate, second), "second", given(&self.second)),
                ];
                if averages {
                    buffers.push((offset_of!(AdamUpdate, average), "average", given(&self.average)));
                }
                let numbers = plan.update_numbers(&self.step, averages).unwrap();
                family::launch(plan.update().unwrap(), &numbers, buffers)
            }
            Stage::Round => {
                let buffers = vec![
                    (offset_of!(RoundParameters, parameters), "parameters", given(&self.parameters)),
                    (offset_of!(RoundParameters, rounded), "rounded", poisoned::<bf16>(self.length)),
                ];
                family::launch(plan.round().unwrap(), &plan.round_numbers(), buffers)
            }
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let single = |name| family::result::<f32>(launch, name).into_iter().map(f64::from).collect();
        let copy = || family::result::<bf16>(launch, "rounded").into_iter().map(bf16::to_f64).collect();
        let answer: Answer = match self.stage {
            Stage::Squares => vec![family::result(launch, "parts")],
            Stage::Norm => vec![single("norm")],
            Stage::Update { averages } => {
                let mut answer = vec![single("parameters"), copy(), single("first"), single("second")];
                if averages {
                    answer.push(single("average"));
                }
                answer
            }
            Stage::Round => vec![copy()],
        };
        self.deviations(&answer)
    }
}

const BUGS: [Bug; 12] = [
    Bug {
        what: "a missing barrier",
        file: "optimizer.cu",
        right: "        ptx::barrier();\n",
        wrong: "",
        kernels: "gradient_",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "half of the threads left out of the sum",
        file: "optimizer.cu",
        right: "half = OPTIMIZER_THREADS / 2",
        wrong: "half = OPTIMIZER_THREADS / 4",
        kernels: "gradient_",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients behind the last",
        file: "optimizer.cu",
        right: "min(static_cast<int64_t>(OPTIMIZER_PART), p.length - begin)",
        wrong: "static_cast<int64_t>(OPTIMIZER_PART)",
        kernels: "gradient_squares",
        found_by: &["of `gradients` of"],
    },
    Bug {
        what: "squares in f32",
        file: "optimizer.cu",
        right: "static_cast<double>(value) * static_cast<double>(value)",
        wrong: "value * value",
        kernels: "gradient_squares",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "parts behind the first of each thread left out",
        file: "optimizer.cu",
        right: "part < p.count; part += OPTIMIZER_THREADS",
        wrong: "part < p.count; part += p.count",
        kernels: "gradient_norm",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a norm that is not rooted",
        file: "optimizer.cu",
        right: "static_cast<float>(sqrt(sum))",
        wrong: "static_cast<float>(sum)",
        kernels: "gradient_norm",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "parameters behind the last",
        file: "optimizer.cu",
        right: "if (at >= p.length || !finite) return;",
        wrong: "if (!finite) return;",
        kernels: "adam_update",
        found_by: &["of `gradients` of"],
    },
    Bug {
        what: "a gradient that is not clipped",
        file: "optimizer.cu",
        right: "p.clip > 0.0f && norm > p.clip ? p.clip / norm : 1.0f",
        wrong: "p.clip > 0.0f && norm > p.clip ? 1.0f : 1.0f",
        kernels: "adam_update",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a second moment that is not corrected",
        file: "optimizer.cu",
        right: "sqrtf(v / p.correction2)",
        wrong: "sqrtf(v)",
        kernels: "adam_update",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the old parameters in bf16",
        file: "optimizer.cu",
        right: "    step(p, g.x * scale, w.x, m.x, v.x);\n",
        wrong: "    ptx::store_global(reinterpret_cast<uint2 *>(p.rounded + at), rounded(w));\n    w.x += 0.0f;\n",
        kernels: "adam_update",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a decay of one size for all parameters",
        file: "optimizer.cu",
        right: "w -= p.lr * (change + p.weight_decay * w);",
        wrong: "w -= p.lr * (change + p.weight_decay);",
        kernels: "adam_update",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "copies behind the last",
        file: "optimizer.cu",
        right: "    if (at >= p.length) return;",
        wrong: "",
        kernels: "round_parameters",
        found_by: &["of `parameters` of"],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::too_little_shared_memory("gradient_"),
    WrongLaunch::a_block_too_few("gradient_squares"),
    WrongLaunch {
        what: "a block of parameters too few",
        change: |launch| launch.grid[0] -= 1,
        kernels: "round_parameters",
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "moments that are too short",
        change: |launch| launch.buffers[4].bytes.truncate(4096),
        kernels: "adam_update",
        found_by: &["of `first` of 4096 bytes"],
    },
];

/// Every stage; for the norm more parts than threads.
fn cases() -> Vec<Case> {
    let problem = |(stage, length)| match stage {
        Stage::Norm => Problem::of_parts(300, 1),
        _ => Problem::random(stage, length, STEP, 1),
    };
    STAGES.into_iter().map(|stage| Case::new(Limits::SM_90, problem(stage))).collect()
}

fn counted() -> Vec<Counted> {
    let mut all = Vec::new();
    for stage in [Stage::Squares, Stage::Update { averages: true }, Stage::Round] {
        for length in [1 << 16, 1 << 18] {
            let problem = Box::new(Problem::random(stage, length, STEP, 1));
            all.push(Counted { shape: length.to_string(), problem, useful_products: 0.0 });
        }
    }
    for count in [16, 640] {
        let problem = Box::new(Problem::of_parts(count, 1));
        all.push(Counted { shape: count.to_string(), problem, useful_products: 0.0 });
    }
    all
}

/// Runs on the emulator and gives what is off.
fn wrong(problem: Problem) -> Vec<(&'static str, Deviation)> {
    let case = Case::new(Limits::SM_80, problem);
    let mut launch = case.launch();
    emulate::run(&Kernels::repository(), &mut launch, &Default::default()).unwrap();
    case.wrong(&launch)
}

/// The least, whole blocks, and one more.
#[test]
fn any_number_of_parameters() {
    for length in [64, 1024, 16_384, 16_448] {
        for stage in [Stage::Squares, Stage::Update { averages: true }, Stage::Round] {
            assert_eq!(wrong(Problem::random(stage, length, STEP, 2)), [], "{length} values, {stage:?}");
        }
    }
}

#[test]
fn clipped_or_not() {
    let stage = Stage::Update { averages: false };
    for clip in [0.0, 1e-3, 1e3] {
        for step in [1, 1000, u64::MAX] {
            let step = AdamStep { clip, step, ..STEP };
            assert_eq!(wrong(Problem::random(stage, 256, step, 3)), [], "{step:?}");
        }
    }
}

/// What the exact answer of such a norm is: all as it was.
#[test]
fn a_norm_that_is_not_finite_changes_nothing() {
    for norm in [f32::INFINITY, f32::NAN] {
        let problem = Problem { norm, ..Problem::random(Stage::Update { averages: true }, 256, STEP, 4) };
        let before = family::Problem::launch(&problem, &Limits::SM_90);
        let mut launch = before.clone();
        emulate::run(&Kernels::repository(), &mut launch, &Default::default()).unwrap();
        assert!(launch == before, "{norm}");
    }
}

fn norm_of(gpu: &Gpu, gradients: &[f32]) -> f32 {
    let mut arena = gpu.arena("a norm", 1 << 20).unwrap();
    let mut values = arena.take(gradients.len()).unwrap();
    gpu.upload(&mut values, gradients).unwrap();
    let mut norm = arena.take(1).unwrap();
    let mut scratch = arena.take(gradient_norm_scratch_len(gradients.len())).unwrap();
    gradient_norm(gpu, &mut norm, &values, &mut scratch).unwrap();
    gpu.download(&norm).unwrap()[0]
}

#[test]
fn norms_of_gradients_of_any_size() {
    driver::with(&Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        for size in [1e25, 3e-42, 1.0, 0.0] {
            assert_eq!(norm_of(&gpu, &[size; 64]), 8.0 * size);
        }
        assert_eq!(norm_of(&gpu, &[]), 0.0);
        assert_eq!(norm_of(&gpu, &[f32::MAX; 64]), f32::INFINITY);
        let mut gradients = vec![1.0; 40_000];
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            gradients[33_333] = bad;
            assert!(!norm_of(&gpu, &gradients).is_finite());
        }
    })
    .unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("weights", 1 << 16).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let gpu = &gpus[0];
        let mut take = |len| {
            let mut buffer = mine.take::<f32>(len).unwrap();
            gpu.zero(&mut buffer).unwrap();
            buffer
        };
        let [mut parameters, mut first, mut second, mut average] =
            [take(128), take(128), take(128), take(128)];
        let (gradients, short, odd) = (take(128), take(64), take(100));
        let (mut norm, mut scratch) = (take(1), take(2));
        let mut rounded = mine.take::<bf16>(128).unwrap();
        let other = theirs.take::<f32>(128).unwrap();

        let mut of_norm = |gradients: &Buffer<f32>, scratch: &mut Buffer<f32>| {
            gradient_norm(gpu, &mut norm, gradients, scratch)
        };
        of_norm(&gradients, &mut scratch).unwrap();
        let mut part = scratch.part(0..1).unwrap();
        let mut inside = gradients.part(0..2).unwrap();
        for (error, says) in [
            (of_norm(&odd, &mut scratch), "a multiple of 64 up to 1099511627776, not 100"),
            (of_norm(&other, &mut scratch), "a buffer of another GPU"),
            (of_norm(&gradients, &mut part), "scratch has 1 values, not 2 or more"),
            (of_norm(&gradients, &mut inside), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        let mut step = |gradients: &Buffer<f32>, average: Option<&mut Buffer<f32>>, number| {
            let weights = DeviceWeights {
                parameters: &mut parameters,
                rounded: &mut rounded,
                first: &mut first,
                second: &mut second,
                average,
            };
            adam_step(gpu, weights, gradients, &norm, &AdamStep { step: number, ..STEP })
        };
        step(&gradients, Some(&mut average), 1).unwrap();
        step(&gradients, None, 1).unwrap();
        let mut alias = gradients.part(0..128).unwrap();
        for (error, says) in [
            (step(&short, None, 1), "gradients has 64 values, not 128"),
            (step(&other, None, 1), "a buffer of another GPU"),
            (step(&gradients, Some(&mut alias), 1), "share memory"),
            (step(&gradients, None, 0), "steps are counted from 1"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        round_parameters(gpu, &mut rounded, &parameters).unwrap();
        for (error, says) in [
            (round_parameters(gpu, &mut rounded, &short), "copy in bf16 has 128 values, not 64"),
            (round_parameters(gpu, &mut rounded, &other), "a buffer of another GPU"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}
