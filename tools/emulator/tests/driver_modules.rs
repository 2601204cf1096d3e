//! The mock driver's modules, functions, launches and graphs, through unmodified cudarc.

#[path = "driver_modules/graphs.rs"]
mod graphs;
#[path = "driver_support/image.rs"]
mod image;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig,
    PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use image::{Entry, Kernel, cubin, fatbin, ptx, sm, sm_specific};
use setrank_emulator::driver::{self, Configuration, Driver};
use setrank_emulator::emulate::{Copies, Schedule};
use setrank_emulator::kernels::{Kernels, Sources};
use sys::CUfunction_attribute_enum as Attribute;
use sys::CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
};

/// The parameter of the kernels in driver_kernels/kernels.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct AddOne {
    input: sys::CUdeviceptr,
    output: sys::CUdeviceptr,
    count: i32,
    unused: i32,
}

// SAFETY: a struct of plain values, laid out as the kernel's.
unsafe impl DeviceRepr for AddOne {}

const PARAMETER_BYTES: usize = size_of::<AddOne>();

fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver_kernels/kernels.cu");
        Sources::read(&[source]).and_then(|sources| sources.compile()).expect("the kernels should compile")
    })
}

fn configured<R>(configuration: Configuration, run: impl FnOnce(&Driver, Arc<CudaContext>) -> R) -> R {
    let result = driver::with(&configuration, |driver| {
        driver.use_kernels(kernels());
        let context = CudaContext::new(0).expect("there is a device");
        // SAFETY: the tests order streams themselves.
        unsafe { context.disable_event_tracking() };
        run(driver, context)
    });
    result.expect("the mock driver should load, and nothing be overwritten")
}

fn on_card<R>(major: u32, minor: u32, run: impl FnOnce(&Driver, Arc<CudaContext>) -> R) -> R {
    configured(Configuration { compute_capability: (major, minor), ..Configuration::default() }, run)
}

fn error<T>(result: Result<T, DriverError>) -> Option<sys::CUresult> {
    result.err().map(|error| error.0)
}

/// The kernel as nvcc would describe it.
fn add_one() -> Kernel {
    Kernel { max_threads: Some(128), ..Kernel::new("add_one", PARAMETER_BYTES) }
}

fn load(context: &Arc<CudaContext>, image: Vec<u8>, name: &str) -> Result<CudaFunction, DriverError> {
    context.load_module(Ptx::from_binary(image))?.load_function(name)
}

/// The function, of a cubin for the card that holds only it.
fn load_kernel(context: &Arc<CudaContext>, kernel: Kernel) -> Result<CudaFunction, DriverError> {
    let (major, minor) = context.compute_capability()?;
    load(context, cubin(sm(10 * major as u32 + minor as u32), std::slice::from_ref(&kernel)), kernel.name)
}

fn blocks(grid: u32, block: u32, shared_mem_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (block, 1, 1), shared_mem_bytes }
}

fn launch(
    stream: &CudaStream,
    function: &CudaFunction,
    parameter: &AddOne,
    shape: LaunchConfig,
) -> Result<(), DriverError> {
    // SAFETY: the emulator checks all that the kernel does.
    unsafe { stream.launch_builder(function).arg(parameter).launch(shape) }.map(|_| ())
}

/// Buffers of four values, and the parameter that adds one to them.
fn four_values(stream: &Arc<CudaStream>) -> (CudaSlice<f32>, CudaSlice<f32>, AddOne) {
    let input = stream.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0]).expect("there is memory");
    let output = stream.alloc_zeros::<f32>(4).expect("there is memory");
    let parameter = AddOne {
        input: input.device_ptr(stream).0,
        output: output.device_ptr(stream).0,
        count: 4,
        unused: 0,
    };
    (input, output, parameter)
}

