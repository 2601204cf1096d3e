// What the row-wise network's warpgroups share in both directions: their rows, weights on their way to them, and the frame
// of their kernels.
#pragma once

#include "feed_forward.h"

#include "feed_forward_sm90.h"

#include "gemm.cuh"
#include "norm_rows.cuh"
#include "ring_sm90.cuh"
#include "warpgroup_sm90.cuh"

namespace feed_forward::wgmma {

using namespace warpgroup;

constexpr int ROWS = FEED_FORWARD_SM90_ROWS, WARP_ROWS = ROWS * 32 / GROUP, CHUNK = FEED_FORWARD_SM90_CHUNK;
// Warpgroups that multiply, and rows of a block; blocks of a cluster.
constexpr int MULTIPLIERS = FEED_FORWARD_SM90_MULTIPLIERS, BLOCK_ROWS = MULTIPLIERS * ROWS;
constexpr int BLOCKS = FEED_FORWARD_SM90_BLOCKS;
// Bytes of 64 columns of 64 rows, and of a block's.
constexpr int TILE = Tile<64>::bytes(64), BLOCK_TILE = Tile<64>::bytes(BLOCK_ROWS);
static_assert(ROWS == 64 && CHUNK == 64);

// 64 columns of a warp's rows as an operand, an array for each step of 16.
using Chunk = uint32_t[CHUNK / 16][4];

// The lane's pair of fragment `d` of its upper or its lower row.
__device__ __forceinline__ uint32_t &pair(Chunk &chunk, int d, int half) { return chunk[d / 2][d % 2 * 2 + half]; }
__device__ __forceinline__ uint32_t pair(const Chunk &chunk, int d, int half) { return chunk[d / 2][d % 2 * 2 + half]; }

// `gemm::swap_pairs` of a chunk's fragments, four at a time.
__device__ __forceinline__ void swap_pairs(Chunk &to, const Chunk &from) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int d = 0; d < CHUNK / 8; d += 4) {
            uint32_t pairs[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) pairs[i] = pair(from, d + i, half);
            gemm::swap_pairs(pairs, ptx::thread());
#pragma unroll
            for (int i = 0; i < 4; ++i) pair(to, d + i, half) = pairs[i];
        }
    }
}

// SLOTS slots of weights behind TILES tiles of the block's rows. Where LENDS, the last one is the multiplying warps' own until each
// of them has released it, as if weights had been there before the first.
template <int C, int TILES, int SLOTS, bool LENDS = false>
struct Ring : warpgroup::Ring<TILES * BLOCK_TILE, C / 64 * TILE, SLOTS, BLOCKS, MULTIPLIERS * GROUP / 32> {
    using Slots = warpgroup::Ring<TILES * BLOCK_TILE, C / 64 * TILE, SLOTS, BLOCKS, MULTIPLIERS * GROUP / 32>;
    using Slots::ALL_BLOCKS, Slots::advance, Slots::full, Slots::slot;
    static_assert(Slots::BARRIER_BYTES == FEED_FORWARD_SM90_BARRIER_BYTES);

    // Of fc1 and of a projection, a chunk's rows in tiles of 64 columns of C; of fc2, C rows of the chunk's columns.
    __device__ __forceinline__ Tile<64> weights() const { return {Slots::at()}; }

    // At the slot that is lent, the one in front of the first.
    static __device__ __forceinline__ Ring lent() {
        Ring ring;
        ring.slot = SLOTS - 1;
        ring.phase = 1;
        return ring;
    }

    // A thread loads the block's part of a chunk's weights, for all blocks of the cluster: of fc1 or a projection, and of fc2.
    __device__ __forceinline__ void load1(const uint64_t *map, int chunk) {
        constexpr int PART = CHUNK / BLOCKS;
        const int block = ptx::cluster_rank();
        expect();
#pragma unroll 1
        for (int k = 0; k < C / 64; ++k) {
            const ptx::Shared to = weights().begin + k * TILE + block * Tile<64>::bytes(PART);
            ptx::tensor_load(to, map, k * 64, chunk + block * PART, full(), ALL_BLOCKS);
        }
        advance();
    }
    __device__ __forceinline__ void load2(const uint64_t *map, int chunk) {
        constexpr int PART = C / BLOCKS;
        const int block = ptx::cluster_rank();
        expect();
        const ptx::Shared to = weights().begin + block * Tile<64>::bytes(PART);
        ptx::tensor_load(to, map, chunk, block * PART, full(), ALL_BLOCKS);
        advance();
    }

    // A warpgroup without rows goes along with so many loads: the others wait for it, and the block stays until all have
    // landed.
    __device__ __forceinline__ void follow(int loads) {
        if constexpr (LENDS) lent().release();
        Slots::follow(loads);
    }

  private:
    __device__ __forceinline__ void expect() const { Slots::expect(LENDS && slot == SLOTS - 1); }
};

