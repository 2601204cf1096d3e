/* Backward of the row-wise network by matrix instructions of warpgroups (family `feed_forward_backward_sm90`): what nvcc,
   g++ (emulator) and bindgen share, besides feed_forward_backward.h, behind which it comes, and the constants of
   feed_forward_sm90.h. */
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
    /** Tensor map of [P, C] bf16, a projection's, in boxes as fc1's; zeros where there is none. */
    uint64_t projection[16];
    /** All others; its own pointers to weights are not looked at. */
    FeedForwardBackward network;
    /** Fill the struct: tensor maps begin at multiples of 64 bytes. */
    uint8_t unused[64 - sizeof(FeedForwardBackward) % 64];
} __attribute__((aligned(64))) FeedForwardBackwardWgmma;

#endif
