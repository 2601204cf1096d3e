#pragma once

#include "attention_rows.cuh"
#include "attention_softmax.cuh"

// Attention, backward, of few points: of those that ask the documents of each set (induce), or that these ask (attend).
// A warp goes once over documents with all points in its registers. Formulas and letters are those of
// attention_backward.cuh.
//
//   A set is a group's of 1, 2 or 4 warps, which take tiles of 16 documents in turn. Rows are keys in both roles, so that p
//   and s are left operands for d_v and d_k as they stand; s goes through a slot of the warp in shared memory to be
//   transposed, for d_q += sᵀ·k.
//   induce  documents are keys: their d_k and d_v are done with the tile, d_q is summed over all tiles
//   attend  documents are queries: their d_q is done with the tile, d_k and d_v are summed over all tiles; a warp has all
//           keys of its queries, so that δ[i] = Σ_j m[i, j] p[i, j] (d_o[i]·v[j])
//   In the end halves of the group in turn add what the others summed. A set of more than 1024 documents is several blocks';
//   what they summed goes through memory, and `combine` adds it.
//
// Shapes      as in attention_backward.cuh; at most 32 points.
// Checked     by the launcher (src/ops/attention/device.rs), as in forward; the number of points, by the plan.
// Launch      grid (blocks, H); 128 threads in groups of 1, 2 or 4 warps, one for each set of the block; shared memory of a
//             group: the rows of the points with room for log-sum-exp and δ of each, and for each warp a ring of three
//             tiles of documents, two of which are on their way, and slots. (`AttentionPlan`) Of combine, (sets of several
//             parts, H); 128 threads, with as much shared memory as a warp's sums take, for each.
// Types       bf16 in and out; p, s, δ and sums in f32; p and s rounded to bf16 for the products behind them.
// Determinism the same bits for a set whatever the batch around it: its warps are a matter of its documents alone, sums are
//             in registers, and are added in a fixed order.
// Writes      `=`: d_q and d_kv of the table's sets, nothing else; of parts, those of the documents, and what the points'
//             gradients are yet to be combined of in partials [parts, H, 64·D] f32. Points of a set that nobody asks get 0.
// Cost        10·n·M·D FLOPs and n·M exponentials a (set, head); of induce 8·n·D bytes and 8·M·D of the set's points, of
//             attend 6·n·D + 4·n and 8·M·D, each once. At n 360, M 20 and D 32, of one head: induce 828 products of warps
//             (68 % of them useful: 20 rows are two tiles), attend 912 (62 %); 1.2 exponentials a pair; 1.87 and 1.89
//             wavefronts a product (1.68 of induce at M 32). By the rates of an H100 a document and layer of 8 heads takes
//             0.72 ns of bytes in induce and 0.56 in attend, 0.15 and 0.17 of wavefronts, 0.15 and 0.16 of products: bound
//             by bytes. Parts leave 4 KB of a head in induce and 8 in attend (D 32), which combine reads, where they read 128 of
//             1024 documents. A multiprocessor has 8 warps with 32 KB on their way, where 18 KB would do for 800 ns.
// Not-a-number as forward.
// Lost        δ from o in attend: a third more bytes. The streamed kernels: 7 products, two exponentials a pair, and all
//             rows twice. Sums of queries from shared memory for each tile: 0.4 wavefronts a product more. A warp for each
//             64 documents: 0.2 more, since each holds the points anew.

