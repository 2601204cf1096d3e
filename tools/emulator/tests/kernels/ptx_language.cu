// What nvcc makes of ordinary C++: loops, switches, calls, local arrays, constants, 64-bit and floating-point arithmetic.
// Thread t of the grid writes words `output[t * RESULTS + n]`; the last word of `output` counts steps.
#include <stdint.h>

struct Arguments {
    // [rows]
    const int32_t *input;
    // [threads * RESULTS + 1]
    uint32_t *output;
    int32_t rows;
    int32_t divisor;
};

namespace {

constexpr int RESULTS = 8, THREADS = 96;

__constant__ int32_t steps[5] = {3, 1, 4, 1, 5};

// How many steps of x/2 or 3x+1 lead to 1, at most `most`.
__device__ __noinline__ int32_t collatz(uint32_t x, int32_t most) {
    for (int32_t n = 0; n < most; ++n) {
        if (x == 1) return n;
        x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    }
    return most;
}

__device__ __forceinline__ int32_t choose(int32_t which, int32_t x) {
    switch (which) {
    case 0: return x + 7;
    case 1: return x * x;
    case 2: return -x;
    case 3: return x >> 3;
    case 4: return x ^ 0x55;
    case 5: return collatz(x & 255, 50);
    default: return x % 11;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS) ptx_language(const __grid_constant__ Arguments p) {
    __shared__ int32_t sums[THREADS];
    const int32_t thread = threadIdx.x, number = blockIdx.x * THREADS + thread;
    uint32_t *to = p.output + number * RESULTS;
    const int32_t x = number < p.rows ? p.input[number] : 1;

    // 0: the block's sum, by halves.
    sums[thread] = x;
    __syncthreads();
    for (int32_t half = 64; half > 0; half /= 2) {
        if (thread < half && thread + half < THREADS) sums[thread] += sums[thread + half];
        __syncthreads();
    }
    to[0] = sums[0];

    // 1: a local array at indices that are not known before.
    int32_t local[16];
    for (int32_t n = 0; n < 16; ++n) local[n] = x + n * steps[n % 5];
    for (int32_t n = 0; n < (thread & 15); ++n) local[(x + n) & 15] += local[(x + 2 * n) & 15];
    to[1] = local[thread & 15];

    // 2: a call or another branch for each lane.
    to[2] = choose(number % 7, x);

    // 3, 4: divisions.
    const int64_t wide = static_cast<int64_t>(x) * 0x123456789ll + number;
    to[3] = x / p.divisor + x % p.divisor;
    to[4] = static_cast<uint32_t>(wide / (p.divisor * 1000003ll)) + static_cast<uint32_t>(static_cast<uint64_t>(wide) % 1009u);

    // 5: floating-point arithmetic, rounded once an operation.
    const float f = static_cast<float>(x) / 3.0f;
    const double d = static_cast<double>(x) * 0.1;
    to[5] = __float_as_uint(sqrtf(fabsf(fmaf(f, 1.25f, -2.0f))) + floorf(f) + static_cast<float>(d));

    // 6: lanes count inside of a branch, by themselves.
    uint32_t votes = 0;
    if (thread % 32 < 20) votes = __ballot_sync(0xfffff, x > 0) + __shfl_xor_sync(0xfffff, x, 1);
    to[6] = votes;

    // 7: how many threads of the block hold, and an early end.
    const int32_t holding = __syncthreads_count(x % 2 == 0);
    if (number >= p.rows) return;
    to[7] = holding;
    atomicAdd(p.output + gridDim.x * THREADS * RESULTS, steps[number % 5]);
}
