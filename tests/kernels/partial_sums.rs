//! Sums of parts.

use std::mem::offset_of;

use setrank::device::abi::{PartialSum, PartialSums};
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::partial_sums::check::Problem;
use setrank::ops::partial_sums::{PartialSumsPlan, PendingSums, SumOfParts, partial_sums};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "partial_sums", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        launch_of(std::slice::from_ref(self))
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        vec![("sums", self.deviation(&family::result::<f32>(launch, "into")))]
    }
}

/// Several at once.
struct Group(Vec<Problem>);

impl family::Problem for Group {
    fn launch(&self, _limits: &Limits) -> Launch {
        launch_of(&self.0)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let of = |(problem, [_, into]): (&Problem, &[&str; 2])| {
            ("sums", problem.deviation(&family::result::<f32>(launch, into)))
        };
        self.0.iter().zip(&BUFFERS).map(of).collect()
    }
}

/// Names of the buffers of each sum of a launch.
const BUFFERS: [[&str; 2]; 3] = [["parts", "into"], ["parts 1", "into 1"], ["parts 2", "into 2"]];

fn launch_of(problems: &[Problem]) -> Launch {
    let shapes: Vec<_> = problems.iter().map(|problem| (problem.into().len(), problem.count())).collect();
    let plan = PartialSumsPlan::new(&shapes).unwrap();
    let mut buffers = Vec::new();
    for (number, (problem, [parts, into])) in problems.iter().zip(BUFFERS).enumerate() {
        let at = offset_of!(PartialSums, sums) + number * size_of::<PartialSum>();
        buffers.push((at + offset_of!(PartialSum, parts), parts, given(problem.parts())));
        buffers.push((at + offset_of!(PartialSum, into), into, given(problem.into())));
    }
    family::launch(plan.launch().expect("a problem has parts"), &plan.numbers(), buffers)
}

