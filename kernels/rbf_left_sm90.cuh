// φ and φᵀ as left operands of warpgroups: made in registers, a step while the one before is multiplied.
#pragma once

#include "rbf.cuh"
#include "wide_sm90.cuh"

namespace rbf::wgmma {

using namespace wide::wgmma;

// Forward's ring has the operand that blocks share alone.
using OfPair = Slots<0>;

// That of the weights' gradient has features besides, behind it: in rows those of which a block's columns may be, in columns the
// documents of a step, a tile a slot. Warps gather them.
using WithFeatures = Slots<0, 2>;
constexpr int FEATURES = WithFeatures::END / 1024 * 1024 + 1024, FEATURES_BYTES = Tile<64>::bytes(ROWS);

// 64 of the inner dimension of a warp's rows as a left operand, an array for each 16: of each eight a lane has two neighbours, in
// rows lane / 4 and eight behind it.
using Fragments = uint32_t[STEP / 16][4];

// The features of a lane's two rows on its way along the columns, of each eight of which it has two neighbours.
class Features {
  public:
    // From the lane's first column on.
    __device__ __forceinline__ Features(const Basis &basis, int first_row, int column)
        : basis(basis), row(first_row + lane() / 4), number(column / basis.per_feature),
          next_begins((number + 1) * basis.per_feature - column) {
        load(feature, number);
        load(next, number + 1);
    }

    // The lane's first column of eight.
    static __device__ __forceinline__ int own_column() { return lane() % 4 * 2; }

    // Goes on to the pair of columns that is so far behind the first.
    __device__ __forceinline__ void enter(int offset) {
        if (offset >= next_begins) go_on(offset);
        begins = offset + 1 >= next_begins;
    }

    // How far the upper or the lower row's are from the pair's centres.
    __device__ __forceinline__ float2 distances(int half, float2 centers) const {
        // The latter column may be the next feature's.
        return make_float2(feature[half] - centers.x, (begins ? next[half] : feature[half]) - centers.y);
    }

    // Columns are counted from so far behind from now on.
    __device__ __forceinline__ void leave(int columns) { next_begins -= columns; }

  private:
    __device__ __forceinline__ void go_on(int offset) {
#pragma unroll 1
        do {
            next_begins += basis.per_feature;
            ++number;
            feature[0] = next[0];
            feature[1] = next[1];
            load(next, number + 1);
        } while (offset >= next_begins);
    }

    // Behind a row nothing is read.
    __device__ __forceinline__ void load(float (&to)[2], int number) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            to[half] = number < basis.stride ? basis.feature(row + half * 8, number) : 0.0f;
        }
    }

    const Basis &basis;
    // The lane's upper row.
    int row;
    // The feature of the column that it is at, and where the next one's columns begin, counted as offsets are.
    int number, next_begins;
    // Whether the pair's latter column is that of the next feature.
    bool begins;
    // Of both rows, and the one behind it, which is asked for long before it is needed.
    float feature[2], next[2];
};

// φ of a warp's 16 rows as a left operand, a step of 64 columns after the other.
class Activations {
  public:
    __device__ __forceinline__ Activations(const Basis &basis, int first_row, int steps)
        : basis(basis), steps(steps), features(basis, first_row, Features::own_column()) {
        load_centers(0);
    }

    // Makes a step, for which nothing of the ring is needed; steps come in order.
    __device__ __forceinline__ void make(Fragments &to, int step, const OfPair &) {
#pragma unroll
        for (int d = 0; d < STEP / 8; ++d) {
            features.enter(d * 8);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 distances = features.distances(half, centers[d]);
                to[d / 2][d % 2 * 2 + half] = ptx::pack_bf16(bell(distances.x), bell(distances.y));
            }
        }
        features.leave(STEP);
        if (step + 1 < steps) load_centers(step + 1);
    }

    // Nothing else is to be done.
    __device__ __forceinline__ void meanwhile(const OfPair &) const {}

  private:
    __device__ __forceinline__ void load_centers(int step) {
        const int column = step * STEP + Features::own_column();
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

    const Basis &basis;
    int steps;
    Features features;
    // Of the step that is made next.
    float2 centers[STEP / 8];
};

// The features that a block's 128 columns are of, in whole pieces of a row.
struct FeaturesOfColumns {
    int first, pieces;

    __device__ __forceinline__ FeaturesOfColumns(const Basis &basis, int column)
        : first(column / basis.per_feature / PIECE * PIECE), pieces(0) {
        if (column >= basis.columns) return;
        const int last = (min(column + ROWS, basis.columns) - 1) / basis.per_feature;
        pieces = (last - first) / PIECE + 1;
    }

    static __device__ __forceinline__ Tile<64> tile(const WithFeatures &ring) {
        return {ptx::shared_base() + FEATURES + ring.slot * FEATURES_BYTES};
    }

