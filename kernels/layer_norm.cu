#include "layer_norm.h"

#include "row.cuh"

namespace {

constexpr int THREADS = LAYER_NORM_THREADS, BLOCK_WARPS = THREADS / 32;
// A lane has two pieces of its row, 256 columns apart, so that a warp's accesses are whole lines.
constexpr int LANE_PIECES = 2, PIECE_STRIDE = 32 * PIECE;
static_assert(LANE_PIECES * PIECE_STRIDE == LAYER_NORM_WARP_COLUMNS, "a warp has 512 columns");
static_assert(2 * BLOCK_WARPS * 4 == LAYER_NORM_SUM_BYTES, "two sums of each warp");

// The columns of a row that a thread has, where WARPS warps share the row.
template <int WARPS> struct Columns {
    int lane, warp, width;

    __device__ __forceinline__ explicit Columns(int width)
        : lane(threadIdx.x & 31), warp(threadIdx.x >> 5), width(width) {}

    // Which of the block's rows it is.
    __device__ __forceinline__ int row() const { return warp / WARPS; }

    // The first column of a piece; it may be outside of the row.
    __device__ __forceinline__ int of(int piece) const {
        return (warp % WARPS * LANE_PIECES + piece) * PIECE_STRIDE + lane * PIECE;
    }
};

using Values = float[LANE_PIECES][PIECE];

// x + added of a row; 0 outside of it.
template <int WARPS>
__device__ __forceinline__ void load_sum(Values &values, const Columns<WARPS> &columns, const uint16_t *x,
                                         const uint16_t *added, int row, int period) {
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
        const int column = columns.of(i);
        const bool inside = column < columns.width;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) values[i][e] = 0.0f;
        if (!inside) continue;
        load_piece(values[i], x + static_cast<size_t>(row) * columns.width + column);
        if (added == nullptr) continue;
        float more[PIECE];
        load_piece(more, added + static_cast<size_t>(row % period) * columns.width + column);
#pragma unroll
        for (int e = 0; e < PIECE; ++e) values[i][e] += more[e];
    }
}

// Sums over whole rows. The warps of a wide row pass theirs through shared memory, in two places by turns: a warp that
// is ahead waits at the next sum's barrier before it comes back to the same place.
template <int WARPS> struct RowSum {
    const Columns<WARPS> &columns;
    int turn = 0;

    __device__ __forceinline__ float of(float value) {
        value = warp_sum(value);
        if constexpr (WARPS > 1) {
            const ptx::Shared place = ptx::shared_base() + turn * BLOCK_WARPS * 4;
            if (columns.lane == 0) ptx::store_shared(place + columns.warp * 4, value);
            ptx::barrier_sync(1 + columns.row(), WARPS * 32);
            value = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; ++i) value += ptx::load_shared<float>(place + (columns.row() * WARPS + i) * 4);
            turn ^= 1;
        }
        return value;
    }

    __device__ __forceinline__ float of(const Values &values) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_PIECES; ++i) {
#pragma unroll
            for (int e = 0; e < PIECE; ++e) sum += values[i][e];
        }
        return of(sum);
    }
};

