//! The host path through unmodified cudarc, on the mock driver: device layer, launcher, and what they say when
//! something is wrong.

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use half::bf16;
use setrank::device::kernels::FAMILIES;
use setrank::device::{Arena, Buffer, DeviceError, Gpu, Limits, Panels, Unavailable, probe};
use setrank::ops::attention::check::Problem;
use setrank::ops::attention::{AttentionPlan, Heads, Roles};
use setrank::ops::check;
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;

use crate::device::on_gpu;

const HEADS: Heads = Heads { count: 2, width: 64 };

fn documents(sizes: &[usize]) -> Problem {
    Problem::random(Roles::Documents, sizes, HEADS, 1)
}

/// Runs on a device as configured; nothing may be left over.
fn on<R>(configuration: Configuration, run: impl FnOnce(&'static driver::Driver) -> R) -> R {
    driver::with(&configuration, |driver| {
        let result = run(driver);
        assert_eq!(driver.counters().live_allocations, 0, "memory was not freed");
        result
    })
    .unwrap()
}

fn card(compute_capability: (u32, u32)) -> Configuration {
    Configuration { compute_capability, ..Configuration::default() }
}

/// The sizes that a card is checked at: few results are exact by luck, and sums of many differ most. The command line's own
/// tests check small problems on cards of 8.0, 8.9 and 9.0.
#[test]
fn every_kernel_is_right_however_a_card_adds() {
    let few = [1, 40].map(|documents| (Sums::Ampere, documents));
    let hopper = [1, 40, 500].map(|documents| (Sums::Hopper, documents));
    for (sums, documents) in few.into_iter().chain(hopper) {
        let configuration = Configuration { sums, workers: 2, ..Configuration::default() };
        on(configuration, |_| {
            let gpu = Gpu::new(0).unwrap();
            for family in check::FAMILIES {
                let all = (family.run_at)(&gpu, documents).unwrap();
                // Of 9.0 alone there are none that so few documents reach.
                assert!(!all.is_empty() || family.name.ends_with("_sm90"), "{}", family.name);
                for checked in all {
                    assert!(checked.deviation.is_allowed(), "{sums:?}, {documents} documents: {checked:?}");
                }
            }
        });
    }
}

#[test]
fn every_family_is_checked_on_a_card() {
    let mut built: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    let mut checked: Vec<&str> = check::FAMILIES.iter().map(|family| family.name).collect();
    // Built only where sm_90a is.
    checked.retain(|name| !name.ends_with("_sm90") || built.contains(name));
    built.sort_unstable();
    checked.sort_unstable();
    assert_eq!(built, checked);
}

#[test]
fn limits_are_those_of_the_card() {
    for (capability, limits) in [((8, 0), Limits::SM_80), ((8, 9), Limits::SM_89), ((9, 0), Limits::SM_90)] {
        on(card(capability), |_| assert_eq!(*Gpu::new(0).unwrap().limits(), limits, "{capability:?}"));
    }
}

#[test]
fn why_there_is_no_gpu() {
    let gpu = |configuration| on(configuration, |_| Gpu::new(0).err().map(|error| error.to_string()));
    let none = Configuration { devices: 0, ..Configuration::default() };
    assert_eq!(gpu(none), Some(Unavailable::NoDevice.to_string()));
    let old = Configuration { driver_version: 12_080, ..Configuration::default() };
    assert_eq!(gpu(old), Some(Unavailable::OldDriver { found: 12_080, needed: 13_000 }.to_string()));
    let turing = gpu(card((7, 5))).unwrap();
    assert!(turing.contains("compute capability 7.5") && turing.contains("8.0 or more"), "{turing}");
    on(Configuration { devices: 2, ..Configuration::default() }, |_| {
        assert_eq!(probe::gpus().unwrap().len(), 2);
        Gpu::new(1).unwrap();
        let third = Gpu::new(2).unwrap_err().to_string();
        assert!(third.contains("no GPU number 2: there are 2"), "{third}");
    });
}

#[test]
fn memory_runs_out_in_words() {
    on(Configuration { memory: 1 << 30, ..Configuration::default() }, |_| {
        let gpu = Gpu::new(0).unwrap();
        let error = gpu.arena("the batch", 2 << 30).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("the batch would take 2.00 GiB of GPU memory"), "{message}");
        gpu.arena("a smaller batch", 1 << 20).unwrap();
    });
}

