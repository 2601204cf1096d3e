//! Documents of grids, by lengths and by masks.

use std::mem::offset_of;

use half::bf16;
use setrank::data::layout::{Grid, Occupied};
use setrank::device::abi::Unpad;
use setrank::device::{Buffer, Gpu, Limits};
use setrank::ops::check::Deviation;
use setrank::ops::unpad::check::{Problem, SHAPES};
use setrank::ops::unpad::{DeviceGrid, UnpadPlan, UnpadShape, unpad};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "unpad", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let shape = self.shape();
        let plan = UnpadPlan::new(shape).unwrap();
        let (occupied, name) = if shape.masked {
            (offset_of!(Unpad, mask), "mask")
        } else {
            (offset_of!(Unpad, lengths), "lengths")
        };
        let buffers = vec![
            (offset_of!(Unpad, grid), "grid", given(&self.grid.features)),
            (offset_of!(Unpad, offsets), "offsets", given(&self.offsets())),
            (occupied, name, given(&self.occupied())),
            (offset_of!(Unpad, rows), "rows", poisoned::<bf16>(self.documents() * self.width)),
        ];
        family::launch(plan.launch().unwrap(), &plan.numbers(), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let answer: Vec<f64> = family::result::<bf16>(launch, "rows").into_iter().map(bf16::to_f64).collect();
        vec![("rows", self.deviation(&answer))]
    }
}

