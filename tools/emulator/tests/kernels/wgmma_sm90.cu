// Products of a warpgroup's matrices, which only sm_90 has.
#include "arguments.h"
#include "ptx.cuh"

namespace {

// Words of the input: descriptors of a and of b; each thread's fragments of a; of c, 128 words; then shared memory.
constexpr uint32_t LEFT = 4, BEFORE = LEFT + 128 * 4, IMAGE = BEFORE + 128 * 128, IMAGE_WORDS = 10240;

// A descriptor whose addresses begin with the block's shared memory.
__device__ __forceinline__ uint64_t descriptor(const uint32_t *words) {
    const uint2 both = ptx::load_global(reinterpret_cast<const uint2 *>(words));
    const uint64_t base = (ptx::shared_base() & 0x3FFFF) >> 4;
    return (static_cast<uint64_t>(both.y) << 32 | both.x) + base;
}

template <int J> __device__ __forceinline__ void load(float (&c)[J][4], const TestArguments &p, uint32_t thread) {
    for (int i = 0; i < 4 * J; ++i) {
        c[i / 4][i % 4] = __uint_as_float(ptx::load_global(p.input + BEFORE + thread * 128 + i));
    }
}

template <int J> __device__ __forceinline__ void store(const float (&c)[J][4], uint32_t *to) {
    for (int i = 0; i < 4 * J; ++i) ptx::store_global(to + i, __float_as_uint(c[i / 4][i % 4]));
}

__device__ __forceinline__ void load(uint32_t (&a)[1][4], const TestArguments &p, uint32_t thread) {
    for (int i = 0; i < 4; ++i) a[0][i] = ptx::load_global(p.input + LEFT + thread * 4 + i);
}

__device__ __forceinline__ void fill(const TestArguments &p) {
    for (uint32_t i = threadIdx.x; i < IMAGE_WORDS; i += blockDim.x) {
        ptx::store_shared(ptx::shared_base() + i * 4, ptx::load_global(p.input + IMAGE + i));
    }
    ptx::fence_proxy_async();
    ptx::barrier();
}

template <int J, bool TRANSPOSED, bool IN_SHARED, bool LEFT_TRANSPOSED>
__device__ __forceinline__ void multiply(const TestArguments &p) {
    const uint32_t thread = threadIdx.x;
    float c[J][4];
    uint32_t a[1][4];
    load(c, p, thread);
    load(a, p, thread);
    const uint64_t left = descriptor(p.input), right = descriptor(p.input + 2);
    ptx::wgmma_fence(c, a);
    if constexpr (IN_SHARED) {
        ptx::wgmma_m64k16_bf16<TRANSPOSED, LEFT_TRANSPOSED>(c, left, right, p.b != 0);
    } else {
        ptx::wgmma_m64k16_bf16<TRANSPOSED>(c, a[0], right, p.b != 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(c);
    store(c, p.output + thread * 4 * J);
}

template <int J> __device__ __forceinline__ void multiply(const TestArguments &p) {
    switch (p.a % 8) {
    case 0: multiply<J, false, false, false>(p); break;
    case 1: multiply<J, true, false, false>(p); break;
    case 2: multiply<J, false, true, false>(p); break;
    case 3: multiply<J, true, true, false>(p); break;
    case 6: multiply<J, false, true, true>(p); break;
    default: multiply<J, true, true, true>(p); break;
    }
}

} // namespace

// The sum of c, if `b` is not 0, and the product. In `a`: 1, b is transposed; 2, a is in shared memory; 4, and transposed; and
// eight times the number of fragments.
extern "C" __global__ void __launch_bounds__(128) wgmma(const __grid_constant__ TestArguments p) {
    fill(p);
    switch (p.a / 8) {
    case 1: multiply<1>(p); break;
    case 4: multiply<4>(p); break;
    case 8: multiply<8>(p); break;
    case 16: multiply<16>(p); break;
    case 24: multiply<24>(p); break;
    default: multiply<32>(p); break;
    }
}

// Two groups: the product alone, of eight fragments, and what it is with itself added twice to c, of four. The first
// warpgroup gives its registers to the second, which multiplies.
extern "C" __global__ void __launch_bounds__(256, 2) wgmma_groups(const __grid_constant__ TestArguments p) {
    fill(p);
    if (threadIdx.x < 128) {
        ptx::registers_decrease<24>();
        return;
    }
    ptx::registers_increase<232>();
    const uint32_t thread = threadIdx.x - 128;
    float first[8][4], second[4][4];
    uint32_t a[1][4];
    load(first, p, thread);
    load(second, p, thread);
    load(a, p, thread);
    const uint64_t right = descriptor(p.input + 2);
    ptx::wgmma_fence(first, second, a);
    ptx::wgmma_m64k16_bf16<false>(first, a[0], right, false);
    ptx::wgmma_commit();
    ptx::wgmma_m64k16_bf16<false>(second, a[0], right, true);
    ptx::wgmma_m64k16_bf16<false>(second, a[0], right, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(first);
    store(first, p.output + thread * 48);
    ptx::wgmma_fence(first);
    ptx::wgmma_m64k16_bf16<false>(first, descriptor(p.input), right, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(second);
    ptx::wgmma_wait<0>(first);
    store(second, p.output + thread * 48 + 32);
    store(first, p.output + 128 * 48 + thread * 32);
}
