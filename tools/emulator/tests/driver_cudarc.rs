//! The mock driver's devices, streams and memory, through unmodified cudarc.

use std::slice;
use std::sync::Arc;

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use setrank_emulator::driver::{self, Configuration, Driver, Streams};
use sys::CUdevice_attribute as Attribute;
use sys::CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_OUT_OF_MEMORY,
};

fn configured<R>(configuration: Configuration, run: impl FnOnce(&Driver) -> R) -> R {
    driver::with(&configuration, run).expect("the mock driver should load, and nothing be overwritten")
}

/// Runs on one device, without the events with which cudarc orders streams by itself.
fn on_device<R>(run: impl FnOnce(&Driver, Arc<CudaContext>) -> R) -> R {
    configured(Configuration::default(), |driver| run(driver, untracked(0)))
}

fn untracked(device: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(device).expect("there is this device");
    // SAFETY: the tests order streams themselves, or mean not to.
    unsafe { context.disable_event_tracking() };
    context
}

fn error<T>(result: Result<T, DriverError>) -> Option<sys::CUresult> {
    result.err().map(|error| error.0)
}

fn address<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> sys::CUdeviceptr {
    slice.device_ptr(stream).0
}

/// Copies into a pinned slice when the stream comes to it.
fn copy_later(to: *mut u32, from: &CudaSlice<u32>, stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: the tests keep `to`, pinned memory of as many values, until the stream is done.
    let to = unsafe { slice::from_raw_parts_mut(to, from.len()) };
    // SAFETY: as above.
    unsafe { result::memcpy_dtoh_async(to, address(from, stream), stream.cu_stream()) }
}

#[test]
fn devices_are_as_configured() {
    let cards = [((8, 0), 163), ((8, 6), 99), ((8, 9), 99), ((9, 0), 227)];
    for (compute_capability, shared) in cards {
        let configuration = Configuration {
            devices: 2,
            compute_capability,
            memory: 1 << 30,
            driver_version: 12080,
            ..Configuration::default()
        };
        configured(configuration, |_| {
            let mut version = 0;
            // SAFETY: the pointer is valid.
            unsafe { sys::cuDriverGetVersion(&mut version) }.result().expect("it needs nothing");
            assert_eq!(version, 12080);
            assert_eq!(CudaContext::device_count(), Ok(2));
            let contexts = [0, 1].map(|device| CudaContext::new(device).expect("there are two"));
            let (major, minor) = compute_capability;
            assert_eq!(contexts[1].compute_capability(), Ok((major as i32, minor as i32)));
            assert_eq!(contexts[1].total_mem(), Ok(1 << 30));
            assert_eq!(
                contexts[1].attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
                Ok(shared * 1024)
            );
            assert!(contexts[1].name().expect("it has one").starts_with("Mock "));
            let [first, second] = contexts.map(|context| context.uuid().expect("it has one").bytes);
            assert_ne!(first, second);
            assert_eq!(error(CudaContext::new(2)), Some(CUDA_ERROR_INVALID_DEVICE));
        });
    }
}

#[test]
fn a_machine_can_have_no_device() {
    configured(Configuration { devices: 0, ..Configuration::default() }, |_| {
        assert_eq!(error(CudaContext::new(0)), Some(CUDA_ERROR_NO_DEVICE));
    });
}

#[test]
fn values_go_to_the_device_and_back() {
    configured(Configuration::default(), |driver| {
        let context = CudaContext::new(0).expect("there is a device");
        let stream = context.new_stream().expect("streams are free");
        let values: Vec<u32> = (0..1000).collect();
        let mut device = stream.clone_htod(&values).expect("there is memory");
        let copy = stream.clone_dtod(&device).expect("there is memory");
        stream.memset_zeros(&mut device.slice_mut(10..990)).expect("it is inside");
        let back = stream.clone_dtoh(&device).expect("it is written");
        assert_eq!((back[9], back[10], back[989], back[990]), (9, 0, 0, 990));
        assert_eq!(stream.clone_dtoh(&copy), Ok(values));
        let counters = driver.counters();
        assert_eq!((counters.bytes_to_device, counters.bytes_to_host), (4000, 8000));
        assert_eq!((counters.bytes_on_device, counters.bytes_set), (4000, 3920));
        assert_eq!((counters.allocations, counters.live_allocations), (2, 2));
        drop((device, copy));
        stream.synchronize().expect("nothing is wrong");
        assert_eq!(driver.counters().live_allocations, 0);
    });
}

