//! ReLU's backward pass and sums of repeated rows.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{AddRepeats, ReluBackward, SumRepeats};
use setrank::device::check::Deviation;
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::row_sums::check::{Kernel, PROBLEMS, Problem, Shape};
use setrank::ops::row_sums::{ReluBackwardPlan, RepeatsPlan, add_repeats, relu_backward, sum_repeats};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "row_sums", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let Shape { groups, repeats, run } = self.shape;
        let repeated = RepeatsPlan::new(groups, repeats, run).unwrap();
        let x = given(&self.x);
        match self.kernel {
            Kernel::ReluBackward => {
                let plan = ReluBackwardPlan::new(run).unwrap();
                let buffers = vec![
                    (offset_of!(ReluBackward, dy), "dy", x),
                    (offset_of!(ReluBackward, y), "y", given(&self.y)),
                ];
                family::launch(plan.launch().unwrap(), &plan.numbers(), buffers)
            }
            Kernel::Sum => {
                let buffers = vec![
                    (offset_of!(SumRepeats, x), "x", x),
                    (offset_of!(SumRepeats, out), "out", poisoned::<bf16>(groups * run)),
                ];
                family::launch(repeated.sum().unwrap(), &repeated.sum_numbers(), buffers)
            }
            Kernel::Add => {
                let buffers = vec![
                    (offset_of!(AddRepeats, x), "x", x),
                    (offset_of!(AddRepeats, once), "once", given(&self.y)),
                    (offset_of!(AddRepeats, into), "into", given(&self.into)),
                ];
                family::launch(repeated.add().unwrap(), &repeated.add_numbers(), buffers)
            }
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rounded = |name| family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect();
        let (name, answer): (_, Vec<f64>) = match self.kernel {
            Kernel::ReluBackward => ("dy", rounded("dy")),
            Kernel::Sum => ("out", rounded("out")),
            Kernel::Add => {
                ("into", family::result::<f32>(launch, "into").into_iter().map(f64::from).collect())
            }
        };
        vec![(name, self.deviation(&answer))]
    }
}

