// Products of bf16 matrices by blocks of 128 × 256 results or 256 × 128, 64 × 64 of them a warp: what `linear_wide` and `rbf`
// share. Operands are asked for less often, and read less often from shared memory, than by the blocks of `gemm`.
#pragma once

#include "weights.cuh"

namespace wide {

// Threads of a block; rows and columns of its results, and of a warp's.
constexpr int THREADS = 256, ROWS = 128, COLUMNS = 256, WARP_TILE = 64;
// Bytes of two stages.
constexpr int SHARED_BYTES = 12 * gemm::TILE_BYTES;

// Tiles of 64 rows in two stages, LEFT and RIGHT of them of the operands.
template <int LEFT, int RIGHT> struct Stages {
    static constexpr int BYTES = (LEFT + RIGHT) * gemm::TILE_BYTES;
    static_assert(2 * BYTES == SHARED_BYTES);

    static __device__ __forceinline__ Tile<64> left(int step) { return {ptx::shared_base() + step % 2 * BYTES}; }
    static __device__ __forceinline__ Tile<64> right(int step) { return gemm::next(left(step), LEFT); }
};

// A warp's results.
using Results = float[WARP_TILE / 16][WARP_TILE / 8][4];

// Goes through the steps: `fill(step)` copies a step's tiles, while `product(step)` works on those of the step before.
template <class Fill, class Product>
__device__ __forceinline__ void for_steps(int steps, const Fill &fill, const Product &product) {
    fill(0);
    ptx::cp_async_commit();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ptx::cp_async_wait<0>();
        // All copies of this step have landed, and all threads are done with the step that is replaced.
        ptx::barrier();
        if (step + 1 < steps) fill(step + 1);
        ptx::cp_async_commit();
        product(step);
    }
}

// The block's threads copy COUNT tiles of 64 columns, side by side from `column` on, and TILE_ROWS rows from `row` on.
template <int COUNT, int TILE_ROWS>
__device__ __forceinline__ void load(Tile<64> to, const gemm::Matrix<const uint16_t> &from, int row, int column,
                                     int valid) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const Tile<64> tile = gemm::next(to, i * (TILE_ROWS / 64));
        gemm::load<TILE_ROWS, THREADS>(tile, from.columns(row, column + i * 64), valid);
    }
}

// Where a block of 128 rows and 256 columns has its results, and a warp's 64 × 64 of them.
struct Place {
    static constexpr int COLUMN_WARPS = COLUMNS / WARP_TILE;
    static_assert(THREADS / 32 == ROWS / WARP_TILE * COLUMN_WARPS);

    int lane, row, column, valid, warp_row, warp_column;

    __device__ __forceinline__ Place(int rows, int columns) {
        const int warp = threadIdx.x >> 5, block = blockIdx.x, tiles = columns / COLUMNS;
        lane = threadIdx.x & 31;
        row = block / tiles * ROWS;
        column = block % tiles * COLUMNS;
        valid = rows - row;
        warp_row = warp / COLUMN_WARPS * WARP_TILE;
        warp_column = warp % COLUMN_WARPS;
    }

    // The tile of 128 rows that the warp's columns of results are in, in the place of the operands.
    __device__ __forceinline__ Tile<64> tile() const {
        return {ptx::shared_base() + warp_column * Tile<64>::bytes(ROWS)};
    }

    // Stores the warp's results.
    __device__ __forceinline__ void store(Results &results, const gemm::Matrix<uint16_t> &to) const {
        gemm::store_pairs(results, to.columns(row, column + warp_column * WARP_TILE), warp_row, valid, lane);
    }
};

} // namespace wide
