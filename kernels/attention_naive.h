/* Attention whose scores and weights go through memory (family `attention_naive`): its constants. Its parameters and tables are
   those of attention.h. */
#ifndef SETRANK_ATTENTION_NAIVE_H
#define SETRANK_ATTENTION_NAIVE_H
#include <stdint.h>

enum {
    /** Query or key rows of a tile. */
    ATTENTION_NAIVE_ROWS = 64,
    /** Threads of a block: a warp for each 16 rows, or for each fourth of them. */
    ATTENTION_NAIVE_THREADS = 128,
    /** Rows of pairs are filled up to a multiple of so many. */
    ATTENTION_NAIVE_UNIT = 8,
};

#endif
