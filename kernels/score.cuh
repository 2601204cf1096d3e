// The score head by rows: what the kernels of `score` and `score_loss` share. A warp has every eighth row, and a lane four
// neighbouring columns of each 128.
#pragma once

#include "score.h"

#include "row.cuh"

namespace score {

constexpr int WARPS = SCORE_THREADS / 32;
// Columns that a warp reads at once, and how often.
constexpr int COLUMNS = 128, TIMES = SCORE_MAX_WIDTH / COLUMNS;
// Rows of which a warp has loads under way.
constexpr int AT_ONCE = 4;
static_assert(SCORE_ROWS == AT_ONCE * WARPS && SCORE_PART_ROWS % WARPS == 0);

struct alignas(16) Four {
    float of[4];
};

struct alignas(8) Pairs {
    uint32_t of[2];
};

__device__ __forceinline__ Four unpack(const Pairs &pairs) {
    Four values;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        values.of[2 * e] = bf16_low(pairs.of[e]);
        values.of[2 * e + 1] = bf16_high(pairs.of[e]);
    }
    return values;
}

__device__ __forceinline__ void store(uint16_t *to, const Four &values) {
    Pairs pairs;
#pragma unroll
    for (int e = 0; e < 2; ++e) pairs.of[e] = ptx::pack_bf16(values.of[2 * e], values.of[2 * e + 1]);
    ptx::store_global(reinterpret_cast<Pairs *>(to), pairs);
}

// The first of a lane's columns of the k-th 128.
__device__ __forceinline__ int lane_column(int k) { return k * COLUMNS + (threadIdx.x & 31) * 4; }

// The rows [first, end) of x `[rows, width]`, and the weights of a lane's columns: 0 behind the width.
struct Rows {
    const uint16_t *x;
    int width, first, end;
    Four weights[TIMES];

    __device__ __forceinline__ Rows(const uint16_t *x, const float *weight, int width, int first, int end)
        : x(x), width(width), first(first), end(end) {
#pragma unroll
        for (int k = 0; k < TIMES; ++k) {
            const int column = lane_column(k);
            weights[k] = {};
            if (column < width) weights[k] = ptx::load_constant(reinterpret_cast<const Four *>(weight + column));
        }
    }

    // Calls `of(row, values)` for each of this warp's rows, in order, with a lane's values of it.
    template <class Of> __device__ __forceinline__ void each(const Of &of) const {
#pragma unroll 1
        for (int row = first + (threadIdx.x >> 5); row < end; row += AT_ONCE * WARPS) {
            Pairs values[AT_ONCE][TIMES];
#pragma unroll
            for (int r = 0; r < AT_ONCE; ++r) {
                const uint16_t *from = x + static_cast<size_t>(row + r * WARPS) * width;
#pragma unroll
                for (int k = 0; k < TIMES; ++k) {
                    const int column = lane_column(k);
                    values[r][k] = {};
                    if (row + r * WARPS < end && column < width) {
                        values[r][k] = ptx::load_constant(reinterpret_cast<const Pairs *>(from + column));
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < AT_ONCE; ++r) {
                if (row + r * WARPS < end) of(row + r * WARPS, values[r]);
            }
        }
    }

    // Has lane 0 call `put(row, w·x)` for each of this warp's rows.
    template <class Put> __device__ __forceinline__ void scores(const Put &put) const {
        each([&](int row, const Pairs (&pairs)[TIMES]) {
            float score = 0.0f;
#pragma unroll
            for (int k = 0; k < TIMES; ++k) {
                if (lane_column(k) < width) {
                    const Four values = unpack(pairs[k]);
#pragma unroll
                    for (int e = 0; e < 4; ++e) score += weights[k].of[e] * values.of[e];
                }
            }
            score = warp_sum(score);
            if ((threadIdx.x & 31) == 0) put(row, score);
        });
    }

    // Writes dx = ds·w, and dw `[width]` = Σ ds·x and db = Σ ds of all rows, given the ds of a row by `d_score_of(row)`. From
    // `by_column` on it takes a sum for each warp of each column, and behind these of ds.
    template <class DScoreOf>
    __device__ __forceinline__ void gradients(const DScoreOf &d_score_of, uint16_t *dx, float *d_weight, float *d_bias,
                                              ptx::Shared by_column) const {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        Four sums[TIMES] = {};
        float sum = 0.0f;
        each([&](int row, const Pairs (&pairs)[TIMES]) {
            const float d_score = d_score_of(row);
            uint16_t *to = dx + static_cast<size_t>(row) * width;
            sum += d_score;
#pragma unroll
            for (int k = 0; k < TIMES; ++k) {
                if (lane_column(k) < width) {
                    const Four values = unpack(pairs[k]);
                    Four gradient;
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        sums[k].of[e] += d_score * values.of[e];
                        gradient.of[e] = d_score * weights[k].of[e];
                    }
                    store(to + lane_column(k), gradient);
                }
            }
        });
        const ptx::Shared by_warp = by_column + WARPS * width * 4;
#pragma unroll
        for (int k = 0; k < TIMES; ++k) {
            const int column = lane_column(k);
            if (column < width) ptx::store_shared(by_column + (warp * width + column) * 4, sums[k]);
        }
        if (lane == 0) ptx::store_shared(by_warp + warp * 4, sum);
        ptx::barrier();
        const int column = threadIdx.x * 4;
        if (column < width) {
            Four total = {};
            for (int of = 0; of < WARPS; ++of) {
                const Four values = ptx::load_shared<Four>(by_column + (of * width + column) * 4);
#pragma unroll
                for (int e = 0; e < 4; ++e) total.of[e] += values.of[e];
            }
            ptx::store_global(reinterpret_cast<Four *>(d_weight + column), total);
        }
        if (threadIdx.x == 0) {
            float total = 0.0f;
            for (int of = 0; of < WARPS; ++of) total += ptx::load_shared<float>(by_warp + of * 4);
            ptx::store_global(d_bias, total);
        }
    }
};

} // namespace score
