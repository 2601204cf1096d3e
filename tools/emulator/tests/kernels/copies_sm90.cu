// Copies in the background that only sm_90 has.
#include "arguments.h"
#include "ptx.cuh"

// Thread 0 loads `a` tiles of 128 words into two stages; all threads add 1 and thread 0 stores the tiles.
extern "C" __global__ void __launch_bounds__(128) bulk(const __grid_constant__ TestArguments p) {
    constexpr uint32_t TILE = 512;
    const uint32_t thread = threadIdx.x;
    const ptx::Shared tiles = ptx::shared_base(), results = tiles + 2 * TILE;
    const ptx::Shared full = results + TILE, empty = full + 16;
    if (thread == 0) {
        for (uint32_t i = 0; i < 2; ++i) {
            ptx::mbarrier_init(full + i * 8, 1);
            ptx::mbarrier_init(empty + i * 8, 4);
        }
        ptx::fence_mbarrier_init();
    }
    ptx::barrier();
    const auto load = [&](uint32_t i) {
        if (thread == 0 && i < static_cast<uint32_t>(p.a)) {
            const uint32_t stage = i % 2;
            if (i >= 2) {
                ptx::mbarrier_wait(empty + stage * 8, (i / 2 - 1) % 2);
            }
            ptx::mbarrier_arrive_expect(full + stage * 8, TILE);
            ptx::bulk_load(tiles + stage * TILE, p.input + i * 128, TILE, full + stage * 8);
        }
    };
    load(0);
    for (uint32_t i = 0; i < static_cast<uint32_t>(p.a); ++i) {
        load(i + 1);
        const uint32_t stage = i % 2;
        ptx::mbarrier_wait(full + stage * 8, i / 2 % 2);
        const uint32_t value = ptx::load_shared<uint32_t>(tiles + stage * TILE + thread * 4);
        if (thread == 0) {
            ptx::bulk_wait_read<0>();
        }
        ptx::barrier();
        ptx::store_shared(results + thread * 4, value + 1);
        ptx::fence_proxy_async();
        ptx::barrier();
        if (thread % 32 == 0) {
            ptx::mbarrier_arrive(empty + stage * 8);
        }
        if (thread == 0) {
            ptx::bulk_store(p.output + i * 128, results, TILE);
            ptx::bulk_commit();
        }
    }
    if (thread == 0) {
        ptx::bulk_wait<0>();
    }
}
