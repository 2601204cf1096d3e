//! Scores, losses and both gradients in one kernel.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::ScoreLosses;
use setrank::device::{Buffer, Gpu, Limits, Uploads};
use setrank::ops::check::Deviation;
use setrank::ops::loss::{DeviceLabels, Loss};
use setrank::ops::partial_sums::PendingSums;
use setrank::ops::score::check as score;
use setrank::ops::score::check::Direction;
use setrank::ops::score_loss::check::{Answer, Problem};
use setrank::ops::score_loss::{ScoreLossResults, score_loss_scratch_len, score_losses};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, given, poisoned};
use crate::ladder::ladder;
use crate::linear::sum_of_parts;
use crate::loss::WRONG_LAUNCHES;
use crate::score::zeros;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "score_loss", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, limits: &Limits) -> Launch {
        let (head, sets) = (&self.head, &self.sets);
        let plan = self.plan().unwrap();
        let (documents, width, count) = (head.rows(), head.width(), sets.offsets.len() - 1);
        let offsets: Vec<i32> = sets.offsets.iter().map(|&offset| offset as i32).collect();
        let buffers = vec![
            (offset_of!(ScoreLosses, x), "x", given(&head.x)),
            (offset_of!(ScoreLosses, weight), "weight", given(&head.weight)),
            (offset_of!(ScoreLosses, bias), "bias", given(&head.bias)),
            (offset_of!(ScoreLosses, labels), "labels", given(&sets.labels)),
            (offset_of!(ScoreLosses, offsets), "offsets", given(&offsets)),
            (offset_of!(ScoreLosses, scores), "scores", poisoned::<f32>(documents)),
            (offset_of!(ScoreLosses, losses), "losses", poisoned::<f32>(count)),
            (offset_of!(ScoreLosses, d_scores), "d_scores", poisoned::<f32>(documents)),
            (offset_of!(ScoreLosses, dx), "dx", poisoned::<bf16>(documents * width)),
            (offset_of!(ScoreLosses, d_weight), "d_weight", poisoned::<f32>(count * width)),
            (offset_of!(ScoreLosses, d_bias), "d_bias", poisoned::<f32>(count)),
        ];
        let launch = plan.launch(sets.loss, limits).unwrap().expect("a problem has sets");
        family::launch(launch, &plan.numbers(sets.loss, sets.scale), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        self.deviations(&answer(self, launch))
    }
}

/// What a launch left in its buffers.
fn answer(problem: &Problem, launch: &Launch) -> Answer {
    let wide = |name| family::result::<f32>(launch, name).into_iter().map(f64::from).collect();
    let mut answer: Answer = ["scores", "losses", "d_scores"].map(wide).into();
    answer.push(family::result::<bf16>(launch, "dx").into_iter().map(bf16::to_f64).collect());
    answer.push(sum_of_parts(launch, "d_weight", &problem.head.d_weight));
    answer.push(sum_of_parts(launch, "d_bias", &problem.head.d_bias));
    answer
}

