// A wait that ends in words is a call, beside which ptxas puts wgmmas one behind the other.
#undef SETRANK_BOUNDED_WAITS

#include "rbf.h"

#include "rbf_sm90.h"

#include "rbf_left_sm90.cuh"

// The rbf input by matrix instructions of warpgroups (wgmma): activations are made in the registers where products take them.
//
//   y = activation(φ·Wᵀ + b),   φ[i, f·K + k] = exp(−100·(x[i, f] − μ[f, k])²)
//   dWᵀ = φᵀ·dy,   db = Σ dy,   dμ[f, k] = Σ_i dφ·φ·200·(x[i, f] − μ[f, k]) with dφ = dy·W
//
// as rbf.cu has it.
//
// Shapes      as there.
// Checked     as there; out a multiple of 256. Plans take it on compute capability 9.0, if asked to.
// Launch      in clusters of two blocks that have the same 256 columns of results and share what is multiplied with them:
//             forward grid (out / 256 · N / 128, and an even number of rows'), the outputs fastest; weights (width / 128, and
//             an even number, · out / 256, parts), whose pairs are neighbours along φ's columns and share dy; centres (width /
//             256 · parts, and an even number of these), whose pairs are two parts and share the weight. A block without rows
//             or columns goes along with its pair. 384 threads: of one warpgroup a thread loads, two multiply, each 64 × 256
//             of a block's results. Of what is shared a block loads a half for both in steps of 64 of the inner dimension, by
//             tensor copies. Shared memory: four slots of it (32 KiB each) and their mbarriers, for weights a tile of features
//             to each (16 KiB), for centres dy of the block's own (16 KiB) and its 256 centres: 128, 193 and 193 KiB.
//             Registers, of 168 at the launch: 56 where it loads, 224 where it multiplies, 128 of them results, 32 φ of two
//             steps.
// Order       lanes make the values of φ, or of φᵀ, that they have of the left operand while the tensor cores multiply those
//             of the step before. Forward, a lane has two rows and two of each eight columns: of both rows it has the feature
//             of its column and the next one, whose load is then as old as a feature has columns, and the centres of the step
//             to come. For weights it has two columns and their centres to the end: three warps that do not load gather the
//             features of a block's 128 columns by turns, eight of a document at once, and leave them by feature. The centres'
//             gradient follows each 128 rows of a part: a lane makes φ of its results' places as forward does, and lanes of
//             the same columns share out the sums.
// Types       as there.
// Determinism sums over the inner dimension in order, 16 a step, in parts as there: the bits of y, dW and db differ only where
//             a card's wgmma adds otherwise than its mma; dμ is added by tiles of 128 rows, of a warp's rows in a tree. No
//             atomics.
// Writes      as there.
// Cost        as there, N·F·K exponentials for each 256 outputs of y and dW and once for dμ, but that what is shared comes
//             from L2 once for 256 rows or columns; and in shared memory 0.75 cycles a product forward, of weights alone, 0.88
//             for dW, whose features are read there, and 1.04 for dμ at 1024 outputs, where rbf.cu has 1.4 to 1.5: φ never
//             stands there. By the rates of an H100 (798e12 FLOP/s, 3.6e12 exponentials/s, a wavefront a cycle and
//             multiprocessor at 1.7 GHz, 5.5e12 B/s of L2) a row of F 201, K 100 and 1024 outputs is to take 52 ns of
//             products, which bound forward and dW, 22 of exponentials for each of these, 34, 39 and 47 of wavefronts, and of
//             requests 29 for weights and about 10 for x and centres forward, 34 for dW and 59 for dμ, which they bound. A
//             warpgroup's products of dμ wait for its sums over rows, which is not in these figures; neither is what a
//             feature of few centres costs, each of which is a load that waits for the one before. No card has run it.

