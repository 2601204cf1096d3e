// Products of bf16 matrices by blocks of 128 × 256 results and matrix instructions of warpgroups, in clusters of two blocks that
// have the same columns: what `linear_sm90` and `rbf_sm90` share.
#pragma once

#include "ring_sm90.cuh"
#include "warpgroup_sm90.cuh"
#include "weights.cuh"

namespace wide::wgmma {

using namespace warpgroup;

// Rows and columns of a block's results, and the inner dimension of a step.
constexpr int ROWS = 128, COLUMNS = 256, STEP = 64;
// Blocks of a cluster, which have the same columns of results, of whose operand each loads a part for both.
constexpr int BLOCKS = 2;
// Warpgroups that multiply, and rows of each and of their warps; one more loads.
constexpr int MULTIPLIERS = 2, GROUP_ROWS = ROWS / MULTIPLIERS, THREADS = (1 + MULTIPLIERS) * GROUP;
constexpr int WARPS = MULTIPLIERS * GROUP / 32, WARP_ROWS = ROWS / WARPS;
static_assert(GROUP_ROWS == 64 && STEP == 64);
// Registers of a thread that loads, and of those that multiply.
constexpr int LOADER_REGISTERS = 56, MULTIPLIER_REGISTERS = 224;
// Bytes of 64 × 64 of an operand, and of a step's: of the block's own, and of that of its columns, of which it loads a part.
constexpr int TILE = Tile<64>::bytes(64), LEFT = ROWS / 64 * TILE, RIGHT = COLUMNS / 64 * TILE, PART = RIGHT / BLOCKS;

// A ring of slots for a step's operands: OWN bytes of the block's own, and behind them that of its columns; FILLERS as of a ring.
template <int OWN, int FILLERS = 1> struct Slots : Ring<0, OWN + RIGHT, 4, BLOCKS, WARPS, FILLERS> {
    using Of = Ring<0, OWN + RIGHT, 4, BLOCKS, WARPS, FILLERS>;
    using Of::ALL_BLOCKS, Of::at, Of::full;

    // A thread loads a box for its own block, and the block's part of the right operand for all of the cluster.
    __device__ __forceinline__ void load_left(const uint64_t *map, int row, int panel) const {
        ptx::tensor_load(at(), map, 0, row, panel, full(), 1 << ptx::cluster_rank());
    }
    __device__ __forceinline__ void load_right(const uint64_t *map, int row, int panel) const {
        const ptx::Shared to = at() + OWN + ptx::cluster_rank() * PART;
        ptx::tensor_load(to, map, 0, row, panel, full(), ALL_BLOCKS);
    }
};

// A warpgroup's results, of which a warp has 16 rows, and sums over the inner dimension of the left operand's rows, each in all
// of eight columns.
using Results = float[1][COLUMNS / 8][4];
using Sums = float[1][4];

// Where an operand of 16 of the inner dimension stands in the ring's first slot, and how far to the next and to the one behind
// that, in units of a descriptor's address.
struct Operand {
    uint64_t first, next, second;

