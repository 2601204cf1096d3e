#pragma once

#include "attention_softmax.cuh"

// Attention, forward: every query attends to all keys of its set, in each head.
//
//   o[i] = Σ_j m[i, j] p[i, j] v[j],   p[i, j] = exp(q[i]·k[j] / √D − L[i]),   L[i] = log Σ_j exp(q[i]·k[j] / √D)
//   (paper, equations 4 to 6; j runs over the keys of one set; m is 1, or with dropout 0 or 1/(1 − rate))
//
// Shapes      q [H, Nq, D], or [H, M, D] for M queries that all sets share; kv [2, H, Nk, D], so that the keys of a
//             (set, head) are one run; output [Nq, H·D]; log_sum_exp [H, Nq].
// Checked     by the launcher (src/ops/attention/device.rs): D 32 or 64, tiles inside of the rows and none without
//             keys, 16-byte alignment.
// Launch      grid (blocks, H); 128 threads, in groups of 1, 2 or 4 warps, each of which takes a set or a range of its
//             queries (`ForwardGroups`). The keys and values of a group stay in shared memory where there is room, else
//             they go through it in chunks; a warp takes up to 3 tiles of 16 queries at a time (2 of heads 64 wide, or
//             with dropout). In `split`, for 32 shared queries or fewer, each warp has all of them and a part of the
//             keys, and what the warps gathered is added in the end. A set of more than 1024 documents is several blocks'
//             then; what they gathered goes through memory, and `combine` adds it: grid (such sets, H), 128 threads, for
//             each of four warps what one leaves.
// Types       bf16 in and out; scores, softmax and sums in f32; weights rounded to bf16 for the product with V.
// Determinism the same bits for a set whatever the batch around it: keys in order, in `split` parts that depend on the
//             set alone, no atomics.
// Writes      `=`: every row of the tiles in output and log_sum_exp, nothing else; of parts, partials [parts, H, 64·D] f32
//             alone.
// Cost        4·n²·D FLOPs and n² exponentials a (set, head) of n queries and keys; 4·2·n·D + 4·n bytes, each read once
//             while keys and values stay and a set is one group's. At n = 360, H 8, D 32, of what would do: 1.03 times the
//             products and exponentials, 1.00 times the bytes that differ, 0.87 wavefronts of shared memory a product
//             (counters.txt; 0.78 where a set is one group's). By the rates of an H100 (0.65·798e12 FLOP/s of mma.sync,
//             3.6e12 exp/s, 3.0e12 B/s, a wavefront and four instructions a cycle) a document and layer takes 0.88 ns of
//             instructions (194 for the 24 products and 768 exponentials of a step), 0.82 of exponentials, 0.73 of
//             products, 0.69 of bytes, 0.32 of wavefronts: 12 warps a multiprocessor are to overlap these, which no card
//             has shown yet. At n = 40 it is bound by bytes. Parts of a set leave 5 KB of a head (D 32) that combine reads,
//             where they read 128 KB of 1024 documents.
// Range       weights are off by 2⁻²⁴ of the largest score's size, of themselves: scores of 2²⁰ are still worth while,
//             beyond 2³⁰ they need not be finite. Weights are at most 2⁸ before they are divided by their sum.
// Not-a-number a NaN or infinity in a set makes non-finite what depends on it, and nothing outside of the set.
// Lost        a new scale with every tile of keys: 4 exponentials a query and 64 keys, 6 % at n = 500, and as many
//             products of the results. Two tiles of queries a warp at 128 registers: 1.13 wavefronts a product at n = 360.
//             Queries and results through shared memory: 0.17 more. Steps of 64 keys: 64 more registers.

