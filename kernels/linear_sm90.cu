// A wait that ends in words is a call, beside which ptxas puts wgmmas one behind the other.
#undef SETRANK_BOUNDED_WAITS

#include "linear.h"

#include "linear_sm90.h"

#include "wide_sm90.cuh"

// Linear layers wide enough for large blocks, and many rows of them, by matrix instructions of warpgroups (wgmma):
//
//   y = activation(x·Wᵀ + b),   dx = dy·W (+ another gradient; 0 where the ReLU before was),   dW = dyᵀ·x,   db = Σ dy
//
// as linear_wide.cu has them.
//
// Shapes      as there.
// Checked     as there; inputs of dW multiples of 256, too. Plans take it on compute capability 9.0, if asked to.
// Launch      grids as there, but in clusters of two blocks that have the same columns of results and are one behind the other
//             in rows: forward and input (columns / 256 · N / 128, and an even number of rows'), weights (Σ parts · out / 128 ·
//             in / 256), the inputs fastest. 384 threads: of one warpgroup a thread loads, two multiply, each 64 × 256 of a
//             block's results; rows behind the last are 0. Of each step of 64 of the inner dimension a block loads its own 128
//             rows', and of the columns' operand a half for both, by tensor copies; operands are read from shared memory as
//             they stand in memory, in rows or in columns. Shared memory: four slots for a step's operands (48 KiB each), their
//             mbarriers, for weights a column of ones: 192 KiB and 64 or 320 bytes. Registers, of 168 at the launch: 56 where
//             it loads, 224 where it multiplies, 128 of them results.
// Types       as there.
// Determinism sums over the inner dimension in order, 16 a step, in parts as there: the bits differ only where a card's wgmma
//             adds otherwise than its mma. No atomics.
// Writes      as there.
// Cost        as there, but that each operand's bytes come from L2 for 256 rows and for 256 columns: two thirds of what
//             linear_wide.cu asks for a product, and of results' bias four times as much (of 768 outputs of 256 inputs 70 % in
//             all); and in shared memory 1.0 cycles a product, 0.625 of operands and 0.375 of what comes in, 1.1 where each
//             block sums up db, which reads dy again. By the rates of an H100 (798e12 FLOP/s, a wavefront a cycle and
//             multiprocessor at 1.7 GHz, 5.5e12 B/s of L2) the weights' gradients of a block of C = 256, G = 1024 and of its
//             projections are to take 2.39 ns a row of bytes, at 3.0e12 B/s, which bound them, 2.05 of requests, 1.85 of
//             products, 1.73 of wavefronts. No card has run it.

namespace linear::wgmma {
namespace {

using namespace wide::wgmma;

static_assert(LINEAR_SM90_ROWS == ROWS && LINEAR_SM90_COLUMNS == COLUMNS && LINEAR_SM90_STEP == STEP);
static_assert(LINEAR_SM90_BLOCKS == BLOCKS && LINEAR_SM90_THREADS == THREADS);
static_assert(OfBoth::BARRIER_BYTES == LINEAR_SM90_BARRIER_BYTES && ONES_BYTES == LINEAR_SM90_ONES_BYTES);
static_assert(OfBoth::END == LINEAR_SM90_SHARED_BYTES);

// Columns of a panel in which a matrix of such panels is loaded.
__device__ __forceinline__ int loaded_width(int width) { return width == 32 ? 32 : 64; }

// What finishes a gradient stands in the operands' place, when all that multiply are done with it: 64 columns of the block's rows.
__device__ __forceinline__ Tile<64> finishing(int number) {
    return {ptx::shared_base() + number * Tile<64>::bytes(ROWS)};
}

// Finishes the warp's results as gemm's `finish` does, by matrices of so many rows and columns.
__device__ __forceinline__ void finish(Results &results, const Place &place, const uint16_t *added, const uint16_t *mask,
                                       int rows, int width) {
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        const bool masked = pass != 0;
        const uint16_t *const matrix = masked ? mask : added;
        if (matrix == nullptr) continue;
#pragma unroll
        for (int number = 0; number < COLUMNS / 64; ++number) {
            const gemm::Matrix<const uint16_t> whole{matrix, rows, width};
            const auto columns = whole.columns(place.row, place.column + number * 64);
#pragma unroll
            for (int i = 0; i < WARP_ROWS; i += 4) {
                const int row = warp_row() + i + lane() / 8, piece = lane() % 8;
                const bool inside = row < place.valid;
                const uint16_t *from = inside ? columns.at(row, piece) : matrix;
                ptx::cp_async_16(finishing(number).at(row, piece), from, inside ? 16 : 0);
            }
        }
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::sync_warp();
        gemm::for_pairs(results, lane(), [&](int row, int d, float &low, float &high) {
            const ptx::Shared pair = finishing(d / 8).at(warp_row() + row, d % 8) + (lane() & 3) * 4;
            gemm::finish_pair(low, high, ptx::load_shared<uint32_t>(pair), masked);
        });
        // The next matrix takes its place.
        ptx::sync_warp();
    }
}

} // namespace
} // namespace linear::wgmma

