// What the kernels of the row-wise network share: how a block's warps and the weights' steps are laid out.
#pragma once

#include "feed_forward.h"

#include "gemm.cuh"
#include "norm.cuh"

namespace feed_forward {

constexpr int THREADS = FEED_FORWARD_THREADS, CHUNK = FEED_FORWARD_CHUNK;
// Warps that share the same rows, half of the block's.
constexpr int COLUMN_WARPS = 4;
template <int ROWS> constexpr int WARP_ROWS = ROWS / 2;
// The block's rows of 64 columns.
template <int ROWS> constexpr int TILE = Tile<64>::bytes(ROWS);

// Bytes of 128 rows of 64 columns of weights.
constexpr int WEIGHTS = Tile<64>::bytes(CHUNK);
// Bytes of the weights of a step: 128 rows of 128 columns, or 64 of C, or C of 64.
template <int C> constexpr int STAGE = C < 128 ? WEIGHTS : 2 * WEIGHTS;

// Tile number `number` behind a place in shared memory.
template <int ROWS> __device__ __forceinline__ Tile<64> tile(int place, int number) {
    return {ptx::shared_base() + place + number * TILE<ROWS>};
}

// Waits for the weights of the next step, and queues those of the step behind it, in two stages in turn.
template <class Weights> __device__ __forceinline__ Tile<64> next(Weights &weights) {
    ptx::cp_async_wait<0>();
    // All copies of this step have landed, and all threads are done with the step that is replaced.
    ptx::barrier();
    weights.load(weights.step + 1);
    return weights.stage(weights.step++);
}

// fc1's weights of a chunk of the inner rows, for 128 columns of C: the chunk's rows.
template <int C>
__device__ __forceinline__ void load_weight1(Tile<64> stage, const uint16_t *weight1, int inner, int first, int step) {
    const gemm::Matrix<const uint16_t> weight{weight1, inner, C};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int column = step * 128 + half * 64;
        if (column >= C) continue;
        gemm::load<CHUNK, THREADS>({stage.begin + half * WEIGHTS}, weight.columns(first, column), inner - first);
    }
}

// A warp's rows of the inner rows, and 32 of a chunk's columns.
template <int ROWS> using Inner = float[WARP_ROWS<ROWS> / 16][4][4];

// inner = x·weight1ᵀ for the warp's rows, from `row` on, and 32 of a chunk's columns; x stands in tiles from `place` on.
template <int C, int ROWS, class Weights>
__device__ __forceinline__ void multiply_inner(Inner<ROWS> &inner, int place, Weights &weights, int row, int column,
                                               int lane) {
    Tile<64> stage{};
    gemm::clear(inner);
#pragma unroll 1
    for (int k = 0; k < C / 64; ++k) {
        if (k % 2 == 0) stage = next(weights);
        const Tile<64> right{stage.begin + k % 2 * WEIGHTS};
        gemm::multiply<false, false>(inner, tile<ROWS>(place, k), row, right, lane, column);
    }
}

// Queues the copies of the block's rows of a matrix whose rows come again after `period`.
template <int C, int ROWS>
__device__ __forceinline__ void load_repeated(int place, const uint16_t *from, int first, int period, int valid) {
    constexpr int PIECES = C / 8;
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        const bool inside = row < valid;
        const uint16_t *source = from + static_cast<size_t>((first + row) % period) * C + piece * 8;
        ptx::cp_async_16(tile<ROWS>(place, piece / 8).at(row, piece % 8), inside ? source : from, inside ? 16 : 0);
    }
}

// The same of all rows, each once.
template <int C, int ROWS>
__device__ __forceinline__ void load_rows(int place, const uint16_t *from, int rows, int first) {
    const gemm::Matrix<const uint16_t> matrix{from, rows, C};
#pragma unroll
    for (int k = 0; k < C / 64; ++k) {
        gemm::load<ROWS, THREADS>(tile<ROWS>(place, k), matrix.columns(first, k * 64), rows - first);
    }
}

// A lane's piece of a row that a warp has to itself, in tiles from `place` on.
template <int ROWS> __device__ __forceinline__ ptx::Shared piece(int place, int row, int lane) {
    return tile<ROWS>(place, lane / 8).at(row, lane % 8);
}

// The sum of two such pieces.
template <int ROWS>
__device__ __forceinline__ void load_sum(float (&sum)[PIECE], int first, int second, int row, int lane) {
    float added[PIECE];
    unpack(sum, ptx::load_shared<uint4>(piece<ROWS>(first, row, lane)));
    unpack(added, ptx::load_shared<uint4>(piece<ROWS>(second, row, lane)));
#pragma unroll
    for (int e = 0; e < PIECE; ++e) sum[e] += added[e];
}

// The block's threads copy the rows of C columns that stand in tiles from `place` on.
template <int C, int ROWS>
__device__ __forceinline__ void store_rows(uint16_t *to, int place, int valid) {
    constexpr int PIECES = C / 8;
#pragma unroll 4
    for (int i = ptx::thread(); i < ROWS * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        if (row >= valid) break;
        const auto value = ptx::load_shared<uint4>(tile<ROWS>(place, piece / 8).at(row, piece % 8));
        ptx::store_global(reinterpret_cast<uint4 *>(to) + i, value);
    }
}

} // namespace feed_forward
