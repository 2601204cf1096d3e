#include "feed_forward.cuh"

// The row-wise network of a block, the LayerNorm before it and the one behind: inner rows stay on the chip.
//
//   y = LayerNorm₂(x + f),   f = fc2(ReLU(fc1(x))),   x = LayerNorm₁(x₁ + added[i % period]),
//   LayerNorm(v) = γ·(v − mean)/√(variance + eps) + β
//
// Shapes      x₁, y, attended (x), output (f) [rows, C]; added [period, C]; weight1 [G, C], bias1 [G]; weight2 [C, G], bias2
//             [C]; γ, β [C]; statistics [rows, 2]: mean, 1/√(variance + eps).
// Checked     by the launcher (src/ops/feed_forward/device.rs): C 64, 128, 192 or 256, G a multiple of 64, lengths, no
//             overlap.
// Launch      grid (⌈rows / 128⌉); 256 threads, 2 × 4 warps of 64 rows and C/4 columns; a warp a row of the LayerNorm before.
//             Shared memory: x (256·C bytes), 128 columns of the inner rows (32 KiB), two stages of weights (32 KiB each, 16 at
//             C = 64): 160 KiB at C = 256. What is added to x₁ stands where inner rows and weights do not yet.
// Types       bf16 in and out; x, inner rows and f are rounded to bf16, as apart kernels round them; all sums in f32.
// Determinism sums over inner dimensions in order, as `linear_forward` has them, and of the LayerNorm before as
//             `layer_norm_forward` has them: x and f have the same bits. A row has the same bits in any batch. No atomics.
// Writes      `=`: y, statistics, and attended and output where they are not null.
// Cost        4·rows·C·G FLOPs; 6·C bytes a row, 4·C more for backward, where four kernels have 16·C + 4·G; the weights once for
//             128 rows, by way of L2, whose requests bound it where C·G is of full size (docs/fusion.md); 1.75 cycles of shared
//             memory a product (counters.txt).

namespace feed_forward {
namespace {

// A sum of each row for each of the warps that share it.
constexpr int SUMS = ROWS * COLUMN_WARPS * 4;

// What a block has in shared memory.
template <int C> struct Shared {
    static constexpr int X = 0, INNER = C / 64 * TILE, STAGES = INNER + 2 * TILE;
    // What is added to x₁; it ends before the stage of the first weights.
    static constexpr int OTHER = INNER;
    static_assert(OTHER + C / 64 * TILE <= STAGES + STAGE<C>);

    // When weights are no longer needed, what stands in rows takes their place, and sums come behind.
    static __device__ __forceinline__ ptx::Shared sums(int number) {
        static_assert(C / 64 * TILE + 3 * SUMS <= 2 * TILE + 2 * STAGE<C>);
        return ptx::shared_base() + INNER + C / 64 * TILE + number * SUMS;
    }
};

// The weights of all steps, on their way through two stages: for each chunk of the inner rows those of fc1, 128 columns of C
// a step, then those of fc2, 64 of the chunk a step.
template <int C> struct Weights {
    static constexpr int STEPS1 = (C + 127) / 128, STEPS = STEPS1 + CHUNK / 64;

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
        }
        ptx::cp_async_commit();
    }

    // Where those of step number `number` stand.
    __device__ __forceinline__ Tile<64> stage(int number) const {
        return {ptx::shared_base() + Shared<C>::STAGES + (number + 1) % 2 * STAGE<C>};
    }
};

// The sum over a whole row of each thread's values of its eight rows: `own` of the thread's columns, and the total.
template <int C> __device__ __forceinline__ void sum_rows(float (&own)[4][2], int number, int row, int warp, int lane) {
    const ptx::Shared sums = Shared<C>::sums(number);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            own[m][half] += ptx::shuffle_xor(own[m][half], 1);
            own[m][half] += ptx::shuffle_xor(own[m][half], 2);
            const int at = row + m * 16 + half * 8 + (lane >> 2);
            if ((lane & 3) == 0) ptx::store_shared(sums + (at * COLUMN_WARPS + warp) * 4, own[m][half]);
        }
    }
    ptx::barrier();
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = row + m * 16 + half * 8 + (lane >> 2);
            const auto all = ptx::load_shared<float4>(sums + at * COLUMN_WARPS * 4);
            own[m][half] = all.x + all.y + (all.z + all.w);
        }
    }
}

// The LayerNorm before the network, in the place of the block's rows; those behind the last stay 0.
template <int C>
__device__ __forceinline__ void norm_before(const FeedForward &p, int first, int valid, int lane, int warp) {
    const bool inside[1] = {lane < C / 8};
    float weight[PIECE] = {}, bias[PIECE] = {};
    if (inside[0]) {
        load_piece(weight, p.before.scale + lane * PIECE);
        load_piece(bias, p.before.shift + lane * PIECE);
    }
    WarpSum sum;
#pragma unroll 1
    for (int row = warp; row < min(valid, ROWS); row += THREADS / 32) {
        layer_norm::Values<1> value{};
        if (inside[0]) load_sum(value[0], Shared<C>::X, Shared<C>::OTHER, row, lane);
        const float2 statistics = layer_norm::center(value, inside, 1.0f / C, p.eps, sum);
        if (inside[0]) {
            layer_norm::scale(value[0], statistics.y, weight, bias);
            const uint4 packed = pack(value[0]);
            ptx::store_shared(piece(Shared<C>::X, row, lane), packed);
            if (p.attended != nullptr) {
                const size_t to = static_cast<size_t>(first + row) * C;
                ptx::store_global(reinterpret_cast<uint4 *>(p.attended + to) + lane, packed);
            }
        }
        if (lane == 0) ptx::store_global(reinterpret_cast<float2 *>(p.before.statistics) + first + row, statistics);
    }
}

