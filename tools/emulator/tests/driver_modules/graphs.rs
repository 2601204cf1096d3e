//! The mock driver's stream capture and graphs, through unmodified cudarc and the calls below it.

use std::ptr;
use std::sync::Arc;
use std::thread;

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError, result,
    sys,
};
use setrank_emulator::driver::{Configuration, Counters, Driver, Streams};
use sys::CUgraphExecUpdateResult_enum as Update;
use sys::CUgraphInstantiate_flags as Flags;
use sys::CUresult::{
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_MERGE, CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
};
use sys::CUstreamCaptureMode::{
    self as Mode, CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as LOCAL,
};

use super::{AddOne, add_one, blocks, configured, error, four_values, launch, load_kernel};

/// A stream, the kernel, loaded, and four values: `output` = `input` + 1.
struct Bench {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    function: CudaFunction,
    input: CudaSlice<f32>,
    output: CudaSlice<f32>,
    parameter: AddOne,
}

impl Bench {
    fn new(context: Arc<CudaContext>) -> Self {
        let stream = context.new_stream().expect("streams are free");
        let function = load_kernel(&context, add_one()).expect("it runs on the card");
        let (input, output, parameter) = four_values(&stream);
        stream.synchronize().expect("nothing is wrong");
        Bench { context, stream, function, input, output, parameter }
    }

    /// output = input + 1.
    fn add_one(&self, stream: &CudaStream) -> Result<(), DriverError> {
        launch(stream, &self.function, &self.parameter, blocks(1, 32, 0))
    }

    fn begin(&self, mode: Mode) {
        self.stream.begin_capture(mode).expect("nothing is captured yet");
    }

    fn end(&self) -> Result<CudaGraph, DriverError> {
        self.stream.end_capture(Flags(0)).map(|graph| graph.expect("a valid capture gives a graph"))
    }

    fn capture(&self, queue: impl FnOnce(&CudaStream)) -> CudaGraph {
        self.begin(LOCAL);
        queue(&self.stream);
        self.end().expect("nothing forbidden was done")
    }

    fn output(&self) -> Vec<f32> {
        self.stream.clone_dtoh(&self.output).expect("it is there")
    }

    fn status(&self) -> sys::CUstreamCaptureStatus {
        self.stream.capture_status().expect("the stream is there")
    }

    fn event(&self) -> CudaEvent {
        self.context.new_event(None).expect("events are free")
    }
}

fn on_bench<R>(run: impl FnOnce(&Driver, Bench) -> R) -> R {
    configured(Configuration::default(), |driver, context| run(driver, Bench::new(context)))
}

fn update(exec: &CudaGraph, graph: &CudaGraph) -> (sys::CUresult, Update) {
    let mut info = sys::CUgraphExecUpdateResultInfo_st {
        result: Update::CU_GRAPH_EXEC_UPDATE_ERROR,
        errorNode: ptr::null_mut(),
        errorFromNode: ptr::null_mut(),
    };
    // SAFETY: both graphs are alive.
    let result = unsafe { sys::cuGraphExecUpdate_v2(exec.cu_graph_exec(), graph.cu_graph(), &mut info) };
    assert_eq!(info.errorFromNode, ptr::null_mut());
    (result, info.result)
}

