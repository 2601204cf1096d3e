#include "row_sums.h"

#include "row.cuh"

// What gradients need besides products: ReLU's backward pass, and sums over the sets of the gradients of what they share.
//
//   relu_backward   dy[i] = y[i] > 0 ? dy[i] : 0
//   sum_repeats     out[g, i] = Σ_r x[g, r, i]     (queries that all sets share: g a head, r a set)
//                   into[g, i] += Σ_r y[r, g, i]     (the rows that they are of, by the residual)
//
// Shapes      relu_backward: dy, y [length] bf16; sum_repeats: x [groups, repeats, run], y [repeats, groups, run] and out
//             [groups, run] bf16, into [groups, run] f32. A ReLU's y that is NaN is not above 0.
// Checked     by the launcher (src/ops/row_sums/device.rs): length a multiple of 64, run one of 32, lengths, no overlap.
// Launch      a thread has 8 neighbouring columns; relu_backward: grid (length / 2048), 256 threads; sum_repeats: grid
//             (run / 512, groups, 2), the sums that are set, then those that are added, 64 threads; rounded up. No shared
//             memory.
// Types       sums in f32, rounded once; ReLU changes no bits of what it keeps.
// Determinism repeats in order, by one thread; their sum is added to what is there. No atomics.
// Writes      `=`: dy, out; `+=`: into.
// Cost        bytes, each once: 6·length; (4·repeats + 10)·groups·run. Bound by memory, and by the latency of loads where
//             there are few columns.

namespace {

static_assert(ROW_SUMS_VALUES == PIECE);

// The first of the thread's columns.
__device__ __forceinline__ int64_t first_column() {
    return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * ROW_SUMS_VALUES;
}

// The halves of a pair that are above 0, all bits of them.
__device__ __forceinline__ uint32_t above_zero(uint32_t pair) {
    return (bf16_low(pair) > 0.0f ? 0x0000ffffu : 0u) | (bf16_high(pair) > 0.0f ? 0xffff0000u : 0u);
}

// Sums of eight columns, `from` the first one's first row, over rows that are `run` values apart.
__device__ __forceinline__ void sum(float (&sums)[ROW_SUMS_VALUES], const uint16_t *from, int repeats, int64_t run) {
#pragma unroll
    for (int j = 0; j < ROW_SUMS_VALUES; ++j) sums[j] = 0.0f;
    // Unrolled, so that several loads are under way.
#pragma unroll 8
    for (int repeat = 0; repeat < repeats; ++repeat) {
        const auto packed = ptx::load_constant(reinterpret_cast<const uint4 *>(from));
        from += run;
        float values[PIECE];
        unpack(values, packed);
#pragma unroll
        for (int j = 0; j < PIECE; ++j) sums[j] += values[j];
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(ROW_SUMS_RELU_THREADS)
    relu_backward(const __grid_constant__ ReluBackward p) {
    const int64_t column = first_column();
    if (column >= p.length) return;
    const auto y = ptx::load_constant(reinterpret_cast<const uint4 *>(p.y + column));
    auto *const at = reinterpret_cast<uint4 *>(p.dy + column);
    auto dy = ptx::load_global(at);
    dy.x &= above_zero(y.x);
    dy.y &= above_zero(y.y);
    dy.z &= above_zero(y.z);
    dy.w &= above_zero(y.w);
    ptx::store_global(at, dy);
}

extern "C" __global__ void __launch_bounds__(ROW_SUMS_THREADS) sum_repeats(const __grid_constant__ SumRepeats p) {
    const int64_t column = first_column(), group = blockIdx.y;
    if (column >= p.run) return;
    const bool adds = blockIdx.z != 0;
    const int64_t to = group * p.run + column;
    float sums[ROW_SUMS_VALUES];
    sum(sums, adds ? p.y + to : p.x + group * p.repeats * p.run + column, p.repeats, adds ? gridDim.y * p.run : p.run);
    if (!adds) {
        store_piece(p.out + to, sums);
        return;
    }
#pragma unroll
    for (int j = 0; j < ROW_SUMS_VALUES; j += 4) {
        auto *const at = reinterpret_cast<float4 *>(p.into + to + j);
        auto four = ptx::load_global(at);
        four.x += sums[j];
        four.y += sums[j + 1];
        four.z += sums[j + 2];
        four.w += sums[j + 3];
        ptx::store_global(at, four);
    }
}