// LayerNorm of a residual sum, forward.
//
//   y = γ·(v − mean)/√(variance + eps) + β,   v[i] = x[i] + added[i % period]
//
// Shapes      x, y [rows, C]; added [period, C] or none; γ, β [C]; statistics [rows, 2]: mean, 1/√(variance + eps).
// Checked     by the launcher (src/ops/layer_norm/device.rs): C a multiple of 64, at most 2048; 16-byte alignment.
// Launch      a warp a row, four where C > 512: grid (⌈rows / 8⌉ or ⌈rows / 2⌉); 256 threads; shared memory for wide rows.
// Types       bf16 in and out; everything between in f32. The mean is corrected by that of what is left of the values:
//             a row of equal values is β, however small eps is.
// Determinism a row has the same bits in any batch.
// Writes      `=`: y and statistics.
// Cost        4·C bytes a row, and 2·C of added; bound by memory.
template <int WARPS> __device__ __forceinline__ void layer_norm_forward(const LayerNormForward &p) {
    const Columns<WARPS> columns(p.width);
    const int row = blockIdx.x * (BLOCK_WARPS / WARPS) + columns.row();
    if (row >= p.rows) return;
    RowSum<WARPS> sum{columns};
    Values values;
    load_sum(values, columns, p.x, p.added, row, p.period);
    float mean = 0.0f;
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
        const float rest = sum.of(values) * p.share;
        mean += rest;
#pragma unroll
        for (int i = 0; i < LANE_PIECES; ++i) {
            if (columns.of(i) < p.width) {
#pragma unroll
                for (int e = 0; e < PIECE; ++e) values[i][e] -= rest;
            }
        }
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
#pragma unroll
        for (int e = 0; e < PIECE; ++e) squares = fmaf(values[i][e], values[i][e], squares);
    }
    // The approximate root with a step of Newton's: as good as the exact one and a division, whose calls need a stack.
    const float variance = fmaf(sum.of(squares), p.share, p.eps), near = rsqrtf(variance);
    const float inverse = fmaf(0.5f * near, fmaf(-variance * near, near, 1.0f), near);
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
        const int column = columns.of(i);
        if (column >= p.width) continue;
        float weight[PIECE], bias[PIECE];
        load_piece(weight, p.weight + column);
        load_piece(bias, p.bias + column);
#pragma unroll
        for (int e = 0; e < PIECE; ++e) values[i][e] = fmaf(values[i][e] * inverse, weight[e], bias[e]);
        store_piece(p.y + static_cast<size_t>(row) * p.width + column, values[i]);
    }
    if (columns.warp % WARPS == 0 && columns.lane == 0) {
        const size_t at = static_cast<size_t>(row) * 2;
        ptx::store_global(reinterpret_cast<float2 *>(p.statistics + at), make_float2(mean, inverse));
    }
}

// LayerNorm of a residual sum, backward.
//
//   g = γ·dy,   n = (v − mean)·s,   dv = s·(g − mean(g) − n·mean(g·n)),   dγ = Σ dy·n,   dβ = Σ dy     (s, mean: statistics)
//
// Shapes      as forward; dy, dx [rows, C]; parts [2, runs, C].
// Checked     as forward.
// Launch      grid (runs): a block has 32 rows, a warp or four a row; 256 threads; shared memory: the warps' sums of rows,
//             and [8 or 2, 2, C] f32 sums of columns.
// Types       bf16 in and out; everything between, and the parts, in f32.
// Determinism a row of dx has the same bits in any batch; a part sums its rows in a fixed order.
// Writes      `=`: dx and parts, which `partial_sums` adds to the gradients.
// Cost        6·C bytes a row and 2·C of added; C / 4 of parts; bound by memory.
template <int WARPS> __device__ __forceinline__ void layer_norm_backward(const LayerNormBackward &p) {
    constexpr int ROWS = BLOCK_WARPS / WARPS;
    const Columns<WARPS> columns(p.width);
    RowSum<WARPS> sum{columns};
    Values weight, d_weight, d_bias;
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
#pragma unroll
        for (int e = 0; e < PIECE; ++e) weight[i][e] = d_weight[i][e] = d_bias[i][e] = 0.0f;
        if (columns.of(i) < p.width) load_piece(weight[i], p.weight + columns.of(i));
    }
    const int first = blockIdx.x * LAYER_NORM_RUN, end = min(p.rows, first + LAYER_NORM_RUN);
    for (int row = first + columns.row(); row < end; row += ROWS) {
        const float2 statistics = ptx::load_constant(reinterpret_cast<const float2 *>(p.statistics) + row);
        const float mean = statistics.x, inverse = statistics.y;
        Values normalized, g;
        load_sum(normalized, columns, p.x, p.added, row, p.period);
        float products = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_PIECES; ++i) {
            const bool inside = columns.of(i) < p.width;
#pragma unroll
            for (int e = 0; e < PIECE; ++e) g[i][e] = 0.0f;
            if (inside) load_piece(g[i], p.dy + static_cast<size_t>(row) * p.width + columns.of(i));
#pragma unroll
            for (int e = 0; e < PIECE; ++e) {
                normalized[i][e] = (normalized[i][e] - mean) * inverse;
                d_weight[i][e] = fmaf(g[i][e], normalized[i][e], d_weight[i][e]);
                d_bias[i][e] += g[i][e];
                g[i][e] *= weight[i][e];
                products = fmaf(g[i][e], normalized[i][e], products);
            }
        }
        const float mean_g = sum.of(g) * p.share, mean_product = sum.of(products) * p.share;
