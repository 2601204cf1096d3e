//! Losses of sets.

use std::mem::offset_of;

use setrank::device::abi::SetLosses;
use setrank::device::{Arena, Buffer, DeviceError, Gpu, Limits, Uploads};
use setrank::ops::check::Deviation;
use setrank::ops::loss::check::{Answer, Problem};
use setrank::ops::loss::{DeviceLabels, Loss, set_losses};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate;
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "loss", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, limits: &Limits) -> Launch {
        let plan = self.plan().unwrap();
        let offsets: Vec<i32> = self.offsets.iter().map(|&offset| offset as i32).collect();
        let buffers = vec![
            (offset_of!(SetLosses, scores), "scores", given(&self.scores)),
            (offset_of!(SetLosses, labels), "labels", given(&self.labels)),
            (offset_of!(SetLosses, offsets), "offsets", given(&offsets)),
            (offset_of!(SetLosses, losses), "losses", poisoned::<f32>(plan.sets)),
            (offset_of!(SetLosses, d_scores), "d_scores", poisoned::<f32>(plan.documents)),
        ];
        let launch = plan.launch(self.loss, limits).unwrap().expect("a problem has sets");
        family::launch(launch, &plan.numbers(self.scale), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let [losses, gradients] = self.deviations(&answer(launch));
        vec![("losses", losses), ("gradients", gradients)]
    }
}

/// What a launch left in its buffers.
fn answer(launch: &Launch) -> Answer {
    let [losses, d_scores] = ["losses", "d_scores"]
        .map(|name| family::result::<f32>(launch, name).into_iter().map(f64::from).collect());
    Answer { losses, d_scores }
}

const BUGS: [Bug; 12] = [
    Bug {
        what: "a missing barrier",
        file: "loss.cuh",
        right: "slots.set(warp, value);\n        ptx::barrier();",
        wrong: "slots.set(warp, value);",
        kernels: "",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "loads behind the set",
        file: "loss.cuh",
        right: "i = threadIdx.x; i < rows;",
        wrong: "i = threadIdx.x; i <= rows;",
        kernels: "",
        found_by: &["of `scores` of", "is read before anything is written to it", "bytes of shared memory"],
    },
    Bug {
        what: "documents that are not judged count",
        file: "loss.cuh",
        right: "const bool judged = label >= 0.0f;",
        wrong: "const bool judged = label >= -1.0f;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients that are not scaled",
        file: "loss.cu",
        right: "gradient * p.scale",
        wrong: "gradient",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients of a loss that is NaN",
        file: "loss.cuh",
        right: "if (!(fabsf(loss) < INFINITE))",
        wrong: "if (fabsf(loss) >= INFINITE)",
        kernels: "set_losses_lambda_loss",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sets without a relevant document",
        file: "loss.cuh",
        right: "set.largest_label > 0.0f &&",
        wrong: "set.largest_label >= 0.0f &&",
        kernels: "set_losses_a",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a first document among the others",
        file: "loss.cuh",
        right: "return i != top ? set.scores.at(i) : -INFINITE;",
        wrong: "return set.scores.at(i);",
        kernels: "set_losses_attention_rank",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "equal scores that share a rank",
        file: "loss.cuh",
        right: "(other == score && j < i)",
        wrong: "(other == score && j < 0)",
        kernels: "set_losses_lambda_loss",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "equal labels that share a rank",
        file: "loss.cuh",
        right: "(other == label && j < i)",
        wrong: "(other == label && j < 0)",
        kernels: "set_losses_approx_ndcg",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "ranks that others may not have written",
        file: "loss.cuh",
        right: "    ptx::barrier();\n    const float loss",
        wrong: "    const float loss",
        kernels: "set_losses_lambda_loss",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "a pull in the direction of the others",
        file: "loss.cuh",
        right: "gradient -= (slope - slopes.at(j))",
        wrong: "gradient += (slope - slopes.at(j))",
        kernels: "set_losses_approx_ndcg",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a logarithm of half the digits",
        file: "loss.cuh",
        right: "return 2.0f * (t + t * square * sum);",
        wrong: "return 2.0f * t;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
];

/// Of kernels with a block a set.
pub const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::too_little_shared_memory(""),
    WrongLaunch::a_block_too_few(""),
    WrongLaunch::a_block_too_many("", &["of `offsets` of"]),
    WrongLaunch {
        what: "fewer threads than the kernel is for",
        change: |launch| launch.block[0] = 128,
        kernels: "",
        found_by: &["is read before anything is written to it"],
    },
];

fn cases() -> Vec<Case> {
    Loss::ALL.map(|loss| Case::new(Limits::SM_90, Problem::mixed(loss, 1))).into()
}

fn counted() -> Vec<Counted> {
    let sizes: [(&str, &[usize]); 2] = [("32x40", &[40; 32]), ("500", &[500])];
    let counted = |loss| {
        sizes.map(|(shape, sizes)| Counted {
            shape: shape.into(),
            problem: Box::new(Problem::random(loss, sizes, 1)),
            useful_products: 0.0,
        })
    };
    Loss::ALL.into_iter().flat_map(counted).collect()
}

/// Runs a problem and gives what is off, and the answer.
fn emulated(problem: &Problem) -> ([Deviation; 2], Answer) {
    let mut launch = family::Problem::launch(problem, &Limits::SM_90);
    emulate::run(&Kernels::repository(), &mut launch, &Default::default()).unwrap();
    let answer = answer(&launch);
    (problem.deviations(&answer), answer)
}

#[test]
fn numbers_of_any_size() {
    for loss in Loss::ALL {
        for seed in [1, 2, 3] {
            for problem in [Problem::mixed(loss, seed), Problem::extreme(loss, seed)] {
                let (found, _) = emulated(&problem);
                assert!(found.iter().all(|found| found.is_allowed()), "{loss:?}, seed {seed}: {found:?}");
            }
        }
    }
}

