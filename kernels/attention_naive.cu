#include "attention_naive.h"

#include "attention_tile.cuh"
#include "gemm.cuh"
#include "row.cuh"

// Attention as it is without fusion: scores and weights go through memory, every product is a kernel of its own. What is fused
// (attention_forward.cuh, attention_backward*.cuh) is held against it; it computes the same, dropout included.
//
//   scores              s[i, j] = q[i]·k[j];  in backward also dp[i, j] = d_o[i]·v[j]
//   softmax             L[i] = log Σ_j exp(s[i, j] / √D),  w[i, j] = m[i, j] p[i, j],  p[i, j] = exp(s[i, j] / √D − L[i])
//   product             o[i] = Σ_j w[i, j] v[j];  in backward d_q[i] = Σ_j ds[i, j] k[j] / √D
//   weights             w again, from the L that softmax left
//   d_scores            ds[i, j] = p[i, j] (m[i, j] dp[i, j] − δ[i]),  δ[i] = Σ_d o[i]·d_o[i]
//   product_transposed  d_v[j] = Σ_i w[i, j] d_o[i],  d_k[j] = Σ_i ds[i, j] q[i] / √D
//   (paper, equations 4 to 6; i runs over queries, j over keys of one set; m is 1, or with dropout 0 or 1/(1 − rate))
//   With `relu` d_q, d_k and d_v are 0 where q, k or v itself is not positive: those are stored behind a ReLU.
//
// Shapes      q, kv, output, d_output, log_sum_exp, d_q and d_kv as the fused kernels have them. s and dp [H, pairs] f32, w and
//             ds [H, pairs] bf16: of each set a row for each query, keys filled up to a multiple of 8 with zeros.
// Checked     by the launcher (src/ops/attention/naive.rs): D 32 or 64, tiles inside of the rows, rows of pairs inside of the
//             buffers and multiples of 8, 16-byte alignment.
// Launch      grid (tiles of 64 queries, or transposed of 64 keys, H); 128 threads. A block of a product has 64 × 64 of the
//             scores at a time, or goes over the weights by 64 × 64; a warp has 16 rows of the results. Shared memory: both
//             operands' tiles. Of the others a warp has a row at a time, no shared memory. Forward is scores, softmax, product;
//             backward scores, weights, product_transposed, scores, d_scores, product, product_transposed.
// Types       bf16 in and out; scores, their sums and softmax in f32; w and ds rounded to bf16.
// Determinism the same bits for a set whatever the batch around it: sums go in order, each is one block's, no atomics.
// Writes      `=`: every pair of the tiles, those behind the keys included; every row of the tiles in log_sum_exp and in the
//             products' output. Keys of a set without queries get 0.
// Cost        forward 4·n²·D FLOPs and 2.3·n² exponentials a (set, head), backward 10·n²·D and 2·n²; bytes a pair: forward
//             4 + (4 + 2) + 2, backward 4 + (4 + 2) + 2 + 4 + (8 + 2) + 2 + 2, beside a few of each row: bound by them. At
//             n = 360, H 8, D 32 a document and layer takes 12.2 ns of bytes forward and 30.9 backward by the rates of an
//             H100, of kernels that keep its set on the chip 0.69 and 1.38 (counters.txt, docs/kernels.md).
// Range       as the fused kernels: weights are off by 2⁻²⁴ of the largest score's size, of themselves.
// Not-a-number a NaN or infinity in a set makes non-finite what depends on it, and nothing outside of the set.

