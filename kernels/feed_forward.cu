#include "feed_forward.cuh"

// The row-wise network of a block, the LayerNorm before it and the one behind, and what the next attention takes of it: inner
// rows stay on the chip.
//
//   y = LayerNorm₂(x + f),   f = fc2(ReLU(fc1(x))),   x = LayerNorm₁(x₁ + added[i % period]),
//   LayerNorm(v) = γ·(v − mean)/√(variance + eps) + β,   out = activation(y·Wᵀ + b)
//
// Shapes      x₁, y, attended (x), output (f) [rows, C]; added [period, C]; weight1 [G, C], bias1 [G]; weight2 [C, G], bias2
//             [C]; γ, β [C]; statistics [rows, 2]: mean, 1/√(variance + eps); of the projection W [P, C], b [P], out [P / width,
//             rows, width], or none (P = 0).
// Checked     by the launcher (src/ops/feed_forward/device.rs): C 64, 128, 192 or 256, G a multiple of 64, P of C, lengths, no
//             overlap.
// Launch      grid (⌈rows / R⌉), R = 128, or 32 where rows are few; 256 threads, 2 × 4 warps of R/2 rows and C/4 columns; of
//             the LayerNorm before R/8 rows, four at a time. Shared memory: x, and y in its place for a projection (2·R·C
//             bytes), 128 columns of the inner rows (256·R bytes), two stages of weights (32 KiB each, 16 at C = 64): 160 KiB
//             at C = 256, of 32 rows 88. Results go out straight from registers: four lanes swap pairs, so that each writes 16
//             bytes of a row, or two, and each 8, where a warp's columns are no multiple of 32.
// Types       bf16 in and out; x, inner rows, f and y are rounded to bf16, as apart kernels round them; all sums in f32.
// Determinism sums over inner dimensions in order, as `linear_forward` has them, and of the LayerNorm before as
//             `layer_norm_forward` has them: x and f have the same bits, and out those of `linear_forward` of y. A row has the
//             same bits in any batch. No atomics.
// Writes      `=`: y, statistics, a projection's out, and attended and output where they are not null.
// Cost        4·rows·C·G FLOPs, 2·rows·C·P more for a projection; 6·C bytes a row, 4·C more for backward, where four kernels
//             have 16·C + 4·G, and 2·P for a projection, where a kernel of its own reads y again; the weights once for R rows, by
//             way of L2, whose requests bound it where C·G is of full size (docs/fusion.md); 1.61 cycles of shared memory a
//             product, and 1.29 of a projection's (counters.txt): 1.25 and 1 of fragments, a quarter of weights that come in, the
//             rest of inner rows, x and y. Of 32 rows these bound it, 3.9 of them, on as many multiprocessors as there are blocks.