namespace attention {

// Tiles of 16 points.
constexpr int POINT_TILES = ATTENTION_POINTS_ROWS / 16;

// Documents on their way through a warp's shared memory: tiles of 16 in a ring.
template <int D> struct Documents {
    static constexpr int STAGES = ATTENTION_POINTS_STAGES, STAGE = Layout<D>::KEYS;

    ptx::Shared begin;
    // First row of the next tile to be loaded.
    int next;
    // Where the next one to be waited for stands.
    int at;

    // Loads the next tile of rows of `first` and `second`, if there is one, to a place; for one of so many warps that take
    // tiles in turn. Rows behind the last are 0.
    __device__ __forceinline__ void load(int to, const uint16_t *first, const uint16_t *second, size_t second_stride,
                                         int rows, int warps, int lane) {
        if (next < rows) {
            constexpr int PIECES = Tile<D>::PIECES;
            const int valid = rows - next;
            const Tile<D> firsts{begin + to * STAGE}, seconds{firsts.begin + Layout<D>::TILE};
            first += static_cast<size_t>(next) * D;
            second += next * second_stride;
#pragma unroll
            for (int i = 0; i < 16 * PIECES / 32; ++i) {
                const int row = (i * 32 + lane) / PIECES, piece = lane % PIECES;
                Tile<D>::load_piece(firsts.at(row, piece), first, row, piece, valid, D);
                Tile<D>::load_piece(seconds.at(row, piece), second, row, piece, valid, second_stride);
            }
            next += 16 * warps;
        }
        ptx::cp_async_commit();
    }

    // The place of the tile before the last that was waited for.
    __device__ __forceinline__ int free() const { return at + STAGES - 2 < STAGES ? at + STAGES - 2 : at - 2; }

    // Waits for the next tile, and gives where it stands. The warp is done with the one before, whose place is free now.
    __device__ __forceinline__ ptx::Shared wait() {
        ptx::cp_async_wait<STAGES - 2>();
        ptx::sync_warp();
        const ptx::Shared here = begin + at * STAGE;
        at = at + 1 < STAGES ? at + 1 : 0;
        return here;
    }
};

// 16 rows in halves of 8, as the right operand of products with their transposed.
template <int D> struct Columns {
    uint32_t halves[2][D / 32][4];

    __device__ __forceinline__ void load(int half, ptx::Shared rows, int lane) {
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
            ptx::ldmatrix_x4(halves[half][d], Tile<D>{rows}.at(half * 8 + (lane & 7), d * 4 + (lane >> 3)));
        }
    }
    __device__ __forceinline__ void load(ptx::Shared rows, int lane) { load(0, rows, lane), load(1, rows, lane); }

    // sums += rows · the half's.
    __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&rows)[D / 16][4], int half) const {
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            const auto &column = halves[half][d / 2];
            ptx::mma_m16n8k16_bf16(sums, rows[d], column[d % 2 * 2], column[d % 2 * 2 + 1]);
        }
    }
};

// 16 rows as the right operand of products with them.
template <int D> __device__ __forceinline__ void load_values(uint32_t (&values)[D / 16][4], ptx::Shared rows, int lane) {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
        ptx::ldmatrix_x4_transposed(values[d], Tile<D>{rows}.at(lane & 15, d * 2 + (lane >> 4)));
    }
}

template <int D>
__device__ __forceinline__ void add_products(float (&results)[D / 8][4], const uint32_t (&operand)[4],
                                             const uint32_t (&values)[D / 16][4]) {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
        ptx::mma_m16n8k16_bf16(results[2 * d], operand, values[d][0], values[d][1]);
        ptx::mma_m16n8k16_bf16(results[2 * d + 1], operand, values[d][2], values[d][3]);
    }
}

// Log2 of the sums of 16 queries, or their δ, of the lane's columns.
__device__ __forceinline__ void load_sums(float2 (&sums)[2], ptx::Shared from, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sums[half] = ptx::load_shared<float2>(from + (half * 8 + 2 * (lane & 3)) * 4);
    }
}

// Of 16 keys, the rows, and 16 queries in halves of 8: p, and m·(d_o·v).
struct Weights {
    float p[2][4], d_p[2][4];
    // Which are kept: bit 4·half + e.
    uint32_t kept;

