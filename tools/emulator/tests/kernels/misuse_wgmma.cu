// Kernels that do something wrong with products of warpgroups: each must be reported, at a line that ends in "// reported".
#include "arguments.h"
#include "ptx.cuh"

#define KERNEL extern "C" __global__ void

namespace {

constexpr int J = 4;

// An operand of rows of 64 bytes at `begin` of shared memory, 8 rows a unit.
__device__ uint64_t operand(uint32_t begin = 0) {
    return uint64_t{2} << 62 | uint64_t{512 >> 4} << 32 | (ptx::shared_base() + begin) >> 4;
}

// Fills the first bytes of shared memory, 64 a thread, and shows them to the asynchronous proxy.
__device__ void fill() {
    for (uint32_t i = 0; i < 4; ++i) {
        ptx::store_shared(ptx::shared_base() + threadIdx.x * 64 + i * 16, make_uint4(1, 2, 3, 4));
    }
    ptx::fence_proxy_async();
    ptx::barrier();
}

struct Fragments {
    float d[J][4] = {};
    uint32_t a[1][4] = {};
};

} // namespace

// ---------------------------------------------------------------- fences

KERNEL no_fence(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false); // reported
}

KERNEL a_not_fenced(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false); // reported
}

KERNEL a_written_behind_the_fence(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    of.a[0][2] = 1;
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false); // reported
}

KERNEL d_written_behind_the_fence(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    of.d[3][3] = 1.0f;
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), true); // reported
}

KERNEL used_again_without_a_fence(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(of.d);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), true); // reported
}

// ---------------------------------------------------------------- waits

KERNEL fenced_while_under_way(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_commit();
    ptx::wgmma_fence(of.d); // reported
}

KERNEL a_written_while_under_way(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_commit();
    of.a[0][1] = 7;
    ptx::wgmma_wait<0>(of.d); // reported
}

KERNEL d_written_while_under_way(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_commit();
    of.d[1][1] = 7.0f;
    ptx::wgmma_wait<0>(of.d); // reported
}

KERNEL waited_for_too_few(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(of.d); // reported
}

KERNEL not_committed(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_wait<0>(of.d); // reported
}

KERNEL left_alone(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false); // reported
    ptx::wgmma_commit();
}

// What is read too early is NaN, or not.
KERNEL read_while_under_way(const __grid_constant__ TestArguments p) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_commit();
    ptx::store_global(p.output + threadIdx.x, __float_as_uint(of.d[1][2]));
    ptx::wgmma_wait<0>(of.d);
}

// ---------------------------------------------------------------- shared memory

KERNEL operand_not_fenced(const __grid_constant__ TestArguments) {
    ptx::store_shared(ptx::shared_base() + threadIdx.x * 16, make_uint4(1, 2, 3, 4));
    ptx::barrier();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false); // reported
}

KERNEL operand_unwritten(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(8192 - 512), false); // reported
}

KERNEL operand_under_way(const __grid_constant__ TestArguments p) {
    fill();
    Fragments of;
    ptx::cp_async_16(ptx::shared_base() + threadIdx.x % 32 * 64 + threadIdx.x / 32 * 16, p.input, 16);
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false); // reported
}

KERNEL operand_beyond(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(16384), false); // reported
}

KERNEL operand_misaligned(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(128), false); // reported
}

KERNEL operand_overwritten(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, operand(), operand(), false);
    ptx::wgmma_commit();
    if (threadIdx.x == 0) ptx::store_shared<uint32_t>(ptx::shared_base(), 1); // reported
    ptx::wgmma_wait<0>(of.d);
}

// ---------------------------------------------------------------- warps and warpgroups

KERNEL operands_of_lanes(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(threadIdx.x % 32 == 5 ? 1024 : 0), false); // reported
}

KERNEL operands_of_warps(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(threadIdx.x / 32 == 2 ? 1024 : 0), false); // reported
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(of.d);
}

KERNEL warps_apart(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    ptx::wgmma_fence(of.d, of.a);
    if (threadIdx.x / 32 == 1) {
        ptx::wgmma_commit(); // reported
    } else {
        ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false); // reported
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(of.d);
}

KERNEL warp_without(const __grid_constant__ TestArguments) {
    fill();
    Fragments of;
    if (threadIdx.x / 32 == 3) return;
    ptx::wgmma_fence(of.d, of.a); // reported
    ptx::wgmma_m64k16_bf16<false>(of.d, of.a[0], operand(), false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(of.d);
}

KERNEL half_a_warpgroup(const __grid_constant__ TestArguments) {
    Fragments of;
    ptx::wgmma_fence(of.d); // reported
}

// ---------------------------------------------------------------- numbers of registers

KERNEL too_many_registers(const __grid_constant__ TestArguments) {
    ptx::registers_increase<264>(); // reported
}

KERNEL too_many_together(const __grid_constant__ TestArguments) {
    if (threadIdx.x < 128) {
        ptx::registers_increase<256>(); // reported
    } else {
        ptx::registers_increase<240>(); // reported
    }
    ptx::barrier();
    if (threadIdx.x < 128) return;
    ptx::registers_increase<256>();
    ptx::registers_increase<24>(); // reported
}

KERNEL registers_of_a_warp(const __grid_constant__ TestArguments) {
    if (threadIdx.x < 32) {
        ptx::registers_decrease<24>(); // reported
    } else {
        ptx::registers_decrease<32>(); // reported
    }
}
