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
//             or 32 of a chunk of the inner rows; of LayerNorms R/8 rows, four at a time. Shared memory: x and dy (2·R·C bytes
//             each), 128 columns of the inner rows' gradient (256·R bytes), two stages of weights (32 KiB each, 16 at C = 64):
//             224 KiB at C = 256, which a card of compute capability 9.0 has, and 104 of 32 rows. LayerNorms' sums stand where
//             inner rows do not yet, or no longer; before them the projection's operands do, two stages of 64 of the inner
//             dimension. Inner rows and their gradient go out straight from registers: four lanes swap pairs, so that each
//             writes 16 bytes of a row.
// Types       bf16 in and out; d with the projection's part, h, dh, dy, and the gradient of x are rounded to bf16, as apart
//             kernels round them; all sums, and parts, in f32.
// Determinism sums over inner dimensions in order, as `linear_forward` and `linear_backward_input` have them, and over rows
//             of LayerNorm as `layer_norm_backward` has them: all rows have the same bits as theirs, and in any batch. A
//             part sums its rows in a fixed order. No atomics.
// Writes      `=`: hidden, d_hidden, dy, d, and parts, which `partial_sums` adds to the gradients.
// Cost        6·rows·C·G FLOPs, and 2·rows·C·P to project; 14·C + 4·G + 2·P bytes a row, where six kernels have 28·C + 8·G
//             + 2·P; 16·C / R of parts; the weights of fc1 twice, of fc2 and the projection once for R rows, by way of L2,
//             whose requests bound it where C·G is of full size (docs/fusion.md); 1.69 cycles of shared memory a product at C
//             256, and 1.46 of a projection's (counters.txt): 1.33 and 1 of fragments, a quarter of weights that come in. Of 32
//             rows these bound it, 4.0 of them, on as many multiprocessors as there are blocks.

namespace feed_forward {
namespace {

// What a block has in shared memory.
template <int C, int ROWS> struct Place {
    static constexpr int X = 0, DY = C / 64 * TILE<ROWS>, INNER = 2 * DY, STAGES = INNER + 2 * TILE<ROWS>;
    // Sums over rows of LayerNorms; they end before the stage of the first weights.
    static constexpr int SUMS = INNER, SUMS_BYTES = THREADS / 32 * 2 * C * 4;
    static_assert(SUMS + SUMS_BYTES <= STAGES + STAGE<C>);
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
// the weight behind them, through two stages in the place of inner rows and weights.
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
};

// Puts a warp's results, C/4 columns from `column` on of rows from `row` on, in tiles from DY on, or, ADDS, adds them to the rows
// that stand there, of which a lane's pairs take the place of those that it has read.
template <bool ADDS, int C, int ROWS, int M, int N>
__device__ __forceinline__ void put_rows(float (&results)[M][N][4], int row, int column, int lane) {
    gemm::for_pairs(results, lane, [&](int at, int d, float low, float high) {
        const int piece = column / 8 + d;
        const Tile<64> dy = tile<ROWS>(Place<C, ROWS>::DY, piece / 8);
        const ptx::Shared place = dy.at(row + at, piece % 8) + (lane & 3) * 4;
        if constexpr (ADDS) {
            const auto other = ptx::load_shared<uint32_t>(place);
            low += bf16_low(other);
            high += bf16_high(other);
        }
        ptx::store_shared(place, ptx::pack_bf16(low, high));
    });
}

// Backward of a LayerNorm of the block's rows, as `layer_norm::backward_rows` has it, and the block's part of sums over rows.
template <int C, int ROWS, class Load, class Gradient, class Store>
__device__ __forceinline__ void norm_and_sums(const FeedForwardNorm &p, int first, int valid, const Load &load,
                                              const Gradient &gradient, const Store &store) {
    const auto rows = norm_rows<C, ROWS>(first, valid);
    layer_norm::Columns<1> own{};
    layer_norm::backward_rows(own, p.weight, p.statistics, rows, load, gradient, store);
    const ptx::Shared sums = ptx::shared_base() + Place<C, ROWS>::SUMS;
    if (rows.inside()) own.put(sums + threadIdx.x / 32 * 8 * C, 0, rows.column(), C);
    ptx::barrier();
    layer_norm::store_sums<THREADS>(p.parts, sums, THREADS / 32, C);
}

// Of the LayerNorm behind the network: dy, and x, where products read them; d stands in dy's place where it comes by way of a
// projection.
template <int C, int ROWS>
__device__ __forceinline__ void behind_backward(const FeedForwardBackward &p, int first, int valid) {
    const int lane = ptx::thread() & 31;
    const bool is_projected = p.projected.outputs > 0;
    norm_and_sums<C, ROWS>(
        p.behind, first, valid,
        [&](size_t at) {
            layer_norm::Row row{layer_norm::load_pieces(p.behind.added + at, p.behind.x + at)};
            if (!is_projected) row.d = ptx::load_global(reinterpret_cast<const uint4 *>(p.d + at));
            return row;
        },
        [&](const layer_norm::Row &loaded, int row) {
            ptx::store_shared(piece<ROWS>(Place<C, ROWS>::X, row, lane), loaded.of.x);
            return is_projected ? ptx::load_shared<uint4>(piece<ROWS>(Place<C, ROWS>::DY, row, lane)) : loaded.d;
        },
        [&](uint4 packed, int row, size_t at) {
            ptx::store_shared(piece<ROWS>(Place<C, ROWS>::DY, row, lane), packed);
            if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.dy + at), packed);
        });
}

