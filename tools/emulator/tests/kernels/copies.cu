// Copies in the background.
#include "arguments.h"
#include "ptx.cuh"

// `a` stages of 16 bytes a thread, two under way; of the last stage only the first `b` threads have bytes.
extern "C" __global__ void groups(const __grid_constant__ TestArguments p) {
    const uint32_t thread = threadIdx.x, threads = blockDim.x;
    const auto stage = [&](uint32_t i) { return ptx::shared_base() + (i % 3 * threads + thread) * 16; };
    const auto load = [&](uint32_t i) {
        if (i < static_cast<uint32_t>(p.a)) {
            const bool has = i + 1 < static_cast<uint32_t>(p.a) || thread < static_cast<uint32_t>(p.b);
            ptx::cp_async_16(stage(i), has ? p.input + (i * threads + thread) * 4 : nullptr, has ? 16 : 0);
        }
        ptx::cp_async_commit();
    };
    load(0);
    load(1);
    for (uint32_t i = 0; i < static_cast<uint32_t>(p.a); ++i) {
        load(i + 2);
        ptx::cp_async_wait<2>();
        uint4 *to = reinterpret_cast<uint4 *>(p.output) + i * threads + thread;
        ptx::store_global(to, ptx::load_shared<uint4>(stage(i)));
    }
    ptx::cp_async_wait<0>();
}
