/* Ordinal embeddings (family `embed`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_EMBED_H
#define SETRANK_EMBED_H
#include <stdint.h>

enum {
    /** Threads of a block. */
    EMBED_THREADS = 256,
    /** Bytes of shared memory of a block that sums: eight f32 a thread. */
    EMBED_SHARED_BYTES = 8192,
};

/** Arguments of `embed_forward`. */
typedef struct EmbedForward {
    /** [rows, width] bf16; may be y. */
    const uint16_t *x;
    /** [rankings, n_max, width] f32 */
    const float *tables;
    /** [rankings, rows]: rows of the tables, or negative */
    const int32_t *ordinals;
    /** [rows, width] bf16 */
    uint16_t *y;
    int32_t rows;
    /** A multiple of 64 up to 512. */
    int32_t width;
    int32_t rankings;
    /** Rows of a table. */
    int32_t n_max;
} EmbedForward;

/** Arguments of `embed_backward`. */
typedef struct EmbedBackward {
    /** [rows, width] bf16 */
    const uint16_t *dy;
    /** [rankings · n_max + 1]: where the documents of each row of each table begin, and the end */
    const int32_t *starts;
    /** [last of starts]: rows of dy, by row of the tables */
    const int32_t *documents;
    /** [rankings, n_max, width] f32: added to. */
    float *d_tables;
    /** A multiple of 64 up to 512. */
    int32_t width;
    /** Fills the struct. */
    int32_t unused;
} EmbedBackward;

#endif
