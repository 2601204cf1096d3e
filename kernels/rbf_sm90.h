/* The rbf input by matrix instructions of warpgroups (family `rbf_sm90`): what nvcc, g++ (emulator) and bindgen share, besides
   rbf.h, behind which it comes. */
#ifndef SETRANK_RBF_SM90_H
#define SETRANK_RBF_SM90_H
#include <stdint.h>

enum {
    /** Rows of a block's results. */
    RBF_SM90_ROWS = 128,
    /** Outputs of them. */
    RBF_SM90_OUTPUTS = 256,
    /** The inner dimension of a step. */
    RBF_SM90_STEP = 64,
    /** Blocks of a cluster, which share an operand: each loads a half for both. */
    RBF_SM90_BLOCKS = 2,
    /** Threads of a block: two warpgroups multiply, 64 rows each, and one loads. */
    RBF_SM90_THREADS = 384,
    /** A step's shared operand takes a slot of shared memory: so many there are. */
    RBF_SM90_SLOTS = 4,
    /** Bytes of a slot's mbarriers. */
    RBF_SM90_BARRIER_BYTES = 16,
    /** Bytes of shared memory of a block of `rbf_wgmma_forward`. */
    RBF_SM90_FORWARD_SHARED_BYTES = RBF_SM90_SLOTS * (RBF_SM90_OUTPUTS * RBF_SM90_STEP * 2 + RBF_SM90_BARRIER_BYTES),
};

/** Arguments of `rbf_wgmma_forward`. */
typedef struct RbfForwardWgmma {
    /** Tensor map of the weight, in boxes of 64 columns and 128 rows. */
    uint64_t weight[16];
    /** All others; its own pointer to the weight is not looked at. */
    RbfForward layer;
    /** Fill the struct: tensor maps begin at multiples of 64 bytes. */
    uint8_t unused[64 - sizeof(RbfForward) % 64];
} __attribute__((aligned(64))) RbfForwardWgmma;

#endif
