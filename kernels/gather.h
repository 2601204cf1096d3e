/* Rows of a matrix by their numbers (family `gather`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_GATHER_H
#define SETRANK_GATHER_H
#include <stdint.h>

enum {
    /** Threads of a block. */
    GATHER_THREADS = 256,
    /** Threads that share a row: together they copy 128 bytes at once. */
    GATHER_LANES = 8,
    /** Neighbouring values that a thread copies at once: 16 bytes of bf16. */
    GATHER_VALUES = 8,
};

/** Arguments of `gather_rows`. */
typedef struct GatherRows {
    /** [any, width] bf16 */
    const uint16_t *from;
    /** [rows]: rows of `from` */
    const int32_t *index;
    /** [rows, width] bf16 */
    uint16_t *to;
    int32_t rows;
    /** A multiple of 64. */
    int32_t width;
} GatherRows;

#endif