#pragma unroll
        for (int i = 0; i < LANE_PIECES; ++i) {
            if (columns.of(i) >= p.width) continue;
#pragma unroll
            for (int e = 0; e < PIECE; ++e) {
                g[i][e] = inverse * (g[i][e] - mean_g - normalized[i][e] * mean_product);
            }
            store_piece(p.dx + static_cast<size_t>(row) * p.width + columns.of(i), g[i]);
        }
    }

    // What the rows of a run gave side by side comes together in order.
    const ptx::Shared sums = ptx::shared_base() + LAYER_NORM_SUM_BYTES;
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
        if (columns.of(i) >= p.width) continue;
        const ptx::Shared to = sums + (columns.row() * 2 * p.width + columns.of(i)) * 4;
#pragma unroll
        for (int e = 0; e < PIECE; e += 4) {
            const float *w = &d_weight[i][e];
            const float *b = &d_bias[i][e];
            ptx::store_shared(to + e * 4, make_float4(w[0], w[1], w[2], w[3]));
            ptx::store_shared(to + (p.width + e) * 4, make_float4(b[0], b[1], b[2], b[3]));
        }
    }
    ptx::barrier();
    for (int at = threadIdx.x * 4; at < 2 * p.width; at += THREADS * 4) {
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const auto more = ptx::load_shared<float4>(sums + (row * 2 * p.width + at) * 4);
            total.x += more.x;
            total.y += more.y;
            total.z += more.z;
            total.w += more.w;
        }
        const bool is_bias = at >= p.width;
        const size_t run = blockIdx.x + (is_bias ? gridDim.x : 0u);
        float *part = p.parts + run * p.width + (is_bias ? at - p.width : at);
        ptx::store_global(reinterpret_cast<float4 *>(part), total);
    }
}

} // namespace

// Blocks of a multiprocessor are bounded so that the compiler does not spill for more of them.
#define LAYER_NORM_FORWARD(NAME, WARPS)                                                                               \
    extern "C" __global__ void __launch_bounds__(LAYER_NORM_THREADS, 4)                                              \
        NAME(const __grid_constant__ LayerNormForward p) {                                                           \
        layer_norm_forward<WARPS>(p);                                                                                 \
    }
LAYER_NORM_FORWARD(layer_norm_forward_narrow, 1)
LAYER_NORM_FORWARD(layer_norm_forward_wide, LAYER_NORM_WIDE_WARPS)

#define LAYER_NORM_BACKWARD(NAME, WARPS)                                                                              \
    extern "C" __global__ void __launch_bounds__(LAYER_NORM_THREADS, 2)                                              \
        NAME(const __grid_constant__ LayerNormBackward p) {                                                          \
        layer_norm_backward<WARPS>(p);                                                                                \
    }
LAYER_NORM_BACKWARD(layer_norm_backward_narrow, 1)
LAYER_NORM_BACKWARD(layer_norm_backward_wide, LAYER_NORM_WIDE_WARPS)
