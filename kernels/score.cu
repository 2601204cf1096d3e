#include "score.cuh"

// The score of each document, a linear layer with one output, and its gradients.
//
//   s_i = w·x_i + b,   dx_i = ds_i·w,   dw = Σ ds_i·x_i,   db = Σ ds_i
//
// Shapes      x, dx [N, C]; w, dw [C]; s, ds [N]; b, db [1]. Gradients of parameters leave a part for each 128 rows.
// Checked     by the launcher (src/ops/score/device.rs): C a multiple of 64 up to 512, lengths, no overlap.
// Launch      forward: grid (N / 32), no shared memory; backward: grid (N / 128), shared memory: 8 sums of C values and
//             8 of one. 256 threads, a warp a row; a lane has four neighbouring columns of each 128, and loads of four rows
//             are under way at once.
// Types       x and dx bf16, all else and all sums f32.
// Determinism a row's columns are summed in a lane, then across lanes; a part's rows in a warp, then across warps; parts by
//             `partial_sums`. No atomics.
// Writes      `=`: scores, dx and all parts.
// Cost        forward 2·N·C bytes, backward 4·N·C, each once. Bound by memory.

extern "C" __global__ void __launch_bounds__(SCORE_THREADS) score_forward(const __grid_constant__ ScoreForward p) {
    const int first = static_cast<int>(blockIdx.x) * SCORE_ROWS, end = min(p.rows, first + SCORE_ROWS);
    const float bias = ptx::load_constant(p.bias);
    const score::Rows rows(p.x, p.weight, p.width, first, end);
    rows.scores([&](int row, float score) { ptx::store_global(p.scores + row, score + bias); });
}

extern "C" __global__ void __launch_bounds__(SCORE_THREADS) score_backward(const __grid_constant__ ScoreBackward p) {
    const int first = static_cast<int>(blockIdx.x) * SCORE_PART_ROWS, end = min(p.rows, first + SCORE_PART_ROWS);
    const score::Rows rows(p.x, p.weight, p.width, first, end);
    const auto d_score_of = [&](int row) { return ptx::load_constant(p.d_scores + row); };
    float *d_weight = p.d_weight + static_cast<size_t>(blockIdx.x) * p.width;
    rows.gradients(d_score_of, p.dx, d_weight, p.d_bias + blockIdx.x, ptx::shared_base());
}
