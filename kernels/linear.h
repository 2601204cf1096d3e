/* Linear layers (family `linear`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_LINEAR_H
#define SETRANK_LINEAR_H
#include <stdint.h>

enum {
    /** Rows of a block's results. */
    LINEAR_ROWS = 128,
    /** Columns of a block's results. */
    LINEAR_COLUMNS = 64,
    /** Threads of a block: a warp for each 32 rows. */
    LINEAR_THREADS = 128,
    /** Bytes of shared memory of a block: two stages of both operands. */
    LINEAR_SHARED_BYTES = 49152,
    /** Layers of whose parameters one launch computes the gradients, at most. */
    LINEAR_LAYERS = 8,
    /** Layers whose forward is one launch, at most. */
    LINEAR_FORWARD_LAYERS = 16,
};

/** Arguments of `linear_forward`, and of `linear_wide_forward` and `linear_few_rows_{16,32}`. */
typedef struct LinearForward {
    /** [rows, inputs] bf16 */
    const uint16_t *x;
    /** [outputs, inputs] bf16 */
    const uint16_t *weight;
    /** [outputs] f32 */
    const float *bias;
    /** [outputs / width, rows, width] bf16 */
    uint16_t *y;
    int32_t rows;
    /** A multiple of 64. */
    int32_t inputs;
    /** A multiple of 64. */
    int32_t outputs;
    /** 32, 64 or outputs. */
    int32_t width;
    /** Whether a ReLU follows. */
    int32_t relu;
    /** Fills the struct. */
    int32_t unused;
} LinearForward;

/** Arguments of `linear_few_rows_layers`. */
typedef struct LinearLayers {
    /** Of the same sizes, one for each blockIdx.y. */
    LinearForward layers[LINEAR_FORWARD_LAYERS];
} LinearLayers;

/** Arguments of `linear_backward_input`, and of `linear_wide_backward_input` and `linear_few_rows_input_{16,32}`. */
typedef struct LinearBackwardInput {
    /** [outputs / width, rows, width] bf16 */
    const uint16_t *dy;
    /** [outputs, inputs] bf16 */
    const uint16_t *weight;
    /** [rows, inputs] bf16, added to dx; or null. */
    const uint16_t *added;
    /** [rows, inputs] bf16: where it is not above 0, dx is 0; or null. */
    const uint16_t *mask;
    /** [rows, inputs] bf16 */
    uint16_t *dx;
    int32_t rows;
    /** A multiple of 64. */
    int32_t inputs;
    /** A multiple of 64. */
    int32_t outputs;
    /** 32, 64 or outputs. */
    int32_t width;
} LinearBackwardInput;

/** A layer of `linear_backward_weights`. */
typedef struct LinearWeights {
    /** [outputs / width, rows, width] bf16 */
    const uint16_t *dy;
    /** [rows, inputs] bf16 */
    const uint16_t *x;
    /** [parts, outputs, inputs] f32 */
    float *d_weight;
    /** [parts, outputs] f32 */
    float *d_bias;
    int32_t rows;
    /** A multiple of 64. */
    int32_t inputs;
    /** A multiple of 64. */
    int32_t outputs;
    /** 32, 64 or outputs. */
    int32_t width;
    /** Rows of a part, a multiple of 64. */
    int32_t rows_of_part;
    /** Its first blockIdx.x: those of each part's tiles follow, part by part. */
    int32_t first_block;
} LinearWeights;

/** Arguments of `linear_backward_weights`. */
typedef struct LinearBackwardWeights {
    LinearWeights layers[LINEAR_LAYERS];
    /** Layers, at least 1. */
    int32_t count;
    /** Fills the struct. */
    int32_t unused;
} LinearBackwardWeights;

#endif
