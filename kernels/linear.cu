#include "linear.h"

#include "weights.cuh"

// Linear layers: forward, and the gradients of input and parameters.
//
//   y = activation(x·Wᵀ + b),   dx = dy·W (+ another gradient; 0 where the ReLU before was),   dW = dyᵀ·x,   db = Σ dy
//
// Shapes      x, dx [N, in]; W [out, in]; b [out]; y, dy [out / width, N, width]: as [N, out] if width is out, or by heads as
//             attention has them, width 32 or 64. Gradients of parameters leave a part for each run of rows.
// Checked     by the launcher (src/ops/linear/device.rs): in and out multiples of 64, lengths, no overlap.
// Launch      forward: grid (out / 64 · N / 128), input: grid (in / 64 · N / 128), the columns fastest; weights, of up to 8
//             layers: grid (Σ parts · in / 64 · out / 128), the columns fastest and the layers slowest. 128 threads, a warp for
//             each 32 rows of the block's 128 × 64 results; shared memory: two stages of 64 of the inner dimension,
//             48 KiB.
// Types       bf16 in and out, parameters' bias and gradients f32, all sums in f32; the last step is rounded once.
// Determinism sums over the inner dimension in order; parts are of a size that depends on the shapes of the launch's layers
//             alone, and `partial_sums` adds them. No atomics.
// Writes      `=`: y, dx and all parts.
// Cost        2·N·in·out FLOPs each; x is read out/64 times, W N/128 times, by way of L2. Bound by memory at widths of 256.

namespace {

constexpr int WARPS = LINEAR_THREADS / 32;
static_assert(LINEAR_ROWS == gemm::ROWS && LINEAR_COLUMNS == gemm::COLUMNS);
static_assert(WARPS * gemm::WARP_ROWS == gemm::ROWS);
static_assert(LINEAR_SHARED_BYTES == 2 * gemm::stage_bytes(WARPS));

using Given = gemm::Matrix<const uint16_t>;
using Taken = gemm::Matrix<uint16_t>;

} // namespace

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS, 3) linear_forward(const __grid_constant__ LinearForward p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = blockIdx.x;
    const int tiles = p.outputs / gemm::COLUMNS;
    const int row = block / tiles * gemm::ROWS, column = block % tiles * gemm::COLUMNS;
    const Given x{p.x, p.rows, p.inputs}, weight{p.weight, p.outputs, p.inputs};
    gemm::Results results;
    gemm::clear(results);
    gemm::for_steps<WARPS>(
        p.inputs / gemm::STEP,
        [&](int step, gemm::Stage stage) {
            gemm::load<gemm::ROWS, LINEAR_THREADS>(stage.left, x.columns(row, step * gemm::STEP), p.rows - row);
            gemm::load<64, LINEAR_THREADS>(stage.right, weight.columns(column, step * gemm::STEP), 64);
        },
        [&](gemm::Stage stage) {
            gemm::multiply<false, false>(results, stage.left, warp * gemm::WARP_ROWS, stage.right, lane);
        });
    gemm::add_bias(results, p.bias + column, p.relu != 0, lane);
    const auto to = Taken{p.y, p.rows, p.width}.columns(row, column);
    gemm::store_pairs(results, to, warp * gemm::WARP_ROWS, p.rows - row, lane);
}

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS, 3)
    linear_backward_input(const __grid_constant__ LinearBackwardInput p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = blockIdx.x;
    const int tiles = p.inputs / gemm::COLUMNS;
    const int row = block / tiles * gemm::ROWS, column = block % tiles * gemm::COLUMNS;
    const int valid = p.rows - row, of_warp = warp * gemm::WARP_ROWS;
    const Given dy{p.dy, p.rows, p.width}, weight{p.weight, p.outputs, p.inputs};
    gemm::Results results;
    gemm::clear(results);
    gemm::for_steps<WARPS>(
        p.outputs / gemm::STEP,
        [&](int step, gemm::Stage stage) {
            gemm::load<gemm::ROWS, LINEAR_THREADS>(stage.left, dy.columns(row, step * gemm::STEP), valid);
            gemm::load<64, LINEAR_THREADS>(stage.right, weight.columns(step * gemm::STEP, column), 64);
        },
        [&](gemm::Stage stage) { gemm::multiply<false, true>(results, stage.left, of_warp, stage.right, lane); });
    // All threads are done with the operands, whose place what finishes the gradient takes.
    ptx::barrier();
    const Tile<64> tile{ptx::shared_base()};
    gemm::finish(results, p.added, p.mask, tile, of_warp, lane, [&](const uint16_t *matrix) {
        const Given other{matrix, p.rows, p.inputs};
        gemm::load<gemm::ROWS, LINEAR_THREADS>(tile, other.columns(row, column), valid);
    });
    gemm::store_pairs(results, Taken{p.dx, p.rows, p.inputs}.columns(row, column), of_warp, valid, lane);
}

extern "C" __global__ void __launch_bounds__(LINEAR_THREADS, 3)
    linear_backward_weights(const __grid_constant__ LinearBackwardWeights p) {
    int number = 0;
    for (int i = 1; i < p.count; ++i) number = static_cast<int>(blockIdx.x) >= p.layers[i].first_block ? i : number;
    const LinearWeights &layer = p.layers[number];
    const int columns = layer.inputs / gemm::COLUMNS, tiles = columns * ((layer.outputs + gemm::ROWS - 1) / gemm::ROWS);
    const int block = blockIdx.x - layer.first_block, tile = block % tiles;
    const int input = tile % columns * gemm::COLUMNS, output = tile / columns * gemm::ROWS;
    const size_t part = block / tiles, outputs = layer.outputs, inputs = layer.inputs;
    const int first = static_cast<int>(part) * layer.rows_of_part, end = min(layer.rows, first + layer.rows_of_part);
    const Given dy{layer.dy, layer.rows, layer.width}, x{layer.x, layer.rows, layer.inputs};
    float *const d_bias = input == 0 ? layer.d_bias + part * outputs : nullptr;
    gemm::weights<LINEAR_THREADS>(dy, layer.outputs, output, first, end, layer.d_weight + part * outputs * inputs + input,
                                  inputs, d_bias, [&](Tile<64> to, int row, int valid) {
                                      gemm::load<64, LINEAR_THREADS>(to, x.columns(row, input), valid);
                                  });
}
