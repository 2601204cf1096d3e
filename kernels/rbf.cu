#include "rbf.h"

#include "rbf.cuh"
#include "row.cuh"
#include "wide.cuh"

// The rbf input: each feature becomes K activations about learned centres, which a linear layer takes.
//
//   y = activation(φ·Wᵀ + b),   φ[i, f·K + k] = exp(−100·(x[i, f] − μ[f, k])²)
//   dW = dyᵀ·φ,   db = Σ dy,   dμ[f, k] = Σ_i dφ·φ·200·(x[i, f] − μ[f, k]) with dφ = dy·W
//   (the authors' code; docs/model.md)
//
// Shapes      x [N, stride] with F features in front; μ [F, K]; W [out, width] with F·K columns in front; b [out]; y, dy
//             [N, out]. Behind F·K φ is 0. Gradients leave a part for each run of rows.
// Checked     by the launcher (src/ops/rbf/device.rs): out, width and stride multiples of 64, lengths, no overlap.
// Launch      forward: grid (out / 256 · N / 128), the outputs fastest, where out is a multiple of 256 and each multiprocessor
//             has a block (`rbf_wide_forward`), else (out / 128 · N / 128); weights: grid (width / 128 · out / 256, parts);
//             centres: grid (width / 256, parts). 256 threads, a warp for each 64 × 64 of a block's results, in `rbf_forward`
//             for 32 × 64. Shared memory: two stages of 64 of the inner dimension, 96 KiB, in `rbf_forward` 64; for the
//             centres a table of 2 KiB besides.
// Types       bf16 in and out; μ, b, gradients and all sums in f32; φ rounded to bf16 as an operand, f32 in dμ.
// Determinism sums over the inner dimension in order: y has the same bits by both kernels; parts are of a size that depends on
//             the shapes alone, and `partial_sums` adds them. No atomics.
// Writes      `=`: y and all parts; those of dμ have F·K columns.
// Cost        2·N·F·K·out FLOPs each; N·F·K exponentials for each 256 outputs of y and of dW, in `rbf_forward` for each 128,
//             and once for dμ. φ is made in shared memory and never stored. A warp has a cycle of shared memory a product, and
//             three eighths of one of what comes in or is made; for dμ its table besides; in `rbf_forward` two in all. Bound by
//             products.
// Lost        backward by blocks of 128 × 64 and four warps: 2.3 cycles of shared memory a product for dW and 2.5 for dμ, and
//             twice the exponentials of dW.

