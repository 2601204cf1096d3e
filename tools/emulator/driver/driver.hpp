// The driver's state, and what every call begins and ends with. One lock is held during each call, so that nothing
// below the calls knows of threads.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "card.hpp"
#include "configuration.hpp"
#include "cuda.hpp"
#include "emulator.h"
#include "image.hpp"
#include "mock.h"

namespace mock {

// Why a call ends early; it is thrown below the calls, and each call gives its code.
struct Failure {
    CUresult code;
};

struct Capture;

// A piece of work that a stream was given.
struct Operation {
    Stream *stream;
    // Work of other streams that comes first.
    std::vector<std::shared_ptr<Operation>> after;
    std::function<CUresult()> run;
    bool done = false;
    std::chrono::steady_clock::time_point finished;
};

struct Stream {
    Context *context;
    // Whether it keeps the order of the legacy default stream.
    bool blocking;
    int priority;
    // Whether the program still holds it; its work outlives it.
    bool held = true;
    std::deque<std::shared_ptr<Operation>> queue;
    // What it was given last, while that has not run.
    std::shared_ptr<Operation> last;
    // The capture that it is part of, if any, and the nodes there that its next work comes after.
    std::shared_ptr<Capture> capture = nullptr;
    std::vector<size_t> captured = {};
};

struct Event {
    Context *context;
    unsigned flags;
    // Its latest record, if any; or, where that was captured, the capture and the nodes that come before it.
    std::shared_ptr<Operation> record;
    std::shared_ptr<Capture> capture = nullptr;
    std::vector<size_t> captured = {};
};

struct Allocation {
    enum State { ORDERED, LIVE, FREED };

    CUdeviceptr address;
    uint64_t bytes;
    Device *device;
    // Its number, counted from 1 over all devices.
    uint64_t number;
    // The call that made it.
    const char *made_by;
    // ORDERED until the stream that it was asked of comes to it.
    State state;
    bool free_ordered = false;
};

struct Module {
    Context *context;
    Image image;
};

struct Function {
    Context *context;
    Module *module;
    ImageKernel description;
    const EmuKernel *kernel;
    // Bytes of dynamic shared memory that it may be launched with.
    int max_dynamic_shared;
};

struct Context {
    Device *device;
    unsigned flags = 0;
    int cache_config = 0;
    // The legacy default stream.
    std::unique_ptr<Stream> legacy;
    // Streams that were made, and those of a thread each; gone when the program let go of them and they are empty.
    std::vector<std::unique_ptr<Stream>> streams;
    std::map<std::thread::id, Stream *> thread_streams;
    std::map<Event *, std::unique_ptr<Event>> events;
    std::map<Module *, std::unique_ptr<Module>> modules;
    // Functions live as long as work needs them, also when their module is unloaded.
    std::map<Function *, std::shared_ptr<Function>> functions;
    std::map<Graph *, std::shared_ptr<Graph>> graphs;
    std::map<GraphExec *, std::shared_ptr<GraphExec>> graph_execs;
    size_t limits[3] = {1024, 1 << 20, 8 << 20};
};

struct Device {
    int ordinal;
    EmuMemory *memory;
    // The primary context, while it is retained.
    std::unique_ptr<Context> context;
    int retained = 0;
    unsigned primary_flags = 0;
    // What a kernel did wrong, or 0. As the manual says, only a new process gets rid of it (or mockReset).
    CUresult fault = CUDA_SUCCESS;
    uint64_t release_threshold = 0;
};

struct Driver {
    std::mutex lock;
    Configuration configuration;
    // Whether mockConfigure was called, and what is wrong with the configuration.
    bool configured = false;
    std::string configuration_error;
    bool initialized = false;
    std::vector<std::unique_ptr<Device>> devices;
    std::map<CUdeviceptr, std::shared_ptr<Allocation>> allocations;
    // What freed memory was, by its address, to name it when it is used.
    std::map<CUdeviceptr, std::shared_ptr<Allocation>> freed;
    // Pinned host memory: where it begins, its context, its bytes, and whether the driver allocated it.
    struct Pinned {
        const Context *context;
        size_t bytes;
        bool allocated;
    };
    std::map<uintptr_t, Pinned> pinned;
    uint64_t allocations_asked = 0;
    uint64_t launches_asked = 0;
    MockCounters counters = {};
    // The same of each kernel, by its name.
    std::map<std::string, MockLaunched> launched;
    // What was counted of launches, by their identity, and whether one of those is not run again.
    std::map<std::string, EmuCounters> counted;
    bool skips_repeats = false;
    const void *kernels = nullptr;
    std::mt19937_64 random{1};
    // The call that is running, for messages, and the last message.
    const char *call = "";
    std::string report;
    // Goes up with each reset, so that no thread keeps a current context.
    uint64_t generation = 0;
};

// The process's driver; it is never destroyed, since other libraries call it while the process ends.
Driver &driver();

// Writes a message to stderr and keeps it.
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Complains of something that a device did and gives its code.
CUresult fault(CUresult code, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Complains and ends the call.
[[noreturn]] void refuse(CUresult code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Runs the body of a call that works before cuInit.
template <class Body> CUresult call_always(const char *name, Body body) {
    const std::lock_guard<std::mutex> guard(driver().lock);
    driver().call = name;
    try {
        return body();
    } catch (const Failure &failure) {
        return failure.code;
    }
}

// Runs the body of a call that needs cuInit only.
template <class Body> CUresult call_initialized(const char *name, Body body) {
    return call_always(name, [&] {
        if (!driver().initialized)
            refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called");
        return body();
    });
}

// The thread's current context, or null.
Context *current_context();
void set_current_context(Context *context);

// Runs the body of a call that needs a context whose device has not faulted: body(context).
template <class Body> CUresult call_in_context(const char *name, Body body) {
    return call_initialized(name, [&] {
        Context *const context = current_context();
        if (!context)
            refuse(CUDA_ERROR_INVALID_CONTEXT, "the calling thread has no current context");
        if (context->device->fault != CUDA_SUCCESS)
            return context->device->fault;
        const CUresult result = body(*context);
        // The call may have run work that faulted.
        return context->device->fault != CUDA_SUCCESS ? context->device->fault : result;
    });
}

// The device of this ordinal.
Device &device_of(CUdevice ordinal);

// Ends the call with CUDA_ERROR_INVALID_VALUE where a result has nowhere to go.
template <class T> T &output(T *pointer) {
    if (!pointer)
        refuse(CUDA_ERROR_INVALID_VALUE, "the pointer for the result is null");
    return *pointer;
}

// Destroys a device's context and what it holds, its memory included, when all work has run.
void destroy_context(Device &device);

} // namespace mock