    // p of so many keys and queries, which stand in `tile`; their columns are loaded where HELD is false.
    template <bool HELD, int D>
    __device__ __forceinline__ void weigh(const uint32_t (&key)[D / 16][4], Columns<D> &query, ptx::Shared tile,
                                          const float2 (&log2_sums)[2], int keys, int queries, float scale_log2e,
                                          int lane) {
        // Keys behind the set weigh nothing.
        const int below = keys - (lane >> 2);
        const float masks[2] = {below > 0 ? 0.0f : -INFINITE, below > 8 ? 0.0f : -INFINITE};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int e = 0; e < 4; ++e) p[half][e] = 0.0f;
            if (half == 1 && queries <= 8) continue;
            if constexpr (!HELD) query.load(half, tile, lane);
            float scores[4] = {masks[0], masks[0], masks[1], masks[1]};
            query.multiply(scores, key, half);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float log2_sum = e % 2 == 0 ? log2_sums[half].x : log2_sums[half].y;
                if (e < 2 || keys > 8) p[half][e] = ptx::exp2(fmaf(scores[e], scale_log2e, -log2_sum));
            }
        }
    }

    // d_o·v of the same.
    template <bool HELD, int D>
    __device__ __forceinline__ void d_weigh(const uint32_t (&value)[D / 16][4], Columns<D> &d_output, ptx::Shared tile,
                                            int queries, int lane) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int e = 0; e < 4; ++e) d_p[half][e] = 0.0f;
            if (half == 1 && queries <= 8) continue;
            if constexpr (!HELD) d_output.load(half, tile + Layout<D>::TILE, lane);
            d_output.multiply(d_p[half], value, half);
        }
    }

    // Drops what is dropped.
    __device__ __forceinline__ void drop(float keep) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int e = 0; e < 4; ++e) d_p[half][e] = is_kept(half, e) ? d_p[half][e] * keep : 0.0f;
        }
    }
    __device__ __forceinline__ bool is_kept(int half, int e) const { return (kept >> (4 * half + e) & 1) != 0; }

    // m·p and s as left operands.
    template <bool DROPOUT>
    __device__ __forceinline__ void finish(uint32_t (&weights)[4], uint32_t (&d_scores)[4],
                                           const float2 (&deltas)[2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float s[4], kept_p[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                s[e] = p[half][e] * (d_p[half][e] - (e % 2 == 0 ? deltas[half].x : deltas[half].y));
                kept_p[e] = !DROPOUT || is_kept(half, e) ? p[half][e] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                weights[2 * half + i] = ptx::pack_bf16(kept_p[2 * i], kept_p[2 * i + 1]);
                d_scores[2 * half + i] = ptx::pack_bf16(s[2 * i], s[2 * i + 1]);
            }
        }
    }
};

// Puts s by for `take`.
__device__ __forceinline__ void leave(const uint32_t (&d_scores)[4], ptx::Shared slot, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::store_shared(slot + i * 128 + lane * 4, d_scores[i]);
}

// s transposed, as the left operand: rows are queries.
__device__ __forceinline__ void take(uint32_t (&operand)[4], ptx::Shared slot, int lane) {
    uint32_t halves[4];
    ptx::ldmatrix_x4_transposed(halves, slot + lane * 16);
    operand[0] = halves[0], operand[1] = halves[2], operand[2] = halves[1], operand[3] = halves[3];
}

// Of all points: a gradient of theirs.
template <int D> using Sums = Fragments<POINT_TILES, D>;

// Leaves sums for others, in shared memory or not.
template <int D, class Begin> __device__ __forceinline__ void leave_sums(const Sums<D> &sums, Begin begin, int lane) {
#pragma unroll
    for (int m = 0; m < POINT_TILES; ++m) {
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            const auto &of = sums[m][j];
            leave_four(begin, m * (D / 8) + j, lane, make_float4(of[0], of[1], of[2], of[3]));
        }
    }
}

// Adds those that another left.
template <int D, class Begin> __device__ __forceinline__ void add_sums(Sums<D> &sums, Begin begin, int lane) {
#pragma unroll
    for (int m = 0; m < POINT_TILES; ++m) {
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            const float4 added = take_four(begin, m * (D / 8) + j, lane);
            auto &sum = sums[m][j];
            sum[0] += added.x, sum[1] += added.y, sum[2] += added.z, sum[3] += added.w;
        }
    }
}

