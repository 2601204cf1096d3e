//! What the device layer refuses, and what it gives back: arenas, buffers, pinned memory, errors.

use setrank::device::{Arena, Buffer, DeviceError, Gpu};
use setrank::ops::attention::check::Problem;
use setrank::ops::attention::{Heads, Roles};
use setrank_emulator::driver::{self, Configuration, Driver};

fn on<R>(configuration: Configuration, run: impl FnOnce(&'static Driver) -> R) -> R {
    driver::with(&configuration, run).unwrap()
}

/// A buffer and its arena, on a thread that has no context and on one that has another's.
#[test]
fn memory_is_given_back_wherever_it_is_dropped() {
    on(Configuration { devices: 2, ..Configuration::default() }, |driver| {
        let gpu = Gpu::new(0).unwrap();
        let buffer: Buffer<f32> = gpu.arena("numbers", 256).unwrap().take(4).unwrap();
        let staging = gpu.staging::<f32>(4).unwrap();
        std::thread::scope(|scope| scope.spawn(move || drop((buffer, staging))).join()).unwrap();
        gpu.synchronize().unwrap();
        assert_eq!(driver.counters().live_allocations, 0);
        let arena = gpu.arena("numbers", 256).unwrap();
        drop(Gpu::new(1).unwrap());
        drop(arena);
        // Nothing is left for the next call to fail with.
        gpu.synchronize().unwrap();
        assert_eq!(driver.counters().live_allocations, 0);
        gpu.arena("numbers", 256).unwrap();
    });
}

#[test]
fn arenas_end() {
    on(Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        // No multiple of the alignment.
        let mut arena = gpu.arena("numbers", 100).unwrap();
        arena.take::<i32>(25).unwrap();
        arena.take::<i32>(0).unwrap();
        for len in [1, usize::MAX, usize::MAX / 4 + 1] {
            let error = arena.take::<i32>(len).unwrap_err();
            assert!(matches!(error, DeviceError::ArenaFull { free: 0, total: 100, .. }), "{error:?}");
        }
        assert_eq!(Arena::bytes_for([1, 256, 257]), 256 + 256 + 512);
        for len in [usize::MAX, isize::MAX as usize / 4 + 1] {
            assert!(matches!(gpu.staging::<i32>(len).unwrap_err(), DeviceError::Shapes(_)), "{len}");
        }
    });
}

#[test]
fn copies_are_between_like_sizes() {
    on(Configuration::default(), |_| {
        let gpu = Gpu::new(0).unwrap();
        let mut buffer = gpu.arena("numbers", 256).unwrap().take::<i32>(4).unwrap();
        let mut staging = gpu.staging::<i32>(3).unwrap();
        for error in [
            gpu.upload(&mut buffer, &[1; 5]).unwrap_err(),
            gpu.upload_staged(&mut buffer, &staging).unwrap_err(),
            gpu.download_staged(&mut staging, &buffer).unwrap_err(),
        ] {
            assert!(error.to_string().contains("4 values of the device"), "{error}");
        }
    });
}

#[test]
fn what_is_free_and_what_there_is() {
    on(Configuration { memory: 1 << 30, ..Configuration::default() }, |_| {
        let gpu = Gpu::new(0).unwrap();
        let _half = gpu.arena("the model", 1 << 29).unwrap();
        let DeviceError::OutOfMemory { needed, free, total, .. } =
            gpu.arena("the batch", 1 << 30).unwrap_err()
        else {
            panic!("another error");
        };
        assert_eq!((needed, total), (1 << 30, 1 << 30));
        assert!(free <= 1 << 29, "{free}");
    });
}

/// A kernel's failure is told with the launch, whichever call sees it.
#[test]
fn failures_of_kernels_name_the_launch() {
    for error in [700, 702, 715, 716, 717, 718, 719] {
        let failing =
            Configuration { launch_fails_at: Some(1), launch_error: error, ..Configuration::default() };
        let problem = Problem::random(Roles::Documents, &[40, 3], Heads { count: 2, width: 64 }, 1);
        let message = on(failing, |_| problem.solve(&Gpu::new(0).unwrap()).unwrap_err().to_string());
        assert!(message.contains("43 queries, 43 keys and 2 heads"), "{error}: {message}");
    }
}

/// Memory of a GPU that is dropped while kernels and copies are queued.
#[test]
fn what_is_queued_is_done_before_memory_goes() {
    on(Configuration::default(), |driver| {
        let gpu = Gpu::new(0).unwrap();
        let buffer = gpu.arena("numbers", 256).unwrap().take::<i32>(4).unwrap();
        let mut staging = gpu.staging::<i32>(4).unwrap();
        gpu.download_staged(&mut staging, &buffer).unwrap();
        assert!(driver.counters().pending > 0);
        drop(staging);
        assert_eq!(driver.counters().pending, 0, "a copy to memory that is gone");
        let mut staging = gpu.staging::<i32>(4).unwrap();
        gpu.download_staged(&mut staging, &buffer).unwrap();
        drop(gpu);
        assert_eq!(driver.counters().pending, 0);
        drop((buffer, staging));
        assert_eq!(driver.counters().live_allocations, 0);
    });
}
