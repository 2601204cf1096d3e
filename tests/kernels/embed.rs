//! Ordinal embeddings.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::{EmbedBackward, EmbedForward};
use setrank::device::{Buffer, DeviceError, Gpu, Limits, Uploads};
use setrank::ops::check::Deviation;
use setrank::ops::embed::check::{PASSES, Pass, Problem};
use setrank::ops::embed::{DeviceOrdinals, EmbedShape, embed_backward, embed_forward};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate;
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::{Launch, Pointer};

use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch, given, poisoned};
use crate::ladder::ladder;

ladder!(FAMILY);

pub const FAMILY: Family =
    Family { name: "embed", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

impl family::Problem for Problem {
    fn launch(&self, _limits: &Limits) -> Launch {
        let plan = self.plan().unwrap();
        let Pass::Forward { in_place } = self.pass else {
            let sorted = self.sorted().unwrap();
            let buffers = vec![
                (offset_of!(EmbedBackward, dy), "dy", given(&self.rows)),
                (offset_of!(EmbedBackward, starts), "starts", given(&sorted.starts)),
                (offset_of!(EmbedBackward, documents), "documents", given(&sorted.documents)),
                (offset_of!(EmbedBackward, d_tables), "d_tables", given(&self.tables)),
            ];
            return family::launch(plan.backward().unwrap(), &plan.backward_numbers(), buffers);
        };
        let y = if in_place { given(&self.rows) } else { poisoned::<bf16>(self.rows.len()) };
        let mut buffers = vec![
            (offset_of!(EmbedForward, y), "y", y),
            (offset_of!(EmbedForward, tables), "tables", given(&self.tables)),
            (offset_of!(EmbedForward, ordinals), "ordinals", given(&self.ordinals.concat())),
        ];
        if !in_place {
            buffers.push((offset_of!(EmbedForward, x), "x", given(&self.rows)));
        }
        let mut launch = family::launch(plan.forward().unwrap(), &plan.forward_numbers(), buffers);
        if in_place {
            launch.pointers.push(Pointer { at: offset_of!(EmbedForward, x), buffer: 0, offset: 0 });
        }
        launch
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        if self.pass == Pass::Backward {
            let sums = family::result::<f32>(launch, "d_tables").into_iter().map(f64::from);
            return vec![("d_tables", self.deviation(&sums.collect::<Vec<f64>>()))];
        }
        let y = family::result::<bf16>(launch, "y").into_iter().map(bf16::to_f64);
        vec![("y", self.deviation(&y.collect::<Vec<f64>>()))]
    }
}

const BUGS: [Bug; 9] = [
    Bug {
        what: "documents behind the last",
        file: "embed.cu",
        right: "if (row_of_block >= rows || row >= p.rows) return;",
        wrong: "if (row_of_block >= rows) return;",
        kernels: "embed_forward",
        found_by: &["of `x` of", "of `y` of"],
    },
    Bug {
        what: "an embedding of documents that have none",
        file: "embed.cu",
        right: "if (ordinal < 0) continue;",
        wrong: "",
        kernels: "embed_forward",
        found_by: &["of `tables` of", WRONG_RESULTS],
    },
    Bug {
        what: "the first table for all rankings",
        file: "embed.cu",
        right: "ranking * p.n_max + ordinal",
        wrong: "ordinal",
        kernels: "embed_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the lower half of an embedding twice",
        file: "embed.cu",
        right: "const float4 *>(from + 4)",
        wrong: "const float4 *>(from)",
        kernels: "embed_forward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a missing barrier",
        file: "embed.cu",
        right: "    ptx::barrier();\n",
        wrong: "",
        kernels: "embed_backward",
        found_by: &["is read before anything is written to it"],
    },
    Bug {
        what: "documents of the next row",
        file: "embed.cu",
        right: "i < end; i += groups",
        wrong: "i < end + 1; i += groups",
        kernels: "embed_backward",
        found_by: &[WRONG_RESULTS, "of `documents` of"],
    },
    Bug {
        what: "documents that all threads take",
        file: "embed.cu",
        right: "int i = begin + group;",
        wrong: "int i = begin;",
        kernels: "embed_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "sums of the first threads alone",
        file: "embed.cu",
        right: "int other = 1; other < groups;",
        wrong: "int other = 1; other < 2;",
        kernels: "embed_backward",
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients that replace what was there",
        file: "embed.cu",
        right: "    sum.add(ptx::load_global(reinterpret_cast<const float4 *>(to)),\n            \
                ptx::load_global(reinterpret_cast<const float4 *>(to + 4)));\n",
        wrong: "",
        kernels: "embed_backward",
        found_by: &[WRONG_RESULTS],
    },
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::too_little_shared_memory("embed_backward"),
    WrongLaunch::a_block_too_few("embed_forward"),
    WrongLaunch {
        what: "a row of the tables too many",
        change: |launch| launch.grid[0] += 1,
        kernels: "embed_backward",
        found_by: &["of `starts` of"],
    },
    WrongLaunch {
        what: "a table that is too short",
        change: |launch| launch.buffers[1].bytes.truncate(256),
        kernels: "embed_forward",
        found_by: &["of `tables` of 256 bytes"],
    },
];

fn cases() -> Vec<Case> {
    let case = |(pass, shape, width)| Case::new(Limits::SM_90, Problem::random(shape, width, pass, 1));
    PASSES.into_iter().map(case).collect()
}

fn counted() -> Vec<Counted> {
    let mut all = Vec::new();
    for pass in [Pass::Forward { in_place: false }, Pass::Backward] {
        for (documents, rankings, n_max) in [(1280, 1, 40), (1000, 2, 500)] {
            let shape = EmbedShape { documents, rankings, n_max };
            all.push(Counted {
                shape: format!("{documents}x256, {rankings}x{n_max}"),
                problem: Box::new(Problem::random(shape, 256, pass, 1)),
                useful_products: 0.0,
            });
        }
    }
    all
}

/// One document, and every width.
#[test]
fn any_sizes() {
    let shape = |documents, rankings, n_max| EmbedShape { documents, rankings, n_max };
    for shape in [shape(1, 1, 1), shape(70, 1, 2)] {
        for width in (64..=512).step_by(64) {
            for pass in [Pass::Forward { in_place: false }, Pass::Backward] {
                let case = Case::new(Limits::SM_80, Problem::random(shape, width, pass, 2));
                let mut launch = case.launch();
                emulate::run(&Kernels::repository(), &mut launch, &Default::default()).unwrap();
                assert_eq!(case.wrong(&launch), [], "{shape:?}, {pass:?}, width {width}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let two = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&two, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        let mut arenas = gpus.each_ref().map(|gpu| gpu.arena("a batch", 1 << 16).unwrap());
        let [mine, theirs] = arenas.each_mut();
        let gpu = &gpus[0];
        let indices = [vec![0, 2, -1], vec![1, 1, 1]];
        let ordinals = on_device(gpu, &indices, 4).unwrap();
        let mut x = mine.take::<bf16>(3 * 64).unwrap();
        let mut y = mine.take::<bf16>(3 * 64).unwrap();
        let mut tables = mine.take::<f32>(2 * 4 * 64).unwrap();
        let other = theirs.take::<f32>(2 * 4 * 64).unwrap();
        gpu.upload(&mut x, &[bf16::ONE; 3 * 64]).unwrap();
        gpu.upload(&mut tables, &[0.5; 2 * 4 * 64]).unwrap();

        embed_forward(gpu, &mut y, Some(&x), &tables, &ordinals, 64).unwrap();
        let rows: Vec<f32> =
            gpu.download(&y).unwrap().iter().step_by(64).map(|value| value.to_f32()).collect();
        assert_eq!(rows, [2.0, 2.0, 1.5]);
        let mut alias = x.part(0..3 * 64).unwrap();
        for (error, says) in [
            (embed_forward(gpu, &mut y, Some(&x), &tables, &ordinals, 128), "tables [R, n_max, C] has 512"),
            (embed_forward(gpu, &mut y, Some(&x), &tables, &ordinals, 32), "a multiple of 64 up to 512"),
            (embed_forward(gpu, &mut y, None, &other, &ordinals, 64), "a buffer of another GPU"),
            (embed_forward(gpu, &mut alias, Some(&x), &tables, &ordinals, 64), "share memory"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }

        embed_backward(gpu, &mut tables, &x, &ordinals, 64).unwrap();
        let sums: Vec<f32> = gpu.download(&tables).unwrap().into_iter().step_by(64).collect();
        assert_eq!(sums, [1.5, 0.5, 1.5, 0.5, 0.5, 3.5, 0.5, 0.5]);
        let short: Buffer<bf16> = x.part(0..128).unwrap();
        let theirs_too = on_device(&gpus[1], &indices, 4).unwrap();
        for (error, says) in [
            (embed_backward(gpu, &mut tables, &short, &ordinals, 64), "dy [N, C] has 128 values, not 192"),
            (embed_backward(gpu, &mut tables, &x, &theirs_too, 64), "a buffer of another GPU"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        gpu.synchronize().unwrap();
    })
    .unwrap();
}

/// Ordinals in a package that is just large enough.
fn on_device(gpu: &Gpu, ordinals: &[Vec<i32>], n_max: usize) -> Result<DeviceOrdinals, DeviceError> {
    let bytes = DeviceOrdinals::bytes(ordinals.first().map_or(0, Vec::len), ordinals.len(), n_max);
    let room = gpu.arena("ordinals", bytes)?.room(bytes)?;
    Uploads::default().send(gpu, room, |package| DeviceOrdinals::new(package, ordinals, n_max))
}

#[test]
fn a_package_of_the_bytes_suffices() {
    driver::with(&Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        for (documents, rankings, n_max) in [(0, 0, 5), (0, 2, 5), (1, 1, 1), (65, 3, 500)] {
            on_device(&gpu, &vec![vec![0; documents]; rankings], n_max).unwrap();
        }
        let error = on_device(&gpu, &[vec![0, 5]], 5).unwrap_err().to_string();
        assert!(error.contains("ordinal 5 of document 1 in ranking 0 is not below n_max, 5"), "{error}");
    })
    .unwrap();
}
