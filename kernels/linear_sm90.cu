// A wait that ends in words is a call, beside which ptxas puts wgmmas one behind the other.
#undef SETRANK_BOUNDED_WAITS

#include "linear.h"

#include "linear_sm90.h"

#include "ring_sm90.cuh"
#include "warpgroup_sm90.cuh"
#include "weights.cuh"

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
//             mbarriers, a column of ones: 192 KiB and 320 bytes. Registers, of 168 at the launch: 24 where it loads, 240 where
//             it multiplies, 128 of them results.
// Types       as there.
// Determinism sums over the inner dimension in order, 16 a step, in parts as there: the bits differ only where a card's wgmma
//             adds otherwise than its mma. No atomics.
// Writes      as there.
// Cost        as there, but that each operand's bytes come from L2 for 256 rows and for 256 columns: two thirds of what
//             linear_wide.cu asks for a product, and of results' bias four times as much (of 768 outputs of 256 inputs 92 % in
//             all); and in shared memory 1.0 cycles a product, 0.625 of operands and 0.375 of what
//             comes in, 1.1 where each block sums up db, which reads dy again. By the rates of an H100 (798e12 FLOP/s, a
//             wavefront a cycle and multiprocessor at 1.7 GHz, 5.5e12 B/s of L2) the weights' gradients of a block of C = 256,
//             G = 1024 are to take 2.05 ns a row of requests, which bound them, 1.85 of products, 1.73 of wavefronts. No card
//             has run it.

namespace linear::wgmma {
namespace {

using namespace warpgroup;

constexpr int ROWS = LINEAR_SM90_ROWS, COLUMNS = LINEAR_SM90_COLUMNS, STEP = LINEAR_SM90_STEP;
// Warpgroups that multiply, and rows of each and of their warps.
constexpr int MULTIPLIERS = LINEAR_SM90_MULTIPLIERS, GROUP_ROWS = ROWS / MULTIPLIERS;
constexpr int WARPS = MULTIPLIERS * GROUP / 32, WARP_ROWS = ROWS / WARPS;
constexpr int BLOCKS = LINEAR_SM90_BLOCKS;
// Bytes of 64 × 64 of an operand, and of a step's: of the block's own, and of that of its columns, of which it loads a part.
constexpr int TILE = Tile<64>::bytes(64), LEFT = ROWS / 64 * TILE, RIGHT = COLUMNS / 64 * TILE, PART = RIGHT / BLOCKS;
static_assert(GROUP_ROWS == 64 && STEP == 64 && LINEAR_SM90_THREADS == (1 + MULTIPLIERS) * GROUP);

using Slots = Ring<0, LEFT + RIGHT, LINEAR_SM90_SLOTS, BLOCKS, WARPS>;
static_assert(Slots::BARRIER_BYTES == LINEAR_SM90_BARRIER_BYTES);
static_assert(Slots::END + LINEAR_SM90_ONES_BYTES == LINEAR_SM90_SHARED_BYTES);

// A warpgroup's results, of which a warp has 16 rows, and sums over the inner dimension of the left operand's rows, each in all
// of eight columns.
using Results = float[1][COLUMNS / 8][4];
using Sums = float[1][4];

// Where an operand of 16 of the inner dimension stands in the ring's first slot, and how far to the next and to the one behind
// that, in units of a descriptor's address.
struct Operand {
    uint64_t first, next, second;