#[test]
fn memory_that_is_not_written_is_not_zero() {
    on_device(|_, context| {
        let stream = context.default_stream();
        // SAFETY: nothing relies on the values.
        let device = unsafe { stream.alloc::<u32>(4) }.expect("there is memory");
        assert_ne!(stream.clone_dtoh(&device), Ok(vec![0; 4]));
    });
}

#[test]
fn a_copy_from_pinned_memory_reads_it_late() {
    on_device(|_, context| {
        let stream = context.new_stream().expect("streams are free");
        let device = stream.alloc_zeros::<u32>(4).expect("there is memory");
        // SAFETY: it is written before it is read.
        let mut pinned = unsafe { context.alloc_pinned_with_flags::<u32>(4, 0) }.expect("there is memory");
        let pointer = pinned.as_mut_ptr().expect("nothing is queued");
        // SAFETY: all four values are the slice's.
        let values = unsafe { slice::from_raw_parts_mut(pointer, 4) };
        values.copy_from_slice(&[1, 2, 3, 4]);
        // SAFETY: pinned memory stays until the end.
        unsafe { result::memcpy_htod_async(address(&device, &stream), values, stream.cu_stream()) }
            .expect("it is inside");
        values[0] = 9;
        assert_eq!(stream.clone_dtoh(&device), Ok(vec![9, 2, 3, 4]));
    });
}

#[test]
fn a_copy_from_pageable_memory_reads_it_at_once() {
    on_device(|_, context| {
        let stream = context.new_stream().expect("streams are free");
        let device = stream.alloc_zeros::<u32>(4).expect("there is memory");
        let mut values = vec![1, 2, 3, 4];
        // SAFETY: the driver reads pageable memory during the call.
        unsafe { result::memcpy_htod_async(address(&device, &stream), &values, stream.cu_stream()) }
            .expect("it is inside");
        values[0] = 9;
        assert_eq!(stream.clone_dtoh(&device), Ok(vec![1, 2, 3, 4]));
    });
}

#[test]
fn a_copy_to_pinned_memory_is_there_after_a_synchronization() {
    on_device(|driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let device = stream.clone_htod(&[1_u32, 2, 3, 4]).expect("there is memory");
        // SAFETY: it is written before it is read.
        let mut pinned = unsafe { context.alloc_pinned_with_flags::<u32>(4, 0) }.expect("there is memory");
        pinned.as_mut_slice().expect("nothing is queued").fill(0);
        let pointer = pinned.as_mut_ptr().expect("nothing is queued");
        copy_later(pointer, &device, &stream).expect("it is inside");
        assert_eq!(pinned.as_slice().expect("its event is unused"), [0; 4]);
        assert!(driver.counters().pending > 0);
        stream.synchronize().expect("nothing is wrong");
        assert_eq!(pinned.as_slice().expect("its event is unused"), [1, 2, 3, 4]);
        assert_eq!(driver.counters().pending, 0);
    });
}

#[test]
fn streams_without_an_event_between_them_are_not_ordered() {
    on_device(|_, context| {
        let [first, second] = [0, 1].map(|_| context.new_stream().expect("streams are free"));
        let mut device = first.clone_htod(&[1_u32; 4]).expect("there is memory");
        first.synchronize().expect("nothing is wrong");
        first.memset_zeros(&mut device).expect("it is inside");
        assert_eq!(second.clone_dtoh(&device), Ok(vec![1; 4]), "nothing orders the two streams");
        second.join(&first).expect("events are free");
        assert_eq!(second.clone_dtoh(&device), Ok(vec![0; 4]));
    });
}

#[test]
fn cudarc_orders_streams_by_its_events() {
    configured(Configuration::default(), |_| {
        let context = CudaContext::new(0).expect("there is a device");
        let [first, second] = [0, 1].map(|_| context.new_stream().expect("streams are free"));
        let mut device = first.clone_htod(&[1_u32; 4]).expect("there is memory");
        first.memset_zeros(&mut device).expect("it is inside");
        assert_eq!(second.clone_dtoh(&device), Ok(vec![0; 4]));
    });
}

