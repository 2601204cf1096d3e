/* The row-wise network of a block by matrix instructions of warpgroups (family `feed_forward_sm90`): what nvcc, g++
   (emulator) and bindgen share. */
#ifndef SETRANK_FEED_FORWARD_SM90_H
#define SETRANK_FEED_FORWARD_SM90_H
#include <stdint.h>

enum {
    /** Rows of a warpgroup. */
    FEED_FORWARD_SM90_ROWS = 64,
    /** Warpgroups of a block that multiply; one more loads weights. */
    FEED_FORWARD_SM90_MULTIPLIERS = 2,
    /** Blocks of a cluster: each loads a half of the weights for both. */
    FEED_FORWARD_SM90_BLOCKS = 2,
    /** Threads of a block. */
    FEED_FORWARD_SM90_THREADS = 384,
    /** Columns of the inner rows that a warpgroup has at a time. */
    FEED_FORWARD_SM90_CHUNK = 64,
    /** A chunk's weights of one of the layers take a slot of shared memory: so many there are. */
    FEED_FORWARD_SM90_SLOTS = 4,
    /** Bytes of a slot's mbarriers. */
    FEED_FORWARD_SM90_BARRIER_BYTES = 16,
    /** Registers of a thread that loads, and of those that multiply: a thread begins with 168. */
    FEED_FORWARD_SM90_LOADER_REGISTERS = 24,
    FEED_FORWARD_SM90_MULTIPLIER_REGISTERS = 240,
};

/** Arguments of `feed_forward_wgmma_c{C}`. */
typedef struct FeedForwardWgmma {
    /** Tensor map of [G, C] bf16, fc1's, in boxes of 64 columns and half a chunk's rows. */
    uint64_t weight1[16];
    /** Tensor map of [C, G] bf16, fc2's, in boxes of 64 columns and C / 2 rows. */
    uint64_t weight2[16];
    /** [rows, C] bf16. */
    const uint16_t *x;
    /** [G] f32. */
    const float *bias1;
    /** [C] f32. */
    const float *bias2;
    /** [C] f32: γ of the LayerNorm. */
    const float *scale;
    /** [C] f32: β. */
    const float *shift;
    /** [rows, C] bf16: fc2's results, for backward; null where none follows. */
    uint16_t *output;
    /** [rows, C] bf16. */
    uint16_t *y;
    /** [rows, 2] f32: mean, 1/√(variance + eps). */
    float *statistics;
    int32_t rows;
    /** G. */
    int32_t inner;
    float eps;
    /** Fill the struct: tensor maps begin at multiples of 64 bytes. */
    int32_t unused[13];
} __attribute__((aligned(64))) FeedForwardWgmma;

#endif