    __device__ __forceinline__ uint64_t at(int k, uint64_t slot) const {
        return first + slot + k / 2 * second + k % 2 * next;
    }
};

// Of a step's values in rows, from byte `begin` of the slot on: in one tile of 64 of them, or in two of 32 (`narrow`).
__device__ __forceinline__ Operand in_rows(int begin, bool narrow) {
    const ptx::Shared at = ptx::shared_base() + begin;
    if (narrow) return {operand(Tile<32>{at}), units(32), units(Tile<32>::bytes(ROWS))};
    return {operand(Tile<64>{at}), units(32), units(64)};
}

// Of columns in tiles of 64 or of 32 (`narrow`), a step's inner dimension along their 64 rows.
__device__ __forceinline__ Operand in_columns(int begin, bool narrow) {
    const ptx::Shared at = ptx::shared_base() + begin;
    const int bytes = narrow ? Tile<32>::bytes(16) : Tile<64>::bytes(16);
    // From the columns of a tile to those of the next.
    const uint64_t next_tile = units(STEP / 16 * bytes) << 16;
    return {(narrow ? operand(Tile<32>{at}) : operand(Tile<64>{at})) | next_tile, units(bytes), units(2 * bytes)};
}

// A column of ones as eight, behind the ring: a thread writes 16 bytes, which products are to see.
constexpr int ONES = Slots::END;
__device__ __forceinline__ void make_ones(int thread) {
    constexpr uint32_t PAIR = 0x3f803f80;
    if (thread < LINEAR_SM90_ONES_BYTES / 16) {
        ptx::store_shared(ptx::shared_base() + ONES + thread * 16, make_uint4(PAIR, PAIR, PAIR, PAIR));
        ptx::fence_proxy_async();
    }
}

// As an operand: 8 × 8 of them, and behind these the next eight of the inner dimension.
__device__ __forceinline__ uint64_t ones() {
    constexpr uint64_t UNIT = units(128);
    return UNIT << 32 | UNIT << 16 | ((ptx::shared_base() + ONES) & 0x3FFFF) >> 4;
}

// results += left · right over so many steps, each operand in rows or, TURNED, in columns; and, where SUMS, sums of the left one.
template <bool LEFT_TURNED, bool RIGHT_TURNED, bool SUMS>
__device__ __forceinline__ void multiply(Results &results, Sums &sums, const Operand &left, const Operand &right,
                                         int steps, Slots ring) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ring.wait();
        const uint64_t slot = units(ring.offset());
        ptx::wgmma_fence(results[0]);
        if constexpr (SUMS) ptx::wgmma_fence(sums);
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) {
            const uint64_t a = left.at(k, slot), b = right.at(k, slot);
            ptx::wgmma_m64k16_bf16<RIGHT_TURNED, LEFT_TURNED>(results[0], a, b, true);
            if constexpr (SUMS) ptx::wgmma_m64k16_bf16<false, LEFT_TURNED>(sums, a, ones(), true);
        }
        ptx::wgmma_commit();
        // The other warpgroup's products are on their way meanwhile.
        ptx::wgmma_wait<0>(results[0]);
        if constexpr (SUMS) ptx::wgmma_wait<0>(sums);
        ring.release();
        ring.advance();
    }
}

// A block of a cluster: one thread does `load(ring, step)` for each of the steps, the others `multiply(ring)`.
template <class Load, class Multiply>
__device__ __forceinline__ void run_block(int steps, const Load &load, const Multiply &multiply) {
    static_assert(registers_suffice(LINEAR_SM90_LOADER_REGISTERS, MULTIPLIERS, LINEAR_SM90_MULTIPLIER_REGISTERS, 1));
    Slots ring;
    ring.make(threadIdx.x);
    make_ones(threadIdx.x);
    ptx::fence_mbarrier_init();
    ptx::cluster_barrier();
    if (threadIdx.x < GROUP) {
        ptx::registers_decrease<LINEAR_SM90_LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int step = 0; step < steps; ++step) {
                ring.expect();
                load(ring, step);
                ring.advance();
            }
        }
    } else {
        ptx::registers_increase<LINEAR_SM90_MULTIPLIER_REGISTERS>();
        multiply(ring);
    }
    ptx::sync_warp();
    // What the other block tells this one's mbarriers needs them until it is done.
    ptx::cluster_barrier();
}

