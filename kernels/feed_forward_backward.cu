#include "feed_forward_backward.h"

#include "feed_forward.cuh"

// Backward of the row-wise network of a block, of the LayerNorm behind it and of the one before it, but for the gradients of
// the network's parameters, for which it leaves the inner rows, their gradient and dy, each written once; in front of it, of
// a projection of the rows behind, if there is one, which the next block's attention reads.
//
//   d = d + dp·weight,   dy = LayerNorm₂'(d),
//   h = ReLU(fc1(x)),   dh = dy·weight2 where h > 0, else 0,   d = LayerNorm₁'(dh·weight1 + dy)
//
// Shapes      dp [P / width, rows, width] and weight [P, C] of a projection to P columns; d, dy, and x and what is added to
//             it of both LayerNorms [rows, C], of the former's [period, C]; statistics [rows, 2]; γ [C]; parts [2, blocks,
//             C]; weight1 [G, C], bias1 [G]; weight2 [C, G]; hidden (h), d_hidden (dh) [rows, G]. The network's x is what
//             the latter LayerNorm adds.
// Checked     by the launcher (src/ops/feed_forward/device.rs): C 64, 128, 192 or 256, G and P multiples of 64, width 32, 64
//             or P, a projection where d is not given, lengths, no overlap.
// Launch      grid (⌈rows / R⌉), R = 128, or 32 where rows are few; 256 threads, 2 × 4 warps of R/2 rows and C/4 columns,
//             or 32 of a chunk of the inner rows; a warp a row of LayerNorm. Shared memory: x and dy (2·R·C bytes each), 128
//             columns of the inner rows (256·R bytes), two stages of weights (32 KiB each, 16 at C = 64): 224 KiB at C = 256,
//             which a card of compute capability 9.0 has, and 104 of 32 rows. LayerNorm's other operand, and its sums, stand
//             where inner rows and weights do not yet, or no longer; before them the projection's operands do, two stages of
//             64 of the inner dimension, while x and d come in.
// Types       bf16 in and out; d with the projection's part, h, dh, dy, and the gradient of x are rounded to bf16, as apart
//             kernels round them; all sums, and parts, in f32.
// Determinism sums over inner dimensions in order, as `linear_forward` and `linear_backward_input` have them, and over rows
//             of LayerNorm as `layer_norm_backward` has them: all rows have the same bits as theirs, and in any batch. A
//             part sums its rows in a fixed order. No atomics.
// Writes      `=`: hidden, d_hidden, dy, d, and parts, which `partial_sums` adds to the gradients.
// Cost        6·rows·C·G FLOPs, and 2·rows·C·P to project; 14·C + 4·G + 2·P bytes a row, where six kernels have 28·C + 8·G
//             + 2·P; 16·C / R of parts; the weights of fc1 twice, of fc2 and the projection once for R rows, by way of L2,
//             whose requests bound it where C·G is of full size (docs/fusion.md); 1.9 cycles of shared memory a product at C
//             256 (counters.txt), a quarter of one of weights on their way in. Of 32 rows these bound it, 4.2 of them, on as
//             many multiprocessors as there are blocks.

namespace feed_forward {
namespace {

// What a block has in shared memory.
template <int C, int ROWS> struct Place {
    static constexpr int X = 0, DY = C / 64 * TILE<ROWS>, INNER = 2 * DY, STAGES = INNER + 2 * TILE<ROWS>;
    // LayerNorm's other operand, and then its sums; they end before the stage of the first weights.
    static constexpr int OTHER = INNER, SUMS_BYTES = THREADS / 32 * 2 * C * 4;
    static_assert(OTHER + C / 64 * TILE<ROWS> <= STAGES + STAGE<C> && OTHER + SUMS_BYTES <= STAGES + STAGE<C>);
};

// The weights of all steps, on their way through two stages: for each chunk of the inner rows those of fc1, 128 columns of C
// a step; those of fc2, 128 of C a step; and those of fc1 again, 64 of the chunk a step.
template <int C, int ROWS> struct Weights {
    static constexpr int OF_C = (C + 127) / 128, STEPS = 2 * OF_C + CHUNK / 64;
    // Rows of fc2's weights in a step.
    static constexpr int ROWS2 = C < 128 ? C : 128;

    const FeedForwardBackward &p;
    int step, steps;

    __device__ __forceinline__ explicit Weights(const FeedForwardBackward &p)
        : p(p), step(0), steps(p.inner / CHUNK * STEPS + (p.inner % CHUNK != 0 ? 2 * OF_C + 1 : 0)) {}

    // Queues the copies of step number `number`.
    __device__ __forceinline__ void load(int number) const {
        if (number < steps) {
            const int first = number / STEPS * CHUNK, of_chunk = number % STEPS;
            const ptx::Shared begin = stage(number).begin;
            if (of_chunk < OF_C) {
                load_weight1<C>({begin}, p.weight1, p.inner, first, of_chunk);
            } else if (of_chunk < 2 * OF_C) {
                const gemm::Matrix<const uint16_t> weight{p.weight2, C, p.inner};
                const int row = (of_chunk - OF_C) * 128;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = first + half * 64;
                    if (column >= p.inner) continue;
                    gemm::load<ROWS2, THREADS>(of_columns(begin, half), weight.columns(row, column), C - row);
                }
            } else {
                const gemm::Matrix<const uint16_t> weight{p.weight1, p.inner, C};
                const int row = first + (of_chunk - 2 * OF_C) * 64;
#pragma unroll
                for (int k = 0; k < C / 64; ++k) {
                    gemm::load<64, THREADS>(gemm::next({begin}, k), weight.columns(row, k * 64), 64);
                }
            }
        }
        ptx::cp_async_commit();
    }

