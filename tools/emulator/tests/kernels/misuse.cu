// Kernels that do something wrong: each must be reported, at the line that ends in "// reported".
#include "arguments.h"
#include "ptx.cuh"

#define KERNEL extern "C" __global__ void

namespace {

// Fills the block's shared memory, 16 bytes a thread.
__device__ ptx::Shared fill() {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    ptx::store_shared(at, make_uint4(1, 2, 3, 4));
    ptx::barrier();
    return at;
}

// Thread 0 makes an mbarrier of the 8 bytes at 8192.
__device__ ptx::Shared make_mbarrier(uint32_t arrivals) {
    const ptx::Shared at = ptx::shared_base() + 8192;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(at, arrivals);
        ptx::fence_mbarrier_init();
    }
    ptx::barrier();
    return at;
}

} // namespace

// ---------------------------------------------------------------- addresses

KERNEL shared_beyond(const __grid_constant__ TestArguments p) {
    ptx::store_shared<uint32_t>(ptx::shared_base() + threadIdx.x * 4 + static_cast<uint32_t>(p.a), 1); // reported
}

KERNEL shared_without_base(const __grid_constant__ TestArguments p) {
    ptx::store_shared<uint32_t>(threadIdx.x * 4 + static_cast<uint32_t>(p.a), 1); // reported
}

KERNEL shared_misaligned(const __grid_constant__ TestArguments) {
    ptx::store_shared<uint32_t>(ptx::shared_base() + threadIdx.x * 4 + 2, 1); // reported
}

KERNEL global_beyond(const __grid_constant__ TestArguments p) {
    ptx::store_global<uint32_t>(p.output + threadIdx.x + p.a, 1); // reported
}

KERNEL global_before(const __grid_constant__ TestArguments p) {
    ptx::load_global(p.input - 1 + threadIdx.x); // reported
}

KERNEL global_across_the_end(const __grid_constant__ TestArguments p) {
    ptx::load_constant(reinterpret_cast<const uint2 *>(p.input) + p.a); // reported
}

KERNEL global_null(const __grid_constant__ TestArguments) {
    ptx::load_global(static_cast<const uint32_t *>(nullptr)); // reported
}

KERNEL global_misaligned(const __grid_constant__ TestArguments p) {
    ptx::load_global(reinterpret_cast<const uint4 *>(p.input + 1)); // reported
}

KERNEL atomic_beyond(const __grid_constant__ TestArguments p) {
    ptx::atomic_add_global(p.output + p.a, 1); // reported
}

KERNEL raw_access(const __grid_constant__ TestArguments p) { *p.output = 1; }

namespace {
__device__ __noinline__ uint32_t deeper(uint32_t depth) {
    volatile uint32_t local[256];
    local[depth % 256] = depth;
    return depth == 0 ? 0 : deeper(depth - 1) + local[depth % 256];
}
} // namespace

KERNEL deep_stack(const __grid_constant__ TestArguments p) {
    ptx::store_global(p.output, deeper(static_cast<uint32_t>(p.a)));
}

// ---------------------------------------------------------------- shared memory that is not ready

KERNEL unwritten(const __grid_constant__ TestArguments p) {
    ptx::store_global(p.output + threadIdx.x,
                      ptx::load_shared<uint32_t>(ptx::shared_base() + threadIdx.x * 4)); // reported
}

KERNEL half_written(const __grid_constant__ TestArguments p) {
    ptx::store_shared<uint16_t>(ptx::shared_base() + threadIdx.x * 4, 1);
    ptx::store_global(p.output + threadIdx.x,
                      ptx::load_shared<uint32_t>(ptx::shared_base() + threadIdx.x * 4)); // reported
}

KERNEL unwritten_matrix(const __grid_constant__ TestArguments p) {
    uint32_t words[4];
    ptx::ldmatrix_x4(words, ptx::shared_base() + threadIdx.x * 16); // reported
    ptx::store_global(p.output + threadIdx.x, words[0]);
}

KERNEL missing_barrier(const __grid_constant__ TestArguments p) {
    ptx::store_shared<uint32_t>(ptx::shared_base() + threadIdx.x * 4, threadIdx.x);
    const uint32_t other = (threadIdx.x + 1) % blockDim.x;
    ptx::store_global(p.output + threadIdx.x, ptx::load_shared<uint32_t>(ptx::shared_base() + other * 4)); // reported
}

// ---------------------------------------------------------------- cp.async

KERNEL copy_not_waited(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    ptx::cp_async_16(at, p.input + threadIdx.x * 4, 16);
    ptx::cp_async_commit();
    ptx::barrier();
    ptx::store_global(p.output + threadIdx.x, ptx::load_shared<uint32_t>(at)); // reported
}