namespace feed_forward {
namespace {

// A sum of each row for each of the warps that share it.
template <int ROWS> constexpr int SUMS = ROWS * COLUMN_WARPS * 4;

// A thread's lane, and where its warp's results begin: found anew wherever it is asked for, as registers are scarce.
template <int C, int ROWS> struct Part {
    int lane, row, column_warp, column;

    __device__ __forceinline__ Part() {
        const int thread = ptx::thread(), warp = thread >> 5;
        lane = thread & 31;
        row = warp / COLUMN_WARPS * WARP_ROWS<ROWS>;
        column_warp = warp % COLUMN_WARPS;
        column = column_warp * (C / COLUMN_WARPS);
    }

    // Where a pair of results stands in tiles from `place` on, as `gemm::for_pairs` counts them.
    __device__ __forceinline__ ptx::Shared pair(int place, int at, int d) const {
        const int piece = column / 8 + d;
        return tile<ROWS>(place, piece / 8).at(row + at, piece % 8) + (lane & 3) * 4;
    }
};

// A block's results.
template <int C, int ROWS> using Results = float[WARP_ROWS<ROWS> / 16][C / COLUMN_WARPS / 8][4];

// Of each of a thread's rows a value.
template <int ROWS> using OfRows = float[WARP_ROWS<ROWS> / 16][2];

// What a block has in shared memory.
template <int C, int ROWS> struct Shared {
    static constexpr int X = 0, INNER = C / 64 * TILE<ROWS>, STAGES = INNER + 2 * TILE<ROWS>;

    // Sums take the place of inner rows that are no longer needed.
    static __device__ __forceinline__ ptx::Shared sums(int number) {
        static_assert(3 * SUMS<ROWS> <= 2 * TILE<ROWS>);
        return ptx::shared_base() + INNER + number * SUMS<ROWS>;
    }
};

// The weights of all steps, on their way through two stages: for each chunk of the inner rows those of fc1, 128 columns of C
// a step, then those of fc2, 64 of the chunk a step; and for each C results of a projection its own, 64 columns of C a step.
template <int C, int ROWS> struct Weights {
    static constexpr int STEPS1 = (C + 127) / 128, STEPS = STEPS1 + CHUNK / 64, PROJECTION_STEPS = C / 64;

    const FeedForward &p;
    int step, steps;

    __device__ __forceinline__ explicit Weights(const FeedForward &p)
        : p(p), step(0), steps(p.inner / CHUNK * STEPS + (p.inner % CHUNK != 0 ? STEPS1 + 1 : 0)) {}

    // Queues the copies of step number `number`.
    __device__ __forceinline__ void load(int number) const {
        if (number < steps) {
            const int first = number / STEPS * CHUNK, of_chunk = number % STEPS;
            if (of_chunk < STEPS1) {
                load_weight1<C>(stage(number), p.weight1, p.inner, first, of_chunk);
            } else {
                const gemm::Matrix<const uint16_t> weight{p.weight2, C, p.inner};
                gemm::load<C, THREADS>(stage(number), weight.columns(0, first + (of_chunk - STEPS1) * 64), C);
            }
        } else if (const int behind = number - steps; behind < p.projection.outputs / 64) {
            const gemm::Matrix<const uint16_t> weight{p.projection.weight, p.projection.outputs, C};
            const int first = behind / PROJECTION_STEPS * C, column = behind % PROJECTION_STEPS * 64;
            gemm::load<C, THREADS>(stage(number), weight.columns(first, column), C);
        }
        ptx::cp_async_commit();
    }

    // Where those of step number `number` stand.
    __device__ __forceinline__ Tile<64> stage(int number) const {
        return {ptx::shared_base() + Shared<C, ROWS>::STAGES + (number + 1) % 2 * STAGE<C>};
    }
};

// The sum over a whole row of each thread's values of its rows: `own` of the thread's columns, and the total.
template <int C, int ROWS>
__device__ __forceinline__ void sum_rows(OfRows<ROWS> &own, int number) {
    const Part<C, ROWS> part;
    const ptx::Shared sums = Shared<C, ROWS>::sums(number);
#pragma unroll
    for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            own[m][half] += ptx::shuffle_xor(own[m][half], 1);
            own[m][half] += ptx::shuffle_xor(own[m][half], 2);
            const int at = part.row + m * 16 + half * 8 + (part.lane >> 2);
            if ((part.lane & 3) == 0) ptx::store_shared(sums + (at * COLUMN_WARPS + part.column_warp) * 4, own[m][half]);
        }
    }
    ptx::barrier();
#pragma unroll
    for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // A lane has what one of the warps has summed.
            const int at = part.row + m * 16 + half * 8 + (part.lane >> 2);
            own[m][half] = ptx::load_shared<float>(sums + (at * COLUMN_WARPS + (part.lane & 3)) * 4);
            own[m][half] += ptx::shuffle_xor(own[m][half], 1);
            own[m][half] += ptx::shuffle_xor(own[m][half], 2);
        }
    }
}

// fc2(ReLU(fc1(x))) but for fc2's bias.
template <int C, int ROWS>
__device__ __forceinline__ void network(Results<C, ROWS> &results, const FeedForward &p, Weights<C, ROWS> &weights) {
    using Place = Shared<C, ROWS>;
    const Part<C, ROWS> part;
    const int lane = part.lane, row = part.row, column_warp = part.column_warp;
    gemm::clear(results);
#pragma unroll 1
    for (int chunk = 0; chunk < p.inner; chunk += CHUNK) {
        Inner<ROWS> inner;
        multiply_inner<C, ROWS>(inner, Place::X, weights, row, column_warp * 32, lane);
        // Of the last chunk the latter half may be none.
        if (const int column = column_warp * 32; chunk + column < p.inner) {
            gemm::add_bias(inner, p.bias1 + chunk + column, true, lane);
            gemm::for_pairs(inner, lane, [&](int at, int d, float low, float high) {
                const Tile<64> half = tile<ROWS>(Place::INNER, column_warp / 2);
                ptx::store_shared(half.at(row + at, column_warp % 2 * 4 + d) + (lane & 3) * 4, ptx::pack_bf16(low, high));
            });
        }
        const int steps = min(p.inner - chunk, CHUNK) / 64;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const Tile<64> stage = next(weights);
            gemm::multiply<false, false>(results, tile<ROWS>(Place::INNER, step), row, stage, lane, part.column);
        }
    }
}

