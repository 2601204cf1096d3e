/* Wide linear layers of many rows by matrix instructions of warpgroups (family `linear_sm90`): what nvcc, g++ (emulator) and
   bindgen share, besides linear.h, behind which it comes. */
#ifndef SETRANK_LINEAR_SM90_H
#define SETRANK_LINEAR_SM90_H
#include <stdint.h>

enum {
    /** Rows of a block's results; of the gradients of parameters, outputs. */
    LINEAR_SM90_ROWS = 128,
    /** Columns of them; of the gradients of parameters, inputs. */
    LINEAR_SM90_COLUMNS = 256,
    /** The inner dimension of a step. */
    LINEAR_SM90_STEP = 64,
    /** Blocks of a cluster: one behind the other in rows, of the same columns, of whose operand each loads a half for both. */
    LINEAR_SM90_BLOCKS = 2,
    /** Threads of a block: two warpgroups multiply, 64 rows each, and one loads. */
    LINEAR_SM90_THREADS = 384,
    /** A step's operands take a slot of shared memory: so many there are. */
    LINEAR_SM90_SLOTS = 4,
    /** Bytes of a slot's mbarriers. */
    LINEAR_SM90_BARRIER_BYTES = 16,
    /** Bytes of a column of ones, by which rows are summed. */
    LINEAR_SM90_ONES_BYTES = 256,
    /** Bytes of shared memory of a block. */
    LINEAR_SM90_SHARED_BYTES = LINEAR_SM90_SLOTS * ((LINEAR_SM90_ROWS + LINEAR_SM90_COLUMNS) * LINEAR_SM90_STEP * 2 +
                                                    LINEAR_SM90_BARRIER_BYTES),
    /** The same of the gradients of parameters. */
    LINEAR_SM90_WEIGHTS_SHARED_BYTES = LINEAR_SM90_SHARED_BYTES + LINEAR_SM90_ONES_BYTES,
};

/** Arguments of `linear_wgmma_forward`. Tensor maps are of bf16, in panels of 64 columns, or of 32 where dy is. */
typedef struct LinearForwardWgmma {
    /** Of x, in boxes of a panel and 128 rows. */
    uint64_t x[16];
    /** Of the weight, in the same. */
    uint64_t weight[16];
    /** All others; its own pointers to what has a map are not looked at. */
    LinearForward layer;
    /** Fill the struct: tensor maps begin at multiples of 64 bytes. */
    uint8_t unused[64 - sizeof(LinearForward) % 64];
} __attribute__((aligned(64))) LinearForwardWgmma;

/** Arguments of `linear_wgmma_backward_input`. */
typedef struct LinearBackwardInputWgmma {
    /** Tensor map of dy, in boxes of 64 columns' panels and 128 rows. */
    uint64_t dy[16];
    /** Tensor map of the weight, in boxes of two panels and 64 rows. */
    uint64_t weight[16];
    /** All others; its own pointers to what has a map are not looked at. */
    LinearBackwardInput layer;
    /** Fill the struct. */
    uint8_t unused[64 - sizeof(LinearBackwardInput) % 64];
} __attribute__((aligned(64))) LinearBackwardInputWgmma;

/** Tensor maps of a layer of `linear_wgmma_weights`. */
typedef struct LinearWeightsMaps {
    /** Of dy, in boxes of 128 columns' panels and 64 rows. */
    uint64_t dy[16];
    /** Of x, in boxes of two panels and 64 rows. */
    uint64_t x[16];
} LinearWeightsMaps;

/** Arguments of `linear_wgmma_weights`. */
typedef struct LinearBackwardWeightsWgmma {
    LinearWeightsMaps maps[LINEAR_LAYERS];
    /** All others; pointers to what has a map are not looked at. */
    LinearBackwardWeights products;
    /** Fill the struct. */
    uint8_t unused[64 - sizeof(LinearBackwardWeights) % 64];
} __attribute__((aligned(64))) LinearBackwardWeightsWgmma;

#endif
