/* Attention over sets (family `attention`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_ATTENTION_H
#define SETRANK_ATTENTION_H
#include <stdint.h>

enum {
    /** Query rows of a tile of queries, in backward. */
    ATTENTION_QUERY_ROWS = 128,
    /** Key rows of a tile of keys, and those that blocks of queries go over at a time. */
    ATTENTION_KEY_ROWS = 64,
    /** Warps of a block of forward, and threads. */
    ATTENTION_FORWARD_WARPS = 4,
    ATTENTION_FORWARD_THREADS = 128,
    /** Tiles of 16 query rows that a warp of forward takes at a time: of heads 32 wide, and 64 wide. */
    ATTENTION_FORWARD_TILES_D32 = 3,
    ATTENTION_FORWARD_TILES_D64 = 2,
    /** The most query rows for which the warps of a group share out the keys: each warp has all the rows. */
    ATTENTION_FORWARD_SPLIT_ROWS = 32,
    /** Blocks of forward that a multiprocessor has registers for at once: of heads 32 wide, and 64 wide. */
    ATTENTION_FORWARD_BLOCKS_D32 = 3,
    ATTENTION_FORWARD_BLOCKS_D64 = 2,
    /** Threads of a block of d_queries: a warp for each 16 query rows. */
    ATTENTION_D_QUERIES_THREADS = 256,
    /** Threads of a block of d_keys: a warp for each 16 key rows. */
    ATTENTION_D_KEYS_THREADS = 128,
    /** Query rows that a block of d_keys goes over at a time: with more, it would lack registers. */
    ATTENTION_D_KEYS_QUERY_ROWS = 32,
    /** Warps of a block that takes whole sets, in groups of 1, 2, 4 or all of them. */
    ATTENTION_GROUPS_WARPS = 8,
    /** Bytes of shared memory that such a warp has for what it has to know. */
    ATTENTION_NOTES_BYTES = 32,
    /** Bytes of 16 × 16 weights, and of 4 numbers of each lane of a warp. */
    ATTENTION_EXCHANGE_BYTES = 512,
    /** Bytes of the log-sum-exps and δ of 16 queries. */
    ATTENTION_SUMS_BYTES = 128,
    /** Tiles of 16 queries and of 16 keys of a warp of the backward of whole sets, and fours of numbers of a lane that it
     *  puts by: for heads of 32. */
    ATTENTION_BACKWARD_QUERY_TILES = 3,
    ATTENTION_BACKWARD_KEY_TILES = 3,
    ATTENTION_BACKWARD_PARKED = 4,
    /** The same for heads of 32 and sets that are too long for that. */
    ATTENTION_BACKWARD_LONG_QUERY_TILES = 4,
    ATTENTION_BACKWARD_LONG_KEY_TILES = 2,
    /** The same for heads of 64. */
    ATTENTION_BACKWARD_WIDE_QUERY_TILES = 3,
    ATTENTION_BACKWARD_WIDE_KEY_TILES = 1,
    /** The most points whose gradients a warp sums in registers, beside a set's documents. */
    ATTENTION_POINTS_ROWS = 32,
    /** Warps of a block of the backward of so few points: a set is a group's of 1, 2 or all of them. */
    ATTENTION_POINTS_WARPS = 4,
    /** Tiles of 16 documents for which a group has a warp. */
    ATTENTION_POINTS_WARP_TILES = 12,
    /** Tiles of 16 documents that such a warp has in shared memory: one at work, the others on their way. */
    ATTENTION_POINTS_STAGES = 3,
    /** Its blocks that a multiprocessor has registers for at once. */
    ATTENTION_POINTS_BLOCKS = 2,
    /** Documents of a part of a longer set, whose parts are a block's each beside so few points; more, where a set would have
     *  more than so many parts. */
    ATTENTION_PART_ROWS = 1024,
    ATTENTION_PARTS = 64,
    /** Warps of a block that adds what a set's parts gathered. */
    ATTENTION_COMBINE_WARPS = 4,
    /** Numbers that a part leaves in each head for each of its D columns: two sums of so many points. */
    ATTENTION_PART_NUMBERS = 64,
};