    // Where those of step number `number` stand, and of fc2's those of a half of the chunk's columns.
    __device__ __forceinline__ Tile<64> stage(int number) const {
        return {ptx::shared_base() + Place<C, ROWS>::STAGES + (number + 1) % 2 * STAGE<C>};
    }
    static __device__ __forceinline__ Tile<64> of_columns(ptx::Shared begin, int half) {
        return {begin + half * Tile<64>::bytes(ROWS2)};
    }
};

// The operands of the gradient by way of a projection, 64 of its columns a step: the rows of their gradient, and C columns of
// the weight behind them, through two stages in the place of inner rows and weights. With them come d and what the LayerNorm
// behind the network adds.
template <int C, int ROWS> struct Projected {
    using Of = Place<C, ROWS>;
    static constexpr int BYTES = TILE<ROWS> + Tile<64>::bytes(C);
    static_assert(Of::INNER + 2 * BYTES <= Of::STAGES + 2 * STAGE<C>);

    const FeedForwardBackward &p;
    int first, step, steps;

    __device__ __forceinline__ Projected(const FeedForwardBackward &p, int first)
        : p(p), first(first), step(0), steps(p.projected.outputs / gemm::STEP) {}

    // Queues the copies of a step.
    __device__ __forceinline__ void load(int of_step) const {
        if (of_step < steps) {
            const gemm::Matrix<const uint16_t> d{p.projected.d, p.rows, p.projected.width};
            const gemm::Matrix<const uint16_t> weight{p.projected.weight, p.projected.outputs, C};
            const int column = of_step * gemm::STEP, valid = p.rows - first;
            const Tile<64> left = stage(of_step);
            gemm::load<ROWS, THREADS>(left, d.columns(first, column), valid);
#pragma unroll
            for (int k = 0; k < C / 64; ++k) {
                gemm::load<64, THREADS>(gemm::next(right(left), k), weight.columns(column, k * 64), 64);
            }
#pragma unroll 1
            for (int k = of_step; k < C / 64; k += steps) {
                const gemm::Matrix<const uint16_t> added{p.behind.added, p.rows, C}, given{p.d, p.rows, C};
                const int of_given = p.given != 0 ? valid : 0;
                gemm::load<ROWS, THREADS>(tile<ROWS>(Of::X, k), added.columns(first, k * 64), valid);
                gemm::load<ROWS, THREADS>(tile<ROWS>(Of::DY, k), given.columns(first, k * 64), of_given);
            }
        }
        ptx::cp_async_commit();
    }

    // Where the gradient's rows of a step stand, and the weight behind them.
    __device__ __forceinline__ Tile<64> stage(int of_step) const {
        return {ptx::shared_base() + Of::INNER + of_step % 2 * BYTES};
    }
    static __device__ __forceinline__ Tile<64> right(Tile<64> left) { return {left.begin + TILE<ROWS>}; }
};

// A warp's rows, from `row` on, and 32 columns of a chunk, number `number` of four, in the tiles of the inner rows.
template <int ROWS> struct OfWarp {
    Tile<64> tile;
    int row, piece, lane;

    __device__ __forceinline__ OfWarp(int place, int row, int number, int lane)
        : tile(feed_forward::tile<ROWS>(place, number / 2)), row(row), piece(number % 2 * 4), lane(lane) {}

    // Puts a lane's pair there, as `gemm::for_pairs` counts it.
    __device__ __forceinline__ void put(int at, int d, uint32_t pair) const {
        ptx::store_shared(tile.at(row + at, piece + d) + (lane & 3) * 4, pair);
    }

    // Copies the first `valid` of the block's rows to rows of `stride` values, of which `to` is the block's first.
    __device__ __forceinline__ void store(uint16_t *to, int stride, int valid) const {
        ptx::sync_warp();
#pragma unroll
        for (int i = 0; i < WARP_ROWS<ROWS> / 8; ++i) {
            // Of eight lanes' two rows one is in the upper half of eight: their pieces lie in different banks.
            const int at = row + i * 8 + (lane >> 2 & 1) * 4 + (lane >> 3);
            if (at < valid) {
                const auto value = ptx::load_shared<uint4>(tile.at(at, piece + (lane & 3)));
                const size_t from_first = static_cast<size_t>(at) * stride + (lane & 3) * 8;
                ptx::store_global(reinterpret_cast<uint4 *>(to + from_first), value);
            }
        }
        // What is put there next takes its place.
        ptx::sync_warp();
    }
};

// Adds a warp's results, C/4 columns from `column` on of rows from `row` on, to the rows that stand in tiles from DY on.
template <int C, int ROWS, int M, int N>
__device__ __forceinline__ void add_to_rows(float (&results)[M][N][4], int row, int column, int lane) {
    gemm::for_pairs(results, lane, [&](int at, int d, float low, float high) {
        const int piece = column / 8 + d;
        const Tile<64> dy = tile<ROWS>(Place<C, ROWS>::DY, piece / 8);
        const ptx::Shared place = dy.at(row + at, piece % 8) + (lane & 3) * 4;
        const auto other = ptx::load_shared<uint32_t>(place);
        // A lane's pairs take the place of those that it has read.
        ptx::store_shared(place, ptx::pack_bf16(low + bf16_low(other), high + bf16_high(other)));
    });
}

// LayerNorm's backward of the block's rows, in place: their gradients stand in tiles from DY on, what they are of in those from
// X and OTHER on. They are stored to `to` besides. All copies have landed, for all threads.
template <int C, int ROWS>
__device__ __forceinline__ void norm_backward(const FeedForwardNorm &p, uint16_t *to, int first, int valid, int lane,
                                              int warp) {
    const bool inside = lane < C / 8;
    WarpSum sum;
    layer_norm::Columns<1> own{};
    if (inside) load_piece(own.weight[0], p.weight + lane * PIECE);
#pragma unroll 1
    for (int row = warp; row < min(valid, ROWS); row += THREADS / 32) {
        const auto statistics = ptx::load_constant(reinterpret_cast<const float2 *>(p.statistics) + first + row);
        layer_norm::Values<1> value{}, d{};
        if (inside) {
            load_sum<ROWS>(value[0], Place<C, ROWS>::X, Place<C, ROWS>::OTHER, row, lane);
            unpack(d[0], ptx::load_shared<uint4>(piece<ROWS>(Place<C, ROWS>::DY, row, lane)));
        }
        own.backward(d, value, statistics, 1.0f / C, sum);
        if (inside) {
            const uint4 packed = pack(d[0]);
            ptx::store_shared(piece<ROWS>(Place<C, ROWS>::DY, row, lane), packed);
            ptx::store_global(reinterpret_cast<uint4 *>(to + static_cast<size_t>(first + row) * C) + lane, packed);
        }
    }
    // Sums take the place of what others may still read.
    ptx::barrier();
    const ptx::Shared sums = ptx::shared_base() + Place<C, ROWS>::OTHER;
    if (inside) own.put(sums + warp * 8 * C, 0, lane * PIECE, C);
    ptx::barrier();
    layer_norm::store_sums<THREADS>(p.parts, sums, THREADS / 32, C);
}

template <int C, int ROWS> __device__ __forceinline__ void backward(const FeedForwardBackward &p) {
    using At = Place<C, ROWS>;
    constexpr int N = C / COLUMN_WARPS / 8;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = warp / COLUMN_WARPS * WARP_ROWS<ROWS>, column_warp = warp % COLUMN_WARPS;
    const int first = blockIdx.x * ROWS, valid = p.rows - first;

    const int column = column_warp * (C / 4);
    float results[WARP_ROWS<ROWS> / 16][N][4];

    if (p.projected.outputs == 0) {
        load_rows<C, ROWS>(At::X, p.behind.added, p.rows, first);
        load_rows<C, ROWS>(At::DY, p.d, p.rows, first);
        load_rows<C, ROWS>(At::OTHER, p.behind.x, p.rows, first);
    } else {
        Projected<C, ROWS> projected(p, first);
        projected.load(0);
        gemm::clear(results);
#pragma unroll 1
        while (projected.step < projected.steps) {
            const Tile<64> left = next(projected);
            gemm::multiply<false, true>(results, left, row, projected.right(left), lane, column);
        }
        // All threads are done with the operands.
        ptx::barrier();
        load_rows<C, ROWS>(At::OTHER, p.behind.x, p.rows, first);
        add_to_rows<C, ROWS>(results, row, column, lane);
    }
    ptx::cp_async_commit();
    Weights<C, ROWS> weights(p);
    weights.load(0);
    ptx::cp_async_wait<1>();
    ptx::barrier();
    norm_backward<C, ROWS>(p.behind, p.dy, first, valid, lane, warp);

    const size_t inner_rows = static_cast<size_t>(first) * p.inner + column_warp * 32;
    gemm::clear(results);
#pragma unroll 1
    for (int chunk = 0; chunk < p.inner; chunk += CHUNK) {
        const OfWarp<ROWS> own(At::INNER, row, column_warp, lane);
        // Of the last chunk the latter half may be none.
        const bool busy = chunk + column_warp * 32 < p.inner;
        Inner<ROWS> inner;
        multiply_inner<C, ROWS>(inner, At::X, weights, row, column_warp * 32, lane);
        // Where h is above 0: a bit for the first of each pair, and for the second.
        uint32_t above[2] = {};
        if (busy) {
            gemm::add_bias(inner, p.bias1 + chunk + column_warp * 32, true, lane);
            int number = 0;
            gemm::for_pairs(inner, lane, [&](int at, int d, float low, float high) {
                const uint32_t pair = ptx::pack_bf16(low, high);
                above[0] |= (bf16_low(pair) > 0.0f ? 1u : 0u) << number;
                above[1] |= (bf16_high(pair) > 0.0f ? 1u : 0u) << number;
                ++number;
                own.put(at, d, pair);
            });
            own.store(p.hidden + inner_rows + chunk, p.inner, valid);
        }

        gemm::clear(inner);
#pragma unroll 1
        for (int k = 0; k < C / 64; k += 2) {
            const Tile<64> half = weights.of_columns(next(weights).begin, column_warp / 2);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (k + i >= C / 64 || !busy) continue;
                gemm::multiply<false, true>(inner, tile<ROWS>(At::DY, k + i), row, gemm::next(half, i), lane,
                                            column_warp % 2 * 32);
            }
        }
        if (busy) {
            int number = 0;
            gemm::for_pairs(inner, lane, [&](int at, int d, float low, float high) {
                own.put(at, d, ptx::pack_bf16((above[0] >> number & 1) != 0 ? low : 0.0f,
                                              (above[1] >> number & 1) != 0 ? high : 0.0f));
                ++number;
            });
            own.store(p.d_hidden + inner_rows + chunk, p.inner, valid);
        }

        const int steps = min(p.inner - chunk, CHUNK) / 64;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const Tile<64> stage = next(weights);
            gemm::multiply<false, true>(results, tile<ROWS>(At::INNER, step), row, stage, lane, column);
        }
    }

    // All threads are done with inner rows and weights.
    ptx::barrier();
    load_rows<C, ROWS>(At::X, p.before.x, p.rows, first);
    load_repeated<C, ROWS>(At::OTHER, p.before.added, first, p.before.period, valid);
    ptx::cp_async_commit();
    add_to_rows<C, ROWS>(results, row, column, lane);
    ptx::cp_async_wait<0>();
    ptx::barrier();
    norm_backward<C, ROWS>(p.before, p.d, first, valid, lane, warp);
}

} // namespace
} // namespace feed_forward

