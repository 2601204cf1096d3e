// Blocks of few rows and 64 columns of results: what `linear_few_rows` and `norm_linear` share.
#pragma once

#include "linear_few_rows.h"

#include "gemm.cuh"

namespace few_rows {

constexpr int THREADS = LINEAR_FEW_ROWS_THREADS, WARP_COLUMNS = 16;
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
