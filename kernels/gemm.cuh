// Products of bf16 matrices: 128 rows and 64 columns of results for each four warps, 64 of the inner dimension a step.
#pragma once

#include "bf16.cuh"
#include "tile.cuh"

namespace gemm {

// Rows of a block's results, columns of the results of four warps, and the inner dimension of a step.
constexpr int ROWS = 128, COLUMNS = 64, STEP = 64;
// A warp has 32 of the rows: two tiles of mma's 16, so that a fragment of the right operand is used twice.
constexpr int WARP_ROWS = 32;

// 32 rows and 64 columns of results: lane `lane` holds rows lane/4 and lane/4 + 8 of 16, columns 2·(lane%4) and the next of 8.
using Results = float[2][8][4];

// 64 neighbouring columns of a matrix in global memory, row-major but for the step to the latter 32.
template <class T> struct Columns {
    T *first;
    size_t stride;
    size_t half;

    // Eight values: piece `piece` of the 64 columns.
    __device__ __forceinline__ T *at(int row, int piece) const {
        return first + row * stride + (piece >> 2) * half + (piece & 3) * 8;
    }
};

// A matrix in panels of `width` columns, [columns / width, rows, width]: 32, or a multiple of 64.
template <class T> struct Matrix {
    T *data;
    int rows;
    int width;

    // The 64 columns from `column` on, a multiple of 64, with `row` as their first row.
    __device__ __forceinline__ Columns<T> columns(int row, int column) const {
        const size_t panel = column / width, stride = width, panel_size = rows * stride;
        return {data + panel * panel_size + row * stride + column % width, stride, width == 32 ? panel_size : 32};
    }
};

// The operands' tiles of a step: 128 rows, or twice 64, and 64 rows for each four warps.
struct Stage {
    Tile<64> left, right;
};

constexpr int TILE_BYTES = Tile<64>::bytes(64);

// Bytes of a stage for WARPS warps.
constexpr __host__ __device__ int stage_bytes(int warps) { return (2 + warps / 4) * TILE_BYTES; }

// Tile number `number` of 64 rows behind the beginning of another.
__device__ __forceinline__ Tile<64> next(Tile<64> tile, int number) { return {tile.begin + number * TILE_BYTES}; }

// The block's THREADS threads copy TILE_ROWS rows in the background; those from number `valid` on become zeros.
template <int TILE_ROWS, int THREADS>
__device__ __forceinline__ void load(Tile<64> to, Columns<const uint16_t> from, int valid) {
    constexpr int AT_ONCE = THREADS / 8;
    static_assert(TILE_ROWS % AT_ONCE == 0);
    const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    const uint16_t *source = from.at(row, piece);
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i += AT_ONCE) {
        const bool inside = row + i < valid;
        ptx::cp_async_16(to.at(row + i, piece), inside ? source : from.first, inside ? 16 : 0);
        source += AT_ONCE * from.stride;
    }
}

// 16 × 16 of the left operand from row `row` and inner index `k` on. BY_K: the tile's rows are the inner dimension.
template <bool BY_K>
__device__ __forceinline__ void left_fragment(uint32_t (&fragment)[4], Tile<64> tile, int row, int k, int lane) {
    if constexpr (BY_K) {
        const int piece = row / 8 + (lane >> 3 & 1);
        ptx::ldmatrix_x4_transposed(fragment, tile.at(k + (lane & 7) + (lane >> 4) * 8, piece));
    } else {
        ptx::ldmatrix_x4(fragment, tile.at(row + (lane & 15), k / 8 + (lane >> 4)));
    }
}

// 16 × 16 of the right operand from inner index `k` and column `column` on: two fragments of 8 columns. BY_K: as above, and
// columns stand in tiles of 64 one behind the other.
template <bool BY_K>
__device__ __forceinline__ void right_fragment(uint32_t (&fragment)[4], Tile<64> tile, int k, int column, int lane) {
    if constexpr (BY_K) {
        const Tile<64> of_column = next(tile, column / 64);
        ptx::ldmatrix_x4_transposed(fragment, of_column.at(k + (lane & 15), column % 64 / 8 + (lane >> 4)));
    } else {
        const int row = column + (lane & 7) + (lane >> 4) * 8;
        ptx::ldmatrix_x4(fragment, tile.at(row, k / 8 + (lane >> 3 & 1)));
    }
}

