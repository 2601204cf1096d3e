/* LayerNorm and the linear layer behind it, of few rows (family `norm_linear`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_NORM_LINEAR_H
#define SETRANK_NORM_LINEAR_H
#include <stdint.h>

enum {
    /** C at most. */
    NORM_LINEAR_WIDTH = 256,
};

/** Arguments of `norm_linear_{16,32}_c{C}`. */
typedef struct NormLinear {
    /** [rows, C] bf16: what LayerNorm is of. */
    const uint16_t *x;
    /** [period, C] bf16, added to x: row i takes row i % period. */
    const uint16_t *added;
    /** [C] f32: γ. */
    const float *scale;
    /** [C] f32: β. */
    const float *shift;
    /** [rows, 2] f32: mean, 1/√(variance + eps). */
    float *statistics;
    /** [rows, C] bf16: LayerNorm's rows. */
    uint16_t *normalized;
    /** [outputs, C] bf16. */
    const uint16_t *weight;
    /** [outputs] f32. */
    const float *bias;
    /** [outputs / width, rows, width] bf16. */
    uint16_t *y;
    int32_t rows;
    /** At most rows. */
    int32_t period;
    float eps;
    /** A multiple of 64. */
    int32_t outputs;
    /** 32, 64 or outputs. */
    int32_t width;
    /** Whether a ReLU follows. */
    int32_t relu;
} NormLinear;

#endif