template <int C> __device__ __forceinline__ void forward(const FeedForward &p) {
    using Place = Shared<C>;
    constexpr int N = C / COLUMN_WARPS / 8;
    constexpr float SHARE = 1.0f / C;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = warp / COLUMN_WARPS * WARP_ROWS, column_warp = warp % COLUMN_WARPS;
    const int first = blockIdx.x * ROWS, valid = p.rows - first;

    load_rows<C>(Place::X, p.x, p.rows, first);
    load_repeated<C>(Place::OTHER, p.added, first, p.period, valid);
    ptx::cp_async_commit();
    Weights<C> weights(p);
    weights.load(0);
    ptx::cp_async_wait<1>();
    ptx::barrier();
    norm_before<C>(p, first, valid, lane, warp);

    float results[4][N][4];
    gemm::clear(results);
#pragma unroll 1
    for (int chunk = 0; chunk < p.inner; chunk += CHUNK) {
        float inner[4][4][4];
        multiply_inner<C>(inner, Place::X, weights, row, column_warp * 32, lane);
        // Of the last chunk the latter half may be none.
        if (const int column = column_warp * 32; chunk + column < p.inner) {
            gemm::add_bias(inner, p.bias1 + chunk + column, true, lane);
            gemm::for_pairs(inner, lane, [&](int at, int d, float low, float high) {
                const Tile<64> half = tile(Place::INNER, column_warp / 2);
                ptx::store_shared(half.at(row + at, column_warp % 2 * 4 + d) + (lane & 3) * 4, ptx::pack_bf16(low, high));
            });
        }
        const int steps = min(p.inner - chunk, CHUNK) / 64;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const Tile<64> stage = next(weights);
            gemm::multiply<false, false>(results, tile(Place::INNER, step), row, stage, lane, column_warp * (C / 4));
        }
    }

    // f, rounded as it is kept, and then v.
    const int column = column_warp * (C / 4);
    gemm::add_bias(results, p.bias2 + column, false, lane);
    // All threads are done with inner rows and weights, whose place f takes.
    ptx::barrier();
    const auto at_pair = [&](int place, int at, int d) {
        const int piece = column / 8 + d;
        return tile(place, piece / 8).at(row + at, piece % 8) + (lane & 3) * 4;
    };
    gemm::for_pairs(results, lane, [&](int at, int d, float &low, float &high) {
        const uint32_t f = ptx::pack_bf16(low, high), other = ptx::load_shared<uint32_t>(at_pair(Place::X, at, d));
        if (p.output != nullptr) ptx::store_shared(at_pair(Place::INNER, at, d), f);
        low = bf16_low(f) + bf16_low(other);
        high = bf16_high(f) + bf16_high(other);
    });

    // As LayerNorm alone: what is left of the mean is taken away as well.
    float mean[4][2] = {}, sum[4][2];
#pragma unroll
    for (int pass = 0; pass < 3; ++pass) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
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
        sum_rows<C>(sum, pass, row, column_warp, lane);
        if (pass == 2) continue;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
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
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float variance = fmaf(sum[m][half], SHARE, p.eps), near = rsqrtf(variance);
            sum[m][half] = fmaf(0.5f * near, fmaf(-variance * near, near, 1.0f), near);
            const int at = row + m * 16 + half * 8 + (lane >> 2);
            if (column_warp == 0 && (lane & 3) == 0 && at < valid) {
                ptx::store_global(reinterpret_cast<float2 *>(p.behind.statistics) + first + at,
                                  make_float2(mean[m][half], sum[m][half]));
            }
        }
    }
#pragma unroll
    for (int d = 0; d < N; ++d) {
        const int of_lane = column + d * 8 + 2 * (lane & 3);
        const float2 scale = ptx::load_constant(reinterpret_cast<const float2 *>(p.behind.scale + of_lane));
        const float2 shift = ptx::load_constant(reinterpret_cast<const float2 *>(p.behind.shift + of_lane));
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float low = fmaf(results[m][d][2 * half] * sum[m][half], scale.x, shift.x);
                const float high = fmaf(results[m][d][2 * half + 1] * sum[m][half], scale.y, shift.y);
                // A lane's pairs take the place of those that it has read.
                const int at = m * 16 + half * 8 + (lane >> 2);
                ptx::store_shared(at_pair(Place::X, at, d), ptx::pack_bf16(low, high));
            }
        }
    }
    ptx::barrier();
    const size_t to = static_cast<size_t>(first) * C;
    if (p.output != nullptr) store_rows<C>(p.output + to, Place::INNER, valid);
    store_rows<C>(p.y + to, Place::X, valid);
}

} // namespace
} // namespace feed_forward

#define FEED_FORWARD(NAME, C)                                                                                        \
    extern "C" __global__ void __launch_bounds__(FEED_FORWARD_THREADS, 1)                                            \
        NAME(const __grid_constant__ FeedForward p) {                                                                \
        feed_forward::forward<C>(p);                                                                                 \
    }
FEED_FORWARD(feed_forward_c64, 64)
FEED_FORWARD(feed_forward_c128, 128)
FEED_FORWARD(feed_forward_c192, 192)
FEED_FORWARD(feed_forward_c256, 256)
