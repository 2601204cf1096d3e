#pragma once

#include "attention_tile.cuh"

// Attention, forward: every query attends to all keys of its set, in each head.
//
//   o[i] = Σ_j m[i, j] p[i, j] v[j],   p[i, j] = exp(q[i]·k[j] / √D − L[i]),   L[i] = log Σ_j exp(q[i]·k[j] / √D)
//   (paper, equations 4 to 6; j runs over the keys of one set; m is 1, or with dropout 0 or 1/(1 − rate))
//
// Shapes      q [H, Nq, D], or [H, M, D] for M queries that all sets share; kv [2, H, Nk, D], so that the keys of a
//             (set, head) are one run; output [Nq, H·D]; log_sum_exp [H, Nq].
// Checked     by the launcher (src/ops/attention/device.rs): D 32 or 64, tiles inside of the rows and none without
//             keys, 16-byte alignment.
// Launch      grid (tiles of queries, H); 128 threads, a warp for each 32 of the tile's 128 query rows; shared memory:
//             the queries' tile and two pairs of 64 keys and values (`AttentionPlan`).
// Types       bf16 in and out; scores, softmax and sums in f32; weights rounded to bf16 for the product with V.
// Determinism the same bits for a set whatever the batch around it: keys in order, no atomics.
// Writes      `=`: every row of the tiles in output and log_sum_exp, nothing else.
// Cost        4·n²·D FLOPs and n² exponentials a (set, head) of n queries and keys; 4·2·n·D + 4·n bytes if each input is
//             read once; keys and values are read again for every 128 query rows. Bound by exponentials at D 32.
//             Dropout draws once for 4 weights.
// Range       weights are off by 2⁻²⁴ of the largest score's size, of themselves: scores of 2²⁰ are still worth while,
//             beyond 2³⁰ they need not be finite.
// Not-a-number a NaN or infinity in a set makes non-finite what depends on it, and nothing outside of the set.
// Lost        three pairs of keys and values: more memory a block, and twice the kernels; not measured on a card.

namespace attention {

// A warp's query rows are two tiles of mma's 16, so that a fragment of keys or values is used twice.
constexpr int FORWARD_TILES = 2;
static_assert(ATTENTION_FORWARD_THREADS / 32 * FORWARD_TILES * 16 == QUERY_ROWS, "a warp has 32 query rows");

template <int D> struct Softmax {
    // Of the scores in units of log2: the largest so far, and the sum of their powers of two, of the lane's columns.
    float largest[FORWARD_TILES][2];
    float sum[FORWARD_TILES][2];
    // Σ p·v, not yet divided by the sum.
    Fragments<FORWARD_TILES, D> output;

    __device__ __forceinline__ void start() {
#pragma unroll
        for (int m = 0; m < FORWARD_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                largest[m][half] = -INFINITE;
                sum[m][half] = 0.0f;
            }
        }
        clear(output);
    }

    // Turns the scores of one more tile of keys into weights and brings what was summed before to their scale.
    __device__ __forceinline__ void add(Fragments<FORWARD_TILES, KEY_ROWS> &scores, float scale_log2e) {
#pragma unroll
        for (int m = 0; m < FORWARD_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float most = -INFINITE;
#pragma unroll
                for (int j = 0; j < KEY_ROWS / 8; ++j) {
                    most = fmaxf(most, fmaxf(scores[m][j][2 * half], scores[m][j][2 * half + 1]));
                }
                most = fmaxf(most, ptx::shuffle_xor(most, 1));
                most = fmaxf(most, ptx::shuffle_xor(most, 2));
                most = fmaxf(largest[m][half], most * scale_log2e);
                // Where all scores are −∞ so far, their weights are to be 0, not NaN.
                const float offset = most == -INFINITE ? 0.0f : most;
                const float shrink = ptx::exp2(largest[m][half] - offset);
                largest[m][half] = most;
                float added = 0.0f;
#pragma unroll
                for (int j = 0; j < KEY_ROWS / 8; ++j) {
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; ++e) {
                        scores[m][j][e] = ptx::exp2(fmaf(scores[m][j][e], scale_log2e, -offset));
                        added += scores[m][j][e];
                    }
                }
                sum[m][half] = fmaf(sum[m][half], shrink, added);
#pragma unroll
                for (int d = 0; d < D / 8; ++d) {
                    output[m][d][2 * half] *= shrink;
                    output[m][d][2 * half + 1] *= shrink;
                }
            }
        }
    }
};