namespace rbf::wgmma {
namespace {

static_assert(RBF_SM90_ROWS == ROWS && RBF_SM90_COLUMNS == COLUMNS && RBF_SM90_STEP == STEP);
static_assert(RBF_SM90_BLOCKS == BLOCKS && RBF_SM90_THREADS == THREADS);
static_assert(OfPair::END == RBF_SM90_FORWARD_SHARED_BYTES && OfPair::BARRIER_BYTES == RBF_SM90_BARRIER_BYTES);
static_assert(FEATURES + RBF_SM90_SLOTS * FEATURES_BYTES == RBF_SM90_WEIGHTS_SHARED_BYTES);

// Behind the ring of the centres' gradient: the block's centres.
constexpr int CENTERS = OfBoth::END;
static_assert(CENTERS + COLUMNS * 4 == RBF_SM90_CENTERS_SHARED_BYTES);

// Stores a warp's results, of 16 columns of φ and 256 outputs, where `to` has the first of each output in rows of so many values.
__device__ __forceinline__ void store_turned(const Results &results, float *to, size_t stride) {
#pragma unroll
    for (int d = 0; d < COLUMNS / 8; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int output = d * 8 + Features::own_column() + e % 2, column = e / 2 * 8 + lane() / 4;
            ptx::store_global(to + output * stride + column, results[0][d][e]);
        }
    }
}

// Sums over a warp's rows of each of 256 columns: a lane has four neighbouring pairs of its own of each eight.
class SumsOfColumns {
  public:
    // Adds those of dφ·φ·(x − μ); dφ, which is 0 behind the last row, is used up.
    __device__ __forceinline__ void add(Results &d_phi, Features &features) {
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; ++d) {
            features.enter(d * 8);
            const auto centers = ptx::load_shared<float2>(
                ptx::shared_base() + CENTERS + (d * 8 + Features::own_column()) * 4);
            float low = 0.0f, high = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 distances = features.distances(half, centers);
                low = fmaf(d_phi[0][d][2 * half], bell(distances.x) * distances.x, low);
                high = fmaf(d_phi[0][d][2 * half + 1], bell(distances.y) * distances.y, high);
            }
            d_phi[0][d][0] = low;
            d_phi[0][d][1] = high;
        }
        // Lanes of the same columns share them out: each gives half of what it has to the other, which gives the other half.
        halve<16>(d_phi, 16);
        halve<8>(d_phi, 8);
        halve<4>(d_phi, 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[i][0] += d_phi[0][i][0];
            sums[i][1] += d_phi[0][i][1];
        }
    }

    // Stores them where `to` has the first column's.
    __device__ __forceinline__ void store(ptx::Shared to) const {
        const int first = (lane() >> 4 & 1) * 16 + (lane() >> 3 & 1) * 8 + (lane() >> 2 & 1) * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = (first + i) * 8 + Features::own_column();
            ptx::store_shared(to + column * 4, make_float2(sums[i][0], sums[i][1]));
        }
    }

  private:
    // The lane keeps COUNT pairs, the first ones or those behind them.
    template <int COUNT> static __device__ __forceinline__ void halve(Results &values, int other) {
        const bool latter = lane() & other;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float first = values[0][i][e], second = values[0][i + COUNT][e];
                values[0][i][e] = (latter ? second : first) + ptx::shuffle_xor(latter ? first : second, other);
            }
        }
    }

    float sums[4][2] = {};
};

} // namespace
} // namespace rbf::wgmma

using namespace rbf::wgmma;

extern "C" __global__ void __cluster_dims__(RBF_SM90_BLOCKS) __launch_bounds__(RBF_SM90_THREADS, 1)
    rbf_wgmma_forward(const __grid_constant__ RbfForwardWgmma p) {
    const RbfForward &layer = p.layer;
    const Place place(layer.rows, layer.outputs);
    const int steps = layer.width / STEP;
    run_block<OfPair>(
        steps, [&](const OfPair &ring, int step) { ring.load_right(p.weight, place.panel() * 64, step); },
        [&](OfPair &ring) {
            Results results;
            gemm::clear(results);
            if (multiplier() * GROUP_ROWS < place.valid) {
                const rbf::Basis basis = rbf::basis_of(layer);
                Activations phi(basis, place.row + warp_row(), steps);
                multiply_made<false>(results, phi, in_rows(0, false), steps, ring);
            } else {
                ring.follow(steps);
            }
            gemm::add_bias(results, layer.bias + place.column, layer.relu != 0, lane());
            place.store(results, {layer.y, layer.rows, layer.outputs});
        });
}

