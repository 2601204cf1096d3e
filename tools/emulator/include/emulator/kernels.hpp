// A library of kernels: what the generated tables hold and the core reads.
#pragma once

#include <cstdint>
#include <cstring>

namespace emu {

struct Kernel {
    const char *name;
    // Calls it in the thread that runs.
    void (*run)(const void *parameter);
    // Bytes of its one parameter, and 0.
    uint32_t parameter_bytes[2];
    // Most threads of a block, and blocks of a cluster, neighbours in x.
    uint32_t max_threads, cluster;
};

// The kernels of one source.
struct KernelList {
    const Kernel *kernels;
    uint32_t count;
};

// The kernels of all sources: the symbol `emu_kernels` of a library.
struct KernelTable {
    const KernelList *const *lists;
    uint32_t count;
};

template <class Parameter, void (*FUNCTION)(Parameter)> void run_kernel(const void *parameter) {
    // Which may be aligned to more than the bytes are.
    Parameter value;
    memcpy(&value, parameter, sizeof(value));
    FUNCTION(value);
}

// The table's line of a kernel; `parameter` is the kernel again, so that its type can be deduced.
template <auto FUNCTION, class Parameter>
constexpr Kernel kernel_entry(const char *name, void (*)(Parameter), uint32_t max_threads, uint32_t cluster) {
    return Kernel{name, run_kernel<Parameter, FUNCTION>, {sizeof(Parameter), 0}, max_threads, cluster};
}

} // namespace emu
