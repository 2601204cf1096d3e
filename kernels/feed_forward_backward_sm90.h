/* Backward of the row-wise network by matrix instructions of warpgroups (family `feed_forward_backward_sm90`): what nvcc,
   g++ (emulator) and bindgen share, besides the constants of feed_forward_sm90.h. */
#ifndef SETRANK_FEED_FORWARD_BACKWARD_SM90_H
#define SETRANK_FEED_FORWARD_BACKWARD_SM90_H
#include <stdint.h>

enum {
    /** Slots for a chunk's weights of one of the layers. */
    FEED_FORWARD_BACKWARD_SM90_SLOTS = 3,
};

/** Arguments of `feed_forward_backward_wgmma_c{C}`. */
typedef struct FeedForwardBackwardWgmma {
    /** Tensor map of [G, C] bf16, fc1's, in boxes of 64 columns and half a chunk's rows. */
    uint64_t weight1[16];
    /** Tensor map of [C, G] bf16, fc2's, in boxes of 64 columns and C / 2 rows. */
    uint64_t weight2[16];
    /** [rows, C] bf16. */
    const uint16_t *x;
    /** [rows, C] bf16: the gradient of fc2's results, and of x by the residual. */
    const uint16_t *dy;
    /** [G] f32. */
    const float *bias1;
    /** [rows, G] bf16: the inner rows. */
    uint16_t *hidden;
    /** [rows, G] bf16: the gradient of what the ReLU took. */
    uint16_t *d_hidden;
    /** [rows, C] bf16. */
    uint16_t *dx;
    int32_t rows;
    /** G. */
    int32_t inner;
    /** Fill the struct: tensor maps begin at multiples of 64 bytes. */
    int32_t unused[2];
} __attribute__((aligned(64))) FeedForwardBackwardWgmma;

#endif