namespace {

constexpr int THREADS = RBF_THREADS, WARPS = THREADS / 32;
static_assert(RBF_ROWS == gemm::ROWS && RBF_OUTPUTS == 2 * gemm::COLUMNS);
static_assert(RBF_FORWARD_SHARED_BYTES == 2 * gemm::stage_bytes(WARPS));
static_assert(THREADS == wide::THREADS && RBF_ROWS == wide::ROWS && RBF_WIDE_OUTPUTS == wide::COLUMNS);
static_assert(RBF_WEIGHTS_OUTPUTS == wide::COLUMNS && RBF_WEIGHTS_COLUMNS == wide::ROWS);
static_assert(RBF_CENTERS_COLUMNS == wide::COLUMNS && RBF_CENTERS_COLUMNS == THREADS);
// Behind the stages.
constexpr int TABLE = wide::SHARED_BYTES;
static_assert(RBF_WIDE_SHARED_BYTES == TABLE && RBF_CENTERS_SHARED_BYTES == TABLE + 8 * RBF_CENTERS_COLUMNS);

using namespace rbf;

using Given = gemm::Matrix<const uint16_t>;

// The centres of eight columns, from a multiple of 8 on.
__device__ __forceinline__ void load_centers(float (&to)[PIECE], const Basis &basis, int column) {
    if (column + PIECE <= basis.columns) {
        load_piece(to, basis.centers + column);
        return;
    }
#pragma unroll
    for (int j = 0; j < PIECE; ++j) to[j] = basis.center(column + j);
}

// Makes φ of TILE_ROWS rows and 64 columns in bf16. A thread makes eight neighbouring columns of every so many-th row.
template <int TILE_ROWS>
__device__ __forceinline__ void make(Tile<64> to, const Basis &basis, int first_row, int first_column) {
    constexpr int AT_ONCE = THREADS / 8, COUNT = TILE_ROWS / AT_ONCE;
    const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    const int column = first_column + piece * 8, number = column / basis.per_feature;
    float middle[PIECE], before[COUNT];
    load_centers(middle, basis, column);
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

// A step's work with one block on a multiprocessor: half of the warps make activations before they multiply, the others behind
// it, so that products need not wait for exponentials.
template <class Make, class Product>
__device__ __forceinline__ void in_turns(const Make &make, const Product &product) {
    const bool makes_first = threadIdx.x < THREADS / 2;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
        if ((turn == 0) == makes_first) {
            make();
        } else {
            product();
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(RBF_THREADS) rbf_forward(const __grid_constant__ RbfForward p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = blockIdx.x;
    const int tiles = (p.outputs + RBF_OUTPUTS - 1) / RBF_OUTPUTS;
    const int row = block / tiles * gemm::ROWS, output = block % tiles * RBF_OUTPUTS;
    // The latter half of the outputs may be none.
    const int halves = p.outputs - output < RBF_OUTPUTS ? 1 : 2, half = warp / 4;
    const int of_warp = warp % 4 * gemm::WARP_ROWS, column = output + half * gemm::COLUMNS;
    const Basis basis = basis_of(p);
    const Given weight{p.weight, p.outputs, p.width};
    gemm::Results results;
    gemm::clear(results);
    gemm::for_steps<WARPS>(
        p.width / gemm::STEP,
        [&](int step, gemm::Stage stage) {
            for (int other = 0; other < halves; ++other) {
                const auto from = weight.columns(output + other * gemm::COLUMNS, step * gemm::STEP);
                gemm::load<64, THREADS>(gemm::next(stage.right, other), from, 64);
            }
            make<gemm::ROWS>(stage.left, basis, row, step * gemm::STEP);
        },
        [&](gemm::Stage stage) {
            if (half < halves) {
                gemm::multiply<false, false>(results, stage.left, of_warp, gemm::next(stage.right, half), lane);
            }
        });
    if (half >= halves) return;
    gemm::add_bias(results, p.bias + column, p.relu != 0, lane);
    const auto to = gemm::Matrix<uint16_t>{p.y, p.rows, p.outputs}.columns(row, column);
    gemm::store_pairs(results, to, of_warp, p.rows - row, lane);
}

extern "C" __global__ void __launch_bounds__(RBF_THREADS, 1) rbf_wide_forward(const __grid_constant__ RbfForward p) {
    using Of = wide::Stages<wide::ROWS / 64, wide::COLUMNS / 64>;
    const wide::Place place(p.rows, p.outputs);
    const Basis basis = basis_of(p);
    const Given weight{p.weight, p.outputs, p.width};
    const int steps = p.width / gemm::STEP;
    wide::Results results;
    gemm::clear(results);
    const auto make_step = [&](int step) { make<wide::ROWS>(Of::left(step), basis, place.row, step * gemm::STEP); };
    make_step(0);
    wide::for_steps(
        steps,
        [&](int step) {
            wide::load<1, wide::COLUMNS>(Of::right(step), weight, place.column, step * gemm::STEP, wide::COLUMNS);
        },
        [&](int step) {
            const auto make_next = [&] {
                if (step + 1 < steps) make_step(step + 1);
            };
            in_turns(make_next, [&] {
                const Tile<64> right = gemm::next(Of::right(step), place.warp_column);
                gemm::multiply<false, false>(results, Of::left(step), place.warp_row, right, place.lane);
            });
        });
    gemm::add_bias(results, p.bias + place.column + place.warp_column * wide::WARP_TILE, p.relu != 0, place.lane);
    place.store(results, {p.y, p.rows, p.outputs});
}

extern "C" __global__ void __launch_bounds__(RBF_THREADS, 1)
    rbf_backward_weights(const __grid_constant__ RbfBackwardWeights p) {
    constexpr int OUTPUTS = RBF_WEIGHTS_OUTPUTS, COLUMNS = RBF_WEIGHTS_COLUMNS;
    constexpr int COLUMN_WARPS = COLUMNS / wide::WARP_TILE;
    using Of = wide::Stages<OUTPUTS / 64, COLUMNS / 64>;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int blocks = (p.width + COLUMNS - 1) / COLUMNS, block = blockIdx.x;
    const int column = block % blocks * COLUMNS, output = block / blocks * OUTPUTS;
    const int first = blockIdx.y * p.rows_of_part, end = min(p.rows, first + p.rows_of_part);
    const int steps = (end - first + gemm::STEP - 1) / gemm::STEP;
    const Basis basis = basis_of(p);
    const Given dy{p.dy, p.rows, p.outputs};
    // The last outputs and columns may be none.
    const int output_tiles = min(OUTPUTS, p.outputs - output) / 64, column_tiles = min(COLUMNS, p.width - column) / 64;
    const int of_outputs = warp / COLUMN_WARPS, of_columns = warp % COLUMN_WARPS;
    const bool busy = of_outputs < output_tiles && of_columns < column_tiles;
    const bool sums_bias = busy && column == 0 && of_columns == 0;
    wide::Results results;
    gemm::clear(results);
    float sums[wide::WARP_TILE / 16][4] = {};
    const auto make_step = [&](int step) {
#pragma unroll 1
        for (int i = 0; i < column_tiles; ++i) {
            make<gemm::STEP>(gemm::next(Of::right(step), i), basis, first + step * gemm::STEP, column + i * 64);
        }
    };
    make_step(0);
    wide::for_steps(
        steps,
        [&](int step) {
            const int row = first + step * gemm::STEP;
#pragma unroll 1
            for (int i = 0; i < output_tiles; ++i) {
                const auto from = dy.columns(row, output + i * 64);
                gemm::load<gemm::STEP, THREADS>(gemm::next(Of::left(step), i), from, end - row);
            }
        },
        [&](int step) {
            const auto make_next = [&] {
                if (step + 1 < steps) make_step(step + 1);
            };
            in_turns(make_next, [&] {
                if (!busy) return;
                const Tile<64> left = gemm::next(Of::left(step), of_outputs);
                gemm::multiply<true, true>(results, left, 0, gemm::next(Of::right(step), of_columns), lane);
                if (sums_bias) gemm::sum_rows(sums, left, 0, lane);
            });
        });
    if (!busy) return;
    const size_t part = blockIdx.y, outputs = p.outputs, width = p.width;
    const size_t of_warp = output + of_outputs * wide::WARP_TILE;
    float *const d_weight = p.d_weight + (part * outputs + of_warp) * width + column + of_columns * wide::WARP_TILE;
    gemm::store_f32(results, d_weight, width, lane);
    if (sums_bias) gemm::store_sums(sums, p.d_bias + part * outputs + of_warp, lane);
}

extern "C" __global__ void __launch_bounds__(RBF_THREADS, 1)
    rbf_backward_centers(const __grid_constant__ RbfBackwardCenters p) {
    constexpr int COLUMNS = RBF_CENTERS_COLUMNS, COLUMN_WARPS = COLUMNS / wide::WARP_TILE;
    constexpr int ROW_WARPS = WARPS / COLUMN_WARPS;
    using Of = wide::Stages<wide::ROWS / 64, COLUMNS / 64>;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int column = blockIdx.x * COLUMNS;
    const int first = blockIdx.y * p.rows_of_part, end = min(p.rows, first + p.rows_of_part);
    const Basis basis = basis_of(p);
    const Given dy{p.dy, p.rows, p.outputs}, weight{p.weight, p.outputs, p.width};
    // The last columns may be none.
    const int column_tiles = min(COLUMNS, p.width - column) / 64;
    const int of_rows = warp / COLUMN_WARPS, of_columns = warp % COLUMN_WARPS, warp_row = of_rows * wide::WARP_TILE;
    const bool busy = of_columns < column_tiles;
    // Centre and feature of each column. The barriers of the first step stand between this and its readers.
    const ptx::Shared table = ptx::shared_base() + TABLE;
    const int own = column + static_cast<int>(threadIdx.x);
    ptx::store_shared(table + threadIdx.x * 8, make_uint2(__float_as_uint(basis.center(own)), own / p.per_feature));
    const ptx::Shared table_of_warp = table + of_columns * wide::WARP_TILE * 8;
    // Of the columns that a lane has in each fragment.
    float sums[8][2] = {};
    for (int row = first; row < end; row += wide::ROWS) {
        wide::Results results;
        gemm::clear(results);
        wide::for_steps(
            p.outputs / gemm::STEP,
            [&](int step) {
                wide::load<1, wide::ROWS>(Of::left(step), dy, row, step * gemm::STEP, end - row);
                for (int i = 0; i < column_tiles; ++i) {
                    const auto from = weight.columns(step * gemm::STEP, column + i * 64);
                    gemm::load<64, THREADS>(gemm::next(Of::right(step), i), from, 64);
                }
            },
            [&](int step) {
                if (!busy) return;
                const Tile<64> right = gemm::next(Of::right(step), of_columns);
                gemm::multiply<false, true>(results, Of::left(step), warp_row, right, lane);
            });
        // All threads are done with the operands, whose place those of the next rows take, or sums.
        ptx::barrier();
        if (!busy) continue;
#pragma unroll
        for (int m = 0; m < wide::WARP_TILE / 16; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = row + warp_row + m * 16 + half * 8 + (lane >> 2);
                if (at >= end) continue;
                uint32_t number = ~0u;
                float x = 0.0f;
#pragma unroll
                for (int d = 0; d < 8; ++d) {
                    const auto pair = ptx::load_shared<uint4>(table_of_warp + (d * 8 + 2 * (lane & 3)) * 8);
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
            const int at = of_rows * COLUMNS + of_columns * wide::WARP_TILE + d * 8 + 2 * lane + e;
            if (lane < 4) ptx::store_shared(of_warps + at * 4, sum);
        }
    }
    ptx::barrier();
    if (own >= p.columns) return;
    float sum = 0.0f;
    for (int other = 0; other < ROW_WARPS; ++other) {
        sum += ptx::load_shared<float>(of_warps + (other * COLUMNS + threadIdx.x) * 4);
    }
    const size_t part = blockIdx.y, columns = p.columns;
    ptx::store_global(p.d_centers + part * columns + own, 2.0f * SHARPNESS * sum);
}