#[test]
fn a_kernel_runs() {
    let configuration = Configuration { count: true, ..Configuration::default() };
    configured(configuration, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (_input, output, mut parameter) = four_values(&stream);
        launch(&stream, &function, &parameter, blocks(2, 32, 0)).expect("it is allowed");
        // The driver has copied the parameter.
        parameter.output = 0;
        std::hint::black_box(&parameter);
        assert_eq!(driver.counters().emulator.blocks, 0, "nothing waits for it yet");
        assert_eq!(stream.clone_dtoh(&output), Ok(vec![2.0, 3.0, 4.0, 5.0]));
        let counters = driver.counters();
        assert_eq!((counters.launches, counters.emulator.blocks, counters.emulator.threads), (1, 2, 64));
        assert_eq!((counters.emulator.unique_read, counters.emulator.unique_written), (16, 16));
    });
}

/// The parameter of `order`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Order {
    count: sys::CUdeviceptr,
    threads: sys::CUdeviceptr,
}

// SAFETY: a struct of plain values, laid out as the kernel's.
unsafe impl DeviceRepr for Order {}

/// The order in which 64 threads come.
fn order(schedule: Schedule, seed: u64) -> Vec<u32> {
    configured(Configuration { schedule, seed, ..Configuration::default() }, |_, context| {
        let stream = context.default_stream();
        let function =
            load_kernel(&context, Kernel::new("order", size_of::<Order>())).expect("it runs on the card");
        let [count, threads] = [1, 64].map(|n| stream.alloc_zeros::<u32>(n).expect("there is memory"));
        let parameter = Order { count: count.device_ptr(&stream).0, threads: threads.device_ptr(&stream).0 };
        // SAFETY: the emulator checks all that the kernel does.
        unsafe { stream.launch_builder(&function).arg(&parameter).launch(blocks(1, 64, 0)) }
            .expect("it is allowed");
        stream.clone_dtoh(&threads).expect("nothing is wrong")
    })
}

#[test]
fn threads_come_as_configured() {
    let in_order: Vec<u32> = (0..64).collect();
    assert_eq!(order(Schedule::InOrder, 1), in_order);
    assert_eq!(order(Schedule::Reversed, 1), in_order.iter().rev().copied().collect::<Vec<u32>>());
    for schedule in [Schedule::Random, Schedule::Pct] {
        let orders = [1, 1, 2].map(|seed| order(schedule, seed));
        assert_eq!(orders[0], orders[1]);
        assert_ne!(orders[0], orders[2]);
        assert_ne!(orders[0], in_order);
    }
}

#[test]
fn copies_inside_of_kernels_land_as_configured() {
    for (copies, expected) in [(Copies::AtIssue, 1.0), (Copies::AtWait, 0.0)] {
        configured(Configuration { copies, ..Configuration::default() }, |_, context| {
            let stream = context.default_stream();
            let kernel = Kernel::new("late_copy", PARAMETER_BYTES);
            let function = load_kernel(&context, kernel).expect("it runs on the card");
            let (_input, output, parameter) = four_values(&stream);
            launch(&stream, &function, &parameter, blocks(1, 1, 16)).expect("it is allowed");
            assert_eq!(stream.clone_dtoh(&output).expect("nothing is wrong")[0], expected, "{copies:?}");
        });
    }
}

