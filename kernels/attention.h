/* Set attention (family `attention`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_ATTENTION_H
#define SETRANK_ATTENTION_H
#include <stdint.h>

enum {
    /** Query rows of a block. */
    SET_ATTENTION_QUERY_ROWS = 128,
    /** Key rows of a stage. */
    SET_ATTENTION_KEY_ROWS = 64,
    /** Threads of a block: a warp for each 32 query rows. */
    SET_ATTENTION_THREADS = 128,
};

/** A block's work in each head: neighbouring query rows of one set. */
typedef struct SetAttentionTile {
    /** First row of the set in the batch. */
    int32_t set_begin;
    /** Documents of the set, n. */
    int32_t set_rows;
    /** First query row, counted inside the set: a multiple of SET_ATTENTION_QUERY_ROWS. */
    int32_t first_query;
    /** Query rows, at most SET_ATTENTION_QUERY_ROWS. */
    int32_t query_rows;
} SetAttentionTile;

/** Arguments of `set_attention_forward_d{D}_s{stages}`. */
typedef struct SetAttentionForward {
    /** [3, H, N, D] bf16: queries, keys, values. */
    const uint16_t *qkv;
    /** [tiles] work, one for each blockIdx.x. */
    const SetAttentionTile *tiles;
    /** [N, H·D] bf16: the heads' outputs, side by side. */
    uint16_t *output;
    /** [H, N] f32: natural logarithm of the softmax's denominator. */
    float *log_sum_exp;
    /** N: documents of the batch. */
    int32_t rows;
    /** H. */
    int32_t heads;
    /** log2(e) / √D. */
    float scale_log2e;
    /** Fills the struct. */
    int32_t unused;
} SetAttentionForward;

#endif
