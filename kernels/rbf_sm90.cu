// A wait that ends in words is a call, beside which ptxas puts wgmmas one behind the other.
#undef SETRANK_BOUNDED_WAITS

#include "rbf.h"

#include "rbf_sm90.h"

#include "rbf.cuh"
#include "wide_sm90.cuh"

// The rbf input by matrix instructions of warpgroups (wgmma): activations are made in the registers in which products take them.
//
//   y = activation(φ·Wᵀ + b),   φ[i, f·K + k] = exp(−100·(x[i, f] − μ[f, k])²)
//
// as rbf.cu has it.
//
// Shapes      as there.
// Checked     as there; out a multiple of 256. Plans take it on compute capability 9.0, if asked to.
// Launch      grid (out / 256 · N / 128, and an even number of rows'), the outputs fastest, in clusters of two blocks that have the
//             same outputs and are one behind the other in rows. 384 threads: of one warpgroup a thread loads, two multiply, each
//             64 × 256 of a block's results. Of the weights of each step of 64 columns a block loads a half for both, by tensor
//             copies. Shared memory: four slots for a step's (32 KiB each) and their mbarriers: 128 KiB and 64 bytes. Registers,
//             of 168 at the launch: 24 where it loads, 240 where it multiplies: 128 of results, 32 of φ of two steps, 16 of
//             centres of a third.
// Order       a lane makes the values of φ that it has of the left operand, of two rows and two of each eight columns, while the
//             tensor cores multiply those of the step before. It has the feature of its column, and the next one, whose load is
//             then as old as a feature has columns.
// Types       as there.
// Determinism sums over the inner dimension in order, 16 a step: the bits differ only where a card's wgmma adds otherwise than its
//             mma. No atomics.
// Writes      as there.
// Cost        as there, N·F·K exponentials for each 256 outputs, but that weights come from L2 once for 256 rows; and in shared
//             memory 0.75 cycles a product, of weights alone, where rbf.cu has 1.4: φ never stands there. By the rates of an H100
//             (798e12 FLOP/s, 3.6e12 exponentials/s, a wavefront a cycle and multiprocessor at 1.7 GHz, 5.5e12 B/s of L2) a row of
//             F 201, K 100 and 1024 outputs is to take 52 ns of products, which bound it, 22 of exponentials, 34 of wavefronts, and
//             of requests 29 for weights and 8 for x and centres, of which lanes ask for the same sectors. No card has run it.

namespace rbf::wgmma {
namespace {

using namespace wide::wgmma;

static_assert(RBF_SM90_ROWS == ROWS && RBF_SM90_OUTPUTS == COLUMNS && RBF_SM90_STEP == STEP);
static_assert(RBF_SM90_BLOCKS == BLOCKS && RBF_SM90_THREADS == THREADS);

// The ring has the operand that blocks share alone.
using OfPair = Slots<0>;
static_assert(OfPair::END == RBF_SM90_FORWARD_SHARED_BYTES);

// 64 of the inner dimension of a warp's rows as a left operand, an array for each 16.
using Fragments = uint32_t[STEP / 16][4];

// φ of a warp's 16 rows as a left operand, a step after the other, made by the lanes that hold it: of each eight columns a lane
// has two neighbours, in rows lane / 4 and eight behind it.
class Activations {
  public:
    __device__ __forceinline__ Activations(const Basis &basis, int first_row) : basis(basis), row(first_row + lane() / 4) {
        number = own_column() / basis.per_feature;
        left = (number + 1) * basis.per_feature - own_column();
        load(feature, number);
        load(next, number + 1);
    }

    // Loads the centres of the step that is to be made next.
    __device__ __forceinline__ void load_centers(int step) {
        const int column = step * STEP + own_column();
        if ((step + 1) * STEP <= basis.columns) {
#pragma unroll
            for (int d = 0; d < STEP / 8; ++d) {
                centers[d] = ptx::load_constant(reinterpret_cast<const float2 *>(basis.centers + column + d * 8));
            }
            return;
        }
#pragma unroll
        for (int d = 0; d < STEP / 8; ++d) {
            centers[d] = make_float2(basis.center(column + d * 8), basis.center(column + d * 8 + 1));
        }
    }

    // Makes the next step.
    __device__ __forceinline__ void make(Fragments &to) {
#pragma unroll
        for (int d = 0; d < STEP / 8; ++d) {
            if (d * 8 >= left) go_on(d * 8);
            // The latter column may be the next feature's.
            const bool begins = d * 8 + 1 >= left;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float low = bell(feature[half] - centers[d].x);
                const float high = bell((begins ? next[half] : feature[half]) - centers[d].y);
                to[d / 2][d % 2 * 2 + half] = ptx::pack_bf16(low, high);
            }
        }
        left -= STEP;
    }

  private:
    // The lane's first column of a step.
    static __device__ __forceinline__ int own_column() { return lane() % 4 * 2; }

    // Goes on to the feature of the column that is so far behind the lane's first of the step.
    __device__ __forceinline__ void go_on(int offset) {
#pragma unroll 1
        do {
            left += basis.per_feature;
            ++number;
            feature[0] = next[0];
            feature[1] = next[1];
            load(next, number + 1);
        } while (offset >= left);
    }

    // Loads a feature of the lane's rows; behind the last one nothing is asked of it.
    __device__ __forceinline__ void load(float (&to)[2], int number) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            to[half] = number < basis.stride ? basis.feature(row + half * 8, number) : 0.0f;
        }
    }

    const Basis &basis;
    // The lane's upper row.
    int row;
    // The feature of the column that it is at, and how far behind its first one of the step that of the next feature is.
    int number, left;
    // Of both rows, and the one behind it, which is asked for long before it is needed.
    float feature[2], next[2];
    float2 centers[STEP / 8];
};

// results += φ·right over so many steps: the next step is made while this one is multiplied.
class Products {
  public:
    __device__ __forceinline__ Products(Results &results, Activations &activations, const Operand &right, int steps,
                                        OfPair ring)
        : results(results), activations(activations), right(right), steps(steps), ring(ring) {}

    __device__ __forceinline__ void run() {
        Fragments even, odd;
        activations.load_centers(0);
        activations.make(even);
        if (steps > 1) activations.load_centers(1);
#pragma unroll 1
        for (int step = 0; step < steps; step += 2) {
            multiply(step, even, odd);
            if (step + 1 < steps) multiply(step + 1, odd, even);
        }
    }

  private:
    __device__ __forceinline__ void multiply(int step, Fragments &left, Fragments &next) {
        ring.wait();
        const uint64_t slot = units(ring.offset());
        ptx::wgmma_fence(results[0], left);
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) {
            ptx::wgmma_m64k16_bf16<false>(results[0], left[k], right.at(k, slot), true);
        }
        ptx::wgmma_commit();
        if (step + 1 < steps) {
            activations.make(next);
            if (step + 2 < steps) activations.load_centers(step + 2);
        }
        ptx::wgmma_wait<0>(results[0]);
        ring.release();
        ring.advance();
    }

    Results &results;
    Activations &activations;
    const Operand &right;
    int steps;
    OfPair ring;
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
        [&](const OfPair &ring) {
            Results results;
            gemm::clear(results);
            const rbf::Basis basis = rbf::basis_of(layer);
            Activations activations(basis, place.row + warp_row());
            Products(results, activations, in_rows(0, false), steps, ring).run();
            gemm::add_bias(results, layer.bias + place.column, layer.relu != 0, lane());
            place.begin();
            place.store(results, {layer.y, layer.rows, layer.outputs});
        });
}