fn nodes(graph: &CudaGraph) -> usize {
    let mut count = 0;
    // SAFETY: the graph is alive; nothing but the number is asked for.
    let result = unsafe { sys::cuGraphGetNodes(graph.cu_graph(), ptr::null_mut(), &mut count) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    count
}

#[test]
fn what_is_captured_runs_when_its_graph_is_launched() {
    on_bench(|driver, bench| {
        let mut parameter = bench.parameter;
        let graph = bench.capture(|stream| {
            assert_eq!(bench.status(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            launch(stream, &bench.function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
            // The parameter was copied.
            parameter.output = 0;
            std::hint::black_box(&parameter);
        });
        assert_eq!(bench.status(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(nodes(&graph), 1);
        assert_eq!((driver.counters().launches, driver.counters().pending), (0, 0));
        assert_eq!(bench.output(), [0.0; 4]);
        graph.upload().expect("it may be");
        graph.launch().expect("it is instantiated");
        graph.launch().expect("it may be launched while it runs");
        assert_eq!(driver.counters().pending, 3);
        assert_eq!(bench.output(), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!((driver.counters().launches, driver.counters().graph_launches), (2, 2));
    });
}

#[test]
fn copies_and_memsets_are_nodes_too() {
    on_bench(|driver, mut bench| {
        // SAFETY: it is written before it is read.
        let mut pinned =
            unsafe { bench.context.alloc_pinned_with_flags::<f32>(4, 0) }.expect("there is memory");
        pinned.as_mut_slice().expect("nothing is queued").fill(7.0);
        let (to, stream) = (bench.input.device_ptr(&bench.stream).0, bench.stream.clone());
        let values = pinned.as_slice().expect("nothing is queued");
        let before = driver.counters();
        bench.begin(LOCAL);
        // SAFETY: pinned memory stays until the end.
        unsafe { result::memcpy_htod_async(to, values, stream.cu_stream()) }.expect("it is pinned");
        bench.add_one(&stream).expect("it is allowed");
        stream.memcpy_dtod(&bench.output, &mut bench.input).expect("it is inside");
        stream.memset_zeros(&mut bench.output.slice_mut(..2)).expect("it is inside");
        let graph = bench.end().expect("nothing forbidden was done");
        let captured = Counters { graph_instances: 1, live_graph_instances: 1, ..before };
        assert_eq!((nodes(&graph), driver.counters()), (4, captured));
        graph.launch().expect("it is instantiated");
        assert_eq!(bench.output(), [0.0, 0.0, 8.0, 8.0]);
        let after = driver.counters();
        assert_eq!(after.bytes_to_device - before.bytes_to_device, 16);
        assert_eq!(after.bytes_on_device - before.bytes_on_device, 16);
        assert_eq!(after.bytes_set - before.bytes_set, 8);
        // The memory is read when the graph runs.
        pinned.as_mut_slice().expect("nothing is queued").fill(1.0);
        graph.launch().expect("it is instantiated");
        assert_eq!(bench.output(), [0.0, 0.0, 2.0, 2.0]);
    });
}

#[test]
fn an_update_changes_what_is_launched_from_then_on() {
    on_bench(|_, bench| {
        let graph = bench.capture(|stream| bench.add_one(stream).expect("it is allowed"));
        graph.launch().expect("it is instantiated");
        // Other parameters and another grid.
        let parameter = AddOne { count: 2, input: bench.parameter.output, ..bench.parameter };
        let other = bench.capture(|stream| {
            launch(stream, &bench.function, &parameter, blocks(2, 64, 0)).expect("it is allowed");
        });
        assert_eq!(
            update(&graph, &other),
            (sys::CUresult::CUDA_SUCCESS, Update::CU_GRAPH_EXEC_UPDATE_SUCCESS)
        );
        drop(other);
        graph.launch().expect("it is instantiated");
        drop(graph);
        assert_eq!(bench.output(), [3.0, 4.0, 4.0, 5.0]);
    });
}

#[test]
fn another_topology_is_no_update() {
    on_bench(|_, mut bench| {
        let one = bench.capture(|stream| bench.add_one(stream).expect("it is allowed"));
        let two = bench.capture(|stream| {
            bench.add_one(stream).expect("it is allowed");
            bench.add_one(stream).expect("it is allowed");
        });
        let mut memset = |count| {
            bench.begin(LOCAL);
            bench.stream.memset_zeros(&mut bench.output.slice_mut(..count)).expect("it is inside");
            bench.end().expect("nothing forbidden was done")
        };
        let (two_values, three_values) = (memset(2), memset(3));
        for (graph, found) in [
            (&two, Update::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED),
            (&two_values, Update::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED),
        ] {
            assert_eq!(update(&one, graph), (CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, found));
        }
        let resized =
            (CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, Update::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
        assert_eq!(update(&two_values, &three_values), resized);
        one.launch().expect("it is as it was");
        assert_eq!(bench.output(), [2.0, 3.0, 4.0, 5.0]);
    });
}

/// Runs `forbidden` in the middle of a capture, which has to be refused by `code`, and to make the capture invalid.
#[track_caller]
fn refused<T>(bench: &Bench, code: sys::CUresult, forbidden: impl FnOnce(&Bench) -> Result<T, DriverError>) {
    bench.begin(LOCAL);
    bench.add_one(&bench.stream).expect("it is allowed");
    assert_eq!(error(forbidden(bench)), Some(code));
    assert_eq!(bench.status(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    assert_eq!(error(bench.add_one(&bench.stream)), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(error(bench.end()), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    // Afterwards the stream is as good as before.
    bench.stream.synchronize().expect("nothing is captured any more");
    bench.capture(|stream| bench.add_one(stream).expect("it is allowed")).launch().expect("it is valid");
}

#[test]
fn nothing_waits_while_a_stream_is_captured() {
    on_bench(|driver, bench| {
        const UNSUPPORTED: sys::CUresult = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        refused(&bench, UNSUPPORTED, |bench| bench.stream.synchronize());
        assert!(
            driver.report().contains("an earlier mistake made the capture invalid"),
            "{}",
            driver.report()
        );
        refused(&bench, UNSUPPORTED, |bench| bench.context.synchronize());
        refused(&bench, UNSUPPORTED, |bench| {
            // SAFETY: the stream is alive.
            unsafe { sys::cuStreamQuery(bench.stream.cu_stream()) }.result()
        });
        let other = bench.context.new_stream().expect("streams are free");
        refused(&bench, UNSUPPORTED, |_| other.synchronize());
        let event = bench.event();
        event.record(&other).expect("nothing is captured");
        refused(&bench, UNSUPPORTED, |_| event.synchronize());
        // SAFETY: the event is alive.
        refused(&bench, UNSUPPORTED, |_| unsafe { result::event::query(event.cu_event()) });
    });
}

#[test]
fn nothing_is_allocated_or_loaded_while_a_stream_is_captured() {
    on_bench(|_, bench| {
        const UNSUPPORTED: sys::CUresult = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        // SAFETY: nothing is allocated, and nothing freed.
        unsafe {
            refused(&bench, UNSUPPORTED, |_| result::malloc_sync(16));
            refused(&bench, UNSUPPORTED, |bench| result::malloc_async(bench.stream.cu_stream(), 16));
            refused(&bench, UNSUPPORTED, |bench| result::free_sync(bench.parameter.input));
            refused(&bench, UNSUPPORTED, |bench| {
                result::free_async(bench.parameter.input, bench.stream.cu_stream())
            });
            refused(&bench, UNSUPPORTED, |_| result::malloc_host(16, 0));
        }
        refused(&bench, UNSUPPORTED, |bench| load_kernel(&bench.context, add_one()));
    });
}

#[test]
fn copies_of_pageable_memory_are_not_captured() {
    on_bench(|_, bench| {
        let (address, values) = (bench.parameter.input, [1.0_f32; 4]);
        let mut read = [0.0_f32; 4];
        refused(&bench, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |bench| {
            // SAFETY: the driver refuses it.
            unsafe { result::memcpy_htod_async(address, &values, bench.stream.cu_stream()) }
        });
        refused(&bench, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |bench| {
            // SAFETY: as above.
            unsafe { result::memcpy_dtoh_async(&mut read, address, bench.stream.cu_stream()) }
        });
        // SAFETY: as above.
        refused(&bench, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |_| unsafe {
            result::memcpy_htod_sync(address, &values)
        });
        // SAFETY: as above.
        refused(&bench, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, |_| unsafe {
            result::memcpy_dtoh_sync(&mut read, address)
        });
    });
}

#[test]
fn events_do_not_cross_the_border_of_a_capture() {
    on_bench(|_, bench| {
        let (outside, inside) = (bench.event(), bench.event());
        outside.record(&bench.stream).expect("nothing is captured");
        bench.stream.synchronize().expect("nothing is captured");
        refused(&bench, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, |bench| bench.stream.wait(&outside));
        for ended in [false, true] {
            for host in [true, false] {
                bench.begin(LOCAL);
                inside.record(&bench.stream).expect("it is a mark in the capture");
                if ended {
                    bench.end().expect("nothing forbidden was done");
                }
                // SAFETY: the event is alive.
                let query = || unsafe { result::event::query(inside.cu_event()) };
                let refused = if host { inside.synchronize() } else { query() };
                assert_eq!(error(refused), Some(CUDA_ERROR_CAPTURED_EVENT));
                if !ended {
                    assert_eq!(error(bench.end()), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
                }
            }
        }
        assert_eq!(error(inside.elapsed_ms(&outside)), Some(CUDA_ERROR_CAPTURED_EVENT));
        assert_eq!(error(bench.stream.wait(&inside)), Some(CUDA_ERROR_CAPTURED_EVENT));
        inside.record(&bench.stream).expect("nothing is captured");
        inside.synchronize().expect("it was recorded anew");
    });
}

/// Captures a fork: `stream` adds one to the output's first two values while `other` does to the input's last two.
fn fork(bench: &Bench, other: &CudaStream, join: bool) -> Result<CudaGraph, DriverError> {
    let Bench { stream, function, parameter, .. } = bench;
    let half = |stream: &CudaStream, from: u64, to: u64| {
        let parameter = AddOne { input: from, output: to, count: 2, unused: 0 };
        launch(stream, function, &parameter, blocks(1, 32, 0)).expect("it is allowed");
    };
    bench.begin(LOCAL);
    bench.add_one(stream).expect("it is allowed");
    let (forked, joined) = (bench.event(), bench.event());
    forked.record(stream).expect("it is a mark in the capture");
    other.wait(&forked).expect("it joins the capture");
    half(other, parameter.input + 8, parameter.input + 8);
    half(stream, parameter.output, parameter.output);
    if join {
        joined.record(other).expect("it is a mark in the capture");
        stream.wait(&joined).expect("it is of the same capture");
    }
    bench.end()
}

#[test]
fn other_streams_join_a_capture_by_events() {
    for streams in [Streams::Lazy, Streams::Random] {
        configured(Configuration { streams, ..Configuration::default() }, |_, context| {
            let bench = Bench::new(context);
            let other = bench.context.new_stream().expect("streams are free");
            let graph = fork(&bench, &other, true).expect("all is joined");
            assert_eq!(nodes(&graph), 3);
            other.synchronize().expect("its capture has ended");
            graph.launch().expect("it is instantiated");
            assert_eq!(bench.output(), [3.0, 4.0, 4.0, 5.0]);
            assert_eq!(bench.stream.clone_dtoh(&bench.input), Ok(vec![1.0, 2.0, 4.0, 5.0]));
        });
    }
}

#[test]
fn a_capture_ends_where_it_began_and_with_all_that_joined_it() {
    on_bench(|_, bench| {
        let other = bench.context.new_stream().expect("streams are free");
        assert_eq!(error(fork(&bench, &other, false)), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
        other.synchronize().expect("its capture has ended");
        bench.stream.synchronize().expect("its capture has ended");

        let forked = bench.event();
        bench.begin(LOCAL);
        forked.record(&bench.stream).expect("it is a mark in the capture");
        other.wait(&forked).expect("it joins the capture");
        let wrong = other.end_capture(Flags(0)).map(|_| ());
        assert_eq!(error(wrong), Some(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
        assert_eq!(error(bench.end()), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));

        bench.begin(LOCAL);
        forked.record(&bench.stream).expect("it is a mark in the capture");
        // SAFETY: the stream is not used when it is gone.
        unsafe {
            let gone = result::stream::create(StreamKind::NonBlocking).expect("streams are free");
            let joins = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(gone, forked.cu_event(), joins).expect("it joins the capture");
            result::stream::destroy(gone).expect("streams may go");
        }
        assert_eq!(error(bench.end()), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));

        bench.begin(LOCAL);
        other.begin_capture(LOCAL).expect("it is another one");
        forked.record(&other).expect("it is a mark in the other capture");
        assert_eq!(error(bench.stream.wait(&forked)), Some(CUDA_ERROR_STREAM_CAPTURE_MERGE));
        for stream in [&bench.stream, &other] {
            let ended = stream.end_capture(Flags(0)).map(|_| ());
            assert_eq!(error(ended), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
    });
}

#[test]
fn captures_begin_and_end_once() {
    on_bench(|_, bench| {
        assert_eq!(error(bench.end()), Some(CUDA_ERROR_ILLEGAL_STATE));
        bench.begin(LOCAL);
        assert_eq!(error(bench.stream.begin_capture(LOCAL)), Some(CUDA_ERROR_ILLEGAL_STATE));
        let empty = bench.end().expect("nothing forbidden was done");
        assert_eq!(nodes(&empty), 0);
        empty.launch().expect("it does nothing");
        let legacy = bench.context.default_stream();
        assert_eq!(error(legacy.begin_capture(LOCAL)), Some(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    });
}

#[test]
fn the_legacy_stream_does_not_wait_for_a_capture() {
    on_bench(|_, bench| {
        let begin = |kind| {
            let raw = result::stream::create(kind).expect("streams are free");
            // SAFETY: the stream was made just now.
            unsafe { result::stream::begin_capture(raw, RELAXED) }.expect("nothing is captured yet");
            raw
        };
        let set = || {
            // SAFETY: the memory is the bench's.
            unsafe { result::memset_d8_async(bench.parameter.input, 0, 16, ptr::null_mut()) }
        };
        begin(StreamKind::NonBlocking);
        set().expect("the two have nothing to do with one another");
        let blocking = begin(StreamKind::Default);
        assert_eq!(error(set()), Some(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
        // SAFETY: the stream is alive.
        let ended = unsafe { result::stream::end_capture(blocking) };
        assert_eq!(error(ended), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    });
}

#[test]
fn modes_say_which_threads_may_wait() {
    // What the capturing thread, and what another one may do.
    for (mode, own, others) in [(GLOBAL, false, false), (LOCAL, false, true), (RELAXED, true, true)] {
        on_bench(|_, bench| {
            let refused = Some(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            let allocate = || {
                // SAFETY: it is freed at once.
                error(unsafe { result::malloc_sync(16) })
            };
            bench.begin(mode);
            assert_eq!(allocate(), if own { None } else { refused }, "{mode:?}");
            let _ = bench.end();
            bench.begin(mode);
            thread::scope(|scope| {
                let other = scope.spawn(|| {
                    bench.context.bind_to_thread().expect("it is there");
                    (allocate(), error(bench.end()))
                });
                let (allocated, ended) = other.join().expect("it does not panic");
                assert_eq!(allocated, if others { None } else { refused }, "{mode:?}");
                let wrong = (mode != RELAXED).then_some(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
                assert_eq!(ended, wrong, "{mode:?}");
            });
        });
    }
}

#[test]
fn a_graph_is_none_of_another_and_outlives_its_memory_badly() {
    on_bench(|driver, bench| {
        let graph = bench.capture(|stream| bench.add_one(stream).expect("it is allowed"));
        bench.begin(LOCAL);
        assert_eq!(error(graph.launch()), Some(CUDA_ERROR_NOT_SUPPORTED));
        assert_eq!(error(bench.end()), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        let Bench { output, .. } = bench;
        drop(output);
        stream_is_done(&graph, CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(driver.report().contains("launch 1 (of a graph)"), "{}", driver.report());
    });

    fn stream_is_done(graph: &CudaGraph, code: sys::CUresult) {
        graph.launch().expect("nobody knows yet");
        // SAFETY: it takes nothing.
        assert_eq!(unsafe { sys::cuCtxSynchronize() }, code);
    }
}

#[test]
fn kernels_of_a_graph_fail_as_they_are_told_to() {
    for (code, at_once) in [(719, false), (2, true)] {
        let configuration =
            Configuration { launch_fails_at: Some(3), launch_error: code, ..Configuration::default() };
        configured(configuration, |driver, context| {
            let bench = Bench::new(context);
            let graph = bench.capture(|stream| {
                bench.add_one(stream).expect("it is only captured");
                bench.add_one(stream).expect("it is only captured");
            });
            graph.launch().expect("nothing fails yet");
            assert_eq!(error(graph.launch()), at_once.then_some(CUDA_ERROR_OUT_OF_MEMORY));
            let fault = (!at_once).then_some(CUDA_ERROR_LAUNCH_FAILED);
            assert_eq!(error(bench.stream.synchronize()), fault);
            let told = "kernel add_one, launch 3 (of a graph), grid (1, 1, 1)";
            assert!(driver.report().contains(told), "{}", driver.report());
        });
    }
}

#[test]
fn graphs_end_once_and_take_no_unknown_flags() {
    on_bench(|driver, bench| {
        bench.begin(LOCAL);
        bench.add_one(&bench.stream).expect("it is allowed");
        // SAFETY: the handles are those that the driver gives; what is refused is touched by nobody.
        unsafe {
            let graph = result::stream::end_capture(bench.stream.cu_stream()).expect("nothing is wrong");
            for (flags, code) in [
                (16, CUDA_ERROR_INVALID_VALUE),
                (1 | 4, CUDA_ERROR_INVALID_VALUE),
                (4, CUDA_ERROR_NOT_SUPPORTED),
            ] {
                assert_eq!(error(result::graph::instantiate(graph, Flags(flags))), Some(code));
            }
            let exec = result::graph::instantiate(graph, Flags(8)).expect("it is a flag");
            result::graph::destroy(graph).expect("what was made of it stays");
            assert_eq!(error(result::graph::destroy(graph)), Some(CUDA_ERROR_INVALID_VALUE));
            result::graph::launch(exec, bench.stream.cu_stream()).expect("it is there");
            result::graph::exec_destroy(exec).expect("what was launched runs on");
            assert_eq!(error(result::graph::exec_destroy(exec)), Some(CUDA_ERROR_INVALID_VALUE));
            let launched = result::graph::launch(exec, bench.stream.cu_stream());
            assert_eq!(error(launched), Some(CUDA_ERROR_INVALID_VALUE));
        }
        assert_eq!(bench.output(), [2.0, 3.0, 4.0, 5.0]);
        let counters = driver.counters();
        assert_eq!(
            (counters.graph_launches, counters.graph_instances, counters.live_graph_instances),
            (1, 1, 0)
        );
    });
}
