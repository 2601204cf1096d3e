/* The scores of documents (family `score`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_SCORE_H
#define SETRANK_SCORE_H
#include <stdint.h>

enum {
    /** Threads of a block. */
    SCORE_THREADS = 256,
    /** Rows of a block of the forward kernel. */
    SCORE_ROWS = 32,
    /** Rows of a part: of a block of the backward kernel. */
    SCORE_PART_ROWS = 128,
    /** The widest row. */
    SCORE_MAX_WIDTH = 512,
};

/** Arguments of `score_forward`. */
typedef struct ScoreForward {
    /** [rows, width] bf16 */
    const uint16_t *x;
    /** [width] f32 */
    const float *weight;
    /** [1] f32 */
    const float *bias;
    /** [rows] f32 */
    float *scores;
    int32_t rows;
    /** A multiple of 64, at most 512. */
    int32_t width;
} ScoreForward;

/** Arguments of `score_backward`. */
typedef struct ScoreBackward {
    /** [rows] f32 */
    const float *d_scores;
    /** [rows, width] bf16 */
    const uint16_t *x;
    /** [width] f32 */
    const float *weight;
    /** [rows, width] bf16 */
    uint16_t *dx;
    /** [parts, width] f32 */
    float *d_weight;
    /** [parts] f32 */
    float *d_bias;
    int32_t rows;
    /** A multiple of 64, at most 512. */
    int32_t width;
} ScoreBackward;

#endif
