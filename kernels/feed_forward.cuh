// What the kernels of the row-wise network share: how a block's warps and the weights' steps are laid out.
#pragma once

#include "feed_forward.h"

#include "gemm.cuh"
#include "norm_rows.cuh"

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

// A lane's piece of a row that a warp has to itself, in tiles from `place` on.
template <int ROWS> __device__ __forceinline__ ptx::Shared piece(int place, int row, int lane) {
    return tile<ROWS>(place, lane / 8).at(row, lane % 8);
}

// The block's rows as LayerNorm has them, each warp some that are one behind the other.
template <int C, int ROWS> __device__ __forceinline__ layer_norm::NormRows<C, ROWS * 32 / THREADS> norm_rows(int first, int valid) {
    constexpr int OF_WARP = ROWS * 32 / THREADS;
    const int warp = ptx::thread() / 32;
    return {first, valid, warp * OF_WARP};
}

} // namespace feed_forward