namespace attention {

constexpr int ROWS = ATTENTION_NAIVE_ROWS, THREADS = ATTENTION_NAIVE_THREADS, WARPS = THREADS / 32;
static_assert(WARPS * 16 == ROWS, "a warp has 16 rows of a product");
static_assert(ATTENTION_NAIVE_UNIT == PIECE, "rows of pairs are whole pieces");

// Neighbouring pairs that a lane has at a time: as many as are drawn together.
constexpr int AT_ONCE = 4;

// Rows of D values in this block's head.
struct Given {
    const uint16_t *first;
    size_t stride;
};

// Those of a tile's queries: of q, or of what is laid out as the results are.
template <int D> __device__ __forceinline__ Given rows_of_queries(const uint16_t *from, int query_rows, size_t heads,
                                                                  bool by_heads, const AttentionTile &tile) {
    const size_t head = blockIdx.y;
    if (by_heads) return {from + (head * query_rows + tile.query_begin) * D, D};
    return {from + (tile.output_begin * heads + head) * D, heads * D};
}

template <int D> __device__ __forceinline__ void scores(const AttentionNaiveScores &p) {
    const int lane = threadIdx.x & 31, first_row = threadIdx.x / 32 * 16;
    const size_t head = blockIdx.y;
    const AttentionTile tile = load_entry(p.tiles + blockIdx.x);
    const AttentionPairs pairs = load_entry(p.pairs + tile.set);
    const Given from = rows_of_queries<D>(p.queries, p.query_rows, p.heads, p.by_heads != 0, tile);
    const uint16_t *const first_key = p.keys + (head * p.key_rows + tile.key_begin) * D;
    float *const to = p.scores + (head * p.head_pairs + pairs.begin + tile.first_query * pairs.stride);
    const Tile<D> queries{ptx::shared_base()}, keys{queries.begin + Tile<D>::bytes(ROWS)};
    queries.template load<ROWS, THREADS>(from.first, tile.query_rows, from.stride);
    for (int first = 0; first < tile.key_rows; first += ROWS) {
        keys.template load<ROWS, THREADS>(first_key + static_cast<size_t>(first) * D, tile.key_rows - first);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        // All queries and keys have landed.
        ptx::barrier();
        if (first_row < tile.query_rows) {
            uint32_t operand[1][D / 16][4];
            load_operand<D>(operand[0], queries, first_row, lane);
            Fragments<1, ROWS> results;
            multiply_transposed(results, operand, keys, lane);
            gemm::for_pairs(results, lane, [&](int of_warp, int d, float low, float high) {
                const int row = first_row + of_warp, column = first + d * 8 + 2 * (lane & 3);
                if (row < tile.query_rows && column < pairs.stride) {
                    ptx::store_global(reinterpret_cast<float2 *>(to + (row * pairs.stride + column)),
                                      make_float2(low, high));
                }
            });
        }
        // All warps are done with the keys that the next ones replace.
        ptx::barrier();
    }
}

// A warp's rows of pairs, one by one: every fourth of a tile of queries.
struct PairRows {
    const AttentionNaiveWeights &p;
    AttentionTile tile;
    AttentionPairs pairs;

    __device__ __forceinline__ PairRows(const AttentionNaiveWeights &p)
        : p(p), tile(load_entry(p.tiles + blockIdx.x)), pairs(load_entry(p.pairs + tile.set)) {}

    // Calls `each(query, pair, place)`: the query's number in the tile, its first pair, and its place in [H, Nq].
    template <class Each> __device__ __forceinline__ void for_each(const Each &each) const {
        const size_t head = blockIdx.y;
#pragma unroll 1
        for (int query = threadIdx.x / 32; query < tile.query_rows; query += WARPS) {
            const size_t pair = head * p.head_pairs + pairs.begin + (tile.first_query + query) * pairs.stride;
            each(query, pair, head * p.output_rows + tile.output_begin + query);
        }
    }

    // Stores what `make(values, pair, kept)` makes of each four of a query's pairs, a bit of `kept` for each of them that is
    // not dropped; and 0 behind the last key.
    template <bool DROPOUT, class Make>
    __device__ __forceinline__ void store(int query, size_t pair, const Make &make) const {
        const Place place{blockIdx.y, static_cast<uint32_t>(tile.set)};
        for (int key = (threadIdx.x & 31) * AT_ONCE; key < pairs.stride; key += 32 * AT_ONCE) {
            uint32_t kept = ~0u;
            if constexpr (DROPOUT) kept = draw(p.dropout, place, tile.first_query + query, key / AT_ONCE);
            float values[AT_ONCE];
            make(values, pair + key, kept);
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) values[e] = key + e < tile.key_rows ? values[e] : 0.0f;
            const uint2 packed = make_uint2(ptx::pack_bf16(values[0], values[1]), ptx::pack_bf16(values[2], values[3]));
            ptx::store_global(reinterpret_cast<uint2 *>(p.weights + (pair + key)), packed);
        }
    }
};

__device__ __forceinline__ void load_four(float (&values)[AT_ONCE], const float *from) {
    const float4 four = ptx::load_constant(reinterpret_cast<const float4 *>(from));
    values[0] = four.x;
    values[1] = four.y;
    values[2] = four.z;
    values[3] = four.w;
}

// Makes weights of four scores, given what is subtracted from them in units of log2, and what the kept ones are multiplied by.
__device__ __forceinline__ void weigh(float (&values)[AT_ONCE], float scale_log2e, float reference, float factor,
                                      uint32_t kept) {
#pragma unroll
    for (int e = 0; e < AT_ONCE; ++e) {
        const float weight = ptx::exp2(fmaf(values[e], scale_log2e, -reference)) * factor;
        values[e] = (kept >> e & 1) != 0 ? weight : 0.0f;
    }
}

