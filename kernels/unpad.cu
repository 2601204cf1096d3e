#include "unpad.h"

#include "ptx.cuh"

// The documents of a batch that comes in a grid, as rows one after the other: what all other kernels read.
//
//   rows[offsets[b] + i] = bf16(grid[b, c]),   c the i-th cell of set b that is a document
//
//   By lengths these are a set's first cells, by a mask any.
//
// Shapes      grid [B, n_max, F] f32; offsets [B + 1]; lengths [B], or mask [B, ⌈n_max / 32⌉] of bits; rows [N, width] bf16,
//             0 from column F on.
// Checked     by the launcher (src/ops/unpad/device.rs): lengths, overlap, width a multiple of 64 and at least F, n_max at most
//             2^20, and offsets, lengths and mask are of the same sets.
// Launch      a warp for 8 cells of a set, 256 threads a block. No shared memory.
// Types       f32 rounded to bf16, to nearest even, as the host rounds features.
// Determinism nothing is added.
// Writes      `=`: rows.
// Cost        N·(4·F + 2·width) bytes: features of padding are not read. A length a warp, or the mask's words up to the warp's.
//             Bound by memory: a lane has up to 8 loads under way.

namespace {

constexpr int WARPS = UNPAD_THREADS / 32, CELLS = UNPAD_CELLS;
static_assert(32 % CELLS == 0);

// Pairs of columns that a lane has under way.
constexpr int AHEAD = 4;

// Neighbouring cells of a set.
struct Cells {
    // Bit i: whether cell number i of them is a document.
    uint32_t documents;
    // Documents of the set in the cells before.
    int before;
};

__device__ __forceinline__ Cells by_length(const Unpad &p, int set, int first) {
    const int length = ptx::load_constant(p.lengths + set), inside = min(max(length - first, 0), CELLS);
    return {(1u << inside) - 1, first};
}

__device__ __forceinline__ Cells by_mask(const Unpad &p, int set, int first, int lane) {
    const uint32_t *const words = p.mask + static_cast<size_t>(set) * ((p.n_max + 31) / 32);
    const int own = first / 32, shift = first % 32;
    int before = 0;
#pragma unroll 1
    for (int word = lane; word < own; word += 32) before += __popc(ptx::load_constant(words + word));
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) before += static_cast<int>(ptx::shuffle_xor(static_cast<uint32_t>(before), mask));
    const uint32_t word = ptx::load_constant(words + own);
    return {word >> shift & ((1u << CELLS) - 1), before + __popc(word & ((1u << shift) - 1))};
}

// A warp's copy of a document's features.
__device__ __forceinline__ void copy(uint16_t *to, const float *from, int features, int width, int lane) {
    for (int first = 2 * lane; first < width; first += AHEAD * 64) {
        float held[AHEAD][2];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int column = first + j * 64 + e;
                held[j][e] = 0.0f;
                if (column < features) held[j][e] = ptx::load_constant(from + column);
            }
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int column = first + j * 64;
            if (column < width) {
                ptx::store_global(reinterpret_cast<uint32_t *>(to + column), ptx::pack_bf16(held[j][0], held[j][1]));
            }
        }
    }
}

template <bool MASK> __device__ __forceinline__ void unpad(const Unpad &p) {
    const int lane = threadIdx.x & 31, warps_of_set = (p.n_max + CELLS - 1) / CELLS;
    const int64_t warp = static_cast<int64_t>(blockIdx.x) * WARPS + (threadIdx.x >> 5);
    const int64_t set = warp / warps_of_set;
    if (set >= p.sets) return;
    const int first = static_cast<int>(warp % warps_of_set) * CELLS;
    const Cells cells = MASK ? by_mask(p, static_cast<int>(set), first, lane) : by_length(p, static_cast<int>(set), first);
    size_t row = static_cast<size_t>(ptx::load_constant(p.offsets + set)) + cells.before;
    for (uint32_t left = cells.documents; left != 0; left &= left - 1) {
        const size_t cell = static_cast<size_t>(set) * p.n_max + first + __ffs(static_cast<int>(left)) - 1;
        copy(p.rows + row * p.width, p.grid + cell * p.features, p.features, p.width, lane);
        ++row;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(UNPAD_THREADS) unpad_lengths(const __grid_constant__ Unpad p) {
    unpad<false>(p);
}

extern "C" __global__ void __launch_bounds__(UNPAD_THREADS) unpad_mask(const __grid_constant__ Unpad p) {
    unpad<true>(p);
}
