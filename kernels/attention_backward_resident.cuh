#pragma once

#include "attention_rows.cuh"

// Attention, backward, of sets that stay on the chip: a group of warps loads a (set, head) once and computes its three
// gradients in one go. Formulas and letters are those of attention_backward.cuh.
//
//   Each of the group's W warps owns tiles of keys, whose k and v it holds and whose d_k and d_v it sums, and a chunk of
//   the queries, whose d_q it sums. In step t warp w weighs chunk (w + t) mod W against its own keys; rows are keys, so
//   that p and s are left operands for d_v and d_k as they stand. s goes to the warp's slot of an exchange buffer too, and
//   behind a barrier the chunk's owner takes it from there, transposed: d_qᵀ += kᵀ·sᵀ.
//   Keys that are more than the warps hold come in passes, each of W steps.
//
// Shapes      as in attention_backward.cuh.
// Checked     by the launcher (src/ops/attention/device.rs), as in forward; that a group's sets have room, by the plan
//             (src/ops/attention/groups.rs).
// Launch      grid (blocks, H); 256 threads in groups of 1, 2, 4 or 8 warps, one for each set of the block; shared memory:
//             notes of each warp, and for each group q, d_o, log-sum-exp and δ of all queries, k and v of all keys, a
//             slot for each warp, and room for what it puts by. (`AttentionPlan`)
// Types       bf16 in and out; p, s, δ and sums in f32; p and s rounded to bf16 for the products behind them.
// Determinism the same bits for a set whatever the batch around it: all sums are in registers, in a fixed order.
// Writes      `=`: d_q and d_kv of the table's sets, nothing else.
// Cost        10·n²·D FLOPs and n² exponentials a (set, head); 16·n·D + 4·n bytes, each once. At n 360 and D 32, of one
//             head: 10442 products of warps (97 % of them useful), 1.02·n² exponentials, 17743 wavefronts (1.70 a
//             product). On 132 SMs of 1.7 GHz at one wavefront a cycle those are 79 ns, products at 0.65 of 798e12 FLOP/s
//             82 ns, exponentials at 3.6e12/s 37 ns, bytes, which are the floor, at 3.0e12/s 62 ns: bound by products and
//             by shared memory alike. The two streamed kernels have wavefronts for about 175 ns. At D 64 it is 2.5 a product.
// Not-a-number as forward.
// Lost        k and v loaded again for each 16 queries, for lack of registers: 2.0 wavefronts a product. Two tiles of
//             keys a warp, for sets that three suffice for: 1.85. s in registers for d_q too: it cannot be transposed.

namespace attention {

// A warp's share: tiles of 16 queries that it owns, tiles of 16 keys that it holds at a time, and how many fours of its
// sums of d_q it puts by while it weighs, since registers do not suffice.
template <int QUERIES, int KEYS, int PARKED> struct Share {
    static constexpr int QUERY_TILES = QUERIES, KEY_TILES = KEYS, PARKED_FOURS = PARKED;
};

template <int N> struct Number {
    static constexpr int VALUE = N;
};

// Calls `f` with the number from 1 to MOST that `count` is, if it is one: tiles of a known number are interleaved.
template <int MOST, class F> __device__ __forceinline__ void with_number(int count, const F &f) {
    if (count == MOST) {
        f(Number<MOST>{});
    } else if constexpr (MOST > 1) {
        with_number<MOST - 1>(count, f);
    }
}

// Of `tiles` tiles, those from `first` on, at most `most`.
__device__ __forceinline__ int tiles_from(int first, int tiles, int most) { return max(0, min(tiles - first, most)); }

// What a warp has to know between its loops. It waits in shared memory: sums and operands take all registers.
struct Notes {
    int query_rows, key_rows;
    // Warps of the group, and the number of this one.
    int warps, warp;
    // Query tiles of a chunk, and key tiles that a warp holds at a time.
    int chunk, held;
    // The first key tile of this pass.
    int pass;
    ptx::Shared queries;

    static __device__ __forceinline__ ptx::Shared place() {
        return ptx::shared_base() + ptx::thread() / 32 * ATTENTION_NOTES_BYTES;
    }