/** Work in each head: neighbouring rows of one set, and all rows of the other side that they meet. */
typedef struct AttentionTile {
    /** Row of q at which the queries begin. */
    int32_t query_begin;
    /** Query rows: of a tile of queries at most ATTENTION_QUERY_ROWS. */
    int32_t query_rows;
    /** Row of the results at which those of the queries begin. */
    int32_t output_begin;
    /** Number of the first query in its set. */
    int32_t first_query;
    /** Row of k and v at which the keys begin. */
    int32_t key_begin;
    /** Key rows: of a tile of keys at most ATTENTION_KEY_ROWS. */
    int32_t key_rows;
    /** Number of the first key in its set. */
    int32_t first_key;
    /** Number of the set in its batch. */
    int32_t set;
} AttentionTile;

/** A block's work in each head: neighbours in a table of whole sets, or in forward of ranges of their queries; or, of combine,
 *  all parts of a set. */
typedef struct AttentionBlock {
    /** Number of the first in the table. */
    int32_t first_set;
    /** Sets: each has a group of neighbouring warps. Of combine, parts of one. */
    int32_t sets;
    /** Warps of a group. */
    int32_t warps;
    /** Bytes of shared memory of a group. */
    int32_t group_bytes;
} AttentionBlock;

/** Dropout of weights: which are dropped is a function of where they stand. */
typedef struct AttentionDropout {
    /** The generator's key, lower word. */
    uint32_t key_low;
    /** Upper word. */
    uint32_t key_high;
    /** Number of the attention in the model. */
    uint32_t attention;
    /** A weight is dropped where its random number is below this. */
    uint32_t threshold;
    /** 1 / (1 − rate). */
    float keep;
} AttentionDropout;

/** Arguments of `attention_forward_d{D}` and `attention_forward_split_d{D}`, with and without `_dropout`, and of
 *  `attention_combine_forward_d{D}`. */
typedef struct AttentionForward {
    /** [H, query_rows, D] bf16. */
    const uint16_t *q;
    /** [2, H, key_rows, D] bf16: keys, values. */
    const uint16_t *kv;
    /** [sets or ranges of their queries] work of a group of warps. */
    const AttentionTile *tiles;
    /** [blocks] one for each blockIdx.x. */
    const AttentionBlock *blocks;
    /** [Nq, H·D] bf16: the heads' results, side by side. */
    uint16_t *output;
    /** [H, Nq] f32: natural logarithm of the softmax's denominator. */
    float *log_sum_exp;
    /** [parts, H, 64·D] f32: what parts of sets gathered, for combine. */
    float *partials;
    /** The first so many of `tiles` are parts of sets, none of which is whole: of split. */
    int32_t parts;
    /** Rows of q. */
    int32_t query_rows;
    /** Rows of k and of v. */
    int32_t key_rows;
    /** Nq: rows of the results. */
    int32_t output_rows;
    /** H. */
    int32_t heads;
    /** log2(e) / √D. */
    float scale_log2e;
    /** Of the kernels with dropout. */
    AttentionDropout dropout;
    /** Fills the struct. */
    int32_t unused;
} AttentionForward;

/** Arguments of `attention_backward{,_wgmma}_d{D}`, `attention_backward_{induce,attend}_d{D}`, `attention_d_queries_d{D}` and
 *  `attention_d_keys_d{D}`, with and without `_dropout`, and of `attention_combine_{induce,attend}_d{D}`. */
typedef struct AttentionBackward {
    /** [H, query_rows, D] bf16. */
    const uint16_t *q;
    /** [2, H, key_rows, D] bf16: keys, values. */
    const uint16_t *kv;
    /** [Nq, H·D] bf16: forward's results; not for d_keys and attend. */
    const uint16_t *output;
    /** [Nq, H·D] bf16: their gradient. */
    const uint16_t *d_output;
    /** [H, Nq] f32: forward's. */
    const float *log_sum_exp;
    /** [tiles] work: of backward, whole sets; one for each blockIdx.x of queries for d_queries, of keys for d_keys. */
    const AttentionTile *tiles;
    /** [blocks] of backward: the sets of each blockIdx.x; not of warpgroups, which have one each. */
    const AttentionBlock *blocks;
    /** [H, Nq] f32: Σ output·d_output of a row, which d_queries leaves for d_keys. */
    float *delta;
    /** [H, Nq, D] bf16: not of d_keys. */
    uint16_t *d_q;
    /** [2, H, key_rows, D] bf16: not of d_queries. */
    uint16_t *d_kv;
    /** [parts, H, 64·D] f32: what parts of sets gathered, for combine. */
    float *partials;
    /** The first so many of `tiles` are parts of sets, none of which is whole: of induce and attend. */
    int32_t parts;
    /** Rows of q. */
    int32_t query_rows;
    /** Rows of k and of v. */
    int32_t key_rows;
    /** Nq: rows of the results. */
    int32_t output_rows;
    /** H. */
    int32_t heads;
    /** 1 where q, k and v are stored behind a ReLU, whose derivative their gradients are multiplied by; else 0. */
    int32_t relu;
    /** 1 / √D. */
    float scale;
    /** log2(e) / √D. */
    float scale_log2e;
    /** Of the kernels with dropout. */
    AttentionDropout dropout;
    /** Fills the struct. */
    int32_t unused;
} AttentionBackward;

