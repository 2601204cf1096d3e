// Keys and values of attention forward on their way to warpgroups: a ring of chunks in shared memory, which one warpgroup
// fills while the others read.
#pragma once

#include "attention_warpgroup_sm90.cuh"

namespace attention::wgmma {

// Warpgroups that attend.
template <int D> constexpr int CONSUMERS = D == 32 ? ATTENTION_SM90_CONSUMERS_D32 : ATTENTION_SM90_CONSUMERS_D64;
// Bytes of their queries, which stand in front of the ring.
template <int D> constexpr int QUERY_BYTES = Tile<D>::bytes(CONSUMERS<D> * ROWS);

// The chunks, and at which of them a warpgroup is. Each has its values behind its keys, and two mbarriers behind all chunks:
// one is complete when its copies have landed, the other when all are done with it.
template <int D> struct Ring {
    static constexpr int BYTES = Tile<D>::bytes(2 * ROWS);

    int slots;
    // Whether all chunks of the set stay.
    bool stays;
    int slot = 0;
    uint32_t phase = 0;

    // What `bytes` bytes of shared memory have room for.
    static __device__ __forceinline__ int room(int bytes) {
        return (bytes - QUERY_BYTES<D>) / (BYTES + ATTENTION_SM90_BARRIER_BYTES);
    }

    __device__ __forceinline__ Tile<D> keys() const {
        return Tile<D>{ptx::shared_base() + QUERY_BYTES<D> + slot * BYTES};
    }
    __device__ __forceinline__ Tile<D> values() const { return Tile<D>{keys().begin + Tile<D>::bytes(ROWS)}; }
    __device__ __forceinline__ ptx::Shared full() const {
        return ptx::shared_base() + QUERY_BYTES<D> + slots * BYTES + slot * ATTENTION_SM90_BARRIER_BYTES;
    }
    __device__ __forceinline__ ptx::Shared empty() const { return full() + 8; }

    // Makes the mbarriers, a thread those of a chunk.
    __device__ __forceinline__ void make(int thread) const {
        if (thread >= slots) return;
        const ptx::Shared at = full() + thread * ATTENTION_SM90_BARRIER_BYTES;
        ptx::mbarrier_init(at, GROUP);
        ptx::mbarrier_init(at + 8, CONSUMERS<D> * GROUP / 32);
    }

    __device__ __forceinline__ void advance() {
        if (++slot == slots) {
            slot = 0;
            phase ^= 1;
        }
    }

    // Waits until the chunk is there.
    __device__ __forceinline__ void wait() const { ptx::mbarrier_wait(full(), phase); }

    // The warp is done with the chunk.
    __device__ __forceinline__ void release() const {
        if (stays) return;
        ptx::sync_warp();
        if ((ptx::thread() & 31) == 0) ptx::mbarrier_arrive(empty());
    }
};

// A warpgroup loads so many chunks of a tile's keys, from the first again behind the last. Keys and values behind the last
// are 0.
template <int D>
__device__ __forceinline__ void fill(const AttentionForward &p, Ring<D> ring, const AttentionTile &tile, int loads) {
    constexpr int PIECES = Tile<D>::PIECES;
    const size_t to_values = static_cast<size_t>(p.heads) * p.key_rows * D;
    const uint16_t *begin = p.kv + (static_cast<size_t>(blockIdx.y) * p.key_rows + tile.key_begin) * D;
    Ring<D> landed = ring;
    int first = 0;
#pragma unroll 1
    for (int number = 0; number <= loads; ++number) {
        if (number < loads) {
            if (number >= ring.slots) ptx::mbarrier_wait(ring.empty(), ring.phase ^ 1);
#pragma unroll 1
            for (int i = threadIdx.x; i < ROWS * PIECES; i += GROUP) {
                const int row = i / PIECES, piece = i % PIECES;
                const bool inside = first + row < tile.key_rows;
                const uint16_t *from = begin + (inside ? (first + row) * D + piece * 8 : 0);
                ptx::cp_async_16(ring.keys().at(row, piece), from, inside ? 16 : 0);
                ptx::cp_async_16(ring.values().at(row, piece), from + to_values, inside ? 16 : 0);
            }
            first = first + ROWS < tile.key_rows ? first + ROWS : 0;
            ring.advance();
        }
        ptx::cp_async_commit();
        // Of the chunk before.
        if (number > 0) {
            ptx::cp_async_wait<1>();
            ptx::fence_proxy_async();
            ptx::mbarrier_arrive(landed.full());
            landed.advance();
        }
    }
}

} // namespace attention::wgmma
