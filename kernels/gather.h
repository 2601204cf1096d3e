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

/** Dropped features: which those of a document are is a function of its row in the data set. */
typedef struct GatherDropout {
    /** A feature is dropped where the 53 bits that it draws are below this. */
    uint64_t threshold;
    /** The generator's key, lower word. */
    uint32_t key_low;
    /** Upper word. */
    uint32_t key_high;
    /** The stream's number: word 1 of the generator's counter; word 0 counts pairs of features, word 2 is the row. */
    uint32_t stream;
    /** Word 3. */
    uint32_t epoch;
    /** F: feature f has column f. */
    int32_t features;
    /** Feature f also has each column that is f + a multiple of F behind this one. */
    int32_t first_within_set;
} GatherDropout;

/** Arguments of `gather_rows` and `gather_rows_dropout`. */
typedef struct GatherRows {
    /** [any, width] bf16 */
    const uint16_t *from;
    /** [rows]: rows of `from` */
    const int32_t *index;
    /** [rows]: rows of the data set; of the kernel with dropout. */
    const int32_t *data_rows;
    /** [rows, width] bf16 */
    uint16_t *to;
    int32_t rows;
    /** A multiple of 64. */
    int32_t width;
    /** Of the kernel with dropout. */
    GatherDropout dropout;
} GatherRows;

#endif