const BUGS: [Bug; 7] = [
    Bug {
        what: "a missing barrier",
        file: "partial_sums.cu",
        right: "    ptx::barrier();\n",
        wrong: "",
        kernels: "",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "loads behind the parts",
        file: "partial_sums.cu",
        right: "    if (inside && warp < warps) {",
        wrong: "    if (warp < warps) {",
        kernels: "",
        found_by: &["of `parts"],
    },
    Bug {
        what: "stores behind the sums",
        file: "partial_sums.cu",
        right: "if (warp > 0 || !inside) return;",
        wrong: "if (warp > 0) return;",
        kernels: "",
        found_by: &["of `into"],
    },
    Bug {
        what: "parts that all warps take",
        file: "partial_sums.cu",
        right: "int part = warp;",
        wrong: "int part = 0;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the last part left out",
        file: "partial_sums.cu",
        right: "part < of.count;",
        wrong: "part < of.count - 1;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of a warp left out",
        file: "partial_sums.cu",
        right: "int other = 1;",
        wrong: "int other = 2;",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums that replace what was there",
        file: "partial_sums.cu",
        right: "ptx::load_global(of.into + column) + sum",
        wrong: "sum",
        kernels: "",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::too_little_shared_memory(""),
    WrongLaunch::a_block_too_few(""),
    WrongLaunch {
        what: "parts that are too short",
        change: |launch| {
            let len = launch.buffers[0].bytes.len();
            launch.buffers[0].bytes.truncate(len - 4);
        },
        kernels: "",
        found_by: &["of `parts"],
    },
    WrongLaunch {
        what: "more threads than the kernel is for",
        change: |launch| launch.block[0] = 288,
        kernels: "",
        found_by: &["its __launch_bounds__ allow 256"],
    },
];

fn cases() -> Vec<Case> {
    let problem = |(length, count)| Problem::random(length, count, length as u64);
    let alone = [(33, 2), (70, 19), (65, 8)].map(|sum| Case::new(Limits::SM_90, problem(sum)));
    let group = Group([(33, 9), (65, 2), (1, 4)].map(problem).into());
    alone.into_iter().chain([Case::new(Limits::SM_90, group)]).collect()
}

fn counted() -> Vec<Counted> {
    let counted = |(length, count)| Counted {
        shape: format!("{count}x{length}"),
        problem: Box::new(Problem::random(length, count, 1)),
        useful_products: 0.0,
    };
    [(256, 132), (65_536, 8), (1001, 3)].into_iter().map(counted).collect()
}

#[test]
fn one_value_or_one_part() {
    for (length, count) in [(1, 1), (1, 40), (100, 1)] {
        let case = Case::new(Limits::SM_80, Problem::random(length, count, 2));
        let mut launch = case.launch();
        let kernels = setrank_emulator::kernels::Kernels::repository();
        setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
        assert_eq!(case.wrong(&launch), [], "{count} parts of {length}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("sums", 1 << 12).unwrap());
        let mut into = arenas[0].take::<f32>(16).unwrap();
        let mut whole = arenas[0].take::<f32>(64).unwrap();
        let theirs = arenas[1].take::<f32>(48).unwrap();
        gpus[0].zero(&mut into).unwrap();
        gpus[0].upload(&mut whole, &[1.0; 64]).unwrap();
        let of = |into: &Buffer<f32>, parts: &Buffer<f32>, count| {
            let [into, parts] = [into, parts].map(|buffer| buffer.part(0..buffer.len()).unwrap());
            SumOfParts { into, parts, count }
        };
        let sum = |gpu, into: &Buffer<f32>, parts: &Buffer<f32>, count| {
            partial_sums(gpu, &mut [of(into, parts, count)])
        };
        // More parts than are added are there.
        sum(&gpus[0], &into, &whole, 3).unwrap();
        assert_eq!(gpus[0].download(&into).unwrap(), [3.0; 16]);
        // Nothing is launched.
        sum(&gpus[0], &into, &whole, 0).unwrap();
        partial_sums(&gpus[0], &mut []).unwrap();
        let (part, same) = (whole.part(16..32).unwrap(), into.part(8..16).unwrap());
        let twice = partial_sums(&gpus[0], &mut [of(&into, &whole, 1), of(&same, &whole, 1)]);
        for (error, says) in [
            (sum(&gpus[0], &into, &whole, 5), "parts [count, len] has 64 values, not 80"),
            (sum(&gpus[0], &into, &theirs, 3), "a buffer of another GPU"),
            (sum(&gpus[1], &into, &theirs, 3), "a buffer of another GPU"),
            (sum(&gpus[0], &part, &whole, 1), "share memory"),
            (twice, "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    })
    .unwrap();
}

/// As many as one launch takes are added up together; those that are pending make room for others.
#[test]
fn sums_wait_for_each_other() {
    driver::with(&Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let mut arena = gpu.arena("sums", 1 << 14).unwrap();
        let scratch = arena.take::<f32>(140).unwrap();
        let mut into = arena.take::<f32>(140).unwrap();
        gpu.zero(&mut into).unwrap();
        let of = |number: usize| into.part(4 * number..4 * number + 1).unwrap();
        let mut sums = PendingSums::new(scratch);
        let leave = |sums: &mut PendingSums, number: usize, count: usize| {
            let mut parts = sums.room(&gpu, count, 1).unwrap();
            gpu.upload(&mut parts, &vec![number as f32; count]).unwrap();
            sums.add(&of(number), parts, count).unwrap();
        };
        let launches = || driver.counters().launches;
        // So many are one launch, as is what is left.
        (0..33).for_each(|number| leave(&mut sums, number, 2));
        assert_eq!(launches(), 1);
        sums.finish(&gpu).unwrap();
        sums.finish(&gpu).unwrap();
        assert_eq!(launches(), 2);
        // 160 values do not fit.
        (33..35).for_each(|number| leave(&mut sums, number, 80));
        assert_eq!(launches(), 3);
        sums.finish(&gpu).unwrap();
        let expected = |number: usize| if number < 33 { 2 * number } else { 80 * number } as f32;
        let found = gpu.download(&into).unwrap();
        assert!((0..35).all(|number| found[4 * number] == expected(number)), "{found:?}");
        let error = sums.room(&gpu, 141, 1).unwrap_err().to_string();
        assert!(error.contains("scratch has 140 values, not 141 or more"), "{error}");
    })
    .unwrap();
}
