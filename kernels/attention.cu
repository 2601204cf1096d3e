#include "attention.h"

#include "tile.cuh"

// Set attention, forward: every document of a set attends to all documents of the set, in each head.
//
//   o[i] = Σ_j p[i, j] v[j],   p[i, j] = exp(q[i]·k[j] / √D − L[i]),   L[i] = log Σ_j exp(q[i]·k[j] / √D)
//   (paper, equations 4 to 6; i and j run over the documents of one set)
//
// Shapes      qkv [3, H, N, D], so that the keys of a (set, head) are one run; output [N, H·D]; log_sum_exp [H, N].
// Checked     by the launcher (src/ops/attention/device.rs): D 32 or 64, tiles inside of N, 16-byte alignment.
// Launch      grid (tiles, H); 128 threads, a warp for each 32 of the tile's 128 query rows; shared memory: the
//             queries' tile and STAGES pairs of 64 keys and values (`SetAttentionPlan`).
// Types       bf16 in and out; scores, softmax and sums in f32; probabilities rounded to bf16 for the product with V.
// Determinism the same bits for a set whatever the batch around it: keys in order, no atomics.
// Writes      `=`: every row of the tiles in output and log_sum_exp, nothing else.
// Cost        4·n²·D FLOPs and n² exponentials a (set, head); 4·2·n·D + 4·n bytes if each input is read once; keys and
//             values are read again for every 128 query rows. Bound by exponentials at D 32.
// Range       weights are off by 2⁻²⁴ of the largest score's size, of themselves: scores of 2²⁰ are still worth while,
//             beyond 2³⁰ they need not be finite.
// Not-a-number a NaN or infinity in a set makes non-finite what depends on it, and nothing outside of the set.

namespace {

constexpr int QUERY_ROWS = SET_ATTENTION_QUERY_ROWS, KEY_ROWS = SET_ATTENTION_KEY_ROWS;
constexpr int THREADS = SET_ATTENTION_THREADS;
// A warp's query rows are two tiles of mma's 16, so that a fragment of keys or values is used twice.
constexpr int WARP_TILES = 2;
static_assert(THREADS / 32 * WARP_TILES * 16 == QUERY_ROWS, "a warp has 32 query rows");

constexpr float LN_2 = 0.6931471805599453f;
constexpr float MINUS_INFINITY = -__builtin_huge_valf();

// Lane `lane` holds rows lane/4 and lane/4 + 8 of a fragment of 16 × 8 results, columns 2·(lane%4) and the next.
template <int D> struct Softmax {
    // Of the scores in units of log2: the largest so far, and the sum of their powers of two, of the lane's columns.
    float largest[WARP_TILES][2];
    float sum[WARP_TILES][2];
    // Σ p·v, not yet divided by the sum.
    float output[WARP_TILES][D / 8][4];

    __device__ __forceinline__ void start() {
#pragma unroll
        for (int m = 0; m < WARP_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                largest[m][half] = MINUS_INFINITY;
                sum[m][half] = 0.0f;
            }
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
#pragma unroll
                for (int e = 0; e < 4; ++e) output[m][d][e] = 0.0f;
            }
        }
    }

    // Turns the scores of one more tile of keys into weights and brings what was summed before to their scale.
    __device__ __forceinline__ void add(float (&scores)[WARP_TILES][KEY_ROWS / 8][4], float scale_log2e) {
#pragma unroll
        for (int m = 0; m < WARP_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float most = MINUS_INFINITY;
#pragma unroll
                for (int j = 0; j < KEY_ROWS / 8; ++j) {
                    most = fmaxf(most, fmaxf(scores[m][j][2 * half], scores[m][j][2 * half + 1]));
                }
                most = fmaxf(most, ptx::shuffle_xor(most, 1));
                most = fmaxf(most, ptx::shuffle_xor(most, 2));
                most = fmaxf(largest[m][half], most * scale_log2e);
                // Where all scores are −∞ so far, their weights are to be 0, not NaN.
                const float offset = most == MINUS_INFINITY ? 0.0f : most;
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

// scores = q · kᵀ for the warp's query rows and a tile of keys.
template <int D>
__device__ __forceinline__ void multiply_keys(float (&scores)[WARP_TILES][KEY_ROWS / 8][4],
                                              const uint32_t (&queries)[WARP_TILES][D / 16][4], Tile<D> keys,
                                              int lane) {
#pragma unroll
    for (int j = 0; j < KEY_ROWS / 8; ++j) {
#pragma unroll
        for (int m = 0; m < WARP_TILES; ++m) {
#pragma unroll
            for (int e = 0; e < 4; ++e) scores[m][j][e] = 0.0f;
        }
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
            uint32_t fragment[4];
            ptx::ldmatrix_x4(fragment, keys.at(j * 8 + (lane & 7), d * 4 + (lane >> 3)));
#pragma unroll
            for (int m = 0; m < WARP_TILES; ++m) {
                ptx::mma_m16n8k16_bf16(scores[m][j], queries[m][2 * d], fragment[0], fragment[1]);
                ptx::mma_m16n8k16_bf16(scores[m][j], queries[m][2 * d + 1], fragment[2], fragment[3]);
            }
        }
    }
}

// Keys from number `valid` of the tile on are none of the set.
__device__ __forceinline__ void mask_keys(float (&scores)[WARP_TILES][KEY_ROWS / 8][4], int valid, int lane) {
#pragma unroll
    for (int j = 0; j < KEY_ROWS / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const bool inside = j * 8 + 2 * (lane & 3) + (e & 1) < valid;
#pragma unroll
            for (int m = 0; m < WARP_TILES; ++m) scores[m][j][e] = inside ? scores[m][j][e] : MINUS_INFINITY;
        }
    }
}

