/* Wide linear layers of many rows (family `linear_wide`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_LINEAR_WIDE_H
#define SETRANK_LINEAR_WIDE_H
#include <stdint.h>

enum {
    /** Threads of a block: eight warps of 64 × 64 results. */
    LINEAR_WIDE_THREADS = 256,
    /** Rows of a block's results, of forward and the gradient of the input. */
    LINEAR_WIDE_ROWS = 128,
    /** Columns of them. */
    LINEAR_WIDE_COLUMNS = 256,
    /** Outputs of a block's results, of the gradients of parameters. */
    LINEAR_WIDE_OUTPUTS = 256,
    /** Inputs of them. */
    LINEAR_WIDE_INPUTS = 128,
    /** Bytes of shared memory of a block: two stages of both operands. */
    LINEAR_WIDE_SHARED_BYTES = 98304,
};

#endif
