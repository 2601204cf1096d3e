/* LayerNorm of a residual sum (family `layer_norm`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_LAYER_NORM_H
#define SETRANK_LAYER_NORM_H
#include <stdint.h>

enum {
    /** Threads of a block. */
    LAYER_NORM_THREADS = 256,
    /** Columns of a warp; rows that are wider take LAYER_NORM_WIDE_WARPS warps each. */
    LAYER_NORM_WARP_COLUMNS = 512,
    /** Warps of a wide row. */
    LAYER_NORM_WIDE_WARPS = 4,
    /** Rows whose gradients of scale and shift a block sums. */
    LAYER_NORM_RUN = 32,
    /** Bytes of shared memory in which the warps of a wide row pass their sums. */
    LAYER_NORM_SUM_BYTES = 64,
};

/** Arguments of `layer_norm_forward_{narrow,wide}`. */
typedef struct LayerNormForward {
    /** [rows, C] bf16. */
    const uint16_t *x;
    /** [period, C] bf16: row i takes row i % period; null where there is none. */
    const uint16_t *added;
    /** [C] f32: γ. */
    const float *weight;
    /** [C] f32: β. */
    const float *bias;
    /** [rows, C] bf16. */
    uint16_t *y;
    /** [rows, 2] f32: mean, 1/√(variance + eps). */
    float *statistics;
    int32_t rows;
    /** C. */
    int32_t width;
    int32_t period;
    /** 1 / C. */
    float share;
    float eps;
    /** Fills the struct. */
    int32_t unused;
} LayerNormForward;

/** Arguments of `layer_norm_backward_{narrow,wide}`. */
typedef struct LayerNormBackward {
    /** [rows, C] bf16. */
    const uint16_t *x;
    /** [period, C] bf16, or null. */
    const uint16_t *added;
    /** [C] f32: γ. */
    const float *weight;
    /** [rows, 2] f32, of the forward pass. */
    const float *statistics;
    /** [rows, C] bf16: the gradient of y, whose place that of x + added takes. */
    uint16_t *d;
    /** [2, runs, C] f32: each run's gradients of γ, then those of β. */
    float *parts;
    int32_t rows;
    /** C. */
    int32_t width;
    int32_t period;
    /** 1 / C. */
    float share;
} LayerNormBackward;

#endif