using namespace linear::wgmma;

extern "C" __global__ void __cluster_dims__(LINEAR_SM90_BLOCKS) __launch_bounds__(LINEAR_SM90_THREADS, 1)
    linear_wgmma_forward(const __grid_constant__ LinearForwardWgmma p) {
    const LinearForward &layer = p.layer;
    const Place place(layer.rows, layer.outputs);
    const int steps = layer.inputs / STEP;
    run_block<OfBoth>(
        steps,
        [&](const OfBoth &ring, int step) {
            ring.load_left(p.x, place.row, step);
            ring.load_right(p.weight, place.panel() * 64, step);
        },
        [&](OfBoth &ring) {
            const Operand left = in_rows(multiplier() * TILE, false), right = in_rows(LEFT, false);
            Results results;
            Sums none;
            gemm::clear(results);
            multiply<false, false, false>(results, none, left, right, steps, ring);
            gemm::add_bias(results, layer.bias + place.column, layer.relu != 0, lane());
            place.store(results, {layer.y, layer.rows, layer.width});
        });
}

extern "C" __global__ void __cluster_dims__(LINEAR_SM90_BLOCKS) __launch_bounds__(LINEAR_SM90_THREADS, 1)
    linear_wgmma_backward_input(const __grid_constant__ LinearBackwardInputWgmma p) {
    const LinearBackwardInput &layer = p.layer;
    const Place place(layer.rows, layer.inputs);
    const int steps = layer.outputs / STEP, width = loaded_width(layer.width);
    run_block<OfBoth>(
        steps,
        [&](const OfBoth &ring, int step) {
            ring.load_left(p.dy, place.row, step * STEP / width);
            ring.load_right(p.weight, step * STEP, place.panel());
        },
        [&](OfBoth &ring) {
            const bool narrow = width == 32;
            const int begin = multiplier() * (narrow ? Tile<32>::bytes(GROUP_ROWS) : TILE);
            const Operand left = in_rows(begin, narrow), right = in_columns(LEFT, false);
            Results results;
            Sums none;
            gemm::clear(results);
            multiply<false, true, false>(results, none, left, right, steps, ring);
            meet();
            finish(results, place, layer.added, layer.mask, layer.rows, layer.inputs);
            place.store(results, {layer.dx, layer.rows, layer.inputs});
        });
}

extern "C" __global__ void __cluster_dims__(LINEAR_SM90_BLOCKS) __launch_bounds__(LINEAR_SM90_THREADS, 1)
    linear_wgmma_weights(const __grid_constant__ LinearBackwardWeightsWgmma p) {
    int number = 0;
    for (int i = 1; i < p.products.count; ++i) {
        number = static_cast<int>(blockIdx.x) >= p.products.layers[i].first_block ? i : number;
    }
    const LinearWeights &layer = p.products.layers[number];
    const LinearWeightsMaps &maps = p.maps[number];
    const int columns = layer.inputs / COLUMNS, tiles = columns * (layer.outputs / ROWS);
    const int block = blockIdx.x - layer.first_block, pair = block % tiles / BLOCKS, rank = ptx::cluster_rank();
    const int input = pair % columns * COLUMNS, output = (pair / columns * BLOCKS + rank) * ROWS;
    const size_t part = block / tiles, outputs = layer.outputs, inputs = layer.inputs;
    const int first = static_cast<int>(part) * layer.rows_of_part, end = min(layer.rows, first + layer.rows_of_part);
    const int steps = (end - first + STEP - 1) / STEP, width = loaded_width(layer.width);
    make_ones(threadIdx.x);
    run_block<OfBoth>(
        steps,
        [&](const OfBoth &ring, int step) {
            // Rows behind the last are 0; parts end at steps.
            const int row = first + step * STEP;
            ring.load_left(maps.dy, row, output / width);
            ring.load_right(maps.x, row, input / 64 + rank * (PART / TILE));
        },
        [&](OfBoth &ring) {
            const Operand left = in_columns(multiplier() * TILE, width == 32), right = in_columns(LEFT, false);
            const bool sums_bias = input == 0;
            Results results;
            Sums sums = {};
            gemm::clear(results);
            if (sums_bias) {
                multiply<true, true, true>(results, sums, left, right, steps, ring);
            } else {
                multiply<true, true, false>(results, sums, left, right, steps, ring);
            }
            const size_t of_warp = output + warp_row();
            gemm::store_f32(results, layer.d_weight + (part * outputs + of_warp) * inputs + input, inputs, lane());
            if (sums_bias) gemm::store_sums(sums, layer.d_bias + part * outputs + of_warp, lane());
        });
}