/// As long as sets get; every loss takes it on every card.
#[test]
fn the_longest_set() {
    for loss in Loss::ALL {
        let problem = Problem::random(loss, &[4096], 7);
        assert!(problem.plan().unwrap().launch(loss, &Limits::SM_89).is_ok());
        let (found, _) = emulated(&problem);
        assert!(found.iter().all(|found| found.is_allowed()), "{loss:?}: {found:?}");
    }
}

/// Of scores that are all equal, and of some that are infinite.
#[test]
fn scores_of_a_kind() {
    for loss in Loss::ALL {
        let mut problem = Problem::random(loss, &[33], 4);
        problem.scores.fill(-2.0);
        let (found, _) = emulated(&problem);
        assert!(found.iter().all(|found| found.is_allowed()), "{loss:?}: {found:?}");

        let mut problem = Problem::random(loss, &[6, 2], 5);
        problem.labels.copy_from_slice(&[1.0, 0.0, -1.0, 2.0, 0.0, 0.0, 0.0, 1.0]);
        problem.scores[..6].fill(f32::NAN);
        problem.scores[6] = f32::INFINITY;
        let (_, answer) = emulated(&problem);
        assert!(answer.losses.iter().all(|loss| !loss.is_finite()), "{loss:?}: {answer:?}");
        assert!(answer.d_scores.iter().all(|gradient| gradient.is_nan()), "{loss:?}: {answer:?}");
    }
}

/// A document that is not judged may have any score.
#[test]
fn only_judged_documents_count() {
    for loss in Loss::ALL {
        let mut problem = Problem::random(loss, &[20], 6);
        problem.labels[..4].copy_from_slice(&[-1.0, 1.0, 0.0, 2.0]);
        problem.scores[0] = f32::NAN;
        let (found, answer) = emulated(&problem);
        assert!(found.iter().all(|found| found.is_allowed()), "{loss:?}: {found:?}");
        assert!(answer.losses[0] > 0.0 && answer.d_scores[0] == 0.0, "{loss:?}: {answer:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("a loss", 1 << 20).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let gpu = &gpus[0];
        let (labels, offsets) = ([1.0, 0.0, -1.0, 0.0, 2.0], [0, 3, 3, 5]);
        let labels = on_device(gpu, &labels, &offsets).unwrap();
        assert_eq!((labels.plan().sets, labels.plan().longest), (3, 3));
        assert!(on_device(gpu, &[0.0], &[0, 2]).is_err());
        let mut take = |len| zeros(gpu, mine, len);
        let (scores, mut losses, mut d_scores, mut short) = (take(5), take(3), take(5), take(2));
        let others = zeros(&gpus[1], theirs, 5);
        let of = |losses: &mut Buffer<f32>, d_scores: &mut Buffer<f32>, scores: &Buffer<f32>| {
            set_losses(gpu, losses, d_scores, scores, &labels, Loss::SoftmaxCrossEntropy, 2.0)
        };
        of(&mut losses, &mut d_scores, &scores).unwrap();
        assert_eq!(gpu.download(&losses).unwrap(), [2f32.ln(), 0.0, 2f32.ln()]);
        assert_eq!(gpu.download(&d_scores).unwrap(), [-1.0, 1.0, 0.0, 1.0, -1.0]);
        let mut same = scores.part(0..5).unwrap();
        for (error, says) in [
            (of(&mut short, &mut d_scores, &scores), "losses [B] has 2 values, not 3"),
            (of(&mut losses, &mut short, &scores), "d_scores [N] has 2 values, not 5"),
            (of(&mut losses, &mut d_scores, &others), "a buffer of another GPU"),
            (of(&mut losses, &mut same, &scores), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let long = vec![0.0; 60_000];
        let long = on_device(gpu, &long, &[0, 60_000]).unwrap();
        let error = set_losses(gpu, &mut losses, &mut d_scores, &scores, &long, Loss::LambdaLoss, 1.0);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("documents, not 60000"), "{error}");
        gpu.synchronize().unwrap();
    })
    .unwrap();
}

/// Labels and sets in a package that is just large enough.
fn on_device(gpu: &Gpu, labels: &[f32], offsets: &[usize]) -> Result<DeviceLabels, DeviceError> {
    let bytes = DeviceLabels::bytes(labels.len(), offsets.len() - 1);
    let room = gpu.arena("labels", bytes)?.room(bytes)?;
    Uploads::default().send(gpu, room, |package| DeviceLabels::new(package, labels, offsets))
}

fn zeros(gpu: &Gpu, arena: &mut Arena, len: usize) -> Buffer<f32> {
    let mut buffer = arena.take(len).unwrap();
    gpu.zero(&mut buffer).unwrap();
    buffer
}

/// Sets without documents have a loss of 0; without sets there is nothing to launch.
#[test]
fn no_documents() {
    driver::with(&Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("a loss", 1 << 12).unwrap();
        for sets in [0, 2] {
            let labels = on_device(&gpu, &[], &vec![0; sets + 1]).unwrap();
            let (scores, mut d_scores) = (arena.take(0).unwrap(), arena.take(0).unwrap());
            let mut losses = arena.take(sets).unwrap();
            gpu.upload(&mut losses, &vec![3.0; sets]).unwrap();
            let launches = driver.counters().launches;
            set_losses(&gpu, &mut losses, &mut d_scores, &scores, &labels, Loss::ApproxNdcg, 1.0).unwrap();
            assert_eq!(gpu.download(&losses).unwrap(), vec![0.0; sets]);
            assert_eq!(driver.counters().launches - launches, u64::from(sets > 0));
        }
    })
    .unwrap();
}