KERNEL copy_not_committed(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    ptx::cp_async_16(at, p.input + threadIdx.x * 4, 16);
    ptx::cp_async_wait<0>();
    ptx::store_global(p.output + threadIdx.x, ptx::load_shared<uint32_t>(at)); // reported
}

KERNEL copy_of_wrong_group(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    ptx::cp_async_16(at, p.input + threadIdx.x * 4, 16);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    uint32_t words[4];
    ptx::ldmatrix_x4(words, at); // reported
    ptx::store_global(p.output + threadIdx.x, words[0]);
}

KERNEL copy_overwritten(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    ptx::cp_async_16(at, p.input + threadIdx.x * 4, 16);
    ptx::cp_async_commit();
    ptx::store_shared<uint32_t>(at, 1); // reported
    ptx::cp_async_wait<0>();
}

KERNEL copy_twice(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    ptx::cp_async_16(at, p.input + threadIdx.x * 4, 16);
    ptx::cp_async_16(at, p.input, 16); // reported
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
}

KERNEL copy_beyond(const __grid_constant__ TestArguments p) {
    ptx::cp_async_16(ptx::shared_base() + threadIdx.x * 16, p.input + p.a + threadIdx.x * 4, 16); // reported
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
}

KERNEL copy_misaligned(const __grid_constant__ TestArguments p) {
    ptx::cp_async_16(ptx::shared_base() + threadIdx.x * 16, p.input + threadIdx.x, 16); // reported
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
}

// ---------------------------------------------------------------- warps and barriers

KERNEL divergent_shuffle(const __grid_constant__ TestArguments p) {
    uint32_t value = threadIdx.x;
    if (threadIdx.x % 2 == 0) {
        value = ptx::shuffle_xor(value, 2); // reported
    } else {
        value = ptx::shuffle_xor(value, 4); // reported
    }
    ptx::store_global(p.output + threadIdx.x, value);
}

KERNEL early_exit(const __grid_constant__ TestArguments p) {
    if (threadIdx.x == 5) {
        return;
    }
    ptx::store_global(p.output + threadIdx.x, ptx::ballot(true)); // reported
}

KERNEL small_warp(const __grid_constant__ TestArguments p) {
    ptx::store_global(p.output + threadIdx.x, ptx::ballot(true)); // reported
}

KERNEL divergent_barrier(const __grid_constant__ TestArguments p) {
    if (threadIdx.x < 16) {
        ptx::barrier(); // reported
    } else {
        ptx::barrier(); // reported
    }
    ptx::store_global(p.output + threadIdx.x, 1u);
}

KERNEL barrier_counts(const __grid_constant__ TestArguments) {
    ptx::barrier_sync(1, threadIdx.x < 32 ? 64 : 96); // reported
}

KERNEL barrier_of_half_warps(const __grid_constant__ TestArguments) {
    ptx::barrier_sync(1, 48); // reported
}

KERNEL barrier_of_none(const __grid_constant__ TestArguments) {
    ptx::barrier_sync(16, 32); // reported
}

KERNEL barrier_twice(const __grid_constant__ TestArguments) {
    if (threadIdx.x < 32) {
        ptx::barrier_arrive(1, 64);
        ptx::barrier_arrive(1, 64); // reported
    }
}

KERNEL barrier_missed(const __grid_constant__ TestArguments) {
    if (threadIdx.x >= 32) {
        ptx::barrier_sync(1, 96); // reported
    }
}

KERNEL endless_wait(const __grid_constant__ TestArguments p) {
    while (ptx::load_global(p.output) != 1) { // reported
    }
}

KERNEL endless_wait_shared(const __grid_constant__ TestArguments) {
    const ptx::Shared at = fill();
    while (ptx::load_shared<uint32_t>(at) == 1) { // reported
    }
}

KERNEL endless_meetings(const __grid_constant__ TestArguments) {
    for (;;) {
        ptx::sync_warp(); // reported
    }
}

// ---------------------------------------------------------------- mbarriers

KERNEL mbarrier_not_made(const __grid_constant__ TestArguments) {
    ptx::mbarrier_arrive(ptx::shared_base()); // reported
}

KERNEL mbarrier_twice(const __grid_constant__ TestArguments) {
    ptx::mbarrier_init(ptx::shared_base(), 1); // reported
}

KERNEL mbarrier_overwritten(const __grid_constant__ TestArguments) {
    ptx::store_shared<uint32_t>(make_mbarrier(1) + 4, 1); // reported
}