#[test]
fn a_launch_that_nothing_orders_is_not_seen() {
    on_card(9, 0, |_, context| {
        let [first, second] = [0, 1].map(|_| context.new_stream().expect("streams are free"));
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (_input, output, parameter) = four_values(&first);
        first.synchronize().expect("nothing is wrong");
        launch(&first, &function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
        assert_eq!(second.clone_dtoh(&output), Ok(vec![0.0; 4]));
        second.join(&first).expect("events are free");
        assert_eq!(second.clone_dtoh(&output), Ok(vec![2.0, 3.0, 4.0, 5.0]));
    });
}

/// The architecture and the PTX that the driver takes of a fatbin, or its error.
fn choice(major: u32, minor: u32, entries: &[Entry]) -> Result<(i32, i32), sys::CUresult> {
    on_card(major, minor, |_, context| {
        let function = load(&context, fatbin(entries), "add_one")?;
        Ok((function.binary_version()?, function.ptx_version()?))
    })
    .map_err(|error: DriverError| error.0)
}

#[test]
fn code_is_chosen_for_the_card() {
    let kernels = [add_one()];
    let code = |architecture| Entry::cubin(sm(architecture), &kernels);
    let specific = |architecture| Entry::cubin(sm_specific(architecture), &kernels);
    let ptx = |target| Entry::ptx("8.0", target, &kernels);
    let none = Err(CUDA_ERROR_NO_BINARY_FOR_GPU);
    // The same major version and no newer minor one.
    assert_eq!(choice(8, 9, &[code(80), code(90)]), Ok((80, 80)));
    assert_eq!(choice(8, 9, &[code(80), code(89), code(86)]), Ok((89, 89)));
    assert_eq!(choice(8, 0, &[code(86)]), none);
    assert_eq!(choice(9, 0, &[code(80)]), none);
    // sm_90a runs on 9.0 only.
    assert_eq!(choice(9, 0, &[specific(90), code(80)]), Ok((90, 90)));
    assert_eq!(choice(10, 0, &[specific(90)]), none);
    assert_eq!(choice(8, 0, &[specific(90)]), none);
    // PTX of any older architecture is compiled if there is no code.
    assert_eq!(choice(9, 0, &[code(80), ptx("sm_80")]), Ok((90, 80)));
    assert_eq!(choice(10, 0, &[ptx("sm_80"), ptx("sm_90"), ptx("sm_120")]), Ok((100, 90)));
    assert_eq!(choice(8, 0, &[ptx("sm_80"), code(80)]), Ok((80, 80)));
    assert_eq!(choice(8, 0, &[ptx("sm_90")]), none);
    assert_eq!(choice(9, 0, &[ptx("sm_90a")]), Ok((90, 90)));
    assert_eq!(choice(10, 0, &[ptx("sm_90a")]), none);
    assert_eq!(choice(9, 0, &[]), none);
}

#[test]
fn code_for_the_very_card_is_preferred() {
    let registers = |registers| [Kernel { registers, ..add_one() }];
    on_card(9, 0, |_, context| {
        let entries = [Entry::cubin(sm(90), &registers(40)), Entry::cubin(sm_specific(90), &registers(50))];
        let function = load(&context, fatbin(&entries), "add_one").expect("it runs on the card");
        assert_eq!(function.num_regs(), Ok(50));
    });
}

#[test]
fn an_old_driver_does_not_know_new_code() {
    let configuration = Configuration { driver_version: 12080, ..Configuration::default() };
    configured(configuration, |driver, context| {
        let load = |entry| error(load(&context, fatbin(&[entry]), "add_one"));
        assert_eq!(load(Entry::ptx("8.7", "sm_80", &[add_one()])), None);
        assert_eq!(load(Entry::ptx("9.0", "sm_80", &[add_one()])), Some(CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
        assert!(
            driver.report().contains("driver 12080 compiles PTX up to 8.7, not 9.0"),
            "{}",
            driver.report()
        );
        assert_eq!(load(Entry::cubin(sm(90), &[add_one()])), Some(CUDA_ERROR_INVALID_IMAGE));
        assert!(driver.report().contains("driver 12080 does not load machine code of CUDA 13.0"));
    });
}

#[test]
fn images_are_fatbins_cubins_or_ptx() {
    on_card(9, 0, |driver, context| {
        let code = cubin(sm(90), &[add_one()]);
        assert_eq!(error(load(&context, code.clone(), "add_one")), None);
        let text = Ptx::from_src(ptx("8.0", "sm_90", &[add_one()]));
        context.load_module(text).expect("it is PTX").load_function("add_one").expect("it has it");
        let file = tempfile::NamedTempFile::new().expect("there is a disk");
        std::fs::write(file.path(), fatbin(&[Entry::cubin(sm(90), &[add_one()])])).expect("there is space");
        let module = context.load_module(Ptx::from_file(file.path())).expect("it is a fatbin");
        module.load_function("add_one").expect("it has it");

        assert_eq!(
            error(load(&context, b"no image at all".to_vec(), "add_one")),
            Some(CUDA_ERROR_INVALID_IMAGE)
        );
        assert!(driver.report().contains("the image is no fatbin, cubin or PTX"), "{}", driver.report());
        let program = std::fs::read(env::current_exe().expect("it runs")).expect("it can be read");
        assert_eq!(error(load(&context, program, "add_one")), Some(CUDA_ERROR_INVALID_IMAGE));
        assert!(driver.report().contains("an ELF file, but no cubin"), "{}", driver.report());
        let packed = fatbin(&[Entry::cubin(sm(90), &[add_one()]).compressed()]);
        assert_eq!(error(load(&context, packed, "add_one")), Some(CUDA_ERROR_INVALID_IMAGE));
        assert!(driver.report().contains("nvcc --no-compress"), "{}", driver.report());
        let text = Ptx::from_src(".version 8.0\n");
        assert_eq!(error(context.load_module(text)), Some(CUDA_ERROR_INVALID_PTX));
    });
}

#[test]
fn no_broken_fatbin_is_read_beyond_its_end() {
    on_card(9, 0, |_, context| {
        let whole = fatbin(&[Entry::cubin(sm(90), &[add_one()])]);
        let body = whole.len() - 16;
        for bytes in (0..body).step_by(7) {
            // A vector of just these bytes, so that a sanitizer sees what lies behind.
            let mut cut = whole[..16 + bytes].to_vec();
            cut[8..16].copy_from_slice(&(bytes as u64).to_le_bytes());
            let result = error(load(&context, cut, "add_one"));
            let expected = if bytes == 0 { CUDA_ERROR_NO_BINARY_FOR_GPU } else { CUDA_ERROR_INVALID_IMAGE };
            assert_eq!(result, Some(expected), "{bytes} of {body} bytes");
        }
    });
}

#[test]
fn functions_are_of_the_image_and_of_the_emulator() {
    on_card(9, 0, |driver, context| {
        let kernels = [
            add_one(),
            Kernel::new("not_emulated", PARAMETER_BYTES),
            Kernel { parameter_bytes: 32, ..add_one() },
        ];
        let load =
            |kernel: usize, name| error(load(&context, cubin(sm(90), &kernels[kernel..=kernel]), name));
        assert_eq!(load(0, "add_one"), None);
        assert_eq!(load(0, "in_no_image"), Some(CUDA_ERROR_NOT_FOUND));
        assert!(
            driver
                .report()
                .ends_with("kernel in_no_image is not in the image, though among the emulated kernels")
        );
        assert_eq!(load(0, "nowhere"), Some(CUDA_ERROR_NOT_FOUND));
        assert!(driver.report().ends_with("kernel nowhere is not in the image"), "{}", driver.report());
        assert_eq!(load(1, "not_emulated"), Some(CUDA_ERROR_NOT_SUPPORTED));
        assert!(driver.report().contains("not_emulated is in the image, but not among the emulated kernels"));
        assert_eq!(load(2, "add_one"), Some(CUDA_ERROR_INVALID_IMAGE));
        assert!(driver.report().contains("parameters of 32 bytes in the image and of 24 when emulated"));

        let stream = context.default_stream();
        let module = context.load_module(Ptx::from_binary(cubin(sm(90), &kernels[..1]))).expect("it runs");
        assert_eq!(error(module.get_global("table", &stream)), Some(CUDA_ERROR_NOT_SUPPORTED));
        assert!(driver.report().contains("table"), "{}", driver.report());
    });
}

#[test]
fn functions_have_the_attributes_of_their_code() {
    on_card(8, 9, |_, context| {
        let kernel = Kernel { registers: 100, shared_bytes: 1000, max_threads: None, ..add_one() };
        let function = load_kernel(&context, kernel).expect("it runs on the card");
        assert_eq!(function.num_regs(), Ok(100));
        assert_eq!(function.shared_size_bytes(), Ok(1000));
        // 100 registers are 3328 for a warp, of which a quarter of the card's 65536 holds 4.
        assert_eq!(function.max_threads_per_block(), Ok(512));
        let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_eq!(function.get_attribute(dynamic), Ok(48 * 1024 - 1000));
        assert_eq!(error(function.set_attribute(dynamic, 99 * 1024 - 999)), Some(CUDA_ERROR_INVALID_VALUE));
        function.set_attribute(dynamic, 99 * 1024 - 1000).expect("the card has as much");
        assert_eq!(function.get_attribute(dynamic), Ok(99 * 1024 - 1000));
    });
}

#[test]
fn shared_memory_that_the_driver_keeps_is_not_the_kernels() {
    for (major, minor) in [(8, 0), (9, 0)] {
        on_card(major, minor, |_, context| {
            for shared_bytes in [0, 2000] {
                let function = load_kernel(&context, Kernel { shared_bytes, ..add_one() }).expect("it runs");
                assert_eq!(function.shared_size_bytes(), Ok(shared_bytes as i32));
            }
        });
    }
}

#[test]
fn occupancy_follows_from_what_a_block_needs() {
    on_card(9, 0, |_, context| {
        let active = |kernel, threads, shared| {
            let function = load_kernel(&context, kernel).expect("it runs on the card");
            function.occupancy_max_active_blocks_per_multiprocessor(threads, shared, None)
        };
        assert_eq!(active(add_one(), 128, 0), Ok(16), "2048 threads");
        assert_eq!(active(add_one(), 32, 0), Ok(32), "32 blocks");
        assert_eq!(active(Kernel { registers: 128, ..add_one() }, 128, 0), Ok(4), "16 warps by registers");
        assert_eq!(active(add_one(), 128, 100 * 1024), Ok(2), "228 KiB, of which each block takes one more");
        assert_eq!(active(add_one(), 128, 228 * 1024), Ok(0));
        assert_eq!(active(add_one(), 129, 0), Ok(0));
    });
}

extern "C" fn four_bytes_a_thread(threads: i32) -> usize {
    4 * threads as usize
}

#[test]
fn the_best_block_is_the_largest_that_fills_a_multiprocessor() {
    on_card(9, 0, |_, context| {
        let function =
            load_kernel(&context, Kernel { max_threads: None, ..add_one() }).expect("it runs on the card");
        // 64 warps by registers and by threads: two blocks of 1024.
        let best = |limit| function.occupancy_max_potential_block_size(four_bytes_a_thread, 0, limit, None);
        assert_eq!(best(0), Ok((264, 1024)));
        assert_eq!(best(256), Ok((1056, 256)));
        // Of 228 KiB for two, each 1 KiB for the driver.
        assert_eq!(function.occupancy_available_dynamic_smem_per_block(2, 1024), Ok(113 * 1024));
        assert_eq!(function.occupancy_available_dynamic_smem_per_block(1, 1024), Ok(227 * 1024));
        assert_eq!(
            error(function.occupancy_available_dynamic_smem_per_block(3, 1024)),
            Some(CUDA_ERROR_INVALID_VALUE)
        );
    });
}

#[test]
fn launches_are_checked() {
    on_card(8, 0, |driver, context| {
        let stream = context.default_stream();
        let (_input, output, parameter) = four_values(&stream);
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let launch = |function, shape| error(launch(&stream, function, &parameter, shape));
        assert_eq!(launch(&function, blocks(1, 129, 0)), Some(CUDA_ERROR_INVALID_VALUE));
        assert!(driver.report().contains("129 threads, but its code allows 128"), "{}", driver.report());
        assert_eq!(launch(&function, blocks(0, 32, 0)), Some(CUDA_ERROR_INVALID_VALUE));
        let tall = LaunchConfig { grid_dim: (1, 65536, 1), ..blocks(1, 32, 0) };
        assert_eq!(launch(&function, tall), Some(CUDA_ERROR_INVALID_VALUE));

        let greedy = Kernel { registers: 255, max_threads: None, ..add_one() };
        let greedy = load_kernel(&context, greedy).expect("it runs on the card");
        assert_eq!(launch(&greedy, blocks(1, 257, 0)), Some(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
        assert_eq!(launch(&greedy, blocks(1, 256, 0)), None);
        let square = LaunchConfig { block_dim: (32, 33, 1), ..blocks(1, 32, 0) };
        assert_eq!(launch(&greedy, square), Some(CUDA_ERROR_INVALID_VALUE), "no card allows 1056 threads");

        let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_eq!(launch(&function, blocks(1, 32, 48 * 1024)), None);
        assert_eq!(launch(&function, blocks(1, 32, 48 * 1024 + 1)), Some(CUDA_ERROR_INVALID_VALUE));
        assert!(driver.report().contains("SHARED_SIZE_BYTES allows up to 166912"), "{}", driver.report());
        function.set_attribute(dynamic, 163 * 1024).expect("the card has as much");
        assert_eq!(launch(&function, blocks(1, 32, 163 * 1024)), None);
        assert_eq!(launch(&function, blocks(1, 32, 163 * 1024 + 1)), Some(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(stream.clone_dtoh(&output), Ok(vec![2.0, 3.0, 4.0, 5.0]));
        assert_eq!(driver.counters().launches, 3);
    });
}

#[test]
fn parameters_come_by_pointers_only() {
    on_card(9, 0, |driver, context| {
        let stream = context.default_stream();
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (raw, mut parameters) = (function.cu_function(), [std::ptr::null_mut()]);
        let launch = |parameters, extra| {
            // SAFETY: the driver refuses both.
            unsafe { sys::cuLaunchKernel(raw, 1, 1, 1, 32, 1, 1, 0, stream.cu_stream(), parameters, extra) }
        };
        assert_eq!(launch(parameters.as_mut_ptr(), std::ptr::null_mut()), CUDA_ERROR_INVALID_VALUE);
        assert!(driver.report().contains("the parameter is null"), "{}", driver.report());
        assert_eq!(launch(std::ptr::null_mut(), parameters.as_mut_ptr()), CUDA_ERROR_NOT_SUPPORTED);
        assert!(driver.report().contains("`extra`"), "{}", driver.report());
    });
}

#[test]
fn a_kernel_is_launched_into_streams_of_its_own_context() {
    let configuration = Configuration { devices: 2, ..Configuration::default() };
    configured(configuration, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let other = CudaContext::new(1).expect("there are two");
        let function = load_kernel(&other, add_one()).expect("it runs on the card");
        let (raw, nothing) = (function.cu_function(), std::ptr::null_mut());
        // SAFETY: the driver refuses the stream.
        let result =
            unsafe { sys::cuLaunchKernel(raw, 1, 1, 1, 32, 1, 1, 0, stream.cu_stream(), nothing, nothing) };
        assert_eq!(result, sys::CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert!(driver.report().contains("the stream is of another context"), "{}", driver.report());
    });
}

#[test]
fn a_fault_stays_on_its_device() {
    let configuration = Configuration { devices: 2, ..Configuration::default() };
    configured(configuration, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (_input, output, mut parameter) = four_values(&stream);
        parameter.count = 5;
        launch(&stream, &function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
        let fault = Some(CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(error(stream.synchronize()), fault);
        let report = driver.report();
        assert!(report.contains("cuStreamSynchronize: kernel add_one, launch 1, grid (1, 1, 1)"), "{report}");
        assert!(report.contains("kernels.cu:"), "{report}");
        assert!(
            report.contains("byte 8 of the parameter points to byte 0 of 16 bytes, allocation 2"),
            "{report}"
        );

        assert_eq!(error(context.synchronize()), fault);
        assert_eq!(error(stream.clone_dtoh(&output)), fault);
        assert_eq!(error(launch(&stream, &function, &parameter, blocks(1, 32, 0))), fault);
        assert_eq!(error(context.new_event(None)), fault);
        let other = CudaContext::new(1).expect("there are two").default_stream();
        let values = other.clone_htod(&[1_u32]).expect("there is memory");
        assert_eq!(other.clone_dtoh(&values), Ok(vec![1]));
    });
}

#[test]
fn a_kernel_that_uses_freed_memory_is_told_which() {
    on_card(9, 0, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (input, _output, parameter) = four_values(&stream);
        drop(input);
        launch(&stream, &function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
        assert_eq!(error(stream.synchronize()), Some(CUDA_ERROR_ILLEGAL_ADDRESS));
        let report = driver.report();
        assert!(
            report.contains("byte 0 of the parameter points to a pointer to freed memory: 16 bytes"),
            "{report}"
        );
    });
}

#[test]
fn a_kernel_cannot_come_before_its_memory() {
    on_card(9, 0, |driver, context| {
        let [first, second] = [0, 1].map(|_| context.new_stream().expect("streams are free"));
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (_input, _output, parameter) = four_values(&first);
        launch(&second, &function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
        assert_eq!(error(second.synchronize()), Some(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert!(driver.report().contains("before its stream comes to its allocation"), "{}", driver.report());
    });
}

#[test]
fn a_launch_fails_as_it_is_told_to() {
    for (code, expected, at_once) in
        [(719, CUDA_ERROR_LAUNCH_FAILED, false), (701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, true)]
    {
        let configuration =
            Configuration { launch_fails_at: Some(2), launch_error: code, ..Configuration::default() };
        configured(configuration, |_, context| {
            let stream = context.new_stream().expect("streams are free");
            let function = load_kernel(&context, add_one()).expect("it runs on the card");
            let (_input, output, parameter) = four_values(&stream);
            let launches = [1, 2, 3].map(|_| error(launch(&stream, &function, &parameter, blocks(1, 32, 0))));
            if at_once {
                assert_eq!(launches, [None, Some(expected), None]);
                assert_eq!(stream.clone_dtoh(&output), Ok(vec![2.0, 3.0, 4.0, 5.0]));
            } else {
                assert_eq!(launches, [None; 3]);
                assert_eq!(error(stream.synchronize()), Some(expected));
                assert_eq!(error(stream.synchronize()), Some(expected));
            }
        });
    }
}

#[test]
fn a_launch_is_lost_as_it_is_told_to() {
    let configuration = Configuration { launch_lost_at: Some(2), ..Configuration::default() };
    configured(configuration, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (_input, mut output, parameter) = four_values(&stream);
        for (number, expected) in [(1, [2.0, 3.0, 4.0, 5.0]), (2, [0.0; 4]), (3, [2.0, 3.0, 4.0, 5.0])] {
            stream.memset_zeros(&mut output).expect("it is the device's");
            launch(&stream, &function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
            assert_eq!(stream.clone_dtoh(&output), Ok(expected.to_vec()), "launch {number}");
        }
        assert_eq!(driver.counters().launches, 3);
    });
}

#[test]
fn repeats_are_skipped_as_long_as_that_is_asked_for() {
    let configuration = Configuration { count: true, ..Configuration::default() };
    configured(configuration, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (_input, mut output, parameter) = four_values(&stream);
        let (_other_input, mut other_output, other) = four_values(&stream);
        let mut sum_after = |parameter: &AddOne, threads| {
            for output in [&mut output, &mut other_output] {
                stream.memset_zeros(output).expect("it is the device's");
            }
            launch(&stream, &function, parameter, blocks(1, threads, 0)).expect("it is allowed");
            let values =
                [&output, &other_output].map(|output| stream.clone_dtoh(output).expect("it is there"));
            values.concat().iter().sum::<f32>()
        };
        assert_eq!(sum_after(&parameter, 32), 14.0);
        driver.skip_repeats(true);
        assert_eq!(sum_after(&other, 32), 0.0, "the same, elsewhere");
        assert_eq!(sum_after(&other, 64), 14.0, "of another size");
        driver.skip_repeats(false);
        assert_eq!(sum_after(&other, 32), 14.0);
        // Each writes to one sector.
        let counters = driver.counters();
        assert_eq!((counters.launches, counters.emulator.requested_written), (4, 4 * 32));
    });
}

#[test]
fn null_is_not_where_a_pointer_was() {
    let configuration = Configuration { count: true, ..Configuration::default() };
    configured(configuration, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (_input, _output, parameter) = four_values(&stream);
        let in_place = AddOne { input: parameter.output, ..parameter };
        launch(&stream, &function, &in_place, blocks(1, 32, 0)).expect("it is allowed");
        assert_eq!(error(stream.synchronize()), None);
        driver.skip_repeats(true);
        let of_null = AddOne { input: 0, ..parameter };
        launch(&stream, &function, &of_null, blocks(1, 32, 0)).expect("it is allowed");
        assert_eq!(error(stream.synchronize()), Some(CUDA_ERROR_ILLEGAL_ADDRESS));
    });
}

#[test]
fn functions_end_with_their_module() {
    on_card(9, 0, |driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let (_input, output, parameter) = four_values(&stream);
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        launch(&stream, &function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
        let raw = function.cu_function();
        drop(function);
        assert_eq!(driver.counters().pending, 0, "unloading waits");
        assert_eq!(stream.clone_dtoh(&output), Ok(vec![2.0, 3.0, 4.0, 5.0]));
        // SAFETY: the driver refuses the handle.
        let gone =
            unsafe { result::function::get_function_attribute(raw, Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS) };
        assert_eq!(error(gone), Some(sys::CUresult::CUDA_ERROR_INVALID_HANDLE));
    });
}

/// nvcc, as build.rs of the repository looks for it.
fn nvcc() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let given = env::var_os("NVCC").map(PathBuf::from);
    given.into_iter().chain([root.join(".toolchain/cuda/bin/nvcc")]).find(|path| path.is_file())
}

#[test]
fn images_of_nvcc_are_understood() {
    let Some(nvcc) = nvcc() else {
        eprintln!("skipped: there is no nvcc; set NVCC, or run tools/toolchain.sh");
        return;
    };
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("there is a disk");
    let file = folder.path().join("kernels.fatbin");
    let output = Command::new(nvcc)
        .args(["--fatbin", "--no-compress", "-std=c++17", "-lineinfo", "-gencode=arch=compute_80,code=sm_80"])
        .args(["-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_80,code=compute_80", "-I"])
        .arg(crate_root.join("../../kernels"))
        .arg(crate_root.join("tests/driver_kernels/kernels.cu"))
        .arg("-o")
        .arg(&file)
        .env("TMPDIR", folder.path())
        .output()
        .expect("nvcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let image = std::fs::read(&file).expect("nvcc has written it");

    let cards = [((8, 0), 80, 80), ((8, 9), 80, 80), ((9, 0), 90, 90), ((12, 0), 120, 80)];
    for ((major, minor), binary_version, ptx_version) in cards {
        on_card(major, minor, |_, context| {
            let stream = context.new_stream().expect("streams are free");
            let function = load(&context, image.clone(), "add_one").expect("it runs on the card");
            assert_eq!(function.binary_version(), Ok(binary_version));
            assert_eq!(function.ptx_version(), Ok(ptx_version));
            assert_eq!(function.max_threads_per_block(), Ok(256));
            let registers = function.num_regs().expect("it has some");
            assert_eq!(registers > 0, major != 12, "{registers} registers; the mock driver compiles no PTX");
            let (_input, output, parameter) = four_values(&stream);
            launch(&stream, &function, &parameter, blocks(1, 128, 0)).expect("it is allowed");
            assert_eq!(stream.clone_dtoh(&output), Ok(vec![2.0, 3.0, 4.0, 5.0]));
        });
    }
}
