// Barriers of a block.
#include "arguments.h"
#include "ptx.cuh"

// Each thread passes its number round the block, `a` times; those from `b` on exit at once.
extern "C" __global__ void ring(const __grid_constant__ TestArguments p) {
    const uint32_t threads = p.b > 0 ? static_cast<uint32_t>(p.b) : blockDim.x;
    if (threadIdx.x >= threads) {
        return;
    }
    uint32_t value = threadIdx.x;
    for (int i = 0; i < p.a; ++i) {
        ptx::store_shared(ptx::shared_base() + threadIdx.x * 4, value);
        ptx::barrier();
        value = ptx::load_shared<uint32_t>(ptx::shared_base() + (threadIdx.x + 1) % threads * 4);
        ptx::barrier();
    }
    ptx::store_global(p.output + threadIdx.x, value);
}

// The first warp makes `a` values, the second takes them: two stages, a barrier each for full and for empty.
extern "C" __global__ void __launch_bounds__(64) producer(const __grid_constant__ TestArguments p) {
    const uint32_t lane = threadIdx.x % 32;
    const bool makes = threadIdx.x < 32;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < static_cast<uint32_t>(p.a); ++i) {
        const uint32_t stage = i % 2, full = 1 + stage, empty = 3 + stage;
        const ptx::Shared at = ptx::shared_base() + stage * 128;
        if (makes) {
            if (i >= 2) {
                ptx::barrier_sync(empty, 64);
            }
            ptx::store_shared(at + lane * 4, lane * i);
            ptx::barrier_arrive(full, 64);
        } else {
            ptx::barrier_sync(full, 64);
            sum += ptx::load_shared<uint32_t>(at + (lane + 1) % 32 * 4);
            if (i + 2 < static_cast<uint32_t>(p.a)) {
                ptx::barrier_arrive(empty, 64);
            }
        }
    }
    if (!makes) {
        ptx::store_global(p.output + lane, sum);
    }
}
