/* Sums of parts (family `partial_sums`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_PARTIAL_SUMS_H
#define SETRANK_PARTIAL_SUMS_H
#include <stdint.h>

enum {
    /** Columns of a block: one a lane. */
    PARTIAL_SUMS_COLUMNS = 32,
    /** Warps of a block, at most: each sums every so many-th part. */
    PARTIAL_SUMS_WARPS = 8,
    /** Sums of a launch, at most. */
    PARTIAL_SUMS_AT_ONCE = 32,
};

/** One of the sums of `partial_sums`. */
typedef struct PartialSum {
    /** [count, length] f32 */
    const float *parts;
    /** [length] f32: added to. */
    float *into;
    /** Values of a part. */
    int64_t length;
    /** Parts, at least 1. */
    int32_t count;
    /** Its first blockIdx.x. */
    int32_t first_block;
} PartialSum;

/** Arguments of `partial_sums`. */
typedef struct PartialSums {
    PartialSum sums[PARTIAL_SUMS_AT_ONCE];
    /** Sums, at least 1. */
    int32_t count;
    /** Fills the struct. */
    int32_t unused;
} PartialSums;

#endif
