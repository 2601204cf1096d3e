#include "linear.h"

#include "few_rows.cuh"

// A linear layer where blocks of 128 rows would leave most of a card idle, forward and the gradient of its input: of a single
// query's documents or a small batch's, or of the inducing points of all blocks of a model, each with a layer of its own.
//
//   linear_few_rows_{16,32}, linear_few_rows_layers   y = activation(x·Wᵀ + b)
//   linear_few_rows_input_{16,32}                     dx = dy·W (+ another gradient; 0 where the ReLU before was)
//   linear_input_layers                               dx += dy·W
//
// Shapes      x [N, in]; W [out, in]; b [out]; y, dy [out / width, N, width], as `linear_forward` has it; dx, added and mask
//             [N, in], dx of several layers f32; of these all alike.
// Checked     by the launcher (src/ops/linear/device.rs): in and out multiples of 64, lengths, no overlap.
// Launch      grid (columns / 64 · N / ROWS, layers), the columns, out or in, fastest, ROWS 16 or 32; 128 threads, a warp for
//             each 16 of the block's 64 columns. Shared memory: four stages of 64 of the inner dimension, 40 or 48 KiB, of
//             which three are on their way.
// Types       bf16 in and out, bias and dx of several layers f32, all sums in f32; y and dx are rounded once, in the last step.
// Determinism sums over the inner dimension in order: the bits are those of `linear_forward` and `linear_backward_input`; of
//             several layers dx's sum is added to what is there. No atomics.
// Writes      `=`: y, dx; `+=`: dx of several layers.
// Cost        2·N·in·out FLOPs; the rows are read columns/64 times, W N/ROWS times, by way of L2. Bound by latency: that of what
//             finishes dx comes behind the products, though registers would hold it meanwhile; a card is to say what that gives.

namespace {

using few_rows::Place, few_rows::Results, few_rows::pieces;

constexpr int THREADS = few_rows::THREADS, STAGES = LINEAR_FEW_ROWS_STAGES;

// The block's rows of `left` times the columns of W from its own on, or, of forward, of Wᵀ. Afterwards others may still read
// the operands.
template <int ROWS, bool FORWARD>
__device__ __forceinline__ void multiply(Results<ROWS> &results, gemm::Matrix<const uint16_t> left,
                                         gemm::Matrix<const uint16_t> weight, int inner, Place place, int lane) {
    constexpr int LEFT = Tile<64>::bytes(ROWS), STAGE = LEFT + Tile<64>::bytes(gemm::COLUMNS);
    const int steps = inner / gemm::STEP;
    const auto stage = [](int step) { return ptx::shared_base() + step % STAGES * STAGE; };
    const auto fill = [&](int step) {
        if (step < steps) {
            const ptx::Shared to = stage(step);
            const int k = step * gemm::STEP, column = place.column;
            gemm::load<ROWS, THREADS>({to}, left.columns(place.row, k), left.rows - place.row);
            const auto right = FORWARD ? weight.columns(column, k) : weight.columns(k, column);
            gemm::load<gemm::COLUMNS, THREADS>({to + LEFT}, right, gemm::COLUMNS);
        }
        ptx::cp_async_commit();
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) fill(step);
    gemm::clear(results);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ptx::cp_async_wait<STAGES - 2>();
        // This step's copies have landed, and all threads are done with the step that is replaced.
        ptx::barrier();
        fill(step + STAGES - 1);
        const ptx::Shared from = stage(step);
        gemm::multiply<false, !FORWARD>(results, {from}, 0, {from + LEFT}, lane, place.of_warp);
    }
}

template <int ROWS> __device__ __forceinline__ void forward(const LinearForward &p) {
    const auto place = Place::of_block<ROWS>(p.outputs);
    const int lane = threadIdx.x & 31;
    Results<ROWS> results;
    multiply<ROWS, true>(results, {p.x, p.rows, p.inputs}, {p.weight, p.outputs, p.inputs}, p.inputs, place, lane);
    few_rows::finish<ROWS>(results, p.bias, p.relu != 0, {p.y, p.rows, p.width}, place, lane);
}

template <int ROWS> __device__ __forceinline__ void backward_input(const LinearBackwardInput &p) {
    const auto place = Place::of_block<ROWS>(p.inputs);
    const int lane = threadIdx.x & 31, valid = p.rows - place.row;
    Results<ROWS> results;
    multiply<ROWS, false>(results, {p.dy, p.rows, p.width}, {p.weight, p.outputs, p.inputs}, p.outputs, place, lane);
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
        const bool masked = pass != 0;
        const gemm::Matrix<const uint16_t> matrix{masked ? p.mask : p.added, p.rows, p.inputs};
        if (matrix.data != nullptr) gemm::finish_pairs(results, masked, valid, lane, pieces(matrix, place));
    }
    gemm::store_pairs(results, valid, lane, pieces(gemm::Matrix<uint16_t>{p.dx, p.rows, p.inputs}, place));
}

// Adds the block's part of dx.
__device__ __forceinline__ void add_input(const LinearInput &p) {
    constexpr int ROWS = 16;
    const auto place = Place::of_block<ROWS>(p.inputs);
    const int lane = threadIdx.x & 31, valid = p.rows - place.row;
    Results<ROWS> results;
    multiply<ROWS, false>(results, {p.dy, p.rows, p.width}, {p.weight, p.outputs, p.inputs}, p.outputs, place, lane);
    const size_t stride = p.inputs;
    float *const to = p.dx + place.row * stride + place.column + place.of_warp + (lane & 3) * 2;
    // Four lanes have a sector of 32 bytes.
    gemm::for_pairs(results, lane, [&](int at, int d, float low, float high) {
        if (at >= valid) return;
        auto *const pair = reinterpret_cast<float2 *>(to + at * stride + d * 8);
        const auto before = ptx::load_global(pair);
        ptx::store_global(pair, make_float2(before.x + low, before.y + high));
    });
}

} // namespace

#define LINEAR_FEW_ROWS(NAME, ROWS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(LINEAR_FEW_ROWS_THREADS, 4)                                         \
        NAME(const __grid_constant__ LinearForward p) {                                                              \
        forward<ROWS>(p);                                                                                            \
    }
LINEAR_FEW_ROWS(linear_few_rows_16, 16)
LINEAR_FEW_ROWS(linear_few_rows_32, 32)

#define LINEAR_FEW_ROWS_INPUT(NAME, ROWS)                                                                            \
    extern "C" __global__ void __launch_bounds__(LINEAR_FEW_ROWS_THREADS, 4)                                         \
        NAME(const __grid_constant__ LinearBackwardInput p) {                                                        \
        backward_input<ROWS>(p);                                                                                     \
    }
LINEAR_FEW_ROWS_INPUT(linear_few_rows_input_16, 16)
LINEAR_FEW_ROWS_INPUT(linear_few_rows_input_32, 32)

extern "C" __global__ void __launch_bounds__(LINEAR_FEW_ROWS_THREADS, 4)
    linear_few_rows_layers(const __grid_constant__ LinearLayers p) {
    forward<16>(p.layers[blockIdx.y]);
}

extern "C" __global__ void __launch_bounds__(LINEAR_FEW_ROWS_THREADS, 4)
    linear_input_layers(const __grid_constant__ LinearInputLayers p) {
    add_input(p.layers[blockIdx.y]);
}
