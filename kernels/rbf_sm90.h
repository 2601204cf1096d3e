/* The rbf input by matrix instructions of warpgroups (family `rbf_sm90`): what nvcc, g++ (emulator) and bindgen share, besides
   rbf.h, behind which it comes. */
#ifndef SETRANK_RBF_SM90_H
#define SETRANK_RBF_SM90_H
#include <stdint.h>

enum {
    /** Rows of a block's results; of the weights' gradient, columns of φ. */
    RBF_SM90_ROWS = 128,
    /** Columns of them: outputs, or, of the centres' gradient, columns of φ. */
    RBF_SM90_COLUMNS = 256,
    /** The inner dimension of a step. */
    RBF_SM90_STEP = 64,
    /** Blocks of a cluster, which have the same columns of results, of whose operand each loads a half for both. */
    RBF_SM90_BLOCKS = 2,
    /** Threads of a block: two warpgroups multiply, 64 rows each, and one loads. */
    RBF_SM90_THREADS = 384,
    /** A step's operands take a slot of shared memory: so many there are. */
    RBF_SM90_SLOTS = 4,
    /** Bytes of a slot's mbarriers. */
    RBF_SM90_BARRIER_BYTES = 16,
    /** Bytes of shared memory of a block of `rbf_wgmma_forward`: slots for the operand that blocks share. */
    RBF_SM90_FORWARD_SHARED_BYTES = RBF_SM90_SLOTS * (RBF_SM90_COLUMNS * RBF_SM90_STEP * 2 + RBF_SM90_BARRIER_BYTES),
    /** The same of the weights' gradient: to a multiple of 1024, and a tile of features for each slot. */
    RBF_SM90_WEIGHTS_SHARED_BYTES = RBF_SM90_FORWARD_SHARED_BYTES / 1024 * 1024 + 1024 +
                                    RBF_SM90_SLOTS * RBF_SM90_ROWS * RBF_SM90_STEP * 2,
    /** And of the centres': slots for both operands, and the block's centres. */
    RBF_SM90_CENTERS_SHARED_BYTES = RBF_SM90_SLOTS * ((RBF_SM90_ROWS + RBF_SM90_COLUMNS) * RBF_SM90_STEP * 2 +
                                                      RBF_SM90_BARRIER_BYTES) + RBF_SM90_COLUMNS * 4,
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

/** Arguments of `rbf_wgmma_backward_weights`. */
typedef struct RbfBackwardWeightsWgmma {
    /** Tensor map of dy, in boxes of two panels of 64 columns and 64 rows. */
    uint64_t dy[16];
    /** All others; its own pointer to dy is not looked at. */
    RbfBackwardWeights layer;
    /** Fill the struct. */
    uint8_t unused[64 - sizeof(RbfBackwardWeights) % 64];
} __attribute__((aligned(64))) RbfBackwardWeightsWgmma;

/** Arguments of `rbf_wgmma_backward_centers`. */
typedef struct RbfBackwardCentersWgmma {
    /** Tensor map of dy, in boxes of 64 columns and 128 rows. */
    uint64_t dy[16];
    /** Tensor map of the weight, in boxes of two panels of 64 columns and 64 rows. */
    uint64_t weight[16];
    /** All others; its own pointers to what has a map are not looked at. */
    RbfBackwardCenters layer;
    /** Fill the struct. */
    uint8_t unused[64 - sizeof(RbfBackwardCenters) % 64];
} __attribute__((aligned(64))) RbfBackwardCentersWgmma;

#endif