#[test]
fn arenas_are_cut_into_buffers() {
    on_gpu(|gpu| {
        let mut arena = gpu.arena("numbers", Arena::bytes_for([40, 12])).unwrap();
        let mut a = arena.take::<f32>(10).unwrap();
        let mut b = arena.take::<i32>(3).unwrap();
        gpu.upload(&mut a, &[1.5; 10]).unwrap();
        gpu.upload(&mut b, &[7, 8, 9]).unwrap();
        assert_eq!((gpu.download(&a).unwrap(), gpu.download(&b).unwrap()), (vec![1.5; 10], vec![7, 8, 9]));
        assert!(
            a.pointer::<f32>().addr().is_multiple_of(256) && b.pointer::<i32>().addr().is_multiple_of(256)
        );
        let full = arena.take::<f32>(100).unwrap_err().to_string();
        assert!(full.contains("numbers needs 400 more bytes"), "{full}");
        let wrong = gpu.upload(&mut b, &[1]).unwrap_err().to_string();
        assert!(wrong.contains("between 3 values of the device and 1 of the host"), "{wrong}");
        assert!(arena.clear().is_err());
        drop((a, b));
        arena.clear().unwrap();
        arena.take::<bf16>(128).unwrap();
    });
}

#[test]
fn tensor_maps_are_of_whole_matrices() {
    on_gpu(|gpu| {
        let mut arena = gpu.arena("a matrix", 1 << 14).unwrap();
        let matrix: Buffer<bf16> = arena.take(6400).unwrap();
        gpu.tensor_map(&matrix, [100, 64], 256).unwrap();
        for (shape, box_rows, says) in [
            ([100, 72], 32, "a tensor map of a matrix of 6400 values, not 7200"),
            (
                [1600, 4],
                32,
                "making a tensor map of 1600 × 4 values on GPU 0 failed: CUDA_ERROR_INVALID_VALUE",
            ),
            (
                [100, 64],
                257,
                "making a tensor map of 100 × 64 values on GPU 0 failed: CUDA_ERROR_INVALID_VALUE",
            ),
        ] {
            let error = gpu.tensor_map(&matrix, shape, box_rows).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let in_rows = Panels::of_rows(50, 128);
        for panels in [in_rows, Panels::apart(50, 128, 64), Panels::apart(50, 128, 32)] {
            gpu.panels_map(&matrix, panels, [2, 64]).unwrap();
        }
        for (panels, size, says) in [
            (Panels { count: 3, ..in_rows }, [2, 64], "a tensor map of a matrix of 6400 values, not 9600"),
            (
                in_rows,
                [257, 64],
                "making a tensor map of 2 panels of 50 × 64 values on GPU 0 failed: CUDA_ERROR_INVALID_VALUE",
            ),
            (
                Panels { row_stride: 12, ..in_rows },
                [2, 64],
                "making a tensor map of 2 panels of 50 × 64 values on GPU 0 failed: CUDA_ERROR_INVALID_VALUE",
            ),
        ] {
            let error = gpu.panels_map(&matrix, panels, size).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    });
}

#[test]
fn parts_are_the_same_memory() {
    on_gpu(|gpu| {
        let mut arena = gpu.arena("numbers", 512).unwrap();
        let mut whole = arena.take::<f32>(16).unwrap();
        let other = arena.take::<f32>(4).unwrap();
        gpu.upload(&mut whole, &[0.0; 16]).unwrap();
        let mut part = whole.part(4..7).unwrap();
        gpu.upload(&mut part, &[1.0, 2.0, 3.0]).unwrap();
        let mut of_part = part.part(0..1).unwrap();
        gpu.upload(&mut of_part, &[5.0]).unwrap();
        assert_eq!(gpu.download(&whole).unwrap()[3..8], [0.0, 5.0, 2.0, 3.0, 0.0]);
        let empty = whole.part(16..16).unwrap();
        assert_eq!(
            [&whole, &of_part, &other, &empty].map(|with| part.overlaps(with)),
            [true, true, false, false]
        );
        assert!(!part.overlaps(&whole.part(8..16).unwrap()) && !part.overlaps(&whole.part(0..4).unwrap()));
        for range in [1..2, 8..17, 20..20] {
            let error = whole.part(range).unwrap_err().to_string();
            assert!(error.contains("a multiple of 16 bytes"), "{error}");
        }
        drop(whole);
        assert!(arena.clear().is_err(), "a part is in use");
    });
}

#[test]
fn pinned_memory_waits_for_its_copies() {
    on_gpu(|gpu| {
        let mut arena = gpu.arena("numbers", 256).unwrap();
        let mut buffer = arena.take::<i32>(4).unwrap();
        let mut staging = gpu.staging::<i32>(4).unwrap();
        gpu.staged_mut(&mut staging).unwrap().copy_from_slice(&[1, 2, 3, 4]);
        gpu.upload_staged(&mut buffer, &staging).unwrap();
        // The copy has not run: what is written next must not be what it copies.
        gpu.staged_mut(&mut staging).unwrap().fill(9);
        assert_eq!(gpu.download(&buffer).unwrap(), [1, 2, 3, 4]);
        gpu.download_staged(&mut staging, &buffer).unwrap();
        assert_eq!(gpu.staged(&staging).unwrap(), [1, 2, 3, 4]);
        assert!(gpu.staging::<f32>(0).is_err());
        // A copy that does not know that the memory is pinned.
        gpu.upload(&mut buffer, gpu.staged(&staging).unwrap()).unwrap();
        gpu.staged_mut(&mut staging).unwrap().fill(7);
        assert_eq!(gpu.download(&buffer).unwrap(), [1, 2, 3, 4]);
        let again = Gpu::new(0).unwrap();
        let mut theirs = again.arena("numbers", 256).unwrap().take::<i32>(4).unwrap();
        for error in [
            again.upload_staged(&mut theirs, &staging).unwrap_err(),
            again.download_staged(&mut staging, &theirs).unwrap_err(),
            gpu.upload(&mut theirs, &[1; 4]).unwrap_err(),
        ] {
            assert!(error.to_string().contains("another use of this one"), "{error}");
        }
    });
}

#[test]
fn gpus_are_used_from_any_thread_and_in_turns() {
    on(Configuration { devices: 2, ..Configuration::default() }, |_| {
        let gpus = [Gpu::new(0).unwrap(), Gpu::new(1).unwrap()];
        for sizes in [&[40, 3][..], &[200]] {
            for gpu in &gpus {
                let problem = documents(sizes);
                let answer = problem.solve(gpu).unwrap();
                let elsewhere = std::thread::scope(|scope| scope.spawn(|| problem.solve(gpu)).join());
                assert_eq!(elsewhere.unwrap().unwrap(), answer);
                assert!(problem.deviations(&answer).iter().all(|found| found.is_allowed()));
            }
        }
    });
}

#[test]
fn a_failure_that_shows_at_the_next_launch_is_not_the_next_ones() {
    let failing = Configuration { launch_fails_at: Some(1), ..Configuration::default() };
    on(failing, |_| {
        let gpu = Gpu::new(0).unwrap();
        let first = documents(&[40]).solve(&gpu).unwrap_err().to_string();
        let second = documents(&[300]).solve(&gpu).unwrap_err().to_string();
        assert!(first.contains("40 queries") && !second.contains("300 queries"), "{first}\n{second}");
    });
}

#[test]
fn a_launch_that_fails_says_which_and_on_what() {
    let problem = documents(&[40, 3]);
    for (error, name) in [(719, "CUDA_ERROR_LAUNCH_FAILED"), (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")] {
        let failing =
            Configuration { launch_fails_at: Some(1), launch_error: error, ..Configuration::default() };
        let message = on(failing, |_| problem.solve(&Gpu::new(0).unwrap()).unwrap_err().to_string());
        for part in ["attention_forward_d64", "128 threads", "43 queries, 43 keys and 2 heads", name] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn code_for_another_card_is_refused_in_words() {
    use setrank::device::kernels::Family;
    let file = std::path::Path::new(env!("SETRANK_KERNELS")).join("attention.sm_90a.cubin");
    let Ok(cubin) = std::fs::read(&file) else {
        return println!("skipped: nothing is built for sm_90a");
    };
    let compressed = zstd::encode_all(&cubin[..], 1).unwrap().leak();
    let families = vec![Family { name: "attention", compressed }].leak();
    on(card((8, 0)), |_| {
        let gpu = Gpu::with_families(0, families).unwrap();
        let message = documents(&[3]).solve(&gpu).unwrap_err().to_string();
        for part in ["no code of kernel family `attention`", "compute capability 8.0", "SETRANK_CUDA_ARCHS"] {
            assert!(message.contains(part), "{message}");
        }
    });
}

#[test]
fn time_between_events() {
    on(Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let start = gpu.record().unwrap();
        documents(&[3]).solve(&gpu).unwrap();
        let end = gpu.record().unwrap();
        let waits = driver.counters().synchronizations;
        assert!(gpu.milliseconds(&start, &end).unwrap() >= 0.0);
        assert!(driver.counters().synchronizations > waits && driver.counters().launches == 1);
    });
}

/// Bugs of host code, written out: the mock driver has to catch them.
mod planted {
    use super::*;

    #[test]
    fn shared_memory_that_was_not_asked_for() {
        on(card((9, 0)), |_| {
            let plan = AttentionPlan::new(Roles::Documents, &[0, 500], HEADS, &Limits::SM_90).unwrap();
            let launch = plan.forward(false).unwrap();
            let context = CudaContext::new(0).unwrap();
            let stream = context.new_stream().unwrap();
            let module = context.load_module(Ptx::from_binary(FAMILIES[0].code().unwrap())).unwrap();
            let function = module.load_function(launch.kernel).unwrap();
            let config = LaunchConfig {
                grid_dim: (1, 1, 1),
                block_dim: (launch.block, 1, 1),
                shared_mem_bytes: (48 << 10) + 16,
            };
            let parameter = plan.forward_numbers(None);
            // SAFETY: the launch is refused.
            let refused = unsafe { stream.launch_builder(&function).arg(&parameter).launch(config) };
            assert_eq!(refused.unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        });
    }

    #[test]
    fn results_that_are_not_waited_for() {
        on(Configuration::default(), |_| {
            let context = CudaContext::new(0).unwrap();
            // SAFETY: nothing here relies on events.
            unsafe { context.disable_event_tracking() };
            let stream = context.new_stream().unwrap();
            let device = stream.clone_htod(&[5i32; 4]).unwrap();
            // SAFETY: the memory is written before it is read.
            let mut pinned = unsafe { context.alloc_pinned_with_flags::<i32>(4, 0) }.unwrap();
            let host = pinned.as_mut_ptr().unwrap();
            // SAFETY: four numbers are there.
            unsafe { std::ptr::write_bytes(host, 0, 4) };
            stream.memcpy_dtoh(&device, &mut pinned).unwrap();
            // SAFETY: as above; that the copy may run meanwhile is the bug.
            let early = unsafe { std::ptr::read_volatile(host) };
            stream.synchronize().unwrap();
            // SAFETY: as above, and the copy is done.
            let late = unsafe { std::ptr::read_volatile(host) };
            assert_eq!((early, late), (0, 5));
        });
    }
}