// results += left · right for a step; the warp's rows begin at `row` of the left tile, its columns at `column` of the right.
template <bool LEFT_BY_K, bool RIGHT_BY_K, int M, int N>
__device__ __forceinline__ void multiply(float (&results)[M][N][4], Tile<64> left, int row, Tile<64> right, int lane,
                                         int column = 0) {
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) left_fragment<LEFT_BY_K>(a[m], left, row + m * 16, k, lane);
#pragma unroll
        for (int d = 0; d < N; d += 2) {
            uint32_t b[4];
            right_fragment<RIGHT_BY_K>(b, right, k, column + d * 8, lane);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                ptx::mma_m16n8k16_bf16(results[m][d], a[m], b[0], b[1]);
                ptx::mma_m16n8k16_bf16(results[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Each thread's results begin with 0.
template <int M, int N> __device__ __forceinline__ void clear(float (&results)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int d = 0; d < N; ++d) {
#pragma unroll
            for (int e = 0; e < 4; ++e) results[m][d][e] = 0.0f;
        }
    }
}

// Goes through the steps with two stages: `fill(step, stage)` copies a step's tiles, or makes them, while
// `product(stage)` works on those of the step before.
template <int WARPS, class Fill, class Product>
__device__ __forceinline__ void for_steps(int steps, const Fill &fill, const Product &product) {
    const auto stage = [](int step) {
        const ptx::Shared begin = ptx::shared_base() + step % 2 * stage_bytes(WARPS);
        return Stage{{begin}, {begin + 2 * TILE_BYTES}};
    };
    fill(0, stage(0));
    ptx::cp_async_commit();
    for (int step = 0; step < steps; ++step) {
        ptx::cp_async_wait<0>();
        // All copies of this step have landed, and all threads are done with the step that is replaced.
        ptx::barrier();
        if (step + 1 < steps) fill(step + 1, stage(step + 1));
        ptx::cp_async_commit();
        product(stage(step));
    }
}

// Calls `each(row, d, low, high)` for the pairs of neighbouring results: `d` the fragment's number among columns, and
// `row` counted from the warp's first.
template <int M, int N, class Each>
__device__ __forceinline__ void for_pairs(float (&results)[M][N][4], int lane, const Each &each) {
#pragma unroll
    for (int d = 0; d < N; ++d) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = m * 16 + half * 8 + (lane >> 2);
                each(row, d, results[m][d][2 * half], results[m][d][2 * half + 1]);
            }
        }
    }
}

// results = activation(results + bias), given the bias of the first column.
template <int M, int N>
__device__ __forceinline__ void add_bias(float (&results)[M][N][4], const float *bias, bool relu, int lane) {
    float2 pairs[N];
#pragma unroll
    for (int d = 0; d < N; ++d) {
        pairs[d] = ptx::load_constant(reinterpret_cast<const float2 *>(bias + d * 8 + 2 * (lane & 3)));
    }
    for_pairs(results, lane, [&](int, int d, float &low, float &high) {
        low += pairs[d].x;
        high += pairs[d].y;
        // A NaN stays one.
        low = relu && low < 0.0f ? 0.0f : low;
        high = relu && high < 0.0f ? 0.0f : high;
    });
}

// Finishes a pair of a gradient's values by one of a matrix: adds it, or, `masked`, is 0 where it is not above 0.
__device__ __forceinline__ void finish_pair(float &low, float &high, uint32_t pair, bool masked) {
    const float of_low = bf16_low(pair), of_high = bf16_high(pair);
    low = masked ? (of_low > 0.0f ? low : 0.0f) : low + of_low;
    high = masked ? (of_high > 0.0f ? high : 0.0f) : high + of_high;
}

// Finishes a gradient by matrices that may be null: adds the one, and is 0 where the other is not above 0. `load(matrix)`
// copies the rows of the block's results in the background, of the warp's to those of `tile` from `row` on.
template <int M, class Load>
__device__ __forceinline__ void finish(float (&results)[M][8][4], const uint16_t *added, const uint16_t *mask,
                                       Tile<64> tile, int row, int lane, const Load &load) {
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        const bool masked = pass != 0;
        const uint16_t *const matrix = masked ? mask : added;
        if (matrix == nullptr) continue;
        load(matrix);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::barrier();
        for_pairs(results, lane, [&](int at, int d, float &low, float &high) {
            finish_pair(low, high, ptx::load_shared<uint32_t>(tile.at(row + at, d) + (lane & 3) * 4), masked);
        });
        // The next matrix takes its place.
        ptx::barrier();
    }
}

// Swaps a value with the lane whose number differs in the bit `mask`: one lane ends with both first values, the other, which
// `keeps_second`, with both second ones, each in the order of lanes.
__device__ __forceinline__ void swap(uint32_t &first, uint32_t &second, bool keeps_second, int mask) {
    const uint32_t other = ptx::shuffle_xor(keeps_second ? first : second, mask);
    first = keeps_second ? other : first;
    second = keeps_second ? second : other;
}

// Of four neighbouring fragments the four lanes of a row have a pair each; they swap them, so that each has all pairs of one,
// which are 16 bytes of the row; or back.
__device__ __forceinline__ void swap_pairs(uint32_t (&pairs)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
    swap(pairs[0], pairs[1], odd, 1);
    swap(pairs[2], pairs[3], odd, 1);
    swap(pairs[0], pairs[2], upper, 2);
    swap(pairs[1], pairs[3], upper, 2);
}

