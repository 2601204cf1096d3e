#include "norm_linear.h"

#include "few_rows.cuh"
#include "norm_rows.cuh"

// LayerNorm of a residual sum and the linear layer behind it, where rows are few, such as a single query's documents: one launch
// less for each layer that takes such rows.
//
//   y = activation(r·Wᵀ + b),   r = γ·(v − mean)/√(variance + eps) + β,   v[i] = x[i] + added[i % period]
//
// Shapes      x, normalized (r) [rows, C]; added [period, C]; γ, β [C]; statistics [rows, 2]: mean, 1/√(variance + eps);
//             W [outputs, C]; b [outputs]; y [outputs / width, rows, width], as `linear_forward` has it.
// Checked     by the launcher (src/ops/norm_linear/device.rs): C 64, 128, 192 or 256, outputs a multiple of 64, lengths, no
//             overlap.
// Launch      grid (outputs / 64 · rows / ROWS), the outputs fastest, ROWS 16 or 32; 128 threads, a warp for each 16 of the
//             block's 64 columns, and of LayerNorm for ROWS / 4 rows, four at a time. Shared memory: the block's 64 rows of W,
//             which are on their way while LayerNorm is computed, and of r: 2·C·(64 + ROWS) bytes, at C = 256 40 or 48 KiB.
// Types       bf16 in and out; γ, β, b, statistics and all sums in f32; r is rounded to bf16, as an apart kernel rounds it.
// Determinism r and statistics have the bits of `layer_norm_forward`, and y those of `linear_forward` of r. No atomics.
// Writes      `=`: y, and by the first block of each row's r and statistics.
// Cost        2·rows·C·outputs FLOPs; x and what is added are read outputs/64 times, and so often is LayerNorm computed; W
//             rows/ROWS times; all by way of L2. Bound by latency: where the reads that are more than two kernels' take longer
//             than a launch, plans take these (src/ops/norm_linear/plan.rs).

namespace {

// What a block has in shared memory: 64 columns a tile of its rows of W, and behind them of LayerNorm's rows.
template <int C, int ROWS> struct Shared {
    static constexpr int WEIGHT = Tile<64>::bytes(gemm::COLUMNS), ROW = Tile<64>::bytes(ROWS);

    static __device__ __forceinline__ Tile<64> weight(int number) { return {ptx::shared_base() + number * WEIGHT}; }
    static __device__ __forceinline__ Tile<64> rows(int number) {
        return {ptx::shared_base() + C / 64 * WEIGHT + number * ROW};
    }
};

template <int C, int ROWS> __device__ __forceinline__ void norm_linear(const NormLinear &p) {
    using Tiles = Shared<C, ROWS>;
    constexpr int THREADS = few_rows::THREADS, OF_WARP = ROWS * 32 / THREADS;
    const auto place = few_rows::Place::of_block<ROWS>(p.outputs);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, valid = p.rows - place.row;
    const gemm::Matrix<const uint16_t> weight{p.weight, p.outputs, C};
#pragma unroll 1
    for (int k = 0; k < C / 64; ++k) {
        gemm::load<gemm::COLUMNS, THREADS>(Tiles::weight(k), weight.columns(place.column, k * 64), gemm::COLUMNS);
    }
    ptx::cp_async_commit();
    layer_norm::forward_rows({p.x, p.added, p.scale, p.shift, p.statistics, p.normalized, p.period, p.eps},
                             layer_norm::NormRows<C, OF_WARP>{place.row, valid, warp * OF_WARP},
                             place.column == 0 ? valid : 0,
                             [=](int row) { return Tiles::rows(lane / 8).at(row, lane % 8); });
    ptx::cp_async_wait<0>();
    ptx::barrier();
    few_rows::Results<ROWS> results;
    gemm::clear(results);
#pragma unroll 1
    for (int k = 0; k < C / 64; ++k) {
        gemm::multiply<false, false>(results, Tiles::rows(k), 0, Tiles::weight(k), lane, place.of_warp);
    }
    few_rows::finish<ROWS>(results, p.bias, p.relu != 0, {p.y, p.rows, p.width}, place, lane);
}

} // namespace

#define NORM_LINEAR(NAME, C, ROWS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(LINEAR_FEW_ROWS_THREADS, 4)                                         \
        NAME(const __grid_constant__ NormLinear p) {                                                                 \
        norm_linear<C, ROWS>(p);                                                                                     \
    }
NORM_LINEAR(norm_linear_16_c64, 64, 16)
NORM_LINEAR(norm_linear_16_c128, 128, 16)
NORM_LINEAR(norm_linear_16_c192, 192, 16)
NORM_LINEAR(norm_linear_16_c256, 256, 16)
NORM_LINEAR(norm_linear_32_c64, 64, 32)
NORM_LINEAR(norm_linear_32_c128, 128, 32)
NORM_LINEAR(norm_linear_32_c192, 192, 32)
NORM_LINEAR(norm_linear_32_c256, 256, 32)
