#include "rbf.h"

#include "bf16.cuh"
#include "weights.cuh"

// The rbf input: each feature becomes K activations about learned centres, which a linear layer takes.
//
//   y = activation(φ·Wᵀ + b),   φ[i, f·K + k] = exp(−100·(x[i, f] − μ[f, k])²)
//   dW = dyᵀ·φ,   db = Σ dy,   dμ[f, k] = Σ_i dφ·φ·200·(x[i, f] − μ[f, k]) with dφ = dy·W
//   (the authors' code; docs/model.md)
//
// Shapes      x [N, stride] with F features in front; μ [F, K]; W [out, width] with F·K columns in front; b [out]; y, dy
//             [N, out]. Behind F·K φ is 0. Gradients leave a part for each run of rows.
// Checked     by the launcher (src/ops/rbf/device.rs): out, width and stride multiples of 64, lengths, no overlap.
// Launch      forward: grid (out / 128 · N / 128), the outputs fastest, 256 threads; weights: grid (width / 64 · out / 128,
//             parts), centres: grid (width / 64, parts), both 128 threads. Shared memory: two stages of 64 of the inner
//             dimension, 64 KiB forward and 48 KiB backward; for the centres a table of 512 bytes.
// Types       bf16 in and out; μ, b, gradients and all sums in f32; φ rounded to bf16 as an operand, f32 in dμ.
// Determinism sums over the inner dimension in order; parts are of a size that depends on the shapes alone, and
//             `partial_sums` adds them. No atomics.
// Writes      `=`: y and all parts; those of dμ have F·K columns.
// Cost        2·N·F·K·out FLOPs each; N·F·K exponentials for each 128 outputs of y and of dW, and once for dμ. φ is made
//             in shared memory and never stored. Bound by products.

namespace {

static_assert(RBF_ROWS == gemm::ROWS && RBF_OUTPUTS == 2 * gemm::COLUMNS && RBF_COLUMNS == gemm::COLUMNS);
constexpr int FORWARD_WARPS = RBF_FORWARD_THREADS / 32, BACKWARD_WARPS = RBF_BACKWARD_THREADS / 32;
static_assert(RBF_FORWARD_SHARED_BYTES == 2 * gemm::stage_bytes(FORWARD_WARPS));
constexpr int TABLE = 2 * gemm::stage_bytes(BACKWARD_WARPS);
static_assert(RBF_WEIGHTS_SHARED_BYTES == TABLE && RBF_CENTERS_SHARED_BYTES == TABLE + 8 * RBF_COLUMNS);

constexpr float SHARPNESS = 100.0f, LOG2_E = 1.4426950408889634f;
constexpr float INFINITELY_FAR = __builtin_huge_valf();

using Given = gemm::Matrix<const uint16_t>;

// What φ is made of.
struct Basis {
    const uint16_t *x;
    const float *centers;
    int rows;
    int stride;
    int per_feature;
    int columns;

    // A feature of a row; 0 behind the last row.
    __device__ __forceinline__ float feature(int row, int number) const {
        if (row >= rows) return 0.0f;
        return bf16_low(ptx::load_constant(x + static_cast<size_t>(row) * stride + number));
    }

    // The centre of a column; behind the last one that makes φ 0.
    __device__ __forceinline__ float center(int column) const {
        return column < columns ? ptx::load_constant(centers + column) : INFINITELY_FAR;
    }

