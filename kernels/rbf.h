/* The rbf input (family `rbf`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_RBF_H
#define SETRANK_RBF_H
#include <stdint.h>

enum {
    /** Threads of a block. */
    RBF_THREADS = 256,
    /** Rows of a block's results, forward. */
    RBF_ROWS = 128,
    /** Outputs of a block of `rbf_forward`. */
    RBF_OUTPUTS = 128,
    /** Outputs of a block of `rbf_wide_forward`. */
    RBF_WIDE_OUTPUTS = 256,
    /** Outputs of a block of the weights' gradient. */
    RBF_WEIGHTS_OUTPUTS = 256,
    /** Columns of φ of such a block. */
    RBF_WEIGHTS_COLUMNS = 128,
    /** Columns of φ of a block of the centres' gradient. */
    RBF_CENTERS_COLUMNS = 256,
    /** Bytes of shared memory of a block of `rbf_forward`: two stages of both operands. */
    RBF_FORWARD_SHARED_BYTES = 65536,
    /** The same of a block of `rbf_wide_forward`, and of the weights' gradient. */
    RBF_WIDE_SHARED_BYTES = 98304,
    /** And of the centres': a table of the columns besides. */
    RBF_CENTERS_SHARED_BYTES = 98304 + 2048,
};

/** Arguments of `rbf_forward`. */
typedef struct RbfForward {
    /** [rows, stride] bf16: F features, and finite values behind them. */
    const uint16_t *x;
    /** [F, K] f32 */
    const float *centers;
    /** [outputs, width] bf16 */
    const uint16_t *weight;
    /** [outputs] f32 */
    const float *bias;
    /** [rows, outputs] bf16 */
    uint16_t *y;
    int32_t rows;
    /** Values of a row of x, F or more. */
    int32_t stride;
    /** K. */
    int32_t per_feature;
    /** F·K. */
    int32_t columns;
    /** Values of a row of the weight: F·K or more, a multiple of 64. */
    int32_t width;
    /** A multiple of 64. */
    int32_t outputs;
    /** Whether a ReLU follows. */
    int32_t relu;
    /** Fills the struct. */
    int32_t unused;
} RbfForward;

/** Arguments of `rbf_backward_weights`. */
typedef struct RbfBackwardWeights {
    /** [rows, outputs] bf16 */
    const uint16_t *dy;
    /** [rows, stride] bf16 */
    const uint16_t *x;
    /** [F, K] f32 */
    const float *centers;
    /** [parts, outputs, width] f32 */
    float *d_weight;
    /** [parts, outputs] f32 */
    float *d_bias;
    int32_t rows;
    /** Values of a row of x, F or more. */
    int32_t stride;
    /** K. */
    int32_t per_feature;
    /** F·K. */
    int32_t columns;
    /** Values of a row of the weight: F·K or more, a multiple of 64. */
    int32_t width;
    /** A multiple of 64. */
    int32_t outputs;
    /** Rows of a part, a multiple of 64. */
    int32_t rows_of_part;
    /** Fills the struct. */
    int32_t unused;
} RbfBackwardWeights;

/** Arguments of `rbf_backward_centers`. */
typedef struct RbfBackwardCenters {
    /** [rows, outputs] bf16 */
    const uint16_t *dy;
    /** [rows, stride] bf16 */
    const uint16_t *x;
    /** [F, K] f32 */
    const float *centers;
    /** [outputs, width] bf16 */
    const uint16_t *weight;
    /** [parts, F·K] f32 */
    float *d_centers;
    int32_t rows;
    /** Values of a row of x, F or more. */
    int32_t stride;
    /** K. */
    int32_t per_feature;
    /** F·K. */
    int32_t columns;
    /** Values of a row of the weight: F·K or more, a multiple of 64. */
    int32_t width;
    /** A multiple of 64. */
    int32_t outputs;
    /** Rows of a part, a multiple of 64. */
    int32_t rows_of_part;
    /** Fills the struct. */
    int32_t unused;
} RbfBackwardCenters;

#endif