const BUGS: [Bug; 13] = [
    Bug {
        what: "values behind the last",
        file: "row_sums.cu",
        right: "    if (column >= p.length) return;\n",
        wrong: "",
        kernels: "relu_backward",
        found_by: &["of `y` of"],
    },
    Bug {
        what: "a gradient where ReLU's output is 0",
        file: "row_sums.cu",
        right: "(bf16_low(pair) > 0.0f",
        wrong: "(bf16_low(pair) >= 0.0f",
        kernels: "relu_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a gradient where ReLU's output is NaN",
        file: "row_sums.cu",
        right: "(bf16_low(pair) > 0.0f",
        wrong: "(!(bf16_low(pair) <= 0.0f)",
        kernels: "relu_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a value that its neighbour masks",
        file: "row_sums.cu",
        right: "(bf16_high(pair) > 0.0f",
        wrong: "(bf16_low(pair) > 0.0f",
        kernels: "relu_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns behind the run that are set",
        file: "row_sums.cu",
        right: "blockIdx.y;\n    if (column >= p.run) return;\n",
        wrong: "blockIdx.y;\n",
        kernels: "sum_repeats",
        found_by: &["of `x` of"],
    },
    Bug {
        what: "columns behind the run that are added to",
        file: "row_sums.cu",
        right: "first_column();\n    if (column >= p.run) return;\n",
        wrong: "first_column();\n",
        kernels: "add_repeats",
        found_by: &["of `once` of"],
    },
    Bug {
        what: "the last repeat left out",
        file: "row_sums.cu",
        right: "repeat < repeats;",
        wrong: "repeat < repeats - 1;",
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "groups that overlap",
        file: "row_sums.cu",
        right: "group * p.repeats * p.run",
        wrong: "group * p.run",
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "columns that are swapped",
        file: "bf16.cuh",
        right: "ptx::pack_bf16(values[2], values[3])",
        wrong: "ptx::pack_bf16(values[3], values[2])",
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a value with its neighbour's bits behind it",
        file: "bf16.cuh",
        right: "pair & 0xffff0000u",
        wrong: "pair",
        kernels: "add_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums that replace what was there",
        file: "row_sums.cu",
        right: "four.z += sums[j + 2];",
        wrong: "four.z = sums[j + 2];",
        kernels: "add_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "what is added once left out",
        file: "row_sums.cu",
        right: "four.z += once[j + 2];",
        wrong: "",
        kernels: "add_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the same four columns twice",
        file: "row_sums.cu",
        right: "(p.into + column + j)",
        wrong: "(p.into + column)",
        kernels: "add_repeats",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 5] = [
    WrongLaunch::a_block_too_few(""),
    WrongLaunch {
        what: "a group too few",
        change: |launch| launch.grid[1] -= 1,
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
    WrongLaunch {
        what: "a group too many",
        change: |launch| launch.grid[1] += 1,
        kernels: "sum_repeats",
        found_by: &["of `x` of"],
    },
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| {
            let len = launch.buffers[0].bytes.len();
            launch.buffers[0].bytes.truncate(len - 16);
        },
        kernels: "",
        found_by: &["of `dy` of", "of `x` of"],
    },
    WrongLaunch {
        what: "more threads than the kernel is for",
        change: |launch| launch.block[0] += 32,
        kernels: "",
        found_by: &["its __launch_bounds__ allow 256", "its __launch_bounds__ allow 64"],
    },
];

fn cases() -> Vec<Case> {
    PROBLEMS.map(|(kernel, shape)| Case::new(Limits::SM_90, Problem::random(kernel, shape, 2))).into()
}

fn counted() -> Vec<Counted> {
    let counted = |(kernel, groups, repeats, run)| Counted {
        shape: format!("{groups}x{repeats}x{run}"),
        problem: Box::new(Problem::random(kernel, Shape { groups, repeats, run }, 1)),
        useful_products: 0.0,
    };
    [(Kernel::ReluBackward, 1, 1, 65_536), (Kernel::Sum, 8, 64, 640), (Kernel::Add, 1, 64, 5120)]
        .into_iter()
        .map(counted)
        .collect()
}

#[test]
fn one_thread_or_one_repeat() {
    let kernels = setrank_emulator::kernels::Kernels::repository();
    for (kernel, groups, repeats, run) in [
        (Kernel::ReluBackward, 1, 1, 64),
        (Kernel::ReluBackward, 1, 1, 2048),
        (Kernel::Sum, 2, 1, 32),
        (Kernel::Sum, 1, 8, 512),
        (Kernel::Add, 1, 1, 64),
        (Kernel::Add, 1, 8, 512),
    ] {
        let problem = Problem::random(kernel, Shape { groups, repeats, run }, 2);
        let case = Case::new(Limits::SM_80, problem);
        let mut launch = case.launch();
        setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
        assert_eq!(case.wrong(&launch), [], "{kernel:?}, {groups} groups of {repeats} of {run}");
    }
}

/// What ReLU keeps has the same bits, and what it does not is 0, whatever it was.
#[test]
fn relu_changes_no_bits() {
    let kernels = setrank_emulator::kernels::Kernels::repository();
    let shape = Shape { groups: 1, repeats: 1, run: 64 };
    let mut problem = Problem::random(Kernel::ReluBackward, shape, 2);
    let smallest = bf16::from_bits(1);
    let outputs = [bf16::ZERO, bf16::NEG_ZERO, bf16::NAN, bf16::NEG_INFINITY, smallest, bf16::INFINITY];
    let gradients = [0x7fc1, 0xffff, 0x8000, 0xff80, 0x0001].map(bf16::from_bits);
    let pairs = outputs.iter().flat_map(|y| gradients.iter().map(move |dy| (*y, *dy)));
    for (at, (y, dy)) in pairs.enumerate() {
        (problem.y[at], problem.x[at]) = (y, dy);
    }
    let mut launch = family::Problem::launch(&problem, &Limits::SM_90);
    setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
    for (at, found) in family::result::<bf16>(&launch, "dy").into_iter().enumerate() {
        let (y, dy) = (problem.y[at], problem.x[at]);
        let expected = if y > bf16::ZERO { dy.to_bits() } else { 0 };
        assert_eq!(found.to_bits(), expected, "y {y}, dy {dy}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("sums", 1 << 14).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let gpu = &gpus[0];
        let mut x: Buffer<bf16> = mine.take(6 * 64).unwrap();
        let mut y: Buffer<bf16> = mine.take(64).unwrap();
        let mut out: Buffer<bf16> = mine.take(2 * 64).unwrap();
        let mut odd: Buffer<bf16> = mine.take(48).unwrap();
        let mut into: Buffer<f32> = mine.take(64).unwrap();
        let mut short: Buffer<f32> = mine.take(32).unwrap();
        let other: Buffer<bf16> = theirs.take(6 * 64).unwrap();
        let mut none: Buffer<bf16> = mine.take(0).unwrap();
        gpu.upload(&mut x, &[bf16::ONE; 6 * 64]).unwrap();
        gpu.zero(&mut into).unwrap();
        gpu.upload(&mut y, &[bf16::NEG_ONE; 64]).unwrap();

        sum_repeats(gpu, &mut out, &x, 2, 3).unwrap();
        assert_eq!(gpu.download(&out).unwrap(), [bf16::from_f32(3.0); 128]);
        let mut whole = out.part(0..64).unwrap();
        let mut inside = x.part(64..192).unwrap();
        for (error, says) in [
            (sum_repeats(gpu, &mut out, &x, 2, 4), "x [groups, repeats, run] has 384 values, not 512"),
            (sum_repeats(gpu, &mut out, &x, 2, usize::MAX), "x [groups, repeats, run] has 384 values"),
            (sum_repeats(gpu, &mut out, &x, 3, 3), "out [groups, run] has 128 values, not 126"),
            (sum_repeats(gpu, &mut out, &x, 0, 3), "out [groups, run] has 128 values, not 0"),
            (sum_repeats(gpu, &mut odd, &x, 1, 8), "a multiple of 32, not 1 of 8 of 48"),
            (sum_repeats(gpu, &mut out, &other, 2, 3), "a buffer of another GPU"),
            (sum_repeats(&gpus[1], &mut out, &other, 2, 3), "a buffer of another GPU"),
            (sum_repeats(gpu, &mut inside, &x, 2, 3), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        // Sums of nothing are 0, and nothing is launched without groups.
        sum_repeats(gpu, &mut out, &none, 2, 0).unwrap();
        assert_eq!(gpu.download(&out).unwrap(), [bf16::ZERO; 128]);
        sum_repeats(gpu, &mut none, &odd.part(0..0).unwrap(), 0, 3).unwrap();

        add_repeats(gpu, &mut into, &y, &x, 6).unwrap();
        assert_eq!(gpu.download(&into).unwrap(), [5.0; 64]);
        // No repeats are 0.
        add_repeats(gpu, &mut into, &y, &none, 0).unwrap();
        assert_eq!(gpu.download(&into).unwrap(), [4.0; 64]);
        for (error, says) in [
            (add_repeats(gpu, &mut into, &y, &x, 5), "x [repeats, run] has 384 values, not 320"),
            (add_repeats(gpu, &mut into, &x, &x, 6), "once [run] has 384 values, not 64"),
            (add_repeats(gpu, &mut short, &y, &x, 12), "a multiple of 64 values, not 32"),
            (add_repeats(gpu, &mut into, &y, &other, 6), "a buffer of another GPU"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        relu_backward(gpu, &mut whole, &y).unwrap();
        relu_backward(gpu, &mut none, &odd.part(0..0).unwrap()).unwrap();
        let same = x.part(0..384).unwrap();
        for (error, says) in [
            (relu_backward(gpu, &mut out, &y), "y [len] has 64 values, not 128"),
            (relu_backward(gpu, &mut odd, &y), "a multiple of 64, not 48"),
            (relu_backward(gpu, &mut x, &other), "a buffer of another GPU"),
            (relu_backward(gpu, &mut x, &same), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}
