// Rows of a whole set on their way into shared memory, in attention backward.
#pragma once

#include "attention_tile.cuh"

namespace attention {

// Of 16 × 16 values of s: four 8×8 matrices whose rows are keys. What a warp's lanes put by at a time is as long.
constexpr int EXCHANGE_BYTES = ATTENTION_EXCHANGE_BYTES;

// Bytes of 16 queries of a group in shared memory, which are q, d_o, log2 of the sums, and δ, and of 16 keys: k and v.
template <int D> struct Layout {
    static constexpr int TILE = Tile<D>::bytes(16), QUERIES = 2 * TILE + ATTENTION_SUMS_BYTES, KEYS = 2 * TILE;
};

// A group's threads copy rows, in the background, to tiles that are `STRIDE` bytes apart; behind the last, zeros.
template <int D, int STRIDE>
__device__ __forceinline__ void load_rows(ptx::Shared to, const uint16_t *from, int rows, size_t stride, int thread,
                                          int threads) {
    for (int number = thread; number < divide_up(rows, 16) * 16 * Tile<D>::PIECES; number += threads) {
        const int row = number / Tile<D>::PIECES, piece = number % Tile<D>::PIECES;
        const ptx::Shared tile = to + (row >> 4) * STRIDE;
        Tile<D>::load_piece(Tile<D>{tile}.at(row & 15, piece), from, row, piece, rows, stride);
    }
}

// The same of a set's q and d_o in this block's head.
template <int D>
__device__ __forceinline__ void load_queries(const AttentionBackward &p, const AttentionTile &set, ptx::Shared queries,
                                             int thread, int threads) {
    constexpr int QUERIES = Layout<D>::QUERIES, TILE = Layout<D>::TILE;
    const size_t head = blockIdx.y, heads = p.heads, stride = heads * D;
    const uint16_t *first_query = p.q + (head * p.query_rows + set.query_begin) * D;
    const uint16_t *d_output = p.d_output + (set.output_begin * heads + head) * D;
    load_rows<D, QUERIES>(queries, first_query, set.query_rows, D, thread, threads);
    load_rows<D, QUERIES>(queries + TILE, d_output, set.query_rows, stride, thread, threads);
}

// Loads log-sum-exps and computes δ of the queries, into the places behind their tiles.
template <int D>
__device__ __forceinline__ void load_query_sums(const AttentionBackward &p, const AttentionTile &set,
                                                ptx::Shared queries, int thread, int threads) {
    constexpr int QUERIES = Layout<D>::QUERIES, TILE = Layout<D>::TILE, PIECES = Tile<D>::PIECES;
    const size_t head = blockIdx.y, heads = p.heads, stride = heads * D;
    const size_t first_output = (set.output_begin * heads + head) * D;
    const uint16_t *output = p.output + first_output;
    const uint16_t *d_output = p.d_output + first_output;
    const int rows = divide_up(set.query_rows, 16) * 16;
    // Rows behind the set weigh nothing.
    const auto sum_of = [&](int row) { return queries + (row >> 4) * QUERIES + 2 * TILE + (row & 15) * 4; };
    for (int row = thread; row < rows; row += threads) {
        const size_t at = head * p.output_rows + set.output_begin + row;
        const float sum = row < set.query_rows ? ptx::load_constant(p.log_sum_exp + at) * LOG2_E : INFINITE;
        ptx::store_shared(sum_of(row), sum);
    }
    // The lanes of a warp go on together: tiles are whole warps' work.
#pragma unroll 4
    for (int number = thread; number < rows * PIECES; number += threads) {
        const int row = number / PIECES, piece = number % PIECES;
        uint4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
        if (row < set.query_rows) {
            const size_t at = row * stride + piece * 8;
            a = ptx::load_constant(reinterpret_cast<const uint4 *>(output + at));
            b = ptx::load_constant(reinterpret_cast<const uint4 *>(d_output + at));
        }
        float sum = add_pairs(add_pairs(0.0f, a.x, b.x), a.y, b.y);
        sum = add_pairs(add_pairs(sum, a.z, b.z), a.w, b.w);
#pragma unroll
        for (int lanes = 1; lanes < PIECES; lanes *= 2) sum += ptx::shuffle_xor(sum, lanes);
        if (piece == 0) ptx::store_shared(sum_of(row) + 64, sum);
    }
}

} // namespace attention
