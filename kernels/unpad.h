/* Documents of batches in grids, padded or masked (family `unpad`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_UNPAD_H
#define SETRANK_UNPAD_H
#include <stdint.h>

enum {
    /** Threads of a block. */
    UNPAD_THREADS = 256,
    /** Neighbouring cells of a set that a warp looks at; a divisor of 32. */
    UNPAD_CELLS = 8,
};

/** Arguments of `unpad_lengths` and `unpad_mask`. */
typedef struct Unpad {
    /** [sets, n_max, features] f32: in cells that are no documents, anything. */
    const float *grid;
    /** [sets + 1]: where each set's documents begin among all, and the last's end. */
    const int32_t *offsets;
    /** [sets]: documents of each set, which are its first cells; of `unpad_lengths`. */
    const int32_t *lengths;
    /** [sets, ⌈n_max / 32⌉]: bit c of a set's is whether its cell c is a document; of `unpad_mask`. */
    const uint32_t *mask;
    /** [documents, width] bf16 */
    uint16_t *rows;
    int32_t sets;
    int32_t n_max;
    /** F. */
    int32_t features;
    /** A multiple of 64, at least F. */
    int32_t width;
} Unpad;

#endif
