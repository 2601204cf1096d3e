#pragma once

#include "attention_tile.cuh"

// Attention, backward, of what forward computes (attention_forward.cuh), for sets that do not stay on the chip
// (attention_backward_resident.cuh has those, attention_backward_points.cuh few points): the weights p are computed again
// from the log-sum-exps L, tile by tile. d_o is the gradient of o; i runs over queries, j over keys of one set.
//
//   p[i, j] = exp(q[i]·k[j] / √D − L[i]),   δ[i] = Σ_d o[i]·d_o[i]
//   s[i, j] = p[i, j] (m[i, j] d_o[i]·v[j] − δ[i])
//   d_queries  d_q[i] = Σ_j s[i, j] k[j] / √D, and δ for d_keys
//   d_keys     d_k[j] = Σ_i s[i, j] q[i] / √D,   d_v[j] = Σ_i m[i, j] p[i, j] d_o[i]
//   With `relu` each is 0 where q, k or v itself is not positive: those are stored behind a ReLU.
//
// Shapes      q and kv as in forward; output and d_output [Nq, H·D]; log_sum_exp and delta [H, Nq]; d_q [H, Nq, D], also
//             where queries are shared (the caller sums them over the sets); d_kv [2, H, Nk, D].
// Checked     by the launcher (src/ops/attention/device.rs), as in forward.
// Launch      d_queries: grid (tiles of queries, H); 256 threads, a warp for each 16 of the tile's 128 query rows; shared
//             memory: the tiles of q and d_o, two pairs of 64 keys and values.
//             d_keys: grid (tiles of keys, H), behind d_queries; 128 threads, a warp for each 16 of the tile's 64 key
//             rows; shared memory: the tiles of k and v, two pairs of 32 rows of q and d_o, with their L and δ.
//             (`AttentionPlan`)
// Types       bf16 in and out; p, s and sums in f32; p and s rounded to bf16 for the products behind them.
// Determinism as forward: each result is one block's, sums go in order, no atomics.
// Writes      `=`: d_q and delta of the tiles of queries, d_kv of the tiles of keys, nothing else. Keys of a set without
//             queries get 0.
// Cost        14·n²·D FLOPs and 2·n² exponentials a (set, head): scores and d_o·v twice, once for each kernel. Reads of
//             k and v once for every 128 query rows, of q and d_o once for every 64 keys.
// Not-a-number as forward.

