/* Losses of sets (family `loss`): what nvcc, g++ (emulator) and bindgen share. */
#ifndef SETRANK_LOSS_H
#define SETRANK_LOSS_H
#include <stdint.h>

enum {
    /** Threads of a block, which has a set. */
    SET_LOSSES_THREADS = 256,
    /** Values of shared memory before those of the documents: what warps pass on. */
    SET_LOSSES_SLOTS = 8,
    /** Values of a document in shared memory, for the losses between attentions. */
    SET_LOSSES_OF_ATTENTION = 2,
    /** Values of a document in shared memory, for LambdaLoss. */
    SET_LOSSES_OF_LAMBDA = 6,
    /** Values of a document in shared memory, for ApproxNDCG. */
    SET_LOSSES_OF_NDCG = 4,
};

/** Arguments of the kernels `set_losses_…`. */
typedef struct SetLosses {
    /** [N] f32 */
    const float *scores;
    /** [N] f32: below 0 for a document that is not judged. */
    const float *labels;
    /** [B + 1]: where the sets begin, and the last ends. */
    const int32_t *offsets;
    /** [B] f32 */
    float *losses;
    /** [N] f32 */
    float *d_scores;
    /** What gradients are multiplied by. */
    float scale;
    /** Documents of the longest set. */
    int32_t longest;
} SetLosses;

#endif