template <bool DROPOUT> __device__ __forceinline__ void softmax(const AttentionNaiveWeights &p) {
    const int lane = threadIdx.x & 31;
    const PairRows rows(p);
    rows.for_each([&](int query, size_t pair, size_t place) {
        // Of the lane's keys: the largest score so far, in units of log2, and the sum of the powers of two.
        float top = LOWEST, sum = 0.0f;
        for (int key = lane * AT_ONCE; key < rows.tile.key_rows; key += 32 * AT_ONCE) {
            float scores[AT_ONCE];
            load_four(scores, p.scores + (pair + key));
            float most = scores[0];
#pragma unroll
            for (int e = 1; e < AT_ONCE; ++e) {
                scores[e] = key + e < rows.tile.key_rows ? scores[e] : -INFINITE;
                most = fmaxf(most, scores[e]);
            }
            const float higher = fmaxf(top, most * p.scale_log2e);
            sum *= ptx::exp2(top - higher);
            top = higher;
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) sum += ptx::exp2(fmaf(scores[e], p.scale_log2e, -top));
        }
        float reference = top;
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) reference = fmaxf(reference, ptx::shuffle_xor(reference, mask));
        sum = warp_sum(sum * ptx::exp2(top - reference));
        if (lane == 0) ptx::store_global(p.log_sum_exp + place, (reference + ptx::log2(sum)) * LN_2);
        const float factor = (DROPOUT ? p.dropout.keep : 1.0f) / sum;
        rows.store<DROPOUT>(query, pair, [&](float (&values)[AT_ONCE], size_t at, uint32_t kept) {
            load_four(values, p.scores + at);
            weigh(values, p.scale_log2e, reference, factor, kept);
        });
    });
}

template <bool DROPOUT> __device__ __forceinline__ void weights(const AttentionNaiveWeights &p) {
    const PairRows rows(p);
    rows.for_each([&](int query, size_t pair, size_t place) {
        const float log2_sum = ptx::load_constant(p.log_sum_exp + place) * LOG2_E;
        rows.store<DROPOUT>(query, pair, [&](float (&values)[AT_ONCE], size_t at, uint32_t kept) {
            load_four(values, p.scores + at);
            weigh(values, p.scale_log2e, log2_sum, DROPOUT ? p.dropout.keep : 1.0f, kept);
        });
    });
}

template <bool DROPOUT> __device__ __forceinline__ void d_scores(const AttentionNaiveWeights &p) {
    const int lane = threadIdx.x & 31;
    const size_t head = blockIdx.y, heads = p.heads;
    const PairRows rows(p);
    rows.for_each([&](int query, size_t pair, size_t place) {
        const float log2_sum = ptx::load_constant(p.log_sum_exp + place) * LOG2_E;
        const size_t result = ((rows.tile.output_begin + query) * heads + head) * p.width + 2 * lane;
        float delta = 0.0f;
        if (2 * lane < p.width) {
            const uint32_t a = ptx::load_constant(reinterpret_cast<const uint32_t *>(p.output + result));
            delta = add_pairs(delta, a, ptx::load_constant(reinterpret_cast<const uint32_t *>(p.d_output + result)));
        }
        delta = warp_sum(delta);
        rows.store<DROPOUT>(query, pair, [&](float (&values)[AT_ONCE], size_t at, uint32_t kept) {
            load_four(values, p.scores + at);
            weigh(values, p.scale_log2e, log2_sum, 1.0f, ~0u);
            float d_weights[AT_ONCE];
            load_four(d_weights, p.d_weights + at);
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) {
                const float factor = !DROPOUT ? 1.0f : (kept >> e & 1) != 0 ? p.dropout.keep : 0.0f;
                values[e] *= d_weights[e] * factor - delta;
            }
        });
    });
}

