#include "score.h"

#include "row.cuh"

// The score of each document, a linear layer with one output, and its gradients.
//
//   s_i = w·x_i + b,   dx_i = ds_i·w,   dw = Σ ds_i·x_i,   db = Σ ds_i
//
// Shapes      x, dx [N, C]; w, dw [C]; s, ds [N]; b, db [1]. Gradients of parameters leave a part for each 128 rows.
// Checked     by the launcher (src/ops/score/device.rs): C a multiple of 64 up to 512, lengths, no overlap.
// Launch      forward: grid (N / 32), no shared memory; backward: grid (N / 128), shared memory: 8 sums of C values and
//             8 of one. 256 threads, a warp a row; a lane has four neighbouring columns of each 128.
// Types       x and dx bf16, all else and all sums f32.
// Determinism a row's columns are summed in a lane, then across lanes; a part's rows in a warp, then across warps; parts by
//             `partial_sums`. No atomics.
// Writes      `=`: scores, dx and all parts.
// Cost        forward 2·N·C bytes, backward 4·N·C, each once. Bound by memory.

namespace {

constexpr int WARPS = SCORE_THREADS / 32;
// Columns that a warp reads at once, and how often.
constexpr int COLUMNS = 128, TIMES = SCORE_MAX_WIDTH / COLUMNS;
static_assert(SCORE_ROWS % WARPS == 0 && SCORE_PART_ROWS % WARPS == 0);

struct alignas(16) Four {
    float of[4];
};

struct alignas(8) Pairs {
    uint32_t of[2];
};

__device__ __forceinline__ Four load(const uint16_t *from) {
    const Pairs pairs = ptx::load_constant(reinterpret_cast<const Pairs *>(from));
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

// The weights of a lane's columns: 0 behind the width.
__device__ __forceinline__ void load_weights(Four (&weights)[TIMES], const float *weight, int width, int lane) {
#pragma unroll
    for (int k = 0; k < TIMES; ++k) {
        const int column = k * COLUMNS + lane * 4;
        weights[k] = {};
        if (column < width) weights[k] = ptx::load_constant(reinterpret_cast<const Four *>(weight + column));
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(SCORE_THREADS) score_forward(const __grid_constant__ ScoreForward p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int first = static_cast<int>(blockIdx.x) * SCORE_ROWS, end = min(p.rows, first + SCORE_ROWS);
    Four weights[TIMES];
    load_weights(weights, p.weight, p.width, lane);
    const float bias = ptx::load_constant(p.bias);
    for (int row = first + warp; row < end; row += WARPS) {
        const uint16_t *x = p.x + static_cast<size_t>(row) * p.width;
        float score = 0.0f;
#pragma unroll
        for (int k = 0; k < TIMES; ++k) {
            const int column = k * COLUMNS + lane * 4;
            if (column < p.width) {
                const Four values = load(x + column);
#pragma unroll
                for (int e = 0; e < 4; ++e) score += weights[k].of[e] * values.of[e];
            }
        }
        score = warp_sum(score);
        if (lane == 0) ptx::store_global(p.scores + row, score + bias);
    }
}

extern "C" __global__ void __launch_bounds__(SCORE_THREADS) score_backward(const __grid_constant__ ScoreBackward p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int first = static_cast<int>(blockIdx.x) * SCORE_PART_ROWS, end = min(p.rows, first + SCORE_PART_ROWS);
    Four weights[TIMES], sums[TIMES] = {};
    load_weights(weights, p.weight, p.width, lane);
    float sum = 0.0f;
    for (int row = first + warp; row < end; row += WARPS) {
        const size_t begin = static_cast<size_t>(row) * p.width;
        const float d_score = ptx::load_constant(p.d_scores + row);
        sum += d_score;
#pragma unroll
        for (int k = 0; k < TIMES; ++k) {
            const int column = k * COLUMNS + lane * 4;
            if (column < p.width) {
                const Four values = load(p.x + begin + column);
                Four dx;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sums[k].of[e] += d_score * values.of[e];
                    dx.of[e] = d_score * weights[k].of[e];
                }
                store(p.dx + begin + column, dx);
            }
        }
    }
    // Of each warp: its sums by column, and behind those of all warps its sum of ds.
    const ptx::Shared by_column = ptx::shared_base(), by_warp = by_column + WARPS * p.width * 4;
#pragma unroll
    for (int k = 0; k < TIMES; ++k) {
        const int column = k * COLUMNS + lane * 4;
        if (column < p.width) ptx::store_shared(by_column + (warp * p.width + column) * 4, sums[k]);
    }
    if (lane == 0) ptx::store_shared(by_warp + warp * 4, sum);
    ptx::barrier();
    const int column = threadIdx.x * 4;
    if (column < p.width) {
        Four total = {};
        for (int of = 0; of < WARPS; ++of) {
            const Four values = ptx::load_shared<Four>(by_column + (of * p.width + column) * 4);
#pragma unroll
            for (int e = 0; e < 4; ++e) total.of[e] += values.of[e];
        }
        float *to = p.d_weight + static_cast<size_t>(blockIdx.x) * p.width + column;
        ptx::store_global(reinterpret_cast<Four *>(to), total);
    }
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int of = 0; of < WARPS; ++of) total += ptx::load_shared<float>(by_warp + of * 4);
        ptx::store_global(p.d_bias + blockIdx.x, total);
    }
}
