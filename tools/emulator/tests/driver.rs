//! The mock driver as a library: its names, its configuration, and programs that find it by themselves.

use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use cudarc::driver::{CudaContext, DevicePtr, sys};
use libloading::Library;
use setrank_emulator::driver::{self, Configuration, Error};

#[test]
fn it_goes_by_the_name_of_the_real_one() {
    let driver = driver::load().expect("it was built");
    // SAFETY: both are the mock driver, whose functions are not called here.
    unsafe {
        let by_name = Library::new("libcuda.so").expect("it is loaded already");
        let call: [*const (); 2] = [driver.library(), &by_name]
            .map(|library| *library.get::<fn()>(b"cuInit\0").expect("it has it") as *const ());
        assert_eq!(call[0], call[1]);
    }
}

#[test]
fn it_refuses_calls_before_it_is_initialized() {
    driver::with(&Configuration::default(), |driver| {
        let mut count = 0;
        // SAFETY: the types are those of cuda.h.
        unsafe {
            let get_count =
                driver.library().get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDeviceGetCount\0");
            let get_count = get_count.expect("it has it");
            assert_eq!(get_count(&mut count), 3, "CUDA_ERROR_NOT_INITIALIZED");
            let init =
                driver.library().get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit\0").expect("it has it");
            assert_eq!((init(0), get_count(&mut count), count), (0, 0, 1));
        }
    })
    .expect("it was built");
}

#[test]
fn it_names_errors() {
    let driver = driver::load().expect("it was built");
    type Call = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    // SAFETY: the types are those of cuda.h, and the texts are constants.
    unsafe {
        let [name, text] = [&b"cuGetErrorName\0"[..], b"cuGetErrorString\0"].map(|call| {
            let call = driver.library().get::<Call>(call).expect("it has it");
            let mut text = std::ptr::null();
            assert_eq!(call(700, &mut text), 0);
            let known = CStr::from_ptr(text);
            assert_eq!(call(12345, &mut text), 1, "CUDA_ERROR_INVALID_VALUE");
            assert!(text.is_null());
            known
        });
        assert_eq!(name, c"CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(text, c"an illegal memory access was encountered");
    }
}

/// cudarc's source, if cargo keeps it where it does by default.
fn cudarc_source() -> Option<String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    fs::read_dir(home.join("registry/src")).ok()?.find_map(|registry| {
        fs::read_to_string(registry.ok()?.path().join("cudarc-0.19.10/src/driver/sys/mod.rs")).ok()
    })
}

#[test]
fn it_has_every_name_that_cudarc_looks_up() {
    let Some(source) = cudarc_source() else {
        eprintln!("skipped: the source of cudarc 0.19.10 is not in the registry of this machine");
        return;
    };
    let driver = driver::load().expect("it was built");
    let names: Vec<&str> = source
        .split("load::<_F>(\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap_or_default())
        .collect();
    assert!(names.len() > 500, "{} names", names.len());
    for name in names {
        // SAFETY: the symbol is not used.
        assert!(unsafe { driver.library().get::<*const ()>(name.as_bytes()) }.is_ok(), "{name} is missing");
    }
}

#[test]
fn a_wrong_word_is_named() {
    let configuration = Configuration { compute_capability: (8, 7), ..Configuration::default() };
    let expected = "mock CUDA driver: mockConfigure: \"cc=8.7\" is not understood: \
                    expected one of 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0";
    assert_eq!(driver::with(&configuration, |_| ()), Err(Error::Configuration(expected.into())));
}

/// Runs one of the tests below that are ignored in a process of its own.
fn child(test: &str, words: &str) -> Output {
    let output = Command::new(env::current_exe().expect("it runs"))
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", driver::directory())
        .env("SETRANK_MOCK_DEVICE", words)
        .output();
    output.expect("it runs")
}

#[test]
fn a_program_finds_it_and_is_configured_by_the_environment() {
    let output = child("finds_the_driver", "cc=8.9,memory=64M,devices=3");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("3 devices of capability (8, 9), 67108864 bytes each"), "{text}");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn finds_the_driver() {
    let context = CudaContext::new(0).expect("it is configured");
    let capability = context.compute_capability().expect("it has one");
    let devices = CudaContext::device_count().expect("it has some");
    println!(
        "{devices} devices of capability {capability:?}, {} bytes each",
        context.total_mem().expect("it has some")
    );
}

#[test]
fn a_wrong_word_in_the_environment_fails_the_initialization() {
    for (words, message) in [
        ("cc=8.9,memory=lots", "\"memory=lots\" is not understood: expected bytes, such as 512M or 4G"),
        ("fast", "\"fast\" is not of the form name=value"),
        ("speed=9", "\"speed=9\" is not understood: expected devices, cc, multiprocessors, memory"),
        ("seed=18446744073709551616", "\"seed=18446744073709551616\" is not understood: expected a number"),
    ] {
        let output = child("cannot_initialize", words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains(&format!("mock CUDA driver: cuInit: SETRANK_MOCK_DEVICE: {message}")),
            "{text}"
        );
    }
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn cannot_initialize() {
    let error = CudaContext::new(0).map_err(|error| error.0).err();
    assert_eq!(error, Some(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn the_host_cannot_read_device_memory() {
    const SIGSEGV: i32 = 11;
    let output = child("reads_device_memory", "");
    assert!(String::from_utf8_lossy(&output.stdout).contains("reading"), "{output:?}");
    assert_eq!(output.status.signal(), Some(SIGSEGV), "{output:?}");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn reads_device_memory() {
    let stream = CudaContext::new(0).expect("there is a device").default_stream();
    let device = stream.clone_htod(&[1_u32]).expect("there is memory");
    let pointer = device.device_ptr(&stream).0 as *const u32;
    println!("reading");
    // SAFETY: it is not; the test expects that this ends the process.
    println!("{}", unsafe { pointer.read_volatile() });
}