#define FEED_FORWARD_BACKWARD(NAME, C, ROWS)                                                                         \
    extern "C" __global__ void __launch_bounds__(FEED_FORWARD_THREADS, 1)                                            \
        NAME(const __grid_constant__ FeedForwardBackward p) {                                                        \
        feed_forward::backward<C, ROWS>(p);                                                                          \
    }
FEED_FORWARD_BACKWARD(feed_forward_backward_c64, 64, FEED_FORWARD_ROWS)
FEED_FORWARD_BACKWARD(feed_forward_backward_c128, 128, FEED_FORWARD_ROWS)
FEED_FORWARD_BACKWARD(feed_forward_backward_c192, 192, FEED_FORWARD_ROWS)
FEED_FORWARD_BACKWARD(feed_forward_backward_c256, 256, FEED_FORWARD_ROWS)
FEED_FORWARD_BACKWARD(feed_forward_backward_few_rows_c64, 64, FEED_FORWARD_FEW_ROWS)
FEED_FORWARD_BACKWARD(feed_forward_backward_few_rows_c128, 128, FEED_FORWARD_FEW_ROWS)
FEED_FORWARD_BACKWARD(feed_forward_backward_few_rows_c192, 192, FEED_FORWARD_FEW_ROWS)
FEED_FORWARD_BACKWARD(feed_forward_backward_few_rows_c256, 256, FEED_FORWARD_FEW_ROWS)
