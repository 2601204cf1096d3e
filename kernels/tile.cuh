// Tiles of bf16 rows in shared memory: how they are laid out and filled.
#pragma once

#include "ptx.cuh"

// Rows of WIDTH bf16 values, 64 or 128 bytes each, in pieces of 16 bytes. The pieces of a row are permuted by its
// number, so that the eight rows that ldmatrix reads at once lie in different banks.
template <int WIDTH> struct Tile {
    static constexpr int ROW_BYTES = WIDTH * 2;
    static constexpr int PIECES = ROW_BYTES / 16;
    static_assert(ROW_BYTES == 64 || ROW_BYTES == 128);

    ptx::Shared begin;

    // The bytes that `rows` rows take.
    static constexpr __host__ __device__ int bytes(int rows) { return rows * ROW_BYTES; }

    // Where piece `piece` of row `row` stands.
    __device__ __forceinline__ ptx::Shared at(int row, int piece) const {
        const int turn = ROW_BYTES == 64 ? (row >> 1) & 3 : row & 7;
        return begin + row * ROW_BYTES + ((piece ^ turn) << 4);
    }

    // The block's THREADS threads copy ROWS rows from `from`, `stride` values apart, in the background; those from number
    // `valid` on become zeros.
    template <int ROWS, int THREADS>
    __device__ __forceinline__ void load(const uint16_t *from, int valid, size_t stride = WIDTH) const {
        static_assert(ROWS * PIECES % THREADS == 0);
#pragma unroll
        for (int i = 0; i < ROWS * PIECES / THREADS; ++i) {
            const int number = i * THREADS + static_cast<int>(threadIdx.x);
            const int row = number / PIECES, piece = number % PIECES;
            load_piece(at(row, piece), from, row, piece, valid, stride);
        }
    }

    // Copies a piece of a row from `from`, in the background; of rows from number `valid` on, zeros.
    static __device__ __forceinline__ void load_piece(ptx::Shared to, const uint16_t *from, int row, int piece,
                                                      int valid, size_t stride) {
        const bool inside = row < valid;
        const uint16_t *source = from + (inside ? row * stride + piece * 8 : 0);
        ptx::cp_async_16(to, source, inside ? 16 : 0);
    }
};