// Where C columns of rows of a matrix begin, as `gemm::store_pairs` has it of a warp's results: from `row` of a block's rows on, the
// first of which is number `first` of the matrix.
template <int C, int ROWS>
__device__ __forceinline__ auto places(const Part<C, ROWS> &part, const gemm::Matrix<uint16_t> &to, int first, int column) {
    return [=](int row, int piece) {
        piece += part.column / 8;
        return to.columns(first + part.row + row, column + piece / 8 * 64).at(0, piece % 8);
    };
}

// v = x + f, with f rounded as it is kept.
template <int C, int ROWS>
__device__ __forceinline__ void add_residual(Results<C, ROWS> &results, const FeedForward &p, int first, int valid) {
    const Part<C, ROWS> part;
    gemm::add_bias(results, p.bias2 + part.column, false, part.lane);
    if (p.output != nullptr) {
        const gemm::Matrix<uint16_t> output{p.output, p.rows, C};
        gemm::store_pairs(results, valid - part.row, part.lane, places(part, output, first, 0));
    }
    gemm::for_pairs(results, part.lane, [&](int at, int d, float &low, float &high) {
        const uint32_t f = ptx::pack_bf16(low, high);
        const auto other = ptx::load_shared<uint32_t>(part.pair(Shared<C, ROWS>::X, at, d));
        low = bf16_low(f) + bf16_low(other);
        high = bf16_high(f) + bf16_high(other);
    });
}

// The LayerNorm behind the network, of v's rows. As LayerNorm alone: what is left of the mean is taken away as well.
template <int C, int ROWS>
__device__ __forceinline__ void norm_behind(Results<C, ROWS> &results, const FeedForward &p, int first, int valid) {
    constexpr int N = C / COLUMN_WARPS / 8;
    constexpr float SHARE = 1.0f / C;
    OfRows<ROWS> mean = {}, sum;
#pragma unroll
    for (int pass = 0; pass < 3; ++pass) {
#pragma unroll
        for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                sum[m][half] = 0.0f;
#pragma unroll
                for (int d = 0; d < N; ++d) {
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; ++e) {
                        const float value = results[m][d][e];
                        sum[m][half] = pass < 2 ? sum[m][half] + value : fmaf(value, value, sum[m][half]);
                    }
                }
            }
        }
        sum_rows<C, ROWS>(sum, pass);
        if (pass == 2) continue;
#pragma unroll
        for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float rest = sum[m][half] * SHARE;
                mean[m][half] += rest;
#pragma unroll
                for (int d = 0; d < N; ++d) {
                    results[m][d][2 * half] -= rest;
                    results[m][d][2 * half + 1] -= rest;
                }
            }
        }
    }
    const Part<C, ROWS> part;
#pragma unroll
    for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float variance = fmaf(sum[m][half], SHARE, p.eps), near = rsqrtf(variance);
            sum[m][half] = fmaf(0.5f * near, fmaf(-variance * near, near, 1.0f), near);
            const int at = part.row + m * 16 + half * 8 + (part.lane >> 2);
            if (part.column_warp == 0 && (part.lane & 3) == 0 && at < valid) {
                ptx::store_global(reinterpret_cast<float2 *>(p.behind.statistics) + first + at,
                                  make_float2(mean[m][half], sum[m][half]));
            }
        }
    }
