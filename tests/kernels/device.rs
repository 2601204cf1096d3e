//! The GPU that tests run on: the mock driver's, or this machine's.

use setrank::device::Gpu;
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::Sums;

/// Set to `real`, it has the tests that can run on a card do so: the machine's own driver is taken.
const DRIVER: &str = "SETRANK_TEST_DRIVER";

/// Runs on GPU 0.
pub fn on_gpu<R>(run: impl FnOnce(Gpu) -> R) -> R {
    on_gpu_with(None, run)
}

/// Runs on GPU 0; the mock's has so many multiprocessors, on which a batch is large that is small for a real one.
pub fn on_gpu_with<R>(multiprocessors: Option<u32>, run: impl FnOnce(Gpu) -> R) -> R {
    match std::env::var(DRIVER).as_deref() {
        Ok("real") => return run(Gpu::new(0).unwrap_or_else(|error| panic!("{error}"))),
        Ok("mock" | "") | Err(_) => {}
        Ok(other) => panic!("{DRIVER} is {other:?}: set it to real or mock, or unset it"),
    }
    // Matrix instructions that add as a real card of the mock's compute capability does.
    let configuration =
        Configuration { multiprocessors, workers: 2, sums: Sums::Hopper, ..Configuration::default() };
    driver::with(&configuration, |driver| {
        let result = run(Gpu::new(0).unwrap());
        assert_eq!(driver.counters().live_allocations, 0, "memory was not freed");
        result
    })
    .unwrap()
}