    // Three warps gather them by turns, a step each; a lane has two of its documents.
    __device__ __forceinline__ void gather(const Basis &basis, int first_row, int steps, WithFeatures ring) const {
        constexpr int GATHERERS = GROUP / 32 - 1;
        const int own = threadIdx.x / 32 - 1;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            if (step % GATHERERS == own) {
                ring.wait_for_room();
#pragma unroll 1
                for (int i = 0; i < pieces; ++i) {
                    gather_piece(tile(ring), basis, first_row + step * STEP + lane() * 2, i * PIECE);
                }
                ring.fill();
            }
            ring.advance();
        }
    }

  private:
    // Eight features of two documents, from number `begin` of them on; of those behind the last, zeros.
    __device__ __forceinline__ void gather_piece(Tile<64> to, const Basis &basis, int row, int begin) const {
        uint32_t of_both[2][PIECE / 2] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (row + i >= basis.rows) continue;
            const uint16_t *from = basis.x + static_cast<size_t>(row + i) * basis.stride + first + begin;
            const auto piece = ptx::load_constant(reinterpret_cast<const uint4 *>(from));
            of_both[i][0] = piece.x, of_both[i][1] = piece.y, of_both[i][2] = piece.z, of_both[i][3] = piece.w;
        }
#pragma unroll
        for (int j = 0; j < PIECE; ++j) {
            const uint32_t low = of_both[0][j / 2], high = of_both[1][j / 2];
            const uint32_t pair = j % 2 == 0 ? (low & 0xffff) | high << 16 : low >> 16 | (high & 0xffff0000);
            ptx::store_shared(to.at(begin + j, lane() / 4) + lane() % 4 * 4, pair);
        }
    }
};

// φᵀ of a warp's 16 columns as a left operand, a step of 64 documents after the other, and meanwhile sums of dy.
class TurnedActivations {
  public:
    __device__ __forceinline__ TurnedActivations(const Basis &basis, const FeaturesOfColumns &features, int first_column,
                                                 bool sums_bias)
        : sums_bias(sums_bias) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = first_column + half * 8 + lane() / 4;
            centers[half] = basis.center(column);
            // Behind the last column any will do.
            feature[half] = min(column, basis.columns - 1) / basis.per_feature - features.first;
        }
    }

    // Makes the step of which the ring's slot has the features.
    __device__ __forceinline__ void make(Fragments &to, int, const WithFeatures &ring) const {
        ring.wait();
        const Tile<64> tile = FeaturesOfColumns::tile(ring);
#pragma unroll
        for (int d = 0; d < STEP / 8; ++d) {
            uint32_t x[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (half == 0 || feature[1] != feature[0]) {
                    x[half] = ptx::load_shared<uint32_t>(tile.at(feature[half], d) + lane() % 4 * 4);
                } else {
                    x[half] = x[0];
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float low = bell(bf16_low(x[half]) - centers[half]);
                const float high = bell(bf16_high(x[half]) - centers[half]);
                to[d / 2][d % 2 * 2 + half] = ptx::pack_bf16(low, high);
            }
        }
    }

    // A warp of the first warpgroup sums 64 outputs.
    __device__ __forceinline__ void meanwhile(const WithFeatures &ring) {
        if (!sums_bias) return;
        const Tile<64> tile{ring.at() + warp_row() / WARP_ROWS * TILE};
        gemm::sum_rows(sums, tile, 0, lane());
    }

    bool sums_bias;
    float sums[4][4] = {};

  private:
    // Of the lane's two columns: their centres, and rows of the tile of features.
    float centers[2];
    int feature[2];
};

// product += left·right over so many steps, with the right operand in rows or, TURNED, in columns: while a step is multiplied,
// `left.make(fragments, step, ring)` makes the next one, whose slot the ring is at, and `left.meanwhile(ring)` does whatever else
// this one's slot is needed for.
template <bool TURNED, class Left, class Ring> class Products {
  public:
    __device__ __forceinline__ Products(Results &product, Left &left, const Operand &right, int steps, Ring &ring)
        : product(product), left(left), right(right), steps(steps), ring(ring) {}

    __device__ __forceinline__ void run() {
        Fragments even, odd;
        left.make(even, 0, ring);
#pragma unroll 1
        for (int step = 0; step < steps; step += 2) {
            multiply(step, even, odd);
            if (step + 1 < steps) multiply(step + 1, odd, even);
        }
    }

  private:
    __device__ __forceinline__ void multiply(int step, Fragments &now, Fragments &next) {
        ring.wait();
        ptx::wgmma_fence(product[0], now);
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) {
            ptx::wgmma_m64k16_bf16<TURNED>(product[0], now[k], right.at(k, units(ring.offset())), true);
        }
        ptx::wgmma_commit();
        Ring following = ring;
        following.advance();
        if (step + 1 < steps) left.make(next, step + 1, following);
        left.meanwhile(ring);
        ptx::wgmma_wait<0>(product[0]);
        ring.release();
        ring = following;
    }

    Results &product;
    Left &left;
    const Operand right;
    int steps;
    Ring &ring;
};

template <bool TURNED, class Left, class Ring>
__device__ __forceinline__ void multiply_made(Results &product, Left &left, const Operand &right, int steps, Ring &ring) {
    Products<TURNED, Left, Ring>(product, left, right, steps, ring).run();
}

} // namespace rbf::wgmma