    static __device__ __forceinline__ Notes load() {
        const uint32_t rows = ptx::load_shared<uint32_t>(place()), shares = ptx::load_shared<uint32_t>(place() + 4);
        const ptx::Shared queries = ptx::load_shared<ptx::Shared>(place() + 8);
        const auto bits = [](uint32_t word, int from, int count) {
            return static_cast<int>(word >> from & ((1u << count) - 1));
        };
        return Notes{bits(rows, 0, 16),  bits(rows, 16, 16),  bits(shares, 0, 4),   bits(shares, 4, 3),
                     bits(shares, 7, 3), bits(shares, 10, 2), bits(shares, 12, 20), queries};
    }
    __device__ __forceinline__ uint32_t shares() const {
        return static_cast<uint32_t>(warps | warp << 4 | chunk << 7 | held << 10 | pass << 12);
    }
    __device__ __forceinline__ void store_pass() const { ptx::store_shared(place() + 4, shares()); }

    // The set's number in its batch and in the table, the head, and dropout's key.
    static __device__ __forceinline__ uint32_t set() { return ptx::load_shared<uint32_t>(place() + 12); }
    static __device__ __forceinline__ uint32_t in_table() { return ptx::load_shared<uint32_t>(place() + 16); }
    static __device__ __forceinline__ uint32_t head() { return ptx::load_shared<uint32_t>(place() + 20); }
    static __device__ __forceinline__ uint2 dropout_key() { return ptx::load_shared<uint2>(place() + 24); }

    __device__ __forceinline__ void store(const AttentionTile &set, int in_table,
                                          const AttentionDropout &dropout) const {
        if (threadIdx.x % 32 == 0) {
            const uint32_t rows = static_cast<uint32_t>(query_rows) | static_cast<uint32_t>(key_rows) << 16;
            const uint4 words[2] = {{rows, shares(), queries, static_cast<uint32_t>(set.set)},
                                    {static_cast<uint32_t>(in_table), blockIdx.y, dropout.key_low, dropout.key_high}};
            ptx::store_shared(place(), words[0]);
            ptx::store_shared(place() + 16, words[1]);
        }
    }

    __device__ __forceinline__ int query_tiles() const { return divide_up(query_rows, 16); }
    __device__ __forceinline__ int key_tiles() const { return divide_up(key_rows, 16); }
    // The first key tile of a warp in this pass, and how many there are.
    __device__ __forceinline__ int first_key_tile(int warp) const { return pass + warp * held; }
    __device__ __forceinline__ int held_by(int warp) const {
        return tiles_from(first_key_tile(warp), key_tiles(), held);
    }
    // Query tiles of this warp's chunk.
    __device__ __forceinline__ int own_chunk() const { return tiles_from(warp * chunk, query_tiles(), chunk); }

    template <int D> __device__ __forceinline__ ptx::Shared query_tile(int tile) const {
        return queries + tile * Layout<D>::QUERIES;
    }
    template <int D> __device__ __forceinline__ ptx::Shared key_tile(int tile) const {
        return query_tile<D>(query_tiles()) + tile * Layout<D>::KEYS;
    }

    // One of them alone.
    static __device__ __forceinline__ int load_warps() { return ptx::load_shared<uint32_t>(place() + 4) & 15; }
    static __device__ __forceinline__ int load_key_rows() {
        return static_cast<int>(ptx::load_shared<uint32_t>(place()) >> 16);
    }

