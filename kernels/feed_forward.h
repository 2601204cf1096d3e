/* The row-wise network of a block in one kernel (family `feed_forward`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_FEED_FORWARD_H
#define SETRANK_FEED_FORWARD_H
#include <stdint.h>

enum {
    /** Threads of a block: two warps of rows, each with four of columns. */
    FEED_FORWARD_THREADS = 256,
    /** Rows of a block. */
    FEED_FORWARD_ROWS = 128,
    /** Columns of the inner rows that a block has at a time. */
    FEED_FORWARD_CHUNK = 128,
    /** C at most. */
    FEED_FORWARD_WIDTH = 256,
};

/** A LayerNorm. */
typedef struct FeedForwardScale {
    /** [C] f32: γ. */
    const float *scale;
    /** [C] f32: β. */
    const float *shift;
    /** [rows, 2] f32: mean, 1/√(variance + eps). */
    float *statistics;
} FeedForwardScale;

/** Arguments of `feed_forward_c{C}`. */
typedef struct FeedForward {
    /** [rows, C] bf16: what the LayerNorm before the network is of. */
    const uint16_t *x;
    /** [period, C] bf16, added to x: row i takes row i % period. */
    const uint16_t *added;
    /** The LayerNorm before the network. */
    FeedForwardScale before;
    /** [G, C] bf16: fc1's. */
    const uint16_t *weight1;
    /** [G] f32. */
    const float *bias1;
    /** [C, G] bf16: fc2's. */
    const uint16_t *weight2;
    /** [C] f32. */
    const float *bias2;
    /** The one behind it. */
    FeedForwardScale behind;
    /** [rows, C] bf16: the network's rows, for backward; null where none follows. */
    uint16_t *attended;
    /** [rows, C] bf16: fc2's results, for backward; null where none follows. */
    uint16_t *output;
    /** [rows, C] bf16. */
    uint16_t *y;
    int32_t rows;
    /** G. */
    int32_t inner;
    /** At most rows. */
    int32_t period;
    float eps;
} FeedForward;

#endif