// A warp's part of a set.
template <int D, bool DROPOUT> struct Points {
    static constexpr int TILE = Layout<D>::TILE;
    static constexpr int WARP_BYTES = Documents<D>::STAGES * Documents<D>::STAGE + POINT_TILES * EXCHANGE_BYTES;
    // Whether there are registers for the points' operands: of wide heads they are loaded again for each tile.
    static constexpr bool HELD = D == 32;

    const AttentionBackward &p;
    const Group &group;
    AttentionTile tile;
    int lane;
    Documents<D> documents;

    __device__ __forceinline__ Points(const AttentionBackward &p, const Group &group)
        : p(p), group(group), tile(group.tile), lane(threadIdx.x & 31) {
        const ptx::Shared begin = ptx::shared_base() + (threadIdx.x / 32 & -warps()) * group.warp_bytes;
        documents = Documents<D>{begin + POINT_TILES * Layout<D>::QUERIES + group.member * WARP_BYTES,
                                 group.member * 16, 0};
    }

    __device__ __forceinline__ int warps() const { return 1 << group.log2_warps; }

    // Tile m of the points: two matrices, and the sums of queries.
    __device__ __forceinline__ ptx::Shared point(int m) const {
        return documents.begin - group.member * WARP_BYTES - (POINT_TILES - m) * Layout<D>::QUERIES;
    }
    // Where s of it waits.
    __device__ __forceinline__ ptx::Shared slot(int m) const {
        return documents.begin + Documents<D>::STAGES * Documents<D>::STAGE + m * EXCHANGE_BYTES;
    }

    // Reads lane and tile again, so that what is computed of them is not kept in registers.
    __device__ __forceinline__ void refresh() {
        lane = ptx::thread() % 32;
        tile = load_entry(group.at);
    }

    __device__ __forceinline__ void sync() const {
        ptx::barrier_sync(1 + (threadIdx.x / 32 & -warps()), 32 * warps());
    }

    // Waits for the group's rows of the points, which were asked for before those of documents.
    __device__ __forceinline__ void wait_for_points() const {
        ptx::cp_async_wait<Documents<D>::STAGES - 1>();
        sync();
    }

    // Adds what the other warps of the group summed, always in the same order, for member 0; a warp may leave it at `own`,
    // which is `stride` bytes from those of its neighbours.
    __device__ __forceinline__ void combine(Sums<D> &sums, ptx::Shared own, int stride) const {
        sync();
        for (int half = warps() / 2; half > 0; half /= 2) {
            if (group.member >= half && group.member < 2 * half) leave_sums<D>(sums, own, lane);
            sync();
            if (group.member < half) add_sums<D>(sums, own + half * stride, lane);
        }
    }
    // The same where documents have been.
    __device__ __forceinline__ void combine(Sums<D> &sums) const { combine(sums, documents.begin, WARP_BYTES); }

    // Adds what the parts of a set left, number `which` of each, of which each warp takes neighbours; as `combine`.
    __device__ __forceinline__ void combine_parts(Sums<D> &sums, int which) const {
        const int parts = load_entry(p.blocks + blockIdx.x).sets;
        const int begin = number(), end = begin + group.share(parts, 1);
        clear(sums);
        for (int part = begin + group.share(parts); part < end; ++part) add_sums<D>(sums, partials(part, which), lane);
        combine(sums, ptx::shared_base() + group.member * group.warp_bytes, group.warp_bytes);
    }

    // Where the work stands in the table, and what a part leaves.
    __device__ __forceinline__ int number() const { return static_cast<int>(group.at - p.tiles); }
    __device__ __forceinline__ float *partials(int part, int which) const {
        return partials_of<D>(p, part) + which * (ATTENTION_POINTS_ROWS * D);
    }

    // Writes 16 rows of results times a factor; `relu` as in `copy_rows`.
    __device__ __forceinline__ void store(const float (&results)[D / 8][4], float factor, int rows, uint16_t *to,
                                          const uint16_t *relu) const {
        const int first = (lane >> 2) * D + (lane & 3) * 8, below = rows - (lane >> 2);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = first + half * 8 * D;
            store_row<D>(results, half, factor, to + at, relu != nullptr ? relu + at : nullptr, half * 8 < below, lane);
        }
    }

    // Keys and values, and their gradients, of row `row` of the set's.
    __device__ __forceinline__ size_t key_at(int row) const {
        return (static_cast<size_t>(blockIdx.y) * p.key_rows + tile.key_begin + row) * D;
    }
    __device__ __forceinline__ size_t values() const { return static_cast<size_t>(p.heads) * p.key_rows * D; }

    __device__ __forceinline__ void store_keys(const float (&d_key)[D / 8][4], const float (&d_value)[D / 8][4],
                                               int row) const {
        const size_t at = key_at(row), to_values = values();
        const uint16_t *relu = p.relu != 0 ? p.kv + at : nullptr;
        const int rows = tile.key_rows - row;
        store(d_key, p.scale, rows, p.d_kv + at, relu);
        store(d_value, DROPOUT ? p.dropout.keep : 1.0f, rows, p.d_kv + (at + to_values),
              relu != nullptr ? relu + to_values : nullptr);
    }
    __device__ __forceinline__ void store_queries(const float (&d_query)[D / 8][4], int row) const {
        const size_t head = blockIdx.y;
        const uint16_t *query = p.q + (head * p.query_rows + tile.query_begin + row) * D;
        store(d_query, p.scale, tile.query_rows - row, p.d_q + (head * p.output_rows + tile.output_begin + row) * D,
              p.relu != 0 ? query : nullptr);
    }

    // Gradients of all points: of queries, or of keys and values.
    __device__ __forceinline__ void store_queries(const Sums<D> &d_query) const {
#pragma unroll
        for (int m = 0; m < POINT_TILES; ++m) {
            if (m * 16 < tile.query_rows) store_queries(d_query[m], m * 16);
        }
    }
    __device__ __forceinline__ void store_keys(const Sums<D> &d_key, const Sums<D> &d_value) const {
#pragma unroll
        for (int m = 0; m < POINT_TILES; ++m) {
            if (m * 16 < tile.key_rows) store_keys(d_key[m], d_value[m], m * 16);
        }
    }

    // Which weights of 16 queries from `query` on and 16 keys from `key` on are kept. Before there are scores there are
    // registers for it.
    __device__ __forceinline__ void draw(Weights &weights, int query, int key) const {
        if constexpr (DROPOUT) {
            const Place place{blockIdx.y, static_cast<uint32_t>(tile.set)};
            // Of a key that comes from another lane, the rounds are not kept in registers.
            AttentionDropout dropout = p.dropout;
            dropout.key_low = ptx::shuffle(dropout.key_low, 0);
            dropout.key_high = ptx::shuffle(dropout.key_high, 0);
            Kept<2> kept;
            kept.draw_for_keys(dropout, place, tile.first_query + query, tile.first_key + key, lane);
            weights.kept = kept.packed();
        }
    }

    // The points ask: documents are keys.
    __device__ __forceinline__ void induce() {
        const int thread = group.member * 32 + lane, threads = warps() * 32;
        load_queries<D>(p, tile, point(0), thread, threads);
        ptx::cp_async_commit();
        const auto load = [&](int to) {
            const uint16_t *keys = p.kv + key_at(0);
            documents.load(to, keys, keys + values(), D, tile.key_rows, warps(), lane);
        };
        for (int i = 0; i < Documents<D>::STAGES - 1; ++i) load(i);
        load_query_sums<D>(p, tile, point(0), thread, threads);
        wait_for_points();

        constexpr int KEPT = HELD ? POINT_TILES : 1;
        Columns<D> q_columns[KEPT], d_o_columns[KEPT];
        uint32_t query_values[KEPT][D / 16][4], d_output_values[KEPT][D / 16][4];
        float2 log2_sums[KEPT][2], deltas[KEPT][2];
        const auto load_point_sums = [&](int m, int to) {
            load_sums(log2_sums[to], point(m) + 2 * TILE, lane);
            load_sums(deltas[to], point(m) + 2 * TILE + 64, lane);
        };
        const auto load_point_values = [&](int m, int to) {
            load_values<D>(d_output_values[to], point(m) + TILE, lane);
            load_values<D>(query_values[to], point(m), lane);
        };
        if constexpr (HELD) {
#pragma unroll
            for (int m = 0; m < POINT_TILES; ++m) {
                if (m * 16 >= tile.query_rows) continue;
                q_columns[m].load(point(m), lane);
                d_o_columns[m].load(point(m) + TILE, lane);
                load_point_sums(m, m);
                load_point_values(m, m);
            }
        }
        Sums<D> d_query;
        clear(d_query);
#pragma unroll 1
        for (int row = group.member * 16; row < tile.key_rows; row += warps() * 16) {
            refresh();
            const ptx::Shared here = documents.wait();
            load(documents.free());
            uint32_t key[D / 16][4], value[D / 16][4], key_values[D / 16][4];
            load_operand<D>(key, Tile<D>{here}, 0, lane);
            load_operand<D>(value, Tile<D>{here + TILE}, 0, lane);
            if constexpr (HELD) load_values<D>(key_values, here, lane);
            Fragments<1, D> d_key, d_value;
            clear(d_key);
            clear(d_value);
#pragma unroll
            for (int m = 0; m < POINT_TILES; ++m) {
                if (m * 16 >= tile.query_rows) continue;
                const int of = HELD ? m : 0;
                Weights all;
                draw(all, m * 16, row);
                const int queries = tile.query_rows - m * 16;
                if constexpr (!HELD) load_point_sums(m, 0);
                all.template weigh<HELD, D>(key, q_columns[of], point(m), log2_sums[of], tile.key_rows - row, queries,
                                            p.scale_log2e, lane);
                all.template d_weigh<HELD, D>(value, d_o_columns[of], point(m), queries, lane);
                if constexpr (DROPOUT) all.drop(p.dropout.keep);
                uint32_t weights[4], d_scores[4];
                all.template finish<DROPOUT>(weights, d_scores, deltas[of]);
                leave(d_scores, slot(m), lane);
                if constexpr (!HELD) load_point_values(m, 0);
                add_products<D>(d_value[0], weights, d_output_values[of]);
                add_products<D>(d_key[0], d_scores, query_values[of]);
                ptx::sync_warp();
                take(d_scores, slot(m), lane);
                if constexpr (!HELD) load_values<D>(key_values, here, lane);
                add_products<D>(d_query[m], d_scores, key_values);
            }
            store_keys(d_key[0], d_value[0], row);
        }
        combine(d_query);
        if (group.member != 0) return;
        if (number() < p.parts) {
            leave_sums<D>(d_query, partials(number(), 0), lane);
        } else {
            store_queries(d_query);
        }
    }

    // The points are asked: documents are queries.
    __device__ __forceinline__ void attend() {
        const int thread = group.member * 32 + lane, threads = warps() * 32;
        const uint16_t *first_key = p.kv + key_at(0);
        load_rows<D, Layout<D>::QUERIES>(point(0), first_key, tile.key_rows, D, thread, threads);
        load_rows<D, Layout<D>::QUERIES>(point(0) + TILE, first_key + values(), tile.key_rows, D, thread, threads);
        ptx::cp_async_commit();
        const auto load = [&](int to) {
            const size_t head = blockIdx.y, stride = static_cast<size_t>(p.heads) * D;
            documents.load(to, p.q + (head * p.query_rows + tile.query_begin) * D,
                           p.d_output + (tile.output_begin * stride + head * D), stride, tile.query_rows,
                           warps(), lane);
        };
        for (int i = 0; i < Documents<D>::STAGES - 1; ++i) load(i);
        // Log-sum-exps are not aligned for copies in the background: a lane holds one of the next tile's. Queries behind
        // the set weigh nothing.
        const auto load_sum = [&](int row) {
            row += lane & 15;
            if (row >= tile.query_rows) return INFINITE;
            const size_t at = static_cast<size_t>(blockIdx.y) * p.output_rows + tile.output_begin;
            return ptx::load_constant(p.log_sum_exp + at + row) * LOG2_E;
        };
        float sum = load_sum(group.member * 16);
        wait_for_points();

        constexpr int KEPT = HELD ? POINT_TILES : 1;
        uint32_t key[KEPT][D / 16][4], value[KEPT][D / 16][4], key_values[KEPT][D / 16][4];
        if constexpr (HELD) {
#pragma unroll
            for (int m = 0; m < POINT_TILES; ++m) {
                if (m * 16 >= tile.key_rows) continue;
                load_operand<D>(key[m], Tile<D>{point(m)}, 0, lane);
                load_operand<D>(value[m], Tile<D>{point(m) + TILE}, 0, lane);
                load_values<D>(key_values[m], point(m), lane);
            }
        }
        Sums<D> d_key, d_value;
        clear(d_key);
        clear(d_value);
#pragma unroll 1
        for (int row = group.member * 16; row < tile.query_rows; row += warps() * 16) {
            refresh();
            const ptx::Shared here = documents.wait();
            load(documents.free());
            // Of the lane's columns.
            float2 log2_sums[2];
            const auto spread_sums = [&] {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = half * 8 + 2 * (lane & 3);
                    log2_sums[half] = make_float2(ptx::shuffle(sum, column), ptx::shuffle(sum, column + 1));
                }
            };
            if constexpr (HELD) spread_sums();
            Weights all[POINT_TILES];
#pragma unroll
            for (int m = 0; m < POINT_TILES; ++m) {
                if (m * 16 < tile.key_rows) draw(all[m], row, m * 16);
            }
            float2 deltas[2] = {};
            {
                Columns<D> query, d_output;
                if constexpr (HELD) query.load(here, lane), d_output.load(here + TILE, lane);
                const int queries = tile.query_rows - row;
#pragma unroll
                for (int m = 0; m < POINT_TILES; ++m) {
                    if (m * 16 >= tile.key_rows) continue;
                    const int of = HELD ? m : 0;
                    if constexpr (!HELD) spread_sums();
                    if constexpr (!HELD) load_operand<D>(key[0], Tile<D>{point(m)}, 0, lane);
                    all[m].template weigh<HELD, D>(key[of], query, here, log2_sums, tile.key_rows - m * 16, queries,
                                                   p.scale_log2e, lane);
                    if constexpr (!HELD) load_operand<D>(value[0], Tile<D>{point(m) + TILE}, 0, lane);
                    all[m].template d_weigh<HELD, D>(value[of], d_output, here, queries, lane);
                    if constexpr (DROPOUT) all[m].drop(p.dropout.keep);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const float(&w)[4] = all[m].p[half];
                        const float(&d_w)[4] = all[m].d_p[half];
                        deltas[half].x = fmaf(w[0], d_w[0], fmaf(w[2], d_w[2], deltas[half].x));
                        deltas[half].y = fmaf(w[1], d_w[1], fmaf(w[3], d_w[3], deltas[half].y));
                    }
                }
            }
            sum = load_sum(row + warps() * 16);
            // δ is the sum over all keys, which the lanes of a column have.
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    deltas[half].x += ptx::shuffle_xor(deltas[half].x, lanes);
                    deltas[half].y += ptx::shuffle_xor(deltas[half].y, lanes);
                }
            }
            uint32_t weights[POINT_TILES][4], d_scores[POINT_TILES][4];
