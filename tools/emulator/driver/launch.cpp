#include "launch.hpp"

#include <algorithm>
#include <stdlib.h>
#include <string.h>

#include "capture.hpp"
#include "driver.hpp"
#include "function.hpp"
#include "memory.hpp"
#include "work.hpp"

namespace mock {

std::string describe(const Launch &launch) {
    const auto three = [](const uint32_t (&of)[3]) {
        return "(" + std::to_string(of[0]) + ", " + std::to_string(of[1]) + ", " + std::to_string(of[2]) + ")";
    };
    const std::string which = launch.number ? ", launch " + std::to_string(launch.number) : "";
    return "kernel " + launch.function->description.name + which + (launch.in_graph ? " (of a graph)" : "") + ", grid " +
           three(launch.grid) + ", block " + three(launch.block) + ", " + std::to_string(launch.shared_bytes) +
           " bytes of shared memory";
}

namespace {

// Refuses what the card or the kernel cannot do.
void check(const Launch &launch) {
    const std::string name = describe(launch);
    const Function &function = *launch.function;
    const Card &card = *driver().configuration.card;
    uint64_t threads = 1;
    for (int axis = 0; axis < 3; ++axis) {
        if (launch.grid[axis] == 0 || launch.grid[axis] > MAX_GRID[axis] || launch.block[axis] == 0 ||
            launch.block[axis] > uint32_t(MAX_BLOCK[axis]))
            refuse(CUDA_ERROR_INVALID_VALUE, "%s: the grid or the block is empty or larger than the card allows",
                   name.c_str());
        threads *= launch.block[axis];
    }
    // Launch bounds are part of the call's rules, registers are a resource: the driver has a code for each.
    if (threads > uint64_t(function.description.max_threads))
        refuse(CUDA_ERROR_INVALID_VALUE, "%s: %llu threads, but its code allows %d", name.c_str(),
               static_cast<unsigned long long>(threads), function.description.max_threads);
    if (threads > uint64_t(max_threads(function)))
        refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "%s: with %d registers a thread, the card holds %d threads",
               name.c_str(), function.description.registers, max_threads(function));
    if (launch.shared_bytes > uint32_t(function.max_dynamic_shared))
        refuse(CUDA_ERROR_INVALID_VALUE,
               "%s: %d bytes of dynamic shared memory are allowed; "
               "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES allows up to %d",
               name.c_str(), function.max_dynamic_shared, card.shared_opt_in - function.description.shared_bytes);
}

// What the pointers in a launch's parameters are, for the report of a fault: a line for each word that is one.
std::string describe_pointers(const Launch &launch) {
    std::string text;
    for (size_t at = 0; at + sizeof(CUdeviceptr) <= launch.parameter.size(); at += sizeof(CUdeviceptr)) {
        CUdeviceptr word;
        memcpy(&word, launch.parameter.data() + at, sizeof word);
        if (is_device_address(word))
            text += "\n  byte " + std::to_string(at) + " of the parameter points to " + mock::describe(word);
    }
    return text;
}

// Whether a pointer in the parameters is to memory whose allocation nothing orders before the launch; complains.
bool runs_before_allocation(const Launch &launch) {
    for (size_t at = 0; at + sizeof(CUdeviceptr) <= launch.parameter.size(); at += sizeof(CUdeviceptr)) {
        CUdeviceptr word;
        memcpy(&word, launch.parameter.data() + at, sizeof word);
        const std::shared_ptr<Allocation> allocation = find_allocation(word, 1);
        if (allocation && !touch(describe(launch).c_str(), *allocation, word, 1))
            return true;
    }
    return false;
}

void add(EmuCounters &sum, const EmuCounters &of) {
    constexpr size_t COUNT = sizeof(EmuCounters) / sizeof(uint64_t);
    static_assert(sizeof(EmuCounters) % sizeof(uint64_t) == 0, "all counters are 64-bit");
    uint64_t into[COUNT], from[COUNT];
    memcpy(into, &sum, sizeof into);
    memcpy(from, &of, sizeof from);
    for (size_t counter = 0; counter < COUNT; ++counter)
        into[counter] += from[counter];
    memcpy(&sum, into, sizeof into);
}

// Takes note of what a launch did.
void note(const Launch &launch, const EmuCounters &counters) {
    Driver &state = driver();
    add(state.counters.emulator, counters);
    MockLaunched &of_kernel = state.launched[launch.function->description.name];
    ++of_kernel.launches;
    add(of_kernel.emulator, counters);
}

// What two launches have in common that do the same, if what they read is alike: all but where pointers point. Of a
// pointer there is left how it is aligned, and which of the launch's pointers it is the same as.
std::string identity(const Launch &launch) {
    constexpr CUdeviceptr ALIGNMENT = 256;
    std::vector<char> parameter = launch.parameter;
    std::vector<CUdeviceptr> pointers;
    for (size_t at = 0; at + sizeof(CUdeviceptr) <= parameter.size(); at += sizeof(CUdeviceptr)) {
        CUdeviceptr word;
        memcpy(&word, parameter.data() + at, sizeof word);
        if (!find_allocation(word, 1))
            continue;
        const size_t which = size_t(std::find(pointers.begin(), pointers.end(), word) - pointers.begin());
        if (which == pointers.size())
            pointers.push_back(word);
        // Other than null.
        word = (which + 1) * ALIGNMENT + word % ALIGNMENT;
        memcpy(parameter.data() + at, &word, sizeof word);
    }
    std::string text = launch.function->description.name;
    for (const auto *sizes : {&launch.grid, &launch.block})
        text.append(reinterpret_cast<const char *>(*sizes), sizeof *sizes);
    text.append(reinterpret_cast<const char *>(&launch.shared_bytes), sizeof launch.shared_bytes);
    return text.append(parameter.data(), parameter.size());
}

// Whether the driver tells of an error only when the work runs, and for good.
bool is_fault(CUresult code) {
    return code == CUDA_ERROR_ECC_UNCORRECTABLE || code == CUDA_ERROR_ILLEGAL_ADDRESS ||
           code == CUDA_ERROR_LAUNCH_TIMEOUT || (code >= CUDA_ERROR_ASSERT && code <= CUDA_ERROR_LAUNCH_FAILED);
}

} // namespace

