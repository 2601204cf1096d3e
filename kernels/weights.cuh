// Gradients of a linear layer's parameters: products over rows, a part of them a block.
#pragma once

#include "gemm.cuh"

namespace gemm {

// Σ over the tile's 64 rows of each of M·16 columns from `column` on; every column of a fragment has them.
template <int M> __device__ __forceinline__ void sum_rows(float (&sums)[M][4], Tile<64> tile, int column, int lane) {
    constexpr uint32_t ONES = 0x3f803f80;
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            uint32_t a[4];
            left_fragment<true>(a, tile, column + m * 16, k, lane);
            ptx::mma_m16n8k16_bf16(sums[m], a, ONES, ONES);
        }
    }
}

// Stores such sums.
template <int M> __device__ __forceinline__ void store_sums(const float (&sums)[M][4], float *to, int lane) {
    if ((lane & 3) != 0) return;
#pragma unroll
    for (int m = 0; m < M; ++m) {
        ptx::store_global(to + m * 16 + (lane >> 2), sums[m][0]);
        ptx::store_global(to + m * 16 + (lane >> 2) + 8, sums[m][2]);
    }
}

// dyᵀ·right for 128 outputs from `output` on, 64 columns, and the rows from `first` to `end`: set in d_weight, rows of
// `stride` values; and Σ dy in d_bias where that is not null. Both point to output 0. `fill(tile, row, valid)` copies or
// makes the right operand's 64 rows from `row` on, of which `valid` count.
template <int THREADS, class Fill>
__device__ __forceinline__ void weights(Matrix<const uint16_t> dy, int outputs, int output, int first, int end,
                                        float *d_weight, size_t stride, float *d_bias, const Fill &fill) {
    static_assert(THREADS == 128);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    // The latter half of the outputs may be none.
    const int halves = outputs - output < ROWS ? 1 : 2;
    const bool busy = warp / 2 < halves;
    const int column = warp % 2 * WARP_ROWS;
    Results results;
    clear(results);
    float sums[2][4] = {};
    for_steps<THREADS / 32>(
        (end - first + STEP - 1) / STEP,
        [&](int step, Stage stage) {
            const int row = first + step * STEP;
            for (int half = 0; half < halves; ++half) {
                load<STEP, THREADS>(next(stage.left, half), dy.columns(row, output + half * 64), end - row);
            }
            fill(stage.right, row, end - row);
        },
        [&](Stage stage) {
            if (!busy) return;
            const Tile<64> left = next(stage.left, warp / 2);
            multiply<true, true>(results, left, column, stage.right, lane);
            if (d_bias != nullptr) sum_rows(sums, left, column, lane);
        });
    if (!busy) return;
    const size_t of_warp = output + warp * WARP_ROWS;
    store_f32(results, d_weight + of_warp * stride, stride, lane);
    if (d_bias != nullptr) store_sums(sums, d_bias + of_warp, lane);
}

} // namespace gemm