namespace attention {

static_assert(ATTENTION_D_QUERIES_THREADS / 32 * 16 == QUERY_ROWS, "a warp has 16 query rows");
static_assert(ATTENTION_D_KEYS_THREADS / 32 * 16 == KEY_ROWS, "a warp has 16 key rows");
static_assert(ATTENTION_D_KEYS_THREADS >= 2 * ATTENTION_D_KEYS_QUERY_ROWS, "a thread for each log-sum-exp and delta");

template <int D, bool DROPOUT> __device__ __forceinline__ void d_queries(const AttentionBackward &p) {
    constexpr int THREADS = ATTENTION_D_QUERIES_THREADS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const size_t head = blockIdx.y, heads = p.heads, stride = heads * D;
    const AttentionTile tile = load_entry(p.tiles + blockIdx.x);
    const int key_tiles = (tile.key_rows + KEY_ROWS - 1) / KEY_ROWS;

    const uint16_t *first_query = p.q + (head * p.query_rows + tile.query_begin) * D;
    const uint16_t *first_key = p.kv + (head * p.key_rows + tile.key_begin) * D;
    const uint16_t *first_value = p.kv + ((heads + head) * p.key_rows + tile.key_begin) * D;
    const size_t first_output = (tile.output_begin * heads + head) * D;

    const Tile<D> queries{ptx::shared_base()};
    const Tile<D> d_outputs{queries.begin + Tile<D>::bytes(QUERY_ROWS)};
    const Pairs<D, KEY_ROWS> pairs{d_outputs.begin + Tile<D>::bytes(QUERY_ROWS)};
    const auto load = [&](int number) {
        if (number < key_tiles) {
            const int first = number * KEY_ROWS, valid = tile.key_rows - first;
            pairs.first(number).template load<KEY_ROWS, THREADS>(first_key + static_cast<size_t>(first) * D, valid);
            pairs.second(number).template load<KEY_ROWS, THREADS>(first_value + static_cast<size_t>(first) * D, valid);
        }
        ptx::cp_async_commit();
    };

    queries.template load<QUERY_ROWS, THREADS>(first_query, tile.query_rows);
    d_outputs.template load<QUERY_ROWS, THREADS>(p.d_output + first_output, tile.query_rows, stride);
    ptx::cp_async_commit();
    load(0);
    ptx::cp_async_wait<1>();
    ptx::barrier();

    const int first_row = warp * 16;
    const bool busy = first_row < tile.query_rows;
    uint32_t query[1][D / 16][4], d_output[1][D / 16][4];
    load_operand<D>(query[0], queries, first_row, lane);
    load_operand<D>(d_output[0], d_outputs, first_row, lane);
    // Of the lane's two rows; those behind the set weigh nothing.
    float log2_sum[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first_row + half * 8 + (lane >> 2);
        const bool inside = row < tile.query_rows;
        const size_t at = head * p.output_rows + tile.output_begin + row;
        log2_sum[half] = inside ? ptx::load_constant(p.log_sum_exp + at) * LOG2_E : INFINITE;
        float sum = 0.0f;
        if (inside) {
#pragma unroll
            for (int i = 0; i < Tile<D>::PIECES / 4; ++i) {
                const int piece = i * 4 + (lane & 3);
                const uint16_t *from = p.output + first_output + row * stride + piece * 8;
                const uint4 a = ptx::load_constant(reinterpret_cast<const uint4 *>(from));
                const uint4 b = ptx::load_shared<uint4>(d_outputs.at(row, piece));
                sum = add_pairs(add_pairs(sum, a.x, b.x), a.y, b.y);
                sum = add_pairs(add_pairs(sum, a.z, b.z), a.w, b.w);
            }
        }
        sum += ptx::shuffle_xor(sum, 1);
        sum += ptx::shuffle_xor(sum, 2);
        delta[half] = sum;
        if (inside && (lane & 3) == 0) ptx::store_global(p.delta + at, sum);
    }

    Fragments<1, D> d_query;
    clear(d_query);
    for (int number = 0; number < key_tiles; ++number) {
        ptx::cp_async_wait<0>();
        // All copies of this pair have landed, and all threads are done with the one that the next copies replace.
        ptx::barrier();
        load(number + 1);
        if (!busy) continue;
        Fragments<1, KEY_ROWS> weights, d_weights;
        multiply_transposed(weights, query, pairs.first(number), lane);
        const int valid = tile.key_rows - number * KEY_ROWS;
        if (valid < KEY_ROWS) mask_columns(weights, valid, lane);
        multiply_transposed(d_weights, d_output, pairs.second(number), lane);
        if constexpr (DROPOUT) {
            const Place place{static_cast<uint32_t>(head), static_cast<uint32_t>(tile.set)};
            Kept<KEY_ROWS / 8> kept;
            kept.draw_for_queries(p.dropout, place, tile.first_query + first_row, tile.first_key + number * KEY_ROWS,
                                  lane);
            kept.scale(d_weights[0], p.dropout.keep);
        }
#pragma unroll
        for (int j = 0; j < KEY_ROWS / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float weight = ptx::exp2(fmaf(weights[0][j][e], p.scale_log2e, -log2_sum[e / 2]));
                weights[0][j][e] = weight * (d_weights[0][j][e] - delta[e / 2]);
            }
        }
        multiply_add(d_query, weights, pairs.first(number), lane);
    }
    if (!busy) return;

    // The warp's own rows of q, which nobody reads any more, take its results on their way to whole rows.
    const float factors[2] = {p.scale, p.scale};
    uint16_t *to = p.d_q + (head * p.output_rows + tile.output_begin) * D;
    store_rows<D>(d_query[0], factors, queries, first_row, tile.query_rows, to, D, p.relu != 0 ? first_query : nullptr,
                  lane);
}

