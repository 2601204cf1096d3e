/* The row-wise network of a block in one kernel (family `feed_forward`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_FEED_FORWARD_H
#define SETRANK_FEED_FORWARD_H
#include <stdint.h>

enum {
    /** Threads of a block: two warps of rows, each with four of columns. */
    FEED_FORWARD_THREADS = 256,
    /** Rows of a block. */
    FEED_FORWARD_ROWS = 128,
    /** The same of `feed_forward_few_rows_c{C}` and its backward. */
    FEED_FORWARD_FEW_ROWS = 32,
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

/** The layer behind, of the network's results: what attention reads of them. */
typedef struct FeedForwardProjection {
    /** [P, C] bf16 */
    const uint16_t *weight;
    /** [P] f32 */
    const float *bias;
    /** [P / width, rows, width] bf16 */
    uint16_t *out;
    /** P: a multiple of C, 0 where nothing is projected. */
    int32_t outputs;
    /** 32, 64 or P. */
    int32_t width;
    /** Whether a ReLU follows. */
    int32_t relu;
    /** Fills the struct. */
    int32_t unused;
} FeedForwardProjection;

/** Arguments of `feed_forward_c{C}` and `feed_forward_few_rows_c{C}`. */
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
    /** What is computed of y besides. */
    FeedForwardProjection projection;
    int32_t rows;
    /** G. */
    int32_t inner;
    /** At most rows. */
    int32_t period;
    float eps;
} FeedForward;

#endif
