#include "embed.h"

#include "row.cuh"

// Ordinal embeddings: the rows of tables that belong to a document's ranks in its initial rankings (paper, section 4.2).
//
//   y[i] = x[i] + Σ_r tables[r, ordinals[r, i]],   d_tables[r, k] += Σ of dy[i] where ordinals[r, i] = k
//
// Shapes      x, y, dy [N, C]; tables [R, n_max, C]; ordinals [R, N], negative where a ranking lacks the document; backward:
//             documents sorted by table and row, starts [R·n_max + 1]. C a multiple of 64 up to 512, any N.
// Checked     by the launcher (src/ops/embed/device.rs): ordinals below n_max, lengths, no overlap but x = y.
// Launch      256 threads, each with eight columns. forward: a block for each 2048 / C rows; backward: a block for each row of each table,
//             whose threads share its documents; shared memory: 32 bytes a thread.
// Types       bf16, tables and sums f32; y is rounded once.
// Determinism forward: rankings in order. backward: of G threads for the same columns, each sums every G-th document in
//             order, and then these sums are added in order; G depends on C alone. No atomics.
// Writes      `=`: y; `+=`: d_tables.
// Cost        forward 4·N·C bytes and R·N·C of tables by way of L2, backward 2·R·N·C. Bound by memory.

namespace {

// Eight values of a row in f32.
struct Eight {
    float values[PIECE];

    __device__ __forceinline__ void add(float4 low, float4 high) {
        values[0] += low.x, values[1] += low.y, values[2] += low.z, values[3] += low.w;
        values[4] += high.x, values[5] += high.y, values[6] += high.z, values[7] += high.w;
    }

    // Adds eight bf16.
    __device__ __forceinline__ void add(uint4 pairs) {
        float added[PIECE];
        unpack(added, pairs);
        for (int i = 0; i < PIECE; ++i) values[i] += added[i];
    }

    __device__ __forceinline__ float4 low() const { return make_float4(values[0], values[1], values[2], values[3]); }
    __device__ __forceinline__ float4 high() const { return make_float4(values[4], values[5], values[6], values[7]); }
};

} // namespace

extern "C" __global__ void __launch_bounds__(EMBED_THREADS) embed_forward(const __grid_constant__ EmbedForward p) {
    const int of_row = p.width / 8, rows = EMBED_THREADS / of_row, row_of_block = threadIdx.x / of_row;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * rows + row_of_block;
    if (row_of_block >= rows || row >= p.rows) return;
    const int column = threadIdx.x % of_row * 8;
    const int64_t at = row * p.width + column;
    Eight sum = {};
    // Where x is y, what is read is written in this launch: no constant load.
    sum.add(ptx::load_global(reinterpret_cast<const uint4 *>(p.x + at)));
#pragma unroll 1
    for (int64_t ranking = 0; ranking < p.rankings; ++ranking) {
        const int32_t ordinal = ptx::load_constant(p.ordinals + ranking * p.rows + row);
        if (ordinal < 0) continue;
        const float *const from = p.tables + (ranking * p.n_max + ordinal) * p.width + column;
        sum.add(ptx::load_constant(reinterpret_cast<const float4 *>(from)),
                ptx::load_constant(reinterpret_cast<const float4 *>(from + 4)));
    }
    store_piece(p.y + at, sum.values);
}

extern "C" __global__ void __launch_bounds__(EMBED_THREADS) embed_backward(const __grid_constant__ EmbedBackward p) {
    const int64_t row = blockIdx.x;
    const int begin = ptx::load_constant(p.starts + row), end = ptx::load_constant(p.starts + row + 1);
    if (begin == end) return;
    const int of_row = p.width / 8, groups = EMBED_THREADS / of_row;
    const int group = threadIdx.x / of_row, column = threadIdx.x % of_row * 8;
    Eight sum = {};
    if (group < groups) {
        // Unrolled, so that several loads are under way.
#pragma unroll 4
        for (int i = begin + group; i < end; i += groups) {
            const int64_t document = ptx::load_constant(p.documents + i);
            sum.add(ptx::load_constant(reinterpret_cast<const uint4 *>(p.dy + document * p.width + column)));
        }
    }
    // The halves of all threads apart, so that no two lanes meet in a bank.
    const ptx::Shared lows = ptx::shared_base(), highs = lows + EMBED_THREADS * 16;
    ptx::store_shared(lows + threadIdx.x * 16, sum.low());
    ptx::store_shared(highs + threadIdx.x * 16, sum.high());
    ptx::barrier();
    if (group > 0) return;
    for (int other = 1; other < groups; ++other) {
        const uint32_t offset = (other * of_row + threadIdx.x) * 16;
        sum.add(ptx::load_shared<float4>(lows + offset), ptx::load_shared<float4>(highs + offset));
    }
    float *const to = p.d_tables + row * p.width + column;
    sum.add(ptx::load_global(reinterpret_cast<const float4 *>(to)),
            ptx::load_global(reinterpret_cast<const float4 *>(to + 4)));
    ptx::store_global(reinterpret_cast<float4 *>(to), sum.low());
    ptx::store_global(reinterpret_cast<float4 *>(to + 4), sum.high());
}