template <int D, bool DROPOUT> __device__ __forceinline__ void forward(const AttentionForward &p) {
    constexpr int THREADS = ATTENTION_FORWARD_THREADS, TILES = FORWARD_TILES;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const size_t head = blockIdx.y, heads = p.heads;
    const AttentionTile tile = load_tile(p.tiles);
    const int key_tiles = (tile.key_rows + KEY_ROWS - 1) / KEY_ROWS;

    const uint16_t *first_query = p.q + (head * p.query_rows + tile.query_begin) * D;
    const uint16_t *first_key = p.kv + (head * p.key_rows + tile.key_begin) * D;
    const uint16_t *first_value = p.kv + ((heads + head) * p.key_rows + tile.key_begin) * D;

    const Tile<D> queries{ptx::shared_base()};
    const Pairs<D, KEY_ROWS> pairs{queries.begin + Tile<D>::bytes(QUERY_ROWS)};
    const auto load = [&](int number) {
        if (number < key_tiles) {
            const int first = number * KEY_ROWS, valid = tile.key_rows - first;
            pairs.first(number).template load<KEY_ROWS, THREADS>(first_key + static_cast<size_t>(first) * D, valid);
            pairs.second(number).template load<KEY_ROWS, THREADS>(first_value + static_cast<size_t>(first) * D, valid);
        }
        ptx::cp_async_commit();
    };

    queries.template load<QUERY_ROWS, THREADS>(first_query, tile.query_rows);
    load(0);

    const bool busy = warp * TILES * 16 < tile.query_rows;
    uint32_t operand[TILES][D / 16][4];
    Softmax<D> softmax;
    softmax.start();
    for (int number = 0; number < key_tiles; ++number) {
        ptx::cp_async_wait<0>();
        // All copies of this pair have landed, and all threads are done with the one that the next copies replace.
        ptx::barrier();
        load(number + 1);
        if (!busy) continue;
        if (number == 0) {
#pragma unroll
            for (int m = 0; m < TILES; ++m) load_operand<D>(operand[m], queries, (warp * TILES + m) * 16, lane);
        }
        Fragments<TILES, KEY_ROWS> scores;
        multiply_transposed(scores, operand, pairs.first(number), lane);
        const int valid = tile.key_rows - number * KEY_ROWS;
        if (valid < KEY_ROWS) mask_columns(scores, valid, lane);
        softmax.add(scores, p.scale_log2e);
        if constexpr (DROPOUT) {
            const Place place{static_cast<uint32_t>(head), static_cast<uint32_t>(tile.set)};
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                Kept<KEY_ROWS / 8> kept;
                const int query = tile.first_query + (warp * TILES + m) * 16;
                kept.draw_for_queries(p.dropout, place, query, tile.first_key + number * KEY_ROWS, lane);
#pragma unroll
                for (int j = 0; j < KEY_ROWS / 8; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) scores[m][j][e] = kept.of(j, e) ? scores[m][j][e] : 0.0f;
                }
            }
        }
        multiply_add(softmax.output, scores, pairs.second(number), lane);
    }
    if (!busy) return;

    // The warp's own query rows, which nobody reads any more, take its results on their way to whole rows.
    uint16_t *to = p.output + (tile.output_begin * heads + head) * D;
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        float shares[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = softmax.sum[m][half];
            sum += ptx::shuffle_xor(sum, 1);
            sum += ptx::shuffle_xor(sum, 2);
            shares[half] = (DROPOUT ? p.dropout.keep : 1.0f) / sum;
            const int row = (warp * TILES + m) * 16 + half * 8 + (lane >> 2);
            if (row < tile.query_rows && (lane & 3) == 0) {
                const size_t at = head * p.output_rows + tile.output_begin + row;
                ptx::store_global(p.log_sum_exp + at, (softmax.largest[m][half] + ptx::log2(sum)) * LN_2);
            }
        }
        store_rows<D>(softmax.output[m], shares, queries, (warp * TILES + m) * 16, tile.query_rows, to, heads * D,
                      nullptr, lane);
    }
}

} // namespace attention