namespace attention {

// Tiles of 16 query rows that a warp goes over the keys with at a time, so that each fragment of keys or values serves
// them all: as many as there are registers for.
template <int D, bool DROPOUT>
constexpr int FORWARD_TILES = D == 32 && !DROPOUT ? ATTENTION_FORWARD_TILES_D32 : ATTENTION_FORWARD_TILES_D64;

// Query rows of a warp on their way over keys.
template <int D, int TILES, bool DROPOUT> struct Pass {
    const AttentionForward &p;
    // Number of the set, and of the first query and key in it; rows of the queries and of their results.
    int set, first_query, first_key, query_row, output_row;
    int lane;
    Softmax<D, TILES> softmax;

    // `row` counts from the tile's first, `key` too.
    __device__ __forceinline__ Pass(const AttentionForward &p, const AttentionTile &tile, int row, int key)
        : p(p), set(tile.set), first_query(tile.first_query + row), first_key(tile.first_key + key),
          query_row(tile.query_begin + row), output_row(tile.output_begin + row), lane(threadIdx.x & 31) {}

    __device__ __forceinline__ void start(int rows) {
        softmax.start(p.q + (static_cast<size_t>(blockIdx.y) * p.query_rows + query_row) * D, rows, lane);
    }

    // Has the first COUNT tiles attend to all keys.
    template <int COUNT> __device__ __forceinline__ void attend(Keys<D> &keys) {
        const int to_values = keys.values().at(lane & 15, lane >> 4) - keys.keys.at(lane & 7, lane >> 3);
#pragma unroll 1
        for (int number = 0; number < keys.rows;) {
            ptx::Shared key = keys.keys.at(keys.next() + (lane & 7), lane >> 3);
            const int end = min(keys.rows, number + keys.chunk);
#pragma unroll 1
            for (; number < end; number += STEP, key += Tile<D>::bytes(STEP)) {
                // Before there are scores there are registers for it.
                const uint32_t kept = DROPOUT ? draw_tiles<COUNT>(first_key + number) : 0;
                softmax.template attend<COUNT, DROPOUT>(key, key + to_values, keys.rows - number, number == 0,
                                                        p.scale_log2e, kept, lane);
            }
        }
    }

    __device__ __forceinline__ void store(int rows) const {
        const size_t head = blockIdx.y, heads = p.heads;
        softmax.store(p.output + (output_row * heads + head) * D, heads * D,
                      p.log_sum_exp + (head * p.output_rows + output_row), rows,
                      DROPOUT ? p.dropout.keep : 1.0f, lane);
    }

  private:
    // Which weights of a step are kept: 8 bits for each tile.
    template <int COUNT> __device__ __forceinline__ uint32_t draw_tiles(int key) const {
        const Place place{blockIdx.y, static_cast<uint32_t>(set)};
        uint32_t all = 0;
#pragma unroll
        for (int m = 0; m < COUNT; ++m) {
            Kept<STEP / 8> kept;
            kept.draw_for_queries(p.dropout, place, first_query + m * 16, key, lane);
            all |= kept.packed() << (8 * m);
        }
        return all;
    }
};

// The warps of a group share out the queries.
template <int D, bool DROPOUT> __device__ __forceinline__ void forward(const AttentionForward &p) {
    constexpr int TILES = FORWARD_TILES<D, DROPOUT>;
    const Group group = load_group(p);
    if (!group.busy) return;
    const AttentionTile &tile = group.tile;
    const int warps = 1 << group.log2_warps, tiles = (tile.query_rows + 15) / 16;
    int first_tile = group.share(tiles), left = group.share(tiles, 1) - first_tile;
    // Of the warp that has the most tiles.
    int passes = (((tiles + warps - 1) >> group.log2_warps) + TILES - 1) / TILES;
    Keys<D> keys(p, warps, tile.key_begin, tile.key_rows, group.warp_bytes, passes);
#pragma unroll 1
    for (; passes > 0; --passes) {
        const int count = min(left, TILES), row = first_tile * 16, rows = min(tile.query_rows - row, count * 16);
        Pass<D, TILES, DROPOUT> pass(p, tile, row, 0);
        pass.start(rows);
        if constexpr (TILES == 3) {
            if (count == 3) pass.template attend<3>(keys);
        }
        if (count == 2) pass.template attend<2>(keys);
        if (count == 1) pass.template attend<1>(keys);
        if (count == 0) {
            // The others wait for it.
            for (int number = 0; number < keys.rows; number += keys.chunk) keys.next();
        }
        pass.store(rows);
        first_tile += count;
        left -= count;
    }
}

// Of a set whose queries are few: each warp has all of them.
template <int D> using FewQueries = Softmax<D, ATTENTION_FORWARD_SPLIT_ROWS / 16>;
static_assert(ATTENTION_FORWARD_SPLIT_ROWS / 16 * (32 / 8 + 1) * 32 * 4 <= ATTENTION_PART_NUMBERS * 32, "a part has room for it");

// Halves of a group in turn add what the others gathered, always in the same order; `own` is where the warp may leave it.
template <int D>
__device__ __forceinline__ void merge_warps(FewQueries<D> &softmax, const Group &group, ptx::Shared own, int lane) {
    const int warps = 1 << group.log2_warps;
    for (int half = warps / 2; half > 0; half /= 2) {
        ptx::sync_warp();
        if (group.member >= half && group.member < 2 * half) softmax.leave(own, lane);
        ptx::barrier_sync(1 + ATTENTION_FORWARD_WARPS + (threadIdx.x / 32 & -warps), 32 * warps);
        if (group.member < half) softmax.merge(own + half * group.warp_bytes, lane);
    }
}

// The warps of a group share out the keys.
template <int D, bool DROPOUT> __device__ __forceinline__ void forward_split(const AttentionForward &p) {
    constexpr int TILES = ATTENTION_FORWARD_SPLIT_ROWS / 16;
    const Group group = load_group(p);
    if (!group.busy) return;
    const AttentionTile &tile = group.tile;
    const int steps = (tile.key_rows + STEP - 1) / STEP;
    const int first = group.share(steps) * STEP, end = min(group.share(steps, 1) * STEP, tile.key_rows);
    Keys<D> keys(p, 1, tile.key_begin + first, end - first, group.warp_bytes, 1);
    Pass<D, TILES, DROPOUT> pass(p, tile, 0, first);
    pass.start(tile.query_rows);
    pass.template attend<TILES>(keys);
    merge_warps<D>(pass.softmax, group, keys.keys.begin, pass.lane);
    if (group.member != 0) return;
    const int number = static_cast<int>(group.at - p.tiles);
    if (number < p.parts) {
        pass.softmax.leave(partials_of<D>(p, number), pass.lane);
    } else {
        pass.store(tile.query_rows);
    }
}

// Results of a set of what its parts left, of which each warp takes neighbours.
template <int D> __device__ __forceinline__ void combine_forward(const AttentionForward &p) {
    const Group group = load_group(p);
    const AttentionTile &first = group.tile;
    const int lane = threadIdx.x & 31, parts = load_entry(p.blocks + blockIdx.x).sets;
    FewQueries<D> softmax;
    softmax.reset();
    clear(softmax.output);
    const int begin = static_cast<int>(group.at - p.tiles), end = begin + group.share(parts, 1);
    for (int part = begin + group.share(parts); part < end; ++part) softmax.merge(partials_of<D>(p, part), lane);
    merge_warps<D>(softmax, group, ptx::shared_base() + group.member * group.warp_bytes, lane);
    if (group.member != 0) return;
    const size_t head = blockIdx.y, heads = p.heads, row = first.output_begin;
    softmax.store(p.output + (row * heads + head) * D, heads * D, p.log_sum_exp + (head * p.output_rows + row),
                  first.query_rows, p.dropout.keep, lane);
}

} // namespace attention
