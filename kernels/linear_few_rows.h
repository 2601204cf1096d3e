/* Linear layers of few rows (family `linear_few_rows`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_LINEAR_FEW_ROWS_H
#define SETRANK_LINEAR_FEW_ROWS_H
#include <stdint.h>

enum {
    /** Threads of a block: a warp for each 16 columns. */
    LINEAR_FEW_ROWS_THREADS = 128,
    /** Stages of operands on their way. */
    LINEAR_FEW_ROWS_STAGES = 4,
    /** Layers of whose inputs one launch computes the gradients, at most. */
    LINEAR_INPUT_LAYERS = 16,
};

/** A layer of `linear_input_layers`. */
typedef struct LinearInput {
    /** [outputs / width, rows, width] bf16 */
    const uint16_t *dy;
    /** [outputs, inputs] bf16 */
    const uint16_t *weight;
    /** [rows, inputs] f32: added to. */
    float *dx;
    int32_t rows;
    /** A multiple of 64. */
    int32_t inputs;
    /** A multiple of 64. */
    int32_t outputs;
    /** 32, 64 or outputs. */
    int32_t width;
} LinearInput;

/** Arguments of `linear_input_layers`. */
typedef struct LinearInputLayers {
    /** Of the same sizes, one for each blockIdx.y. */
    LinearInput layers[LINEAR_INPUT_LAYERS];
} LinearInputLayers;

#endif