// Rows of the results are a tile's queries, or transposed its keys; the sums are over all of the other side.
template <int D, bool TRANSPOSED> __device__ __forceinline__ void product(const AttentionNaiveProduct &p) {
    const int lane = threadIdx.x & 31, first_row = threadIdx.x / 32 * 16;
    const size_t head = blockIdx.y, heads = p.heads;
    const AttentionTile tile = load_entry(p.tiles + blockIdx.x);
    const AttentionPairs pairs = load_entry(p.pairs + tile.set);
    const int count = TRANSPOSED ? tile.key_rows : tile.query_rows;
    const int inner = TRANSPOSED ? tile.query_rows : tile.key_rows;
    const size_t key_row = head * p.key_rows + tile.key_begin;
    const Given from = TRANSPOSED
                           ? rows_of_queries<D>(p.rows, p.query_rows, heads, p.by_heads != 0, tile)
                           : Given{p.rows + key_row * D, D};
    const uint16_t *const first_pair = p.weights + (head * p.head_pairs + pairs.begin);

    const Tile<ROWS> weights{ptx::shared_base()};
    const Tile<D> rows{weights.begin + Tile<ROWS>::bytes(ROWS)};
    Fragments<1, D> results;
    clear(results);
    for (int first = 0; first < inner; first += ROWS) {
        const int query = TRANSPOSED ? first : tile.first_query, key = TRANSPOSED ? tile.first_key : first;
        const gemm::Columns<const uint16_t> columns{first_pair + (query * pairs.stride + key),
                                                    static_cast<size_t>(pairs.stride), 32};
        // A thread copies one piece of several queries' pairs; behind the keys there are the next query's.
        const bool inside = key + static_cast<int>(threadIdx.x % 8) * PIECE < pairs.stride;
        gemm::load<ROWS, THREADS>(weights, columns, inside ? tile.query_rows - (TRANSPOSED ? first : 0) : 0);
        rows.template load<ROWS, THREADS>(from.first + first * from.stride, inner - first, from.stride);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        // All weights and rows have landed.
        ptx::barrier();
        if (first_row < count) {
#pragma unroll
            for (int k = 0; k < ROWS; k += 16) {
                if (first + k >= inner) continue;
                uint32_t operand[1][4];
                gemm::left_fragment<TRANSPOSED>(operand[0], weights, first_row, k, lane);
                add_products(results, operand, rows, k, lane);
            }
        }
        // All warps are done with the tiles that the next ones replace.
        ptx::barrier();
    }
    if (first_row >= count) return;

    uint16_t *to = p.output + key_row * D;
    const uint16_t *relu = p.relu != nullptr ? p.relu + key_row * D : nullptr;
    size_t stride = D;
    if constexpr (!TRANSPOSED) {
        const bool by_heads = p.by_heads != 0;
        to = p.output + (by_heads ? head * p.output_rows + tile.output_begin : tile.output_begin * heads + head) * D;
        stride = by_heads ? D : heads * D;
        relu = p.relu != nullptr ? p.relu + (head * p.query_rows + tile.query_begin) * D : nullptr;
    }
    const float factors[2] = {p.factor, p.factor};
    store_rows<D>(results[0], factors, rows, first_row, count, to, stride, relu, lane);
}

} // namespace attention

#define ATTENTION_NAIVE_SCORES(NAME, D)                                                                               \
    extern "C" __global__ void __launch_bounds__(ATTENTION_NAIVE_THREADS)                                             \
        NAME(const __grid_constant__ AttentionNaiveScores p) {                                                        \
        attention::scores<D>(p);                                                                                      \
    }
ATTENTION_NAIVE_SCORES(attention_naive_scores_d32, 32)
ATTENTION_NAIVE_SCORES(attention_naive_scores_d64, 64)

#define ATTENTION_NAIVE_WEIGHTS(NAME, KERNEL, DROPOUT)                                                                \
    extern "C" __global__ void __launch_bounds__(ATTENTION_NAIVE_THREADS)                                             \
        NAME(const __grid_constant__ AttentionNaiveWeights p) {                                                       \
        attention::KERNEL<DROPOUT>(p);                                                                                \
    }
ATTENTION_NAIVE_WEIGHTS(attention_naive_softmax, softmax, false)
ATTENTION_NAIVE_WEIGHTS(attention_naive_softmax_dropout, softmax, true)
ATTENTION_NAIVE_WEIGHTS(attention_naive_weights, weights, false)
ATTENTION_NAIVE_WEIGHTS(attention_naive_weights_dropout, weights, true)
ATTENTION_NAIVE_WEIGHTS(attention_naive_d_scores, d_scores, false)
ATTENTION_NAIVE_WEIGHTS(attention_naive_d_scores_dropout, d_scores, true)

#define ATTENTION_NAIVE_PRODUCT(NAME, D, TRANSPOSED)                                                                  \
    extern "C" __global__ void __launch_bounds__(ATTENTION_NAIVE_THREADS)                                             \
        NAME(const __grid_constant__ AttentionNaiveProduct p) {                                                       \
        attention::product<D, TRANSPOSED>(p);                                                                         \
    }
ATTENTION_NAIVE_PRODUCT(attention_naive_product_d32, 32, false)
ATTENTION_NAIVE_PRODUCT(attention_naive_product_d64, 64, false)
ATTENTION_NAIVE_PRODUCT(attention_naive_product_transposed_d32, 32, true)
ATTENTION_NAIVE_PRODUCT(attention_naive_product_transposed_d64, 64, true)