KERNEL mbarrier_read(const __grid_constant__ TestArguments p) {
    ptx::store_global(p.output, ptx::load_shared<uint32_t>(make_mbarrier(1))); // reported
}

KERNEL mbarrier_of_none(const __grid_constant__ TestArguments) {
    ptx::mbarrier_init(ptx::shared_base(), 0); // reported
}

// The first arrival leaves the phase to its bytes, so that the second is one too many.
KERNEL mbarrier_arrivals(const __grid_constant__ TestArguments) {
    const ptx::Shared at = make_mbarrier(1);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(at, 16);
        ptx::mbarrier_arrive(at); // reported
    }
}

KERNEL mbarrier_deadlock(const __grid_constant__ TestArguments) {
    const ptx::Shared at = make_mbarrier(2);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive(at);
    }
    ptx::mbarrier_wait(at, 0); // reported
}

// ---------------------------------------------------------------- bulk copies

KERNEL bulk_not_fenced_init(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + 8192;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(at, 1);
        ptx::mbarrier_arrive_expect(at, 64);
        ptx::bulk_load(ptx::shared_base(), p.input, 64, at); // reported
        ptx::mbarrier_wait(at, 0);
    }
}

KERNEL bulk_not_waited(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = make_mbarrier(2);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(at, 64);
        ptx::bulk_load(ptx::shared_base(), p.input, 64, at);
        ptx::store_global(p.output, ptx::load_shared<uint32_t>(ptx::shared_base())); // reported
    }
}

KERNEL bulk_too_many_bytes(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = make_mbarrier(1);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(at, 32);
        ptx::bulk_load(ptx::shared_base(), p.input, 64, at); // reported
        ptx::mbarrier_wait(at, 0);
    }
}

KERNEL bulk_too_few_bytes(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = make_mbarrier(1);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(at, 96);
        ptx::bulk_load(ptx::shared_base(), p.input, 64, at);
        ptx::mbarrier_wait(at, 0); // reported
    }
}

KERNEL bulk_left_alone(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = make_mbarrier(2);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(at, 64);
        ptx::bulk_load(ptx::shared_base(), p.input, 64, at); // reported
    }
}

KERNEL bulk_load_over_stores(const __grid_constant__ TestArguments p) {
    fill();
    const ptx::Shared at = make_mbarrier(1);
    if (threadIdx.x == 0) {
        ptx::fence_proxy_async();
        ptx::mbarrier_arrive_expect(at, 64);
        ptx::bulk_load(ptx::shared_base(), p.input, 64, at); // reported
        ptx::mbarrier_wait(at, 0);
    }
}

KERNEL bulk_store_not_fenced(const __grid_constant__ TestArguments p) {
    fill();
    if (threadIdx.x == 0) {
        ptx::bulk_store(p.output, ptx::shared_base(), 64); // reported
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
    }
}

KERNEL bulk_store_overwritten(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = fill();
    ptx::fence_proxy_async();
    ptx::barrier();
    if (threadIdx.x == 0) {
        ptx::bulk_store(p.output, ptx::shared_base(), 64);
        ptx::bulk_commit();
        ptx::store_shared<uint32_t>(at, 5); // reported
        ptx::bulk_wait<0>();
    }
}

KERNEL bulk_store_of_newest_group(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = fill();
    ptx::fence_proxy_async();
    ptx::barrier();
    if (threadIdx.x == 0) {
        ptx::bulk_store(p.output, ptx::shared_base(), 16);
        ptx::bulk_commit();
        ptx::bulk_wait_read<1>();
        ptx::store_shared<uint32_t>(at, 5); // reported
        ptx::bulk_wait<0>();
    }
}

KERNEL bulk_store_left_alone(const __grid_constant__ TestArguments p) {
    fill();
    ptx::fence_proxy_async();
    ptx::barrier();
    if (threadIdx.x == 0) {
        ptx::bulk_store(p.output, ptx::shared_base(), 64); // reported
        ptx::bulk_commit();
    }
}

KERNEL bulk_bytes(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = make_mbarrier(1);
    ptx::bulk_load(ptx::shared_base(), p.input, 24, at); // reported
}

KERNEL bulk_misaligned(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = make_mbarrier(1);
    ptx::bulk_load(ptx::shared_base(), p.input + 1, 16, at); // reported
}

KERNEL bulk_beyond(const __grid_constant__ TestArguments p) {
    fill();
    ptx::fence_proxy_async();
    ptx::barrier();
    ptx::bulk_store(p.output + p.a, ptx::shared_base(), 64); // reported
}
