//! Rows by their numbers.

use std::mem::offset_of;

use half::bf16;
use setrank::data::augment::{Columns, FeatureDropout};
use setrank::data::batch::Shuffle;
use setrank::device::abi::GatherRows;
use setrank::device::{Buffer, Gpu, Limits, Room, Uploads};
use setrank::ops::check::Deviation;
use setrank::ops::gather::check::{Problem, SIZES, Size};
use setrank::ops::gather::{DeviceFeatureDropout, GatherPlan, RowNumbers, gather_rows};
use setrank::rng::{Rng, Stream};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::launch::Launch;

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "gather", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = GatherPlan::new(self.numbers.len(), self.width, self.dropout).unwrap();
        let mut buffers = vec![
            (offset_of!(GatherRows, from), "from", given(&self.from)),
            (offset_of!(GatherRows, index), "index", given(&self.numbers)),
            (offset_of!(GatherRows, to), "to", poisoned::<bf16>(self.numbers.len() * self.width)),
        ];
        if self.dropout.is_some() {
            let data_rows: Vec<i32> = self.data_rows.iter().map(|&row| row as i32).collect();
            buffers.push((offset_of!(GatherRows, data_rows), "data_rows", given(&data_rows)));
        }
        family::launch(plan.launch().unwrap(), &plan.numbers(), buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let answer: Vec<f64> = family::result::<bf16>(launch, "to").into_iter().map(bf16::to_f64).collect();
        vec![("to", self.deviation(&answer))]
    }
}