const BUGS: [Bug; 9] = [
    Bug {
        what: "scores that others may not have written",
        file: "score_loss.cu",
        right: "    ptx::barrier();\n    const auto score_of",
        wrong: "    const auto score_of",
        kernels: "",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "gradients that others may not have written",
        file: "score_loss.cu",
        right: "    ptx::barrier();\n    const auto d_score_of",
        wrong: "    const auto d_score_of",
        kernels: "score_losses_softmax_cross_entropy",
        found_by: &["is read before anything is written to it", WRONG_RESULTS],
    },
    Bug {
        what: "sums in the place of gradients",
        file: "score_loss.cu",
        right: "p.d_bias + blockIdx.x, scores.begin)",
        wrong: "p.d_bias + blockIdx.x, gradients.begin)",
        kernels: "",
        found_by: &[WRONG_RESULTS, "bytes of shared memory"],
    },
    Bug {
        what: "gradients that are not scaled",
        file: "score_loss.cu",
        right: "const float scaled = p.scale * gradient;",
        wrong: "const float scaled = gradient;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a bias that is left out",
        file: "score_loss.cu",
        right: "bias + product",
        wrong: "product",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "scores of the batch's documents in the place of the set's",
        file: "score_loss.cu",
        right: "scores.set(row - begin, score)",
        wrong: "scores.set(row, score)",
        kernels: "",
        found_by: &["bytes of shared memory", "is read before anything is written to it", WRONG_RESULTS],
    },
    Bug {
        what: "gradients of the first documents for all sets",
        file: "score_loss.cu",
        right: "gradients.at(row - begin)",
        wrong: "gradients.at((row - begin) % 256)",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "labels of the first set",
        file: "score_loss.cu",
        right: "p.labels + begin, of, put",
        wrong: "p.labels, of, put",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "parts in the place of the first",
        file: "score_loss.cu",
        right: "p.d_weight + static_cast<size_t>(blockIdx.x) * p.width",
        wrong: "p.d_weight",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
];

/// Of every loss, in rows of another width each; and one set in which a score is NaN.
fn cases() -> Vec<Case> {
    let mixed = Loss::ALL.into_iter().zip([64, 192, 320, 512]);
    let mut all: Vec<Case> =
        mixed.map(|(loss, width)| Case::new(Limits::SM_90, Problem::mixed(loss, width, 1))).collect();
    all.push(Case::new(Limits::SM_90, with_nan(Loss::SoftmaxCrossEntropy)).large());
    all
}

/// A problem of which one set has a score that is NaN.
fn with_nan(loss: Loss) -> Problem {
    let mut problem = Problem::random(loss, &[12, 20, 5], 64, 3);
    problem.head.x[15 * 64 + 9] = bf16::NAN;
    problem.sets.labels[15..18].copy_from_slice(&[1.0, 0.0, 2.0]);
    problem
}

fn counted() -> Vec<Counted> {
    let sizes: [(&str, &[usize]); 2] = [("32x40x256", &[40; 32]), ("384x256", &[384])];
    let counted = |loss| {
        sizes.map(|(shape, sizes)| Counted {
            shape: shape.into(),
            problem: Box::new(Problem::random(loss, sizes, 256, 1)),
            useful_products: 0.0,
        })
    };
    Loss::ALL.into_iter().flat_map(counted).collect()
}

/// The bits of scores, losses and gradients are those of three kernels, and so are those of parts where both have the same rows.
#[test]
fn the_bits_are_those_of_three_kernels() {
    let sizes: [&[usize]; 3] = [&[0, 1, 2, 17, 31, 32, 33, 40, 0], &[500, 3], &[128, 128, 40]];
    for (loss, width) in Loss::ALL.into_iter().zip([320, 64, 512, 256]) {
        for sizes in sizes {
            let problem = Problem::random(loss, sizes, width, 5);
            let one = family::emulated(&problem, Sums::Nearest);
            let forward = family::emulated(&problem.head, Sums::Nearest);
            let scores = family::result::<f32>(&forward, "scores");
            let losses = family::emulated(&problem.sets.with_scores(scores), Sums::Nearest);
            let d_scores = family::result::<f32>(&losses, "d_scores");
            let head = problem.head.clone();
            let backward = score::Problem { direction: Direction::Backward, d_scores, ..head };
            let backward = family::emulated(&backward, Sums::Nearest);
            let mut compared =
                vec![(&forward, "scores"), (&losses, "losses"), (&losses, "d_scores"), (&backward, "dx")];
            if sizes[0] == 128 {
                compared.extend([(&backward, "d_weight"), (&backward, "d_bias")]);
            }
            for (apart, name) in compared {
                let [one, apart] = [&one, apart].map(|launch| family::bytes(launch, name).unwrap());
                assert!(one == apart, "{loss:?}, {sizes:?}, rows of {width}: {name}");
            }
        }
    }
}

/// Sets of any size, by the rule; those without a document leave parts of 0.
#[test]
fn sets_of_any_size() {
    for (loss, sizes) in Loss::ALL.into_iter().zip([&[500][..], &[0, 1, 2, 0], &[31, 32, 33, 17], &[257, 40]])
    {
        let problem = Problem::random(loss, sizes, 128, 2);
        let launch = family::emulated(&problem, Sums::Nearest);
        let found = problem.deviations(&answer(&problem, &launch));
        assert!(found.iter().all(|(_, found)| found.is_allowed()), "{loss:?}, {sizes:?}: {found:?}");
        let parts = family::result::<f32>(&launch, "d_weight");
        for (part, _) in parts.chunks(128).zip(sizes).filter(|&(_, &size)| size == 0) {
            assert_eq!(part, [0.0; 128]);
        }
    }
}

/// Where a loss is not finite, all gradients of its set are NaN, and those of others are not.
#[test]
fn what_is_not_finite_stays_in_its_set() {
    for loss in Loss::ALL {
        let problem = with_nan(loss);
        let launch = family::emulated(&problem, Sums::Nearest);
        let [d_scores, d_bias] = ["d_scores", "d_bias"].map(|name| family::result::<f32>(&launch, name));
        let dx = family::result::<bf16>(&launch, "dx");
        for document in 0..problem.head.rows() {
            let is_of_it = (12..32).contains(&document);
            assert_eq!(d_scores[document].is_nan(), is_of_it, "{loss:?}, document {document}");
            assert_eq!(dx[document * 64].is_nan(), is_of_it, "{loss:?}, document {document}");
        }
        assert_eq!(d_bias.iter().map(|part| part.is_nan()).collect::<Vec<_>>(), [false, true, false]);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("losses", 1 << 16).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let gpu = &gpus[0];
        let mut x: Buffer<bf16> = mine.take(5 * 64).unwrap();
        gpu.upload(&mut x, &[bf16::ONE; 5 * 64]).unwrap();
        let mut dx: Buffer<bf16> = mine.take(5 * 64).unwrap();
        let mut take = |len| zeros(gpu, mine, len);
        let (weight, narrow, bias) = (take(64), take(32), take(1));
        let (mut scores, mut losses, mut d_scores, mut short) = (take(5), take(3), take(5), take(2));
        let (mut d_weight, mut d_bias, scratch) = (take(64), take(1), take(score_loss_scratch_len(3, 64)));
        let others = zeros(&gpus[1], theirs, 64);
        let labels = on_device(gpu, &[1.0, 0.0, -1.0, 0.0, 2.0], &[0, 3, 3, 5]);

        let mut of = |scores: &mut Buffer<f32>,
                      dx: &mut Buffer<bf16>,
                      weight: &Buffer<f32>,
                      scratch: &Buffer<f32>,
                      labels: &DeviceLabels| {
            let results = ScoreLossResults {
                scores,
                losses: &mut losses,
                d_scores: &mut d_scores,
                dx,
                d_weight: &mut d_weight,
                d_bias: &mut d_bias,
            };
            let loss = Loss::SoftmaxCrossEntropy;
            PendingSums::of(gpu, scratch, |sums| {
                score_losses(gpu, results, &x, weight, &bias, labels, loss, 2.0, sums)
            })
        };
        of(&mut scores, &mut dx, &weight, &scratch, &labels).unwrap();
        let mut same = x.part(0..5 * 64).unwrap();
        let less = scratch.part(0..64).unwrap();
        let long = on_device(gpu, &vec![0.0; 60_000], &[0, 60_000]);
        for (error, says) in [
            (of(&mut short, &mut dx, &weight, &scratch, &labels), "scores [N] has 2 values, not 5"),
            (of(&mut scores, &mut dx, &narrow, &scratch, &labels), "a multiple of 64 up to 512 wide, not 32"),
            (of(&mut scores, &mut dx, &others, &scratch, &labels), "a buffer of another GPU"),
            (of(&mut scores, &mut same, &weight, &scratch, &labels), "share memory"),
            (of(&mut scores, &mut dx, &weight, &less, &labels), "scratch has 64 values, not 195 or more"),
            (of(&mut scores, &mut dx, &weight, &scratch, &long), "a set of 60000 documents takes"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        // Gradients of parameters are added to what is there: of rows of ones, and gradients that cancel, 0.
        assert_eq!(gpu.download(&losses).unwrap(), [2f32.ln(), 0.0, 2f32.ln()]);
        assert_eq!(gpu.download(&d_scores).unwrap(), [-1.0, 1.0, 0.0, 1.0, -1.0]);
        assert_eq!(gpu.download(&d_weight).unwrap(), [0.0; 64]);
        assert_eq!(gpu.download(&d_bias).unwrap(), [0.0]);
    })
    .unwrap();
}

/// Labels and sets in a package that is just large enough.
fn on_device(gpu: &Gpu, labels: &[f32], offsets: &[usize]) -> DeviceLabels {
    let bytes = DeviceLabels::bytes(labels.len(), offsets.len() - 1);
    let room = gpu.arena("labels", bytes).unwrap().room(bytes).unwrap();
    Uploads::default().send(gpu, room, |package| DeviceLabels::new(package, labels, offsets)).unwrap()
}

/// Sets without documents have a loss of 0; without sets there is nothing to launch, and sums stay as they are.
#[test]
fn no_documents() {
    driver::with(&Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        for sets in [0, 2] {
            let problem = Problem::random(Loss::ApproxNdcg, &vec![0; sets], 64, 1);
            let launches = driver.counters().launches;
            let answer = problem.solve(&gpu).unwrap();
            assert_eq!(answer[1], vec![0.0; sets]);
            let before: Vec<f64> = problem.head.d_weight.iter().map(|&value| value.into()).collect();
            assert_eq!(answer[4], before);
            // And that of the parts.
            assert_eq!(driver.counters().launches - launches, if sets > 0 { 2 } else { 0 });
        }
    })
    .unwrap();
}
