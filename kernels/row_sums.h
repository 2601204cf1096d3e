/* ReLU's backward pass and sums of repeated rows (family `row_sums`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_ROW_SUMS_H
#define SETRANK_ROW_SUMS_H
#include <stdint.h>

enum {
    /** Neighbouring values of a thread: 16 bytes of bf16. */
    ROW_SUMS_VALUES = 8,
    /** Threads of a block of `relu_backward`. */
    ROW_SUMS_RELU_THREADS = 256,
    /** Threads of a block of sums: few, so that short runs still have many blocks. */
    ROW_SUMS_THREADS = 64,
};

/** Arguments of `relu_backward`. */
typedef struct ReluBackward {
    /** [length] bf16: changed in place. */
    uint16_t *dy;
    /** [length] bf16 */
    const uint16_t *y;
    /** A multiple of 8. */
    int64_t length;
} ReluBackward;

/** Arguments of `sum_repeats`; the grid has the groups. */
typedef struct SumRepeats {
    /** [groups, repeats, run] bf16 */
    const uint16_t *x;
    /** [repeats, groups, run] bf16 */
    const uint16_t *y;
    /** [groups, run] bf16: the sums of x. */
    uint16_t *out;
    /** [groups, run] f32: those of y are added to it. */
    float *into;
    /** A multiple of 8. */
    int64_t run;
    int32_t repeats;
    /** Fills the struct. */
    int32_t unused;
} SumRepeats;

#endif
