// Keys and values of attention forward in shared memory.
#pragma once

#include "attention.h"

#include "tile.cuh"

namespace attention {

// Keys of a step: those of one product of weights with values.
constexpr int STEP = 16;

// The keys and values that a team of warps goes over, on their way through the shared memory that it has: all of them
// stay where there is room, in two chunks, so that work begins when half of them are there; else a ring of three chunks
// goes round.
template <int D> struct Keys {
    const AttentionForward &p;
    // Warps, and where the keys begin in k and v.
    int team, first;
    int rows;
    Tile<D> keys;
    // Rows of a chunk, and of all that there is room for.
    int chunk, ring;
    // Chunks that are yet to be loaded; while it is more than −2, the next one is yet to be waited for.
    int loads;
    // The first row of the next chunk to be loaded, and where the next one to be waited for stands.
    int next_row, place;

    // `rows` rows from row `first` on, for a team of so many warps, each of which has `warp_bytes` bytes of shared memory;
    // all are gone over `passes` times.
    __device__ __forceinline__ Keys(const AttentionForward &p, int team, int first, int rows, int warp_bytes, int passes)
        : p(p), team(team), first(first), rows(rows), loads(0), next_row(0), place(0) {
        const int room = team * warp_bytes / Tile<D>::bytes(2), steps = (rows + STEP - 1) / STEP;
        const bool stay = steps * STEP <= room;
        chunk = max(stay ? (steps + 1) / 2 : room / (3 * STEP), 1) * STEP;
        ring = stay ? steps * STEP : 3 * chunk;
        keys.begin = ptx::shared_base() + (threadIdx.x / 32 & -team) * warp_bytes;
        loads = stay ? (rows > 0) + (rows > chunk) : (rows + chunk - 1) / chunk * passes;
#pragma unroll 1
        for (int i = 0; i < 2; ++i) load(i * chunk);
    }

    // Values stand behind the keys.
    __device__ __forceinline__ Tile<D> values() const { return Tile<D>{keys.begin + Tile<D>::bytes(ring)}; }

    // Waits for the next chunk, and gives the row at which it stands.
    __device__ __forceinline__ int next() {
        if (loads > -2) {
            ptx::cp_async_wait<1>();
            // All copies of this chunk have landed, and all warps are done with the one that the next copies replace.
            ptx::barrier_sync(1 + (threadIdx.x / 32 & -team), 32 * team);
            load(place == 0 ? 2 * chunk : place - chunk);
        }
        const int at = place;
        place = place + chunk < ring ? place + chunk : 0;
        return at;
    }

  private:
    // Loads one more chunk, if there is one, to row `to`; keys behind the last are 0.
    __device__ __forceinline__ void load(int to) {
        if (loads-- > 0) {
            constexpr int PIECES = Tile<D>::PIECES;
            const size_t begin = (static_cast<size_t>(blockIdx.y) * p.key_rows + first + next_row) * D;
            const size_t to_values = static_cast<size_t>(p.heads) * p.key_rows * D;
            const int valid = rows - next_row, count = min(chunk, (valid + STEP - 1) / STEP * STEP);
#pragma unroll 1
            for (int i = threadIdx.x & (32 * team - 1); i < count * PIECES; i += 32 * team) {
                const int row = i / PIECES, piece = i % PIECES;
                const bool inside = row < valid;
                const uint16_t *from = p.kv + (begin + (inside ? row * D + piece * 8 : 0));
                ptx::cp_async_16(keys.at(to + row, piece), from, inside ? 16 : 0);
                ptx::cp_async_16(values().at(to + row, piece), from + to_values, inside ? 16 : 0);
            }
            next_row = next_row + chunk < rows ? next_row + chunk : 0;
        }
        ptx::cp_async_commit();
    }
};

} // namespace attention
