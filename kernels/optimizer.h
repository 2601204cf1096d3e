/* Adam and what it needs (family `optimizer`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_OPTIMIZER_H
#define SETRANK_OPTIMIZER_H
#include <stdint.h>

enum {
    /** Threads of a block. */
    OPTIMIZER_THREADS = 256,
    /** Gradients of one partial sum of the norm. */
    OPTIMIZER_PART = 16384,
    /** Parameters of a block: four a thread. */
    OPTIMIZER_BLOCK = 1024,
    /** Bytes of shared memory of a block that sums: an f64 a thread. */
    OPTIMIZER_SHARED_BYTES = 2048,
};

/** Arguments of `gradient_squares`. */
typedef struct GradientSquares {
    /** [length] f32 */
    const float *gradients;
    /** [length / OPTIMIZER_PART, rounded up] f64 */
    double *parts;
    /** A multiple of 64. */
    int64_t length;
} GradientSquares;

/** Arguments of `gradient_norm`. */
typedef struct GradientNorm {
    /** [count] f64 */
    const double *parts;
    /** [1] f32 */
    float *norm;
    int32_t count;
    /** Fills the struct. */
    int32_t unused;
} GradientNorm;

/** Arguments of `adam_update`. */
typedef struct AdamUpdate {
    /** [length] f32 */
    const float *gradients;
    /** [1] f32 */
    const float *norm;
    /** [length] f32: changed in place. */
    float *parameters;
    /** [length] bf16 */
    uint16_t *rounded;
    /** [length] f32: changed in place. */
    float *first;
    /** [length] f32: changed in place. */
    float *second;
    /** [length] f32: changed in place, where `averages`. */
    float *average;
    /** A multiple of 64. */
    int64_t length;
    /** The largest norm that gradients keep; 0: any. */
    float clip;
    float lr;
    float beta1;
    float beta2;
    float eps;
    float weight_decay;
    /** 1 − beta1^step */
    float correction1;
    /** 1 − beta2^step */
    float correction2;
    /** The share of the new parameters in their average. */
    float towards;
    /** Whether there is an average. */
    int32_t averages;
} AdamUpdate;

/** Arguments of `round_parameters`. */
typedef struct RoundParameters {
    /** [length] f32 */
    const float *parameters;
    /** [length] bf16 */
    uint16_t *rounded;
    /** A multiple of 64. */
    int64_t length;
} RoundParameters;

#endif
