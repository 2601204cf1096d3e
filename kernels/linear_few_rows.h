/* Linear layers of few rows (family `linear_few_rows`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_LINEAR_FEW_ROWS_H
#define SETRANK_LINEAR_FEW_ROWS_H
#include <stdint.h>

enum {
    /** Threads of a block: a warp for each 16 columns. */
    LINEAR_FEW_ROWS_THREADS = 128,
    /** Stages of operands on their way. */
    LINEAR_FEW_ROWS_STAGES = 4,
};

#endif
