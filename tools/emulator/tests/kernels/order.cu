// Kernels whose output tells the order in which things happened.
#include "arguments.h"
#include "ptx.cuh"

namespace {

__device__ void pass(const TestArguments &p, uint32_t number) {
    ptx::store_global(p.output + 1 + ptx::atomic_add_global(p.output, 1), number);
}

} // namespace

extern "C" __global__ void order(const __grid_constant__ TestArguments p) {
    pass(p, threadIdx.x);
    ptx::barrier();
    pass(p, threadIdx.x);
}

extern "C" __global__ void blocks(const __grid_constant__ TestArguments p) {
    pass(p, blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
}

// Thread 0 loads eight pieces; each, once it is there, lets another thread add 1 unless thread 0 has closed the count.
extern "C" __global__ void landing(const __grid_constant__ TestArguments p) {
    constexpr uint32_t PIECES = 8, BYTES = 128;
    const ptx::Shared mbarriers = ptx::shared_base() + PIECES * BYTES, closed = mbarriers + PIECES * 8;
    const uint32_t thread = threadIdx.x;
    if (thread == 0) {
        ptx::store_shared<uint32_t>(closed, 0);
        for (uint32_t i = 0; i < PIECES; ++i) {
            ptx::mbarrier_init(mbarriers + i * 8, 1);
        }
        ptx::fence_mbarrier_init();
    }
    ptx::barrier();
    if (thread == 0) {
        for (uint32_t i = 0; i < PIECES; ++i) {
            ptx::mbarrier_arrive_expect(mbarriers + i * 8, BYTES);
            ptx::bulk_load(ptx::shared_base() + i * BYTES, p.input, BYTES, mbarriers + i * 8);
        }
        for (int i = 0; i < 64; ++i) {
            ptx::atomic_add_shared(closed, 0);
        }
        ptx::atomic_add_shared(closed, 1);
    } else if (thread <= PIECES) {
        ptx::mbarrier_wait(mbarriers + (thread - 1) * 8, 0);
        if (ptx::atomic_add_shared(closed, 0) == 0) {
            ptx::atomic_add_global(p.output, 1);
        }
    }
}