    // Waits for all warps of the group.
    static __device__ __forceinline__ void sync(int warps) {
        ptx::barrier_sync(1 + (ptx::thread() / 32 & ~(warps - 1)), warps * 32);
    }
};

template <int D, bool DROPOUT, class SHARE> struct Resident {
    static constexpr int QUERY_TILES = SHARE::QUERY_TILES, KEY_TILES = SHARE::KEY_TILES, TILE = Layout<D>::TILE;

    const AttentionBackward &p;
    // d_qᵀ of the own chunk: rows are columns of head width, in two halves of 8 queries.
    float d_query[QUERY_TILES][D / 16][2][4];
    Fragments<KEY_TILES, D> d_key, d_value;
    uint32_t key[KEY_TILES][D / 16][4], value[KEY_TILES][D / 16][4];

    __device__ __forceinline__ explicit Resident(const AttentionBackward &p) : p(p) {}

    // Where a warp's s waits.
    static __device__ __forceinline__ ptx::Shared slot(const Notes &notes, int warp) {
        return notes.key_tile<D>(notes.key_tiles()) + warp * (QUERY_TILES * KEY_TILES * EXCHANGE_BYTES);
    }

    // Loads the set and computes δ.
    __device__ __forceinline__ void load(const AttentionTile &set, const Notes &notes) const {
        const uint16_t *first_key = p.kv + (static_cast<size_t>(blockIdx.y) * p.key_rows + set.key_begin) * D;
        const uint16_t *first_value = first_key + static_cast<size_t>(p.heads) * p.key_rows * D;
        const int threads = notes.warps * 32, thread = notes.warp * 32 + static_cast<int>(threadIdx.x % 32);
        const ptx::Shared keys = notes.key_tile<D>(0);
        load_queries<D>(p, set, notes.queries, thread, threads);
        load_rows<D, Layout<D>::KEYS>(keys, first_key, set.key_rows, D, thread, threads);
        load_rows<D, Layout<D>::KEYS>(keys + TILE, first_value, set.key_rows, D, thread, threads);
        ptx::cp_async_commit();
        load_query_sums<D>(p, set, notes.queries, thread, threads);
        ptx::cp_async_wait<0>();
        Notes::sync(notes.warps);
    }

    // Holds the keys and values of this pass.
    __device__ __forceinline__ void hold() {
        const Notes notes = Notes::load();
        const int lane = ptx::thread() % 32, first = notes.first_key_tile(notes.warp);
        with_number<KEY_TILES>(notes.held_by(notes.warp), [&](auto number) {
#pragma unroll
            for (int m = 0; m < decltype(number)::VALUE; ++m) {
                const ptx::Shared tile = notes.key_tile<D>(first + m);
                load_operand<D>(key[m], Tile<D>{tile}, 0, lane);
                load_operand<D>(value[m], Tile<D>{tile + TILE}, 0, lane);
            }
        });
        clear(d_key);
        clear(d_value);
    }

    // 8 rows of a tile as the right operand of products with their transposed.
    static __device__ __forceinline__ void load_columns(uint32_t (&columns)[D / 32][4], ptx::Shared rows, int lane) {
#pragma unroll
        for (int d = 0; d < D / 32; ++d) ptx::ldmatrix_x4(columns[d], Tile<D>{rows}.at(lane & 7, d * 4 + (lane >> 3)));
    }
    static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&rows)[D / 16][4],
                                                    const uint32_t (&columns)[D / 32][4]) {
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            ptx::mma_m16n8k16_bf16(sums, rows[d], columns[d / 2][d % 2 * 2], columns[d / 2][d % 2 * 2 + 1]);
        }
    }

    // Which weights of COUNT tiles of keys from `key` on and 16 queries from `query` on are kept: bit 8·m + 4·j + e.
    template <int COUNT> __device__ __forceinline__ uint32_t draw_tiles(int query, int key, int lane) const {
        const Place place{blockIdx.y, Notes::set()};
        uint32_t kept = 0;
#pragma unroll 1
        for (int m = 0; m < COUNT; ++m) {
            // Loaded here, the key's rounds are not kept in registers.
            const uint2 words = Notes::dropout_key();
            AttentionDropout dropout = p.dropout;
            dropout.key_low = words.x;
            dropout.key_high = words.y;
            Kept<2> of_tile;
            of_tile.draw_for_keys(dropout, place, query, key + m * 16, lane);
#pragma unroll
            for (int e = 0; e < 4; ++e) kept |= (of_tile.words[e] & 0x11u) << (8 * m + e);
        }
        return kept;
    }

    // Weighs a chunk of queries against COUNT tiles of keys, the warp's own.
    template <int COUNT> __device__ __forceinline__ void weigh(const Notes &notes, int chunk) {
        const int first_key = notes.first_key_tile(notes.warp) * 16;
        const int first_query = chunk * notes.chunk * 16, end = min(notes.query_rows, first_query + notes.chunk * 16);
        ptx::Shared to = slot(notes, notes.warp), here = notes.query_tile<D>(chunk * notes.chunk);
#pragma unroll 1
        for (int query = first_query; query < end; query += 16) {
            // Read again, so that the places computed of it are not kept in registers.
            const int lane = ptx::thread() % 32;
            uint32_t kept = 0;
            if constexpr (DROPOUT) kept = draw_tiles<COUNT>(query, first_key, lane);
            // Keys behind the set, which are in the last tile, weigh nothing.
            const int valid = Notes::load_key_rows() - (first_key + (COUNT - 1) * 16) - (lane >> 2);
            const float masks[2] = {valid > 0 ? 0.0f : -INFINITE, valid > 8 ? 0.0f : -INFINITE};
            uint32_t weights[COUNT][4], d_scores[COUNT][4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const ptx::Shared rows = here + half * Tile<D>::bytes(8);
                const ptx::Shared sums = here + 2 * TILE + (half * 8 + 2 * (lane & 3)) * 4;
                // Rows are keys here, and columns queries: weights are an operand as they stand.
                float scores[COUNT][4];
                if (half == 0 || query + 8 < end) {
                    uint32_t columns[D / 32][4];
                    load_columns(columns, rows, lane);
                    const float2 log2_sums = ptx::load_shared<float2>(sums);
#pragma unroll
                    for (int m = 0; m < COUNT; ++m) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) scores[m][e] = m == COUNT - 1 ? masks[e / 2] : 0.0f;
                        multiply(scores[m], key[m], columns);
                    }
#pragma unroll
                    for (int m = 0; m < COUNT; ++m) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const float log2_sum = e % 2 == 0 ? log2_sums.x : log2_sums.y;
                            scores[m][e] = ptx::exp2(fmaf(scores[m][e], p.scale_log2e, -log2_sum));
                        }
                    }
                    load_columns(columns, rows + TILE, lane);
                    const float2 deltas = ptx::load_shared<float2>(sums + 64);