#[test]
fn the_default_stream_waits_for_blocking_streams_only() {
    on_device(|_, context| {
        let default = context.default_stream();
        for (kind, sees) in [(StreamKind::Default, 0), (StreamKind::NonBlocking, 1)] {
            let raw = result::stream::create(kind).expect("streams are free");
            // SAFETY: it is destroyed after its last use.
            let stream = unsafe { context.wrap_borrowed_stream(raw) };
            let mut device = default.clone_htod(&[1_u32; 4]).expect("there is memory");
            default.synchronize().expect("nothing is wrong");
            stream.memset_zeros(&mut device).expect("it is inside");
            assert_eq!(default.clone_dtoh(&device), Ok(vec![sees; 4]));
            stream.synchronize().expect("nothing is wrong");
            // SAFETY: as above.
            unsafe { result::stream::destroy(raw) }.expect("it is a stream");
        }
    });
}

#[test]
fn blocking_streams_wait_for_the_default_stream() {
    on_device(|_, context| {
        let default = context.default_stream();
        let raw = result::stream::create(StreamKind::Default).expect("streams are free");
        // SAFETY: it is destroyed after its last use.
        let stream = unsafe { context.wrap_borrowed_stream(raw) };
        let mut device = default.clone_htod(&[1_u32; 4]).expect("there is memory");
        default.synchronize().expect("nothing is wrong");
        default.memset_zeros(&mut device).expect("it is inside");
        assert_eq!(stream.clone_dtoh(&device), Ok(vec![0; 4]));
        // SAFETY: as above.
        unsafe { result::stream::destroy(raw) }.expect("it is a stream");
    });
}

