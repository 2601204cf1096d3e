// Accesses whose counters can be told by hand.
#include "arguments.h"
#include "ptx.cuh"

#define KERNEL extern "C" __global__ void

// A warp stores and loads words `a` words apart.
KERNEL shared_words(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * static_cast<uint32_t>(p.a) * 4;
    ptx::store_shared<uint32_t>(at, 1);
    ptx::sync_warp();
    ptx::load_shared<uint32_t>(at);
}

// Lane 0 stores a word, `a` lanes load it.
KERNEL shared_broadcast(const __grid_constant__ TestArguments p) {
    if (threadIdx.x == 0) {
        ptx::store_shared<uint32_t>(ptx::shared_base(), 1);
    }
    ptx::sync_warp();
    if (threadIdx.x < static_cast<uint32_t>(p.a)) {
        ptx::load_shared<uint32_t>(ptx::shared_base());
    }
}

// A warp stores eight bytes a lane, then sixteen, `a` such units apart.
KERNEL shared_wide(const __grid_constant__ TestArguments p) {
    const uint32_t step = threadIdx.x * static_cast<uint32_t>(p.a);
    ptx::store_shared(ptx::shared_base() + step * 8, make_uint2(1, 2));
    ptx::sync_warp();
    ptx::store_shared(ptx::shared_base() + step * 16, make_uint4(1, 2, 3, 4));
}

// Halves: 64 bytes of a warp.
KERNEL shared_halves(const __grid_constant__ TestArguments) {
    ptx::store_shared<uint16_t>(ptx::shared_base() + threadIdx.x * 2, 1);
}

// ldmatrix of rows `a` bytes apart.
KERNEL shared_rows(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * static_cast<uint32_t>(p.a);
    ptx::store_shared(at, make_uint4(1, 2, 3, 4));
    ptx::sync_warp();
    uint32_t words[4];
    ptx::ldmatrix_x4(words, at);
}

KERNEL shared_atomics(const __grid_constant__ TestArguments) {
    if (threadIdx.x == 0) {
        ptx::store_shared<uint32_t>(ptx::shared_base(), 0);
    }
    ptx::sync_warp();
    ptx::atomic_add_shared(ptx::shared_base(), 1);
}

// Each thread of the block loads a word, `a` words apart, and stores it.
KERNEL global_words(const __grid_constant__ TestArguments p) {
    ptx::store_global(p.output + threadIdx.x, ptx::load_global(p.input + threadIdx.x * static_cast<uint32_t>(p.a)));
}

// Even and odd lanes load in turns, `a` times, from the same place in the source.
KERNEL global_divergent(const __grid_constant__ TestArguments p) {
    for (int i = 0; i < p.a; ++i) {
        if (threadIdx.x % 2 == static_cast<uint32_t>(i) % 2) {
            ptx::load_global(p.input + threadIdx.x);
        }
    }
}

KERNEL global_atomics(const __grid_constant__ TestArguments p) { ptx::atomic_add_global(p.output, 1); }

// Sixteen bytes a thread by cp.async, of the first `a` threads.
KERNEL copies(const __grid_constant__ TestArguments p) {
    const bool has = threadIdx.x < static_cast<uint32_t>(p.a);
    ptx::cp_async_16(ptx::shared_base() + threadIdx.x * 16, p.input + threadIdx.x * 4, has ? 16 : 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
}

// A bulk load of `a` bytes.
KERNEL bulk(const __grid_constant__ TestArguments p) {
    const ptx::Shared mbarrier = ptx::shared_base() + 8192;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(mbarrier, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(mbarrier, static_cast<uint32_t>(p.a));
        ptx::bulk_load(ptx::shared_base(), p.input, static_cast<uint32_t>(p.a), mbarrier);
        ptx::mbarrier_wait(mbarrier, 0);
    }
}

// Products, exponentials, logarithms and barriers: 2 · `a` of each kind a warp, lane, lane and block.
KERNEL operations(const __grid_constant__ TestArguments p) {
    float c[4] = {}, x = 1.0f;
    const uint32_t a[4] = {};
    for (int i = 0; i < 2 * p.a; ++i) {
        ptx::mma_m16n8k16_bf16(c, a, 0, 0);
        x = ptx::exp2(ptx::log2(x));
        ptx::barrier();
    }
    ptx::store_global(p.output + threadIdx.x, __float_as_uint(x + c[0]));
}

// A product of a warpgroup and 32 columns: a in registers where `a` is 1, in shared memory where it is 2; none where 0.
KERNEL wgmma_operands(const __grid_constant__ TestArguments p) {
    for (uint32_t i = 0; i < 4; ++i) {
        ptx::store_shared(ptx::shared_base() + threadIdx.x * 64 + i * 16, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_proxy_async();
    ptx::barrier();
    float d[4][4] = {};
    uint32_t a[1][4] = {};
    const uint64_t operand = uint64_t{2} << 62 | uint64_t{512 >> 4} << 32 | ptx::shared_base() >> 4;
    ptx::wgmma_fence(d, a);
    if (p.a == 1) {
        ptx::wgmma_m64k16_bf16<false>(d, a[0], operand, false);
    } else if (p.a == 2) {
        ptx::wgmma_m64k16_bf16<false>(d, operand, operand, false);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(d);
}
