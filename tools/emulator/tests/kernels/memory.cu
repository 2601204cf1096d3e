// Loads, stores and atomics.
#include "arguments.h"
#include "ptx.cuh"

namespace {

template <class T> __device__ void pass(const TestArguments &p, uint32_t thread, uint32_t offset) {
    const ptx::Shared at = ptx::shared_base() + offset + thread * sizeof(T);
    const T *from = reinterpret_cast<const T *>(reinterpret_cast<const char *>(p.input) + offset) + thread;
    T *to = reinterpret_cast<T *>(reinterpret_cast<char *>(p.output) + offset) + thread;
    ptx::store_shared<T>(at, p.a == 0 ? ptx::load_global(from) : ptx::load_constant(from));
    ptx::store_global(to, ptx::load_shared<T>(at));
}

} // namespace

// Global → shared → global in every width: 2, 4, 8 and 16 bytes of each thread, behind each other.
extern "C" __global__ void every_width(const __grid_constant__ TestArguments p) {
    const uint32_t thread = threadIdx.x, threads = blockDim.x;
    pass<uint16_t>(p, thread, 0);
    pass<uint32_t>(p, thread, 2 * threads);
    pass<uint2>(p, thread, 6 * threads);
    pass<uint4>(p, thread, 14 * threads);
}

// Output 0: how many threads added in global memory; 1: the sum that the block made in shared memory; then what each
// thread got.
extern "C" __global__ void atomics(const __grid_constant__ TestArguments p) {
    const ptx::Shared sum = ptx::shared_base();
    if (threadIdx.x == 0) {
        ptx::store_shared<uint32_t>(sum, 0);
    }
    ptx::barrier();
    const uint32_t before = ptx::atomic_add_shared(sum, threadIdx.x);
    ptx::atomic_add_global(p.output, 1);
    ptx::barrier();
    const uint32_t number = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) {
        ptx::atomic_add_global(p.output + 1, ptx::load_shared<uint32_t>(sum));
    }
    ptx::store_global(p.output + 2 + number, before);
}

// Every built-in variable: a word each for threadIdx, blockIdx, blockDim and gridDim, packed 10 bits an extent.
extern "C" __global__ void indices(const __grid_constant__ TestArguments p) {
    const auto pack = [](const auto &index) { return index.x | index.y << 10 | index.z << 20; };
    const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const uint32_t number = block * blockDim.x * blockDim.y * blockDim.z + thread;
    uint32_t *to = p.output + 4 * number;
    ptx::store_global(to, pack(threadIdx));
    ptx::store_global(to + 1, pack(blockIdx));
    ptx::store_global(to + 2, pack(blockDim));
    ptx::store_global(to + 3, pack(gridDim));
}

// exp2 and log2 of each input, and it packed with the next one.
extern "C" __global__ void arithmetic(const __grid_constant__ TestArguments p) {
    const uint32_t i = threadIdx.x;
    const float x = __uint_as_float(ptx::load_global(p.input + 2 * i));
    const float y = __uint_as_float(ptx::load_global(p.input + 2 * i + 1));
    ptx::store_global(p.output + 3 * i, __float_as_uint(ptx::exp2(x)));
    ptx::store_global(p.output + 3 * i + 1, __float_as_uint(ptx::log2(x)));
    ptx::store_global(p.output + 3 * i + 2, ptx::pack_bf16(x, y));
}