// Of the one before it, whose rows' gradient stands in dy's place.
template <int C, int ROWS>
__device__ __forceinline__ void before_backward(const FeedForwardBackward &p, int first, int valid) {
    const int lane = ptx::thread() & 31, period = p.before.period;
    layer_norm::Repeated<C> added{p.before.added, period, norm_rows<C, ROWS>(first, valid).repeated(period)};
    norm_and_sums<C, ROWS>(
        p.before, first, valid,
        [&](size_t at) { return layer_norm::Row{layer_norm::load_pieces(p.before.x + at, added.next(lane * PIECE))}; },
        [&](const layer_norm::Row &, int row) {
            return ptx::load_shared<uint4>(piece<ROWS>(Place<C, ROWS>::DY, row, lane));
        },
        [&](uint4 packed, int row, size_t at) {
            if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.d + at), packed);
        });
}

template <int C, int ROWS> __device__ __forceinline__ void backward(const FeedForwardBackward &p) {
    using At = Place<C, ROWS>;
    constexpr int N = C / COLUMN_WARPS / 8;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = warp / COLUMN_WARPS * WARP_ROWS<ROWS>, column_warp = warp % COLUMN_WARPS;
    const int first = blockIdx.x * ROWS, valid = p.rows - first;

    const int column = column_warp * (C / 4);
    float results[WARP_ROWS<ROWS> / 16][N][4];

    if (p.projected.outputs > 0) {
        Projected<C, ROWS> projected(p, first);
        projected.load(0);
        gemm::clear(results);
#pragma unroll 1
        while (projected.step < projected.steps) {
            const Tile<64> left = next(projected);
            gemm::multiply<false, true>(results, left, row, projected.right(left), lane, column);
        }
        if (p.given != 0) {
            gemm::finish_pairs(results, false, valid - row, lane, [&](int at, int piece) {
                return p.d + static_cast<size_t>(first + row + at) * C + column + piece * 8;
            });
        }
        put_rows<false, C, ROWS>(results, row, column, lane);
        // All threads are done with the operands, and d's rows are there.
        ptx::barrier();
    }
    Weights<C, ROWS> weights(p);
    weights.load(0);
    behind_backward<C, ROWS>(p, first, valid);

    // Where 8 of the warp's inner columns of a row begin.
    const auto inner_rows = [&](uint16_t *rows, int chunk) {
        const int inner = p.inner, of_warp = first + row, columns = chunk + column_warp * 32;
        return [=](int at, int piece) { return rows + static_cast<size_t>(of_warp + at) * inner + columns + piece * 8; };
    };
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
            gemm::for_pairs(inner, lane, [&](int, int, float low, float high) {
                const uint32_t pair = ptx::pack_bf16(low, high);
                above[0] |= (bf16_low(pair) > 0.0f ? 1u : 0u) << number;
                above[1] |= (bf16_high(pair) > 0.0f ? 1u : 0u) << number;
                ++number;
            });
            gemm::store_pairs(inner, valid - row, lane, inner_rows(p.hidden, chunk));
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
            gemm::for_pairs(inner, lane, [&](int at, int d, float &low, float &high) {
                low = (above[0] >> number & 1) != 0 ? low : 0.0f;
                high = (above[1] >> number & 1) != 0 ? high : 0.0f;
                ++number;
                own.put(at, d, ptx::pack_bf16(low, high));
            });
            gemm::store_pairs(inner, valid - row, lane, inner_rows(p.d_hidden, chunk));
        }

        const int steps = min(p.inner - chunk, CHUNK) / 64;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const Tile<64> stage = next(weights);
            gemm::multiply<false, true>(results, tile<ROWS>(At::INNER, step), row, stage, lane, column);
        }
    }

    put_rows<true, C, ROWS>(results, row, column, lane);
    // All threads have added, and are done with inner rows and weights.
    ptx::barrier();
    before_backward<C, ROWS>(p, first, valid);
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