void number(Launch &launch) {
    Driver &state = driver();
    launch.number = ++state.launches_asked;
    if (launch.number != state.configuration.launch_fails_at)
        return;
    const CUresult told = state.configuration.launch_error;
    if (!is_fault(told))
        refuse(told, "%s: fails as configured", describe(launch).c_str());
    launch.told_fault = told;
}

CUresult run(const Launch &launch) {
    Driver &state = driver();
    if (launch.told_fault != CUDA_SUCCESS)
        return fault(launch.told_fault, "%s: fails as configured", describe(launch).c_str());
    if (runs_before_allocation(launch))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (launch.number == state.configuration.launch_lost_at)
        return CUDA_SUCCESS;
    // Of all launches, as repeats may be skipped from any on.
    const std::string identity = state.configuration.emulator.count ? mock::identity(launch) : "";
    const auto before = state.counted.find(identity);
    if (state.skips_repeats && before != state.counted.end()) {
        note(launch, before->second);
        return CUDA_SUCCESS;
    }
    void *const parameters[] = {const_cast<char *>(launch.parameter.data())};
    EmuConfig configuration = state.configuration.emulator;
    // Each launch has a schedule of its own.
    configuration.seed += launch.number;
    configuration.shared_limit = uint32_t(state.configuration.card->shared_opt_in);
    EmuCounters counters = {};
    std::vector<char> report(1 << 16);
    const int result =
        emu_launch(launch.function->context->device->memory, launch.function->kernel, launch.grid, launch.block,
                   launch.shared_bytes, parameters, &configuration, &counters, report.data(), report.size());
    note(launch, counters);
    if (result != 0)
        return fault(CUresult(result), "%s: %s%s", describe(launch).c_str(), report.data(),
                     describe_pointers(launch).c_str());
    if (configuration.count)
        state.counted[identity] = counters;
    return CUDA_SUCCESS;
}

bool launches_wait() {
    const char *const value = getenv("CUDA_LAUNCH_BLOCKING");
    return value && strcmp(value, "1") == 0;
}

} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                    CUstream stream_handle, void **parameters, void **extra) {
    return call_in_context(__func__, [&](Context &context) {
        Stream &stream = stream_of(context, stream_handle);
        auto launch = std::make_shared<Launch>(Launch{function_of(context, handle),
                                                      {grid_x, grid_y, grid_z},
                                                      {block_x, block_y, block_z},
                                                      shared_bytes,
                                                      {}});
        const bool captured = is_capturing(stream);
        if (!captured)
            number(*launch);
        if (stream.context != &context)
            refuse(CUDA_ERROR_INVALID_HANDLE, "%s: the stream is of another context", describe(*launch).c_str());
        if (extra)
            refuse(CUDA_ERROR_NOT_SUPPORTED, "%s: parameters in `extra` are not supported", describe(*launch).c_str());
        check(*launch);
        if (!parameters || !parameters[0])
            refuse(CUDA_ERROR_INVALID_VALUE, "%s: the parameter is null", describe(*launch).c_str());
        const char *const value = static_cast<const char *>(parameters[0]);
        launch->parameter.assign(value, value + launch->function->description.parameter_bytes);
        const GraphNode node{GraphNode::KERNEL, launch, 0, nullptr, {}};
        if (captured) {
            note(stream, node);
            return CUDA_SUCCESS;
        }
        count(node);
        const std::shared_ptr<Operation> operation = enqueue(stream, [launch] { return run(*launch); });
        if (!launches_wait())
            return CUDA_SUCCESS;
        finish(operation);
        return context.device->fault;
    });
}
