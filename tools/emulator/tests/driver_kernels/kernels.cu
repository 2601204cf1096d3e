// Kernels for the tests of the mock driver.
#include "ptx.cuh"

struct AddOne {
    // [count]
    const float *input;
    float *output;
    int32_t count;
    int32_t unused;
};

// output[i] = input[i] + 1
extern "C" __global__ void __launch_bounds__(256) add_one(const __grid_constant__ AddOne p) {
    const int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < p.count)
        ptx::store_global(p.output + i, ptx::load_global(p.input + i) + 1.0f);
}

struct Order {
    // How many threads have come; zero before.
    uint32_t *count;
    // [threads] which thread came first, second, ...
    uint32_t *threads;
};

// Writes down in which order threads come.
extern "C" __global__ void order(const __grid_constant__ Order p) {
    ptx::store_global(p.threads + ptx::atomic_add_global(p.count, 1), static_cast<uint32_t>(threadIdx.x));
}

// Copies input[0..4] to output, and overwrites it with zeros before it waits for the copy.
extern "C" __global__ void late_copy(const __grid_constant__ AddOne p) {
    float *const input = const_cast<float *>(p.input);
    ptx::cp_async_16(ptx::shared_base(), input, 16);
    ptx::cp_async_commit();
    ptx::store_global(input, 0.0f);
    ptx::cp_async_wait<0>();
    ptx::store_global(p.output, ptx::load_shared<float>(ptx::shared_base()));
}

// In the tests, no image has it.
extern "C" __global__ void __launch_bounds__(128) in_no_image(const __grid_constant__ AddOne p) {
    if (threadIdx.x == 0)
        ptx::store_global(p.output, 0.0f);
}
