#include "linear.h"
#include "linear_few_rows.h"

#include "gemm.cuh"

// A linear layer's forward where blocks of 128 rows would leave most of a card idle: a single query's documents, or the inducing
// points of all blocks of a model, each with a layer of its own.
//
//   y = activation(x·Wᵀ + b)
//
// Shapes      x [N, in]; W [out, in]; b [out]; y [out / width, N, width], as `linear_forward` has it; of several layers all alike.
// Checked     by the launcher (src/ops/linear/device.rs): in and out multiples of 64, lengths, no overlap.
// Launch      grid (out / 64 · N / ROWS, layers), the columns fastest, ROWS 16 or 32; 128 threads, a warp for each 16 of the
//             block's 64 columns. Shared memory: four stages of 64 of the inner dimension, 40 or 48 KiB, of which three are on their way.
// Types       bf16 in and out, bias f32, all sums in f32; the last step is rounded once.
// Determinism sums over the inner dimension in order: the bits are those of `linear_forward`. No atomics.
// Writes      `=`: y.
// Cost        2·N·in·out FLOPs; x is read out/64 times, W N/ROWS times, by way of L2. Bound by latency.

namespace {

constexpr int THREADS = LINEAR_FEW_ROWS_THREADS, STAGES = LINEAR_FEW_ROWS_STAGES, WARP_COLUMNS = 16;
static_assert(THREADS / 32 * WARP_COLUMNS == gemm::COLUMNS);

template <int ROWS> __device__ __forceinline__ void forward(const LinearForward &p) {
    constexpr int LEFT = Tile<64>::bytes(ROWS), STAGE = LEFT + Tile<64>::bytes(gemm::COLUMNS);
    const int lane = threadIdx.x & 31, of_warp = (threadIdx.x >> 5) * WARP_COLUMNS, block = blockIdx.x;
    const int tiles = p.outputs / gemm::COLUMNS;
    const int row = block / tiles * ROWS, column = block % tiles * gemm::COLUMNS, valid = p.rows - row;
    const gemm::Matrix<const uint16_t> x{p.x, p.rows, p.inputs}, weight{p.weight, p.outputs, p.inputs};
    const int steps = p.inputs / gemm::STEP;
    const auto stage = [](int step) { return ptx::shared_base() + step % STAGES * STAGE; };
    const auto fill = [&](int step) {
        if (step < steps) {
            const ptx::Shared to = stage(step);
            gemm::load<ROWS, THREADS>({to}, x.columns(row, step * gemm::STEP), valid);
            gemm::load<gemm::COLUMNS, THREADS>({to + LEFT}, weight.columns(column, step * gemm::STEP), gemm::COLUMNS);
        }
        ptx::cp_async_commit();
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) fill(step);
    float results[ROWS / 16][WARP_COLUMNS / 8][4];
    gemm::clear(results);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ptx::cp_async_wait<STAGES - 2>();
        // This step's copies have landed, and all threads are done with the step that is replaced.
        ptx::barrier();
        fill(step + STAGES - 1);
        const ptx::Shared from = stage(step);
        gemm::multiply<false, false>(results, {from}, 0, {from + LEFT}, lane, of_warp);
    }
    gemm::add_bias(results, p.bias + column + of_warp, p.relu != 0, lane);
    // All threads are done with the operands, whose place the results take.
    ptx::barrier();
    const Tile<64> tile{ptx::shared_base()};
    gemm::for_pairs(results, lane, [&](int at, int d, float low, float high) {
        ptx::store_shared(tile.at(at, of_warp / 8 + d) + (lane & 3) * 4, ptx::pack_bf16(low, high));
    });
    ptx::barrier();
    const auto to = gemm::Matrix<uint16_t>{p.y, p.rows, p.width}.columns(row, column);
#pragma unroll
    for (int i = 0; i < ROWS * 8; i += THREADS) {
        const int at = i / 8 + threadIdx.x / 8, piece = threadIdx.x % 8;
        if (at < valid) {
            ptx::store_global(reinterpret_cast<uint4 *>(to.at(at, piece)), ptx::load_shared<uint4>(tile.at(at, piece)));
        }
    }
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
