#include "linear.h"
#include "linear_few_rows.h"

#include "gemm.cuh"

// A linear layer's forward where blocks of 128 rows would leave most of a card idle: a single query's documents, or the inducing
// points of all blocks of a model, each with a layer of its own. Of these also the gradients of their inputs.
//
//   linear_few_rows_{16,32}, linear_few_rows_layers   y = activation(x·Wᵀ + b)
//   linear_input_layers                               dx += dy·W
//
// Shapes      x [N, in]; W [out, in]; b [out]; y, dy [out / width, N, width], as `linear_forward` has it; dx [N, in] f32; of
//             several layers all alike.
// Checked     by the launcher (src/ops/linear/device.rs): in and out multiples of 64, lengths, no overlap.
// Launch      grid (columns / 64 · N / ROWS, layers), the columns, out or in, fastest, ROWS 16 or 32; 128 threads, a warp for
//             each 16 of the block's 64 columns. Shared memory: four stages of 64 of the inner dimension, 40 or 48 KiB, of
//             which three are on their way.
// Types       bf16 in and out, bias and dx f32, all sums in f32; y is rounded once, in the last step.
// Determinism sums over the inner dimension in order: the bits of y are those of `linear_forward`; dx's sum is added to what is
//             there. No atomics.
// Writes      `=`: y; `+=`: dx.
// Cost        2·N·in·out FLOPs; the rows are read columns/64 times, W N/ROWS times, by way of L2. Bound by latency.

namespace {

constexpr int THREADS = LINEAR_FEW_ROWS_THREADS, STAGES = LINEAR_FEW_ROWS_STAGES, WARP_COLUMNS = 16;
static_assert(THREADS / 32 * WARP_COLUMNS == gemm::COLUMNS);

// Of a warp: ROWS rows, and 16 columns.
template <int ROWS> using Results = float[ROWS / 16][WARP_COLUMNS / 8][4];

// Where the block's results begin, and the first of the warp's 16 of its 64 columns.
struct Place {
    int row, column, of_warp;

    template <int ROWS> static __device__ __forceinline__ Place of_block(int columns) {
        const int block = blockIdx.x, tiles = columns / gemm::COLUMNS, warp = threadIdx.x >> 5;
        return {block / tiles * ROWS, block % tiles * gemm::COLUMNS, warp * WARP_COLUMNS};
    }
};

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
    const int lane = threadIdx.x & 31, valid = p.rows - place.row;
    Results<ROWS> results;
    multiply<ROWS, true>(results, {p.x, p.rows, p.inputs}, {p.weight, p.outputs, p.inputs}, p.inputs, place, lane);
    gemm::add_bias(results, p.bias + place.column + place.of_warp, p.relu != 0, lane);
    const auto to = gemm::Matrix<uint16_t>{p.y, p.rows, p.width}.columns(place.row, place.column);
    gemm::store_pairs(results, valid, lane, [&](int row, int piece) { return to.at(row, place.of_warp / 8 + piece); });
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

extern "C" __global__ void __launch_bounds__(LINEAR_FEW_ROWS_THREADS, 4)
    linear_few_rows_layers(const __grid_constant__ LinearLayers p) {
    forward<16>(p.layers[blockIdx.y]);
}

extern "C" __global__ void __launch_bounds__(LINEAR_FEW_ROWS_THREADS, 4)
    linear_input_layers(const __grid_constant__ LinearInputLayers p) {
    add_input(p.layers[blockIdx.y]);
}
