/* Scores, losses and both gradients at once (family `score_loss`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_SCORE_LOSS_H
#define SETRANK_SCORE_LOSS_H
#include <stdint.h>

/** Arguments of the kernels `score_losses_…`. */
typedef struct ScoreLosses {
    /** [N, width] bf16 */
    const uint16_t *x;
    /** [width] f32 */
    const float *weight;
    /** [1] f32 */
    const float *bias;
    /** [N] f32: below 0 for a document that is not judged. */
    const float *labels;
    /** [B + 1]: where the sets begin, and the last ends. */
    const int32_t *offsets;
    /** [N] f32 */
    float *scores;
    /** [B] f32 */
    float *losses;
    /** [N] f32 */
    float *d_scores;
    /** [N, width] bf16 */
    uint16_t *dx;
    /** [B, width] f32 */
    float *d_weight;
    /** [B] f32 */
    float *d_bias;
    /** What gradients are multiplied by. */
    float scale;
    /** Documents of the longest set. */
    int32_t longest;
    /** A multiple of 64, at most 512. */
    int32_t width;
    /** Values of shared memory before the gradients by the scores. */
    int32_t before_gradients;
} ScoreLosses;

#endif
