#include "feed_forward.h"

#include "bf16.cuh"
#include "gemm.cuh"

// The row-wise network of a block: inner rows stay on the chip, and LayerNorm follows where the results are.
//
//   y = γ·(v − mean)/√(variance + eps) + β,   v = x + f,   f = fc2(ReLU(fc1(x)))
//
// Shapes      x, y, output (f) [rows, C]; weight1 [G, C], bias1 [G]; weight2 [C, G], bias2 [C]; γ, β [C];
//             statistics [rows, 2]: mean, 1/√(variance + eps).
// Checked     by the launcher (src/ops/feed_forward/device.rs): C 64, 128, 192 or 256, G a multiple of 64, lengths, no
//             overlap.
// Launch      grid (⌈rows / 128⌉); 256 threads, 2 × 4 warps of 64 rows and C/4 columns. Shared memory: x (256·C bytes), 128
//             columns of the inner rows (32 KiB), two stages of weights (32 KiB each, 16 at C = 64): 160 KiB at C = 256.
// Types       bf16 in and out; inner rows and f are rounded to bf16, as apart kernels round them; all sums in f32.
// Determinism sums over inner dimensions in order, as `linear_forward` has them: f has the same bits. A row has the same
//             bits in any batch. No atomics.
// Writes      `=`: y, statistics, and output where it is not null.
// Cost        4·rows·C·G FLOPs; 4·C bytes a row, 2·C more for backward; the weights once for 128 rows, by way of L2. Bound by
//             products where C·G is of full size: 1.6 cycles of shared memory a product.

namespace {

constexpr int ROWS = FEED_FORWARD_ROWS, THREADS = FEED_FORWARD_THREADS, CHUNK = FEED_FORWARD_CHUNK;
// Rows of a warp, and the warps that share them.
constexpr int WARP_ROWS = 64, COLUMN_WARPS = 4;
// 128 rows of 64 columns.
constexpr int TILE = Tile<64>::bytes(ROWS);
// A sum of each row for each of the warps that share it.
constexpr int SUMS = ROWS * COLUMN_WARPS * 4;

// What a block has in shared memory.
template <int C> struct Shared {
    static constexpr int X = 0, INNER = C / 64 * TILE, STAGES = INNER + 2 * TILE;
    // Of the weights of a step: 128 columns of fc1's 128 rows, or 64 of fc2's C rows.
    static constexpr int STAGE = C < 128 ? TILE : 2 * TILE;

    static __device__ __forceinline__ Tile<64> tile(int place, int number) {
        return {ptx::shared_base() + place + number * TILE};
    }
    // When weights are no longer needed, what stands in rows takes their place, and sums come behind.
    static __device__ __forceinline__ ptx::Shared sums(int number) {
        static_assert(C / 64 * TILE + 3 * SUMS <= 2 * TILE + 2 * STAGE);
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
            const Tile<64> stage = Shared<C>::tile(Shared<C>::STAGES + number % 2 * Shared<C>::STAGE, 0);
            if (of_chunk < STEPS1) {
                const gemm::Matrix<const uint16_t> weight{p.weight1, p.inner, C};
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = of_chunk * 128 + half * 64;
                    if (column >= C) continue;
                    const Tile<64> to{stage.begin + half * TILE};
                    gemm::load<CHUNK, THREADS>(to, weight.columns(first, column), p.inner - first);
                }
            } else {
                const gemm::Matrix<const uint16_t> weight{p.weight2, C, p.inner};
                gemm::load<C, THREADS>(stage, weight.columns(0, first + (of_chunk - STEPS1) * 64), C);
            }
        }
        ptx::cp_async_commit();
    }

    // Waits for the next step's, and queues those of the step behind it.
    __device__ __forceinline__ Tile<64> next() {
        ptx::cp_async_wait<0>();
        // All copies of this step have landed, and all threads are done with the step that is replaced.
        ptx::barrier();
        load(step + 1);
        return Shared<C>::tile(Shared<C>::STAGES + step++ % 2 * Shared<C>::STAGE, 0);
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

// The block's threads copy the rows of C columns that stand in tiles from `place` on.
template <int C> __device__ __forceinline__ void store_rows(uint16_t *to, int place, int valid) {
    constexpr int PIECES = C / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        if (row >= valid) break;
        const auto value = ptx::load_shared<uint4>(Shared<C>::tile(place, piece / 8).at(row, piece % 8));
        ptx::store_global(reinterpret_cast<uint4 *>(to) + i, value);
    }
}