// A thread loads a box for its own block, and the block's part of the right operand for all of the cluster.
__device__ __forceinline__ void load_left(const Slots &ring, const uint64_t *map, int row, int panel) {
    ptx::tensor_load(ring.at(), map, 0, row, panel, ring.full(), 1 << ptx::cluster_rank());
}
__device__ __forceinline__ void load_right(const Slots &ring, const uint64_t *map, int row, int panel) {
    const ptx::Shared to = ring.at() + LEFT + ptx::cluster_rank() * PART;
    ptx::tensor_load(to, map, 0, row, panel, ring.full(), Slots::ALL_BLOCKS);
}

// Columns of a panel in which a matrix of such panels is loaded.
__device__ __forceinline__ int loaded_width(int width) { return width == 32 ? 32 : 64; }

// A thread's warpgroup among those that multiply, its warp's first row in the block's, and its lane.
__device__ __forceinline__ int multiplier() { return threadIdx.x / GROUP - 1; }
__device__ __forceinline__ int warp_row() { return (threadIdx.x - GROUP) / 32 * WARP_ROWS; }
__device__ __forceinline__ int lane() { return threadIdx.x & 31; }

// Where a block has its rows and columns of results: the columns' blocks are the fastest, pairs of rows' behind them.
struct Place {
    int row, column, valid;

    __device__ __forceinline__ Place(int rows, int columns) {
        const int pair = blockIdx.x / BLOCKS, tiles = columns / COLUMNS;
        row = (pair / tiles * BLOCKS + ptx::cluster_rank()) * ROWS;
        column = pair % tiles * COLUMNS;
        valid = rows - row;
    }

    // The panel of 64 columns that the block's part of the columns' operand begins with.
    __device__ __forceinline__ int panel() const { return (column + ptx::cluster_rank() * (COLUMNS / BLOCKS)) / 64; }

    // Results go by way of the operands' place, where all that multiply are done with it: 64 columns of the block's rows.
    static __device__ __forceinline__ void begin() { ptx::barrier_sync(1, MULTIPLIERS * GROUP); }
    static __device__ __forceinline__ Tile<64> tile(int number) {
        return {ptx::shared_base() + number * Tile<64>::bytes(ROWS)};
    }

    // Calls `each(row, piece, to, columns)` for the pieces of 8 columns of the warp's rows, of which a warp has 32 at a time:
    // where one stands in a tile, and the 64 columns of the matrix that it is of.
    template <class T, class Each>
    __device__ __forceinline__ void for_pieces(const gemm::Matrix<T> &matrix, const Each &each) const {
#pragma unroll
        for (int number = 0; number < COLUMNS / 64; ++number) {
            const gemm::Columns<T> columns = matrix.columns(row, column + number * 64);
#pragma unroll
            for (int i = 0; i < WARP_ROWS; i += 4) {
                const int of_block = warp_row() + i + lane() / 8, piece = lane() % 8;
                each(of_block, piece, tile(number).at(of_block, piece), columns);
            }
        }
    }

    // Where a pair of a fragment's results stands, of the warp's row number `of_warp`.
    static __device__ __forceinline__ ptx::Shared at_pair(int of_warp, int d) {
        return tile(d / 8).at(warp_row() + of_warp, d % 8) + (lane() & 3) * 4;
    }

    // Finishes a gradient as gemm's `finish` does.
    __device__ __forceinline__ void finish(Results &results, const uint16_t *added, const uint16_t *mask, int rows,
                                           int width) const {
#pragma unroll 1
        for (int pass = 0; pass < 2; ++pass) {
            const bool masked = pass != 0;
            const uint16_t *const matrix = masked ? mask : added;
            if (matrix == nullptr) continue;
            for_pieces(gemm::Matrix<const uint16_t>{matrix, rows, width},
                       [&](int of_block, int piece, ptx::Shared to, const gemm::Columns<const uint16_t> &columns) {
                           const bool inside = of_block < valid;
                           const uint16_t *from = inside ? columns.at(of_block, piece) : matrix;
                           ptx::cp_async_16(to, from, inside ? 16 : 0);
                       });
            ptx::cp_async_commit();
            ptx::cp_async_wait<0>();
            ptx::sync_warp();
            gemm::for_pairs(results, lane(), [&](int of_warp, int d, float &low, float &high) {
                gemm::finish_pair(low, high, ptx::load_shared<uint32_t>(at_pair(of_warp, d)), masked);
            });
            // The next matrix takes its place, and results do.
            ptx::sync_warp();
        }
    }