/** Where the pairs of a set's queries and keys stand in those of a head: a row for each query. */
typedef struct AttentionPairs {
    /** The first. */
    int64_t begin;
    /** From query to query: the keys, filled up to a multiple of ATTENTION_NAIVE_UNIT. */
    int64_t stride;
} AttentionPairs;

/** Arguments of `attention_naive_scores_d{D}`. */
typedef struct AttentionNaiveScores {
    /** q, [H, query_rows, D] bf16, or the results' gradient, [Nq, H·D]. */
    const uint16_t *queries;
    /** k, or v: [H, key_rows, D] bf16. */
    const uint16_t *keys;
    /** [blocks] tiles of queries, one for each blockIdx.x. */
    const AttentionTile *tiles;
    /** [sets] */
    const AttentionPairs *pairs;
    /** [H, head_pairs] f32 */
    float *scores;
    /** Pairs of a head. */
    int64_t head_pairs;
    /** Rows of q. */
    int32_t query_rows;
    /** Rows of k and of v. */
    int32_t key_rows;
    /** H. */
    int32_t heads;
    /** 1 where queries are q, 0 where they are the results' gradient. */
    int32_t by_heads;
} AttentionNaiveScores;

/** Arguments of `attention_naive_softmax`, `attention_naive_weights` and `attention_naive_d_scores`, with and without
 *  `_dropout`. */
typedef struct AttentionNaiveWeights {
    /** [H, head_pairs] f32: q·k. */
    const float *scores;
    /** [H, head_pairs] f32: d_output·v; of d_scores. */
    const float *d_weights;
    /** [Nq, H·D] bf16: forward's results; of d_scores. */
    const uint16_t *output;
    /** [Nq, H·D] bf16: their gradient; of d_scores. */
    const uint16_t *d_output;
    /** [blocks] tiles of queries, one for each blockIdx.x. */
    const AttentionTile *tiles;
    /** [sets] */
    const AttentionPairs *pairs;
    /** [H, Nq] f32: what softmax writes and the others read. */
    float *log_sum_exp;
    /** [H, head_pairs] bf16: weights, or the scores' gradients. */
    uint16_t *weights;
    /** Pairs of a head. */
    int64_t head_pairs;
    /** Nq: rows of the results. */
    int32_t output_rows;
    /** H. */
    int32_t heads;
    /** D. */
    int32_t width;
    /** log2(e) / √D. */
    float scale_log2e;
    /** Of the kernels with dropout. */
    AttentionDropout dropout;
    /** Fills the struct. */
    int32_t unused;
} AttentionNaiveWeights;

/** Arguments of `attention_naive_product_d{D}` and `attention_naive_product_transposed_d{D}`. */
typedef struct AttentionNaiveProduct {
    /** [H, head_pairs] bf16 */
    const uint16_t *weights;
    /** k, or v: [H, key_rows, D] bf16. Transposed: q, [H, query_rows, D], or the results' gradient, [Nq, H·D]. */
    const uint16_t *rows;
    /** [blocks] tiles of queries, or transposed of keys, one for each blockIdx.x. */
    const AttentionTile *tiles;
    /** [sets] */
    const AttentionPairs *pairs;
    /** What has to be positive where the results are not to be 0: q [H, query_rows, D], transposed k or v; or null. */
    const uint16_t *relu;
    /** [Nq, H·D] or [H, Nq, D] bf16. Transposed: [H, key_rows, D]. */
    uint16_t *output;
    /** Pairs of a head. */
    int64_t head_pairs;
    /** Rows of q. */
    int32_t query_rows;
    /** Rows of k and of v. */
    int32_t key_rows;
    /** Nq. */
    int32_t output_rows;
    /** H. */
    int32_t heads;
    /** 1 where `output`, or transposed `rows`, is [H, rows, D], 0 where it is [Nq, H·D]. */
    int32_t by_heads;
    /** What the sums are multiplied by. */
    float factor;
} AttentionNaiveProduct;

#endif