#pragma unroll
    for (int d = 0; d < N; ++d) {
        const int column = part.column + d * 8 + 2 * (part.lane & 3);
        const float2 scale = ptx::load_constant(reinterpret_cast<const float2 *>(p.behind.scale + column));
        const float2 shift = ptx::load_constant(reinterpret_cast<const float2 *>(p.behind.shift + column));
#pragma unroll
        for (int m = 0; m < WARP_ROWS<ROWS> / 16; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float &low = results[m][d][2 * half], &high = results[m][d][2 * half + 1];
                low = fmaf(low * sum[m][half], scale.x, shift.x);
                high = fmaf(high * sum[m][half], scale.y, shift.y);
            }
        }
    }
}

// Stores y, and puts it in x's place, where a projection reads it.
template <int C, int ROWS>
__device__ __forceinline__ void store_y(Results<C, ROWS> &results, const FeedForward &p, int first, int valid) {
    const Part<C, ROWS> part;
    const gemm::Matrix<uint16_t> y{p.y, p.rows, C};
    gemm::store_pairs(results, valid - part.row, part.lane, places(part, y, first, 0));
    if (p.projection.outputs == 0) return;
    gemm::for_pairs(results, part.lane, [&](int at, int d, float low, float high) {
        ptx::store_shared(part.pair(Shared<C, ROWS>::X, at, d), ptx::pack_bf16(low, high));
    });
}

// What the next layer makes of y, C columns at a time.
template <int C, int ROWS>
__device__ __forceinline__ void project(Results<C, ROWS> &results, const FeedForward &p, Weights<C, ROWS> &weights,
                                        int first, int valid) {
#pragma unroll 1
    for (int column = 0; column < p.projection.outputs; column += C) {
        const Part<C, ROWS> part;
        gemm::clear(results);
#pragma unroll 1
        for (int k = 0; k < C / 64; ++k) {
            const Tile<64> stage = next(weights);
            const Tile<64> left = tile<ROWS>(Shared<C, ROWS>::X, k);
            gemm::multiply<false, false>(results, left, part.row, stage, part.lane, part.column);
        }
        gemm::add_bias(results, p.projection.bias + column + part.column, p.projection.relu != 0, part.lane);
        const gemm::Matrix<uint16_t> out{p.projection.out, p.rows, p.projection.width};
        gemm::store_pairs(results, valid - part.row, part.lane, places(part, out, first, column));
    }
}

template <int C, int ROWS> __device__ __forceinline__ void forward(const FeedForward &p) {
    using Place = Shared<C, ROWS>;
    const int first = blockIdx.x * ROWS, valid = p.rows - first;
    Weights<C, ROWS> weights(p);
    weights.load(0);
    layer_norm::forward_rows({p.x, p.added, p.before.scale, p.before.shift, p.before.statistics, p.attended, p.period, p.eps},
                             norm_rows<C, ROWS>(first, valid), valid,
                             [](int row) { return piece<ROWS>(Place::X, row, ptx::thread() & 31); });
    Results<C, ROWS> results;
    network<C, ROWS>(results, p, weights);
    // All threads are done with inner rows, whose place sums take.
    ptx::barrier();
    add_residual<C, ROWS>(results, p, first, valid);
    norm_behind<C, ROWS>(results, p, first, valid);
    store_y<C, ROWS>(results, p, first, valid);
    project<C, ROWS>(results, p, weights, first, valid);
}

} // namespace
} // namespace feed_forward

#define FEED_FORWARD(NAME, C, ROWS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(FEED_FORWARD_THREADS, 1)                                            \
        NAME(const __grid_constant__ FeedForward p) {                                                                \
        feed_forward::forward<C, ROWS>(p);                                                                           \
    }
FEED_FORWARD(feed_forward_c64, 64, FEED_FORWARD_ROWS)
FEED_FORWARD(feed_forward_c128, 128, FEED_FORWARD_ROWS)
FEED_FORWARD(feed_forward_c192, 192, FEED_FORWARD_ROWS)
FEED_FORWARD(feed_forward_c256, 256, FEED_FORWARD_ROWS)
FEED_FORWARD(feed_forward_few_rows_c64, 64, FEED_FORWARD_FEW_ROWS)
FEED_FORWARD(feed_forward_few_rows_c128, 128, FEED_FORWARD_FEW_ROWS)
FEED_FORWARD(feed_forward_few_rows_c192, 192, FEED_FORWARD_FEW_ROWS)
FEED_FORWARD(feed_forward_few_rows_c256, 256, FEED_FORWARD_FEW_ROWS)