// How many neighbouring fragments of N lanes swap pairs of: four, or two where there are no more.
template <int N> constexpr int SWAPPED = N % 4 == 0 ? 4 : 2;

// Calls `each(row, m, half, d)` for the lane's rows of results and each SWAPPED fragments of a row, the first of which is number d.
template <int M, int N, class Each> __device__ __forceinline__ void for_swapped(int lane, const Each &each) {
    static_assert(N % SWAPPED<N> == 0);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int d = 0; d < N; d += SWAPPED<N>) each(m * 16 + half * 8 + (lane >> 2), m, half, d);
        }
    }
}

// Stores the warp's results as bf16 without shared memory: lanes swap pairs of four fragments, or of two where there are no more,
// and each writes 16 bytes of a row, or 8. `to(row, piece)` is where 8 columns of a row begin, of the warp's first `valid`.
template <int M, int N, class To>
__device__ __forceinline__ void store_pairs(const float (&results)[M][N][4], int valid, int lane, const To &to) {
    for_swapped<M, N>(lane, [&](int row, int m, int half, int d) {
        const bool is_there = row < valid;
        uint32_t pairs[SWAPPED<N>];
#pragma unroll
        for (int i = 0; i < SWAPPED<N>; ++i) {
            pairs[i] = ptx::pack_bf16(results[m][d + i][2 * half], results[m][d + i][2 * half + 1]);
        }
        if constexpr (SWAPPED<N> == 4) {
            swap_pairs(pairs, lane);
            if (!is_there) return;
            const uint4 piece = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
            ptx::store_global(reinterpret_cast<uint4 *>(to(row, d + (lane & 3))), piece);
        } else {
            swap(pairs[0], pairs[1], lane & 1, 1);
            if (!is_there) return;
            uint16_t *const half_piece = to(row, d + (lane & 1)) + (lane & 2) * 2;
            ptx::store_global(reinterpret_cast<uint2 *>(half_piece), make_uint2(pairs[0], pairs[1]));
        }
    });
}

// The same of 64 columns, from row `row` on of the first `valid`.
template <int M>
__device__ __forceinline__ void store_pairs(const float (&results)[M][8][4], Columns<uint16_t> to, int row, int valid,
                                            int lane) {
    store_pairs(results, valid - row, lane, [=](int of_warp, int piece) { return to.at(row + of_warp, piece); });
}

// Finishes a gradient by a matrix as `finish_pair` does, without shared memory, of which lanes have what `store_pairs` would have
// them store: `from(row, piece)` is where 8 columns of a row begin.
template <int M, int N, class From>
__device__ __forceinline__ void finish_pairs(float (&results)[M][N][4], bool masked, int valid, int lane, const From &from) {
    for_swapped<M, N>(lane, [&](int row, int m, int half, int d) {
        uint32_t pairs[SWAPPED<N>] = {};
        if constexpr (SWAPPED<N> == 4) {
            if (row < valid) {
                const auto four = ptx::load_global(reinterpret_cast<const uint4 *>(from(row, d + (lane & 3))));
                pairs[0] = four.x, pairs[1] = four.y, pairs[2] = four.z, pairs[3] = four.w;
            }
            swap_pairs(pairs, lane);
        } else {
            if (row < valid) {
                const uint16_t *const half_piece = from(row, d + (lane & 1)) + (lane & 2) * 2;
                const auto two = ptx::load_global(reinterpret_cast<const uint2 *>(half_piece));
                pairs[0] = two.x, pairs[1] = two.y;
            }
            swap(pairs[0], pairs[1], lane & 1, 1);
        }
#pragma unroll
        for (int i = 0; i < SWAPPED<N>; ++i) {
            finish_pair(results[m][d + i][2 * half], results[m][d + i][2 * half + 1], pairs[i], masked);
        }
    });
}

// Stores results as f32 to rows of `stride` values. Neighbouring lanes swap a pair of two fragments, so that each has
// four columns of one.
template <int M, int N>
__device__ __forceinline__ void store_f32(const float (&results)[M][N][4], float *to, size_t stride, int lane) {
    const bool odd = lane & 1;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m * 16 + half * 8 + (lane >> 2);
#pragma unroll
            for (int d = 0; d < N; d += 2) {
                const float near[2] = {results[m][d][2 * half], results[m][d][2 * half + 1]};
                const float far[2] = {results[m][d + 1][2 * half], results[m][d + 1][2 * half + 1]};
                const float x = ptx::shuffle_xor(odd ? near[0] : far[0], 1);
                const float y = ptx::shuffle_xor(odd ? near[1] : far[1], 1);
                const float4 four = odd ? make_float4(x, y, far[0], far[1]) : make_float4(near[0], near[1], x, y);
                const int column = (d + odd) * 8 + 2 * (lane & 2);
                ptx::store_global(reinterpret_cast<float4 *>(to + row * stride + column), four);
            }
        }
    }
}

} // namespace gemm
