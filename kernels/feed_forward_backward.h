/* Backward of the row-wise network in one kernel (family `feed_forward_backward`): what nvcc, g++ (emulator) and bindgen
 * share. */
#ifndef SETRANK_FEED_FORWARD_BACKWARD_H
#define SETRANK_FEED_FORWARD_BACKWARD_H
#include <stdint.h>

/** Arguments of `feed_forward_backward_c{C}`. */
typedef struct FeedForwardBackward {
    /** [rows, C] bf16. */
    const uint16_t *x;
    /** [rows, C] bf16: the gradient of fc2's results, and of x by the residual. */
    const uint16_t *dy;
    /** [G, C] bf16: fc1's. */
    const uint16_t *weight1;
    /** [G] f32. */
    const float *bias1;
    /** [C, G] bf16: fc2's. */
    const uint16_t *weight2;
    /** [rows, G] bf16: the inner rows. */
    uint16_t *hidden;
    /** [rows, G] bf16: the gradient of what the ReLU took. */
    uint16_t *d_hidden;
    /** [rows, C] bf16. */
    uint16_t *dx;
    int32_t rows;
    /** G. */
    int32_t inner;
} FeedForwardBackward;

#endif
