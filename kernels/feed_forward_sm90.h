/* The row-wise network of a block by matrix instructions of warpgroups (family `feed_forward_sm90`): what nvcc, g++
   (emulator) and bindgen share, besides feed_forward.h, behind which it comes. */
#ifndef SETRANK_FEED_FORWARD_SM90_H
#define SETRANK_FEED_FORWARD_SM90_H
#include <stdint.h>

enum {
    /** Rows of a warpgroup. */
    FEED_FORWARD_SM90_ROWS = 64,
    /** Warpgroups of a block that multiply; one more loads weights. */
    FEED_FORWARD_SM90_MULTIPLIERS = 2,
    /** Blocks of a cluster: each loads a half of the weights for both. */
    FEED_FORWARD_SM90_BLOCKS = 2,
    /** Threads of a block. */
    FEED_FORWARD_SM90_THREADS = 384,
    /** Columns of the inner rows that a warpgroup has at a time. */
    FEED_FORWARD_SM90_CHUNK = 64,
    /** A chunk's weights of one of the layers take a slot of shared memory: so many there are. */
    FEED_FORWARD_SM90_SLOTS = 4,
    /** Bytes of a slot's mbarriers. */
    FEED_FORWARD_SM90_BARRIER_BYTES = 16,
    /** Registers of a thread that loads, and of those that multiply: a thread begins with 168. */
    FEED_FORWARD_SM90_LOADER_REGISTERS = 24,
    FEED_FORWARD_SM90_MULTIPLIER_REGISTERS = 240,
};

/** Arguments of `feed_forward_wgmma_c{C}`. */
typedef struct FeedForwardWgmma {
    /** Tensor map of [G, C] bf16, fc1's, in boxes of 64 columns and half a chunk's rows. */
    uint64_t weight1[16];
    /** Tensor map of [C, G] bf16, fc2's, in boxes of 64 columns and C / 2 rows. */
    uint64_t weight2[16];
    /** Tensor map of [P, C] bf16, a projection's, in boxes as fc1's; zeros where there is none. */
    uint64_t projection[16];
    /** All others; its own pointers to weights are not looked at. */
    FeedForward network;
    /** Fill the struct: tensor maps begin at multiples of 64 bytes. */
    uint8_t unused[64 - sizeof(FeedForward) % 64];
} __attribute__((aligned(64))) FeedForwardWgmma;

#endif