template <int C> __device__ __forceinline__ void feed_forward(const FeedForward &p) {
    using Place = Shared<C>;
    constexpr int N = C / COLUMN_WARPS / 8;
    constexpr float SHARE = 1.0f / C;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = warp / COLUMN_WARPS * WARP_ROWS, column_warp = warp % COLUMN_WARPS;
    const int first = blockIdx.x * ROWS, valid = p.rows - first;

    const gemm::Matrix<const uint16_t> x{p.x, p.rows, C};
#pragma unroll
    for (int k = 0; k < C / 64; ++k) gemm::load<ROWS, THREADS>(Place::tile(Place::X, k), x.columns(first, k * 64), valid);
    Weights<C> weights(p);
    weights.load(0);

    Tile<64> stage{};
    float results[4][N][4];
    gemm::clear(results);
#pragma unroll 1
    for (int chunk = 0; chunk < p.inner; chunk += CHUNK) {
        float inner[4][4][4];
        gemm::clear(inner);
#pragma unroll 1
        for (int k = 0; k < C / 64; ++k) {
            if (k % 2 == 0) stage = weights.next();
            const Tile<64> right{stage.begin + k % 2 * TILE};
            gemm::multiply<false, false>(inner, Place::tile(Place::X, k), row, right, lane, column_warp * 32);
        }
        // Of the last chunk the latter half may be none.
        if (const int column = column_warp * 32; chunk + column < p.inner) {
            gemm::add_bias(inner, p.bias1 + chunk + column, true, lane);
            gemm::for_pairs(inner, lane, [&](int at, int d, float low, float high) {
                const Tile<64> tile = Place::tile(Place::INNER, column_warp / 2);
                ptx::store_shared(tile.at(row + at, column_warp % 2 * 4 + d) + (lane & 3) * 4, ptx::pack_bf16(low, high));
            });
        }
        const int steps = min(p.inner - chunk, CHUNK) / 64;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            stage = weights.next();
            gemm::multiply<false, false>(results, Place::tile(Place::INNER, step), row, stage, lane, column_warp * (C / 4));
        }
    }

    // f, rounded as it is kept, and then v.
    const int column = column_warp * (C / 4);
    gemm::add_bias(results, p.bias2 + column, false, lane);
    // All threads are done with inner rows and weights, whose place f takes.
    ptx::barrier();
    const auto at_pair = [&](int place, int at, int d) {
        const int piece = column / 8 + d;
        return Place::tile(place, piece / 8).at(row + at, piece % 8) + (lane & 3) * 4;
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
                ptx::store_global(reinterpret_cast<float2 *>(p.statistics) + first + at,
                                  make_float2(mean[m][half], sum[m][half]));
            }
        }
    }
#pragma unroll
    for (int d = 0; d < N; ++d) {
        const int of_lane = column + d * 8 + 2 * (lane & 3);
        const float2 scale = ptx::load_constant(reinterpret_cast<const float2 *>(p.scale + of_lane));
        const float2 shift = ptx::load_constant(reinterpret_cast<const float2 *>(p.shift + of_lane));
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

#define FEED_FORWARD(NAME, C)                                                                                         \
    extern "C" __global__ void __launch_bounds__(FEED_FORWARD_THREADS, 1) NAME(const __grid_constant__ FeedForward p) { \
        feed_forward<C>(p);                                                                                           \
    }
FEED_FORWARD(feed_forward_c64, 64)
FEED_FORWARD(feed_forward_c128, 128)
FEED_FORWARD(feed_forward_c192, 192)
FEED_FORWARD(feed_forward_c256, 256)