const BUGS: [Bug; 8] = [
    Bug {
        what: "sets behind the last",
        file: "unpad.cu",
        right: "    if (set >= p.sets) return;\n",
        wrong: "",
        kernels: "unpad",
        found_by: &["of `lengths` of", "of `mask` of"],
    },
    Bug {
        what: "features behind the last",
        file: "unpad.cu",
        right: "if (column < features) held[j][e] =",
        wrong: "held[j][e] =",
        kernels: "unpad",
        found_by: &["of `grid` of", WRONG_RESULTS],
    },
    Bug {
        what: "columns behind the last",
        file: "unpad.cu",
        right: "            if (column < width) {\n",
        wrong: "            {\n",
        kernels: "unpad",
        found_by: &["of `rows` of", WRONG_RESULTS],
    },
    Bug {
        what: "the first four steps of columns alone",
        file: "unpad.cu",
        right: "first += AHEAD * 64",
        wrong: "first += width",
        kernels: "unpad",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "cells behind a set's documents",
        file: "unpad.cu",
        right: "min(max(length - first, 0), CELLS)",
        wrong: "min(max(length + 1 - first, 0), CELLS)",
        kernels: "unpad_lengths",
        found_by: &["of `grid` of", "of `rows` of", WRONG_RESULTS],
    },
    Bug {
        what: "documents of the words before that are not counted",
        file: "unpad.cu",
        right: "word < own; word += 32",
        wrong: "word + 1 < own; word += 32",
        kernels: "unpad_mask",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "documents of the same word that are not counted",
        file: "unpad.cu",
        right: "before + __popc(word & ((1u << shift) - 1))",
        wrong: "before",
        kernels: "unpad_mask",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of padding",
        file: "unpad.cu",
        right: "left &= left - 1",
        wrong: "left >>= 1",
        kernels: "unpad_mask",
        found_by: &["of `grid` of", "of `rows` of", WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 3] = [
    WrongLaunch::a_block_too_few(""),
    WrongLaunch {
        what: "a grid that is too short",
        change: |launch| {
            let len = launch.buffers[0].bytes.len();
            launch.buffers[0].bytes.truncate(len / 2);
        },
        kernels: "",
        found_by: &["of `grid` of"],
    },
    WrongLaunch {
        what: "more threads than the kernel is for",
        change: |launch| launch.block[0] += 32,
        kernels: "",
        found_by: &["its __launch_bounds__ allow 256"],
    },
];

fn cases() -> Vec<Case> {
    SHAPES.map(|shape| Case::new(Limits::SM_90, Problem::random(shape, 2))).into()
}

fn counted() -> Vec<Counted> {
    let shape = UnpadShape { sets: 40, n_max: 84, features: 220, width: 256, masked: false };
    let counted = |shape: UnpadShape| {
        let problem = Problem::random(shape, 1);
        let documents = problem.documents();
        Counted {
            shape: format!("{documents} of {}x{}x{}", shape.sets, shape.n_max, shape.features),
            problem: Box::new(problem),
            useful_products: 0.0,
        }
    };
    [shape, UnpadShape { masked: true, ..shape }].map(counted).into()
}

#[test]
fn any_grid() {
    for (sets, n_max) in [(1, 1), (1, 500), (17, 31), (5, 32), (4, 33), (2, 64), (3, 1025)] {
        for (features, width) in [(1, 64), (64, 64), (65, 128), (0, 64)] {
            for masked in [false, true] {
                let shape = UnpadShape { sets, n_max, features, width, masked };
                let case = Case::new(Limits::SM_80, Problem::random(shape, 3));
                let launch = family::run(case.launch(), Default::default());
                assert_eq!(case.wrong(&launch), [], "{shape:?}");
            }
        }
    }
}

/// As the host rounds them: to nearest even, and what is not finite stays so.
#[test]
fn features_are_rounded_as_the_host_rounds_them() {
    let shape = UnpadShape { sets: 2, n_max: 40, features: 64, width: 64, masked: true };
    let mut problem = Problem::random(shape, 4);
    let bits = (0..=u32::MAX).step_by((u32::MAX as usize / (2 * 40 * 64)) | 1);
    for (feature, bits) in problem.grid.features.iter_mut().zip(bits) {
        *feature = f32::from_bits(bits);
    }
    let launch = family::run(family::Problem::launch(&problem, &Limits::SM_90), Default::default());
    let found: Vec<bf16> = family::result(&launch, "rows");
    let mut features = Vec::new();
    problem.grid.cells().unwrap().gather(&mut features, &problem.grid.features, 64).unwrap();
    for (found, feature) in found.into_iter().zip(features) {
        let expected = bf16::from_f32(feature);
        assert!(found == expected || found.is_nan() && expected.is_nan(), "{feature}: {found}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let [mut mine, mut theirs] = gpus.each_ref().map(|gpu| gpu.arena("rows", 1 << 14).unwrap());
        let gpu = &gpus[0];
        let grid = |occupied, features: usize| Grid {
            occupied,
            n_max: 3,
            num_features: 2,
            features: vec![1.0; features],
            ..Grid::default()
        };
        let lengths = |lengths: &[usize]| Occupied::Lengths(lengths.to_vec());
        let right = grid(Occupied::Mask(vec![false, true, true, true, false, false]), 12);
        for (wrong, width, says) in [
            (grid(lengths(&[2, 4]), 12), 64, "set 1 (from 0) has 4 documents, but n_max is 3"),
            (grid(lengths(&[2, 0]), 12), 64, "set 1 (from 0) has no document"),
            (grid(lengths(&[2, 1]), 11), 64, "11 features are given, but [B, n_max, F] makes 12"),
            (right.clone(), 32, "a multiple of 64 wide"),
        ] {
            let error = DeviceGrid::new(gpu, &mut mine, &wrong, width).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let on_gpu = DeviceGrid::new(gpu, &mut mine, &right, 64).unwrap();
        assert_eq!(on_gpu.documents(), 3);
        let [mut rows, mut few]: [Buffer<bf16>; 2] = [3, 2].map(|rows| mine.take(rows * 64).unwrap());
        let mut other: Buffer<bf16> = theirs.take(3 * 64).unwrap();
        unpad(gpu, &mut rows, &on_gpu).unwrap();
        let expected = [1.0, 1.0].into_iter().chain(std::iter::repeat_n(0.0, 62)).map(bf16::from_f32);
        let found = gpu.download(&rows).unwrap();
        assert!(found.chunks(64).all(|row| row.iter().copied().eq(expected.clone())));
        for (error, says) in [
            (unpad(gpu, &mut few, &on_gpu), "rows [N, width] has 128 values, not 192"),
            (unpad(gpu, &mut other, &on_gpu), "a buffer of another GPU"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}
