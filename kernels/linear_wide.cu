#include "linear.h"
#include "linear_wide.h"

#include "wide.cuh"

// Linear layers wide enough for large blocks, and many rows of them: forward, and the gradients of input and parameters.
//
//   y = activation(x·Wᵀ + b),   dx = dy·W (+ another gradient; 0 where the ReLU before was),   dW = dyᵀ·x,   db = Σ dy
//
// Shapes      as the kernels of `linear` have them: x, dx [N, in]; W [out, in]; b [out]; y, dy [out / width, N, width]; a part of
//             dW and db for each run of rows, of up to eight layers at once.
// Checked     by the launcher (src/ops/linear/device.rs): columns of y or dx, and outputs of dW, multiples of 256, inputs of dW of
//             128, all else of 64; lengths, no overlap.
// Launch      forward: grid (out / 256 · N / 128), input: grid (in / 256 · N / 128), the columns fastest; weights: grid (Σ parts ·
//             in / 128 · out / 256), the columns fastest and the layers slowest. 256 threads, a warp for each 64 × 64 of a
//             block's results; shared memory: two stages of 64 of the inner dimension, 96 KiB.
// Types       bf16 in and out, parameters' bias and gradients f32, all sums in f32; the last step is rounded once.
// Determinism sums over the inner dimension in order: y and dx have the bits of `linear_forward` and `linear_backward_input`;
//             parts are of a size that depends on the shapes of the launch's layers alone, and `partial_sums` adds them. No
//             atomics.
// Writes      `=`: y, dx and all parts.
// Cost        2·N·in·out FLOPs each; x is read out/256 times and W N/128 times, by way of L2; of the weights' gradients dy is
//             read in/128 times and x out/256 times: half of what blocks of 128 × 64 ask for a product, which these requests
//             bound. A warp has a cycle of shared memory a product, and three eighths of one of what comes in.

namespace {

using namespace wide;

static_assert(LINEAR_WIDE_THREADS == THREADS && LINEAR_WIDE_SHARED_BYTES == SHARED_BYTES);
static_assert(LINEAR_WIDE_ROWS == ROWS && LINEAR_WIDE_COLUMNS == COLUMNS);

} // namespace

extern "C" __global__ void __launch_bounds__(LINEAR_WIDE_THREADS, 1)
    linear_wide_forward(const __grid_constant__ LinearForward p) {
    using Of = Stages<ROWS / 64, LINEAR_WIDE_COLUMNS / 64>;
    const Place place(p.rows, p.outputs);
    const gemm::Matrix<const uint16_t> x{p.x, p.rows, p.inputs}, weight{p.weight, p.outputs, p.inputs};
    Results results;
    gemm::clear(results);
    for_steps(
        p.inputs / gemm::STEP,
        [&](int step) {
            load<1, ROWS>(Of::left(step), x, place.row, step * gemm::STEP, place.valid);
            load<1, LINEAR_WIDE_COLUMNS>(Of::right(step), weight, place.column, step * gemm::STEP, LINEAR_WIDE_COLUMNS);
        },
        [&](int step) {
            const Tile<64> right = gemm::next(Of::right(step), place.warp_column);
            gemm::multiply<false, false>(results, Of::left(step), place.warp_row, right, place.lane);
        });
    gemm::add_bias(results, p.bias + place.column + place.warp_column * WARP_TILE, p.relu != 0, place.lane);
    place.store(results, {p.y, p.rows, p.width});
}

extern "C" __global__ void __launch_bounds__(LINEAR_WIDE_THREADS, 1)
    linear_wide_backward_input(const __grid_constant__ LinearBackwardInput p) {
    using Of = Stages<ROWS / 64, LINEAR_WIDE_COLUMNS / 64>;
    const Place place(p.rows, p.inputs);
    const gemm::Matrix<const uint16_t> dy{p.dy, p.rows, p.width}, weight{p.weight, p.outputs, p.inputs};
    Results results;
    gemm::clear(results);
    for_steps(
        p.outputs / gemm::STEP,
        [&](int step) {
            load<1, ROWS>(Of::left(step), dy, place.row, step * gemm::STEP, place.valid);
            load<LINEAR_WIDE_COLUMNS / 64, 64>(Of::right(step), weight, step * gemm::STEP, place.column, 64);
        },
        [&](int step) {
            const Tile<64> right = gemm::next(Of::right(step), place.warp_column);
            gemm::multiply<false, true>(results, Of::left(step), place.warp_row, right, place.lane);
        });
    ptx::barrier();
    gemm::finish(results, p.added, p.mask, place.tile(), place.warp_row, place.lane, [&](const uint16_t *matrix) {
        const gemm::Matrix<const uint16_t> other{matrix, p.rows, p.inputs};
        load<LINEAR_WIDE_COLUMNS / 64, ROWS>({ptx::shared_base()}, other, place.row, place.column, place.valid);
    });
    place.store(results, {p.dx, p.rows, p.inputs});
}

extern "C" __global__ void __launch_bounds__(LINEAR_WIDE_THREADS, 1)
    linear_wide_weights(const __grid_constant__ LinearBackwardWeights p) {
    constexpr int OUTPUTS = LINEAR_WIDE_OUTPUTS, INPUTS = LINEAR_WIDE_INPUTS, INPUT_WARPS = INPUTS / WARP_TILE;
    static_assert(THREADS / 32 == OUTPUTS / WARP_TILE * INPUT_WARPS);
    using Of = Stages<OUTPUTS / 64, INPUTS / 64>;
    int number = 0;
    for (int i = 1; i < p.count; ++i) number = static_cast<int>(blockIdx.x) >= p.layers[i].first_block ? i : number;
    const LinearWeights &layer = p.layers[number];
    const int columns = layer.inputs / INPUTS, tiles = columns * (layer.outputs / OUTPUTS);
    const int block = blockIdx.x - layer.first_block, tile = block % tiles;
    const int input = tile % columns * INPUTS, output = tile / columns * OUTPUTS;
    const size_t part = block / tiles, outputs = layer.outputs, inputs = layer.inputs;
    const int first = static_cast<int>(part) * layer.rows_of_part, end = min(layer.rows, first + layer.rows_of_part);
    const gemm::Matrix<const uint16_t> dy{layer.dy, layer.rows, layer.width}, x{layer.x, layer.rows, layer.inputs};
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int of_outputs = warp / INPUT_WARPS, of_inputs = warp % INPUT_WARPS;
    const bool sums_bias = input == 0 && of_inputs == 0;
    Results results;
    gemm::clear(results);
    float sums[WARP_TILE / 16][4] = {};
    for_steps(
        (end - first + gemm::STEP - 1) / gemm::STEP,
        [&](int step) {
            const int row = first + step * gemm::STEP;
            load<OUTPUTS / 64, gemm::STEP>(Of::left(step), dy, row, output, end - row);
            load<INPUTS / 64, gemm::STEP>(Of::right(step), x, row, input, end - row);
        },
        [&](int step) {
            const Tile<64> left = gemm::next(Of::left(step), of_outputs);
            gemm::multiply<true, true>(results, left, 0, gemm::next(Of::right(step), of_inputs), lane);
            if (sums_bias) gemm::sum_rows(sums, left, 0, lane);
        });
    const size_t of_warp = output + of_outputs * WARP_TILE;
    float *const d_weight = layer.d_weight + part * outputs * inputs + of_warp * inputs + input + of_inputs * WARP_TILE;
    gemm::store_f32(results, d_weight, inputs, lane);
    if (sums_bias) gemm::store_sums(sums, layer.d_bias + part * outputs + of_warp, lane);
}
