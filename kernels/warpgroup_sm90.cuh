// What kernels of warpgroups share: their size, their registers, rows of tiles as operands of their matrix instructions, and the
// frame of a block that loads and multiplies.
#pragma once

#include "tile.cuh"

namespace warpgroup {

// Threads of a warpgroup.
constexpr int GROUP = 128;

// Whether a multiprocessor has registers for so many blocks of one warpgroup that gives some of its own away and `takers`
// that take them: each begins with as many as all could have.
constexpr __host__ __device__ bool registers_suffice(int giver, int takers, int taker, int blocks) {
    const int all = takers + 1, at_launch = 65536 / (blocks * GROUP * all) / 8 * 8;
    return giver <= at_launch && taker >= at_launch && giver + takers * taker <= all * at_launch;
}

// Rows of a tile from the first of 8 on, as an operand of wgmma, which finds pieces as the tile permutes them.
template <int D> __device__ __forceinline__ uint64_t operand(Tile<D> tile) {
    constexpr uint64_t SWIZZLE = D == 32 ? 2 : 1, EIGHT_ROWS = Tile<D>::bytes(8) >> 4;
    return SWIZZLE << 62 | EIGHT_ROWS << 32 | (tile.begin & 0x3FFFF) >> 4;
}

// How far the operand's address moves with so many bytes.
constexpr __host__ __device__ uint64_t units(int bytes) { return static_cast<uint64_t>(bytes) >> 4; }

// A block of a cluster, with a ring of operands: its first warpgroup does `load(ring)`, with LOADER registers a thread, and the
// TAKERS others `multiply(ring)`, with TAKER registers.
template <class Ring, int LOADER, int TAKERS, int TAKER, class Load, class Multiply>
__device__ __forceinline__ void run_block(const Load &load, const Multiply &multiply) {
    static_assert(registers_suffice(LOADER, TAKERS, TAKER, 1));
    Ring ring;
    ring.make(threadIdx.x);
    ptx::fence_mbarrier_init();
    ptx::cluster_barrier();
    if (threadIdx.x < GROUP) {
        ptx::registers_decrease<LOADER>();
        load(ring);
    } else {
        ptx::registers_increase<TAKER>();
        multiply(ring);
    }
    ptx::sync_warp();
    // What the other blocks tell this one's mbarriers needs them until they are done.
    ptx::cluster_barrier();
}

} // namespace warpgroup
