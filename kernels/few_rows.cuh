// Products by blocks of few rows, whose operands are on their way several steps ahead: what `linear_few_rows` and `norm_linear`
// share.
#pragma once

#include "linear_few_rows.h"

#include "gemm.cuh"

namespace few_rows {

constexpr int THREADS = LINEAR_FEW_ROWS_THREADS, STAGES = LINEAR_FEW_ROWS_STAGES, WARP_COLUMNS = 16;
static_assert(THREADS / 32 * WARP_COLUMNS == gemm::COLUMNS);

// Of a warp: ROWS rows, and 16 columns.
template <int ROWS> using Results = float[ROWS / 16][WARP_COLUMNS / 8][4];

// Where the block's results begin, and the first of the warp's 16 of its 64 columns.
struct Place {
    int row, column, of_warp;

    template <int ROWS> static __device__ __forceinline__ Place of_block(int columns) {
        const int block = blockIdx.x, tiles = columns / gemm::COLUMNS, warp = threadIdx.x >> 5;
        return {block / tiles * ROWS, block % tiles * gemm::COLUMNS, warp * WARP_COLUMNS};
    }
};

// Bytes of a step's rows of the left operand.
template <int ROWS> constexpr int LEFT = Tile<64>::bytes(ROWS);

// A left operand that comes in step by step, in front of the right one's columns.
template <int ROWS> struct Copied {
    static constexpr int STAGE = LEFT<ROWS>;

    gemm::Matrix<const uint16_t> matrix;
    int row;

    __device__ __forceinline__ void prepare() const {}
    __device__ __forceinline__ void load(ptx::Shared stage, int step) const {
        gemm::load<ROWS, THREADS>({stage}, matrix.columns(row, step * gemm::STEP), matrix.rows - row);
    }
    __device__ __forceinline__ Tile<64> of_step(ptx::Shared stage, int) const { return {stage}; }
};

// Adds to results the block's rows of a left operand times the columns of W from its own on, or, of forward, of Wᵀ. Afterwards
// others may still read the operands. `left.prepare()` is called while the first copies are on their way.
template <int ROWS, bool FORWARD, class Left>
__device__ __forceinline__ void multiply(Results<ROWS> &results, const Left &left, gemm::Matrix<const uint16_t> weight,
                                         int inner, Place place, int lane) {
    constexpr int STAGE = Left::STAGE + Tile<64>::bytes(gemm::COLUMNS);
    const int steps = inner / gemm::STEP;
    const auto stage = [](int step) { return ptx::shared_base() + step % STAGES * STAGE; };
    const auto fill = [&](int step) {
        if (step < steps) {
            const ptx::Shared to = stage(step);
            const int k = step * gemm::STEP, column = place.column;
            left.load(to, step);
            const auto right = FORWARD ? weight.columns(column, k) : weight.columns(k, column);
            gemm::load<gemm::COLUMNS, THREADS>({to + Left::STAGE}, right, gemm::COLUMNS);
        }
        ptx::cp_async_commit();
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) fill(step);
    left.prepare();
    gemm::clear(results);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ptx::cp_async_wait<STAGES - 2>();
        // This step's copies have landed, and all threads are done with the step that is replaced.
        ptx::barrier();
        fill(step + STAGES - 1);
        const ptx::Shared from = stage(step);
        const Tile<64> right{from + Left::STAGE};
        gemm::multiply<false, !FORWARD>(results, left.of_step(from, step), 0, right, lane, place.of_warp);
    }
}

// Where pieces of 8 of the warp's columns of a matrix begin.
template <class T> __device__ __forceinline__ auto pieces(const gemm::Matrix<T> &matrix, const Place &place) {
    return [columns = matrix.columns(place.row, place.column), first = place.of_warp / 8](int row, int piece) {
        return columns.at(row, first + piece);
    };
}

// y = activation(results + b): of the layer's outputs those of the block, and of them the warp's.
template <int ROWS>
__device__ __forceinline__ void finish(Results<ROWS> &results, const float *bias, bool relu, gemm::Matrix<uint16_t> y,
                                       Place place, int lane) {
    gemm::add_bias(results, bias + place.column + place.of_warp, relu, lane);
    gemm::store_pairs(results, y.rows - place.row, lane, pieces(y, place));
}

} // namespace few_rows