template <int D, bool DROPOUT> __device__ __forceinline__ void d_keys(const AttentionBackward &p) {
    constexpr int THREADS = ATTENTION_D_KEYS_THREADS, STEP = ATTENTION_D_KEYS_QUERY_ROWS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const size_t head = blockIdx.y, heads = p.heads, stride = heads * D;
    const AttentionTile tile = load_entry(p.tiles + blockIdx.x);
    const int query_tiles = (tile.query_rows + STEP - 1) / STEP;

    const size_t key_row = head * p.key_rows + tile.key_begin, value_row = key_row + heads * p.key_rows;
    const uint16_t *first_query = p.q + (head * p.query_rows + tile.query_begin) * D;
    const uint16_t *first_d_output = p.d_output + (tile.output_begin * heads + head) * D;

    const Tile<D> keys{ptx::shared_base()};
    const Tile<D> values{keys.begin + Tile<D>::bytes(KEY_ROWS)};
    const Pairs<D, STEP> pairs{values.begin + Tile<D>::bytes(KEY_ROWS)};
    const auto load = [&](int number) {
        if (number < query_tiles) {
            const int first = number * STEP, valid = tile.query_rows - first;
            pairs.first(number).template load<STEP, THREADS>(first_query + static_cast<size_t>(first) * D, valid);
            pairs.second(number).template load<STEP, THREADS>(first_d_output + first * stride, valid, stride);
        }
        ptx::cp_async_commit();
    };
    // Of the queries of each of two pairs: log2 of the sums, then δ. They are not aligned for copies in the background:
    // a thread holds one of the next pair while it works on this.
    const auto sums = [&](int number) { return pairs.begin + Pairs<D, STEP>::BYTES + number % 2 * 2 * STEP * 4; };
    const auto load_sum = [&](int number) {
        const int thread = threadIdx.x, row = number * STEP + thread % STEP;
        // Queries behind the set weigh nothing.
        if (row >= tile.query_rows || thread >= 2 * STEP) return thread < STEP ? INFINITE : 0.0f;
        const size_t at = head * p.output_rows + tile.output_begin + row;
        return thread < STEP ? ptx::load_constant(p.log_sum_exp + at) * LOG2_E : ptx::load_global(p.delta + at);
    };
    const auto store_sum = [&](int number, float sum) {
        const int thread = threadIdx.x;
        if (thread < 2 * STEP) ptx::store_shared(sums(number) + thread * 4, sum);
    };

    keys.template load<KEY_ROWS, THREADS>(p.kv + key_row * D, tile.key_rows);
    values.template load<KEY_ROWS, THREADS>(p.kv + value_row * D, tile.key_rows);
    ptx::cp_async_commit();
    load(0);
    store_sum(0, load_sum(0));
    ptx::cp_async_wait<1>();
    ptx::barrier();

    const int first_row = warp * 16;
    const bool busy = first_row < tile.key_rows;
    uint32_t key[1][D / 16][4], value[1][D / 16][4];
    load_operand<D>(key[0], keys, first_row, lane);
    load_operand<D>(value[0], values, first_row, lane);
    Fragments<1, D> d_key, d_value;
    clear(d_key);
    clear(d_value);
    for (int number = 0; number < query_tiles; ++number) {
        ptx::cp_async_wait<0>();
        // All copies of this pair have landed, and all threads are done with the one that the next copies replace.
        ptx::barrier();
        load(number + 1);
        const float next = load_sum(number + 1);
        if (busy) {
            // Rows are keys here, and columns queries: weights are an operand as they stand.
            Fragments<1, STEP> weights, d_weights;
            multiply_transposed(weights, key, pairs.first(number), lane);
            multiply_transposed(d_weights, value, pairs.second(number), lane);
            Kept<STEP / 8> kept;
            if constexpr (DROPOUT) {
                const Place place{static_cast<uint32_t>(head), static_cast<uint32_t>(tile.set)};
                kept.draw_for_keys(p.dropout, place, tile.first_query + number * STEP, tile.first_key + first_row,
                                   lane);
                kept.scale(d_weights[0], p.dropout.keep);
            }
#pragma unroll
            for (int j = 0; j < STEP / 8; ++j) {
                const ptx::Shared at = sums(number) + (j * 8 + 2 * (lane & 3)) * 4;
                const float2 log2_sums = ptx::load_shared<float2>(at);
                const float2 deltas = ptx::load_shared<float2>(at + STEP * 4);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float log2_sum = e % 2 == 0 ? log2_sums.x : log2_sums.y;
                    const float delta = e % 2 == 0 ? deltas.x : deltas.y;
                    const float weight = ptx::exp2(fmaf(weights[0][j][e], p.scale_log2e, -log2_sum));
                    d_weights[0][j][e] = weight * (d_weights[0][j][e] - delta);
                    weights[0][j][e] = !DROPOUT || kept.of(j, e) ? weight : 0.0f;
                }
            }
            multiply_add(d_value, weights, pairs.second(number), lane);
            multiply_add(d_key, d_weights, pairs.first(number), lane);
        }
        store_sum(number + 1, next);
    }
    if (!busy) return;

    // The warp's own keys and values, which nobody reads any more, take its results on their way to whole rows.
    const float keep = DROPOUT ? p.dropout.keep : 1.0f;
    const float of_keys[2] = {p.scale, p.scale}, of_values[2] = {keep, keep};
    const uint16_t *relu = p.relu != 0 ? p.kv : nullptr;
    store_rows<D>(d_key[0], of_keys, keys, first_row, tile.key_rows, p.d_kv + key_row * D, D,
                  relu != nullptr ? relu + key_row * D : nullptr, lane);
    store_rows<D>(d_value[0], of_values, values, first_row, tile.key_rows, p.d_kv + value_row * D, D,
                  relu != nullptr ? relu + value_row * D : nullptr, lane);
}

} // namespace attention