    // The centres of eight columns, from a multiple of 8 on.
    __device__ __forceinline__ void load_centers(float (&to)[8], int column) const {
        if (column + 8 <= columns) {
            const auto *from = reinterpret_cast<const float4 *>(centers + column);
            const auto low = ptx::load_constant(from), high = ptx::load_constant(from + 1);
            to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
            to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
            return;
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) to[j] = center(column + j);
    }
};

// φ at this distance from the centre.
__device__ __forceinline__ float bell(float distance) { return ptx::exp2(-SHARPNESS * LOG2_E * distance * distance); }

// Makes φ of TILE_ROWS rows and 64 columns in bf16. A thread makes eight neighbouring columns of every so many-th row.
template <int TILE_ROWS, int THREADS>
__device__ __forceinline__ void make(Tile<64> to, const Basis &basis, int first_row, int first_column) {
    constexpr int AT_ONCE = THREADS / 8, COUNT = TILE_ROWS / AT_ONCE;
    const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    const int column = first_column + piece * 8, number = column / basis.per_feature;
    float middle[8], before[COUNT];
    basis.load_centers(middle, column);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) before[i] = basis.feature(first_row + row + i * AT_ONCE, number);
    // The columns that begin another feature, a bit each.
    uint32_t begins = 0;
    int rest = column - number * basis.per_feature;
#pragma unroll
    for (int j = 1; j < 8; ++j) {
        rest = rest + 1 == basis.per_feature ? 0 : rest + 1;
        begins |= static_cast<uint32_t>(rest == 0) << j;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int at = row + i * AT_ONCE;
        float x = before[i], phi[PIECE];
        int of = number;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (begins >> j & 1) x = basis.feature(first_row + at, ++of);
            phi[j] = bell(x - middle[j]);
        }
        ptx::store_shared(to.at(at, piece), pack(phi));
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(RBF_FORWARD_THREADS) rbf_forward(const __grid_constant__ RbfForward p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = blockIdx.x;
    const int tiles = (p.outputs + RBF_OUTPUTS - 1) / RBF_OUTPUTS;
    const int row = block / tiles * gemm::ROWS, output = block % tiles * RBF_OUTPUTS;
    // The latter half of the outputs may be none.
    const int halves = p.outputs - output < RBF_OUTPUTS ? 1 : 2, half = warp / 4;
    const int of_warp = warp % 4 * gemm::WARP_ROWS, column = output + half * gemm::COLUMNS;
    const Basis basis{p.x, p.centers, p.rows, p.stride, p.per_feature, p.columns};
    const Given weight{p.weight, p.outputs, p.width};
    gemm::Results results;
    gemm::clear(results);
    gemm::for_steps<FORWARD_WARPS>(
        p.width / gemm::STEP,
        [&](int step, gemm::Stage stage) {
            for (int other = 0; other < halves; ++other) {
                const auto from = weight.columns(output + other * gemm::COLUMNS, step * gemm::STEP);
                gemm::load<64, RBF_FORWARD_THREADS>(gemm::next(stage.right, other), from, 64);
            }
            make<gemm::ROWS, RBF_FORWARD_THREADS>(stage.left, basis, row, step * gemm::STEP);
        },
        [&](gemm::Stage stage) {
            if (half < halves) {
                gemm::multiply<false, false>(results, stage.left, of_warp, gemm::next(stage.right, half), lane);
            }
        });
    if (half >= halves) return;
    gemm::add_bias(results, p.bias + column, p.relu != 0, lane);
    const Tile<64> tile = gemm::next({ptx::shared_base()}, half * 2);
    const auto to = gemm::Matrix<uint16_t>{p.y, p.rows, p.outputs}.columns(row, column);
    gemm::store_bf16(results, tile, to, of_warp, p.rows - row, lane);
}

extern "C" __global__ void __launch_bounds__(RBF_BACKWARD_THREADS, 3)
    rbf_backward_weights(const __grid_constant__ RbfBackwardWeights p) {
    const int tiles = p.width / gemm::COLUMNS, block = blockIdx.x;
    const int column = block % tiles * gemm::COLUMNS, output = block / tiles * RBF_OUTPUTS;
    const int first = blockIdx.y * p.rows_of_part, end = min(p.rows, first + p.rows_of_part);
    const Basis basis{p.x, p.centers, p.rows, p.stride, p.per_feature, p.columns};
    const size_t part = blockIdx.y, outputs = p.outputs, width = p.width;
    float *const d_bias = column == 0 ? p.d_bias + part * outputs : nullptr;
    gemm::weights<RBF_BACKWARD_THREADS>(Given{p.dy, p.rows, p.outputs}, p.outputs, output, first, end,
                                        p.d_weight + part * outputs * width + column, width, d_bias,
                                        [&](Tile<64> tile, int row, int) {
                                            make<gemm::STEP, RBF_BACKWARD_THREADS>(tile, basis, row, column);
                                        });
}

extern "C" __global__ void __launch_bounds__(RBF_BACKWARD_THREADS, 3)
    rbf_backward_centers(const __grid_constant__ RbfBackwardCenters p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int column = blockIdx.x * gemm::COLUMNS;
    const int first = blockIdx.y * p.rows_of_part, end = min(p.rows, first + p.rows_of_part);
    const Basis basis{p.x, p.centers, p.rows, p.stride, p.per_feature, p.columns};
    const Given dy{p.dy, p.rows, p.outputs}, weight{p.weight, p.outputs, p.width};
    // Centre and feature of each column. The barriers of the first step stand between this and its readers.
    const ptx::Shared table = ptx::shared_base() + TABLE;
    if (threadIdx.x < gemm::COLUMNS) {
        const int own = column + static_cast<int>(threadIdx.x);
        const uint32_t center = __float_as_uint(basis.center(own));
        ptx::store_shared(table + threadIdx.x * 8, make_uint2(center, own / p.per_feature));
    }
    // Of the columns that a lane has in each fragment.
    float sums[8][2] = {};
    for (int row = first; row < end; row += gemm::ROWS) {
        gemm::Results results;
        gemm::clear(results);
        gemm::for_steps<BACKWARD_WARPS>(
            p.outputs / gemm::STEP,
            [&](int step, gemm::Stage stage) {
                const auto from = dy.columns(row, step * gemm::STEP);
                gemm::load<gemm::ROWS, RBF_BACKWARD_THREADS>(stage.left, from, end - row);
                gemm::load<64, RBF_BACKWARD_THREADS>(stage.right, weight.columns(step * gemm::STEP, column), 64);
            },
            [&](gemm::Stage stage) {
                gemm::multiply<false, true>(results, stage.left, warp * gemm::WARP_ROWS, stage.right, lane);
            });
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = row + warp * gemm::WARP_ROWS + m * 16 + half * 8 + (lane >> 2);
                if (at >= end) continue;
                uint32_t number = ~0u;
                float x = 0.0f;
#pragma unroll
                for (int d = 0; d < 8; ++d) {
                    const auto pair = ptx::load_shared<uint4>(table + (d * 8 + 2 * (lane & 3)) * 8);
                    const uint32_t middle[2] = {pair.x, pair.z}, numbers[2] = {pair.y, pair.w};
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        if (numbers[e] != number) x = basis.feature(at, numbers[e]);
                        number = numbers[e];
                        const float distance = x - __uint_as_float(middle[e]);
                        sums[d][e] = fmaf(results[m][d][2 * half + e], bell(distance) * distance, sums[d][e]);
                    }
                }
            }
        }
    }
    // Lanes of the same columns first, then warps.
    const ptx::Shared of_warps = ptx::shared_base();
#pragma unroll
    for (int d = 0; d < 8; ++d) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float sum = sums[d][e];
            sum += ptx::shuffle_xor(sum, 4);
            sum += ptx::shuffle_xor(sum, 8);
            sum += ptx::shuffle_xor(sum, 16);
            if (lane < 4) ptx::store_shared(of_warps + (warp * gemm::COLUMNS + d * 8 + 2 * lane + e) * 4, sum);
        }
    }
    ptx::barrier();
    const int own = column + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= gemm::COLUMNS || own >= p.columns) return;
    float sum = 0.0f;
    for (int other = 0; other < BACKWARD_WARPS; ++other) {
        sum += ptx::load_shared<float>(of_warps + (other * gemm::COLUMNS + threadIdx.x) * 4);
    }
    const size_t part = blockIdx.y, columns = p.columns;
    ptx::store_global(p.d_centers + part * columns + own, 2.0f * SHARPNESS * sum);
}