extern "C" __global__ void __cluster_dims__(RBF_SM90_BLOCKS) __launch_bounds__(RBF_SM90_THREADS, 1)
    rbf_wgmma_backward_weights(const __grid_constant__ RbfBackwardWeightsWgmma p) {
    const RbfBackwardWeights &layer = p.layer;
    // Pairs are whole, so that the last block of columns may have none.
    const int blocks = (layer.width + BLOCKS * ROWS - 1) / (BLOCKS * ROWS) * BLOCKS, block = blockIdx.x;
    const int column = block % blocks * ROWS, output = block / blocks * COLUMNS;
    const int first = blockIdx.y * layer.rows_of_part, end = min(layer.rows, first + layer.rows_of_part);
    const int steps = (end - first + STEP - 1) / STEP;
    const rbf::Basis basis = rbf::basis_of(layer);
    const FeaturesOfColumns features(basis, column);
    run_block<WithFeatures>(
        steps,
        [&](const WithFeatures &ring, int step) {
            // Rows behind the last are 0; parts end at steps.
            ring.load_right(p.dy, first + step * STEP, output / 64 + ptx::cluster_rank() * (PART / TILE));
        },
        [&](WithFeatures &ring) {
            const int of_warp = column + warp_row();
            if (column + multiplier() * GROUP_ROWS >= layer.width) {
                ring.follow(steps);
                return;
            }
            Results results;
            gemm::clear(results);
            TurnedActivations phi(basis, features, of_warp, column == 0 && multiplier() == 0);
            multiply_made<true>(results, phi, in_columns(0, false), steps, ring);
            const size_t part = blockIdx.y, outputs = layer.outputs, width = layer.width;
            store_turned(results, layer.d_weight + (part * outputs + output) * width + of_warp, width);
            if (!phi.sums_bias) return;
            const int of_sums = output + warp_row() / WARP_ROWS * 64;
            gemm::store_sums(phi.sums, layer.d_bias + part * outputs + of_sums, lane());
        },
        [&](WithFeatures &ring) { features.gather(basis, first, steps, ring); });
}

extern "C" __global__ void __cluster_dims__(RBF_SM90_BLOCKS) __launch_bounds__(RBF_SM90_THREADS, 1)
    rbf_wgmma_backward_centers(const __grid_constant__ RbfBackwardCentersWgmma p) {
    const RbfBackwardCenters &layer = p.layer;
    // A pair has the same columns of two parts, the latter of which may be shorter, or none: its block goes along.
    const int pair = blockIdx.x / BLOCKS, blocks = (layer.width + COLUMNS - 1) / COLUMNS;
    const int column = pair % blocks * COLUMNS, rank = ptx::cluster_rank(), part = pair / blocks * BLOCKS + rank;
    const int first_of_pair = (part - rank) * layer.rows_of_part, first = part * layer.rows_of_part;
    const int valid = min(layer.rows - first, layer.rows_of_part);
    const int tiles = (min(layer.rows - first_of_pair, layer.rows_of_part) + ROWS - 1) / ROWS;
    const int steps = layer.outputs / STEP;
    const rbf::Basis basis = rbf::basis_of(layer);
    // A barrier stands between this and its readers.
    if (threadIdx.x < COLUMNS) {
        ptx::store_shared(ptx::shared_base() + CENTERS + threadIdx.x * 4, basis.center(column + threadIdx.x));
    }
    run_block<OfBoth>(
        tiles * steps,
        [&](const OfBoth &ring, int step) {
            const int outputs = step % steps;
            ring.load_left(p.dy, first + step / steps * ROWS, outputs);
            ring.load_right(p.weight, outputs * STEP, column / 64 + rank * (PART / TILE));
        },
        [&](OfBoth &ring) {
            const Operand dy = in_rows(multiplier() * TILE, false), weight = in_columns(LEFT, false);
            SumsOfColumns sums;
#pragma unroll 1
            for (int tile = 0; tile < tiles; ++tile) {
                if (tile * ROWS + multiplier() * GROUP_ROWS >= valid) {
                    ring.follow(steps);
                    continue;
                }
                const int row = first + tile * ROWS + warp_row();
                Features features(basis, row, column + Features::own_column());
                Results d_phi;
                Sums none;
                gemm::clear(d_phi);
                multiply<false, true, false>(d_phi, none, dy, weight, steps, ring);
                sums.add(d_phi, features);
            }
            // All that multiply are done with the operands, whose place sums of warps take.
            meet();
            const int own = threadIdx.x - GROUP;
            sums.store(ptx::shared_base() + own / 32 * (COLUMNS * 4));
            meet();
            if (first >= layer.rows || column + own >= layer.columns) return;
            float sum = 0.0f;
            for (int warp = 0; warp < WARPS; ++warp) {
                sum += ptx::load_shared<float>(ptx::shared_base() + (warp * COLUMNS + own) * 4);
            }
            const size_t columns = layer.columns;
            ptx::store_global(layer.d_centers + part * columns + column + own, 2.0f * rbf::SHARPNESS * sum);
        });
}