// A warpgroup's rows of C columns in shared memory.
template <int C> struct Rows {
    // The warpgroup's first row, and how many from it on there are.
    int first, valid;

    static __device__ __forceinline__ int lane() { return ptx::thread() & 31; }
    static __device__ __forceinline__ int group() { return ptx::thread() / GROUP; }
    // The warp's first row of the warpgroup's.
    static __device__ __forceinline__ int warp_row() { return ptx::thread() % GROUP / 32 * WARP_ROWS; }

    // 64 columns of them, in tile number `number` of the block's.
    static __device__ __forceinline__ Tile<64> tile(int number) {
        return {ptx::shared_base() + number * BLOCK_TILE + (group() - 1) * TILE};
    }

    // Where the lane's pair of fragment `d` stands in tiles from number `tiles` on, of its upper or its lower row.
    static __device__ __forceinline__ ptx::Shared at_pair(int tiles, int d, int half) {
        return tile(tiles + d / 8).at(warp_row() + half * 8 + (lane() >> 2), d % 8) + (lane() & 3) * 4;
    }

    // The warp's, as LayerNorm has them.
    __device__ __forceinline__ layer_norm::NormRows<C, WARP_ROWS> norm_rows() const { return {first, valid, warp_row()}; }

    // Shows what its warps have put into tiles to products of the warpgroup.
    static __device__ __forceinline__ void show() {
        ptx::fence_proxy_async();
        ptx::barrier_sync(group(), GROUP);
    }

    // Stores 64 columns of each warp's rows, `to` those of the warpgroup.
    __device__ __forceinline__ void store_chunk(gemm::Columns<uint16_t> to, const Chunk &chunk) const {
        Chunk own;
        swap_pairs(own, chunk);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_of_pairs(half);
#pragma unroll
            for (int d = 0; d < CHUNK / 8; d += 4) {
                const uint4 piece = make_uint4(pair(own, d, half), pair(own, d + 1, half), pair(own, d + 2, half),
                                               pair(own, d + 3, half));
                if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(to.at(row, d + (lane() & 3))), piece);
            }
        }
    }

    // Loads 64 columns of each warp's rows, which `swap_pairs` makes a chunk of; in the place of rows behind the last that one.
    __device__ __forceinline__ void load_chunk(Chunk &own, gemm::Columns<const uint16_t> from) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = min(row_of_pairs(half), valid - 1);
#pragma unroll
            for (int d = 0; d < CHUNK / 8; d += 4) {
                const auto piece =
                    ptx::load_constant(reinterpret_cast<const uint4 *>(from.at(row, d + (lane() & 3))));
                pair(own, d, half) = piece.x;
                pair(own, d + 1, half) = piece.y;
                pair(own, d + 2, half) = piece.z;
                pair(own, d + 3, half) = piece.w;
            }
        }
    }

  private:
    // The lane's upper or lower row of its fragments.
    static __device__ __forceinline__ int row_of_pairs(int half) { return warp_row() + half * 8 + (lane() >> 2); }
};

// results = rows · weightsᵀ, of C columns of the warpgroup's rows in tiles from number `tiles` on and a chunk's inner
// columns, of fc1's weights, or, TRANSPOSED, of fc2's.
template <int C, bool TRANSPOSED>
__device__ __forceinline__ void multiply_rows(float (&results)[CHUNK / 8][4], int tiles, Tile<64> weights) {
    const uint64_t rows = operand(Rows<C>::tile(tiles)), columns = operand(weights);
#pragma unroll
    for (int k = 0; k < C / 16; ++k) {
        const uint64_t left = rows + units(k / 4 * BLOCK_TILE + k % 4 * 32);
        const uint64_t right = columns + units(TRANSPOSED ? k * Tile<64>::bytes(16) : k / 4 * TILE + k % 4 * 32);
        ptx::wgmma_m64k16_bf16<TRANSPOSED>(results, left, right, k > 0);
    }
    ptx::wgmma_commit();
}

// The lane's pair of columns of fragment `d`.
__device__ __forceinline__ float2 load_pair(const float *from, int d) {
    return ptx::load_constant(reinterpret_cast<const float2 *>(from + d * 8 + 2 * (ptx::thread() & 3)));
}

// ReLU(value), of which a NaN stays one.
__device__ __forceinline__ float relu(float value) { return value < 0.0f ? 0.0f : value; }

// A block of a cluster: one thread does `load(ring)`, which is `loads` loads, and the warpgroups that have some of the rows
// `multiply(first)`, given the first.
template <class Ring, class Load, class Multiply>
__device__ __forceinline__ void run_block(int rows, int loads, const Load &load, const Multiply &multiply) {
    constexpr int LOADER = FEED_FORWARD_SM90_LOADER_REGISTERS, MULTIPLIER = FEED_FORWARD_SM90_MULTIPLIER_REGISTERS;
    warpgroup::run_block<Ring, LOADER, MULTIPLIERS, MULTIPLIER>(
        [&](Ring &ring) {
            if (threadIdx.x == 0) load(ring);
        },
        [&](Ring &ring) {
            const int first = blockIdx.x * BLOCK_ROWS + (threadIdx.x / GROUP - 1) * ROWS;
            if (first < rows) {
                multiply(first);
            } else {
                ring.follow(loads);
            }
        });
}

} // namespace feed_forward::wgmma
