#include "loss.cuh"

// Listwise losses of sets, and their gradients by the scores.
//
//   attention rank          −Σ [y log a + (1 − y) log(1 − a)]   (paper, section 4.4)
//   softmax cross entropy   −Σ y log a
//   LambdaLoss              Σ_{y_i > y_j} (μ·δ_ij + ρ_ij)·|G_i − G_j|·log2(1 + e^{s_j − s_i})
//   ApproxNDCG              1 − Σ G_i / log2(1 + π_i),   π_i = 1 + Σ_{j ≠ i} σ(α(s_j − s_i))
//
//   with a = softmax(s), y the attention that labels give, G the normalised gains; src/ops/loss/ says each in full.
//
// Shapes      scores, labels, d_scores [N]; losses [B]. Documents with a label below 0 are left out: their gradient is 0.
//             A set without a relevant document, and one with a single judged document, has loss and gradient 0. Where a
//             loss is not finite, all of its set's gradient is NaN.
// Checked     by the launcher (src/ops/loss/device.rs): lengths, offsets, no overlap, and that the longest set fits.
// Launch      grid (B), 256 threads; shared memory: 2, 6 or 4 values for each document of the longest set.
// Types       all f32. Where a plain formula would lose digits, logarithms are sums of a series.
// Determinism a thread takes every 256th document and goes through all others in order; a block's sums are those of its
//             warps in order. Ranks are counted: equal scores, and equal labels, in the order of the set. No atomics.
// Writes      `=`: losses and d_scores; d_scores are multiplied by `scale`, losses are not.
// Cost        12 bytes a document. Attention: a few exponentials each; the others: two times n², or once, for a set of n.
//             Bound by arithmetic.

namespace {

template <class Of> __device__ __forceinline__ void set_losses(const SetLosses &p, const Of &of) {
    const int begin = ptx::load_constant(p.offsets + blockIdx.x), end = ptx::load_constant(p.offsets + blockIdx.x + 1);
    const auto score_of = [&](int i) { return ptx::load_constant(p.scores + begin + i); };
    const auto put = [&](int i, float gradient) { ptx::store_global(p.d_scores + begin + i, gradient * p.scale); };
    const float loss = loss::of_set(end - begin, p.longest, score_of, p.labels + begin, of, put);
    if (threadIdx.x == 0) ptx::store_global(p.losses + blockIdx.x, loss);
}

} // namespace

#define SETRANK_SET_LOSSES(NAME, LOSS)                                                                                 \
    extern "C" __global__ void __launch_bounds__(SET_LOSSES_THREADS) NAME(const __grid_constant__ SetLosses p) {       \
        set_losses(p, [](const loss::Set &set, const auto &put) { return loss::LOSS(set, put); });                     \
    }

SETRANK_SET_LOSSES(set_losses_attention_rank, attention_rank)
SETRANK_SET_LOSSES(set_losses_softmax_cross_entropy, softmax_cross_entropy)
SETRANK_SET_LOSSES(set_losses_lambda_loss, lambda_loss)
SETRANK_SET_LOSSES(set_losses_approx_ndcg, approx_ndcg)
