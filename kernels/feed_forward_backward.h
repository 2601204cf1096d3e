/* Backward of the row-wise network in one kernel (family `feed_forward_backward`): what nvcc, g++ (emulator) and bindgen
 * share. */
#ifndef SETRANK_FEED_FORWARD_BACKWARD_H
#define SETRANK_FEED_FORWARD_BACKWARD_H
#include <stdint.h>

/** A projection of the rows behind the network. */
typedef struct FeedForwardProjected {
    /** [outputs / width, rows, width] bf16: the gradient of its results. */
    const uint16_t *d;
    /** [outputs, C] bf16 */
    const uint16_t *weight;
    /** A multiple of 64, 0 where there is none. */
    int32_t outputs;
    /** 32, 64 or outputs. */
    int32_t width;
} FeedForwardProjected;

/** One of the two LayerNorms. */
typedef struct FeedForwardNorm {
    /** [rows, C] bf16: what it is of. */
    const uint16_t *x;
    /** [period, C] bf16, added to x: row i takes row i % period. */
    const uint16_t *added;
    /** [C] f32: γ. */
    const float *weight;
    /** [rows, 2] f32, of the forward pass: mean, 1/√(variance + eps). */
    const float *statistics;
    /** [2, blocks, C] f32: each block's gradients of γ, then those of β. */
    float *parts;
    /** At most rows; of the LayerNorm behind the network as many. */
    int32_t period;
    /** Fills the struct. */
    int32_t unused;
} FeedForwardNorm;

/** Arguments of `feed_forward_backward_c{C}`. */
typedef struct FeedForwardBackward {
    /** The LayerNorm whose rows the network takes. */
    FeedForwardNorm before;
    /** The one behind it: of fc2's results, to which the network's rows are added. */
    FeedForwardNorm behind;
    /** [G, C] bf16: fc1's. */
    const uint16_t *weight1;
    /** [G] f32: fc1's. */
    const float *bias1;
    /** [C, G] bf16: fc2's. */
    const uint16_t *weight2;
    /** [rows, C] bf16: the gradient of the latter LayerNorm's rows but for what a projection adds, whose place that of x +
     * added of the former takes. */
    uint16_t *d;
    /** [rows, C] bf16: the gradient of fc2's results. */
    uint16_t *dy;
    /** [rows, G] bf16: the inner rows. */
    uint16_t *hidden;
    /** [rows, G] bf16: the gradient of what the ReLU took. */
    uint16_t *d_hidden;
    /** Of the latter LayerNorm's rows: the gradient by way of it is added to d. */
    FeedForwardProjected projected;
    int32_t rows;
    /** G. */
    int32_t inner;
    /** Whether d is given; if not, the gradient is that by way of a projection alone. */
    int32_t given;
    /** Fills the struct. */
    int32_t unused;
} FeedForwardBackward;

#endif
