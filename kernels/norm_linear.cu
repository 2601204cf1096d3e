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
//             block's 64 columns, and of LayerNorm for ROWS / 4 rows, four at a time. Shared memory: r of the block's rows, and
//             four stages of 64 columns of W, of which three are on their way while LayerNorm is computed: at C = 256 40 or 48
//             KiB.
// Types       bf16 in and out; γ, β, b, statistics and all sums in f32; r is rounded to bf16, as an apart kernel rounds it.
// Determinism r and statistics have the bits of `layer_norm_forward`, and y those of `linear_forward` of r. No atomics.
// Writes      `=`: y, and by the first block of each row's r and statistics.
// Cost        2·rows·C·outputs FLOPs; x and what is added are read outputs/64 times, and so often is LayerNorm computed; W
//             rows/ROWS times; all by way of L2. Bound by latency.

namespace {

using few_rows::Place, few_rows::Results;

// The left operand: LayerNorm's rows, all columns of them behind the stages of W.
template <int C, int ROWS> struct Normalized {
    static constexpr int STAGE = 0;

    const NormLinear &p;
    Place place;

    static __device__ __forceinline__ Tile<64> tile(int number) {
        const ptx::Shared begin = ptx::shared_base() + few_rows::STAGES * Tile<64>::bytes(gemm::COLUMNS);
        return {begin + number * few_rows::LEFT<ROWS>};
    }

    __device__ __forceinline__ void prepare() const {
        constexpr int OF_WARP = ROWS * 32 / few_rows::THREADS;
        const int valid = p.rows - place.row, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        layer_norm::forward_rows({p.x, p.added, p.scale, p.shift, p.statistics, p.normalized, p.period, p.eps},
                                 layer_norm::NormRows<C, OF_WARP>{place.row, valid, warp * OF_WARP},
                                 place.column == 0 ? valid : 0,
                                 [=](int row) { return tile(lane / 8).at(row, lane % 8); });
    }
    __device__ __forceinline__ void load(ptx::Shared, int) const {}
    __device__ __forceinline__ Tile<64> of_step(ptx::Shared, int step) const { return tile(step); }
};

template <int C, int ROWS> __device__ __forceinline__ void norm_linear(const NormLinear &p) {
    const auto place = Place::of_block<ROWS>(p.outputs);
    const int lane = threadIdx.x & 31;
    Results<ROWS> results;
    few_rows::multiply<ROWS, true>(results, Normalized<C, ROWS>{p, place}, {p.weight, p.outputs, C}, C, place, lane);
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