    // Stores the warp's results as bf16.
    __device__ __forceinline__ void store(Results &results, const gemm::Matrix<uint16_t> &to) const {
        gemm::for_pairs(results, lane(), [&](int of_warp, int d, float low, float high) {
            ptx::store_shared(at_pair(of_warp, d), ptx::pack_bf16(low, high));
        });
        ptx::sync_warp();
        for_pieces(to, [&](int of_block, int piece, ptx::Shared from, const gemm::Columns<uint16_t> &columns) {
            if (of_block >= valid) return;
            ptx::store_global(reinterpret_cast<uint4 *>(columns.at(of_block, piece)), ptx::load_shared<uint4>(from));
        });
    }
};

} // namespace
} // namespace linear::wgmma

using namespace linear::wgmma;

extern "C" __global__ void __cluster_dims__(LINEAR_SM90_BLOCKS) __launch_bounds__(LINEAR_SM90_THREADS, 1)
    linear_wgmma_forward(const __grid_constant__ LinearForwardWgmma p) {
    const LinearForward &layer = p.layer;
    const Place place(layer.rows, layer.outputs);
    const int steps = layer.inputs / STEP;
    run_block(
        steps,
        [&](const Slots &ring, int step) {
            load_left(ring, p.x, place.row, step);
            load_right(ring, p.weight, place.panel() * 64, step);
        },
        [&](const Slots &ring) {
            const Operand left = in_rows(multiplier() * TILE, false), right = in_rows(LEFT, false);
            Results results;
            Sums none;
            gemm::clear(results);
            multiply<false, false, false>(results, none, left, right, steps, ring);
            gemm::add_bias(results, layer.bias + place.column, layer.relu != 0, lane());
            place.begin();
            place.store(results, {layer.y, layer.rows, layer.width});
        });
}

extern "C" __global__ void __cluster_dims__(LINEAR_SM90_BLOCKS) __launch_bounds__(LINEAR_SM90_THREADS, 1)
    linear_wgmma_backward_input(const __grid_constant__ LinearBackwardInputWgmma p) {
    const LinearBackwardInput &layer = p.layer;
    const Place place(layer.rows, layer.inputs);
    const int steps = layer.outputs / STEP, width = loaded_width(layer.width);
    run_block(
        steps,
        [&](const Slots &ring, int step) {
            load_left(ring, p.dy, place.row, step * STEP / width);
            load_right(ring, p.weight, step * STEP, place.panel());
        },
        [&](const Slots &ring) {
            const bool narrow = width == 32;
            const int begin = multiplier() * (narrow ? Tile<32>::bytes(GROUP_ROWS) : TILE);
            const Operand left = in_rows(begin, narrow), right = in_columns(LEFT, false);
            Results results;
            Sums none;
            gemm::clear(results);
            multiply<false, true, false>(results, none, left, right, steps, ring);
            place.begin();
            place.finish(results, layer.added, layer.mask, layer.rows, layer.inputs);
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
    run_block(
        steps,
        [&](const Slots &ring, int step) {
            // Rows behind the last are 0; parts end at steps.
            const int row = first + step * STEP;
            load_left(ring, maps.dy, row, output / width);
            load_right(ring, maps.x, row, input / 64 + rank * (PART / TILE));
        },
        [&](const Slots &ring) {
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