#pragma unroll
                    for (int m = 0; m < COUNT; ++m) {
                        float d_weights[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        multiply(d_weights, value[m], columns);
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const bool keep = !DROPOUT || (kept >> (8 * m + 4 * half + e) & 1) != 0;
                            const float delta = e % 2 == 0 ? deltas.x : deltas.y;
                            if constexpr (DROPOUT) d_weights[e] = keep ? d_weights[e] * p.dropout.keep : 0.0f;
                            d_weights[e] = scores[m][e] * (d_weights[e] - delta);
                            scores[m][e] = keep ? scores[m][e] : 0.0f;
                        }
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            weights[m][2 * half + i] = ptx::pack_bf16(scores[m][2 * i], scores[m][2 * i + 1]);
                            d_scores[m][2 * half + i] = ptx::pack_bf16(d_weights[2 * i], d_weights[2 * i + 1]);
                        }
                    }
                } else {
#pragma unroll
                    for (int m = 0; m < COUNT; ++m) {
                        weights[m][2] = weights[m][3] = d_scores[m][2] = d_scores[m][3] = 0;
                    }
                }
#pragma unroll
                for (int m = 0; m < COUNT; ++m) {
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; ++i) {
                        ptx::store_shared(to + m * EXCHANGE_BYTES + i * 128 + lane * 4, d_scores[m][i]);
                    }
                }
            }
            add_products(d_value, weights, Tile<D>{here + TILE}, 0, lane);
            add_products(d_key, d_scores, Tile<D>{here}, 0, lane);
            to += KEY_TILES * EXCHANGE_BYTES;
            here += Layout<D>::QUERIES;
        }
    }

    // Adds what warp `of` weighed of the own chunk to its gradient. FULL: the chunk has as many tiles as there may be,
    // which are interleaved then.
    template <bool FULL> __device__ __forceinline__ void collect(const Notes &notes, int of) {
        const int lane = ptx::thread() % 32, tiles = notes.held_by(of);
        const int count = FULL ? QUERY_TILES : notes.own_chunk();
        // The set's last queries may be 8 or fewer.
        const bool both = (notes.warp * notes.chunk + count) * 16 - 8 < notes.query_rows;
        ptx::Shared from = slot(notes, of) + lane * 16, here = notes.key_tile<D>(notes.first_key_tile(of));
#pragma unroll 1
        for (int m = 0; m < tiles; ++m) {
            uint32_t columns[D / 16][4];
#pragma unroll
            for (int d = 0; d < D / 16; ++d) {
                const int row = (lane & 7) + (lane >> 4) * 8, piece = d * 2 + (lane >> 3 & 1);
                ptx::ldmatrix_x4_transposed(columns[d], Tile<D>{here}.at(row, piece));
            }
#pragma unroll
            for (int t = 0; t < (FULL ? QUERY_TILES : QUERY_TILES - 1); ++t) {
                if (FULL || t < count) {
                    uint32_t d_scores[4];
                    ptx::ldmatrix_x4_transposed(d_scores, from + t * KEY_TILES * EXCHANGE_BYTES);
#pragma unroll
                    for (int d = 0; d < D / 16; ++d) {
                        ptx::mma_m16n8k16_bf16(d_query[t][d][0], columns[d], d_scores[0], d_scores[1]);
                    }
                    if (t + 1 < count || both) {
#pragma unroll
                        for (int d = 0; d < D / 16; ++d) {
                            ptx::mma_m16n8k16_bf16(d_query[t][d][1], columns[d], d_scores[2], d_scores[3]);
                        }
                    }
                }
            }
            from += EXCHANGE_BYTES;
            here += Layout<D>::KEYS;
        }
    }

    // Puts a part of the chunk's gradient by, and takes it back.
    static __device__ __forceinline__ ptx::Shared park(const Notes &notes, int number) {
        const int parks = notes.warp * SHARE::PARKED_FOURS + number;
        return slot(notes, notes.warps) + parks * EXCHANGE_BYTES + ptx::thread() % 32 * 16;
    }
    __device__ __forceinline__ void put_by(const Notes &notes) const {
#pragma unroll
        for (int i = 0; i < SHARE::PARKED_FOURS; ++i) {
            const float(&part)[4] = d_query[0][i / 2][i % 2];
            ptx::store_shared(park(notes, i), make_float4(part[0], part[1], part[2], part[3]));
        }
    }
    __device__ __forceinline__ void take_back(const Notes &notes) {
#pragma unroll
        for (int i = 0; i < SHARE::PARKED_FOURS; ++i) {
            const float4 values = ptx::load_shared<float4>(park(notes, i));
            float(&part)[4] = d_query[0][i / 2][i % 2];
            part[0] = values.x, part[1] = values.y, part[2] = values.z, part[3] = values.w;
        }
    }

    // One step: weighs a chunk, and collects of the own one what another warp weighed. False behind the last.
    __device__ __forceinline__ bool step(int number) {
        {
            const Notes notes = Notes::load();
            put_by(notes);
            with_number<KEY_TILES>(notes.held_by(notes.warp), [&](auto count) {
                weigh<decltype(count)::VALUE>(notes, (notes.warp + number) & (notes.warps - 1));
            });
        }
        {
            const Notes notes = Notes::load();
            take_back(notes);
            Notes::sync(notes.warps);
            const int of = (notes.warp - number) & (notes.warps - 1);
            if (notes.own_chunk() == QUERY_TILES) {
                collect<true>(notes, of);
            } else if (notes.own_chunk() > 0) {
                collect<false>(notes, of);
            }
        }
        // Slots are free again, and behind the last step keys and queries as well.
        const int warps = Notes::load_warps();
        Notes::sync(warps);
        return number + 1 < warps;
    }

    // Writes the gradients of this pass' keys and values. The warp's own rows of them, which nobody reads any more, take
    // the results on their way to whole rows. False behind the last pass.
    __device__ __forceinline__ bool store_keys() const {
        Notes notes = Notes::load();
        const AttentionTile set = load_entry(p.tiles + Notes::in_table());
        const int lane = ptx::thread() % 32, first = notes.first_key_tile(notes.warp);
        const float keep = DROPOUT ? p.dropout.keep : 1.0f;
        const float of_keys[2] = {p.scale, p.scale}, of_values[2] = {keep, keep};
        const uint16_t *relu = p.relu != 0 ? p.kv : nullptr;
        const size_t values = static_cast<size_t>(p.heads) * p.key_rows * D;
#pragma unroll
        for (int m = 0; m < KEY_TILES; ++m) {
            const int row = (first + m) * 16, rows = notes.key_rows - row;
            if (m < notes.held && rows > 0) {
                const ptx::Shared tile = notes.key_tile<D>(first + m);
                const size_t at = (static_cast<size_t>(Notes::head()) * p.key_rows + set.key_begin + row) * D;
                store_rows<D>(d_key[m], of_keys, Tile<D>{tile}, 0, rows, p.d_kv + at, D,
                              relu != nullptr ? relu + at : nullptr, lane);
                store_rows<D>(d_value[m], of_values, Tile<D>{tile + TILE}, 0, rows, p.d_kv + values + at, D,
                              relu != nullptr ? relu + values + at : nullptr, lane);
            }
        }
        notes.pass += notes.warps * notes.held;
        // All lanes have read the notes.
        ptx::sync_warp();
        if (lane == 0) notes.store_pass();
        ptx::sync_warp();
        return notes.pass < notes.key_tiles();
    }

    // Writes the gradient of the own chunk, through its rows of q.
    __device__ __forceinline__ void store_queries() const {
        const Notes notes = Notes::load();
        const AttentionTile set = load_entry(p.tiles + Notes::in_table());
        const int lane = ptx::thread() % 32;
#pragma unroll
        for (int t = 0; t < QUERY_TILES; ++t) {
            const int tile = notes.warp * notes.chunk + t, rows = notes.query_rows - tile * 16;
            if (t < notes.chunk && rows > 0) {
                const Tile<D> through{notes.query_tile<D>(tile)};
#pragma unroll
                for (int d = 0; d < D / 16; ++d) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const int row = i / 4 * 8 + 2 * (lane & 3) + i % 2, piece = d * 2 + i % 4 / 2;
                        const uint32_t pair = ptx::pack_bf16(d_query[t][d][i / 4][i % 4] * p.scale, 0.0f);
                        ptx::store_shared(through.at(row, piece) + (lane >> 2) * 2, static_cast<uint16_t>(pair));
                    }
                }
                ptx::sync_warp();
                const size_t head = Notes::head();
                const uint16_t *query = p.q + (head * p.query_rows + set.query_begin + tile * 16) * D;
                copy_rows(through, 0, rows, p.d_q + (head * p.output_rows + set.output_begin + tile * 16) * D, D,
                          p.relu != 0 ? query : nullptr, lane);
            }
        }
    }

    // The group's work on a set, which is number `in_table` of the table.
    __device__ __forceinline__ void run(const AttentionTile &set, int in_table, int warps, ptx::Shared begin) {
        {
            const int warp = threadIdx.x / 32 & (warps - 1), key_tiles = divide_up(set.key_rows, 16);
            const int passes = divide_up(key_tiles, warps * KEY_TILES);
            const Notes notes{set.query_rows, set.key_rows,
                              warps,          warp,
                              divide_up(divide_up(set.query_rows, 16), warps),
                              divide_up(key_tiles, warps * passes),
                              0,              begin};
            notes.store(set, in_table, p.dropout);
            load(set, notes);
        }
#pragma unroll
        for (int t = 0; t < QUERY_TILES; ++t) clear(d_query[t]);
        bool more = true;
#pragma unroll 1
        while (more) {
            hold();
#pragma unroll 1
            for (int number = 0; step(number); ++number) {
            }
            more = store_keys();
        }
        store_queries();
    }
};