#[test]
fn registered_memory_is_pinned_as_long_as_its_context_lives() {
    configured(Configuration::default(), |driver| {
        let mut values = vec![0_u32; 4];
        let pointer = values.as_mut_ptr();
        let context = untracked(0);
        // SAFETY: the vector outlives the context.
        let register = || unsafe { sys::cuMemHostRegister_v2(pointer.cast(), 16, 0) };
        assert_eq!(register(), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(register(), sys::CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        let stream = context.new_stream().expect("streams are free");
        let device = stream.clone_htod(&[1_u32, 2, 3, 4]).expect("there is memory");
        copy_later(pointer, &device, &stream).expect("it is inside");
        // SAFETY: the vector's own pointer, which the driver writes to.
        let read = || unsafe { pointer.read_volatile() };
        assert_eq!(read(), 0, "nothing waits for the copy");
        device.leak();
        drop((stream, context));
        assert_eq!(read(), 1, "the end of the context does");
        assert_eq!(driver.counters().live_allocations, 0);

        let _context = untracked(0);
        // SAFETY: the driver refuses it.
        let result = unsafe { sys::cuMemHostUnregister(pointer.cast()) };
        assert_eq!(result, sys::CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    });
}

#[test]
fn the_end_of_a_context_waits_for_others_that_use_its_memory() {
    configured(Configuration { devices: 2, ..Configuration::default() }, |_| {
        let [first, second] = [0, 1].map(untracked);
        first.bind_to_thread().expect("nothing is wrong");
        // SAFETY: it is used only until its context ends.
        let pinned = unsafe {
            let pinned = result::malloc_host(16, 0).expect("there is memory").cast::<u32>();
            pinned.write_bytes(1, 4);
            slice::from_raw_parts(pinned, 4)
        };
        let stream = second.new_stream().expect("streams are free");
        let device = stream.alloc_zeros::<u32>(4).expect("there is memory");
        // SAFETY: the end of the context waits for the copy.
        unsafe { result::memcpy_htod_async(address(&device, &stream), pinned, stream.cu_stream()) }
            .expect("it is inside");
        drop(first);
        assert_eq!(stream.clone_dtoh(&device), Ok(vec![0x0101_0101; 4]));
    });
}

#[test]
fn a_fault_shows_from_another_device_too() {
    configured(Configuration { devices: 2, ..Configuration::default() }, |_| {
        let [first, second] = [0, 1].map(untracked);
        let [early, late] = [0, 1].map(|_| second.new_stream().expect("streams are free"));
        let device = late.alloc_zeros::<u32>(4).expect("there is memory");
        let begin = address(&device, &late);
        first.bind_to_thread().expect("nothing is wrong");
        // SAFETY: the driver refuses it when it runs: nothing orders it behind the allocation.
        let copies =
            [0, 1].map(|_| unsafe { result::memcpy_dtoh_async(&mut [0_u32; 4], begin, early.cu_stream()) });
        assert_eq!(copies.map(error), [Some(CUDA_ERROR_ILLEGAL_ADDRESS); 2]);
        first.synchronize().expect("this device is well");
    });
}

#[test]
fn no_thread_keeps_a_context_of_before() {
    for _ in 0..8 {
        configured(Configuration::default(), |_| {
            result::init().expect("there is a device");
            // SAFETY: device 0 exists.
            let context = unsafe { result::primary_ctx::retain(0) }.expect("there is a device");
            assert_eq!(result::ctx::get_current(), Ok(None));
            // SAFETY: it is a context.
            unsafe { result::ctx::set_current(context) }.expect("it is a context");
            assert_eq!(result::ctx::get_current(), Ok(Some(context)));
        });
    }
}

#[test]
fn work_of_a_destroyed_stream_is_still_done() {
    on_device(|_, context| {
        let default = context.default_stream();
        let mut device = default.clone_htod(&[1_u32; 4]).expect("there is memory");
        default.synchronize().expect("nothing is wrong");
        let stream = context.new_stream().expect("streams are free");
        stream.memset_zeros(&mut device).expect("it is inside");
        drop(stream);
        context.synchronize().expect("nothing is wrong");
        assert_eq!(default.clone_dtoh(&device), Ok(vec![0; 4]));
    });
}

#[test]
fn an_event_comes_while_it_is_asked_for() {
    on_device(|_, context| {
        let stream = context.new_stream().expect("streams are free");
        let timed =
            || context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).expect("events are free");
        let (start, end) = (timed(), timed());
        assert_eq!(start.try_is_complete(), Ok(true), "it was not recorded");
        start.record(&stream).expect("it is a stream");
        let _device = stream.alloc_zeros::<u32>(4).expect("there is memory");
        end.record(&stream).expect("it is a stream");
        assert_eq!(end.try_is_complete(), Ok(false));
        // SAFETY: both are events.
        let too_early = unsafe { result::event::elapsed(start.cu_event(), end.cu_event()) };
        assert_eq!(error(too_early), Some(CUDA_ERROR_NOT_READY));
        let asked = (0..100).take_while(|_| end.try_is_complete() == Ok(false)).count();
        assert!((1..10).contains(&asked), "{asked} times");
        assert!(start.elapsed_ms(&end).expect("both have come") >= 0.0);
        let untimed = stream.record_event(None).expect("events are free");
        assert_eq!(error(start.elapsed_ms(&untimed)), Some(CUDA_ERROR_INVALID_HANDLE));
    });
}

#[test]
fn memory_runs_out() {
    let configuration =
        Configuration { memory: 1 << 20, out_of_memory_at: Some(3), ..Configuration::default() };
    configured(configuration, |_| {
        let context = untracked(0);
        let stream = context.default_stream();
        let large = stream.alloc_zeros::<u8>(1 << 19).expect("it fits");
        assert_eq!(error(stream.alloc_zeros::<u8>((1 << 19) + 1)), Some(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(error(stream.alloc_zeros::<u8>(1)), Some(CUDA_ERROR_OUT_OF_MEMORY), "it is the third");
        drop(large);
        stream.alloc_zeros::<u8>(1 << 20).expect("its freeing is ordered before");
        stream.synchronize().expect("nothing is wrong");
        assert_eq!(context.mem_get_info(), Ok((1 << 20, 1 << 20)));
    });
}

#[test]
fn addresses_are_checked() {
    on_device(|driver, context| {
        let stream = context.default_stream();
        let device = stream.alloc_zeros::<u32>(4).expect("there is memory");
        let begin = address(&device, &stream);
        // SAFETY: the driver refuses all of these.
        unsafe {
            assert_eq!(error(result::memcpy_htod_sync(begin, &[0_u32; 5])), Some(CUDA_ERROR_INVALID_VALUE));
            assert!(driver.report().contains("no destination"), "{}", driver.report());
            assert_eq!(error(result::memset_d8_sync(begin + 16, 0, 1)), Some(CUDA_ERROR_INVALID_VALUE));
            assert!(driver.report().contains("0 bytes behind the end of 16 bytes, allocation 1"));
            assert_eq!(error(result::free_sync(begin + 4)), Some(CUDA_ERROR_INVALID_VALUE));
            assert_eq!(error(result::memcpy_dtoh_sync(&mut [0_u8], 4096)), Some(CUDA_ERROR_INVALID_VALUE));
            let as_host = begin as *const std::ffi::c_void;
            assert_eq!(sys::cuMemcpyHtoD_v2(begin, as_host, 16), CUDA_ERROR_INVALID_VALUE);
            assert!(driver.report().contains("is given as a host pointer but is byte 0 of"));
        }
        assert_eq!(stream.clone_dtoh(&device), Ok(vec![0; 4]), "nothing was done");
    });
}

#[test]
fn synchronous_copies_wait_as_the_manual_says() {
    on_device(|driver, context| {
        let stream = context.default_stream();
        let device = stream.alloc_zeros::<u32>(4).expect("there is memory");
        let begin = address(&device, &stream);
        // SAFETY: it is written before it is read.
        let mut pinned = unsafe { context.alloc_pinned_with_flags::<u32>(4, 0) }.expect("there is memory");
        pinned.as_mut_slice().expect("nothing is queued").copy_from_slice(&[5, 6, 7, 8]);
        let pinned = pinned.as_mut_slice().expect("nothing is queued");
        // SAFETY: all are four values of the allocation.
        unsafe {
            result::memcpy_htod_sync(begin, &[1, 2, 3, 4]).expect("it is inside");
            assert_eq!(driver.counters().pending, 1, "a copy of pageable memory is staged");
            result::memcpy_dtoh_sync(pinned, begin).expect("it is inside");
            assert_eq!((&*pinned, driver.counters().pending), (&[1, 2, 3, 4][..], 0));
            pinned[0] = 9;
            result::memcpy_htod_sync(begin, pinned).expect("it is inside");
            assert_eq!(driver.counters().pending, 0, "one of pinned memory is done");
            result::memcpy_dtod_sync(begin + 4, begin, 4).expect("it is inside");
            assert_eq!(driver.counters().pending, 1, "one on the device comes when it comes");
        }
        assert_eq!(stream.clone_dtoh(&device), Ok(vec![9, 9, 3, 4]));
    });
}

#[test]
fn memsets_take_values_of_one_two_and_four_bytes() {
    on_device(|driver, context| {
        let stream = context.default_stream();
        let device = stream.alloc_zeros::<u32>(4).expect("there is memory");
        let begin = address(&device, &stream);
        // SAFETY: all are inside of the allocation, or refused.
        unsafe {
            assert_eq!(sys::cuMemsetD32_v2(begin, 0x0102_0304, 2), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuMemsetD16_v2(begin + 8, 0x0506, 2), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuMemsetD8_v2(begin + 12, 7, 4), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuMemsetD32Async(begin + 2, 0, 1, stream.cu_stream()), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(sys::cuMemsetD32Async(begin + 12, 0, 2, stream.cu_stream()), CUDA_ERROR_INVALID_VALUE);
        }
        assert!(driver.counters().pending > 0, "they wait for nothing");
        let expected = vec![0x0102_0304, 0x0102_0304, 0x0506_0506, 0x0707_0707];
        assert_eq!(stream.clone_dtoh(&device), Ok(expected));
    });
}

#[test]
fn contexts_and_streams_keep_their_settings() {
    on_device(|_, context| {
        let limit = sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;
        context.set_limit(limit, 1 << 20).expect("it is a limit");
        assert_eq!(context.get_limit(limit), Ok(1 << 20));
        let cache = sys::CUfunc_cache::CU_FUNC_CACHE_PREFER_SHARED;
        context.set_cache_config(cache).expect("it is a choice");
        assert_eq!(context.get_cache_config(), Ok(cache));
        context.set_blocking_synchronize().expect("it is a flag");
        assert_eq!(result::stream::get_priority_range(), Ok((0, -5)));
        let stream = context.new_stream_with_priority(-9).expect("it is clamped");
        let (mut priority, mut flags) = (0, 0);
        // SAFETY: the pointers are valid.
        unsafe {
            sys::cuStreamGetPriority(stream.cu_stream(), &mut priority).result().expect("it is a stream");
            sys::cuStreamGetFlags(stream.cu_stream(), &mut flags).result().expect("it is a stream");
        }
        assert_eq!((priority, flags), (-5, 1));
        assert_eq!(stream.capture_status(), Ok(sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE));
    });
}

#[test]
fn memory_comes_from_the_default_pool() {
    on_device(|_, context| {
        let stream = context.new_stream().expect("streams are free");
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let (mut threshold, mut used) = (1_u64 << 20, 0_u64);
        // SAFETY: the pool is the device's, and the attributes are 64-bit numbers.
        unsafe {
            let pool = result::device::get_default_mem_pool(0).expect("there is one");
            result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast())
                .expect("it can be set");
            threshold = 0;
            result::mem_pool::get_attribute(pool, attribute, (&raw mut threshold).cast())
                .expect("it is known");
            let memory =
                result::mem_pool::alloc_async(pool, 100, stream.cu_stream()).expect("there is memory");
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
            result::mem_pool::get_attribute(pool, attribute, (&raw mut used).cast()).expect("it is known");
            result::mem_pool::trim_to(pool, 0).expect("it is a pool");
            result::free_async(memory, stream.cu_stream()).expect("it is an allocation");
        }
        assert_eq!((threshold, used), (1 << 20, 100));
        stream.synchronize().expect("nothing is wrong");
    });
}

#[test]
fn nothing_is_memory_of_no_bytes() {
    on_device(|_, context| {
        let stream = context.new_stream().expect("streams are free");
        let none = stream.null::<u32>().expect("no memory is needed");
        assert_eq!(stream.clone_dtoh(&none), Ok(vec![]));
        drop(none);
        // SAFETY: the driver refuses it.
        assert_eq!(error(unsafe { result::malloc_sync(0) }), Some(CUDA_ERROR_INVALID_VALUE));
        context.check_err().expect("its freeing was no error");
    });
}

#[test]
fn freed_memory_is_named() {
    on_device(|driver, context| {
        let stream = context.new_stream().expect("streams are free");
        let begin = stream.alloc_zeros::<u32>(4).expect("there is memory").leak();
        // SAFETY: the driver refuses the second freeing.
        let twice = unsafe { [0, 1].map(|_| result::free_async(begin, stream.cu_stream())) };
        assert_eq!(twice.map(error), [None, Some(CUDA_ERROR_INVALID_VALUE)]);
        assert!(driver.report().contains("is freed already"), "{}", driver.report());
        stream.synchronize().expect("nothing is wrong");
        // SAFETY: the driver refuses it.
        let copy = unsafe { result::memcpy_dtoh_sync(&mut [0_u32; 4], begin) };
        assert_eq!(error(copy), Some(CUDA_ERROR_INVALID_VALUE));
        assert!(driver.report().contains("freed memory: 16 bytes, allocation 1"), "{}", driver.report());
    });
}

#[test]
fn memory_freed_before_its_last_use_is_an_error() {
    on_device(|driver, context| {
        let [first, second] = [0, 1].map(|_| context.new_stream().expect("streams are free"));
        let mut device = first.alloc_zeros::<u32>(4).expect("there is memory");
        first.synchronize().expect("nothing is wrong");
        second.memset_zeros(&mut device).expect("it is inside");
        drop(device);
        first.synchronize().expect("nothing is wrong");
        assert_eq!(error(second.synchronize()), Some(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert!(driver.report().contains("after it was freed"), "{}", driver.report());
    });
}

#[test]
fn memory_used_before_its_allocation_is_an_error_that_stays() {
    on_device(|driver, context| {
        let [first, second] = [0, 1].map(|_| context.new_stream().expect("streams are free"));
        let mut device = first.alloc_zeros::<u32>(4).expect("there is memory");
        second.memset_zeros(&mut device).expect("it is inside");
        assert_eq!(error(second.synchronize()), Some(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert!(driver.report().contains("before its stream comes to its allocation"), "{}", driver.report());
        assert_eq!(error(context.synchronize()), Some(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert_eq!(error(first.alloc_zeros::<u32>(4)), Some(CUDA_ERROR_ILLEGAL_ADDRESS));
    });
}

#[test]
fn freeing_at_once_waits_for_the_device() {
    on_device(|_, context| {
        let stream = context.new_stream().expect("streams are free");
        let device = stream.clone_htod(&[1_u32, 2, 3, 4]).expect("there is memory");
        // SAFETY: it is written before it is read.
        let mut pinned = unsafe { context.alloc_pinned_with_flags::<u32>(4, 0) }.expect("there is memory");
        pinned.as_mut_slice().expect("nothing is queued").fill(0);
        copy_later(pinned.as_mut_ptr().expect("nothing is queued"), &device, &stream).expect("it is inside");
        // SAFETY: it was leaked, so that nothing else frees it.
        unsafe { result::free_sync(device.leak()) }.expect("it is an allocation");
        assert_eq!(pinned.as_slice().expect("its event is unused"), [1, 2, 3, 4]);
    });
}

#[test]
fn a_device_can_have_no_memory_pools() {
    configured(Configuration { memory_pools: false, ..Configuration::default() }, |_| {
        let context = untracked(0);
        assert!(!context.has_async_alloc());
        let stream = context.default_stream();
        let device = stream.clone_htod(&[1_u32; 4]).expect("there is memory");
        assert_eq!(stream.clone_dtoh(&device), Ok(vec![1; 4]));
        // SAFETY: the driver refuses it.
        let ordered = unsafe { result::malloc_async(stream.cu_stream(), 4) };
        assert_eq!(error(ordered), Some(CUDA_ERROR_NOT_SUPPORTED));
    });
}

/// What a stream sees of another's memset that nothing orders before it, when work runs at random times.
fn race(seed: u64) -> u32 {
    let configuration = Configuration { streams: Streams::Random, seed, ..Configuration::default() };
    configured(configuration, |_| {
        let context = untracked(0);
        let [first, second] = [0, 1].map(|_| context.new_stream().expect("streams are free"));
        let mut device = first.clone_htod(&[1_u32]).expect("there is memory");
        first.synchronize().expect("nothing is wrong");
        first.memset_zeros(&mut device).expect("it is inside");
        let seen = second.clone_dtoh(&device).expect("it is live")[0];
        second.join(&first).expect("events are free");
        assert_eq!(second.clone_dtoh(&device), Ok(vec![0]), "the event orders it, seed {seed}");
        seen
    })
}

#[test]
fn work_at_random_times_is_ordered_by_events_only() {
    let seen: Vec<u32> = (0..32).map(race).collect();
    assert!(seen.contains(&0) && seen.contains(&1), "{seen:?}");
    assert_eq!(seen, (0..32).map(race).collect::<Vec<u32>>(), "a seed always gives the same");
}

#[test]
fn threads_share_a_device() {
    on_device(|driver, context| {
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let context = context.clone();
                scope.spawn(move || {
                    let stream = context.new_stream().expect("streams are free");
                    for round in 0..50 {
                        let values = vec![1000 * thread + round; 100];
                        let device = stream.clone_htod(&values).expect("there is memory");
                        let copy = stream.clone_dtod(&device).expect("there is memory");
                        assert_eq!(stream.clone_dtoh(&copy), Ok(values));
                    }
                });
            }
        });
        context.synchronize().expect("nothing is wrong");
        assert_eq!(driver.counters().live_allocations, 0);
    });
}

#[test]
fn copies_go_between_devices() {
    configured(Configuration { devices: 2, ..Configuration::default() }, |_| {
        let [first, second] = [0, 1].map(|device| CudaContext::new(device).expect("there are two"));
        let event = first.new_event(None).expect("events are free");
        let [first, second] = [first, second].map(|context| context.new_stream().expect("streams are free"));
        // SAFETY: the driver refuses it.
        let other = unsafe { result::event::record(event.cu_event(), second.cu_stream()) };
        assert_eq!(error(other), Some(CUDA_ERROR_INVALID_HANDLE));
        let from = first.clone_htod(&[1_u32, 2, 3]).expect("there is memory");
        let to = second.clone_dtod(&from).expect("there is memory");
        assert_eq!(second.clone_dtoh(&to), Ok(vec![1, 2, 3]));
    });
}

#[test]
fn a_call_that_is_missing_names_itself() {
    on_device(|driver, _| {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the mock driver touches nothing.
        let result = unsafe { sys::cuGraphCreate(&mut graph, 0) };
        assert_eq!(result, CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(driver.report(), "mock CUDA driver: cuGraphCreate: this call is not supported");
    });
}
