//! ReLU's backward pass and sums of repeated rows.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{ReluBackward, SumRepeats};
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::row_sums::check::{Kernel, PROBLEMS, Problem, Shape};
use setrank::ops::row_sums::{ReluBackwardPlan, Repeats, RepeatsPlan, relu_backward, sum_repeats};
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
        match self.kernel {
            Kernel::ReluBackward => {
                let plan = ReluBackwardPlan::new(run).unwrap();
                let buffers = vec![
                    (offset_of!(ReluBackward, dy), "dy", given(&self.x)),
                    (offset_of!(ReluBackward, y), "y", given(&self.y)),
                ];
                family::launch(plan.launch().unwrap(), &plan.numbers(), buffers)
            }
            Kernel::Sums => {
                let plan = RepeatsPlan::new(groups, repeats, run).unwrap();
                let buffers = vec![
                    (offset_of!(SumRepeats, x), "x", given(&self.x)),
                    (offset_of!(SumRepeats, y), "y", given(&self.y)),
                    (offset_of!(SumRepeats, out), "out", poisoned::<bf16>(groups * run)),
                    (offset_of!(SumRepeats, into), "into", given(&self.into)),
                ];
                family::launch(plan.launch().unwrap(), &plan.numbers(), buffers)
            }
        }
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let rounded = |name| family::result::<bf16>(launch, name).into_iter().map(bf16::to_f64).collect();
        let answer = match self.kernel {
            Kernel::ReluBackward => vec![rounded("dy")],
            Kernel::Sums => {
                let into = family::result::<f32>(launch, "into").into_iter().map(f64::from).collect();
                vec![rounded("out"), into]
            }
        };
        self.deviations(&answer)
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
        what: "columns behind the run",
        file: "row_sums.cu",
        right: "    if (column >= p.run) return;\n",
        wrong: "",
        kernels: "sum_repeats",
        found_by: &["of `x` of", "of `y` of"],
    },
    Bug {
        what: "sums that are added of another layout",
        file: "row_sums.cu",
        right: "adds ? gridDim.y * p.run : p.run",
        wrong: "p.run",
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first group for all, where sums are added",
        file: "row_sums.cu",
        right: "p.y + to",
        wrong: "p.y + column",
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
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
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums that replace what was there",
        file: "row_sums.cu",
        right: "four.z += sums[j + 2];",
        wrong: "four.z = sums[j + 2];",
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the same four columns twice",
        file: "row_sums.cu",
        right: "(p.into + to + j)",
        wrong: "(p.into + to)",
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 6] = [
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
        found_by: &["of `x` of", "of `out` of", "of `into` of", "of `y` of"],
    },
    WrongLaunch {
        what: "no sums that are added",
        change: |launch| launch.grid[2] = 1,
        kernels: "sum_repeats",
        found_by: &[WRONG_RESULTS],
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
    [(Kernel::ReluBackward, 1, 1, 65_536), (Kernel::Sums, 8, 64, 640)].into_iter().map(counted).collect()
}

#[test]
fn one_thread_or_one_repeat() {
    let kernels = setrank_emulator::kernels::Kernels::repository();
    for (kernel, groups, repeats, run) in [
        (Kernel::ReluBackward, 1, 1, 64),
        (Kernel::ReluBackward, 1, 1, 2048),
        (Kernel::Sums, 2, 1, 32),
        (Kernel::Sums, 1, 8, 512),
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

fn of<'a>(x: &'a Buffer<bf16>, y: &'a Buffer<bf16>, groups: usize, repeats: usize) -> Repeats<'a> {
    Repeats { x, y, groups, repeats }
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
        let mut y: Buffer<bf16> = mine.take(6 * 64).unwrap();
        let mut out: Buffer<bf16> = mine.take(2 * 64).unwrap();
        let mut odd: Buffer<bf16> = mine.take(48).unwrap();
        let mut into: Buffer<f32> = mine.take(2 * 64).unwrap();
        let mut short: Buffer<f32> = mine.take(64).unwrap();
        let other: Buffer<bf16> = theirs.take(6 * 64).unwrap();
        let mut none: Buffer<bf16> = mine.take(0).unwrap();
        let mut none_into: Buffer<f32> = mine.take(0).unwrap();
        gpu.upload(&mut x, &[bf16::ONE; 6 * 64]).unwrap();
        gpu.upload(&mut y, &[bf16::NEG_ONE; 6 * 64]).unwrap();
        gpu.upload(&mut into, &[0.5; 2 * 64]).unwrap();

        sum_repeats(gpu, &mut out, &mut into, of(&x, &y, 2, 3)).unwrap();
        assert_eq!(gpu.download(&out).unwrap(), [bf16::from_f32(3.0); 128]);
        assert_eq!(gpu.download(&into).unwrap(), [-2.5; 128]);
        let mut inside = x.part(64..192).unwrap();
        let little = y.part(0..128).unwrap();
        let odd_into = &mut short.part(0..48).unwrap();
        for (error, says) in [
            (
                sum_repeats(gpu, &mut out, &mut into, of(&x, &y, 2, 4)),
                "x [groups, repeats, run] has 384 values, not 512",
            ),
            (
                sum_repeats(gpu, &mut out, &mut into, of(&x, &y, 2, usize::MAX)),
                "x [groups, repeats, run] has 384 values",
            ),
            (
                sum_repeats(gpu, &mut out, &mut into, of(&x, &little, 2, 3)),
                "y [repeats, groups, run] has 128 values, not 384",
            ),
            (
                sum_repeats(gpu, &mut out, &mut into, of(&x, &y, 3, 3)),
                "out [groups, run] has 128 values, not 126",
            ),
            (
                sum_repeats(gpu, &mut out, &mut into, of(&x, &y, 0, 3)),
                "out [groups, run] has 128 values, not 0",
            ),
            (
                sum_repeats(gpu, &mut out, &mut short, of(&x, &y, 2, 3)),
                "into [groups, run] has 64 values, not 128",
            ),
            (sum_repeats(gpu, &mut odd, odd_into, of(&x, &y, 1, 8)), "a multiple of 32, not 1 of 8 of 48"),
            (sum_repeats(gpu, &mut out, &mut into, of(&other, &y, 2, 3)), "a buffer of another GPU"),
            (sum_repeats(gpu, &mut out, &mut into, of(&x, &other, 2, 3)), "a buffer of another GPU"),
            (sum_repeats(&gpus[1], &mut out, &mut into, of(&other, &other, 2, 3)), "a buffer of another GPU"),
            (sum_repeats(gpu, &mut inside, &mut into, of(&x, &y, 2, 3)), "share memory"),
            (sum_repeats(gpu, &mut inside, &mut into, of(&y, &x, 2, 3)), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        // Sums of nothing are 0, and nothing is launched without groups.
        sum_repeats(gpu, &mut out, &mut into, of(&none, &none, 2, 0)).unwrap();
        assert_eq!(gpu.download(&out).unwrap(), [bf16::ZERO; 128]);
        assert_eq!(gpu.download(&into).unwrap(), [-2.5; 128]);
        let nothing = none.part(0..0).unwrap();
        sum_repeats(gpu, &mut none, &mut none_into, of(&nothing, &nothing, 0, 3)).unwrap();

        let y = y.part(0..64).unwrap();
        let mut whole = out.part(0..64).unwrap();
        relu_backward(gpu, &mut whole, &y).unwrap();
        relu_backward(gpu, &mut none, &nothing).unwrap();
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
