// Operands on their way to the warpgroups of a cluster's blocks: a ring of slots in shared memory, which a thread of each block
// fills while warps of all of them read.
#pragma once

#include "ptx.cuh"

namespace warpgroup {

// SLOTS slots of BYTES bytes, from byte BEGIN of shared memory on, and at which of them a warp is; in clusters of BLOCKS blocks,
// of each of which so many WARPS read. A slot has two mbarriers behind all slots: one is complete when its copies have landed,
// from all blocks, and FILLERS of the block have arrived: the thread that copies, and each warp that writes; the other when the
// readers of all blocks are done with it.
template <int BEGIN, int BYTES, int SLOTS, int BLOCKS, int WARPS, int FILLERS = 1> struct Ring {
    static constexpr int BARRIER_BYTES = 16, END = BEGIN + SLOTS * (BYTES + BARRIER_BYTES);
    // A bit for each block.
    static constexpr uint32_t ALL_BLOCKS = (1 << BLOCKS) - 1;

    int slot = 0;
    uint32_t phase = 0;

    // How far the slot is behind the first.
    __device__ __forceinline__ int offset() const { return slot * BYTES; }
    __device__ __forceinline__ ptx::Shared at() const { return ptx::shared_base() + BEGIN + offset(); }
    __device__ __forceinline__ ptx::Shared full() const {
        return ptx::shared_base() + BEGIN + SLOTS * BYTES + slot * BARRIER_BYTES;
    }
    __device__ __forceinline__ ptx::Shared empty() const { return full() + 8; }

    // Makes the mbarriers, a thread those of a slot.
    __device__ __forceinline__ void make(int thread) const {
        if (thread >= SLOTS) return;
        const ptx::Shared barriers = full() + thread * BARRIER_BYTES;
        ptx::mbarrier_init(barriers, FILLERS);
        ptx::mbarrier_init(barriers + 8, BLOCKS * WARPS);
    }

    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }

    // Waits until the operands are there.
    __device__ __forceinline__ void wait() const { ptx::mbarrier_wait(full(), phase); }

    // The warp is done with them.
    __device__ __forceinline__ void release() const {
        ptx::sync_warp();
        const uint32_t lane = ptx::thread() & 31;
        if (lane < BLOCKS) ptx::mbarrier_arrive_at(empty(), lane);
    }

    // A warp that has nothing to multiply goes along with so many steps.
    __device__ __forceinline__ void follow(int steps) {
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            wait();
            release();
            advance();
        }
    }

    // Waits until all warps of all blocks are done with what was there. At first nothing was there, but in a slot that is lent to
    // them.
    __device__ __forceinline__ void wait_for_room(bool is_lent = false) const {
        ptx::mbarrier_wait(empty(), phase ^ (is_lent ? 0 : 1));
    }

    // The same, and expects the copies that come.
    __device__ __forceinline__ void expect(bool is_lent = false) const {
        wait_for_room(is_lent);
        ptx::mbarrier_arrive_expect(full(), BYTES);
    }

    // What the warp writes besides is there.
    __device__ __forceinline__ void fill() const {
        ptx::sync_warp();
        if ((ptx::thread() & 31) == 0) ptx::mbarrier_arrive(full());
    }
};

} // namespace warpgroup