#pragma unroll
            for (int m = 0; m < POINT_TILES; ++m) {
                if (m * 16 >= tile.key_rows) continue;
                all[m].template finish<DROPOUT>(weights[m], d_scores[m], deltas);
                leave(d_scores[m], slot(m), lane);
            }
            {
                uint32_t rows[D / 16][4];
                load_values<D>(rows, here + TILE, lane);
#pragma unroll
                for (int m = 0; m < POINT_TILES; ++m) {
                    if (m * 16 < tile.key_rows) add_products<D>(d_value[m], weights[m], rows);
                }
                load_values<D>(rows, here, lane);
#pragma unroll
                for (int m = 0; m < POINT_TILES; ++m) {
                    if (m * 16 < tile.key_rows) add_products<D>(d_key[m], d_scores[m], rows);
                }
            }
            ptx::sync_warp();
            Fragments<1, D> d_query;
            clear(d_query);
#pragma unroll
            for (int m = 0; m < POINT_TILES; ++m) {
                if (m * 16 >= tile.key_rows) continue;
                uint32_t operand[4];
                take(operand, slot(m), lane);
                const int of = HELD ? m : 0;
                if constexpr (!HELD) load_values<D>(key_values[0], point(m), lane);
                add_products<D>(d_query[0], operand, key_values[of]);
            }
            store_queries(d_query[0], row);
        }
        combine(d_key);
        combine(d_value);
        if (group.member != 0) return;
        if (number() < p.parts) {
            leave_sums<D>(d_key, partials(number(), 0), lane);
            leave_sums<D>(d_value, partials(number(), 1), lane);
        } else {
            store_keys(d_key, d_value);
        }
    }

    // Of a set, what its parts left.
    __device__ __forceinline__ void combine_induce() const {
        Sums<D> d_query;
        combine_parts(d_query, 0);
        if (group.member == 0) store_queries(d_query);
    }
    __device__ __forceinline__ void combine_attend() const {
        Sums<D> d_key, d_value;
        combine_parts(d_key, 0);
        combine_parts(d_value, 1);
        if (group.member == 0) store_keys(d_key, d_value);
    }
};

template <int D, bool DROPOUT> __device__ __forceinline__ void backward_induce(const AttentionBackward &p) {
    const Group group = load_group(p);
    if (!group.busy) return;
    Points<D, DROPOUT>(p, group).induce();
}

template <int D, bool DROPOUT> __device__ __forceinline__ void backward_attend(const AttentionBackward &p) {
    const Group group = load_group(p);
    if (!group.busy) return;
    Points<D, DROPOUT>(p, group).attend();
}

// Without dropout weights are multiplied by 1.
template <int D> __device__ __forceinline__ void combine_induce(const AttentionBackward &p) {
    const Group group = load_group(p);
    Points<D, true>(p, group).combine_induce();
}

template <int D> __device__ __forceinline__ void combine_attend(const AttentionBackward &p) {
    const Group group = load_group(p);
    Points<D, true>(p, group).combine_attend();
}

} // namespace attention
