#include "layer_norm.h"

#include "norm.cuh"

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

using Values = layer_norm::Values<LANE_PIECES>;

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
    bool inside[LANE_PIECES];
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) inside[i] = columns.of(i) < p.width;
    const float2 statistics = layer_norm::center(values, inside, p.share, p.eps, sum);
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
        if (!inside[i]) continue;
        const int column = columns.of(i);
        float weight[PIECE], bias[PIECE];
        load_piece(weight, p.weight + column);
        load_piece(bias, p.bias + column);
        layer_norm::scale(values[i], statistics.y, weight, bias);
        store_piece(p.y + static_cast<size_t>(row) * p.width + column, values[i]);
    }
    if (columns.warp % WARPS == 0 && columns.lane == 0) {
        ptx::store_global(reinterpret_cast<float2 *>(p.statistics) + row, statistics);
    }
}

// LayerNorm of a residual sum, backward.
//
//   g = γ·dy,   n = (v − mean)·s,   dv = s·(g − mean(g) − n·mean(g·n)),   dγ = Σ dy·n,   dβ = Σ dy     (s, mean: statistics)
//
// Shapes      as forward; d [rows, C]: dy, whose place dv takes; parts [2, runs, C].
// Checked     as forward.
// Launch      grid (runs): a block has 32 rows, a warp or four a row; 256 threads; shared memory: the warps' sums of rows,
//             and [8 or 2, 2, C] f32 sums of columns.
// Types       bf16 in and out; everything between, and the parts, in f32.
// Determinism a row of d has the same bits in any batch; a part sums its rows in a fixed order.
// Writes      `=`: d and parts, which `partial_sums` adds to the gradients.
// Cost        6·C bytes a row and 2·C of added; C / 4 of parts; bound by memory.
template <int WARPS> __device__ __forceinline__ void layer_norm_backward(const LayerNormBackward &p) {
    constexpr int ROWS = BLOCK_WARPS / WARPS;
    const Columns<WARPS> columns(p.width);
    RowSum<WARPS> sum{columns};
    layer_norm::Columns<LANE_PIECES> own{};
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
        if (columns.of(i) < p.width) load_piece(own.weight[i], p.weight + columns.of(i));
    }
    const int first = blockIdx.x * LAYER_NORM_RUN, end = min(p.rows, first + LAYER_NORM_RUN);
    for (int row = first + columns.row(); row < end; row += ROWS) {
        const float2 statistics = ptx::load_constant(reinterpret_cast<const float2 *>(p.statistics) + row);
        uint16_t *const d_row = p.d + static_cast<size_t>(row) * p.width;
        Values value, d{};
        load_sum(value, columns, p.x, p.added, row, p.period);
#pragma unroll
        for (int i = 0; i < LANE_PIECES; ++i) {
            if (columns.of(i) < p.width) load_changing_piece(d[i], d_row + columns.of(i));
        }
        own.backward(d, value, statistics, p.share, sum);
#pragma unroll
        for (int i = 0; i < LANE_PIECES; ++i) {
            if (columns.of(i) < p.width) store_piece(d_row + columns.of(i), d[i]);
        }
    }

    // What the rows of a run gave side by side comes together in order.
    const ptx::Shared sums = ptx::shared_base() + LAYER_NORM_SUM_BYTES;
#pragma unroll
    for (int i = 0; i < LANE_PIECES; ++i) {
        if (columns.of(i) < p.width) own.put(sums + columns.row() * 8 * p.width, i, columns.of(i), p.width);
    }
    ptx::barrier();
    layer_norm::store_sums<THREADS>(p.parts, sums, ROWS, p.width);
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
