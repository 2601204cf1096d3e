#include "score_loss.h"

#include "loss.cuh"
#include "score.cuh"

// The score head, the losses of sets and both gradients in one kernel, a block a set.
//
//   s_i = w·x_i + b,   the loss and its gradient ds as `loss` has them,   dx_i = ds_i·w,   dw = Σ ds_i·x_i,   db = Σ ds_i
//
// Shapes      as the kernels of `score` and `loss` have them: x, dx [N, C]; w, dw [C]; s, ds, labels [N]; b, db [1]; losses [B].
//             Gradients of parameters leave a part for each set, 0 for one without documents.
// Checked     by the launcher (src/ops/score_loss/device.rs): C a multiple of 64 up to 512, lengths, offsets, no overlap, and
//             that the longest set fits.
// Launch      grid (B), 256 threads; shared memory: 2, 6 or 4 values for each document of the longest set, or, once the loss is
//             known, 8 sums of C values and 8 of one, whichever is more; and a gradient for each document.
// Types       x and dx bf16, all else and all sums f32.
// Determinism as `score` and `loss`: scores, losses, ds and dx have the bits of the three kernels apart; a part's rows are
//             summed in a warp, then across warps, and parts by `partial_sums`. No atomics.
// Writes      `=`: scores, losses, ds, dx and all parts; ds are multiplied by `scale`, losses are not.
// Cost        4·C + 12 bytes a document; x is asked for twice, the second time of L2, 6·C + 12 in all; of a set 8·4·C bytes of
//             weights and 4·C of a part. Bound by memory. A multiprocessor takes as long as its longest set: the plan
//             (src/ops/score_loss/plan.rs) says where three kernels are quicker.
// Not finite  a loss that is not makes all gradients of its set NaN, and with them dw and db.

namespace {

static_assert(static_cast<int>(SCORE_THREADS) == static_cast<int>(SET_LOSSES_THREADS));

template <class Of> __device__ __forceinline__ void score_losses(const ScoreLosses &p, const Of &of) {
    const int begin = ptx::load_constant(p.offsets + blockIdx.x), end = ptx::load_constant(p.offsets + blockIdx.x + 1);
    const float bias = ptx::load_constant(p.bias);
    const score::Rows rows(p.x, p.weight, p.width, begin, end);
    const loss::Values scores = loss::scores();
    const loss::Values gradients{ptx::shared_base() + static_cast<uint32_t>(p.before_gradients) * 4};
    rows.scores([&](int row, float product) {
        const float score = bias + product;
        scores.set(row - begin, score);
        ptx::store_global(p.scores + row, score);
    });
    ptx::barrier();
    const auto score_of = [&](int i) { return scores.at(i); };
    const auto put = [&](int i, float gradient) {
        const float scaled = p.scale * gradient;
        gradients.set(i, scaled);
        ptx::store_global(p.d_scores + begin + i, scaled);
    };
    const float loss = loss::of_set(end - begin, p.longest, score_of, p.labels + begin, of, put);
    if (threadIdx.x == 0) ptx::store_global(p.losses + blockIdx.x, loss);
    // All gradients are there, and what the loss has kept makes room for sums.
    ptx::barrier();
    const auto d_score_of = [&](int row) { return gradients.at(row - begin); };
    float *d_weight = p.d_weight + static_cast<size_t>(blockIdx.x) * p.width;
    rows.gradients(d_score_of, p.dx, d_weight, p.d_bias + blockIdx.x, scores.begin);
}

} // namespace

#define SETRANK_SCORE_LOSSES(NAME, LOSS)                                                                               \
    extern "C" __global__ void __launch_bounds__(SCORE_THREADS) NAME(const __grid_constant__ ScoreLosses p) {          \
        score_losses(p, [](const loss::Set &set, const auto &put) { return loss::LOSS(set, put); });                   \
    }

SETRANK_SCORE_LOSSES(score_losses_attention_rank, attention_rank)
SETRANK_SCORE_LOSSES(score_losses_softmax_cross_entropy, softmax_cross_entropy)
SETRANK_SCORE_LOSSES(score_losses_lambda_loss, lambda_loss)
SETRANK_SCORE_LOSSES(score_losses_approx_ndcg, approx_ndcg)