// output += weights · v for a tile of values.
template <int D>
__device__ __forceinline__ void multiply_values(float (&output)[WARP_TILES][D / 8][4],
                                                const float (&weights)[WARP_TILES][KEY_ROWS / 8][4], Tile<D> values,
                                                int lane) {
#pragma unroll
    for (int j = 0; j < KEY_ROWS / 16; ++j) {
        // Two neighbouring fragments of results are one of the operand.
        uint32_t operand[WARP_TILES][4];
#pragma unroll
        for (int m = 0; m < WARP_TILES; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float *pair = &weights[m][2 * j + i / 2][2 * (i % 2)];
                operand[m][i] = ptx::pack_bf16(pair[0], pair[1]);
            }
        }
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            uint32_t fragment[4];
            ptx::ldmatrix_x4_transposed(fragment, values.at(j * 16 + (lane & 15), d * 2 + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < WARP_TILES; ++m) {
                ptx::mma_m16n8k16_bf16(output[m][2 * d], operand[m], fragment[0], fragment[1]);
                ptx::mma_m16n8k16_bf16(output[m][2 * d + 1], operand[m], fragment[2], fragment[3]);
            }
        }
    }
}

template <int D, int STAGES> __device__ __forceinline__ void set_attention_forward(const SetAttentionForward &p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const size_t head = blockIdx.y;
    const auto tile = ptx::load_constant<SetAttentionTile>(p.tiles + blockIdx.x);
    const int key_tiles = (tile.set_rows + KEY_ROWS - 1) / KEY_ROWS;

    const size_t heads = p.heads, rows = p.rows;
    const uint16_t *first_key = p.qkv + ((heads + head) * rows + tile.set_begin) * D;
    const uint16_t *first_value = p.qkv + ((2 * heads + head) * rows + tile.set_begin) * D;
    const uint16_t *first_query = p.qkv + (head * rows + tile.set_begin + tile.first_query) * D;

    const Tile<D> queries{ptx::shared_base()};
    const auto keys = [&](int number) {
        return Tile<D>{queries.begin + Tile<D>::bytes(QUERY_ROWS + number % STAGES * 2 * KEY_ROWS)};
    };
    const auto values = [&](int number) { return Tile<D>{keys(number).begin + Tile<D>::bytes(KEY_ROWS)}; };
    // Each tile is a group of copies, an empty one behind the last, so that waiting needs no cases.
    const auto load = [&](int number) {
        if (number < key_tiles) {
            const int first = number * KEY_ROWS;
            const int valid = tile.set_rows - first;
            keys(number).template load<KEY_ROWS, THREADS>(first_key + static_cast<size_t>(first) * D, valid);
            values(number).template load<KEY_ROWS, THREADS>(first_value + static_cast<size_t>(first) * D, valid);
        }
        ptx::cp_async_commit();
    };

    queries.template load<QUERY_ROWS, THREADS>(first_query, tile.query_rows);
#pragma unroll
    for (int number = 0; number < STAGES - 1; ++number) load(number);

    const bool busy = warp * WARP_TILES * 16 < tile.query_rows;
    uint32_t operand[WARP_TILES][D / 16][4];
    Softmax<D> softmax;
    softmax.start();
    for (int number = 0; number < key_tiles; ++number) {
        ptx::cp_async_wait<STAGES - 2>();
        // All copies of this tile have landed, and all threads are done with the one that the next copies replace.
        ptx::barrier();
        load(number + STAGES - 1);
        if (!busy) continue;
        if (number == 0) {
#pragma unroll
            for (int m = 0; m < WARP_TILES; ++m) {
#pragma unroll
                for (int d = 0; d < D / 16; ++d) {
                    const int row = (warp * WARP_TILES + m) * 16 + (lane & 15);
                    ptx::ldmatrix_x4(operand[m][d], queries.at(row, d * 2 + (lane >> 4)));
                }
            }
        }
        float scores[WARP_TILES][KEY_ROWS / 8][4];
        multiply_keys<D>(scores, operand, keys(number), lane);
        const int valid = tile.set_rows - number * KEY_ROWS;
        if (valid < KEY_ROWS) mask_keys(scores, valid, lane);
        softmax.add(scores, p.scale_log2e);
        multiply_values<D>(softmax.output, scores, values(number), lane);
    }
    if (!busy) return;

    // The warp's own query rows, which nobody reads any more, take its results on their way to whole rows.
#pragma unroll
    for (int m = 0; m < WARP_TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = (warp * WARP_TILES + m) * 16 + (lane >> 2) + half * 8;
            float sum = softmax.sum[m][half];
            sum += ptx::shuffle_xor(sum, 1);
            sum += ptx::shuffle_xor(sum, 2);
            const float share = 1.0f / sum;
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                const float *pair = &softmax.output[m][d][2 * half];
                ptx::store_shared(queries.at(row, d) + (lane & 3) * 4, ptx::pack_bf16(pair[0] * share, pair[1] * share));
            }
            if (row < tile.query_rows && (lane & 3) == 0) {
                const size_t at = head * rows + tile.set_begin + tile.first_query + row;
                ptx::store_global(p.log_sum_exp + at, (softmax.largest[m][half] + ptx::log2(sum)) * LN_2);
            }
        }
    }
    ptx::sync_warp();
    constexpr int PIECES = Tile<D>::PIECES;
#pragma unroll
    for (int i = 0; i < WARP_TILES * 16 * PIECES / 32; ++i) {
        const int row = warp * WARP_TILES * 16 + (i * 32 + lane) / PIECES, piece = lane % PIECES;
        if (row < tile.query_rows) {
            const size_t at = ((tile.set_begin + tile.first_query + row) * heads + head) * D + piece * 8;
            ptx::store_global(reinterpret_cast<uint4 *>(p.output + at), ptx::load_shared<uint4>(queries.at(row, piece)));
        }
    }
}

} // namespace

#define SET_ATTENTION_FORWARD(D, STAGES)                                                                              \
    extern "C" __global__ void __launch_bounds__(SET_ATTENTION_THREADS)                                              \
        set_attention_forward_d##D##_s##STAGES(const __grid_constant__ SetAttentionForward p) {                      \
        set_attention_forward<D, STAGES>(p);                                                                          \
    }
SET_ATTENTION_FORWARD(32, 2)
SET_ATTENTION_FORWARD(32, 3)
SET_ATTENTION_FORWARD(64, 2)
SET_ATTENTION_FORWARD(64, 3)