    __device__ __forceinline__ uint64_t at(int k, uint64_t slot) const {
        return first + slot + k / 2 * second + k % 2 * next;
    }
};

// Of a step's values in rows, from byte `begin` of the slot on: in one tile of 64 of them, or in two of 32 (`narrow`).
__device__ __forceinline__ Operand in_rows(int begin, bool narrow) {
    const ptx::Shared at = ptx::shared_base() + begin;
    if (narrow) return {operand(Tile<32>{at}), units(32), units(Tile<32>::bytes(ROWS))};
    return {operand(Tile<64>{at}), units(32), units(64)};
}

// Of columns in tiles of 64 or of 32 (`narrow`), a step's inner dimension along their 64 rows.
__device__ __forceinline__ Operand in_columns(int begin, bool narrow) {
    const ptx::Shared at = ptx::shared_base() + begin;
    const int bytes = narrow ? Tile<32>::bytes(16) : Tile<64>::bytes(16);
    // From the columns of a tile to those of the next.
    const uint64_t next_tile = units(STEP / 16 * bytes) << 16;
    return {(narrow ? operand(Tile<32>{at}) : operand(Tile<64>{at})) | next_tile, units(bytes), units(2 * bytes)};
}

// Both operands stand in the ring.
using OfBoth = Slots<LEFT>;

// A column of ones as eight, behind that ring: a thread writes 16 bytes, which products are to see.
constexpr int ONES = OfBoth::END, ONES_BYTES = 256;
__device__ __forceinline__ void make_ones(int thread) {
    constexpr uint32_t PAIR = 0x3f803f80;
    if (thread < ONES_BYTES / 16) {
        ptx::store_shared(ptx::shared_base() + ONES + thread * 16, make_uint4(PAIR, PAIR, PAIR, PAIR));
        ptx::fence_proxy_async();
    }
}

// As an operand: 8 × 8 of them, and behind these the next eight of the inner dimension.
__device__ __forceinline__ uint64_t ones() {
    constexpr uint64_t UNIT = units(128);
    return UNIT << 32 | UNIT << 16 | ((ptx::shared_base() + ONES) & 0x3FFFF) >> 4;
}

// results += left · right over so many steps, each operand in rows or, TURNED, in columns; and, where SUMS, sums of the left one.
template <bool LEFT_TURNED, bool RIGHT_TURNED, bool SUMS>
__device__ __forceinline__ void multiply(Results &results, Sums &sums, const Operand &left, const Operand &right,
                                         int steps, OfBoth &ring) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ring.wait();
        const uint64_t slot = units(ring.offset());
        ptx::wgmma_fence(results[0]);
        if constexpr (SUMS) ptx::wgmma_fence(sums);
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) {
            const uint64_t a = left.at(k, slot), b = right.at(k, slot);
            ptx::wgmma_m64k16_bf16<RIGHT_TURNED, LEFT_TURNED>(results[0], a, b, true);
            if constexpr (SUMS) ptx::wgmma_m64k16_bf16<false, LEFT_TURNED>(sums, a, ones(), true);
        }
        ptx::wgmma_commit();
        // The other warpgroup's products are on their way meanwhile.
        ptx::wgmma_wait<0>(results[0]);
        if constexpr (SUMS) ptx::wgmma_wait<0>(sums);
        ring.release();
        ring.advance();
    }
}

// A block of a cluster: one thread does `load(ring, step)` for each of the steps, the other warps of its warpgroup `assist(ring)`,
// and the others `multiply(ring)`.
template <class Slots, class Load, class Multiply, class Assist>
__device__ __forceinline__ void run_block(int steps, const Load &load, const Multiply &multiply, const Assist &assist) {
    const auto of_loader = [&](Slots &ring) {
        if (threadIdx.x >= 32) {
            assist(ring);
        } else if (threadIdx.x == 0) {
#pragma unroll 1
            for (int step = 0; step < steps; ++step) {
                ring.expect();
                load(ring, step);
                ring.advance();
            }
        }
    };
    warpgroup::run_block<Slots, LOADER_REGISTERS, MULTIPLIERS, MULTIPLIER_REGISTERS>(of_loader, multiply);
}

// The same without any that assist.
template <class Slots, class Load, class Multiply>
__device__ __forceinline__ void run_block(int steps, const Load &load, const Multiply &multiply) {
    run_block<Slots>(steps, load, multiply, [](const Slots &) {});
}

// A thread's warpgroup among those that multiply, its warp's first row in the block's, and its lane.
__device__ __forceinline__ int multiplier() { return threadIdx.x / GROUP - 1; }
__device__ __forceinline__ int warp_row() { return (threadIdx.x - GROUP) / 32 * WARP_ROWS; }
__device__ __forceinline__ int lane() { return threadIdx.x & 31; }

// Those that multiply are done with what they have read, and see what the others have written.
__device__ __forceinline__ void meet() { ptx::barrier_sync(1, MULTIPLIERS * GROUP); }

// Where a block has its rows and columns of results: the columns' blocks are the fastest, pairs of rows' behind them.
struct Place {
    int row, column, valid;

    __device__ __forceinline__ Place(int rows, int columns) {
        const int pair = blockIdx.x / BLOCKS, tiles = columns / COLUMNS;
        row = (pair / tiles * BLOCKS + ptx::cluster_rank()) * ROWS;
        column = pair % tiles * COLUMNS;
        valid = rows - row;
    }

    // The panel of 64 columns that the block's part of the columns' operand begins with.
    __device__ __forceinline__ int panel() const { return (column + ptx::cluster_rank() * (COLUMNS / BLOCKS)) / 64; }

    // Stores the warp's results as bf16.
    __device__ __forceinline__ void store(const Results &results, const gemm::Matrix<uint16_t> &to) const {
        gemm::store_pairs(results, valid - warp_row(), lane(), [&](int of_warp, int piece) {
            return to.columns(row + warp_row() + of_warp, column + piece / 8 * 64).at(0, piece % 8);
        });
    }
};

} // namespace wide::wgmma
