#include "driver.hpp"

#include <algorithm>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host_memory.hpp"

extern "C" const char emu_kernels[];

namespace mock {

Driver &driver() {
    static Driver *const the_driver = new Driver;
    return *the_driver;
}

static void say(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    std::string text(size_t(vsnprintf(nullptr, 0, format, again)), 0);
    va_end(again);
    vsnprintf(text.data(), text.size() + 1, format, arguments);
    driver().report = std::string("mock CUDA driver: ") + driver().call + ": " + text;
    fprintf(stderr, "%s\n", driver().report.c_str());
}

void complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

CUresult fault(CUresult code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return code;
}

void refuse(CUresult code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    throw Failure{code};
}

static thread_local Context *current = nullptr;
static thread_local uint64_t current_generation = 0;

Context *current_context() {
    if (current_generation != driver().generation)
        return nullptr;
    for (const auto &device : driver().devices)
        if (device->context && device->context.get() == current)
            return current;
    return nullptr;
}

void set_current_context(Context *context) {
    current = context;
    current_generation = driver().generation;
}

Device &device_of(CUdevice ordinal) {
    if (ordinal < 0 || size_t(ordinal) >= driver().devices.size())
        refuse(CUDA_ERROR_INVALID_DEVICE, "there is no device %d, there are %zu", ordinal, driver().devices.size());
    return *driver().devices[size_t(ordinal)];
}

static int reset(Driver &state) {
    int overwritten = 0;
    for (const auto &device : state.devices) {
        if (device->context)
            unpin_all(*device->context);
        device->context.reset();
        overwritten += emu_memory_delete(device->memory);
    }
    state.devices.clear();
    state.allocations.clear();
    state.freed.clear();
    state.configuration = Configuration();
    state.configured = state.initialized = false;
    state.configuration_error.clear();
    state.allocations_asked = state.launches_asked = 0;
    state.counters = MockCounters();
    state.launched.clear();
    state.counted.clear();
    state.skips_repeats = false;
    state.kernels = nullptr;
    state.report.clear();
    ++state.generation;
    return overwritten;
}

} // namespace mock

using namespace mock;

MOCK_EXPORT int mockConfigure(const char *words) {
    return call_always(__func__, [&] {
        Driver &state = driver();
        reset(state);
        state.configured = true;
        state.configuration_error = read_configuration(words, state.configuration);
        if (!state.configuration_error.empty())
            refuse(CUDA_ERROR_INVALID_VALUE, "%s", state.configuration_error.c_str());
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT int mockReset(void) {
    const std::lock_guard<std::mutex> guard(driver().lock);
    return reset(driver());
}

MOCK_EXPORT void mockCounters(MockCounters *counters) {
    const std::lock_guard<std::mutex> guard(driver().lock);
    Driver &state = driver();
    *counters = state.counters;
    for (const auto &[address, allocation] : state.allocations) {
        ++counters->live_allocations;
        counters->live_bytes += allocation->bytes;
    }
    for (const auto &device : state.devices) {
        if (!device->context)
            continue;
        counters->live_graph_instances += device->context->graph_execs.size();
        counters->pending += device->context->legacy->queue.size();
        for (const auto &stream : device->context->streams)
            counters->pending += stream->queue.size();
    }
}

MOCK_EXPORT size_t mockLaunched(MockLaunched *launched, size_t count) {
    const std::lock_guard<std::mutex> guard(driver().lock);
    size_t number = 0;
    for (const auto &[name, of_kernel] : driver().launched) {
        if (number < count) {
            launched[number] = of_kernel;
            launched[number].kernel[name.copy(launched[number].kernel, sizeof of_kernel.kernel - 1)] = 0;
        }
        ++number;
    }
    return number;
}

MOCK_EXPORT size_t mockReport(char *text, size_t bytes) {
    const std::lock_guard<std::mutex> guard(driver().lock);
    const std::string &report = driver().report;
    if (bytes > 0) {
        const size_t fits = std::min(report.size(), bytes - 1);
        memcpy(text, report.data(), fits);
        text[fits] = 0;
    }
    return report.size();
}

MOCK_EXPORT void mockSkipRepeats(int skip) {
    const std::lock_guard<std::mutex> guard(driver().lock);
    driver().skips_repeats = skip != 0;
}

MOCK_EXPORT void mockKernels(const void *table) {
    const std::lock_guard<std::mutex> guard(driver().lock);
    driver().kernels = table;
    driver().counted.clear();
}
