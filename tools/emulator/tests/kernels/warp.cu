// What the lanes of a warp do together. A warp each; lanes put what they get at output[lane · words].
#include "arguments.h"
#include "ptx.cuh"

namespace {

__device__ uint4 load_row(const uint32_t *from) { return ptx::load_global(reinterpret_cast<const uint4 *>(from)); }

__device__ void store_four(const TestArguments &p, const uint32_t (&words)[4]) {
    for (int i = 0; i < 4; ++i) {
        ptx::store_global(p.output + threadIdx.x * 4 + i, words[i]);
    }
}

// Puts row `lane` of the input, 16 bytes, in shared memory; gives the address of row (lane · a + b) mod 32.
__device__ ptx::Shared rows(const TestArguments &p) {
    const uint32_t lane = threadIdx.x;
    ptx::store_shared(ptx::shared_base() + lane * 16, load_row(p.input + lane * 4));
    ptx::sync_warp();
    return ptx::shared_base() + (lane * static_cast<uint32_t>(p.a) + static_cast<uint32_t>(p.b)) % 32 * 16;
}

} // namespace

extern "C" __global__ void __launch_bounds__(32) ldmatrix(const __grid_constant__ TestArguments p) {
    uint32_t words[4];
    ptx::ldmatrix_x4(words, rows(p));
    store_four(p, words);
}

extern "C" __global__ void __launch_bounds__(32) ldmatrix_transposed(const __grid_constant__ TestArguments p) {
    uint32_t words[4];
    ptx::ldmatrix_x4_transposed(words, rows(p));
    store_four(p, words);
}

// Input: a, 4 words a lane; b, 2; c, 4. The product is added `a` times.
extern "C" __global__ void __launch_bounds__(32) mma(const __grid_constant__ TestArguments p) {
    const uint32_t lane = threadIdx.x;
    uint32_t a[4], b[2];
    float c[4];
    for (int i = 0; i < 4; ++i) {
        a[i] = ptx::load_global(p.input + lane * 4 + i);
        c[i] = __uint_as_float(ptx::load_global(p.input + 192 + lane * 4 + i));
    }
    for (int i = 0; i < 2; ++i) {
        b[i] = ptx::load_global(p.input + 128 + lane * 2 + i);
    }
    for (int i = 0; i < p.a; ++i) {
        ptx::mma_m16n8k16_bf16(c, a, b[0], b[1]);
    }
    store_four(p, {__float_as_uint(c[0]), __float_as_uint(c[1]), __float_as_uint(c[2]), __float_as_uint(c[3])});
}

// Eight words a lane: every way to pass its input to another, and a vote.
extern "C" __global__ void __launch_bounds__(32) passes(const __grid_constant__ TestArguments p) {
    const uint32_t lane = threadIdx.x, a = static_cast<uint32_t>(p.a);
    const uint32_t value = ptx::load_global(p.input + lane);
    uint32_t *to = p.output + lane * 8;
    ptx::store_global(to, ptx::shuffle_xor(value, a));
    ptx::store_global(to + 1, __float_as_uint(ptx::shuffle_xor(__uint_as_float(value), a)));
    ptx::store_global(to + 2, ptx::shuffle(value, lane * a));
    ptx::store_global(to + 3, __float_as_uint(ptx::shuffle(__uint_as_float(value), a)));
    ptx::store_global(to + 4, ptx::shuffle_up(value, a));
    ptx::store_global(to + 5, ptx::shuffle_down(value, a));
    ptx::store_global(to + 6, ptx::ballot((value & 1) != 0));
    // The neighbour's value through shared memory, which sync_warp orders.
    ptx::store_shared(ptx::shared_base() + lane * 4, value);
    ptx::sync_warp();
    ptx::store_global(to + 7, ptx::load_shared<uint32_t>(ptx::shared_base() + (lane + 1) % 32 * 4));
}