template <int D, bool DROPOUT> __device__ __forceinline__ void backward(const AttentionBackward &p) {
    const AttentionBlock block = load_entry(p.blocks + blockIdx.x);
    const int group = threadIdx.x / 32 / block.warps;
    if (group >= block.sets) return;
    const int in_table = block.first_set + group;
    const AttentionTile set = load_entry(p.tiles + in_table);
    const ptx::Shared first = ptx::shared_base() + ATTENTION_GROUPS_WARPS * ATTENTION_NOTES_BYTES;
    const ptx::Shared begin = first + group * block.group_bytes;
    if constexpr (D == 64) {
        using Only = Share<ATTENTION_BACKWARD_WIDE_QUERY_TILES, ATTENTION_BACKWARD_WIDE_KEY_TILES, 0>;
        Resident<D, DROPOUT, Only>(p).run(set, in_table, block.warps, begin);
    } else if (set.query_rows <= block.warps * ATTENTION_BACKWARD_QUERY_TILES * 16) {
        // Without dropout one four less suffices.
        constexpr int PARKED = ATTENTION_BACKWARD_PARKED - (DROPOUT ? 0 : 1);
        using Short = Share<ATTENTION_BACKWARD_QUERY_TILES, ATTENTION_BACKWARD_KEY_TILES, PARKED>;
        Resident<D, DROPOUT, Short>(p).run(set, in_table, block.warps, begin);
    } else {
        using Long = Share<ATTENTION_BACKWARD_LONG_QUERY_TILES, ATTENTION_BACKWARD_LONG_KEY_TILES, 0>;
        Resident<D, DROPOUT, Long>(p).run(set, in_table, block.warps, begin);
    }
}

} // namespace attention