const BUGS: [Bug; 17] = [
    Bug {
        what: "rows behind the last",
        file: "gather.cu",
        right: "    if (row >= p.rows) return;\n",
        wrong: "",
        kernels: "gather_rows",
        found_by: &["of `index` of"],
    },
    Bug {
        what: "columns behind the last, read",
        file: "gather.cu",
        right: "if (column < p.width) held[j] =",
        wrong: "held[j] =",
        kernels: "gather_rows",
        found_by: &["of `from` of"],
    },
    Bug {
        what: "columns behind the last, written",
        file: "gather.cu",
        right: "            if (column >= p.width) continue;\n",
        wrong: "",
        kernels: "gather_rows",
        found_by: &["of `to` of", WRONG_RESULTS],
    },
    Bug {
        what: "the first four steps of columns alone",
        file: "gather.cu",
        right: "first += AHEAD * STRIDE",
        wrong: "first += p.width",
        kernels: "gather_rows",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows in their own order",
        file: "gather.cu",
        right: "source * p.width",
        wrong: "row * p.width",
        kernels: "gather_rows",
        found_by: &["of `from` of", WRONG_RESULTS],
    },
    Bug {
        what: "the next row's number",
        file: "gather.cu",
        right: "p.index + row)",
        wrong: "p.index + row + 1)",
        kernels: "gather_rows",
        found_by: &["of `index` of", WRONG_RESULTS],
    },
    Bug {
        what: "a generator of nine rounds",
        file: "philox.cuh",
        right: "round < 10",
        wrong: "round < 9",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "words of another feature",
        file: "gather.cu",
        right: "words[2 * i] >> 5",
        wrong: "words[i] >> 5",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "numbers that are twice as large",
        file: "gather.cu",
        right: "words[2 * i] >> 5",
        wrong: "words[2 * i] >> 4",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a number that is as large as the threshold",
        file: "gather.cu",
        right: "number < dropout.threshold",
        wrong: "number <= dropout.threshold",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the same draws in every epoch",
        file: "gather.cu",
        right: "data_row, dropout.epoch}",
        wrong: "data_row, 0}",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "draws by the row of the matrix",
        file: "gather.cu",
        right: "p.data_rows + row",
        wrong: "p.index + row",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "features that are not drawn for",
        file: "gather.cu",
        right: "word += GATHER_LANES",
        wrong: "word = words",
        kernels: "gather_rows_dropout",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "draws that are not waited for",
        file: "gather.cu",
        right: "        ptx::sync_warp();\n",
        wrong: "",
        kernels: "gather_rows_dropout",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "columns within the set that begin behind the features",
        file: "gather.cu",
        right: "column - dropout.first_within_set;",
        wrong: "column - dropout.features;",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "indicators that are dropped beside the last feature",
        file: "gather.cu",
        right: "next == dropout.features ? next - dropout.first_within_set : 0",
        wrong: "0",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the other one of two values",
        file: "gather.cu",
        right: "half == 0 ? 0xffff0000u : 0x0000ffffu",
        wrong: "half == 1 ? 0xffff0000u : 0x0000ffffu",
        kernels: "gather_rows_dropout",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::a_block_too_few(""),
    WrongLaunch::too_little_shared_memory("gather_rows_dropout"),
    WrongLaunch {
        what: "a matrix that is too short",
        change: |launch| {
            let len = launch.buffers[0].bytes.len();
            launch.buffers[0].bytes.truncate(len - 16);
        },
        kernels: "",
        found_by: &["of `from` of"],
    },
    WrongLaunch {
        what: "more threads than the kernel is for",
        change: |launch| launch.block[0] += 32,
        kernels: "",
        found_by: &["its __launch_bounds__ allow 256"],
    },
];

fn cases() -> Vec<Case> {
    let case = |size: Size| {
        let mut problem = Problem::random(size, 2);
        // The last row is among them.
        problem.numbers[1] = size.of as i32 - 1;
        if let Some(dropout) = &mut problem.dropout {
            // One feature draws the rate itself, and stays.
            let Shuffle { seed, epoch } = dropout.shuffle;
            let mut rng = Rng::new(seed, Stream::Augment, epoch << 32 | problem.data_rows[3] as u64);
            let mut drawn = std::iter::repeat_with(|| rng.uniform()).take(dropout.columns.num_features);
            dropout.rate = drawn.find(|rate| (0.2..0.4).contains(rate)).unwrap();
        }
        Case::new(Limits::SM_90, problem)
    };
    SIZES.map(case).into()
}

fn counted() -> Vec<Counted> {
    let counted = |size: Size| Counted {
        shape: format!("{} of {}x{}", size.rows, size.of, size.width),
        problem: Box::new(Problem::random(size, 1)),
        useful_products: 0.0,
    };
    let (narrow, wide) = (Size::new(1280, 2000, 256), Size::new(1000, 2000, 704));
    [narrow, wide, wide.dropping(220, 230)].into_iter().map(counted).collect()
}

#[test]
fn any_width() {
    let kernels = setrank_emulator::kernels::Kernels::repository();
    for (rows, width) in [(1, 64), (32, 128), (5, 192), (31, 256), (64, 768), (2, 4096)] {
        let size = Size::new(rows, 7, width);
        let all = width - 1;
        // Values alone, with indicators, with columns within the set in one and two ways, and features of one column.
        for size in [
            size,
            size.dropping(all, all),
            size.dropping(all - 5, width),
            size.dropping(width / 2 - 3, width / 2 - 3),
            size.dropping(width / 3 - 2, width / 3 + 3),
            size.dropping(1, 2),
        ] {
            let case = Case::new(Limits::SM_80, Problem::random(size, 2));
            let mut launch = case.launch();
            setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
            assert_eq!(case.wrong(&launch), [], "{size:?}");
        }
    }
}

/// Whatever a value's bits are, they arrive.
#[test]
fn bits_are_copied() {
    let mut problem = Problem::random(Size::new(40, 8, 64), 3);
    for (value, bits) in problem.from.iter_mut().zip((0..=u16::MAX).step_by(127)) {
        *value = bf16::from_bits(bits);
    }
    let mut launch = family::Problem::launch(&problem, &Limits::SM_90);
    let kernels = setrank_emulator::kernels::Kernels::repository();
    setrank_emulator::emulate::run(&kernels, &mut launch, &Default::default()).unwrap();
    let found: Vec<u16> = family::result(&launch, "to");
    for (row, &number) in found.chunks(64).zip(&problem.numbers) {
        let from = &problem.from[number as usize * 64..][..64];
        assert!(row.iter().eq(from.iter().map(|value| value.to_bits()).collect::<Vec<_>>().iter()));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("rows", 1 << 14).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let gpu = &gpus[0];
        let mut uploads = Uploads::default();
        let mut numbers = |gpu: &Gpu, room: Room, rows: &[i32], of| {
            uploads.send(gpu, room, |package| RowNumbers::new(package, rows, of))
        };
        let rows = numbers(gpu, mine.room(256).unwrap(), &[2, 0], 3).unwrap();
        let none = numbers(gpu, mine.room(256).unwrap(), &[], 3).unwrap();
        for wrong in [[0, 3], [-1, 0]] {
            let error = numbers(gpu, mine.room(256).unwrap(), &wrong, 3).unwrap_err().to_string();
            assert!(error.contains("of a matrix of 3 rows"), "{error}");
        }
        let error = numbers(gpu, theirs.room(256).unwrap(), &[0], 3).unwrap_err().to_string();
        assert!(error.contains("a buffer of another GPU"), "{error}");
        let mut from: Buffer<bf16> = mine.take(3 * 64).unwrap();
        let mut to: Buffer<bf16> = mine.take(2 * 64).unwrap();
        let mut empty: Buffer<bf16> = mine.take(0).unwrap();
        let other: Buffer<bf16> = theirs.take(3 * 64).unwrap();
        let values: Vec<bf16> = (0..3 * 64).map(|value| bf16::from_f32((value / 64) as f32)).collect();
        gpu.upload(&mut from, &values).unwrap();
        gather_rows(gpu, &mut to, &from, &rows, None, 64).unwrap();
        assert_eq!(gpu.download(&to).unwrap(), [&values[128..], &values[..64]].concat());
        // Nothing is launched.
        gather_rows(gpu, &mut empty, &from, &none, None, 64).unwrap();
        let mut inside = from.part(64..192).unwrap();
        let mut dropout = |features, first_within_set, data_rows: &[usize]| {
            let columns = Columns { num_features: features, first_within_set };
            let dropout = FeatureDropout { rate: 0.5, shuffle: Shuffle { seed: 1, epoch: 1 }, columns };
            let room = mine.room(256).unwrap();
            uploads.send(gpu, room, |package| DeviceFeatureDropout::new(package, dropout, data_rows))
        };
        let error = dropout(3, 3, &[0, 1 << 31]).unwrap_err().to_string();
        assert!(error.contains("row 2147483648 of the data set, more than kernels count"), "{error}");
        let other_rows = dropout(3, 3, &[0]).unwrap();
        let other_columns = dropout(60, 65, &[0, 1]).unwrap();
        for (error, says) in [
            (gather_rows(gpu, &mut to, &from, &rows, None, 128), "from [any, width] has 192 values, not 384"),
            (gather_rows(gpu, &mut to, &from, &rows, None, 32), "a multiple of 64, not 2 of 32"),
            (gather_rows(gpu, &mut empty, &from, &rows, None, 64), "to [rows, width] has 0 values, not 128"),
            (
                gather_rows(gpu, &mut to, &from, &rows, Some(&other_rows), 64),
                "rows of the data set [rows] has 1 values, not 2",
            ),
            (
                gather_rows(gpu, &mut to, &from, &rows, Some(&other_columns), 64),
                "not 60 features and columns from 65 on",
            ),
            (gather_rows(gpu, &mut inside, &from, &rows, None, 64), "share memory"),
            (gather_rows(gpu, &mut to, &other, &rows, None, 64), "a buffer of another GPU"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}
