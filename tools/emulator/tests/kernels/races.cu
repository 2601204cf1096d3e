// Kernels for the sanitizers.
#include "arguments.h"
#include "ptx.cuh"

#define KERNEL extern "C" __global__ void

// In the order of the schedule, each thread finds what it looks for: only that nothing orders the accesses is wrong.
KERNEL race_of_neighbours(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 4;
    ptx::store_shared<uint32_t>(at, threadIdx.x); // written
    if (threadIdx.x > 0) {
        ptx::store_global(p.output + threadIdx.x, ptx::load_shared<uint32_t>(at - 4)); // read
    }
}

// As a ring of two stages: the barrier before the stage is written again is missing.
KERNEL race_of_stages(const __grid_constant__ TestArguments p) {
    uint32_t value = threadIdx.x;
    for (int i = 0; i < 2; ++i) {
        ptx::store_shared(ptx::shared_base() + threadIdx.x * 4, value); // written
        ptx::barrier();
        const uint32_t other = threadIdx.x ^ 32;
        value = ptx::load_shared<uint32_t>(ptx::shared_base() + other * 4); // read
    }
    ptx::store_global(p.output + threadIdx.x, value);
}

// The copies of other threads are waited for by those, but nothing orders them before the read.
KERNEL race_of_copies(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    ptx::cp_async_16(at, p.input + threadIdx.x * 4, 16); // written
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>(); // written
    if (threadIdx.x > 0) {
        ptx::store_global(p.output + threadIdx.x, ptx::load_shared<uint32_t>(at - 16)); // read
    }
}

// ldmatrix reads rows that other lanes stored; only sync_warp would order them.
KERNEL race_of_rows(const __grid_constant__ TestArguments p) {
    const uint32_t lane = threadIdx.x;
    ptx::store_shared(ptx::shared_base() + lane * 16, make_uint4(lane, 0, 0, 0)); // written
    ptx::shuffle(lane, 0);
    uint32_t words[4];
    ptx::ldmatrix_x4(words, ptx::shared_base() + (31 - lane) * 16); // read
    ptx::store_global(p.output + lane, words[0]);
}

KERNEL local_overflow(const __grid_constant__ TestArguments p) {
    uint32_t local[8];
    for (uint32_t i = 0; i < 8; ++i) {
        local[i] = ptx::load_global(p.input + i);
    }
    ptx::store_global(p.output + threadIdx.x, local[p.a]); // found
}

KERNEL signed_overflow(const __grid_constant__ TestArguments p) {
    ptx::store_global(p.output + threadIdx.x, static_cast<uint32_t>(p.a + p.b)); // found
}

// The bulk copy lands for its mbarrier; who does not wait there may be too early.
KERNEL race_of_bulk(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + 8192;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(at, 1);
        ptx::fence_mbarrier_init();
    }
    ptx::barrier();
    // The last thread to come to the barrier is the first to go on.
    if (threadIdx.x == blockDim.x - 1) {
        ptx::mbarrier_arrive_expect(at, 512);
        ptx::bulk_load(ptx::shared_base(), p.input, 512, at); // written
    }
    const uint32_t value = ptx::load_shared<uint32_t>(ptx::shared_base() + threadIdx.x * 4); // read
    ptx::store_global(p.output + threadIdx.x, value);
}

// A thread overwrites what other warps multiply by, or have.
KERNEL race_of_products(const __grid_constant__ TestArguments p) {
    for (uint32_t i = 0; i < 4; ++i) {
        ptx::store_shared(ptx::shared_base() + threadIdx.x * 64 + i * 16, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_proxy_async();
    ptx::barrier();
    float d[4][4] = {};
    uint32_t a[1][4] = {};
    const uint64_t operand = uint64_t{2} << 62 | uint64_t{512 >> 4} << 32 | ptx::shared_base() >> 4;
    ptx::wgmma_fence(d, a);
    ptx::wgmma_m64k16_bf16<false>(d, a[0], operand, false); // read
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(d);
    if (threadIdx.x == 127) {
        ptx::store_shared(ptx::shared_base(), 1u); // written
        ptx::fence_proxy_async();
    }
    ptx::store_global(p.output + threadIdx.x, __float_as_uint(d[0][0]));
}

// No race: a lane overwrites what ldmatrix gave to it, not the row that it named.
KERNEL in_place(const __grid_constant__ TestArguments p) {
    const uint32_t lane = threadIdx.x;
    ptx::store_shared(ptx::shared_base() + lane * 16, make_uint4(lane, lane, lane, lane));
    ptx::sync_warp();
    uint32_t words[4];
    ptx::ldmatrix_x4(words, ptx::shared_base() + lane * 16);
    for (uint32_t i = 0; i < 4; ++i) {
        ptx::store_shared(ptx::shared_base() + (8 * i + lane / 4) * 16 + lane % 4 * 4, words[i] + 1);
    }
    ptx::sync_warp();
    ptx::store_global(p.output + lane, ptx::load_shared<uint32_t>(ptx::shared_base() + lane * 16));
}
